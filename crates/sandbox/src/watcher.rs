//! A process between the gateway and a command that ends everything the command started when the gateway ends, even by
//! SIGKILL.
//!
//! ```text
//! gateway ── lifeline (pipe) ──▶ guardian (subreaper) ──▶ watcher (subreaper) ──▶ command ──▶ whatever it starts
//! ```
//!
//! The guardian is the forked child itself. It forks the watcher, which forks once more, lets that
//! process run the command, and stays behind with nothing open but the read end of the lifeline. Because it is a
//! subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), descendants that daemonise or call setsid(2) become its
//! children when their parent ends: its list of children always leads to the whole tree. The kernel closes
//! the lifeline when the gateway ends, however it ends.
//!
//! The watcher ends the tree as soon as the command has ended or the lifeline is closed, and then ends the way the
//! command did (same exit code, same signal), so the gateway's own `wait` sees the command's status.
//!
//! A command has the same user as its watcher and may kill or stop it. Guardian and watcher therefore look after each other:
//! when one of them is gone the other ends the tree (processes of a killed watcher become the guardian's children), and the
//! guardian wakes a stopped watcher. A stopped guardian is woken by the watcher's end.
//!
//! Limits: a command that stops the guardian and then the watcher, or kills both at once, is not kept from going on
//! when the gateway dies (Landlock keeps sandboxed ones from signalling either, from Linux 6.12 on); without
//! `/proc/thread-self/children` (no procfs mounted) only the command's process group is killed; a process that changed
//! its user (sudo) cannot be killed. The watcher is a fork of the gateway: it shares its memory copy-on-write.
#![expect(unsafe_code, reason = "the split happens between fork and exec, where only raw system calls are allowed")]

use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;
use std::sync::Arc;

use libc::{c_int, pid_t};
use tokio::process::Child;

use super::cgroup::LeafCgroup;
use super::enforce::{Entry, Placeholders};
use super::nesting::{MARKED_LOCKS, WATCHER_NAME};

/// Seconds for which the watcher tries to kill processes before it gives up (uninterruptible sleep, another user's
/// process).
const KILL_SECONDS: libc::time_t = 5;

/// The gateway's end of the pipe: while it is open, the command may run.
#[derive(Debug)]
pub(crate) struct LifetimeGuard(PipeWriter);

impl LifetimeGuard {
    /// Tells the watcher to send SIGTERM to the command's process group. Does nothing if the watcher is gone.
    pub(crate) fn request_end(&self) {
        // A single byte into an empty pipe does not block.
        let _ = (&self.0).write(&[libc::SIGTERM as u8]);
    }
}

/// Makes this process unreadable for others of its user (PR_SET_DUMPABLE): its files in `/proc` then belong to
/// root. It can still read its own.
pub(crate) fn harden() {
    // SAFETY: a plain system call that sets one flag of this process.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
}

/// Starts `command` below a watcher and behind the walls of `entry`. The child's pid and exit status are the watcher's, which ends as the
/// command did and after everything the command has started.
pub(crate) fn spawn(
    mut command: Command,
    entry: Option<Entry>,
    placeholders: Placeholders,
    leaf: Option<Arc<LeafCgroup>>,
) -> io::Result<(Child, LifetimeGuard)> {
    let (theirs, ours) = io::pipe()?;
    fork_before_exec(&mut command, theirs, entry, placeholders, leaf);
    let child = tokio::process::Command::from(command).spawn()?;
    Ok((child, LifetimeGuard(ours)))
}

fn fork_before_exec(
    command: &mut Command,
    lifeline: PipeReader,
    entry: Option<Entry>,
    placeholders: Placeholders,
    leaf: Option<Arc<LeafCgroup>>,
) {
    // SAFETY: the hook runs in the forked child of a process with many threads, where other threads' locks
    // may be held for ever. `split` and `enter` therefore make system calls only: they allocate nothing, take
    // no lock, cannot panic, and touch no memory that another thread may have left half written.
    unsafe {
        command.pre_exec(move || {
            split(lifeline.as_raw_fd(), &placeholders, leaf.as_deref())?;
            // Only in the command's process: the watcher must stay able to kill it.
            entry.as_ref().map_or(Ok(()), Entry::enter)
        });
    }
}

/// Becomes the guardian or the watcher (and never returns), or returns in the process that will exec the command.
fn split(lifeline: RawFd, placeholders: &Placeholders, leaf: Option<&LeafCgroup>) -> io::Result<()> {
    // SAFETY: plain system calls on values of this stack frame; signal sets are initialised by `sigfillset`
    // and `sigemptyset` before they are read.
    unsafe {
        // No controlling terminal: a command must not prompt on the user's screen or get its Ctrl-C.
        libc::setsid();
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        // Named before the command exists and could look for it; exec gives the command its own name.
        libc::prctl(libc::PR_SET_NAME, WATCHER_NAME.as_ptr());
        mark();
        // The watcher has a copy of the gateway's memory, including keys: the command must not read it,
        // and it must not be in a core dump. exec lifts this for the command itself.
        harden();

        let (mut all, mut child_only, mut inherited) = (empty_set(), empty_set(), empty_set());
        libc::sigfillset(&mut all);
        libc::sigaddset(&mut child_only, libc::SIGCHLD);
        // Blocked before the fork, so that the child's end stays pending until the watcher reads `signals`.
        check(libc::sigprocmask(libc::SIG_SETMASK, &all, &mut inherited))?;
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let signals = check(libc::signalfd(-1, &child_only, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;

        let guardian = libc::getpid();
        match fork()? {
            0 => {}
            watcher => guard(watcher, lifeline, signals, leaf),
        }
        // The end of the guardian wakes this process, which then looks for it.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCHLD);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        match fork()? {
            0 => {
                libc::setpgid(0, 0);
                // If the watcher itself is killed, at least the command dies with it.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                check(libc::sigprocmask(libc::SIG_SETMASK, &inherited, ptr::null_mut()))?;
                leaf.map_or(Ok(()), LeafCgroup::enter)
            }
            command => watch(command, guardian, (lifeline, signals), placeholders, leaf),
        }
    }
}

/// Marks this process and its descendants as nested. If the limit cannot be set, only the watcher marks them.
fn mark() {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls on a value that outlives them.
    unsafe {
        libc::getrlimit(libc::RLIMIT_LOCKS, &raw mut now);
        let most = now.rlim_max.min(MARKED_LOCKS);
        libc::setrlimit(libc::RLIMIT_LOCKS, &libc::rlimit { rlim_cur: most.min(now.rlim_cur), rlim_max: most });
    }
}

/// fork(2) without libc's atfork handlers, which are not safe here.
///
/// # Safety
/// As for fork(2) in a forked child: only async-signal-safe calls may follow in either process.
unsafe fn fork() -> io::Result<pid_t> {
    let flags = libc::c_long::from(libc::SIGCHLD);
    // SAFETY: no flag shares memory or asks for a new stack, so all pointers may be null; s390x alone takes
    // the stack first.
    let pid = unsafe {
        if cfg!(target_arch = "s390x") {
            libc::syscall(libc::SYS_clone, 0, flags, 0, 0, 0)
        } else {
            libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0)
        }
    };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as pid_t) }
}

/// Main function of the watcher.
///
/// # Safety
/// Only in the forked child, with SIGCHLD blocked and readable from `signals`: closes every file
/// descriptor and ends the process.
unsafe fn watch(
    command: pid_t,
    guardian: pid_t,
    (lifeline, signals): (RawFd, RawFd),
    placeholders: &Placeholders,
    leaf: Option<&LeafCgroup>,
) -> ! {
    // SAFETY: system calls on descriptors that this process owns alone, and on strings with a static
    // lifetime. The two descriptors are above 1, which the standard streams occupy.
    unsafe {
        // Both sides set the group, so that it exists whichever runs first.
        libc::setpgid(command, command);
        libc::chdir(c"/".as_ptr());
        // Close everything else: the command's pipes, whose readers wait for end of file, the pipe through which exec
        // reports failure, and other commands' lifelines.
        libc::dup2(lifeline, LIFETIME_FD);
        libc::dup2(signals, SIGNALS);
        close_from(placeholders.gather(SIGNALS + 1));

        let mut ended = wait_for_end(command, guardian);
        end_tree(command, &mut ended, leaf);
        placeholders.remove(SIGNALS + 1);
        if libc::getppid() == guardian {
            libc::kill(guardian, libc::SIGCONT);
        }
        end_like(ended)
    }
}

/// Main function of the guardian: keeps the watcher awake, outlives it, and ends the processes it leaves behind.
///
/// # Safety
/// As for [`watch`].
unsafe fn guard(watcher: pid_t, lifeline: RawFd, signals: RawFd, leaf: Option<&LeafCgroup>) -> ! {
    // SAFETY: as in `watch`.
    unsafe {
        // Descendants count as nested even after the watcher is gone.
        libc::prctl(libc::PR_SET_NAME, WATCHER_NAME.as_ptr());
        libc::chdir(c"/".as_ptr());
        libc::dup2(lifeline, LIFETIME_FD);
        libc::dup2(signals, SIGNALS);
        close_from(SIGNALS + 1);

        let (mut ended, mut kill_deadline) = (None, None);
        while ended.is_none() {
            // Bytes on the lifeline are for the watcher; the guardian waits only for its end.
            let mut sources = [libc::pollfd { fd: LIFETIME_FD, events: 0, revents: 0 }, readable(SIGNALS)];
            if kill_deadline.is_some() {
                sources[0].fd = -1;
            }
            let wait = if kill_deadline.is_some() { 100 } else { -1 };
            if libc::poll(sources.as_mut_ptr(), 2, wait) < 0 {
                break;
            }
            if sources[0].revents != 0 {
                kill_deadline = Some(seconds() + KILL_SECONDS + 1);
            }
            if kill_deadline.is_some_and(|end| seconds() > end) {
                libc::kill(watcher, libc::SIGKILL);
            }
            drain_signals();
            if !wake_or_reap(watcher, &mut ended) {
                break;
            }
        }
        end_tree(watcher, &mut ended, leaf);
        let mut closed = libc::pollfd { fd: LIFETIME_FD, events: 0, revents: 0 };
        if let (Some(leaf), 1) = (leaf, libc::poll(&raw mut closed, 1, 0)) {
            // The gateway is gone, or has stopped waiting. Otherwise it reads and removes the group itself.
            leaf.remove();
        }
        end_like(ended)
    }
}

/// Wakes a stopped watcher, reaps ended children, and records the watcher's status. `false` when no child is left.
///
/// # Safety
/// Only in the guardian: takes the status of every child.
unsafe fn wake_or_reap(watcher: pid_t, ended: &mut Option<c_int>) -> bool {
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) } {
            0 => return true,
            pid if pid < 0 => return false,
            pid if pid != watcher => {}
            _ if libc::WIFSTOPPED(status) => {
                // SAFETY: a plain system call on a child that has not been reaped.
                unsafe { libc::kill(watcher, libc::SIGCONT) };
            }
            _ => *ended = Some(status),
        }
    }
}

const LIFETIME_FD: RawFd = 0;
const SIGNALS: RawFd = 1;

/// Waits until the command has ended (returns its status) or the lifeline is closed.
///
/// # Safety
/// Only in the watcher, after its descriptors are in place.
unsafe fn wait_for_end(command: pid_t, guardian: pid_t) -> Option<c_int> {
    let mut ended = None;
    loop {
        let mut sources = [readable(LIFETIME_FD), readable(SIGNALS)];
        // SAFETY: `sources` and `signal` outlive the calls that fill them.
        unsafe {
            if libc::getppid() != guardian {
                return ended;
            }
            if libc::poll(sources.as_mut_ptr(), 2, -1) < 0 {
                return None;
            }
            if sources[0].revents != 0 {
                let mut signal = 0u8;
                match libc::read(LIFETIME_FD, (&raw mut signal).cast(), 1) {
                    1 => libc::kill(-command, c_int::from(signal)),
                    _ => return None,
                };
            }
            drain_signals();
            if !reap(command, &mut ended) || ended.is_some() {
                return ended;
            }
        }
    }
}

/// Kills until nothing is left or the time is up. Each round kills the watcher's children; their orphans become
/// its children for the next round.
///
/// # Safety
/// Only in the watcher.
unsafe fn end_tree(command: pid_t, ended: &mut Option<c_int>, leaf: Option<&LeafCgroup>) {
    // SAFETY: `source` outlives the call; pids come from the kernel's list of this process's own children,
    // which cannot be reused before they are reaped here.
    unsafe {
        let give_up = seconds() + KILL_SECONDS;
        if let Some(leaf) = leaf {
            leaf.kill();
        }
        if ended.is_none() {
            // Kill the group at once first: a tree that keeps forking could outrun the rounds.
            libc::kill(-command, libc::SIGKILL);
        }
        loop {
            if !kill_children() {
                libc::kill(-command, libc::SIGKILL);
            }
            if !reap(command, ended) || seconds() > give_up {
                return;
            }
            let mut source = readable(SIGNALS);
            libc::poll(&raw mut source, 1, 10);
            drain_signals();
        }
    }
}

/// Ends this process with the status of the command. A command that could not be reaped counts as killed.
///
/// # Safety
/// Only in the watcher.
unsafe fn end_like(ended: Option<c_int>) -> ! {
    let status = ended.unwrap_or(libc::SIGKILL);
    // SAFETY: plain system calls; the signal set is a value of this frame.
    unsafe {
        if libc::WIFEXITED(status) {
            libc::_exit(libc::WEXITSTATUS(status));
        }
        let signal = libc::WTERMSIG(status);
        let mut set = empty_set();
        libc::sigaddset(&mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
        libc::_exit(128 + signal)
    }
}

/// Reaps ended children and records the command's status. `false` when no child is left.
///
/// # Safety
/// Only in the watcher: takes the status of every child.
unsafe fn reap(command: pid_t, ended: &mut Option<c_int>) -> bool {
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => return true,
            pid if pid < 0 => return false,
            pid if pid == command => *ended = Some(status),
            _ => {}
        }
    }
}

/// Sends SIGKILL to every child of this process. `false` when the kernel does not list them.
///
/// # Safety
/// Only in the watcher.
unsafe fn kill_children() -> bool {
    // SAFETY: reads into a buffer of this frame, at most its length.
    unsafe {
        let list = libc::open(c"/proc/thread-self/children".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if list < 0 {
            return false;
        }
        let mut buffer = [0u8; 1024];
        let mut pid: pid_t = 0;
        loop {
            let read = libc::read(list, buffer.as_mut_ptr().cast(), buffer.len());
            if read <= 0 {
                break;
            }
            for byte in buffer.iter().take(read as usize) {
                // The format is "PID PID … ", so a number cut between two reads continues in the next.
                if byte.is_ascii_digit() {
                    pid = pid.wrapping_mul(10).wrapping_add(pid_t::from(byte - b'0'));
                } else {
                    if pid > 1 {
                        libc::kill(pid, libc::SIGKILL);
                    }
                    pid = 0;
                }
            }
        }
        libc::close(list);
        true
    }
}

/// Closes every descriptor from `first` on.
///
/// # Safety
/// Only in the watcher: closes descriptors regardless of their owner.
unsafe fn close_from(first: RawFd) {
    // SAFETY: plain system calls.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, c_int::MAX, 0) == 0 {
            return;
        }
        // For kernels before 5.9. The bound keeps an unlimited RLIMIT_NOFILE from taking minutes.
        let last = libc::sysconf(libc::_SC_OPEN_MAX).clamp(256, 65_536) as RawFd;
        for descriptor in first..last {
            libc::close(descriptor);
        }
    }
}

/// # Safety
/// `SIGNALS` must be a non-blocking signalfd.
unsafe fn drain_signals() {
    let mut buffer = [0u8; 512];
    // SAFETY: reads into a buffer of this frame, at most its length.
    while unsafe { libc::read(SIGNALS, buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {}
}

fn seconds() -> libc::time_t {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: an all-zero `sigset_t` is a valid value, and `sigemptyset` makes it a meaningful one.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        set
    }
}

fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
