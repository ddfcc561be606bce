//! Being told of changes: of lists and of resources, in both generations.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolwright_core::approval::Approver;
use toolwright_core::catalogue::SourceNotice;
use toolwright_core::job::{JobFilter, JobScope, Jobs as _};
use toolwright_core::policy::{Policy, Profile};
use toolwright_runtime::JobManager;
use toolwright_testkit::FakeApprover;

use crate::protocol::stdio::Client;
use crate::sources::{Source, two_sources};
use crate::support::{Events, Fixture, Http, LEGACY, body, call, rpc};

const META: &str = "io.modelcontextprotocol/subscriptionId";

fn updated(uri: &str) -> SourceNotice {
    SourceNotice::ResourceUpdated { uri: uri.into() }
}

/// What a source was told of subscriptions.
async fn reported(source: &Source, count: usize) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for _ in 0..500 {
        all.extend(source.taken().into_iter().filter(|(method, _)| method.contains("subscribe")));
        if all.len() >= count {
            return all;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("only {all:?}")
}

fn about(method: &str, uri: &str) -> (String, Value) {
    (format!("resources/{method}"), json!({"uri": uri}))
}

#[tokio::test]
async fn a_session_gets_resource_and_list_changes() {
    let (fixture, [alpha, beta]) = two_sources().await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let (other, _) = http.initialize("/mcp/alpha").await;
    let stream = |session: &str, path: &str| {
        http.request(Method::GET, path).header("mcp-session-id", session).header("mcp-protocol-version", LEGACY)
    };
    let mut events = Events::of(stream(&session, "/mcp")).await;
    let mut others = Events::of(stream(&other, "/mcp/alpha")).await;
    let shown = "toolwright-resource://beta/both://same";
    for uri in ["alpha://one", shown] {
        let subscribe = rpc(1, "resources/subscribe", json!({"uri": uri}));
        assert_eq!(body(http.in_session(&session, "/mcp", &subscribe), 200).await["result"], json!({}));
    }
    let twice = rpc(1, "resources/subscribe", json!({"uri": "alpha://one"}));
    body(http.in_session(&other, "/mcp/alpha", &twice), 200).await;
    assert_eq!(reported(&alpha, 1).await, [about("subscribe", "alpha://one")], "once for both");
    assert_eq!(reported(&beta, 1).await, [about("subscribe", "both://same")]);

    alpha.send_notice(updated("alpha://two"));
    alpha.send_notice(updated("alpha://one"));
    beta.send_notice(updated("both://same"));
    beta.send_notice(SourceNotice::PromptsChanged);
    alpha.send_notice(SourceNotice::ResourcesChanged);
    alpha.send_notice(SourceNotice::Log(json!({"level": "info", "data": "x"})));
    let note = |method: &str, params: Option<Value>| {
        let mut note = json!({"jsonrpc": "2.0", "method": format!("notifications/{method}")});
        if let Some(params) = params {
            note["params"] = params;
        }
        note
    };
    let log = || note("message", Some(json!({"level": "info", "data": "x"})));
    for expect in [
        note("resources/updated", Some(json!({"uri": "alpha://one"}))),
        note("resources/updated", Some(json!({"uri": shown}))),
        log(),
    ] {
        assert_eq!(events.next().await, Some(expect));
    }
    // Once the sources have listed again.
    let mut lists = [events.next().await.expect("a change"), events.next().await.expect("a change")];
    lists.sort_by_key(|note| note["method"].to_string());
    assert_eq!(lists, [note("prompts/list_changed", None), note("resources/list_changed", None)]);
    for expect in
        [note("resources/updated", Some(json!({"uri": "alpha://one"}))), log(), note("resources/list_changed", None)]
    {
        assert_eq!(others.next().await, Some(expect), "only of its own server");
    }
    // The source is told when nobody is interested any more, and not before.
    let unsubscribe = rpc(2, "resources/unsubscribe", json!({"uri": "alpha://one"}));
    assert_eq!(body(http.in_session(&session, "/mcp", &unsubscribe), 200).await["result"], json!({}));
    drop(others);
    let ended = http.request(Method::DELETE, "/mcp/alpha").header("mcp-session-id", &other).send().await;
    assert_eq!(ended.expect("response").status(), 204);
    assert_eq!(reported(&alpha, 1).await, [about("unsubscribe", "alpha://one")]);
    assert!(beta.taken().is_empty());
}

#[tokio::test]
async fn a_sessions_logs_reach_no_other() {
    let (fixture, [alpha, _]) = two_sources().await;
    let http = fixture.http().await;
    let ((mine, _), (other, _)) = (http.initialize("/mcp").await, http.initialize("/mcp").await);
    let stream = |session: &str| {
        Events::of(
            http.request(Method::GET, "/mcp").header("mcp-session-id", session).header("mcp-protocol-version", LEGACY),
        )
    };
    let (mut events, mut others) = (stream(&mine).await, stream(&other).await);
    body(http.in_session(&mine, "/mcp", &call(1, "alpha__meta", json!({}))), 200).await;
    let session = alpha.session.lock().expect("lock").clone().expect("a call");
    alpha.send_notice(SourceNotice::SessionLog { session, message: json!({"level": "info", "data": "hush"}) });
    alpha.send_notice(SourceNotice::Log(json!({"level": "info", "data": "all"})));
    for (events, expect) in [(&mut events, &["hush", "all"][..]), (&mut others, &["all"])] {
        for data in expect {
            assert_eq!(events.next().await.expect("a message")["params"]["data"], *data);
        }
    }
}

#[tokio::test]
async fn only_the_asked_client_gets_elicitation_complete() {
    let (fixture, [alpha, _beta]) = two_sources().await;
    let http = fixture.http().await;
    let done = || SourceNotice::ElicitationComplete { id: "e1".into() };
    let capabilities = json!({"elicitation": {"url": {}}});
    for hears in [true, false] {
        let (session, _) = http.initialize_with("/mcp", capabilities.clone()).await;
        if hears {
            let read = rpc(1, "resources/read", json!({"uri": "alpha://page/data"}));
            assert_eq!(body(http.in_session(&session, "/mcp", &read), 200).await["error"]["code"], -32042);
        }
        let stream = http.request(Method::GET, "/mcp").header("mcp-session-id", &session);
        let mut events = Events::of(stream.header("mcp-protocol-version", LEGACY)).await;
        alpha.send_notice(done());
        alpha.send_notice(SourceNotice::PromptsChanged);
        let first = events.next().await.expect("an event");
        let expect = if hears { "notifications/elicitation/complete" } else { "notifications/prompts/list_changed" };
        assert_eq!(first["method"], expect);
        if hears {
            assert_eq!(first["params"], json!({"elicitationId": "e1"}));
        }
    }
}

#[tokio::test]
async fn a_subscription_gets_its_changes_with_its_id() {
    let (fixture, [alpha, beta]) = two_sources().await;
    let http = fixture.http().await;
    let filter = json!({"promptsListChanged": true, "resourceSubscriptions": ["alpha://one", "nowhere:"]});
    let listen = json!({"notifications": filter});
    let mut events = Events::of(http.modern("/mcp", json!("s"), "subscriptions/listen", listen)).await;
    let meta = json!({META: "s"});
    let granted =
        json!({"_meta": meta, "notifications": {"promptsListChanged": true, "resourceSubscriptions": ["alpha://one"]}});
    assert_eq!(events.next().await.expect("granted")["params"], granted);
    assert_eq!(reported(&alpha, 1).await, [about("subscribe", "alpha://one")]);
    alpha.send_notice(SourceNotice::ResourcesChanged);
    alpha.send_notice(SourceNotice::Log(json!({"level": "alert"})));
    alpha.send_notice(updated("alpha://one"));
    beta.send_notice(SourceNotice::PromptsChanged);
    let note = events.next().await.expect("a change");
    assert_eq!(note["method"], "notifications/resources/updated");
    assert_eq!(note["params"], json!({"uri": "alpha://one", "_meta": meta}));
    let note = events.next().await.expect("a change");
    assert_eq!(
        (&note["method"], &note["params"]),
        (&json!("notifications/prompts/list_changed"), &json!({"_meta": meta}))
    );
    drop(events);
    // The server notices that the client is gone when it next has something to say.
    alpha.send_notice(updated("alpha://one"));
    alpha.send_notice(updated("alpha://one"));
    assert_eq!(reported(&alpha, 1).await, [about("unsubscribe", "alpha://one")]);
}

#[tokio::test]
async fn concurrent_subscribers_share_one_subscription() {
    let (fixture, [alpha, beta]) = two_sources().await;
    let http = fixture.http().await;
    let mut sessions = Vec::new();
    for path in ["/mcp", "/mcp/alpha", "/mcp", "/mcp/alpha"] {
        sessions.push((http.initialize(path).await.0, path));
    }
    let ask = |method: &'static str, (session, path): &(String, &str)| {
        let request = rpc(1, method, json!({"uri": "alpha://one"}));
        body(http.in_session(session, path, &request), 200)
    };
    let answers = join_all(sessions.iter().map(|session| ask("resources/subscribe", session))).await;
    assert!(answers.iter().all(|answer| answer["result"] == json!({})), "{answers:?}");
    let listen = json!({"notifications": {"resourceSubscriptions": ["alpha://one"]}});
    let mut events = Events::of(http.modern("/mcp", json!("s"), "subscriptions/listen", listen)).await;
    assert_eq!(
        events.next().await.expect("granted")["params"]["notifications"]["resourceSubscriptions"],
        json!(["alpha://one"])
    );
    assert_eq!(reported(&alpha, 1).await, [about("subscribe", "alpha://one")], "one for five");
    for session in &sessions {
        assert_eq!(ask("resources/unsubscribe", session).await["result"], json!({}));
    }
    // One is left, and hears of it.
    alpha.send_notice(updated("alpha://one"));
    assert_eq!(events.next().await.expect("a change")["params"]["uri"], "alpha://one");
    assert!(alpha.taken().is_empty(), "the source is told nothing while somebody is interested");
    drop(events);
    // The server notices that the client is gone when it next has something to say.
    alpha.send_notice(updated("alpha://one"));
    alpha.send_notice(updated("alpha://one"));
    assert_eq!(reported(&alpha, 1).await, [about("unsubscribe", "alpha://one")]);
    // Who comes after that subscribes anew.
    ask("resources/subscribe", &sessions[0]).await;
    assert_eq!(reported(&alpha, 1).await, [about("subscribe", "alpha://one")]);
    assert!(beta.taken().is_empty());
}

#[tokio::test]
async fn requests_read_the_lists_that_the_catalogue_has() {
    let (fixture, sources) = two_sources().await;
    let http = fixture.http().await;
    let wanted = json!(["nowhere:1", "nowhere:2", "nowhere:3"]);
    let listen = json!({"notifications": {"resourceSubscriptions": wanted, "toolsListChanged": true}});
    let mut events = Events::of(http.modern("/mcp", json!("s"), "subscriptions/listen", listen)).await;
    let granted = events.next().await.expect("granted");
    assert_eq!(granted["params"]["notifications"].get("resourceSubscriptions"), None, "{granted}");
    for source in sources {
        for method in ["prompts/list", "resources/list", "resources/templates/list"] {
            assert_eq!(source.times(method), 1, "{method}");
        }
    }
}

#[tokio::test]
async fn added_and_removed_sources_change_the_lists() {
    let (fixture, _) = two_sources().await;
    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}))).await;
    let lists = ["prompts", "resources", "tools"].map(|part| format!("notifications/{part}/list_changed"));
    let mut reported = async |count: usize| {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(client.next().await["method"].as_str().expect("a method").to_owned());
        }
        all.sort();
        all
    };
    fixture.add_listed(Source::new("gamma").provider()).await;
    assert_eq!(reported(3).await, lists);
    fixture.catalogue.remove_provider("gamma").await.expect("it was there");
    assert_eq!(reported(3).await, lists);
    fixture.add_listed(Source::with("delta", json!({"prompts": {}})).provider()).await;
    assert_eq!(reported(2).await, [&*lists[0], &*lists[2]]);
    // One that has tools only.
    fixture.foreign.set(&["other"]);
    assert_eq!(reported(1).await, lists[2..]);
    fixture.foreign.set(&["Get.Thing", "other"]);
    assert_eq!(reported(1).await, lists[2..]);
}

#[tokio::test]
async fn missed_notices_update_all_subscribed_resources() {
    let (fixture, [alpha, beta]) = two_sources().await;
    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}))).await;
    for (id, uri) in [(1, "alpha://one"), (2, "beta://two")] {
        let answer = client.ask(&rpc(id, "resources/subscribe", json!({"uri": uri}))).await;
        assert_eq!(answer["result"], json!({}));
    }
    // Nobody reads them in between.
    beta.send_notice(updated("beta://two"));
    for _ in 0..300 {
        alpha.send_notice(SourceNotice::Log(json!({"level": "info", "data": "x"})));
    }
    let mut reported = Vec::new();
    for _ in 0..2 {
        let said = client.next().await;
        let uri = said["params"]["uri"].as_str().unwrap_or_default();
        reported.push(format!("{} {uri}", said["method"].as_str().expect("a method")));
    }
    reported.sort();
    let all = ["resources/updated alpha://one", "resources/updated beta://two"];
    assert_eq!(reported, all.map(|what| format!("notifications/{what}")));
    assert_eq!(client.next().await["method"], "notifications/message");
}

#[tokio::test]
async fn subscriptions_move_to_a_replaced_source() {
    let (fixture, [alpha, _]) = two_sources().await;
    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}))).await;
    let http = fixture.http().await;
    let listen = json!({"notifications": {"resourceSubscriptions": ["alpha://one", "alpha://two"]}});
    let mut events = Events::of(http.modern("/mcp", json!("s"), "subscriptions/listen", listen)).await;
    events.next().await.expect("granted");
    let subscribe = rpc(1, "resources/subscribe", json!({"uri": "alpha://one"}));
    assert_eq!(client.ask(&subscribe).await["result"], json!({}));
    assert_eq!(reported(&alpha, 2).await.len(), 2, "once for both");
    let other = Source::new("alpha");
    fixture.catalogue.put_provider(other.provider()).await.expect("the one before");
    let mut again = reported(&other, 2).await;
    again.sort_by_key(|(_, about)| about.to_string());
    assert_eq!(again, [about("subscribe", "alpha://one"), about("subscribe", "alpha://two")]);
    other.send_notice(updated("alpha://one"));
    let mut said = client.next().await;
    while said["method"] != "notifications/resources/updated" {
        said = client.next().await;
    }
    // It is told by the one that took the subscription that nobody follows it any more.
    drop(events);
    let unsubscribe = rpc(2, "resources/unsubscribe", json!({"uri": "alpha://one"}));
    assert_eq!(client.ask(&unsubscribe).await["result"], json!({}));
    let mut ended = reported(&other, 2).await;
    ended.sort_by_key(|(_, about)| about.to_string());
    assert_eq!(ended, [about("unsubscribe", "alpha://one"), about("unsubscribe", "alpha://two")]);
    assert!(alpha.taken().is_empty(), "it was left before");
}

#[tokio::test]
async fn resubscribing_needs_no_approval() {
    let approver = Arc::new(FakeApprover::unavailable());
    let (fixture, store) =
        Fixture::with_jobs(|options, _| options.approver = Arc::clone(&approver) as Arc<dyn Approver>).await;
    fixture.add_listed(Source::new("alpha").provider()).await;
    let mut client = Client::of(&fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}))).await;
    let subscribe = rpc(1, "resources/subscribe", json!({"uri": "alpha://one"}));
    assert_eq!(client.ask(&subscribe).await["result"], json!({}));
    let rules = json!([{"effect": "ask", "namespace": "alpha", "reason": "one never knows"}]);
    let asks = Policy { rules: serde_json::from_value(rules).expect("rules"), ..Policy::of(Profile::Client) };
    fixture.gateway.set_policy(Arc::new(asks));
    let other = Source::new("alpha");
    fixture.catalogue.put_provider(other.provider()).await.expect("the one before");
    for names in [&["other"][..], &["Get.Thing", "other"]] {
        tokio::time::sleep(Duration::from_millis(150)).await;
        fixture.foreign.set(names);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let jobs =
        JobManager::new(store, &std::env::temp_dir()).list(JobScope::All, JobFilter::All, 10).await.expect("jobs");
    assert_eq!((approver.count(), jobs.len(), other.taken()), (0, 0, vec![]));
    // Another policy may say something else.
    fixture.gateway.set_policy(Arc::new(Policy::of(Profile::Client)));
    fixture.foreign.set(&["other"]);
    assert_eq!(reported(&other, 1).await, [about("subscribe", "alpha://one")]);
}

/// A session over HTTP that has subscribed to this, without a stream.
async fn subscribed(http: &Http, uri: &str) -> String {
    let (session, _) = http.initialize("/mcp").await;
    let subscribe = rpc(1, "resources/subscribe", json!({"uri": uri}));
    assert_eq!(body(http.in_session(&session, "/mcp", &subscribe), 200).await["result"], json!({}));
    session
}

#[tokio::test]
async fn a_new_stream_resubscribes_at_replaced_sources() {
    let (fixture, [alpha, _]) = two_sources().await;
    let http = fixture.http().await;
    let session = subscribed(&http, "alpha://one").await;
    assert_eq!(reported(&alpha, 1).await.len(), 1);
    let other = Source::new("alpha");
    fixture.catalogue.put_provider(other.provider()).await.expect("the one before");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(other.taken(), []);
    let stream = http.request(Method::GET, "/mcp").header("mcp-session-id", &session);
    let mut events = Events::of(stream.header("mcp-protocol-version", LEGACY)).await;
    assert_eq!(reported(&other, 1).await, [about("subscribe", "alpha://one")]);
    other.send_notice(updated("alpha://one"));
    assert_eq!(events.next().await.expect("told")["params"], json!({"uri": "alpha://one"}));
}
