//! Limits, held names and private folders of sandboxed commands, with real processes.

use std::path::Path;
use std::time::Duration;

use toolwright_core::sandbox::SandboxProfile::{Network, Pure, ReadOnly, Workspace};
use toolwright_core::sandbox::{Enforcement, Mechanism, Restriction};
use toolwright_sandbox::enforce::Limits;
use toolwright_sandbox::{ExceededLimit, SpawnError};

use crate::processes::{unique_sleep, wait_for_count};
use crate::sandbox::{SandboxFixture, end};

#[tokio::test]
async fn the_temporary_folder_is_private_and_removed() {
    let world = SandboxFixture::new();
    let (_, text, enforcement) = world.run(ReadOnly, "echo x > $TMPDIR/x; stat -c %a $TMPDIR; echo $TMPDIR").await;
    if enforcement.mechanism == Mechanism::None {
        return eprintln!("no sandbox here, skipped");
    }
    let (mode, path) = text.trim().split_once('\n').expect("two lines");
    assert_eq!(mode, "700");
    let end = std::time::Instant::now() + Duration::from_secs(10);
    while Path::new(path).exists() {
        assert!(std::time::Instant::now() < end, "{path} is still there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn limits_are_enforced() {
    let world = SandboxFixture::new();
    if world.sandbox(ReadOnly).enforcement().mechanism == Mechanism::None {
        return eprintln!("no sandbox here, skipped");
    }
    let limits = Limits {
        memory: Some(8 << 30),
        processes: Some(99),
        file_size: Some(1 << 20),
        open_files: Some(64),
        cpu: Some(Duration::from_secs(77)),
    };
    let mut sandbox = world.sandbox(ReadOnly);
    sandbox.settings.limits = limits;
    let script =
        "ulimit -c; ulimit -d; ulimit -f; ulimit -n; ulimit -t; head -c 2000000 /dev/zero > $TMPDIR/big || echo over";
    let mut child = world.command(script).sandbox(sandbox).spawn().expect("starts");
    let (_, text) = end(&mut child).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..5], ["0", "8388608", "1024", "64", "77"], "{text}");
    assert!(lines.last().expect("line").ends_with("over"), "{text}");
}

#[tokio::test]
async fn configuration_names_are_held_during_commands() {
    let world = SandboxFixture::new();
    let protected =
        |sandbox: &Enforcement| sandbox.enforced.iter().any(|(restriction, _)| *restriction == Restriction::Protected);
    let mut sandbox = world.sandbox(Workspace);
    if !protected(&sandbox.enforcement()) {
        return eprintln!("no mounts here, skipped");
    }
    std::fs::create_dir(world.path("ws/conf")).expect("folder");
    sandbox.settings.protected = vec![world.path("ws/conf/own.yaml")];
    let start = |script: &str| world.command(script).sandbox(sandbox.clone()).spawn().expect("starts");
    let waits = "until [ -e $WS/sub/go ]; do sleep 0.05; done; echo x > $WS/conf/own.yaml; mv $WS/conf $WS/c; \
                 echo x > $WS/.mcp.json; cat $WS/.mcp.json";
    let (mut first, mut second) = (start(waits), start("echo x > $WS/.mcp.json || echo held"));
    assert!(end(&mut second).await.1.contains("held"));
    // The end of one takes nothing from the other.
    std::fs::write(world.path("ws/sub/go"), "").expect("file");
    let (_, text) = end(&mut first).await;
    assert!(text.trim_end().ends_with("{}"), "{text}");
    for name in ["ws/.mcp.json", "ws/conf/own.yaml", "ws/c"] {
        assert!(!world.path(name).exists(), "{name}");
    }
    // A name cannot be held where its folder is missing too, nor where a link stands.
    for name in ["ws/missing/own.yaml", "ws/link.yaml"] {
        std::os::unix::fs::symlink("elsewhere", world.path("ws/link.yaml")).ok();
        sandbox.settings.protected = vec![world.path(name)];
        let mut child = world.command("true").sandbox(sandbox.clone()).spawn().expect("starts");
        assert!(!protected(&child.enforcement.take().expect("sandboxed")), "{name}");
        sandbox.settings.strict = true;
        let refused = world.command("true").sandbox(sandbox.clone()).spawn().expect_err("strict");
        assert!(matches!(refused, SpawnError::Unenforced { .. }), "{refused}");
        sandbox.settings.strict = false;
    }
}

#[tokio::test]
async fn locked_configurations_do_not_delay_starts() {
    let world = SandboxFixture::new();
    // The project's own file, and what looks like a placeholder of another command.
    let placeholder = format!("{{}}{}\n", " ".repeat(61));
    for text in ["policy: {}\n", &placeholder] {
        let path = world.path("ws/toolwright.yaml");
        std::fs::write(&path, text).expect("file");
        let file = std::fs::File::open(&path).expect("opens");
        file.lock().expect("locked");
        let run = world.run(Workspace, "echo ran");
        let (_, printed, _) = tokio::time::timeout(Duration::from_secs(60), run).await.expect("starts");
        assert!(printed.contains("ran"), "{printed}");
        drop(file);
        std::fs::remove_file(&path).expect("still there");
    }
}

#[tokio::test]
async fn users_files_are_never_placeholders() {
    let world = SandboxFixture::new();
    std::fs::write(world.path("ws/.mcp.json"), "{}\n").expect("file");
    world.run(Workspace, "true").await;
    assert_eq!(std::fs::read_to_string(world.path("ws/.mcp.json")).expect("still there"), "{}\n");
}

#[tokio::test]
async fn a_sandboxed_command_keeps_the_mark_of_nesting() {
    let world = SandboxFixture::new();
    for profile in [Pure, ReadOnly, Workspace, Network] {
        let (_, text, sandbox) = world.run(profile, "ulimit -Hx unlimited && echo off; ulimit -Hx").await;
        if sandbox.mechanism == Mechanism::None {
            return eprintln!("no sandbox here, skipped");
        }
        assert!(text.lines().last().is_some_and(|limit| limit.parse::<u64>().is_ok()), "{profile}: {text}");
        assert!(!text.contains("off"), "{profile}: {text}");
    }
}

#[tokio::test]
async fn multiplying_trees_end_at_their_limit() {
    let world = SandboxFixture::new();
    let mut sandbox = world.sandbox(ReadOnly);
    sandbox.settings.limits.processes = Some(40);
    let seconds = unique_sleep();
    // Each of them starts two more.
    let script = format!("f() {{ sleep {seconds} & sleep 0.02; f & f; }}; f");
    let mut child = world.command(&script).sandbox(sandbox).spawn().expect("starts");
    let (exit, _) = end(&mut child).await;
    assert!(!exit.success());
    assert_eq!(child.exceeded(), Some(ExceededLimit::Processes(40)));
    wait_for_count(&seconds, 0).await;
}

#[tokio::test]
async fn memory_hungry_trees_end_at_their_limit() {
    let world = SandboxFixture::new();
    let mut sandbox = world.sandbox(ReadOnly);
    sandbox.settings.limits.memory = Some(200 << 20);
    let start = |script: &str| world.command(script).sandbox(sandbox.clone()).spawn().expect("starts");
    // One process gets no more from the kernel; several together are ended.
    let mut one = start("head -c 300000000 /dev/zero | tail -c 300000000 | wc -c");
    let (_, text) = end(&mut one).await;
    assert!(!text.contains("300000000"), "{text}");
    let hog = "head -c 100000000 /dev/zero | tail -c 100000000 | sleep 600";
    let mut several = start(&format!("({hog}) & ({hog}) & ({hog}) & wait"));
    end(&mut several).await;
    assert_eq!(several.exceeded(), Some(ExceededLimit::Memory(200 << 20)));
}
