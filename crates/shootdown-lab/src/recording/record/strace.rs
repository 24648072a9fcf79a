//! strace as the tracer.

use std::path::Path;
use std::process::Command;

use super::tool;
use crate::recording::error::RecordingError;
use crate::recording::import::{self, Imported, Source};

/// The clock of `strace -ttt`.
pub const CLOCK: &str = "CLOCK_REALTIME";

/// strace's version, or why it cannot be used.
pub fn usable() -> Result<String, String> {
    tool::version("strace", "--version", "strace")
}

/// Runs `command` under strace and imports what it saw.
pub fn record(command: &[String], scratch: &Path) -> Result<Imported, RecordingError> {
    let text = scratch.join("strace.txt");
    let status = Command::new("strace")
        .args(["-f", "-ttt", "-e", "trace=memory,process", "-e", "signal=none", "-o"])
        .arg(&text)
        .arg("--")
        .args(command)
        .status()
        .map_err(|error| tool::not_started("strace", &error))?;
    if !text.exists() {
        return Err(tool::failed("strace", status, b"it wrote no text; its own message is above"));
    }
    let mut imported = import::text(&text, Source::Strace, None)?;
    imported.trailer.exit_status = status.code();
    Ok(imported)
}
