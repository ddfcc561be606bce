//! Counts the resources of a tree of processes, and ends a tree that exceeds its limits.
//!
//! The kernel limits single processes (see `enforce::enter`), and whole trees only through control groups (see
//! `cgroup`). One thread counts the usage of all limited trees several times a second, and ends a tree that exceeds its
//! limits. Between two counts a tree can exceed its limit, unless its control group stops it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::LifetimeGuard;
use super::cgroup::{LeafCgroup, TreeLimits};

/// Interval between checks.
const PAUSE: Duration = Duration::from_millis(100);
/// Processes that are no part of the command: guardian and watcher.
const OWN_PROCESSES: usize = 2;

/// The limit that a tree has gone over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceededLimit {
    /// It had more processes than so many.
    Processes(u64),
    /// Its processes had more memory together than so many bytes.
    Memory(u64),
}

impl std::fmt::Display for ExceededLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Processes(most) => {
                write!(f, "it started more than {most} processes at once (sandbox.limits.processes)")
            }
            Self::Memory(most) => {
                write!(f, "its processes used more than {} MiB of memory together (sandbox.limits.memory)", most >> 20)
            }
        }
    }
}

/// A running tree, shared with those who may end it.
#[derive(Debug)]
pub(crate) struct Tree {
    /// PID of the guardian; `None` after it was waited for.
    root: Mutex<Option<u32>>,
    lifeline: Mutex<Option<LifetimeGuard>>,
    limits: TreeLimits,
    /// Its control group. The guardian removes it if nobody waits for the end of the tree.
    leaf: Mutex<Option<Arc<LeafCgroup>>>,
    exceeded: OnceLock<ExceededLimit>,
}

impl Tree {
    pub(crate) fn new(
        root: Option<u32>,
        lifeline: LifetimeGuard,
        limits: TreeLimits,
        leaf: Option<Arc<LeafCgroup>>,
    ) -> Arc<Self> {
        let tree = Arc::new(Self {
            root: Mutex::new(root),
            lifeline: Mutex::new(Some(lifeline)),
            limits,
            leaf: Mutex::new(leaf),
            exceeded: OnceLock::new(),
        });
        if cfg!(target_os = "linux") && limits != TreeLimits::default() {
            observe(Arc::downgrade(&tree));
        }
        tree
    }

    /// Sends SIGTERM to the command's process group through the watcher.
    pub(crate) fn request_end(&self) {
        if let Some(lifeline) = &*lock(&self.lifeline) {
            lifeline.request_end();
        }
    }

    /// Kills everything in the tree.
    pub(crate) fn kill(&self) {
        if let Some(leaf) = &*lock(&self.leaf) {
            leaf.kill();
        }
        *lock(&self.lifeline) = None;
    }

    /// Records that it ended and was waited for: its PID may be reused.
    pub(crate) fn ended(&self) {
        *lock(&self.root) = None;
        let leaf = lock(&self.leaf).take();
        if let (Some(true), Some(most)) = (leaf.and_then(|leaf| leaf.was_oom_killed()), self.limits.memory) {
            let _ = self.exceeded.set(ExceededLimit::Memory(most));
        }
    }

    pub(crate) fn exceeded(&self) -> Option<ExceededLimit> {
        self.exceeded.get().copied()
    }

    /// Checks usage against the limits; `false` once the tree has ended.
    fn check_limits(&self) -> bool {
        let root = lock(&self.root);
        let (Some(root), None) = (*root, self.exceeded()) else { return false };
        let over = |most: Option<u64>, has: u64| most.filter(|most| has > *most);
        let leaf = lock(&self.leaf).clone();
        let usage = match leaf {
            Some(leaf) => Usage::of_members(&leaf.members(), leaf.was_oom_killed().is_some()),
            None => usage(root, self.limits.processes),
        };
        let exceeded = over(self.limits.processes, usage.processes)
            .map(ExceededLimit::Processes)
            .or_else(|| over(self.limits.memory, usage.memory).map(ExceededLimit::Memory));
        if let Some(exceeded) = exceeded {
            tracing::warn!(pid = root, "a sandboxed command is ended: {exceeded}");
            let _ = self.exceeded.set(exceeded);
            self.kill();
        }
        exceeded.is_none()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Observes the tree until it ends, on a shared thread that ends with the last tree.
fn observe(tree: Weak<Tree>) {
    static TREES: Mutex<Vec<Weak<Tree>>> = Mutex::new(Vec::new());
    let mut trees = lock(&TREES);
    trees.push(tree);
    if trees.len() > 1 {
        return;
    }
    let looking = || {
        loop {
            std::thread::sleep(PAUSE);
            let now: Vec<Weak<Tree>> = lock(&TREES).clone();
            let gone: Vec<Weak<Tree>> =
                now.into_iter().filter(|tree| !tree.upgrade().is_some_and(|tree| tree.check_limits())).collect();
            let mut trees = lock(&TREES);
            trees.retain(|tree| !gone.iter().any(|gone| gone.ptr_eq(tree)));
            if trees.is_empty() {
                return;
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("process-limits".into()).spawn(looking) {
        tracing::warn!("limits of process trees are not looked at: {error}");
        trees.clear();
    }
}

#[derive(Debug, Default)]
struct Usage {
    processes: u64,
    memory: u64,
}

impl Usage {
    /// Usage of a control group's processes, without memory if the kernel enforces that limit.
    fn of_members(members: &[u32], is_memory_kept: bool) -> Self {
        let counted = if is_memory_kept { &[] } else { members };
        Self { processes: members.len() as u64, memory: counted.iter().map(|pid| private_memory(*pid)).sum() }
    }
}

/// Usage below a guardian and its watcher. Stops counting at one process more than `most`.
fn usage(root: u32, most: Option<u64>) -> Usage {
    let mut usage = Usage::default();
    let mut next = vec![(root, 0)];
    while let Some((pid, depth)) = next.pop() {
        if depth >= OWN_PROCESSES {
            usage.processes += 1;
            usage.memory += private_memory(pid);
            if most.is_some_and(|most| usage.processes > most) {
                break;
            }
        }
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            next.extend(
                children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).map(|pid| (pid, depth + 1)),
            );
        }
    }
    usage
}

/// Memory of a process that is no part of a file, in bytes; 0 for one that is gone.
fn private_memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = text.split_ascii_whitespace().skip(1).map(|field| field.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * rustix::param::page_size() as u64
}
