//! Detects whether a process was started by a Toolwright, by one of its tools or servers, directly or indirectly.
//!
//! There are three marks. Every child gets [`DEPTH_VARIABLE`], which a command may unset. On Linux every child has a
//! watcher above it: the watcher is the subreaper of its tree, so that daemons stay below it too. A command that kills
//! its watchers leaves that tree, but keeps the third mark: a hard limit that only a process with CAP_SYS_RESOURCE
//! (root) can raise. Processes that another service (cron, systemd, a container runtime) starts for a command have no
//! mark.

/// Environment variable of every child: the number of Toolwright processes above it. Configured variables cannot
/// override it.
pub const DEPTH_VARIABLE: &str = "TOOLWRIGHT_DEPTH";
/// The name of watchers, as the kernel shows it: a process names only itself.
#[cfg(target_os = "linux")]
pub(crate) const WATCHER_NAME: &std::ffi::CStr = c"tw-watcher";

/// The hard limit of file locks (`RLIMIT_LOCKS`) that every child inherits. Linux has not enforced it since 2.4.25, and
/// it is unlimited by default, so any finite value is a mark: a child may lower it but stays marked.
#[cfg(target_os = "linux")]
pub(crate) const MARKED_LOCKS: u64 = 1 << 62;

/// Number of Toolwright processes above this one, from [`DEPTH_VARIABLE`].
#[must_use]
pub fn depth() -> u32 {
    std::env::var(DEPTH_VARIABLE).ok().and_then(|depth| depth.parse().ok()).unwrap_or(0)
}

/// Whether Toolwright started this process, directly or indirectly: a command of a model's shell, an MCP server, or
/// their children. Such a process may not approve anything in its owner's name. `true` if unknown.
#[must_use]
pub fn is_nested() -> bool {
    std::env::var_os(DEPTH_VARIABLE).is_some_and(|mark| !mark.is_empty() && mark != "0")
        || is_nested_process(std::process::id())
}

/// Whether a process of this machine is below a watcher or has the mark of its limits; its environment is ignored.
/// `true` if unknown; `false` on systems other than Linux.
#[must_use]
pub fn is_nested_process(pid: u32) -> bool {
    #[cfg(target_os = "linux")]
    return linux::is_marked(pid) || linux::is_below(pid, linux::observe);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = pid;
        false
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    use super::WATCHER_NAME;

    /// Steps up a chain of parents, new starts included.
    const MAX_STEPS: usize = 1000;

    /// What `/proc` shows of a process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ObservedProcess {
        /// Its parent; 0 for the first process.
        Child { of: u32 },
        /// It is a watcher.
        Watcher,
        /// It has ended: its children have another parent.
        Gone,
        /// It belongs to another user (`hidepid`); Toolwright's own processes do not.
        Foreign,
        /// It is this user's and the kernel does not show it.
        Hidden,
    }

    pub(crate) fn is_below(pid: u32, look: impl Fn(u32) -> ObservedProcess) -> bool {
        let mut at = pid;
        for _ in 0..MAX_STEPS {
            at = match look(at) {
                ObservedProcess::Child { of: 0 } | ObservedProcess::Foreign => return false,
                ObservedProcess::Child { of } => of,
                ObservedProcess::Gone => pid,
                ObservedProcess::Watcher | ObservedProcess::Hidden => return true,
            };
        }
        true
    }

    /// Whether its limits have the mark. `false` for a process that is gone or hidden; [`is_below`] judges those.
    pub(crate) fn is_marked(pid: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/limits")).is_ok_and(|limits| is_mark(&limits))
    }

    /// Reads `Max file locks SOFT HARD UNITS` among the limits of a process.
    fn is_mark(limits: &str) -> bool {
        let of_locks = limits.lines().find_map(|line| line.strip_prefix("Max file locks"));
        let hard = of_locks.and_then(|line| line.split_ascii_whitespace().nth(1));
        hard.is_some_and(|hard| hard.parse::<u64>().is_ok())
    }

    pub(crate) fn observe(pid: u32) -> ObservedProcess {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok();
        stat.as_deref().and_then(parse).unwrap_or_else(|| unseen(pid))
    }

    /// Reads `PID (NAME) STATE PPID …`; the name may hold anything.
    fn parse(stat: &[u8]) -> Option<ObservedProcess> {
        let (open, close) = (stat.iter().position(|byte| *byte == b'(')?, stat.iter().rposition(|byte| *byte == b')')?);
        if stat.get(open + 1..close)? == WATCHER_NAME.to_bytes() {
            return Some(ObservedProcess::Watcher);
        }
        let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
        Some(ObservedProcess::Child { of: rest.split_ascii_whitespace().nth(1)?.parse().ok()? })
    }

    fn unseen(pid: u32) -> ObservedProcess {
        let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
        match known.map(test_kill_process) {
            Some(Err(Errno::SRCH)) => ObservedProcess::Gone,
            Some(Err(Errno::PERM)) => ObservedProcess::Foreign,
            _ => ObservedProcess::Hidden,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn parent_chains_may_lead_to_watchers() {
            use ObservedProcess::{Child, Foreign, Gone, Hidden, Watcher};
            for (chain, expect) in [
                (&[(9, Child { of: 5 }), (5, Child { of: 1 }), (1, Child { of: 0 })][..], false),
                (&[(9, Child { of: 5 }), (5, Watcher)], true),
                (&[(9, Child { of: 5 }), (5, Foreign)], false),
                (&[(9, Child { of: 5 }), (5, Hidden)], true),
                (&[(9, Child { of: 9 })], true),
                (&[], true),
            ] {
                let look = |pid| chain.iter().find(|(of, _)| *of == pid).map_or(Gone, |(_, seen)| *seen);
                assert_eq!(is_below(9, look), expect, "{chain:?}");
            }
        }

        #[test]
        fn finite_lock_limits_are_the_mark() {
            for (limits, expect) in [
                (
                    "Max file size  10 10 bytes\nMax file locks            unlimited            unlimited            locks\n",
                    false,
                ),
                ("Max file locks            4611686018427387904  4611686018427387904  locks", true),
                ("Max file locks            0                    5                    locks", true),
                ("Max file locks            5                    unlimited            locks", false),
                ("Max file locks", false),
                ("Max file size             5                    5                    bytes", false),
                ("", false),
            ] {
                assert_eq!(is_mark(limits), expect, "{limits}");
            }
        }

        #[test]
        fn names_cannot_pass_for_paths() {
            for (stat, expect) in [
                (&b"7 (sh) S 4 7 7"[..], Some(ObservedProcess::Child { of: 4 })),
                (b"7 (a) S 1 (b) S 4 7 7", Some(ObservedProcess::Child { of: 4 })),
                (b"7 (tw-watcher) S 4 7 7", Some(ObservedProcess::Watcher)),
                (b"7 (\xff) S 4 7 7", Some(ObservedProcess::Child { of: 4 })),
                (b"7 (sh) S", None),
                (b")(", None),
                (b"", None),
            ] {
                assert_eq!(parse(stat), expect, "{}", String::from_utf8_lossy(stat));
            }
        }
    }
}
