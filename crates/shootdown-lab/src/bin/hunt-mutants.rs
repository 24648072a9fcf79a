//! A process that hunts automatic mutants: see `shootdown check mutants --automatic`.

fn main() -> std::process::ExitCode {
    shootdown_lab::check::automatic::worker::main()
}
