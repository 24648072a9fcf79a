//! QEMU's monitor: by it a machine check is raised when the image asks for one.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use crate::Error;

/// What the image prints when somebody is to raise a machine check.
const ASKED: &str = "inject: a machine check on CPU 0";

/// CPU 0, bank 1: an uncorrected error that software can recover from (SDM vol. 3B, 17.6: SRAR,
/// data load), with its address.
const MACHINE_CHECK: &str = "mce 0 1 0xbd80000000000134 0x5 0x123000 0x8c\n";

/// The image prints its line on the way into the guest: it is there after this.
const INTO_THE_GUEST: Duration = Duration::from_millis(300);

/// A monitor on a socket of its own.
pub struct Monitor {
    socket: PathBuf,
    open: OnceLock<UnixStream>,
}

impl Monitor {
    /// One for a machine that is about to start.
    pub fn new() -> Result<Self, Error> {
        let folder = std::env::temp_dir();
        let socket = folder.join(format!("shootdown-monitor-{}.socket", std::process::id()));
        match std::fs::remove_file(&socket) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::File { path: socket.display().to_string(), source })
            }
            _ => Ok(Self { socket, open: OnceLock::new() }),
        }
    }

    /// What it adds to QEMU's command line.
    pub fn options(&self) -> [String; 2] {
        let path = self.socket.display();
        ["-monitor".into(), format!("unix:{path},server=on,wait=off")]
    }

    /// Raises a machine check if the line asks for one. One that can't be raised is missed by the
    /// image, which says so.
    pub fn heed(&self, line: &str) {
        if !line.starts_with(ASKED) {
            return;
        }
        std::thread::sleep(INTO_THE_GUEST);
        let sent = UnixStream::connect(&self.socket)
            .and_then(|mut stream| stream.write_all(MACHINE_CHECK.as_bytes()).map(|()| stream));
        match sent {
            // QEMU drops what it has not read when the other end is closed: the stream stays open
            // as long as this does.
            Ok(stream) => drop(self.open.set(stream)),
            Err(error) => {
                complain!("{}: {error}; no machine check is raised", self.socket.display())
            }
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // A socket that was never made, or is gone already, is as good as removed.
        let _ = std::fs::remove_file(&self.socket);
    }
}
