//! Identifies this process, distinct from a later one with the same pid.

use std::sync::OnceLock;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::now_ms;

/// How long a lease is valid, in milliseconds. An owner counts as dead only if its lease has expired and its process is
/// gone, so a suspended process keeps its jobs. If processes cannot be looked up, the lease alone decides.
pub(crate) const LEASE_MS: i64 = 3_000;

/// A process. The kernel reuses the pid, but not all three fields together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) pid: u32,
    /// The kernel's boot id; empty if unknown.
    pub(super) boot: String,
    /// Start time in clock ticks since boot; 0 if unknown.
    pub(super) started: i64,
}

impl Owner {
    /// Returns this process.
    pub(super) fn current() -> &'static Self {
        static THIS: OnceLock<Owner> = OnceLock::new();
        THIS.get_or_init(|| {
            let pid = std::process::id();
            Self { pid, boot: boot_id(), started: start_time(pid).unwrap_or(0) }
        })
    }

    /// Returns whether it is still alive. Without procfs every other process counts as dead: claims then give no
    /// protection, but can never block forever.
    pub(super) fn is_alive(&self) -> bool {
        self.boot == boot_id() && start_time(self.pid) == Some(self.started)
    }
}

/// Returns the number of this process among the owners. A new owner gets a lease.
pub(super) fn number(db: &Connection) -> rusqlite::Result<i64> {
    let this = Owner::current();
    let existing_id = db
        .prepare_cached("SELECT id FROM job_owners WHERE pid = ?1 AND boot = ?2 AND started = ?3")?
        .query_row(params![this.pid, this.boot, this.started], |row| row.get(0))
        .optional()?;
    if let Some(id) = existing_id {
        return Ok(id);
    }
    db.prepare_cached("INSERT INTO job_owners (pid, boot, started, lease_ms) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![this.pid, this.boot, this.started, now_ms() + LEASE_MS])?;
    Ok(db.last_insert_rowid())
}

/// Renews the lease of the owner with this number, if half of it has passed.
pub(super) fn renew(db: &Connection, owner: i64) -> rusqlite::Result<()> {
    let now = now_ms();
    db.prepare_cached("UPDATE job_owners SET lease_ms = ?2 WHERE id = ?1 AND lease_ms < ?3")?
        .execute([owner, now + LEASE_MS, now + LEASE_MS / 2])
        .map(drop)
}

/// Returns the owners whose lease has expired and whose process is gone.
pub(super) fn dead_owners(db: &Connection) -> rusqlite::Result<Vec<i64>> {
    let over: Vec<(i64, Owner)> = db
        .prepare_cached("SELECT id, pid, boot, started FROM job_owners WHERE lease_ms < ?1")?
        .query_map([now_ms()], |row: &Row<'_>| {
            Ok((row.get(0)?, Owner { pid: row.get(1)?, boot: row.get(2)?, started: row.get(3)? }))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let is_gone = |owner: &Owner| owner != Owner::current() && !owner.is_alive();
    Ok(over.into_iter().filter(|(_, owner)| is_gone(owner)).map(|(id, _)| id).collect())
}

/// Returns the runs whose process is alive.
pub(super) fn driven(db: &Connection) -> rusqlite::Result<Vec<String>> {
    let claims: Vec<(String, Owner)> = db
        .prepare_cached("SELECT run, pid, boot, started FROM run_claims")?
        .query_map([], |row| Ok((row.get(0)?, Owner { pid: row.get(1)?, boot: row.get(2)?, started: row.get(3)? })))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(claims
        .into_iter()
        .filter(|(_, owner)| owner == Owner::current() || owner.is_alive())
        .map(|(run, _)| run)
        .collect())
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Returns field 22 of /proc/PID/stat (proc(5)); `None` for a missing process or a zombie.
pub(super) fn start_time(pid: u32) -> Option<i64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command in parentheses, which may contain any character.
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
        assert!(Owner::current().is_alive());
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
