//! Finds the program at the other end of a local connection.

use std::net::SocketAddr;

use toolwright_core::session::PeerProcess;

/// Finds the process that holds the connection from `peer` to `local`, both as this process sees them. Reads `/proc`,
/// which takes some milliseconds. Connections that closed meanwhile are not found; on systems other than Linux none
/// are.
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

    use crate::is_nested_process;

    /// A socket in the kernel's tables.
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

    /// Whether any holder of this user's socket is nested. A socket without a visible holder counts as nested: the
    /// holder is hidden, or the socket is in flight through another socket.
    fn holder(socket: &Socket) -> PeerProcess {
        let name = format!("socket:[{}]", socket.inode);
        let mut is_found = false;
        // Only root can see the files of other users' processes.
        let user = rustix::process::geteuid();
        let is_visible = |process: &std::fs::DirEntry| {
            user.is_root() || process.metadata().is_ok_and(|process| process.uid() == user.as_raw())
        };
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes.filter(is_visible) {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A thread may have its own table of files (`unshare(CLONE_FILES)`).
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

    /// Parses an address in the kernel's form: 32-bit words in native byte order, then the port.
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
