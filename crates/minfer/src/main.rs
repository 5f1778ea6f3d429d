//! The `minfer` command. Everything it can do is in the library; this is flags, text and exit codes.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
