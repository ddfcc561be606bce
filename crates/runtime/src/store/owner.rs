//! Who this process is, told apart from a later one with the same pid.

use std::sync::OnceLock;

/// A process: its pid is reused by the kernel, the three together are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) pid: u32,
    /// The kernel's boot id; empty where there is none.
    pub(super) boot: String,
    /// Start time in clock ticks since boot; 0 where it is not known.
    pub(super) started: i64,
}

impl Owner {
    /// This process.
    pub(super) fn this() -> &'static Self {
        static THIS: OnceLock<Owner> = OnceLock::new();
        THIS.get_or_init(|| {
            let pid = std::process::id();
            Self { pid, boot: boot_id(), started: start_time(pid).unwrap_or(0) }
        })
    }

    /// Whether it still lives. Without procfs every other process counts as gone: a claim is then no
    /// protection, but never a lock that nobody can open.
    pub(super) fn is_alive(&self) -> bool {
        self.boot == boot_id() && start_time(self.pid) == Some(self.started)
    }
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Field 22 of /proc/PID/stat (proc(5)); `None` for a process that is not there or is a zombie.
pub(super) fn start_time(pid: u32) -> Option<i64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command in parentheses, which may contain anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends() {
        assert!(Owner::this().is_alive());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("spawn");
        let owner = Owner { pid: child.id(), boot: boot_id(), started: start_time(child.id()).expect("running") };
        assert!(owner.is_alive());
        assert!(!Owner { started: owner.started + 1, ..owner.clone() }.is_alive(), "another process with its pid");
        child.kill().expect("kill");
        while start_time(owner.pid).is_some() {
            std::thread::yield_now();
        }
        assert!(!owner.is_alive(), "a zombie is dead");
        child.wait().expect("wait");
        assert!(!owner.is_alive());
    }
}
