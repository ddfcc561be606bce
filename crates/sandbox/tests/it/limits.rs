//! Control groups of process trees, in a real hierarchy where this machine has one that this process may write.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use toolwright_core::sandbox::SandboxProfile;
use toolwright_sandbox::enforce::{Limits, Sandbox, SandboxConfig};
use toolwright_sandbox::{ExceededLimit, SupervisedChild, SupervisedCommand, use_control_groups};

use crate::processes::{unique_sleep, wait_for_count};

/// What the stand-in for a gateway does.
const GATEWAY: &str = "TOOLWRIGHT_TEST_LIMITED";

/// The group of a test. Whatever is left in it goes with it.
struct Group(PathBuf);

impl Group {
    /// Makes one with controllers; none where that is not possible.
    fn new(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("proc");
        let root = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
        let folder = Path::new(root).join(format!("toolwright-test-{name}-{}", std::process::id()));
        for controller in ["pids", "memory"] {
            // At the root, where the whole machine's are, this changes nothing on most systems.
            std::fs::write(Path::new(root).join("cgroup.subtree_control"), format!("+{controller}")).ok();
        }
        std::fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        let controllers = group.read("cgroup.controllers");
        (controllers.contains("pids") || controllers.contains("memory")).then_some(group)
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    /// The groups in it.
    fn leaves(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the group").flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// A gateway alone in it.
    fn gateway(&self, task: &str) -> Child {
        let mut child = Command::new(std::env::current_exe().expect("test binary"))
            .args(["--exact", "limits::stand_in_for_a_limited_gateway", "--nocapture"])
            .env(GATEWAY, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        std::fs::write(self.0.join("cgroup.procs"), child.id().to_string()).expect("moved");
        child.stdin.as_mut().expect("stdin").write_all(b"go\n").expect("told");
        child
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        std::fs::write(self.0.join("cgroup.kill"), "1").ok();
        let end = Instant::now() + Duration::from_secs(5);
        while self.0.exists() && Instant::now() < end {
            self.leaves().iter().for_each(|leaf| drop(std::fs::remove_dir(self.0.join(leaf))));
            std::fs::remove_dir(&self.0).ok();
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn limited(script: &str, limits: Limits) -> SupervisedChild {
    let settings = SandboxConfig { limits, ..SandboxConfig::default() };
    let sandbox = Sandbox { profile: SandboxProfile::ReadOnly, root: std::env::temp_dir(), settings };
    SupervisedCommand::new("bash").args(["-c", script]).current_dir("/").sandbox(sandbox).spawn().expect("starts")
}

#[tokio::test]
async fn stand_in_for_a_limited_gateway() {
    let Ok(task) = std::env::var(GATEWAY) else { return };
    std::io::stdin().read_line(&mut String::new()).expect("told");
    use_control_groups().expect("a hierarchy of its own");
    println!("limits {}", Limits::default().of_trees());
    if let Some(script) = task.strip_prefix("hold ") {
        let _child = limited(script, Limits::default());
        tokio::time::sleep(Duration::from_secs(600)).await;
    }
    let (script, limits) = match &*task {
        "processes" => ("f() { sleep 600 & f & f; }; f", Limits { processes: Some(40), ..Limits::default() }),
        // Shared memory, which no count sees.
        "memory" => (
            "exec 3<>/dev/shm/toolwright-test-$$; rm /dev/shm/toolwright-test-$$; head -c 300000000 /dev/zero >&3",
            Limits { memory: Some(64 << 20), ..Limits::default() },
        ),
        _ => ("exit 7", Limits::default()),
    };
    let mut child = limited(script, limits);
    let exit = tokio::time::timeout(Duration::from_secs(60), child.wait()).await.expect("ends").expect("waited");
    println!("ended {exit} {:?}", child.exceeded());
    drop(limited("sleep 600", Limits::default()));
    // Until its parent has looked.
    std::io::stdin().read_line(&mut String::new()).expect("told");
}

/// What a gateway prints of itself: its limits, and how its tree has ended.
fn read_startup(gateway: &mut Child) -> (String, String) {
    let mut lines = BufReader::new(gateway.stdout.as_mut().expect("stdout")).lines().map_while(Result::ok);
    let mut line = |start: &str| lines.find_map(|line| line.split_once(start).map(|(_, rest)| rest.to_owned()));
    (line("limits ").expect("its limits"), line("ended ").expect("the end"))
}

#[tokio::test]
async fn trees_have_groups_that_end_with_them() {
    let Some(group) = Group::new("tree") else { return eprintln!("no cgroup v2 to write here, skipped") };
    let mut tasks = vec![("plain", "exit code 7 None".to_owned())];
    if group.read("cgroup.controllers").contains("pids") {
        tasks.push(("processes", format!("killed by signal 9 {:?}", Some(ExceededLimit::Processes(40)))));
    }
    if group.read("cgroup.controllers").contains("memory") {
        tasks.push(("memory", format!("killed by signal 9 {:?}", Some(ExceededLimit::Memory(64 << 20)))));
    }
    for (task, expect) in tasks {
        let mut gateway = group.gateway(task);
        let (limits, ended) = read_startup(&mut gateway);
        assert!(limits.contains("by control groups"), "{limits}");
        assert_eq!(ended, expect, "{task}");
        let end = Instant::now() + Duration::from_secs(10);
        let only_itself = [format!("tw-{}-self", gateway.id())];
        while group.leaves() != only_itself {
            assert!(Instant::now() < end, "{task}: {:?}", group.leaves());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(gateway.stdin.take());
        gateway.wait().expect("ended");
        // The next one divides the group anew.
        std::fs::write(group.0.join("cgroup.subtree_control"), "-pids").ok();
        std::fs::write(group.0.join("cgroup.subtree_control"), "-memory").ok();
    }
}

#[tokio::test]
async fn control_groups_of_killed_gateways_are_removed() {
    let Some(group) = Group::new("swept") else { return eprintln!("no cgroup v2 to write here, skipped") };
    let seconds = unique_sleep();
    // What kills its watchers outlives a killed gateway, and not the next start.
    let mut first = group.gateway(&format!("hold sleep {seconds}"));
    wait_for_count(&seconds, 1).await;
    assert!(group.leaves().contains(&format!("tw-{}-0", first.id())), "{:?}", group.leaves());
    first.kill().expect("killed");
    first.wait().expect("ended");
    wait_for_count(&seconds, 0).await;
    let end = Instant::now() + Duration::from_secs(10);
    while group.leaves().len() > 1 {
        assert!(Instant::now() < end, "{:?}", group.leaves());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    std::fs::write(group.0.join("cgroup.subtree_control"), "-pids").ok();
    std::fs::write(group.0.join("cgroup.subtree_control"), "-memory").ok();
    std::fs::create_dir(group.0.join(format!("tw-{}-9", first.id()))).expect("left behind");
    let mut second = group.gateway("plain");
    read_startup(&mut second);
    assert!(
        group.leaves().iter().all(|leaf| !leaf.starts_with(&format!("tw-{}-", first.id()))),
        "{:?}",
        group.leaves()
    );
    drop(second.stdin.take());
    second.wait().expect("ended");
}
