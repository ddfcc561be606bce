//! Limits process trees with control groups (cgroup v2), where this process may create them.
//!
//! Each tree gets a leaf, `tw-PID-N` with this process's PID. The command enters it before exec; guardian and watcher
//! stay outside. A group that delegates controllers must have no processes itself, except for the root group, so this
//! process first moves into a leaf `tw-PID-self`, but only if it is alone in its group. Where this is not possible,
//! usage of trees is counted instead (see `tree`).

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

/// Tasks that a tree may have for each process that it may have: the kernel counts threads, the limit means processes.
const THREADS: u64 = 8;
/// Name of this process's own leaf, after its PID.
const OWN: &str = "self";

const NONE: &str = "no cgroup v2 with the controllers `pids` or `memory` here";
const SHARED: &str = "other processes are in this control group too";
const REFUSED: &str = "this control group is not Toolwright's to divide";
const NESTED: &str = "a Toolwright started this one";
const UNUSED: &str = "not asked for";

/// Limits of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TreeLimits {
    pub(crate) processes: Option<u64>,
    /// Bytes of memory that its processes do not share with files.
    pub(crate) memory: Option<u64>,
}

static GROUPS: OnceLock<Result<CgroupParent, &'static str>> = OnceLock::new();

/// Parent folder and controllers of the leaves.
#[derive(Debug)]
pub(crate) struct CgroupParent {
    folder: PathBuf,
    owner: u32,
    controllers: Controllers,
    next: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Controllers {
    pids: bool,
    memory: bool,
}

/// State of this process's own group.
#[derive(Debug)]
struct OwnGroup<'a> {
    available: Controllers,
    is_root: bool,
    members: &'a [u32],
}

/// Enforces the limits of process trees with control groups, if this process has a cgroup v2 hierarchy of its own, as
/// in a systemd unit with `Delegate=pids memory`. Moves this process into a child group. Call it before the first child
/// is started. Otherwise, or on failure, usage of trees is counted.
///
/// # Errors
/// The reason why control groups are not available.
pub fn use_control_groups() -> Result<(), &'static str> {
    let made = GROUPS.get_or_init(|| {
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        let folder = place(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo")).ok_or(NONE)?;
        if super::is_nested() {
            return Err(NESTED);
        }
        let is_alive = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
        CgroupParent::make(folder, std::process::id(), is_alive)
    });
    made.as_ref().map(|_| ()).map_err(|why| *why)
}

/// Describes which control files enforce limits of trees, for the operator; `Err` says why none do.
pub(crate) fn in_use() -> Result<&'static str, &'static str> {
    let groups = GROUPS.get().map_or(Err(UNUSED), |made| made.as_ref().map_err(|why| *why))?;
    Ok(match groups.controllers {
        Controllers { pids: true, memory: true } => "pids.max and memory.max",
        Controllers { pids: true, .. } => "pids.max",
        Controllers { .. } => "memory.max",
    })
}

/// Creates the leaf of a tree; `None` without control groups, or if the kernel refuses another.
pub(crate) fn leaf(limits: TreeLimits) -> Option<LeafCgroup> {
    let groups = GROUPS.get()?.as_ref().ok().filter(|_| limits != TreeLimits::default())?;
    groups.leaf(limits).inspect_err(|error| tracing::warn!("no control group for a command: {error}")).ok()
}

/// Finds the folder of a process's group from its `/proc/PID/cgroup` and `mountinfo`.
fn place(groups: &str, mounts: &str) -> Option<PathBuf> {
    let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
    // Outside of its namespace the kernel shows `/..`.
    if own.components().any(|part| part == std::path::Component::ParentDir) {
        return None;
    }
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let is_plain = kind.split(' ').next() == Some("cgroup2") && !point.contains('\\');
        let below = own.strip_prefix(root).ok().filter(|_| is_plain)?;
        Some(Path::new(point).join(below))
    })
}

/// Whether a process must move into a leaf before it can divide its group; `Err` if it cannot divide it.
fn needs_move(own: &OwnGroup<'_>, pid: u32) -> Result<bool, &'static str> {
    match own {
        OwnGroup { available: Controllers { pids: false, memory: false }, .. } => Err(NONE),
        OwnGroup { is_root: true, .. } => Ok(false),
        OwnGroup { members: [only], .. } if *only == pid => Ok(true),
        OwnGroup { .. } => Err(SHARED),
    }
}

/// The PID in the name of a leaf.
fn owner_of(name: &str) -> Option<(u32, &str)> {
    let (pid, rest) = name.strip_prefix("tw-")?.split_once('-')?;
    let is_ours = rest == OWN || rest.parse::<u64>().is_ok();
    Some((pid.parse().ok().filter(|_| is_ours)?, rest))
}

impl Controllers {
    fn of(words: &str) -> Self {
        let has = |name: &str| words.split_ascii_whitespace().any(|word| word == name);
        Self { pids: has("pids"), memory: has("memory") }
    }
}

impl CgroupParent {
    /// Prepares `folder`, the group of the process `pid`, for leaves.
    fn make(folder: PathBuf, pid: u32, is_alive: impl Fn(u32) -> bool) -> Result<Self, &'static str> {
        let read = |name: &str| std::fs::read_to_string(folder.join(name));
        let available = Controllers::of(&read("cgroup.controllers").map_err(|_| NONE)?);
        let members = read("cgroup.procs").map_err(|_| REFUSED)?;
        let members: Vec<u32> = members.lines().filter_map(|line| line.parse().ok()).collect();
        // The root of all groups alone has no type.
        let own = OwnGroup { available, is_root: !folder.join("cgroup.type").exists(), members: &members };
        let moves = needs_move(&own, pid)?;
        sweep(&folder, pid, is_alive);
        let leaf = folder.join(format!("tw-{pid}-{OWN}"));
        let move_to = |group: &Path| std::fs::write(group.join("cgroup.procs"), pid.to_string());
        if moves && (std::fs::create_dir(&leaf).is_err() || move_to(&leaf).is_err()) {
            let _ = std::fs::remove_dir(&leaf);
            return Err(REFUSED);
        }
        let handed_on = [("+pids", available.pids), ("+memory", available.memory)];
        let handed_on: Vec<&str> = handed_on.into_iter().filter_map(|(name, there)| there.then_some(name)).collect();
        if std::fs::write(folder.join("cgroup.subtree_control"), handed_on.join(" ")).is_err() {
            if moves {
                let _ = move_to(&folder).and_then(|()| std::fs::remove_dir(&leaf));
            }
            return Err(REFUSED);
        }
        Ok(Self { folder, owner: pid, controllers: available, next: AtomicU64::new(0) })
    }

    fn leaf(&self, limits: TreeLimits) -> io::Result<LeafCgroup> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("tw-{}-{number}", self.owner));
        std::fs::create_dir(&folder)?;
        let leaf = LeafCgroup::at(folder, self.controllers.memory && limits.memory.is_some())?;
        let set = |name: &str, value: u64| std::fs::write(leaf.folder.join(name), value.to_string());
        let kept = (|| {
            if let (true, Some(processes)) = (self.controllers.pids, limits.processes) {
                set("pids.max", processes.saturating_mul(THREADS))?;
            }
            if let (true, Some(memory)) = (self.controllers.memory, limits.memory) {
                set("memory.max", memory)?;
                // Not every kernel has these files.
                let _ = set("memory.swap.max", 0);
                let _ = set("memory.oom.group", 1);
            }
            Ok(())
        })();
        kept.map(|()| leaf)
    }
}

/// Ends and removes leaves of Toolwright processes that are gone, and those with this process's reused PID.
fn sweep(folder: &Path, pid: u32, is_alive: impl Fn(u32) -> bool) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        match name.to_str().and_then(owner_of) {
            Some((owner, rest)) if owner == pid || !is_alive(owner) => {
                if rest != OWN {
                    let _ = std::fs::write(entry.path().join("cgroup.kill"), "1");
                }
                // A leaf that still has processes stays until the next start.
                let _ = std::fs::remove_dir(entry.path());
            }
            _ => {}
        }
    }
}

/// The control group of one tree. On drop, kills its processes, and removes it once it is empty.
///
/// [`LeafCgroup::enter`], [`LeafCgroup::kill`] and [`LeafCgroup::remove`] make system calls only, so they may run between fork and exec.
#[derive(Debug)]
pub(crate) struct LeafCgroup {
    folder: PathBuf,
    has_memory: bool,
    path: CString,
    members: CString,
    end: CString,
}

impl LeafCgroup {
    fn at(folder: PathBuf, has_memory: bool) -> io::Result<Self> {
        let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let (members, end) = (path(&folder.join("cgroup.procs"))?, path(&folder.join("cgroup.kill"))?);
        Ok(Self { path: path(&folder)?, members, end, has_memory, folder })
    }

    /// Moves this process into the group.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn enter(&self) -> io::Result<()> {
        write(&self.members, b"0")
    }

    /// Kills all processes in it, if the kernel can (Linux 5.14).
    pub(crate) fn kill(&self) {
        let _ = write(&self.end, b"1");
    }

    /// Removes it if no process is left in it.
    pub(crate) fn remove(&self) {
        let _ = rustix::fs::unlinkat(rustix::fs::CWD, self.path.as_c_str(), rustix::fs::AtFlags::REMOVEDIR);
    }

    /// The processes in it.
    pub(crate) fn members(&self) -> Vec<u32> {
        let members = std::fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        members.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Whether the kernel killed a process for exceeding the memory limit; `None` if the kernel does not enforce it.
    pub(crate) fn was_oom_killed(&self) -> Option<bool> {
        let events = std::fs::read_to_string(self.folder.join("memory.events")).unwrap_or_default();
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap_or("0");
        self.has_memory.then_some(kills != "0")
    }
}

impl Drop for LeafCgroup {
    fn drop(&mut self) {
        self.kill();
        self.remove();
    }
}

fn write(file: &std::ffi::CStr, text: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_through_its_mount() {
        let mounts =
            "24 1 0:22 / /proc rw - proc proc rw\n31 24 0:27 /docker/x /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let whole = "31 24 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        for (groups, mounts, expect) in [
            ("0::/docker/x/a\n", mounts, Some("/sys/fs/cgroup/a")),
            ("8:pids:/\n0::/system.slice/t.service\n", whole, Some("/sys/fs/cgroup/unified/system.slice/t.service")),
            ("0::/\n", whole, Some("/sys/fs/cgroup/unified/")),
            ("0::/other\n", mounts, None),
            ("0::/../x\n", whole, None),
            ("8:pids:/\n", whole, None),
            ("0::/\n", "", None),
            ("0::/\n", "31 24 0:27 / /a\\040b rw - cgroup2 cgroup2 rw\n", None),
        ] {
            assert_eq!(place(groups, mounts), expect.map(PathBuf::from), "{groups} {mounts}");
        }
    }

    #[test]
    fn groups_are_divided_only_when_alone() {
        let both = Controllers { pids: true, memory: true };
        for (available, is_root, members, expect) in [
            (Controllers::default(), false, &[7][..], Err(NONE)),
            (both, false, &[7], Ok(true)),
            (Controllers { pids: true, memory: false }, false, &[7], Ok(true)),
            (both, false, &[7, 8], Err(SHARED)),
            (both, false, &[8], Err(SHARED)),
            (both, false, &[], Err(SHARED)),
            (both, true, &[7, 8], Ok(false)),
        ] {
            assert_eq!(needs_move(&OwnGroup { available, is_root, members }, 7), expect, "{members:?}");
        }
    }

    #[test]
    fn only_leaves_of_dead_owners_are_swept() {
        let folder = tempfile::tempdir().expect("folder");
        let all = ["tw-7-self", "tw-7-0", "tw-8-3", "tw-9-self", "tw-9-1", "tw-9-x", "tw-x-1", "other", "tw-9"];
        for name in all {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        // On an ordinary file system, the `cgroup.kill` file keeps the folder from being removed.
        sweep(folder.path(), 7, |pid| pid == 8);
        let left = |name: &&str| folder.path().join(name).exists();
        let killed = |name: &&str| folder.path().join(name).join("cgroup.kill").exists();
        assert_eq!(all.into_iter().filter(killed).collect::<Vec<_>>(), ["tw-7-0", "tw-9-1"]);
        let gone: Vec<_> = all.into_iter().filter(|name| !left(name)).collect();
        assert_eq!(gone, ["tw-7-self", "tw-9-self"]);
    }

    #[test]
    fn used_groups_limit_their_leaves() {
        let folder = tempfile::tempdir().expect("folder");
        let path = |name: &str| folder.path().join(name);
        let read = |name: &str| std::fs::read_to_string(path(name)).expect("file");
        let write = |name: &str, text: &str| std::fs::write(path(name), text).expect("written");
        write("cgroup.controllers", "cpu memory pids\n");
        write("cgroup.type", "domain\n");
        write("cgroup.procs", "7\n8\n");
        let make = || CgroupParent::make(folder.path().to_owned(), 7, |_| true);
        assert_eq!(make().expect_err("shared"), SHARED);
        assert!(!path("tw-7-self").exists());
        write("cgroup.procs", "7\n");
        let groups = make().expect("made");
        assert_eq!(read("tw-7-self/cgroup.procs"), "7");
        assert_eq!(read("cgroup.subtree_control"), "+pids +memory");
        let leaf = groups.leaf(TreeLimits { processes: Some(40), memory: Some(1 << 20) }).expect("made");
        for (file, expect) in
            [("pids.max", "320"), ("memory.max", "1048576"), ("memory.swap.max", "0"), ("memory.oom.group", "1")]
        {
            assert_eq!(read(&format!("tw-7-0/{file}")), expect, "{file}");
        }
        write("tw-7-0/cgroup.procs", "11\n12\n");
        write("tw-7-0/memory.events", "oom 0\noom_kill 0\noom_group_kill 0\n");
        assert_eq!((leaf.members(), leaf.was_oom_killed()), (vec![11, 12], Some(false)));
        write("tw-7-0/memory.events", "oom 1\noom_kill 3\noom_group_kill 1\n");
        assert_eq!(leaf.was_oom_killed(), Some(true));
        let unlimited = groups.leaf(TreeLimits { processes: Some(1), memory: None }).expect("made");
        assert!(!path("tw-7-1/memory.max").exists() && unlimited.was_oom_killed().is_none());
    }
}
