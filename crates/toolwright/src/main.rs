//! The command-line program `toolwright`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
