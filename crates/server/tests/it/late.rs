//! Sources that answer, but not in time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::SourceNotice;

use crate::sources::Source;
use crate::support::{Events, House, Http, LEGACY, LONG, body, rpc};

/// Two sources that announce no changes of their lists, the first of which does not answer yet.
async fn house() -> (House, [Arc<Source>; 2]) {
    // Nothing that is late may use the grace up.
    let house = House::with(|options| options.grace = LONG).await;
    let announced = json!({"resources": {"subscribe": true}, "prompts": {}, "completions": {}});
    let sources = [Source::with("alpha", announced.clone()), Source::with("beta", announced)];
    for source in &sources {
        house.add(source.clone()).await;
    }
    sources[0].is_silent.send_replace(true);
    (house, sources)
}

/// The sources that brought something to a list.
async fn listed(http: &Http, session: &str, method: &str, key: &str) -> Vec<String> {
    let id = i64::try_from(method.len()).expect("small");
    let answer = body(http.in_session(session, "/mcp", &rpc(id, method, json!({}))), 200).await;
    let items = answer["result"][key].as_array().unwrap_or_else(|| panic!("{answer}"));
    let text = Value::Array(items.clone()).to_string();
    ["alpha", "beta"].into_iter().filter(|source| text.contains(source)).map(str::to_owned).collect()
}

/// The next so many messages, sorted.
async fn told(events: &mut Events, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(events.next().await.expect("a message")["method"].as_str().expect("a method").to_owned());
    }
    all.sort();
    all
}

#[tokio::test]
async fn a_list_that_comes_late_goes_on_and_is_told_of() {
    let (house, [alpha, _]) = house().await;
    let http = house.http().await;
    let (session, said) = http.initialize("/mcp").await;
    assert_eq!(said["capabilities"]["prompts"], json!({"listChanged": true}));
    assert_eq!(said["capabilities"]["resources"], json!({"listChanged": true, "subscribe": true}));
    let own = Events::of(
        http.request(Method::GET, "/mcp")
            .header("mcp-session-id", &session)
            .header("mcp-protocol-version", LEGACY)
            .timeout(6 * LONG),
    );
    let wanted = json!({"notifications": {"promptsListChanged": true, "resourcesListChanged": true}});
    let mut clients = [
        own.await,
        Events::of(http.modern("/mcp", json!(9), "subscriptions/listen", wanted.clone()).timeout(6 * LONG)).await,
    ];
    let granted = clients[1].next().await.expect("an acknowledgement");
    assert_eq!(granted["params"]["notifications"], wanted["notifications"]);
    let list = async || {
        tokio::join!(
            listed(&http, &session, "prompts/list", "prompts"),
            listed(&http, &session, "resources/list", "resources"),
            listed(&http, &session, "resources/templates/list", "resourceTemplates"),
        )
    };
    let all = |sources: &[&str]| {
        let sources: Vec<String> = sources.iter().map(|&source| source.to_owned()).collect();
        (sources.clone(), sources.clone(), sources)
    };
    let began = Instant::now();
    assert_eq!(list().await, all(&["beta"]));
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // Who asks once more waits for the same.
    assert_eq!(list().await, all(&["beta"]));
    alpha.is_silent.send_replace(false);
    let changed = ["prompts", "resources", "resources"].map(|part| format!("notifications/{part}/list_changed"));
    for client in &mut clients {
        assert_eq!(told(client, 3).await, changed);
    }
    let asked = (alpha.times("prompts/list"), alpha.times("resources/templates/list"));
    assert_eq!(asked, (1, 1), "they were not begun anew");
    for (method, params, expect) in [
        ("prompts/get", json!({"name": "alpha__hello"}), "alpha"),
        ("resources/read", json!({"uri": "alpha://7/data"}), "alpha"),
    ] {
        let got = body(http.in_session(&session, "/mcp", &rpc(1, method, params)), 200).await;
        assert!(got["result"].to_string().contains(expect), "{got}");
    }
    assert_eq!(list().await, all(&["alpha", "beta"]));
    // One that is late always brings nothing new.
    alpha.is_silent.send_replace(true);
    assert_eq!(list().await, all(&["alpha", "beta"]));
    alpha.is_silent.send_replace(false);
    for client in &mut clients {
        assert!(tokio::time::timeout(Duration::from_millis(500), client.next()).await.is_err(), "told for nothing");
    }
    // Unless it says itself that its list is another than what comes.
    alpha.is_silent.send_replace(true);
    assert_eq!(list().await, all(&["alpha", "beta"]));
    alpha.tell(SourceNotice::PromptsChanged);
    for client in &mut clients {
        assert_eq!(told(client, 1).await, changed[..1]);
    }
    alpha.is_silent.send_replace(false);
    for client in &mut clients {
        assert_eq!(told(client, 1).await, changed[..1], "what was listed upon the first may be the old one");
    }
    // A shutdown does not wait for any.
    alpha.is_silent.send_replace(true);
    assert_eq!(list().await, all(&["alpha", "beta"]));
    let began = Instant::now();
    house.shutdown.cancel(CancelCause::Shutdown);
    tokio::time::timeout(LONG, http.serving).await.expect("in time").expect("task").expect("served");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test]
async fn templates_of_a_source_that_was_late_once_are_found() {
    let (house, [alpha, _]) = house().await;
    let http = house.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let read = async |uri: &str| {
        body(http.in_session(&session, "/mcp", &rpc(1, "resources/read", json!({"uri": uri}))), 200).await
    };
    assert_eq!(listed(&http, &session, "resources/list", "resources").await, ["beta"]);
    assert_eq!(read("beta://5/data").await["result"]["contents"][0]["text"], "beta");
    alpha.is_silent.send_replace(false);
    assert_eq!(read("alpha://7/data").await["result"]["contents"][0]["text"], "alpha");
}

#[tokio::test]
async fn a_session_that_ends_takes_nothing_of_its_client_along_into_a_late_list() {
    let (house, [alpha, beta]) = house().await;
    let http = house.http().await;
    let (session, _) = http.initialize("/mcp").await;
    let subscribe = rpc(1, "resources/subscribe", json!({"uri": "beta://two"}));
    alpha.is_silent.send_replace(false);
    assert_eq!(body(http.in_session(&session, "/mcp", &subscribe), 200).await["result"], json!({}));
    alpha.is_silent.send_replace(true);
    assert_eq!(listed(&http, &session, "prompts/list", "prompts").await, ["beta"]);
    let ended = http.request(Method::DELETE, "/mcp").header("mcp-session-id", &session).send().await;
    assert_eq!(ended.expect("response").status(), 204);
    let began = Instant::now();
    while beta.times("resources/unsubscribe") == 0 {
        assert!(began.elapsed() < Duration::from_secs(3), "its subscriptions go on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The list itself goes on: it is for all clients of the principal at this address, and the next may be here soon.
    assert_eq!(alpha.busy.load(Ordering::Relaxed), 1);
    alpha.is_silent.send_replace(false);
    while alpha.times("prompts/list") == 0 {
        assert!(began.elapsed() < LONG, "it was given up");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
