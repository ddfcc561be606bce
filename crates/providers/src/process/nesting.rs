//! Whether a process was started by a Toolwright: by one of its tools or servers, directly or through others.
//!
//! Two marks tell. Every child gets [`DEPTH_VARIABLE`], which a command may unset. On Linux every child also has a
//! watcher above it, which no command can shed: the watcher is the subreaper of its tree, so that daemons stay below it
//! too. What somebody else starts on behalf of a command (cron, systemd, a container) has neither mark.

/// Environment variable of every process that a Toolwright starts: how many Toolwrights stand above it. Nothing that
/// is configured overrides it.
pub const DEPTH_VARIABLE: &str = "TOOLWRIGHT_DEPTH";
/// The name of watchers, as the kernel shows it: a process names only itself.
#[cfg(target_os = "linux")]
pub(super) const WATCHER_NAME: &std::ffi::CStr = c"tw-watcher";

/// How many Toolwrights stand above this process, by the mark.
pub(crate) fn depth() -> u32 {
    std::env::var(DEPTH_VARIABLE).ok().and_then(|depth| depth.parse().ok()).unwrap_or(0)
}

/// Whether a Toolwright started this process, itself or through others: a command of a model's shell, an MCP server, or
/// what these start. Such a process may not approve anything in its owner's name. Where that cannot be told: yes.
#[must_use]
pub fn is_nested() -> bool {
    std::env::var_os(DEPTH_VARIABLE).is_some_and(|mark| !mark.is_empty() && mark != "0")
        || is_below_watcher(std::process::id())
}

/// Whether a process of this machine is below a watcher; its environment does not count. Where that cannot be told: yes.
/// On systems without watchers (other than Linux): no.
#[must_use]
pub fn is_below_watcher(pid: u32) -> bool {
    #[cfg(target_os = "linux")]
    return linux::is_below(pid, linux::look);
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

    /// What is seen of a process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Seen {
        /// Its parent; 0 for the first process.
        Child { of: u32 },
        /// It is a watcher.
        Watcher,
        /// It has ended: its children have another parent now.
        Gone,
        /// It is another user's (`hidepid`); Toolwright's own are not.
        Foreign,
        /// It is this user's and the kernel does not show it.
        Hidden,
    }

    pub(super) fn is_below(pid: u32, look: impl Fn(u32) -> Seen) -> bool {
        let mut at = pid;
        for _ in 0..MAX_STEPS {
            at = match look(at) {
                Seen::Child { of: 0 } | Seen::Foreign => return false,
                Seen::Child { of } => of,
                Seen::Gone => pid,
                Seen::Watcher | Seen::Hidden => return true,
            };
        }
        true
    }

    pub(super) fn look(pid: u32) -> Seen {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok();
        stat.as_deref().and_then(parse).unwrap_or_else(|| unseen(pid))
    }

    /// Reads `PID (NAME) STATE PPID …`; the name may hold anything.
    fn parse(stat: &[u8]) -> Option<Seen> {
        let (open, close) = (stat.iter().position(|byte| *byte == b'(')?, stat.iter().rposition(|byte| *byte == b')')?);
        if stat.get(open + 1..close)? == WATCHER_NAME.to_bytes() {
            return Some(Seen::Watcher);
        }
        let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
        Some(Seen::Child { of: rest.split_ascii_whitespace().nth(1)?.parse().ok()? })
    }

    fn unseen(pid: u32) -> Seen {
        let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
        match known.map(test_kill_process) {
            Some(Err(Errno::SRCH)) => Seen::Gone,
            Some(Err(Errno::PERM)) => Seen::Foreign,
            _ => Seen::Hidden,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_chain_of_parents_leads_to_a_watcher_or_not() {
            use Seen::{Child, Foreign, Gone, Hidden, Watcher};
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
        fn a_name_cannot_pass_for_more_than_a_name() {
            for (stat, expect) in [
                (&b"7 (sh) S 4 7 7"[..], Some(Seen::Child { of: 4 })),
                (b"7 (a) S 1 (b) S 4 7 7", Some(Seen::Child { of: 4 })),
                (b"7 (tw-watcher) S 4 7 7", Some(Seen::Watcher)),
                (b"7 (\xff) S 4 7 7", Some(Seen::Child { of: 4 })),
                (b"7 (sh) S", None),
                (b")(", None),
                (b"", None),
            ] {
                assert_eq!(parse(stat), expect, "{}", String::from_utf8_lossy(stat));
            }
        }
    }
}
