//! What the process of a server inherits, and which servers are not started at all. The environment of a
//! gateway is set by running this test binary again, as the gateway.

use std::collections::BTreeMap;
use std::process::Stdio;

use toolwright_core::catalogue::Provider as _;
use toolwright_core::sandbox::{Mechanism, SandboxProfile};
use toolwright_mcp::client::{DEPTH_VARIABLE, McpTransport};
use toolwright_sandbox::enforce::{Sandbox, SandboxConfig};

use super::Fixture;
use super::stdio::{command, script};

/// Which of the stand-ins is meant.
const STAND_IN: &str = "MCP_TEST_STAND_IN";

/// Runs the test `stand_in` with these variables in its environment; it must succeed.
async fn as_gateway(stand_in: &str, variables: &[(&str, &str)]) {
    let output = tokio::process::Command::new(std::env::current_exe().expect("test binary"))
        .args(["--exact", &format!("environment::{stand_in}"), "--nocapture"])
        .envs(variables.iter().copied())
        .env(STAND_IN, stand_in)
        .stdin(Stdio::null())
        .output()
        .await
        .expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn is_meant(stand_in: &str) -> bool {
    std::env::var(STAND_IN).as_deref() == Ok(stand_in)
}

#[tokio::test]
async fn servers_get_no_keys_but_their_own_env() {
    let keys = [
        ("OPENAI_API_KEY", "model"),
        ("GROQ_API_KEY", "model"),
        ("ANTHROPIC_API_KEY", "model"),
        ("TOOLWRIGHT_TOKEN", "own"),
    ];
    let others = [("MY_PRIVATE", "1"), ("MY_OTHER", "1"), ("ORDINARY", "1"), (DEPTH_VARIABLE, "1")];
    as_gateway("gateway_with_keys", &[&keys[..], &others].concat()).await;
}

#[tokio::test]
async fn gateway_with_keys() {
    if !is_meant("gateway_with_keys") {
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("file");
    let path = file.path().display().to_string();
    let given = [("ANTHROPIC_API_KEY", "given"), ("MY_OTHER", "given"), (DEPTH_VARIABLE, "0")];
    let transport = McpTransport::Stdio {
        command: "sh".into(),
        args: vec!["-c".into(), "env > \"$0\"".into(), path],
        env: given.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        cwd: None,
    };
    let fixture = Fixture::new(transport, |options| options.withheld_env.push("MY_*".into()));
    fixture.provider.list().await.expect_err("it is no server");
    let environment = std::fs::read_to_string(file.path()).expect("written");
    let got: BTreeMap<_, _> = environment.lines().filter_map(|line| line.split_once('=')).collect();
    for (name, expect) in [
        ("OPENAI_API_KEY", None),
        ("GROQ_API_KEY", None),
        ("TOOLWRIGHT_TOKEN", None),
        ("MY_PRIVATE", None),
        ("ANTHROPIC_API_KEY", Some("given")),
        ("MY_OTHER", Some("given")),
        ("ORDINARY", Some("1")),
        (DEPTH_VARIABLE, Some("2")),
    ] {
        assert_eq!(got.get(name).copied(), expect, "{name}");
    }
}

#[tokio::test]
async fn nested_toolwrights_stop_at_the_depth_limit() {
    as_gateway("gateway_that_may_start_servers", &[(DEPTH_VARIABLE, "2")]).await;
    as_gateway("gateway_below_the_depth_limit", &[(DEPTH_VARIABLE, "3")]).await;
}

#[tokio::test]
async fn gateway_that_may_start_servers() {
    if is_meant("gateway_that_may_start_servers") {
        assert_eq!(script("plain").fixture(|_| {}).names().await.len(), 3);
    }
}

#[tokio::test]
async fn gateway_below_the_depth_limit() {
    if !is_meant("gateway_below_the_depth_limit") {
        return;
    }
    let script = script("plain");
    let error = script.fixture(|_| {}).provider.list().await.expect_err("refused").to_string();
    assert!(error.contains("started by another one (depth 3)") && error.contains("--config"), "{error}");
    assert!(script.read().is_empty(), "nothing was started");
}

#[tokio::test]
async fn entries_starting_this_program_are_refused() {
    let own = std::env::current_exe().expect("this binary").display().to_string();
    let fixture = Fixture::new(command(&own, &["serve", "--stdio"]), |_| {});
    let error = fixture.provider.list().await.expect_err("refused").to_string();
    assert!(error.contains("this very Toolwright") && error.contains("--config"), "{error}");

    // With a configuration of its own it is a server like any other.
    let other = script("plain");
    let McpTransport::Stdio { command, mut args, mut env, cwd } = other.transport.clone() else { unreachable!() };
    args.push("serve".to_owned());
    env.insert("TOOLWRIGHT_CONFIG".to_owned(), "other.yaml".to_owned());
    let fixture = Fixture::new(McpTransport::Stdio { command, args, env, cwd }, |_| {});
    assert_eq!(fixture.names().await.len(), 3);
}

#[tokio::test]
async fn a_servers_process_stays_in_its_sandbox() {
    // The peer notes what it reads in a file outside its workspace, or ends.
    let check = async |profile: SandboxProfile, writable: bool, works: bool| {
        let script = super::stdio::script("plain");
        let workspace = tempfile::tempdir().expect("folder");
        let fixture = script.fixture(|options| {
            let write = writable.then(|| script.log_path()).into_iter().collect();
            let settings = SandboxConfig { write, ..SandboxConfig::default() };
            options.sandbox = Some(Sandbox { profile, root: workspace.path().to_owned(), settings });
        });
        let enforcement = fixture.provider.options().sandbox.as_ref().expect("sandbox").enforcement();
        if enforcement.mechanism == Mechanism::None && profile != SandboxProfile::Full {
            return eprintln!("no sandbox here, skipped");
        }
        assert_eq!(fixture.provider.list().await.is_ok(), works, "{profile} {writable}");
        assert_eq!(
            fixture.warnings().contains(&"sandbox_incomplete".to_owned()),
            !enforcement.is_complete(),
            "{profile}"
        );
        fixture.provider.shut_down().await;
    };
    check(SandboxProfile::Full, false, true).await;
    check(SandboxProfile::Network, false, false).await;
    check(SandboxProfile::Network, true, true).await;
    check(SandboxProfile::Workspace, true, true).await;
    check(SandboxProfile::ReadOnly, true, false).await;
}
