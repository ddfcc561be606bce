//! Detects once which sandbox mechanisms this machine has.
#![expect(unsafe_code, reason = "no crate in use asks the kernel these questions")]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use toolwright_core::sandbox::SandboxSupport;

/// Time limit for the probe of bubblewrap.
const PROBE: Duration = Duration::from_secs(2);

/// Returns the mechanisms of this machine. The first call starts two processes to test whether namespaces can be made,
/// one of them with bubblewrap if installed: some milliseconds, 2 s at most.
#[must_use]
pub fn support() -> &'static SandboxSupport {
    static SUPPORT: OnceLock<SandboxSupport> = OnceLock::new();
    SUPPORT.get_or_init(|| SandboxSupport {
        landlock: landlock(),
        seccomp: seccomp(),
        mounts: mounts(),
        bubblewrap: bubblewrap(),
    })
}

fn landlock() -> u32 {
    /// LANDLOCK_CREATE_RULESET_VERSION of landlock_create_ruleset(2)
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call only returns a number; it takes no attributes and makes no descriptor.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<libc::c_void>(), 0usize, VERSION) };
    u32::try_from(version).unwrap_or(0)
}

fn seccomp() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads the action, which outlives it, and changes nothing.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    super::seccomp::KNOWS_MACHINE && answer == 0
}

fn mounts() -> bool {
    let view = super::enter::Mounts::probe();
    let mut command = Command::new("true");
    // SAFETY: `enter` makes system calls only, as it must between fork and exec.
    unsafe { command.pre_exec(move || view.enter()) };
    command.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn bubblewrap() -> bool {
    let arguments = "--ro-bind / / --unshare-pid --unshare-ipc --unshare-net --proc /proc --dev /dev true";
    let started = Command::new(super::bubblewrap::BUBBLEWRAP)
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = started else { return false };
    let end = Instant::now() + PROBE;
    while Instant::now() < end {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(_) => return false,
        }
    }
    // Both fail only if the child has just ended.
    let _ = child.kill();
    let _ = child.wait();
    false
}
