//! Where the areas of a profile are on Linux.

use std::path::{Path, PathBuf};

use toolwright_core::sandbox::Area;

use super::Sandbox;

/// What programs and their libraries need to run. No place where services keep secrets.
const PROGRAMS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    // The linker's, and those that libc reads for names, time and languages.
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/ld-musl-x86_64.path",
    "/etc/ld-musl-aarch64.path",
    "/etc/alternatives",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/locale.alias",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    // What runtimes size themselves by.
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/filesystems",
    "/sys/devices/system/cpu",
];

/// Devices without a memory. `/dev/shm` is none of them: others read it.
const DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts"];

/// The paths of an area; those that do not exist stand for nothing.
pub(super) fn paths(area: Area, sandbox: &Sandbox, scratch: &Path) -> Vec<PathBuf> {
    let fixed = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
    match area {
        Area::Everything => vec![PathBuf::from("/")],
        Area::Programs => fixed(PROGRAMS),
        Area::Devices => fixed(DEVICES),
        Area::Scratch => vec![scratch.to_owned()],
        Area::Workspace => {
            let mut paths = vec![sandbox.root.clone()];
            paths.extend(sandbox.settings.write.iter().cloned());
            paths
        }
    }
}
