//! Progress of long work: a bar on a terminal, nothing in a pipe.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over a known number of steps, drawn on standard error only if that is a terminal.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of `steps` steps under a title.
    #[must_use]
    pub fn new(title: &str, steps: u64) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        let style =
            ProgressStyle::with_template("{prefix:>12} [{bar:32}] {pos}/{len} {elapsed} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_prefix(title.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Says what is being worked on.
    pub fn at(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }

    /// Does something that prints, with the bar out of its way.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    /// The bar measures something else from now on: so much of it.
    pub fn measure(&self, length: u64) {
        self.0.set_length(length);
        self.0.set_position(0);
    }

    /// So much of it is done.
    pub fn reached(&self, position: u64) {
        self.0.set_position(position);
    }

    /// One step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
