//! The `shootdown` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    shootdown_lab::cli::main()
}
