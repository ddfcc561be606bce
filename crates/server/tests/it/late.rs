//! Sources that answer, but not in time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::SourceNotice;

use crate::sources::Source;
use crate::stdio::Client;
use crate::support::{Events, House, Http, LEGACY, LONG, body, call, rpc};

/// Two sources that announce no changes of their lists, the first of which does not answer yet.
async fn house() -> (House, [Arc<Source>; 2]) {
    // Nothing that is late may use the grace up.
    with_sources(House::with(|options| options.grace = LONG).await).await
}

async fn with_sources(house: House) -> (House, [Arc<Source>; 2]) {
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

/// The sources that brought something to a list over a pipe, and how long that took. What else is said is left out.
async fn listed_in(client: &mut Client, method: &str) -> (Vec<String>, Duration) {
    let began = tokio::time::Instant::now();
    client.send(&rpc(1, method, json!({}))).await;
    let answer = loop {
        let said = client.next().await;
        if said["id"] == 1 {
            break said["result"].to_string();
        }
    };
    let brought = ["alpha", "beta"].into_iter().filter(|source| answer.contains(source)).map(str::to_owned).collect();
    (brought, began.elapsed())
}

async fn introduced(house: &House) -> Client {
    let mut client = Client::of(house);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}))).await;
    client
}

/// Lets so many seconds pass.
async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

const KINDS: [&str; 3] = ["prompts/list", "resources/list", "resources/templates/list"];
const BOTH: [&str; 2] = ["alpha", "beta"];

#[tokio::test(start_paused = true)]
async fn a_list_that_does_not_come_is_given_up_after_half_a_minute() {
    let (house, [alpha, _]) = house().await;
    let mut client = introduced(&house).await;
    let (brought, took) = listed_in(&mut client, "prompts/list").await;
    assert_eq!((brought, took.as_secs()), (vec!["beta".to_owned()], 2));
    let given_up = || alpha.given_up.lock().expect("lock").clone();
    pass(29).await;
    assert_eq!((given_up(), alpha.busy.load(Ordering::Relaxed)), (vec![], 1));
    pass(2).await;
    assert_eq!((given_up(), alpha.busy.load(Ordering::Relaxed)), (vec!["prompts/list".to_owned()], 0));
    alpha.is_silent.send_replace(false);
    assert_eq!(listed_in(&mut client, "prompts/list").await.0, BOTH);
}

#[tokio::test(start_paused = true)]
async fn late_lists_of_one_server_are_made_one_after_another() {
    let (house, [alpha, _]) = house().await;
    let mut client = introduced(&house).await;
    for method in KINDS {
        assert_eq!(listed_in(&mut client, method).await.0, ["beta"]);
    }
    // Who asks once more waits for the same, and makes it no more.
    for method in KINDS {
        let (brought, took) = listed_in(&mut client, method).await;
        assert_eq!((brought, took.as_secs()), (vec!["beta".to_owned()], 1), "{method}");
    }
    assert_eq!(alpha.busy.load(Ordering::Relaxed), 1);
    // They come all the same, one after another.
    alpha.is_silent.send_replace(false);
    let mut told = Vec::new();
    for _ in KINDS {
        told.push(client.next().await["method"].as_str().expect("a notice").to_owned());
    }
    told.sort();
    assert_eq!(told, ["prompts", "resources", "resources"].map(|part| format!("notifications/{part}/list_changed")));
    for method in KINDS {
        assert_eq!(listed_in(&mut client, method).await.0, BOTH, "{method}");
    }
    // Of one that says nothing at all none goes on for ever.
    alpha.is_silent.send_replace(true);
    for method in KINDS {
        listed_in(&mut client, method).await;
    }
    pass(120).await;
    assert_eq!(alpha.busy.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_nobody_waits_for_holds_no_call_of_its_server_back() {
    let (house, [alpha, _]) = with_sources(House::one_by_one(|options| options.grace = LONG).await).await;
    let mut client = introduced(&house).await;
    // As long as it is waited for it has its place in the line, as every call has.
    let began = tokio::time::Instant::now();
    client.send(&rpc(1, "prompts/list", json!({}))).await;
    client.send(&call(2, "alpha__meta", json!({}))).await;
    let mut answered = [client.next().await["id"].take(), client.next().await["id"].take()];
    answered.sort_by_key(Value::as_i64);
    assert_eq!((answered, began.elapsed().as_secs()), ([json!(1), json!(2)], 2));
    let began = tokio::time::Instant::now();
    assert!(client.ask(&call(3, "alpha__meta", json!({}))).await["result"]["isError"].is_null());
    assert_eq!((began.elapsed().as_secs(), alpha.busy.load(Ordering::Relaxed)), (0, 1), "it goes on");
    // So does one that is made after it, and they are made one after another still.
    assert_eq!(listed_in(&mut client, "resources/list").await.0, ["beta"]);
    alpha.is_silent.send_replace(false);
    // Of two pages.
    *alpha.delay.lock().expect("lock") = Duration::from_secs(4);
    assert_eq!(client.next().await["method"], "notifications/prompts/list_changed");
    pass(1).await;
    assert_eq!(alpha.busy.load(Ordering::Relaxed), 1);
    let began = tokio::time::Instant::now();
    client.ask(&call(4, "alpha__meta", json!({}))).await;
    assert_eq!(began.elapsed().as_secs(), 0);
    assert_eq!(client.next().await["method"], "notifications/resources/list_changed");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_always_is_late_holds_a_list_up_for_a_second() {
    let (house, [alpha, _]) = house().await;
    let mut client = introduced(&house).await;
    alpha.is_silent.send_replace(false);
    *alpha.delay.lock().expect("lock") = Duration::from_secs(4);
    assert_eq!(listed_in(&mut client, "prompts/list").await.1.as_secs(), 2);
    for idle in [3, 10, 60] {
        pass(idle).await;
        let (brought, took) = listed_in(&mut client, "prompts/list").await;
        assert_eq!((brought, took.as_secs()), (BOTH.map(str::to_owned).to_vec(), 1), "after {idle} s");
        pass(8).await;
    }
    // Once it has answered within what others have, it has that too.
    *alpha.delay.lock().expect("lock") = Duration::from_millis(1500);
    for expect in [10, 15, 15] {
        assert_eq!(listed_in(&mut client, "prompts/list").await.1.as_millis() / 100, expect);
        pass(8).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_late_is_told_of_and_not_shown_any_more() {
    let (house, [alpha, _]) = house().await;
    let mut client = introduced(&house).await;
    alpha.is_silent.send_replace(false);
    assert_eq!(listed_in(&mut client, "prompts/list").await.0, BOTH);
    *alpha.delay.lock().expect("lock") = Duration::from_secs(7);
    alpha.is_failing.store(true, Ordering::Relaxed);
    assert_eq!(listed_in(&mut client, "prompts/list").await.0, BOTH, "what it listed last stands for it");
    assert_eq!(client.next().await["method"], "notifications/prompts/list_changed");
    assert_eq!(listed_in(&mut client, "prompts/list").await.0, ["beta"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_in_the_place_of_another_does_not_get_its_late_list() {
    let (house, _) = house().await;
    let mut client = introduced(&house).await;
    assert_eq!(listed_in(&mut client, "prompts/list").await.0, ["beta"]);
    let other = Source::new("alpha");
    *other.delay.lock().expect("lock") = Duration::from_millis(1500);
    house.catalogue.put_provider(other.clone()).await.expect("the one before");
    // Nor is it thought to be as slow.
    let (brought, took) = listed_in(&mut client, "prompts/list").await;
    assert_eq!((brought, took.as_millis() / 100), (BOTH.map(str::to_owned).to_vec(), 15));
}

#[tokio::test(start_paused = true)]
async fn templates_are_not_listed_at_every_read_while_a_server_fails() {
    let (house, [alpha, beta]) = house().await;
    let mut client = introduced(&house).await;
    alpha.is_silent.send_replace(false);
    alpha.is_failing.store(true, Ordering::Relaxed);
    async fn read(client: &mut Client, uri: &str) -> Option<String> {
        let answer = client.ask(&rpc(1, "resources/read", json!({"uri": uri}))).await;
        answer["result"]["contents"][0]["text"].as_str().map(str::to_owned)
    }
    for _ in 0..3 {
        assert_eq!(read(&mut client, "beta://5/data").await.as_deref(), Some("beta"));
    }
    assert_eq!(beta.times("resources/templates/list"), 1);
    // What fits none of them may be of one that was missing.
    alpha.is_failing.store(false, Ordering::Relaxed);
    assert_eq!(read(&mut client, "alpha://7/data").await.as_deref(), Some("alpha"));
    // And what fits one may be nearer to one that was.
    alpha.is_failing.store(true, Ordering::Relaxed);
    assert_eq!(listed_in(&mut client, "resources/templates/list").await.0, ["beta"]);
    let before = beta.times("resources/templates/list");
    for (seconds, more) in [(29, 0), (2, 1), (2, 1)] {
        pass(seconds).await;
        assert_eq!(read(&mut client, "beta://5/data").await.as_deref(), Some("beta"));
        assert_eq!(beta.times("resources/templates/list") - before, more);
    }
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

#[tokio::test(start_paused = true)]
async fn a_notice_that_was_lost_among_many_makes_a_late_list_news() {
    let (house, [alpha, _]) = house().await;
    let mut client = introduced(&house).await;
    alpha.is_silent.send_replace(false);
    assert_eq!(listed_in(&mut client, "resources/list").await.0, BOTH);
    alpha.is_silent.send_replace(true);
    assert_eq!(listed_in(&mut client, "resources/list").await.0, BOTH, "what it listed last stands for it");
    alpha.tell(SourceNotice::ResourcesChanged);
    for _ in 0..400 {
        alpha.tell(SourceNotice::Log(json!({"level": "debug", "data": "x"})));
    }
    // The client has missed some too, and so has it of this.
    let changed = "notifications/resources/list_changed";
    while client.next().await["method"] != changed {}
    let listed = listed_in(&mut client, "resources/list").await;
    assert_eq!((listed.0, listed.1.as_secs()), (BOTH.map(str::to_owned).to_vec(), 1), "the list that was kept");
    // It is the same as before, as far as is known.
    alpha.is_silent.send_replace(false);
    while client.next().await["method"] != changed {}
}
