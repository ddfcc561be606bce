//! Kills a process group as a whole, on systems without a subreaper. Processes that leave the group escape it,
//! and so do those running when the gateway is killed with SIGKILL.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use super::cgroup::LeafCgroup;
use super::enforce::{Entry, Placeholders};

/// Kills the group when dropped.
#[derive(Debug)]
pub(crate) struct LifetimeGuard(Option<Pid>);

impl LifetimeGuard {
    pub(crate) fn request_end(&self) {
        self.send(Signal::TERM);
    }

    /// An error means that the group is gone.
    fn send(&self, signal: Signal) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for LifetimeGuard {
    fn drop(&mut self) {
        self.send(Signal::KILL);
    }
}

/// These systems have no common switch for this.
pub(crate) fn harden() {}

/// Starts `command` as the leader of a process group.
pub(crate) fn spawn(
    mut command: Command,
    _: Option<Entry>,
    _: Placeholders,
    _: Option<Arc<LeafCgroup>>,
) -> io::Result<(Child, LifetimeGuard)> {
    command.process_group(0);
    let child = tokio::process::Command::from(command).spawn()?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    Ok((child, LifetimeGuard(group)))
}
