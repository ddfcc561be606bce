//! A profile's filter of system calls. It lists what is refused: a list of what is allowed would break
//! programs with every release of a C library.
//!
//! A refused call fails with EPERM. `clone3` fails with ENOSYS, since its flags are in memory, where a
//! filter cannot look: C libraries then use `clone`, whose flags it sees. Programs for another
//! architecture than this one (32 bits on x86-64) are killed at their first call.

use std::fs::File;
use std::io;

/// One instruction, as the kernel reads it.
pub(super) type Instruction = libc::sock_filter;

/// Whether filters can be made for this architecture.
pub(super) const KNOWS_MACHINE: bool = cfg!(all(
    target_endian = "little",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
));

#[cfg(all(
    target_endian = "little",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod rules;

#[cfg(all(
    target_endian = "little",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
pub(super) use rules::program;

/// There are no filters for this architecture, which is reported.
#[cfg(not(all(
    target_endian = "little",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
)))]
#[expect(clippy::unnecessary_wraps, reason = "the signature is that of other architectures")]
pub(super) fn program(_profile: toolwright_core::SandboxProfile) -> io::Result<&'static [Instruction]> {
    Ok(&[])
}

/// The filter as a file, for a program that installs it; `None` for an empty one.
pub(super) fn as_file(filter: &[Instruction]) -> io::Result<Option<File>> {
    use std::io::{Seek as _, Write as _};
    if filter.is_empty() {
        return Ok(None);
    }
    let mut file = tempfile::tempfile()?;
    for instruction in filter {
        file.write_all(&instruction.code.to_ne_bytes())?;
        file.write_all(&[instruction.jt, instruction.jf])?;
        file.write_all(&instruction.k.to_ne_bytes())?;
    }
    file.rewind()?;
    Ok(Some(file))
}
