//! Sandbox profiles with real processes: what each may do to files, sockets and other processes.
//!
//! What is expected follows from the profile. Where this machine cannot build a wall, which the library
//! has to say, its rows are skipped and the test says so.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use tokio::io::AsyncReadExt as _;
use toolwright_core::sandbox::SandboxProfile::{self, Full, Network, Pure, ReadOnly, Workspace};
use toolwright_core::sandbox::{Enforcement, Restriction};
use toolwright_sandbox::enforce::{Sandbox, SandboxConfig, support};
use toolwright_sandbox::{Exit, Output, SpawnError, SupervisedChild, SupervisedCommand};

use crate::processes::{pids_with, unique_sleep, wait_for_count};

/// A workspace, a home with a secret beside it, services, and a process that nobody in a sandbox started.
pub(crate) struct SandboxFixture {
    folder: tempfile::TempDir,
    tcp: TcpListener,
    udp: UdpSocket,
    _unix: UnixListener,
    bystander: SupervisedChild,
    shared: tempfile::NamedTempFile,
}

/// Names the attempt that [`attempt_of_a_program`] makes.
const ATTEMPT: &str = "TOOLWRIGHT_TEST_ATTEMPT";

impl SandboxFixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        for name in ["ws/.git/hooks", "ws/.github/workflows", "ws/sub", "home"] {
            std::fs::create_dir_all(folder.path().join(name)).expect("folders");
        }
        for (name, text) in [
            ("ws/file", "in"),
            ("ws/toolwright.yaml", "policy"),
            ("ws/.git/hooks/pre-commit", "hook"),
            ("home/secret", "TOP"),
            ("home/victim", "as it was"),
        ] {
            std::fs::write(folder.path().join(name), text).expect("file");
        }
        let unix = UnixListener::bind(folder.path().join("service.sock")).expect("socket");
        Self {
            tcp: TcpListener::bind("127.0.0.1:0").expect("listens"),
            udp: UdpSocket::bind("127.0.0.1:0").expect("bound"),
            _unix: unix,
            bystander: SupervisedCommand::new("sleep").args(["600"]).envs([("SECRET", "TOP")]).spawn().expect("starts"),
            shared: tempfile::NamedTempFile::new_in("/dev/shm").expect("shared memory"),
            folder,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn sandbox(&self, profile: SandboxProfile) -> Sandbox {
        let exe = std::env::current_exe().expect("test binary");
        let read = vec![exe.parent().expect("folder").to_owned()];
        let settings = SandboxConfig { read, ..SandboxConfig::default() };
        Sandbox { profile, root: self.path("ws"), settings }
    }

    pub(crate) fn command(&self, script: &str) -> SupervisedCommand {
        let port = |address: std::io::Result<std::net::SocketAddr>| address.expect("address").port().to_string();
        SupervisedCommand::new("bash")
            .args(["-c", script])
            .current_dir(self.path("ws"))
            .output(Output::Merged)
            .envs([("WS", self.path("ws")), ("HOME", self.path("home")), ("SOCKET", self.path("service.sock"))])
            .envs([("SHM", self.shared.path())])
            .envs([("TCP", port(self.tcp.local_addr())), ("UDP", port(self.udp.local_addr()))])
            .envs([("PID", self.command_pid()), ("TEST", std::env::current_exe().expect("exe").display().to_string())])
    }

    /// The command itself, not its watcher.
    fn command_pid(&self) -> String {
        let child = |pid: String| {
            let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("proc");
            list.trim().to_owned()
        };
        child(child(self.bystander.pid().expect("runs").to_string()))
    }

    pub(crate) async fn run(&self, profile: SandboxProfile, script: &str) -> (Exit, String, Enforcement) {
        let command = self.command(script).sandbox(self.sandbox(profile));
        let mut child = command.spawn().expect("starts");
        let enforcement = child.enforcement.take();
        let (exit, text) = end(&mut child).await;
        (exit, text, enforcement.unwrap_or_else(|| self.sandbox(Full).enforcement()))
    }
}

pub(crate) async fn end(child: &mut SupervisedChild) -> (Exit, String) {
    let mut text = Vec::new();
    child.stdout.take().expect("stdout").read_to_end(&mut text).await.expect("read");
    (child.wait().await.expect("waited"), String::from_utf8_lossy(&text).into_owned())
}

/// What stands outside the workspace, and what decides what runs in it.
fn guarded(world: &SandboxFixture) -> Vec<String> {
    let read = |name: &str| std::fs::read_to_string(world.path(name)).unwrap_or_else(|_| "gone".into());
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(world.path("home/victim")).expect("the victim is there").permissions(),
    );
    let mut names: Vec<String> = std::fs::read_dir(world.path("home"))
        .expect("home")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    vec![
        names.join(" "),
        format!("{mode:o}"),
        read("home/victim"),
        read("ws/toolwright.yaml"),
        read("ws/.git/hooks/pre-commit"),
    ]
}

/// Attempts to do something; `0` as the exit code means that it was done.
struct Attempt {
    what: &'static str,
    script: &'static str,
    restriction: Restriction,
    /// Profiles that allow it.
    allowed: &'static [SandboxProfile],
}

const WRITERS: &[SandboxProfile] = &[Workspace, Network, Full];
const READERS: &[SandboxProfile] = &[ReadOnly, Workspace, Network, Full];
const NETWORKED: &[SandboxProfile] = &[Network, Full];
const UNBOUND: &[SandboxProfile] = &[Full];
const ALL: &[SandboxProfile] = &SandboxProfile::ALL;

const ATTEMPTS: &[Attempt] = &[
    Attempt {
        what: "computes",
        script: "echo $((6 * 7)) | grep -q 42",
        restriction: Restriction::Writes,
        allowed: ALL,
    },
    Attempt {
        what: "writes to its temporary folder",
        script: "echo x > $TMPDIR/a && grep -q x $TMPDIR/a",
        restriction: Restriction::Writes,
        allowed: ALL,
    },
    Attempt {
        what: "writes to /dev/null and pipes",
        script: "echo x > /dev/null; cat <(echo x)",
        restriction: Restriction::Writes,
        allowed: ALL,
    },
    Attempt { what: "reads the workspace", script: "cat $WS/file", restriction: Restriction::Reads, allowed: READERS },
    Attempt { what: "lists the home", script: "ls $HOME/", restriction: Restriction::Reads, allowed: READERS },
    Attempt {
        what: "reads a secret at home",
        script: "cat $HOME/secret",
        restriction: Restriction::Reads,
        allowed: READERS,
    },
    Attempt {
        what: "reads it through a link",
        script: "ln -s $HOME/secret $TMPDIR/l; cat $TMPDIR/l",
        restriction: Restriction::Reads,
        allowed: READERS,
    },
    Attempt {
        what: "reads it through /proc",
        script: "cat /proc/self/root$HOME/secret",
        restriction: Restriction::Reads,
        allowed: READERS,
    },
    Attempt {
        what: "writes in the workspace",
        script: "echo x > $WS/sub/new && mkdir $WS/d && mv $WS/sub/new $WS/d/ && chmod +x $WS/d/new && rm -r $WS/d",
        restriction: Restriction::Writes,
        allowed: WRITERS,
    },
    Attempt {
        what: "writes at home",
        script: "echo x > $HOME/new && rm $HOME/new",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "changes a file at home",
        script: "echo as it was >> $HOME/victim && printf 'as it was' > $HOME/victim",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "truncates without writing",
        script: "truncate -s 0 $HOME/victim && printf 'as it was' > $HOME/victim",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "deletes at home",
        script: "rm $HOME/victim && printf 'as it was' > $HOME/victim",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "renames at home",
        script: "mv $HOME/victim $HOME/v && mv $HOME/v $HOME/victim",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "takes a file out of home",
        script: "mv $HOME/victim $WS/v && mv $WS/v $HOME/victim",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "writes through a symbolic link",
        script: "ln -sf $HOME/victim $WS/l; printf 'as it was' > $WS/l",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "writes through a linked folder",
        script: "ln -sfn $HOME $WS/f; echo x > $WS/f/new && rm $WS/f/new",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "writes through a hard link",
        script: "ln $HOME/victim $WS/h && printf 'as it was' > $WS/h; s=$?; rm -f $WS/h; exit $s",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "writes through ..",
        script: "echo x > $WS/../home/new && rm $HOME/new",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "writes from the background",
        script: "(setsid bash -c 'echo x > $HOME/new' && rm $HOME/new) & wait $!",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "changes shared memory of others",
        script: "[ -e $SHM ] && echo x > $SHM",
        restriction: Restriction::Writes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "changes permissions at home",
        script: "chmod 600 $HOME/victim && chmod 644 $HOME/victim",
        restriction: Restriction::Metadata,
        allowed: UNBOUND,
    },
    Attempt {
        what: "changes times at home",
        script: "touch -d 2001-01-01 $HOME/victim",
        restriction: Restriction::Metadata,
        allowed: UNBOUND,
    },
    Attempt {
        what: "changes a hook",
        script: "printf hook > $WS/.git/hooks/pre-commit",
        restriction: Restriction::Protected,
        allowed: UNBOUND,
    },
    Attempt {
        what: "replaces the configuration",
        script: "printf policy > $WS/t && mv $WS/t $WS/toolwright.yaml",
        restriction: Restriction::Protected,
        allowed: UNBOUND,
    },
    Attempt {
        what: "makes configuration that is not there",
        script: "printf x > $WS/.mcp.json && rm $WS/.mcp.json",
        restriction: Restriction::Protected,
        allowed: UNBOUND,
    },
    Attempt {
        what: "moves the folder of a protected one away",
        script: "mv $WS/.github $WS/g && mv $WS/g $WS/.github",
        restriction: Restriction::Protected,
        allowed: UNBOUND,
    },
    Attempt {
        what: "puts another .git in place",
        script: "mv $WS/.git $WS/g && mv $WS/g $WS/.git",
        restriction: Restriction::Protected,
        allowed: UNBOUND,
    },
    Attempt {
        what: "connects over TCP",
        script: "exec 3<>/dev/tcp/127.0.0.1/$TCP",
        restriction: Restriction::Network,
        allowed: NETWORKED,
    },
    Attempt {
        what: "sends over UDP",
        script: "echo x > /dev/udp/127.0.0.1/$UDP",
        restriction: Restriction::Network,
        allowed: NETWORKED,
    },
    Attempt {
        what: "listens",
        script: "TOOLWRIGHT_TEST_ATTEMPT=listen $TEST --exact sandbox::attempt_of_a_program",
        restriction: Restriction::Network,
        allowed: NETWORKED,
    },
    Attempt {
        what: "connects to a service",
        script: "TOOLWRIGHT_TEST_ATTEMPT=service $TEST --exact sandbox::attempt_of_a_program",
        restriction: Restriction::Services,
        allowed: NETWORKED,
    },
    Attempt {
        what: "talks to its own child",
        script: "TOOLWRIGHT_TEST_ATTEMPT=pair $TEST --exact sandbox::attempt_of_a_program",
        restriction: Restriction::Network,
        allowed: ALL,
    },
    Attempt {
        what: "signals a process outside",
        script: "kill -CONT $PID",
        restriction: Restriction::Processes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "reads the environment of a process outside",
        script: "grep -q SECRET=TOP /proc/$PID/environ",
        restriction: Restriction::Processes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "reads the memory of a process outside",
        script: "head -c 0 /proc/$PID/mem",
        restriction: Restriction::Processes,
        allowed: UNBOUND,
    },
    Attempt {
        what: "signals its own children",
        script: "sleep 60 & kill $!",
        restriction: Restriction::Processes,
        allowed: ALL,
    },
    Attempt {
        what: "makes a namespace",
        script: "unshare --mount true",
        restriction: Restriction::Kernel,
        allowed: UNBOUND,
    },
    Attempt {
        what: "makes a user namespace",
        script: "unshare --user --map-root-user true",
        restriction: Restriction::Kernel,
        allowed: UNBOUND,
    },
];

#[expect(clippy::print_stderr, reason = "a row that is skipped says so")]
async fn check(world: &SandboxFixture, profile: SandboxProfile, attempt: &Attempt) {
    let before = guarded(world);
    let (exit, text, enforcement) = world.run(profile, attempt.script).await;
    let expected = attempt.allowed.contains(&profile);
    if !expected && enforcement.not_enforced.iter().any(|(restriction, _)| *restriction == attempt.restriction) {
        eprintln!("{profile} {}: not enforced here, skipped", attempt.what);
        return;
    }
    assert_eq!(exit.success(), expected, "{profile} {}: {exit} {text}", attempt.what);
    assert_eq!(guarded(world), before, "{profile} {}", attempt.what);
}

async fn check_all(profile: SandboxProfile) {
    let world = SandboxFixture::new();
    for attempt in ATTEMPTS {
        check(&world, profile, attempt).await;
    }
}

#[tokio::test]
async fn pure_reaches_nothing_but_its_temporary_folder() {
    check_all(Pure).await;
}

#[tokio::test]
async fn read_only_reads() {
    check_all(ReadOnly).await;
}

#[tokio::test]
async fn workspace_writes_in_the_workspace() {
    check_all(Workspace).await;
}

#[tokio::test]
async fn the_network_profile_also_connects() {
    check_all(Network).await;
}

#[tokio::test]
async fn the_full_profile_is_unrestricted() {
    let world = SandboxFixture::new();
    for attempt in ATTEMPTS
        .iter()
        .filter(|attempt| !attempt.script.contains("TMPDIR") && attempt.restriction != Restriction::Kernel)
    {
        check(&world, Full, attempt).await;
    }
}

/// Runs as a program in the sandboxes above: what a shell has no words for.
#[test]
fn attempt_of_a_program() {
    let Ok(attempt) = std::env::var(ATTEMPT) else { return };
    match attempt.as_str() {
        "listen" => drop(TcpListener::bind("127.0.0.1:0").expect("listens")),
        "service" => drop(UnixStream::connect(std::env::var_os("SOCKET").expect("path")).expect("connects")),
        "pair" => drop(UnixStream::pair().expect("a pair")),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn the_watcher_keeps_its_power() {
    let world = SandboxFixture::new();
    for profile in SandboxProfile::ALL {
        let seconds = unique_sleep();
        let script = format!("setsid sleep {seconds} & sleep {seconds}");
        let mut child = world.command(&script).sandbox(world.sandbox(profile)).spawn().expect("starts");
        wait_for_count(&seconds, 2).await;
        child.kill_tree();
        assert_eq!(child.wait().await.expect("waited").signal, Some(9), "{profile}");
        assert!(pids_with(&seconds).is_empty(), "{profile}");

        let (exit, ..) = world.run(profile, "exit 7").await;
        assert_eq!(exit.code, Some(7), "{profile}");
    }
}

#[tokio::test]
async fn strict_starts_nothing_that_is_not_wholly_enforced() {
    let world = SandboxFixture::new();
    for profile in SandboxProfile::ALL {
        let mut sandbox = world.sandbox(profile);
        sandbox.settings.strict = true;
        let complete = sandbox.enforcement().is_complete();
        match world.command("exit 0").sandbox(sandbox).spawn() {
            Ok(mut child) => assert!(complete && end(&mut child).await.0.success(), "{profile}"),
            Err(error) => {
                assert!(!complete && matches!(error, SpawnError::Unenforced { .. }), "{profile} {error}");
                assert!(error.to_string().contains("sandbox.strict") && error.to_string().contains("not enforced"));
            }
        }
    }
}

#[tokio::test]
async fn failed_sandbox_starts_name_the_reason() {
    let world = SandboxFixture::new();
    let script = world.path("ws/script");
    std::fs::write(&script, "#!/bin/sh\n").expect("file");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
    let missing = SupervisedCommand::new("no-such-command").sandbox(world.sandbox(ReadOnly)).spawn();
    assert!(matches!(missing, Err(SpawnError::NotFound { .. })), "{missing:?}");
    let gone = world.command("true").current_dir(world.path("gone")).sandbox(world.sandbox(Workspace)).spawn();
    assert!(matches!(gone, Err(SpawnError::Directory { .. })), "{gone:?}");
    // The program itself may run wherever it is; its interpreter must be one that the profile knows.
    let mut child = SupervisedCommand::new(&script).sandbox(world.sandbox(Pure)).spawn().expect("starts");
    assert!(child.wait().await.expect("waited").success());
    if support().landlock > 0 {
        std::fs::copy("/bin/sh", world.path("ws/sh")).expect("copied");
        std::fs::write(&script, format!("#!{}\n", world.path("ws/sh").display())).expect("file");
        let denied = SupervisedCommand::new(&script).sandbox(world.sandbox(Pure)).spawn();
        assert!(matches!(denied, Err(SpawnError::NotGranted { .. })), "{denied:?}");
    }
}
