//! The program `toolwright`.

use std::process::ExitCode;

/// Calls make many small allocations on several threads, and the system's allocator takes a fifth of their time.
/// Without huge pages, which double an idle gateway's memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    toolwright_cli::main()
}
