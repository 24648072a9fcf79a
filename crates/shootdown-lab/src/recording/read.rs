//! Reading a recording, event by event.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::codec::{Decoder, Input, Malformed};
use super::error::{Problem, RecordingError};
use super::frame::{FrameError, Frames, Kind};
use super::model::{Event, Header, Trailer};

/// A recording being read. An iterator over its events, in order of time; after the last one
/// [`Reader::trailer`] is there.
///
/// Memory stays at one frame however long the recording is.
#[derive(Debug)]
pub struct Reader<R> {
    frames: Frames<R>,
    path: PathBuf,
    header: Header,
    pending: VecDeque<Event>,
    events: u64,
    last_time: u64,
    trailer: Option<Trailer>,
    failed: bool,
}

impl Reader<BufReader<File>> {
    /// Opens a recording and reads its header.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`], [`RecordingError::Bad`].
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let file = File::open(path)
            .map_err(|source| RecordingError::Io { path: path.to_path_buf(), source })?;
        Self::new(BufReader::new(file), path)
    }
}

impl<R: Read> Reader<R> {
    /// Reads a recording from a stream; `path` is what errors call it.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`], [`RecordingError::Bad`].
    pub fn new(input: R, path: &Path) -> Result<Self, RecordingError> {
        let fail = |error| located(path, error);
        let mut frames = Frames::open(input).map_err(fail)?;
        let first = frames.next_frame().map_err(fail)?;
        let bad = |problem| fail(FrameError::Bad(first.offset, problem));
        if first.kind != Kind::Header {
            return Err(bad(Problem::Malformed { expected: "the header frame first" }));
        }
        let header = Header::decode(&mut Input::new(&first.plain))
            .map_err(|Malformed(expected)| bad(Problem::Malformed { expected }))?;
        Ok(Self {
            frames,
            path: path.to_path_buf(),
            header,
            pending: VecDeque::new(),
            events: 0,
            last_time: 0,
            trailer: None,
            failed: false,
        })
    }

    /// Where the recording comes from.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// What was known at its end; `None` until every event was read.
    #[must_use]
    pub const fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref()
    }

    /// Reads all of it.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`], [`RecordingError::Bad`].
    pub fn read_all(mut self) -> Result<(Header, Vec<Event>, Trailer), RecordingError> {
        let events = self.by_ref().collect::<Result<Vec<_>, _>>()?;
        let trailer =
            self.trailer.expect("the iterator ends without an error only after the trailer");
        Ok((self.header, events, trailer))
    }

    fn advance(&mut self) -> Result<(), FrameError> {
        let frame = self.frames.next_frame()?;
        let bad = |expected| FrameError::Bad(frame.offset, Problem::Malformed { expected });
        let mut input = Input::new(&frame.plain);
        match frame.kind {
            Kind::Header => return Err(bad("events or the trailer; there is only one header")),
            Kind::Events => {
                let mut decoder = Decoder::default();
                while let Some(event) = decoder.event(&mut input).map_err(|m| bad(m.0))? {
                    if event.time < self.last_time {
                        return Err(bad("events in order of time"));
                    }
                    self.last_time = event.time;
                    self.events += 1;
                    self.pending.push_back(event);
                }
            }
            Kind::Trailer => {
                let trailer = Trailer::decode(&mut input).map_err(|m| bad(m.0))?;
                if trailer.events != self.events {
                    return Err(bad("as many events as the trailer counts"));
                }
                self.frames.expect_end()?;
                self.trailer = Some(trailer);
            }
        }
        Ok(())
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Event, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.pending.is_empty() {
            if self.failed || self.trailer.is_some() {
                return None;
            }
            if let Err(error) = self.advance() {
                self.failed = true;
                return Some(Err(located(&self.path, error)));
            }
        }
        self.pending.pop_front().map(Ok)
    }
}

fn located(path: &Path, error: FrameError) -> RecordingError {
    let path = path.to_path_buf();
    match error {
        FrameError::Io(source) => RecordingError::Io { path, source },
        FrameError::Bad(offset, problem) => RecordingError::Bad { path, offset, problem },
    }
}
