//! The ledger of a program that is killed, and of one whose disk is full.
#![cfg(unix)]

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};
use toolwright::core::store::{LedgerEntry, LedgerStore as _, RUNNING, UNKNOWN_OUTCOME};
use toolwright::runtime::SqliteStore;

use crate::command_line::cli::{ok, program, stderr};
use crate::serving::gateway::{Gateway, get_response, posted};
use crate::support::{Fixture, until};

/// Arguments of a length of their own, by which the row of a call is known.
fn arguments(n: usize) -> Value {
    json!({"command": format!("echo {n} >> effects; sleep 0.02{}", " ".repeat(n))})
}

fn effects(fixture: &Fixture) -> Vec<usize> {
    let text = std::fs::read_to_string(fixture.path("project/effects")).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

async fn rows(store: &SqliteStore) -> Vec<LedgerEntry> {
    let mut rows = Vec::new();
    for of in store.traces(100).await.expect("traces") {
        rows.extend(store.operations(&of, 10_000).await.expect("operations"));
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_program_leaves_every_effect_recorded() {
    const CALLS: usize = 120;
    let fixture = Fixture::new();
    let mut seen = 0;
    // Killed early and late, amid its calls.
    for (round, more) in [1, 7, 20, 43, 70].into_iter().enumerate() {
        let mut gateway = Gateway::start(&fixture, &["--stdio"]);
        gateway.handshake();
        if round == 0 {
            gateway.ask("tools/call", json!({"name": "shell__bash", "arguments": arguments(0)}));
        }
        for n in 1..CALLS {
            gateway.send("tools/call", json!({"name": "shell__bash", "arguments": arguments(round * CALLS + n)}));
        }
        until("there are effects", || effects(&fixture).len() >= seen + more);
        // SIGKILL, and what it started goes with it.
        drop(gateway);
        seen = effects(&fixture).len();
    }
    let store = SqliteStore::open(&fixture.load().state_dir).expect("the store");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let rows = loop {
        let rows = rows(&store).await;
        if rows.iter().all(|row| row.status != RUNNING) {
            break rows;
        }
        assert!(std::time::Instant::now() < end, "what a dead process began is told as running");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    let length = |n: usize| arguments(n).to_string().chars().count() as u64;
    let known: BTreeSet<u64> = rows.iter().map(|row| row.characters_in).collect();
    // The tool's defaults are added to what was written.
    let added = known.first().expect("rows") - length(0);
    let missing: Vec<usize> =
        effects(&fixture).into_iter().filter(|n| !known.contains(&(length(*n) + added))).collect();
    assert!(missing.is_empty(), "{} of {} effects have no row: {missing:?}", missing.len(), effects(&fixture).len());
    let unknown = rows.iter().filter(|row| row.status == UNKNOWN_OUTCOME).count();
    assert!(unknown > 0, "it was killed amid calls");
    let totals = store.totals().await.expect("totals");
    assert_eq!(totals.by_status["tool"][UNKNOWN_OUTCOME], unknown as u64);
    let last = store.traces(1).await.expect("traces").remove(0);
    let reported = ok(&fixture, &["trace", last.session.as_str()]);
    assert!(reported.contains("unknown outcome"), "{reported}");
}

/// The program where no file may grow beyond some KiB, as on a full disk.
fn on_a_full_disk(fixture: &Fixture, arguments: &[&str]) -> Command {
    let program = program(fixture);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\""]).arg(program.get_program()).args(arguments);
    command.env_clear().current_dir(fixture.project());
    for (name, value) in program.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

#[test]
fn a_full_disk_warns_or_refuses_as_configured() {
    for (config, runs) in [("{}", true), ("defaults: {ledger: required}", false)] {
        let fixture = Fixture::with(config);
        let call = ["call", "shell__bash", r#"{"command": "echo x > effect"}"#];
        ok(&fixture, &["call", "shell__bash", r#"{"command": "true"}"#]);
        let output = on_a_full_disk(&fixture, &call).output().expect("the program runs");
        let reported = stderr(&output);
        assert!(reported.contains("the ledger cannot be written"), "{config}: {reported}");
        assert_eq!(fixture.path("project/effect").exists(), runs, "{config}: {reported}");
        assert_eq!(output.status.success(), runs, "{config}: {reported}");
        assert!(runs || reported.contains("defaults.ledger: required"), "{reported}");
    }
}

#[test]
fn a_full_disk_makes_the_gateway_unready() {
    for (config, runs) in [("{}", true), ("defaults: {ledger: required}", false)] {
        let fixture = Fixture::with(config);
        // What a first start writes is there.
        drop(Gateway::start(&fixture, &["--http", "127.0.0.1:0"]));
        let serve = ["serve", "--http", "127.0.0.1:0", "--policy", "client"];
        let gateway = Gateway::of(on_a_full_disk(&fixture, &serve));
        let address = gateway.address();
        let call = json!({"tool": "shell__bash", "arguments": {"command": "echo x > effect"}});
        let called = posted(&fixture, &address, &call);
        assert_eq!((called["ok"] == true, fixture.path("project/effect").exists()), (runs, runs), "{config}: {called}");
        if !runs {
            assert!(called.to_string().contains("defaults.ledger: required"), "{called}");
        }
        until("it says so", || get_response(&fixture, &address, "/ready").contains("\"state\":\"ledger_failed\""));
        assert!(get_response(&fixture, &address, "/ready").starts_with("HTTP/1.1 503"));
        let counted = get_response(&fixture, &address, "/metrics");
        let failures = counted.lines().find_map(|line| line.strip_prefix("toolwright_ledger_failures_total "));
        assert!(failures.is_some_and(|count| count != "0"), "{config}: {counted}");
        gateway.says("the ledger cannot be written");
    }
}

#[test]
fn a_damaged_database_stops_commands_with_remedy() {
    let fixture = Fixture::new();
    ok(&fixture, &["call", "shell__bash", r#"{"command": "true"}"#]);
    let file = fixture.load().state_dir.join("toolwright.sqlite3");
    let length = std::fs::metadata(&file).expect("file").len();
    let zeros = vec![0; usize::try_from(length).expect("small")];
    std::fs::write(&file, &zeros).expect("write");
    for command in [&["trace"][..], &["call", "fs__list", "{}"], &["jobs", "ls"], &["serve", "--stdio"]] {
        let output = program(&fixture).args(command).output().expect("the program runs");
        let reported = stderr(&output);
        assert!(!output.status.success(), "{command:?}: {reported}");
        assert!(
            reported.contains("toolwright.sqlite3") && reported.contains("move it away"),
            "{command:?}: {reported}"
        );
        assert_eq!(std::fs::read(&file).expect("read"), zeros, "{command:?}");
    }
}
