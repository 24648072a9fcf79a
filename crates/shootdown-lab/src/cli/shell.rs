//! `shootdown completions` and `shootdown man`: what a shell and `man` know of the command.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::LabError;
use crate::output::emit;

/// Print the completions of a shell.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:\n  \
        shootdown completions bash > ~/.local/share/bash-completion/completions/shootdown\n  \
        shootdown completions fish > ~/.config/fish/completions/shootdown.fish")]
pub struct CompletionsArgs {
    /// Which shell.
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(&self, mut command: Command) {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, "shootdown", &mut text);
        emit(String::from_utf8_lossy(&text).trim_end());
    }
}

/// Write the manual pages.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Write the manual pages, one for the command and one for each subcommand, to a folder.",
    after_long_help = "Example:\n  shootdown man ~/.local/share/man/man1"
)]
pub struct ManArgs {
    /// Where to; the folder is made where there is none.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

impl ManArgs {
    pub(super) fn run(&self, command: Command) -> Result<(), LabError> {
        let failed = |path: &Path, e: std::io::Error| {
            LabError::bad(format!("{} can't be written: {e}", path.display()))
        };
        fs::create_dir_all(&self.folder).map_err(|e| failed(&self.folder, e))?;
        clap_mangen::generate_to(command, &self.folder).map_err(|e| failed(&self.folder, e))
    }
}
