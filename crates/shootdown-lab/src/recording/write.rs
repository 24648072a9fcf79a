//! Writing a recording.
//!
//! I1 of the module above is kept here: frames go to a temporary file beside the final one, and
//! only [`Writer::finish`] gives it its name. A writer that is dropped before takes its file away.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::codec::{Encoder, Output};
use super::error::RecordingError;
use super::frame::{self, FRAME_LIMIT, Kind};
use super::model::{Event, Header, Trailer};

/// Plain bytes after which a frame of events is closed. The largest event (a name of 255 bytes)
/// fits many times between this and [`FRAME_LIMIT`].
const CLOSE_AT: usize = FRAME_LIMIT as usize / 4;

/// Writes events to a stream, frame by frame.
#[derive(Debug)]
pub struct EventSink<W: Write> {
    out: W,
    encoder: Encoder,
    plain: Output,
    events: u64,
    last_time: u64,
}

impl<W: Write> EventSink<W> {
    /// Begins a recording on `out`.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn new(mut out: W, header: &Header) -> io::Result<Self> {
        frame::write_preamble(&mut out)?;
        let mut plain = Output::default();
        header.encode(&mut plain);
        frame::write_frame(&mut out, Kind::Header, plain.as_slice())?;
        plain.clear();
        Ok(Self { out, encoder: Encoder::default(), plain, events: 0, last_time: 0 })
    }

    /// Appends an event. `Ok(false)`: it is older than the one before and was not taken.
    ///
    /// # Errors
    ///
    /// Those of the stream.
    pub fn push(&mut self, event: &Event) -> io::Result<bool> {
        if event.time < self.last_time {
            return Ok(false);
        }
        self.encoder.event(event, &mut self.plain);
        self.events += 1;
        self.last_time = event.time;
        if self.plain.len() >= CLOSE_AT {
            self.close_frame()?;
        }
        Ok(true)
    }

    /// Ends the recording; the trailer's count of events is filled in.
    ///
    /// # Errors
    ///
    /// Those of the stream.
    pub fn finish(mut self, mut trailer: Trailer) -> io::Result<W> {
        self.close_frame()?;
        trailer.events = self.events;
        trailer.encode(&mut self.plain);
        frame::write_frame(&mut self.out, Kind::Trailer, self.plain.as_slice())?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn close_frame(&mut self) -> io::Result<()> {
        if !self.plain.is_empty() {
            frame::write_frame(&mut self.out, Kind::Events, self.plain.as_slice())?;
            self.plain.clear();
            self.encoder = Encoder::default();
        }
        Ok(())
    }
}

/// Writes a recording to a file that appears when it is whole.
#[derive(Debug)]
pub struct Writer {
    sink: Option<EventSink<BufWriter<File>>>,
    temporary: PathBuf,
    path: PathBuf,
}

impl Writer {
    /// Begins a recording that will be called `path`.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`] when the file cannot be made beside `path`.
    pub fn create(path: &Path, header: &Header) -> Result<Self, RecordingError> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.partial", std::process::id()));
        let temporary = path.with_file_name(name);
        let opened = File::create_new(&temporary)
            .and_then(|file| EventSink::new(BufWriter::new(file), header));
        match opened {
            Ok(sink) => Ok(Self { sink: Some(sink), temporary, path: path.to_path_buf() }),
            Err(source) => Err(RecordingError::Io { path: path.to_path_buf(), source }),
        }
    }

    /// Appends an event.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Unordered`], [`RecordingError::Io`].
    pub fn push(&mut self, event: &Event) -> Result<(), RecordingError> {
        let sink = self.sink.as_mut().expect("only finish takes the sink");
        let previous = sink.last_time;
        match sink.push(event) {
            Ok(true) => Ok(()),
            Ok(false) => Err(RecordingError::Unordered { time: event.time, previous }),
            Err(source) => Err(RecordingError::Io { path: self.path.clone(), source }),
        }
    }

    /// Ends the recording and gives the file its name. Returns its size in bytes.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`]; the file is not there then.
    pub fn finish(mut self, trailer: Trailer) -> Result<u64, RecordingError> {
        let sink = self.sink.take().expect("finish consumes the writer");
        let named = sink.finish(trailer).and_then(|out| {
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            let size = file.metadata()?.len();
            fs::rename(&self.temporary, &self.path)?;
            Ok(size)
        });
        named.map_err(|source| {
            // The error that stopped us is the one to tell; a leftover that cannot be removed is
            // its echo.
            let _ = fs::remove_file(&self.temporary);
            RecordingError::Io { path: self.path.clone(), source }
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.sink.take().is_some() {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
