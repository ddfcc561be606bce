//! Trees of real processes, looked up in `/proc` by an argument that occurs nowhere else.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use toolwright_core::session::PeerProcess;
use toolwright_sandbox::{
    DEPTH_VARIABLE, Exit, Output, SpawnError, Stdin, SupervisedChild, SupervisedCommand, is_nested_process,
    peer_process,
};

use crate::processes::{pids_with, unique_sleep, wait_for_count};

fn bash(script: &str) -> SupervisedCommand {
    SupervisedCommand::new("bash").args(["-c", script])
}

fn start(script: &str) -> SupervisedChild {
    bash(script).spawn().expect("bash starts")
}

/// A script that starts one `sleep` in a session of its own and one in its own group.
fn tree(seconds: &str) -> String {
    format!("setsid sleep {seconds} & sleep {seconds}")
}

async fn read_all(child: &mut SupervisedChild) -> String {
    let mut text = String::new();
    child.stdout.take().expect("stdout").read_to_string(&mut text).await.expect("UTF-8");
    text
}

#[tokio::test]
async fn the_exit_status_is_the_commands_own() {
    for (script, code, signal) in [
        ("exit 0", Some(0), None),
        ("exit 3", Some(3), None),
        ("exit 255", Some(255), None),
        ("kill -TERM $$", None, Some(15)),
        ("kill -KILL $$", None, Some(9)),
        ("ulimit -c 0; kill -SEGV $$", None, Some(11)),
    ] {
        let mut child = start(script);
        let exit = child.wait().await.expect("waited");
        assert_eq!(exit, Exit { code, signal }, "{script}");
        assert_eq!(child.wait().await.expect("again"), exit);
    }
}

#[tokio::test]
async fn streams_environment_and_directory_reach_the_command() {
    let mut child = bash("read line; echo \"$line $VALUE $PWD\"; echo oops >&2")
        .envs([("VALUE", "v1")])
        .current_dir("/usr")
        .stdin(Stdin::Piped)
        .spawn()
        .expect("starts");
    child.stdin.take().expect("stdin").write_all(b"hello\n").await.expect("written");
    assert_eq!(read_all(&mut child).await, "hello v1 /usr\n");
    let mut errors = String::new();
    child.stderr.take().expect("stderr").read_to_string(&mut errors).await.expect("UTF-8");
    assert_eq!(errors, "oops\n");

    let mut child = bash("echo 1; echo 2 >&2; echo 3; echo 4 >&2").output(Output::Merged).spawn().expect("starts");
    assert_eq!(read_all(&mut child).await, "1\n2\n3\n4\n");
    assert!(child.stderr.is_none());

    let env = SupervisedCommand::new("/usr/bin/env").env_clear().envs([("ONLY", "1"), (DEPTH_VARIABLE, "0")]);
    assert_eq!(read_all(&mut env.spawn().expect("starts")).await, format!("ONLY=1\n{DEPTH_VARIABLE}=1\n"));
}

#[tokio::test]
async fn commands_get_ordinary_signals_and_descriptors() {
    // `trap` lists what bash found ignored when it started.
    let script = "trap; grep SigBlk /proc/self/status; ls /proc/self/fd | wc -l";
    let plain =
        tokio::process::Command::new("bash").args(["-c", script]).stdin(Stdio::null()).output().await.expect("runs");
    assert!(String::from_utf8_lossy(&plain.stdout).contains("SigBlk:\t0000000000000000"));
    assert_eq!(read_all(&mut start(script)).await.as_bytes(), plain.stdout);
}

#[tokio::test]
async fn failed_command_starts_give_the_reason() {
    let dir = tempfile::tempdir().expect("dir");
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "x").expect("file");
    let script = dir.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").expect("file");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
    let spawn = |command: SupervisedCommand| command.spawn().expect_err("does not start");

    let error = spawn(SupervisedCommand::new("no-such-command-anywhere"));
    assert!(matches!(error, SpawnError::NotFound { .. }) && error.to_string().contains("PATH"), "{error}");
    let error = spawn(SupervisedCommand::new(&plain));
    assert!(matches!(error, SpawnError::NotExecutable { .. }) && error.to_string().contains("chmod"), "{error}");
    let error = spawn(SupervisedCommand::new(&script));
    assert!(matches!(error, SpawnError::NoInterpreter { .. }), "{error}");
    let error = spawn(bash("true").current_dir(dir.path().join("gone")));
    assert!(matches!(error, SpawnError::Directory { .. }) && error.to_string().contains("cwd"), "{error}");
    let error = spawn(bash("true").current_dir(&plain));
    assert!(matches!(error, SpawnError::Directory { .. }), "{error}");
}

#[tokio::test]
async fn dropping_the_child_ends_the_whole_tree() {
    let seconds = unique_sleep();
    let child = start(&tree(&seconds));
    wait_for_count(&seconds, 2).await;
    drop(child);
    wait_for_count(&seconds, 0).await;
}

#[tokio::test]
async fn daemons_of_daemons_end_too() {
    let seconds = unique_sleep();
    // Each level leaves its parent, its session and its group before the next one starts.
    let script = format!("(setsid bash -c '(setsid bash -c \"(setsid sleep {seconds} &)\" &)' &); sleep {seconds}");
    let mut child = start(&script);
    wait_for_count(&seconds, 2).await;
    child.kill_tree();
    assert_eq!(child.wait().await.expect("waited").signal, Some(9));
    assert!(pids_with(&seconds).is_empty(), "wait returns after the tree is gone");
}

#[tokio::test]
async fn a_daemon_without_environment_is_recognised() {
    let seconds = unique_sleep();
    let mut child = start(&format!("(setsid env -i /bin/sleep {seconds} &); sleep {seconds}"));
    wait_for_count(&seconds, 2).await;
    for pid in pids_with(&seconds) {
        assert!(is_nested_process(pid), "{pid}");
    }
    assert!(!is_nested_process(std::process::id()), "unless these tests are run by Toolwright");
    child.kill_tree();
    // A process that is gone cannot be told from one that hides.
    assert!(is_nested_process(u32::MAX));
}

#[tokio::test]
async fn connection_peers_are_identified() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let local = listener.local_addr().expect("address");
    let _own = tokio::net::TcpStream::connect(local).await.expect("connected");
    let (_accepted, peer) = listener.accept().await.expect("accepted");
    assert_eq!(peer_process(peer, local), PeerProcess::Owners);
    // A command of a model's shell, which has cleared its environment.
    let script = format!("exec env -i bash -c 'exec 3<>/dev/tcp/127.0.0.1/{}; sleep 600'", local.port());
    let child = start(&script);
    let (_accepted, peer) = listener.accept().await.expect("accepted");
    assert_eq!(peer_process(peer, local), PeerProcess::Nested);
    drop(child);
    assert_eq!(peer_process(([127, 0, 0, 1], 1).into(), local), PeerProcess::Unknown);
}

/// Connects to the port that the variable names, in the way that it names, and holds the connection.
const HIDES: &str = "TOOLWRIGHT_TEST_HIDES";

#[test]
fn hide_a_connection_when_asked() {
    let Ok(how) = std::env::var(HIDES) else { return };
    let (how, port) = how.split_once(' ').expect("way and port");
    let port: u16 = port.parse().expect("port");
    let connect = move || std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let forever = Duration::from_secs(600);
    if how == "thread" {
        std::thread::spawn(move || {
            #[expect(deprecated, reason = "it takes nothing from another thread here")]
            rustix::thread::unshare(rustix::thread::UnshareFlags::FILES).expect("a table of its own");
            let _held = [connect(), connect()];
            std::thread::sleep(forever);
        });
    } else {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let (here, there) = std::os::unix::net::UnixStream::pair().expect("pair");
        let sent = connect();
        let descriptors = [std::os::fd::AsFd::as_fd(&sent)];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&here, &[std::io::IoSlice::new(b"x")], &mut control, SendFlags::empty()).expect("sent");
        drop(sent);
        let _connected = connect();
        std::thread::sleep(forever);
        drop((here, there));
    }
    std::thread::sleep(forever);
}

#[tokio::test]
async fn a_hidden_socket_of_a_command_is_nested() {
    for how in ["thread", "flight"] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let local = listener.local_addr().expect("address");
        let own = std::env::current_exe().expect("test binary");
        let child = SupervisedCommand::new(own)
            .args(["--exact", "process::hide_a_connection_when_asked"])
            .env_clear()
            .envs([(HIDES, format!("{how} {}", local.port()))])
            .spawn()
            .expect("starts");
        let (_accepted, peer) = listener.accept().await.expect("accepted");
        // The command tells when the connection is where no look at its main thread finds it.
        let (_hidden, _) = listener.accept().await.expect("accepted");
        assert_eq!(peer_process(peer, local), PeerProcess::Nested, "{how}");
        drop(child);
    }
}

/// What a command does to be rid of those that watch it: both are stopped, so that neither can act for the other.
const ESCAPE: &str = "W=$PPID; G=$(awk '/^PPid/{print $2}' /proc/$W/status); \
                      setsid env -i /bin/bash -c \"kill -STOP $G $W; kill -9 $G $W; exec /bin/sleep SECONDS\" & wait";

#[tokio::test]
async fn a_command_that_kills_its_watchers_stays_nested() {
    let seconds = unique_sleep();
    let mut child = start(&ESCAPE.replace("SECONDS", &seconds));
    assert_eq!(child.wait().await.expect("waited").signal, Some(9), "its guardian is killed");
    wait_for_count(&seconds, 1).await;
    let pid = pids_with(&seconds)[0];
    let nested = is_nested_process(pid);
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    assert!(nested, "{limits}");
}

#[tokio::test]
async fn background_processes_end_with_their_command() {
    let seconds = unique_sleep();
    let mut child = start(&format!("setsid sleep {seconds} & echo started; exit 4"));
    // The background process holds the pipe: without its end this would wait for minutes.
    let text = tokio::time::timeout(Duration::from_secs(10), read_all(&mut child)).await.expect("end of file");
    assert_eq!(text, "started\n");
    assert_eq!(child.wait().await.expect("waited").code, Some(4));
    assert!(pids_with(&seconds).is_empty());
}

#[tokio::test]
async fn terminate_asks_first_and_kills_after_the_grace() {
    let mut polite = start("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done");
    let mut stdout = polite.stdout.take().expect("stdout");
    let mut ready = [0; 6];
    stdout.read_exact(&mut ready).await.expect("ready");
    assert_eq!(polite.terminate(Duration::from_secs(30)).await.expect("ended").code, Some(7));
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).await.expect("UTF-8");
    assert_eq!(rest, "bye\n");

    let seconds = unique_sleep();
    let mut ignoring_term = start(&format!("trap '' TERM; echo ready; {}", tree(&seconds)));
    wait_for_count(&seconds, 2).await;
    assert_eq!(ignoring_term.terminate(Duration::from_millis(100)).await.expect("ended").signal, Some(9));
    assert!(pids_with(&seconds).is_empty());
}

#[tokio::test]
async fn closing_standard_input_is_seen_by_the_command() {
    let mut child = SupervisedCommand::new("cat").stdin(Stdin::Piped).spawn().expect("starts");
    drop(child.stdin.take());
    assert_eq!(child.wait().await.expect("waited").code, Some(0));
}

/// In `kill_dash_nine_of_the_gateway_leaves_nothing`, this very test is the gateway that gets killed.
const GATEWAY: &str = "TOOLWRIGHT_TEST_GATEWAY";

#[tokio::test]
async fn stand_in_for_a_gateway() {
    let Ok(seconds) = std::env::var(GATEWAY) else { return };
    toolwright_sandbox::harden_self();
    let _child = start(&tree(&seconds));
    let _other = start(&format!("sleep {seconds}"));
    tokio::time::sleep(Duration::from_secs(600)).await;
}

#[tokio::test]
async fn kill_dash_nine_of_the_gateway_leaves_nothing() {
    let seconds = unique_sleep();
    let mut gateway = tokio::process::Command::new(std::env::current_exe().expect("test binary"))
        .args(["--exact", "process::stand_in_for_a_gateway"])
        .env(GATEWAY, &seconds)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    wait_for_count(&seconds, 3).await;
    gateway.kill().await.expect("killed with SIGKILL");
    wait_for_count(&seconds, 0).await;
}

/// What a command does to those that watch it. The parent of the command is the watcher, whose parent is the guardian.
const ATTACKS: [&str; 4] = ["kill -STOP $W", "kill -STOP $G", "kill -9 $W", "kill -9 $G"];

fn attacked(attack: &str, seconds: &str) -> String {
    format!(
        "W=$PPID; G=$(awk '/^PPid/{{print $2}}' /proc/$W/status); trap '' TERM; setsid sleep {seconds} & {attack}; sleep {seconds}"
    )
}

#[tokio::test]
async fn stand_in_for_an_attacked_gateway() {
    let Ok(seconds) = std::env::var(ATTACKED) else { return };
    let _children = ATTACKS.map(|attack| start(&attacked(attack, &seconds)));
    tokio::time::sleep(Duration::from_secs(600)).await;
}

const ATTACKED: &str = "TOOLWRIGHT_TEST_ATTACKED";

#[tokio::test]
async fn attacked_watchers_leave_nothing_behind() {
    let seconds = unique_sleep();
    let mut gateway = tokio::process::Command::new(std::env::current_exe().expect("test binary"))
        .args(["--exact", "process::stand_in_for_an_attacked_gateway"])
        .env(ATTACKED, &seconds)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    // Killing one of the two ends the tree at once; stopping one changes nothing.
    let end = Instant::now() + Duration::from_secs(20);
    while pids_with(&seconds).len() != 4 {
        assert!(Instant::now() < end, "{:?}", pids_with(&seconds));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    gateway.kill().await.expect("killed with SIGKILL");
    wait_for_count(&seconds, 0).await;
}

#[tokio::test]
async fn a_command_that_stops_its_watchers_still_ends() {
    for attack in ["kill -STOP $W", "kill -STOP $G"] {
        let seconds = unique_sleep();
        let mut child = start(&format!("W=$PPID; G=$(awk '/^PPid/{{print $2}}' /proc/$W/status); {attack}; exit 7"));
        let ended = tokio::time::timeout(Duration::from_secs(20), child.wait()).await.expect("ends");
        assert_eq!(ended.expect("waited").code, Some(7), "{attack}");
        let mut child = start(&attacked(attack, &seconds));
        wait_for_count(&seconds, 2).await;
        child.kill_tree();
        wait_for_count(&seconds, 0).await;
    }
}

#[tokio::test]
async fn a_command_cannot_read_its_watcher() {
    // Root may read everything: the gateway has to be somebody else.
    let own = std::env::current_exe().expect("test binary");
    let folder = tempfile::tempdir().expect("folder");
    let mut gateway = if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("proc")) == 0 {
        let copy = folder.path().join("gateway");
        std::fs::copy(own, &copy).expect("copied");
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
        let mut command = tokio::process::Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(copy);
        command
    } else {
        tokio::process::Command::new(own)
    };
    gateway.args(["--exact", "process::gateway_with_a_secret", "--nocapture"]).env(GATEWAY, "secret").current_dir("/");
    for _ in 0..50 {
        let output = gateway.output().await.expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        // A child that another test forked while the copy was written still has it open for writing,
        // until it execs.
        if !said.contains("Text file busy") {
            assert!(output.status.success(), "{said}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the copy stays busy");
}

#[tokio::test]
async fn gateway_with_a_secret() {
    if std::env::var(GATEWAY).as_deref() != Ok("secret") {
        return;
    }
    let seconds = unique_sleep();
    let script = format!("setsid sleep {seconds} & cat /proc/$PPID/environ || echo unreadable; cat /proc/$$/environ");
    let mut child = bash(&script).env_remove(GATEWAY).spawn().expect("starts");
    let text = read_all(&mut child).await;
    assert!(text.starts_with("unreadable") && !text.contains(GATEWAY), "{text}");
    assert!(text.contains("PATH="), "a command is as readable as any: {text}");
    assert_eq!(child.wait().await.expect("waited").code, Some(0));
    assert!(pids_with(&seconds).is_empty(), "the watcher still finds its children");
}

#[tokio::test]
async fn many_spawns_leave_no_zombie_and_no_descriptor() {
    // In a process of its own, where no other test opens descriptors or starts children.
    let status = tokio::process::Command::new(std::env::current_exe().expect("test binary"))
        .args(["--exact", "process::spawn_a_hundred", "--nocapture"])
        .env(GATEWAY, "many")
        .status()
        .await
        .expect("runs");
    assert!(status.success());
}

#[tokio::test]
async fn spawn_a_hundred() {
    if std::env::var(GATEWAY).as_deref() != Ok("many") {
        return;
    }
    start("true").wait().await.expect("opens what the runtime keeps");
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("fds").count();
    let before = descriptors();
    for n in 0..100 {
        let mut child = start("true");
        if n % 2 == 0 {
            assert_eq!(child.wait().await.expect("waited").code, Some(0));
        }
    }
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let threads = std::fs::read_dir("/proc/self/task").expect("tasks").flatten();
        let children: usize = threads
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
            .map(|list| list.split_whitespace().count())
            .sum();
        if children == 0 && descriptors() <= before {
            return;
        }
        assert!(Instant::now() < end, "{children} children, {} descriptors instead of {before}", descriptors());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
