//! Measured processes, and the time limits for them.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::front::TIMEOUT;
use crate::Failure;

/// The time for a process to end after its input.
const GRACE: Duration = Duration::from_secs(3);

/// Running processes, one or a pipeline. They are ended on drop.
pub(super) struct ProcessGroup {
    children: Vec<Child>,
    grace: Duration,
    log: PathBuf,
}

impl ProcessGroup {
    /// Starts a process without input and appends its standard error to the file.
    pub(super) fn start(mut command: Command, log: &Path) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(appended(log)?);
        Ok(Self { children: vec![spawn(&mut command)?], grace: Duration::ZERO, log: log.to_owned() })
    }

    /// Starts processes as a pipeline, and returns its two ends.
    pub(super) fn pipeline(commands: Vec<Command>, log: &Path) -> Result<(Self, ChildStdin, ChildStdout), Failure> {
        let mut family = Self { children: Vec::new(), grace: GRACE, log: log.to_owned() };
        let (mut first, mut last): (_, Option<ChildStdout>) = (None, None);
        for mut command in commands {
            command.stdin(last.take().map_or_else(Stdio::piped, Stdio::from)).stdout(Stdio::piped());
            let mut child = spawn(command.stderr(appended(log)?))?;
            first = first.or_else(|| child.stdin.take());
            last = child.stdout.take();
            family.children.push(child);
        }
        Ok((family, first.ok_or("no stdin")?, last.ok_or("no stdout")?))
    }

    /// Returns the id of a single process; `None` for a pipeline.
    pub(super) fn id(&self) -> Option<u32> {
        match self.children.as_slice() {
            [child] => Some(child.id()),
            _ => None,
        }
    }

    /// Waits until something listens at `addr`, at most [`TIMEOUT`] and while a process runs.
    pub(super) fn listens(&mut self, addr: SocketAddr) -> Result<(), Failure> {
        poll(TIMEOUT, "it did not listen", || match TcpStream::connect(addr) {
            Ok(_) => Ok(Some(())),
            Err(_) if self.children.iter_mut().any(is_running) => Ok(None),
            Err(_) => Err("it ended".into()),
        })
    }

    /// Does work that waits for these processes. After `limit` they are killed, which ends the wait.
    pub(super) fn within<T>(
        &mut self,
        limit: Duration,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let children = &mut self.children;
        let (result, timed_out) = std::thread::scope(|scope| {
            let (done, waiting) = channel::<()>();
            let watch = scope.spawn(move || {
                let timed_out = waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
                if timed_out {
                    kill(children);
                }
                timed_out
            });
            let result = work();
            drop(done);
            (result, watch.join().unwrap_or(false))
        });
        if timed_out { Err(format!("not answered within {} s", limit.as_secs_f32()).into()) } else { result }
    }

    /// Adds the last line on standard error to the error.
    pub(super) fn explained(&self, error: &Failure) -> Failure {
        let log = String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned();
        let line = log.lines().rev().map(str::trim).find(|line| !line.is_empty());
        line.map_or_else(|| error.to_string(), |line| format!("{error} ({line:.200})")).into()
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let started = Instant::now();
        while started.elapsed() < self.grace && self.children.iter_mut().any(is_running) {
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(&mut self.children);
    }
}

fn is_running(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

fn kill(children: &mut [Child]) {
    for child in children {
        // It may already have ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn spawn(command: &mut Command) -> Result<Child, Failure> {
    command.spawn().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()).into())
}

fn appended(log: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(log)
}

/// Calls `look` until it returns a value.
pub(super) fn poll<T>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let started = Instant::now();
    loop {
        if let Some(seen) = look()? {
            return Ok(seen);
        }
        if started.elapsed() > limit {
            return Err(format!("{what} within {} s", limit.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_silent_process_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let commands = || vec![Command::new("cat"), Command::new("cat")];
        let (mut family, stdin, mut stdout) =
            ProcessGroup::pipeline(commands(), &dir.path().join("log")).expect("cats");
        let started = Instant::now();
        let read = family.within(Duration::from_millis(50), || Ok(stdout.read(&mut [0; 8])?));
        assert_eq!(read.expect_err("nothing was written").to_string(), "not answered within 0.05 s");
        assert!(started.elapsed() < Duration::from_secs(5));
        drop(stdin);
    }
}
