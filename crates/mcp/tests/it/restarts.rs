//! Servers on pipes that die, fall silent, close their input or stop listing: they are replaced and started again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{Health, Provider as _};
use toolwright_core::error::ErrorKind;

use super::stdio::{Script, command, script};
use super::{Fixture, eventually};
use crate::processes::pids_with;

#[tokio::test]
async fn dead_servers_fail_calls_and_restart() {
    for (tool, how) in [("die", "exit code 3"), ("half", "exit code 0")] {
        let script = script("plain");
        let fixture = script.fixture(|_| {});
        fixture.provider.warm_up().await.expect("connected");
        let (hanging, dying) = tokio::join!(fixture.call("hang", json!({})), async {
            eventually("a call hangs", || script.methods().contains(&"tools/call".to_owned())).await;
            fixture.call(tool, json!({})).await
        });
        for error in [hanging.expect_err("hang"), dying.expect_err(tool)] {
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{error}");
            assert!(error.message().contains(how), "{error}");
            assert!(tool != "die" || error.message().contains("about to die"), "{error}");
        }
        // Lists wait for the restart, calls do not; no call was sent twice.
        assert_eq!(fixture.names().await.len(), 3);
        fixture.call("Echo.Args", json!({})).await.expect("after the restart");
        let calls = script.methods().iter().filter(|method| *method == "tools/call").count();
        assert_eq!(calls, 3);
    }
}

#[tokio::test]
async fn errors_of_died_servers_are_whole_sentences() {
    for (tool, said) in [("die", true), ("half", false)] {
        let fixture = script("plain").fixture(|_| {});
        let error = fixture.call(tool, json!({})).await.expect_err(tool);
        assert_eq!(error.message().contains("its last words on standard error:\nabout to die"), said, "{error}");
        assert_eq!(error.message().contains("last words"), said, "{error}");
        // A model gets one line, which must not end in the air.
        let reported = error.for_model();
        assert!(
            reported.contains("the server process ended (exit code") && !reported.contains("last words"),
            "{reported}"
        );
    }
}

#[tokio::test]
async fn a_second_death_pauses_and_calls_fail_fast() {
    let script = script("plain");
    let fixture = script.fixture(|_| {});
    let notified = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&notified);
    fixture.provider.on_change(Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    fixture.provider.warm_up().await.expect("connected");
    fixture.call("die", json!({})).await.expect_err("dies");
    fixture.provider.warm_up().await.expect("restarted at once");
    fixture.call("die", json!({})).await.expect_err("dies");
    eventually("it pauses", || matches!(fixture.provider.health(), Health::Failed { .. })).await;
    let began = Instant::now();
    let error = fixture.call("Echo.Args", json!({})).await.expect_err("paused");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, true), "{error}");
    assert!(error.message().contains("exit code 3") && error.message().contains("tried again"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(1));
    let back = || !matches!(fixture.provider.health(), Health::Failed { .. }) && notified.load(Ordering::Relaxed) > 0;
    eventually("it comes back by itself, and the catalogue is told", back).await;
    assert_eq!(fixture.names().await.len(), 3);
}

#[tokio::test]
async fn servers_missing_a_ping_are_replaced() {
    let script = script("stubborn");
    let fixture = script.fixture(|_| {});
    fixture.provider.warm_up().await.expect("connected");
    let (other, timed_out) = tokio::join!(fixture.call("hang", json!({"n": 1})), async {
        eventually("it hangs", || script.methods().contains(&"tools/call".to_owned())).await;
        let second = Fixture {
            world: Arc::clone(&fixture.world),
            provider: Arc::clone(&fixture.provider),
            cancel: Default::default(),
            roots: Arc::clone(&fixture.roots),
        };
        second.cancel.cancel(CancelCause::Deadline);
        // Cancelled before it was sent: no probe, nothing on the wire.
        second.call("hang", json!({"n": 2})).await.expect_err("canceled");
        let third = Fixture { cancel: Default::default(), ..second };
        let call = third.call("hang", json!({"n": 3}));
        let (ended, ()) = tokio::join!(call, async {
            eventually("third", || script.read().iter().any(|m| m["params"]["arguments"]["n"] == 3)).await;
            third.cancel.cancel(CancelCause::Deadline);
        });
        ended
    });
    assert_eq!(timed_out.expect_err("time is up").cancel_cause(), Some(CancelCause::Deadline));
    let error = other.expect_err("stopped");
    assert!(error.message().contains("neither a call nor a ping"), "{error}");
    assert!(!script.read().iter().any(|message| message["params"]["arguments"]["n"] == 2));
    assert_eq!(fixture.names().await.len(), 3);
}

#[tokio::test]
async fn servers_that_stop_listing_are_replaced() {
    let script = script("stuck");
    let fixture = script.fixture(|_| {});
    give_up(&script, &fixture, 1, CancelCause::Deadline).await;
    let starts = || script.methods().iter().filter(|method| *method == "initialize").count();
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(starts(), 1, "a list may take a while");
    eventually("it is started again", || starts() == 2).await;
    assert_eq!(script.methods().iter().filter(|method| *method == "ping").count(), 1);
}

#[tokio::test]
async fn a_server_that_closes_its_input_is_replaced() {
    let answer = |id: u32, rest: &str| format!("read -r line; echo '{{\"jsonrpc\":\"2.0\",\"id\":{id},{rest}}}'");
    let old = r#""result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}"#;
    let new = r#""result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"ttlMs":0,"cacheScope":"private"}"#;
    for handshake in [
        vec![answer(1, r#""error":{"code":-32601,"message":"no"}"#), answer(2, old)],
        // It is asked next for what it announces, which it never answers.
        vec![answer(1, new)],
    ] {
        // It answers the handshake, takes what comes after it, closes its input and stays.
        let log = tempfile::NamedTempFile::new().expect("log");
        let note = |what: &str| format!("echo {what} >> {}", log.path().display());
        let rest = ["read -r line".to_owned(), "exec 0<&-".to_owned(), note("closed"), "exec sleep 100".to_owned()];
        let server: Vec<_> = [note("start")].into_iter().chain(handshake).chain(rest).collect();
        let fixture = Fixture::new(command("sh", &["-c", &server.join("\n")]), |_| {});
        fixture.provider.warm_up().await.expect("connected");
        let count =
            |what| std::fs::read_to_string(log.path()).expect("log").lines().filter(|line| *line == what).count();
        // What is written before that is taken by a pipe that nobody reads.
        eventually("its input is closed", || count("closed") == 1).await;
        let call = async { fixture.call("x", json!({})).await.expect_err("nobody answers") };
        let error = tokio::time::timeout(Duration::from_secs(5), call).await.expect("it fails at once");
        assert_eq!(error.kind(), ErrorKind::TransportError, "{error}");
        assert!(error.message().contains("closed its standard input"), "{error}");
        let failed = std::time::Instant::now();
        eventually("it is started again", || count("start") >= 2).await;
        assert!(failed.elapsed() < Duration::from_secs(9), "nobody waits for it: {:?}", failed.elapsed());
    }
}

#[tokio::test]
async fn a_broken_batch_fails_what_is_in_flight() {
    let fixture = script("plain").fixture(|_| {});
    let odd = fixture.call("odd batch", json!({})).await.expect("read");
    assert_eq!(odd.content[0].as_text(), Some("caf\u{fffd}"));
    let (hang, cut) = tokio::join!(fixture.call("hang", json!({})), fixture.call("cut batch", json!({})));
    for error in [hang.expect_err("it may be of the batch"), cut.expect_err("it is cut short")] {
        assert_eq!(error.kind(), ErrorKind::TransportError, "{error}");
        assert!(error.message().contains("not a valid message, or that to another request in flight: "), "{error}");
    }
}

#[tokio::test]
async fn servers_closing_stdin_restart_with_pauses() {
    let answer = |id: u32, rest: &str| format!("echo '{{\"jsonrpc\":\"2.0\",\"id\":{id},{rest}}}'");
    let hello = r#""result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}"#;
    let log = tempfile::NamedTempFile::new().expect("log");
    let start = format!("echo start >> {}", log.path().display());
    // It takes a call that it never answers, and reads no more.
    let refuse = answer(1, r#""error":{"code":-32601,"message":"no"}"#);
    let other = format!(
        "case $line in *discover*) {refuse}; read -r line; {};; *) {};; esac",
        answer(2, hello),
        answer(1, hello)
    );
    let server =
        [start.as_str(), "read -r line", &other, "read -r line", "read -r line", "exec 0<&-", "exec sleep 105"]
            .join("\n");
    let marked = server.replace("sleep 105", "sleep 105.3");
    let fixture = Arc::new(Fixture::new(command("sh", &["-c", &marked]), |_| {}));
    fixture.provider.warm_up().await.expect("connected");
    let starts = || std::fs::read_to_string(log.path()).expect("log").lines().count();
    let end = Instant::now() + Duration::from_secs(6);
    let mut calls = Vec::new();
    while Instant::now() < end {
        let fixture = Arc::clone(&fixture);
        calls.push(tokio::spawn(async move {
            let _ = fixture.call("x", json!({})).await;
        }));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // At once, after one second, two, five.
    assert!((2..=5).contains(&starts()), "{} starts", starts());
    assert!(pids_with("105.3").len() <= 3, "one that has closed its input at a time");
    fixture.provider.shut_down().await;
    eventually("none is left", || pids_with("105.3").is_empty()).await;
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn calls_finish_after_stdin_closed() {
    let answer = |id: u32, rest: &str| format!("echo '{{\"jsonrpc\":\"2.0\",\"id\":{id},{rest}}}'");
    let hello = r#""result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}"#;
    let text = |text: &str| format!(r#""result":{{"content":[{{"type":"text","text":"{text}"}}]}}"#);
    let log = tempfile::NamedTempFile::new().expect("log");
    let note = |what: &str| format!("echo {what} >> {}", log.path().display());
    let read = || "read -r line".to_owned();
    // The first process takes a call, closes its input, and answers when calls have long been cut off by others.
    let first = [
        vec![read(), answer(1, r#""error":{"code":-32601,"message":"no"}"#), read(), answer(2, hello), read(), read()],
        vec!["exec 0<&-".to_owned(), note("closed"), "sleep 12".to_owned(), answer(3, &text("late"))],
    ];
    let next = [read(), answer(1, hello), read(), read(), answer(2, &text("soon"))];
    let server = format!(
        "{}\nif [ $(wc -l < {}) = 1 ]; then\n{}\nelse\n{}\nfi\nexec sleep 100",
        note("start"),
        log.path().display(),
        first.concat().join("\n"),
        next.join("\n"),
    );
    let fixture = Fixture::new(command("sh", &["-c", &server]), |_| {});
    fixture.provider.warm_up().await.expect("connected");
    let noted = || std::fs::read_to_string(log.path()).expect("log");
    let (slow, ()) = tokio::join!(fixture.call("x", json!({})), async {
        eventually("its input is closed", || noted().contains("closed")).await;
        let error = fixture.call("x", json!({})).await.expect_err("nobody reads it");
        assert!(error.is_retryable() && error.message().contains("closed its standard input"), "{error}");
        let soon = tokio::time::timeout(Duration::from_secs(8), fixture.call("x", json!({}))).await;
        let soon = soon.expect("it waits for nobody").expect("another process");
        assert_eq!(soon.content[0].as_text(), Some("soon"));
    });
    assert_eq!(slow.expect("it is not cut off").content[0].as_text(), Some("late"));
    assert_eq!(noted().lines().filter(|line| *line == "start").count(), 2);
}

/// Calls what is never answered, and gives up once it has been sent.
async fn give_up(script: &Script, fixture: &Fixture, n: u64, cause: CancelCause) {
    let caller = Fixture {
        world: Arc::clone(&fixture.world),
        provider: Arc::clone(&fixture.provider),
        cancel: Default::default(),
        roots: Arc::clone(&fixture.roots),
    };
    let (ended, ()) = tokio::join!(caller.call("hang", json!({"n": n})), async {
        eventually("it is called", || script.read().iter().any(|m| m["params"]["arguments"]["n"] == n)).await;
        caller.cancel.cancel(cause);
    });
    assert_eq!(ended.expect_err("given up").cancel_cause(), Some(cause));
}

#[tokio::test]
async fn silent_servers_callers_abandon_are_replaced() {
    let starts = |script: &Script| script.methods().iter().filter(|method| *method == "initialize").count();
    let abandon = async |cause: CancelCause| {
        let script = script("stubborn");
        let fixture = script.fixture(|_| {});
        give_up(&script, &fixture, 1, cause).await;
        give_up(&script, &fixture, 2, cause).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        eventually("it is started again", || starts(&script) == 2).await;
        assert_eq!(fixture.names().await.len(), 3);
    };
    let stays = async |mode: &str, is_busy: bool| {
        let script = script(mode);
        let fixture = script.fixture(|_| {});
        fixture.provider.warm_up().await.expect("connected");
        let abandon = async {
            give_up(&script, &fixture, 1, CancelCause::User).await;
            tokio::time::sleep(Duration::from_secs(12)).await;
            fixture.cancel.cancel(CancelCause::Shutdown);
        };
        match is_busy {
            true => drop(tokio::join!(fixture.call("hang", json!({"n": 9})), abandon)),
            false => abandon.await,
        }
        assert!(script.methods().contains(&"ping".to_owned()), "{mode}");
        assert_eq!(starts(&script), 1, "{mode}");
    };
    tokio::join!(
        abandon(CancelCause::User),
        abandon(CancelCause::CallerGone),
        abandon(CancelCause::RunLimit),
        stays("plain", false),
        stays("stubborn", true),
    );
}

#[tokio::test]
async fn failed_lists_are_retried_deaf_servers_replaced() {
    for (mode, is_dropped, starts) in
        [("slow at first", false, 1), ("slow at first", true, 1), ("deaf at first", false, 2)]
    {
        let script = script(mode);
        let limit = Duration::from_millis(if is_dropped { 60_000 } else { 300 });
        let fixture = script.fixture(|options| options.config.request_timeout = Some(limit));
        let notified = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&notified);
        fixture.provider.on_change(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        fixture.provider.warm_up().await.expect("connected");
        eventually("the connection is announced", || notified.load(Ordering::Relaxed) == 1).await;
        if is_dropped {
            let list = tokio::time::timeout(Duration::from_millis(300), fixture.provider.list());
            assert!(list.await.is_err(), "a catalogue that has waited long enough drops the list");
        } else {
            let error = fixture.provider.list().await.expect_err("too late").to_string();
            assert!(error.contains("did not list its tools within 300ms"), "{error}");
        }
        eventually("another list is due", || notified.load(Ordering::Relaxed) > 1).await;
        let processes = || script.methods().iter().filter(|method| *method == "initialize").count();
        eventually("a deaf server is replaced", || processes() == starts).await;
        assert_eq!(fixture.names().await.len(), 3, "{mode}");
        assert_eq!(fixture.provider.health(), Health::Ready);
        fixture.provider.shut_down().await;
    }
}

#[tokio::test]
async fn after_shutdown_no_list_is_refreshed() {
    let script = script("slow at first");
    let fixture = script.fixture(|options| options.config.request_timeout = Some(Duration::from_millis(300)));
    let notified = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&notified);
    fixture.provider.on_change(Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    fixture.provider.list().await.expect_err("too late");
    fixture.provider.shut_down().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(notified.load(Ordering::Relaxed), 0);
}
