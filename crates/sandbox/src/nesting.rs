//! Whether a process was started by a Toolwright, by one of its tools or servers, directly or through others; and whether the
//! program at the other end of a connection was.
//!
//! Three marks tell. Every child gets [`DEPTH_VARIABLE`], which a command may unset. On Linux every child has a watcher
//! above it: the watcher is the subreaper of its tree, so that daemons stay below it too. A command that kills its watchers
//! leaves that tree, but keeps the third mark: a hard limit that only a process with CAP_SYS_RESOURCE (root) can raise. What
//! somebody else starts on behalf of a command (cron, systemd, a container) has no mark.

use std::net::SocketAddr;

use toolwright_core::session::PeerProcess;

/// Environment variable of every process that a Toolwright starts: how many Toolwrights stand above it. Nothing that
/// is configured overrides it.
pub const DEPTH_VARIABLE: &str = "TOOLWRIGHT_DEPTH";
/// The name of watchers, as the kernel shows it: a process names only itself.
#[cfg(target_os = "linux")]
pub(crate) const WATCHER_NAME: &std::ffi::CStr = c"tw-watcher";

/// The hard limit of file locks (`RLIMIT_LOCKS`) that every child inherits. Linux has not enforced this limit since 2.4.25, and
/// it is unlimited unless somebody sets it, so a finite one is a mark: a child may lower it and stays marked, whatever
/// the value.
#[cfg(target_os = "linux")]
pub(crate) const MARKED_LOCKS: u64 = 1 << 62;

/// How many Toolwrights stand above this process, by the mark.
#[must_use]
pub fn depth() -> u32 {
    std::env::var(DEPTH_VARIABLE).ok().and_then(|depth| depth.parse().ok()).unwrap_or(0)
}

/// Whether a Toolwright started this process, itself or through others: a command of a model's shell, an MCP server, or
/// what these start. Such a process may not approve anything in its owner's name. Where that cannot be told: yes.
#[must_use]
pub fn is_nested() -> bool {
    std::env::var_os(DEPTH_VARIABLE).is_some_and(|mark| !mark.is_empty() && mark != "0")
        || is_nested_process(std::process::id())
}

/// Whether a process of this machine is below a watcher or has the mark of its limits; its environment does not count.
/// Where that cannot be told: yes. On systems other than Linux: no.
#[must_use]
pub fn is_nested_process(pid: u32) -> bool {
    #[cfg(target_os = "linux")]
    return linux::is_marked(pid) || linux::is_below(pid, linux::look);
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
    pub(crate) enum Seen {
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

    pub(crate) fn is_below(pid: u32, look: impl Fn(u32) -> Seen) -> bool {
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

    /// Whether its limits are those of a child. One that is gone, or cannot be seen, is for [`is_below`] to judge.
    pub(crate) fn is_marked(pid: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/limits")).is_ok_and(|limits| is_mark(&limits))
    }

    /// Reads `Max file locks SOFT HARD UNITS` among the limits of a process.
    fn is_mark(limits: &str) -> bool {
        let of_locks = limits.lines().find_map(|line| line.strip_prefix("Max file locks"));
        let hard = of_locks.and_then(|line| line.split_ascii_whitespace().nth(1));
        hard.is_some_and(|hard| hard.parse::<u64>().is_ok())
    }

    pub(crate) fn look(pid: u32) -> Seen {
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
        fn parent_chains_may_lead_to_watchers() {
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

/// Finds the program that has a connection from `peer` to `local`, both as this process sees them. Reads `/proc`, for
/// some milliseconds; what has ended meanwhile is not found. On systems other than Linux nothing is.
#[must_use]
pub fn peer_process(peer: SocketAddr, local: SocketAddr) -> PeerProcess {
    #[cfg(target_os = "linux")]
    return connection::find(peer, local);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (peer, local);
        PeerProcess::Unknown
    }
}

#[cfg(target_os = "linux")]
mod connection {
    use std::io::{BufRead as _, BufReader};
    use std::net::{IpAddr, SocketAddr};
    use std::os::unix::fs::MetadataExt as _;

    use toolwright_core::session::PeerProcess;

    use super::is_nested_process;

    /// A socket, as the kernel tells of it.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct Socket {
        user: u32,
        inode: u64,
    }

    pub(crate) fn find(peer: SocketAddr, local: SocketAddr) -> PeerProcess {
        let (own, other) = (canonical(peer), canonical(local));
        let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
        let socket = tables.into_iter().find_map(|table| {
            let lines = BufReader::new(std::fs::File::open(table).ok()?).lines().map_while(Result::ok);
            lines.filter_map(|line| parse(&line)).find(|(ends, _)| *ends == (own, other)).map(|(_, socket)| socket)
        });
        match socket {
            Some(socket) if socket.inode != 0 && socket.user == rustix::process::geteuid().as_raw() => holder(&socket),
            _ => PeerProcess::Unknown,
        }
    }

    /// Whether one of those who hold a socket of this user is nested. One that nobody can be seen to hold counts as
    /// nested: it is hidden, as one is that is on its way through another socket.
    fn holder(socket: &Socket) -> PeerProcess {
        let name = format!("socket:[{}]", socket.inode);
        let mut is_found = false;
        // Only root sees the files of other users' processes.
        let user = rustix::process::geteuid();
        let is_visible = |process: &std::fs::DirEntry| {
            user.is_root() || process.metadata().is_ok_and(|process| process.uid() == user.as_raw())
        };
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes.filter(is_visible) {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A thread may have a table of files of its own (`unshare(CLONE_FILES)`).
            let threads = std::fs::read_dir(process.path().join("task")).into_iter().flatten().flatten();
            let mut files = threads.flat_map(|thread| std::fs::read_dir(thread.path().join("fd"))).flatten();
            let holds = files.any(|file| {
                let target = file.and_then(|file| std::fs::read_link(file.path()));
                target.is_ok_and(|target| target.as_os_str() == name.as_str())
            });
            if holds && is_nested_process(pid) {
                return PeerProcess::Nested;
            }
            is_found |= holds;
        }
        if is_found { PeerProcess::Owners } else { PeerProcess::Nested }
    }

    /// Reads a line of `/proc/net/tcp` or `tcp6`: both ends, the user and the inode.
    pub(crate) fn parse(line: &str) -> Option<((SocketAddr, SocketAddr), Socket)> {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let ends = (address(fields.next()?)?, address(fields.next()?)?);
        // State, queues, timers and retransmissions are between.
        let user = fields.nth(4)?.parse().ok()?;
        Some((ends, Socket { user, inode: fields.nth(1)?.parse().ok()? }))
    }

    /// Reads an address as the kernel writes it: words of 32 bits in the machine's byte order, then the port.
    fn address(text: &str) -> Option<SocketAddr> {
        let (ip, port) = text.split_once(':')?;
        let word = |at: usize| Some(u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
        let ip = match ip.len() {
            8 => IpAddr::from(word(0)?),
            32 => {
                let words = [word(0)?, word(1)?, word(2)?, word(3)?];
                IpAddr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?)
            }
            _ => return None,
        };
        Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
    }

    fn canonical(address: SocketAddr) -> SocketAddr {
        SocketAddr::new(address.ip().to_canonical(), address.port())
    }

    #[cfg(all(test, target_endian = "little"))]
    mod tests {
        use super::*;

        #[test]
        fn the_kernels_tables_are_read() {
            for (line, expect) in [
                (
                    "   0: 0100007F:1BCD 0200007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0",
                    Some(("127.0.0.1:7117", "127.0.0.2:40000", 1000, 4711)),
                ),
                (
                    "  10: 00000000000000000000000001000000:1BCD 0000000000000000FFFF00000100007F:0001 01 00000000:00000000 \
                     00:00000000 00000000     0        0 12 1 0",
                    Some(("[::1]:7117", "127.0.0.1:1", 0, 12)),
                ),
                ("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid", None),
                ("   0: 0100007F:1BCD 0200007F:9C40 01 00000000:00000000 00:00000000 00000000", None),
                ("   0: 0100:1 02:2 01 0:0 0:0 0 0 0 0", None),
                ("", None),
            ] {
                let expect = expect.map(|(own, other, user, inode)| {
                    ((own.parse().expect("address"), other.parse().expect("address")), Socket { user, inode })
                });
                assert_eq!(parse(line), expect, "{line}");
            }
        }
    }
}
