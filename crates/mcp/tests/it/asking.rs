//! What servers ask and tell beside the answers to calls, in both generations.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{Provider, SourceNotice};
use toolwright_core::client::AskStyle;
use toolwright_core::context::ToolContext;
use toolwright_core::error::ErrorKind;
use toolwright_core::event::Partial;
use toolwright_testkit::FakeCallClient;

use super::http::Site;
use super::stdio::{Script, scripted};
use super::{Fixture, eventually, run};

pub(super) const GENERATIONS: [&str; 2] = ["legacy", "modern"];

pub(super) fn asker(mode: &str) -> Script {
    scripted("asker::serve_when_asked", "MCP_ASKER", mode)
}

/// A server whose tools are listed, its methods, and a context of calls.
async fn listed(script: &Script) -> (Fixture, Arc<dyn Provider>, ToolContext) {
    let fixture = script.fixture(|_| {});
    fixture.names().await;
    let (methods, context) = (fixture.provider.methods().expect("methods"), fixture.context("s"));
    (fixture, methods, context)
}

/// A client whose name is Ann.
fn ann() -> FakeCallClient {
    FakeCallClient::saying(json!({"action": "accept", "content": {"name": "Ann"}})).with(|ann| {
        ann.delay = Duration::from_millis(30);
        ann.capabilities = json!({"elicitation": {"form": {}}});
        ann.log_level = Some("info");
        ann.meta = json!({"vendor/key": 7});
    })
}

fn asking_by_requests() -> Arc<FakeCallClient> {
    Arc::new(ann().with(|ann| ann.ask_style = AskStyle::Requests))
}

pub(super) fn of_ann(fixture: &Fixture, session: &str) -> (Arc<FakeCallClient>, ToolContext) {
    of_one(fixture, session, None)
}

/// A call of hers in a session that others may have, under a name of her own.
pub(super) fn of_one(fixture: &Fixture, session: &str, identity: Option<&str>) -> (Arc<FakeCallClient>, ToolContext) {
    let ann = Arc::new(ann().with(|ann| ann.identity = identity.map(str::to_owned)));
    (Arc::clone(&ann), ToolContext { client: ann, ..fixture.context(session) })
}

#[tokio::test]
async fn a_question_reaches_the_client_of_the_call() {
    for (mode, answer) in [
        ("legacy", json!({"action": "accept", "content": {"name": "Ann"}})),
        ("modern", json!([{"who": {"action": "accept", "content": {"name": "Ann"}}}, "s1"])),
    ] {
        let script = asker(mode);
        let fixture = script.fixture(|_| {});
        let (ann, context) = of_ann(&fixture, "s");
        let output = run(&*fixture.provider, "ask", json!({"a": 1}), &context).await.expect("answered");
        let said: Value = serde_json::from_str(output.content[0].as_text().expect("text")).expect("JSON");
        assert_eq!(said, answer, "{mode}");
        let asked = ann.asked().clone();
        assert_eq!((asked.len(), asked[0].method.as_str()), (1, "elicitation/create"));
        assert_eq!(asked[0].params["message"], "Who?");
        let calls: Vec<_> = script.read().into_iter().filter(|message| message["method"] == "tools/call").collect();
        assert_eq!(calls.len(), if mode == "legacy" { 1 } else { 2 }, "{mode}");
        let meta = &calls[0]["params"]["_meta"];
        assert_eq!(meta["vendor/key"], 7);
        if mode == "modern" {
            assert_eq!(asked[0].key.as_deref(), Some("who"));
            assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"]["elicitation"], json!({"form": {}}));
            assert_eq!(meta["io.modelcontextprotocol/logLevel"], "info");
            assert_ne!(calls[0]["id"], calls[1]["id"]);
            assert_eq!(calls[0]["params"]["arguments"], calls[1]["params"]["arguments"]);
        }
    }
}

#[tokio::test]
async fn two_generation_servers_ask_in_the_clients_style() {
    let older = json!({"action": "accept", "content": {"name": "Ann"}});
    let newer = json!([{"who": older}, "s1"]);
    for (mode, shared, expect) in [
        ("both", true, [&newer, &older, &older]),
        ("both", false, [&newer, &older, &older]),
        ("modern", true, [&newer, &newer, &newer]),
        ("legacy", true, [&older, &older, &older]),
    ] {
        let script = asker(mode);
        let fixture = script.fixture(|options| options.config.shared = shared);
        fixture.names().await;
        for (ask_style, session, expect) in [
            (AskStyle::Either, "one", expect[0]),
            (AskStyle::Requests, "two", expect[1]),
            (AskStyle::Requests, "two", expect[2]),
        ] {
            let client = Arc::new(ann().with(|ann| ann.ask_style = ask_style));
            let context = ToolContext { client, ..fixture.context(session) };
            let output = run(&*fixture.provider, "ask", json!({}), &context).await.expect("answered");
            let said: Value = serde_json::from_str(output.content[0].as_text().expect("text")).expect("JSON");
            assert_eq!(&said, expect, "{mode} {shared} {ask_style:?}");
        }
        // Each session's own connection shakes hands; that a server does not speak the older is found once.
        let count = |kind: &str| script.methods().iter().filter(|method| *method == kind).count();
        let counts = ["server/discover", "initialize"].map(count);
        let expect = if mode == "modern" || !shared { [2, 1] } else { [1, 1] };
        assert_eq!(counts, expect, "{mode} {shared}");
        fixture.provider.shut_down().await;
    }
}

#[tokio::test]
async fn clients_without_capabilities_are_not_asked() {
    let fixture = asker("legacy").fixture(|_| {});
    let output = fixture.call("ask", json!({})).await.expect("the server is told");
    assert!(output.content[0].as_text().expect("text").contains("-32601"), "{output:?}");
    let fixture = asker("modern").fixture(|_| {});
    let error = fixture.call("ask", json!({})).await.expect_err("it insists");
    assert_eq!(error.kind(), ErrorKind::ExecutionError);
    assert!(error.message().contains("does not offer"), "{error}");
}

#[tokio::test]
async fn own_connection_logs_reach_their_session_alone() {
    for shared in [true, false] {
        let fixture = asker("legacy").fixture(|options| options.config.shared = shared);
        let notices: Arc<Mutex<Vec<SourceNotice>>> = Arc::default();
        let sink = Arc::clone(&notices);
        fixture.provider.on_notice(Arc::new(move |notice| sink.lock().expect("notices").push(notice)));
        let (ann, context) = of_ann(&fixture, "one");
        run(&*fixture.provider, "tell late", json!({}), &context).await.expect("told");
        eventually("it logs", || !notices.lock().expect("notices").is_empty()).await;
        let message = json!({"level": "info", "data": "hear"});
        let session = context.session.id.clone();
        let expect = if shared { SourceNotice::Log(message) } else { SourceNotice::SessionLog { session, message } };
        assert_eq!(*notices.lock().expect("notices"), [expect]);
        assert!(ann.logged().is_empty(), "its call is over");
    }
}

#[tokio::test]
async fn unreadable_questions_are_refused() {
    let script = asker("legacy");
    let fixture = script.fixture(|_| {});
    let (ann, context) = of_ann(&fixture, "s");
    run(&*fixture.provider, "ask", json!({"cut": true}), &context).await.expect("answered");
    let asked = ann.asked().clone();
    assert_eq!(asked.iter().map(|asked| &asked.params["message"]).collect::<Vec<_>>(), ["Who \u{fffd}"]);
    let refused = script.read().into_iter().find(|message| message["id"] == "q2").expect("an answer");
    assert_eq!(refused["error"]["code"], -32602);
}

#[tokio::test]
async fn questions_of_one_call_are_sequential() {
    let fixture = asker("legacy").fixture(|_| {});
    // How many questions stand before her, and how many did at most.
    static OPEN: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let ann = FakeCallClient::with_future(|_| {
        Box::pin(async {
            MOST.fetch_max(OPEN.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(30)).await;
            OPEN.fetch_sub(1, Ordering::Relaxed);
            json!({"action": "accept", "content": {"name": "Ann"}})
        })
    });
    let ann = Arc::new(ann.with(|ann| ann.capabilities = json!({"elicitation": {"form": {}}})));
    let context = ToolContext { client: Arc::clone(&ann) as _, ..fixture.context("s") };
    run(&*fixture.provider, "ask", json!({"twice": true}), &context).await.expect("answered");
    assert_eq!((ann.asked().len(), MOST.load(Ordering::Relaxed)), (2, 1));
}

#[tokio::test]
async fn own_connections_offer_no_subscriptions() {
    for shared in [true, false] {
        let script = asker("legacy");
        let fixture = script.fixture(|options| options.config.shared = shared);
        fixture.names().await;
        let announced = || fixture.provider.capabilities().expect("it has said");
        assert_eq!(announced()["resources"].get("subscribe").is_some(), shared);
        assert!(Arc::ptr_eq(&announced(), &announced()), "connections are known by it");
        let methods = fixture.provider.methods().expect("methods").list().await.expect("listed");
        let has = |name: &str| methods.iter().any(|method| method.raw_name() == name);
        let found = ["resources/read", "resources/subscribe", "resources/unsubscribe"].map(has);
        assert_eq!(found, [true, shared, shared]);
        fixture.provider.shut_down().await;
    }
}

#[tokio::test]
async fn tasks_survive_failed_polls_and_lost_answers() {
    for (mode, expect) in [("legacy", "done"), ("modern", "Ann")] {
        let script = asker(mode);
        let fixture = script.fixture(|_| {});
        fixture.names().await;
        let (ann, context) = of_ann(&fixture, "s");
        let output = run(&*fixture.provider, "job", json!({"lossy": true}), &context).await.expect("done");
        assert!(output.content[0].as_text().expect("text").contains(expect), "{mode}: {output:?}");
        let count = |wanted: &str| script.methods().iter().filter(|method| *method == wanted).count();
        assert_eq!(count("tools/call"), 1, "{mode}");
        let (updates, questions) = if mode == "modern" { (2, 1) } else { (0, 0) };
        assert_eq!((count("tasks/update"), ann.asked().len()), (updates, questions), "{mode}");
    }
}

#[tokio::test]
async fn tasks_end_with_their_call() {
    for (mode, expect) in [("legacy", "done"), ("modern", "Ann")] {
        let script = asker(mode);
        let fixture = script.fixture(|_| {});
        fixture.names().await;
        let (_, context) = of_ann(&fixture, "s");
        let output = run(&*fixture.provider, "job", json!({}), &context).await.expect("done");
        assert!(output.content[0].as_text().expect("text").contains(expect), "{mode}: {output:?}");
        let reported = fixture.world.partials.lock().expect("partials").clone();
        let says = |text: &str| {
            let text = Some(text.to_owned());
            reported.iter().any(|partial| matches!(partial, Partial::Progress { message, .. } if *message == text))
        };
        assert!(says("begun") && says("half way"), "{mode}: {reported:?}");
        assert!(!script.methods().contains(&"tasks/cancel".to_owned()));
    }
}

#[tokio::test]
async fn cancelled_calls_cancel_their_task() {
    let script = asker("legacy");
    let fixture = script.fixture(|_| {});
    fixture.names().await;
    let (error, ()) = tokio::join!(fixture.call("job", json!({})), async {
        eventually("the task has begun", || script.methods().contains(&"tasks/get".to_owned())).await;
        fixture.cancel.cancel(CancelCause::User);
    });
    // It may have come to its end just then.
    if error.is_err() {
        let reported =
            || script.methods().iter().any(|method| method == "tasks/cancel" || method == "notifications/cancelled");
        eventually("the server hears of it", reported).await;
    }
}

#[tokio::test]
async fn server_logs_reach_the_calls_client() {
    for mode in GENERATIONS {
        let fixture = asker(mode).fixture(|_| {});
        let (ann, context) = of_ann(&fixture, "s");
        run(&*fixture.provider, "tell", json!({}), &context).await.expect("told");
        assert_eq!(*ann.logged(), [json!({"level": "info", "data": "hear"})], "{mode}");
    }
}

#[tokio::test]
async fn restarted_servers_get_the_log_level_again() {
    let reported = |script: &Script| -> Vec<Value> {
        let sent = script.read().into_iter().filter(|message| message["method"] == "logging/setLevel");
        sent.map(|message| message["params"]["level"].clone()).collect()
    };
    let script = asker("legacy");
    let (fixture, methods, context) = listed(&script).await;
    for level in ["info", "warning"] {
        run(&*methods, "logging/setLevel", json!({"level": level}), &context).await.expect("taken");
    }
    fixture.call("die", json!({})).await.expect_err("the server is gone");
    eventually("the new one is told", || reported(&script) == ["info", "warning", "warning"]).await;
    // A server of both generations logs for such a client on the connection of the older.
    let script = asker("both");
    let (fixture, methods, mut context) = listed(&script).await;
    run(&*methods, "logging/setLevel", json!({"level": "info"}), &context).await.expect("taken");
    assert!(reported(&script).is_empty(), "the newer needs no telling");
    context.client = asking_by_requests();
    run(&*fixture.provider, "tell", json!({}), &context).await.expect("told");
    eventually("it is told when it is there", || reported(&script) == ["info"]).await;
    run(&*methods, "logging/setLevel", json!({"level": "error"}), &context).await.expect("taken");
    eventually("and told of the next", || reported(&script) == ["info", "error"]).await;
}

#[tokio::test]
async fn failed_legacy_connections_are_retried_later() {
    for mode in [
        "busy for old ones",
        "closed for old ones",
        "mute for old ones",
        "faulty for old ones",
        "faulty in JSON for old ones",
    ] {
        let site = Site::start(mode).await;
        let fixture = Fixture::new(site.transport(), |options| options.config.connect_timeout = Duration::from_secs(1));
        let context = ToolContext { client: asking_by_requests(), ..fixture.context("s") };
        let spoken = async || {
            run(&*fixture.provider, "plain", json!({}), &context).await.expect("answered");
            site.headers_of("tools/call")["mcp-protocol-version"].to_str().expect("text").to_owned()
        };
        fixture.names().await;
        assert_eq!(spoken().await, "2026-07-28", "{mode}: the other one serves meanwhile");
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(site.count("initialize"), 1, "{mode}: without a call nothing is tried");
        site.becomes("both");
        let end = Instant::now() + Duration::from_secs(15);
        while spoken().await != "2025-06-18" {
            assert!(Instant::now() < end, "{mode}: it is never tried again");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test]
async fn own_sessions_fall_back_to_the_newer_generation() {
    for mode in ["mute for old ones", "faulty for old ones"] {
        let site = Site::start(mode).await;
        let fixture = Fixture::new(site.transport(), |options| {
            (options.config.connect_timeout, options.config.shared) = (Duration::from_secs(1), false);
        });
        fixture.names().await;
        let client = asking_by_requests();
        let context = ToolContext { client, ..fixture.context("s") };
        run(&*fixture.provider, "plain", json!({}), &context).await.expect("answered");
        assert_eq!(site.headers_of("tools/call")["mcp-protocol-version"], "2026-07-28", "{mode}");
        assert_eq!(site.count("initialize"), 1, "{mode}: it was tried");
    }
}

#[tokio::test]
async fn setting_levels_waits_for_no_legacy_connection() {
    let script = asker("both-mute");
    let (fixture, methods, mut context) = listed(&script).await;
    context.client = asking_by_requests();
    run(&*fixture.provider, "tell", json!({}), &context).await.expect("told on the older connection");
    let set = run(&*methods, "logging/setLevel", json!({"level": "error"}), &context);
    tokio::time::timeout(Duration::from_secs(10), set).await.expect("at once").expect("taken");
    let is_reported = || script.methods().iter().any(|method| method == "logging/setLevel");
    eventually("the other one is told, and never answers", is_reported).await;
}

#[tokio::test]
async fn unanswered_log_levels_are_sent_singly() {
    let script = asker("both-mute");
    let (fixture, methods, mut context) = listed(&script).await;
    context.client = asking_by_requests();
    run(&*fixture.provider, "tell", json!({}), &context).await.expect("told on the older connection");
    for _ in 0..50 {
        run(&*methods, "logging/setLevel", json!({"level": "error"}), &context).await.expect("taken");
    }
    let reported = || script.methods().iter().filter(|method| *method == "logging/setLevel").count();
    eventually("it is told", || reported() > 0).await;
    run(&*fixture.provider, "tell", json!({}), &context).await.expect("whatever was sent before this has arrived");
    assert_eq!(reported(), 1);
}

#[tokio::test]
async fn refused_log_levels_are_not_repeated() {
    let script = asker("legacy");
    let (fixture, methods, context) = listed(&script).await;
    run(&*methods, "logging/setLevel", json!({"level": "info"}), &context).await.expect("taken");
    run(&*methods, "logging/setLevel", json!({"level": "loud"}), &context).await.expect_err("no such level");
    fixture.call("die", json!({})).await.expect_err("the server is gone");
    let reported = || -> Vec<Value> {
        let sent = script.read().into_iter().filter(|message| message["method"] == "logging/setLevel");
        sent.map(|message| message["params"]["level"].clone()).collect()
    };
    eventually("the new one is told what counts", || reported() == ["info", "loud", "info"]).await;
}

#[tokio::test]
async fn own_connections_take_their_clients_ask_style() {
    let script = asker("both");
    let fixture = script.fixture(|options| options.config.shared = false);
    fixture.names().await;
    let ann = asking_by_requests();
    let context = ToolContext { client: ann, ..fixture.context("one") };
    let methods = fixture.provider.methods().expect("methods");
    run(&*methods, "prompts/list", json!({}), &context).await.expect("listed");
    run(&*methods, "logging/setLevel", json!({"level": "error"}), &context).await.expect("taken");
    let output = run(&*fixture.provider, "ask", json!({}), &context).await.expect("answered");
    let said: Value = serde_json::from_str(output.content[0].as_text().expect("text")).expect("JSON");
    assert_eq!(said, json!({"action": "accept", "content": {"name": "Ann"}}), "asked in the older manner");
    fixture.provider.shut_down().await;
}

#[tokio::test]
async fn early_roots_questions_are_answered() {
    let folders = |uri: &str| json!({"roots": [{"uri": uri}]});
    let script = asker("rooted");
    let fixture = script.fixture(|_| {});
    let said = async |fixture: &Fixture| -> Value {
        let output = fixture.call("tell", json!({})).await.expect("answered");
        serde_json::from_str(output.content[0].as_text().expect("text")).expect("JSON")
    };
    // Whose folders they are is not known yet.
    fixture.roots.expect_client();
    fixture.names().await;
    fixture.roots.set(folders("file:///one"));
    let reported =
        |uri: &str| script.read().iter().any(|sent| sent["id"] == "folders" && sent["result"] == folders(uri));
    eventually("it is told when they are", || reported("file:///one")).await;
    assert_eq!(said(&fixture).await, folders("file:///one"));
    fixture.roots.set(folders("file:///two"));
    eventually("it is told of others", || reported("file:///two")).await;
    assert_eq!(said(&fixture).await, folders("file:///two"));
    fixture.provider.shut_down().await;
    // Where its list is known, it is called as soon as it runs: it has its folders before that.
    let next =
        Fixture::within(Arc::clone(&fixture.world), script.transport.clone(), |options| options.config.lazy = true);
    next.roots.set(folders("file:///three"));
    next.names().await;
    assert_eq!(said(&next).await, folders("file:///three"));
    next.provider.shut_down().await;
}
