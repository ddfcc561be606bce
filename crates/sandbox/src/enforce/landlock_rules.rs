//! Maps the areas of a profile to paths on Linux, and its grants to a Landlock ruleset.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    Scope, path_beneath_rules,
};
use toolwright_core::sandbox::{Area, Grant};

use super::Sandbox;

/// Paths that programs and their libraries need to run. Services keep no secrets there.
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
    // Files of the linker, and of libc for names, time and locales.
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
    // Runtimes read these to size themselves.
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/filesystems",
    "/sys/devices/system/cpu",
];

/// Devices that store nothing. `/dev/shm` is excluded: other processes read it.
const DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts"];

/// Returns the paths of an area. Paths that do not exist grant nothing.
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

/// The newest Landlock ABI supported here. Rights unknown to an older kernel are left out and reported by
/// [`toolwright_core::sandbox::enforcement`].
const KNOWN: ABI = ABI::V9;

/// Builds the Landlock ruleset for a start of `program`; `None` if the kernel has no Landlock.
///
/// # Errors
/// The kernel is out of memory or descriptors.
pub(super) fn ruleset(sandbox: &Sandbox, program: &Path, scratch: &Path) -> io::Result<Option<OwnedFd>> {
    build(sandbox, program, scratch).map_err(io::Error::other)
}

fn build(sandbox: &Sandbox, program: &Path, scratch: &Path) -> Result<Option<OwnedFd>, RulesetError> {
    let grants = sandbox.profile.grants();
    let sockets = grants.contains(&Grant::Sockets);
    let mut handled = AccessFs::from_all(KNOWN);
    let mut scopes = Scope::from_all(KNOWN);
    if sockets {
        handled.remove(AccessFs::ResolveUnix);
        scopes.remove(Scope::AbstractUnixSocket);
    }
    let mut ruleset = Ruleset::default().handle_access(handled)?.scope(scopes)?;
    if !sockets {
        ruleset = ruleset.handle_access(AccessNet::from_all(KNOWN))?;
    }
    let read = AccessFs::from_read(KNOWN);
    // Nodes of devices would lead around every rule.
    let write = handled & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let mut ruleset = ruleset.create()?;
    for grant in grants {
        let (area, access) = match grant {
            Grant::Read(area) => (*area, read),
            Grant::Write(area) => (*area, write),
            Grant::Sockets => continue,
        };
        ruleset = allow(ruleset, &paths(area, sandbox, scratch), access)?;
    }
    ruleset = allow(ruleset, &[program.to_owned()], read)?;
    ruleset = allow(ruleset, &sandbox.settings.read, read)?;
    Ok(ruleset.into())
}

fn allow(
    ruleset: landlock::RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, RulesetError> {
    ruleset.add_rules(path_beneath_rules(paths, access))
}
