//! The command-line program `toolwright`.

mod cli;

/// Calls make many small allocations on several threads, for which the system's allocator takes a fifth of their time.
/// Without huge pages, which double what an idle gateway keeps.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
