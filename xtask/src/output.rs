//! What is printed, to whoever still reads it.
//!
//! `cargo xtask test | head -1` closes the pipe while there is more to say. `println!` panics then;
//! here the rest goes nowhere, the work goes on, and the exit code is what it would have been.

use std::fmt;
use std::io::{self, Write};

/// Writes to the standard output.
pub fn print(text: fmt::Arguments<'_>) {
    // A reader that is gone misses nothing.
    let _ = io::stdout().write_fmt(text);
}

/// Writes to the standard error.
pub fn complain(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// A line on the standard output.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($text)*))) };
}

/// A line on the standard error.
macro_rules! complain {
    ($($text:tt)*) => { $crate::output::complain(format_args!("{}\n", format_args!($($text)*))) };
}
