//! Prompts and resources of servers that are slow, fail, or come back: the catalogue keeps what they listed last.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::catalogue::{Health, ProviderKind, SourceNotice};
use toolwright_core::policy::{Policy, Profile};
use toolwright_testkit::{FakeList, FakeProvider, definition, own};

use crate::protocol::stdio::{Client, modern};
use crate::sources::Source;
use crate::support::{Fixture, LEGACY, rpc};

const KINDS: [&str; 3] = ["prompts/list", "resources/list", "resources/templates/list"];

/// Two sources that announce no changes of their lists, the first of which does not answer.
async fn fixture() -> (Fixture, [Source; 2]) {
    let fixture = Fixture::new().await;
    let announced = json!({"resources": {"subscribe": true}, "prompts": {}, "completions": {}});
    let sources = [Source::with("alpha", announced.clone()), Source::with("beta", announced)];
    sources[0].is_silent.send_replace(true);
    for source in &sources {
        fixture.add(source.provider()).await;
    }
    (fixture, sources)
}

async fn introduced(fixture: &Fixture) -> Client {
    let mut client = Client::of(fixture);
    client.ask(&rpc(0, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}))).await;
    client
}

/// The answer to a request; what else is said meanwhile is left out.
async fn answer(client: &mut Client, method: &str, params: Value) -> Value {
    client.send(&rpc(1, method, params)).await;
    loop {
        let said = client.next().await;
        if said["id"] == 1 {
            return said;
        }
    }
}

/// The sources that bring something to a list.
async fn listed(client: &mut Client, method: &str) -> Vec<&'static str> {
    let answer = answer(client, method, json!({})).await["result"].to_string();
    ["alpha", "beta"].into_iter().filter(|source| answer.contains(source)).collect()
}

async fn reported(client: &mut Client, method: &str) {
    while client.next().await["method"] != method {}
}

#[tokio::test(start_paused = true)]
async fn first_instructions_await_a_slow_server() {
    for (seconds, expect) in [(1, true), (5, false)] {
        let legacy = rpc(1, "initialize", json!({"protocolVersion": LEGACY, "capabilities": {}}));
        for asked in [legacy, modern(1, "server/discover", json!({}))] {
            let fixture = Fixture::new().await;
            let tools = vec![own(definition("slow:echo@1.0.0"))];
            let slow = FakeProvider::new("slow", ProviderKind::Mcp, Vec::new());
            slow.lists(FakeList::After(Duration::from_secs(seconds), tools));
            let slow = slow.with(|slow| (slow.instructions, slow.health) = (Some("Be patient."), Health::Starting));
            fixture.catalogue.add_provider(Arc::new(slow)).await.expect("added");
            let catalogue = Arc::clone(&fixture.catalogue);
            tokio::spawn(async move { catalogue.refresh("slow").await });
            let answer = Client::of(&fixture).ask(&asked).await;
            let reported = answer["result"]["instructions"].to_string();
            assert_eq!(reported.contains("Be patient."), expect, "{asked} of one that takes {seconds} s: {answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_server_hides_only_its_lists() {
    let (fixture, [alpha, _]) = fixture().await;
    let mut client = introduced(&fixture).await;
    let began = tokio::time::Instant::now();
    for method in KINDS {
        assert_eq!(listed(&mut client, method).await, ["beta"], "{method}");
    }
    for (method, params) in [
        ("prompts/get", json!({"name": "beta__hello"})),
        ("resources/read", json!({"uri": "beta://one"})),
        ("resources/read", json!({"uri": "beta://5/data"})),
        ("resources/subscribe", json!({"uri": "beta://two"})),
    ] {
        let answer = answer(&mut client, method, params).await;
        assert!(answer["result"].is_object(), "{method}: {answer}");
    }
    assert!(began.elapsed() < Duration::from_secs(4), "only the start is waited for: {:?}", began.elapsed());
    // What comes late is announced.
    alpha.is_silent.send_replace(false);
    reported(&mut client, "notifications/prompts/list_changed").await;
    for method in KINDS {
        assert_eq!(listed(&mut client, method).await, ["alpha", "beta"], "{method}");
    }
    assert_eq!(KINDS.map(|method| alpha.times(method)), [1; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_list_keeps_the_last_one() {
    let (fixture, [alpha, _]) = fixture().await;
    let mut client = introduced(&fixture).await;
    // Of one that has listed nothing yet there is nothing to show.
    alpha.is_failing.store(true, Ordering::Relaxed);
    alpha.is_silent.send_replace(false);
    assert_eq!(listed(&mut client, "prompts/list").await, ["beta"]);
    alpha.is_failing.store(false, Ordering::Relaxed);
    reported(&mut client, "notifications/prompts/list_changed").await;
    assert_eq!(listed(&mut client, "prompts/list").await, ["alpha", "beta"]);
    alpha.is_failing.store(true, Ordering::Relaxed);
    let before = alpha.times("prompts/list");
    alpha.send_notice(SourceNotice::PromptsChanged);
    while alpha.times("prompts/list") < before + 2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(listed(&mut client, "prompts/list").await, ["alpha", "beta"]);
    let issues = fixture.catalogue.snapshot().issues().to_vec();
    assert!(issues.iter().any(|issue| issue.message == "its prompts could not be listed: it is broken"), "{issues:?}");
    alpha.is_failing.store(false, Ordering::Relaxed);
    reported(&mut client, "notifications/prompts/list_changed").await;
    let listed = answer(&mut client, "prompts/list", json!({})).await["result"].to_string();
    assert!(listed.contains("new1"), "{listed}");
    assert!(fixture.catalogue.snapshot().issues().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stale_unannounced_list_is_refreshed() {
    let (fixture, [alpha, beta]) = fixture().await;
    alpha.is_silent.send_replace(false);
    let mut client = introduced(&fixture).await;
    for (seconds, times) in [(0, 1), (20, 1), (20, 2), (20, 2), (20, 3)] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        listed(&mut client, "prompts/list").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(beta.times("prompts/list"), times, "after {seconds} s more");
    }
}

#[tokio::test]
async fn a_denied_list_method_hides_the_list() {
    let (fixture, [alpha, _]) = fixture().await;
    alpha.is_silent.send_replace(false);
    let mut client = introduced(&fixture).await;
    for method in KINDS {
        assert_eq!(listed(&mut client, method).await, ["alpha", "beta"], "{method}");
    }
    let rules = json!([{"effect": "deny", "tool": "alpha:resources_list", "reason": "not for you"}]);
    let policy = Policy { rules: serde_json::from_value(rules).expect("rules"), ..Policy::of(Profile::Client) };
    fixture.gateway.set_policy(Arc::new(policy));
    for (method, expect) in KINDS.into_iter().zip([&["alpha", "beta"][..], &["beta"], &["alpha", "beta"]]) {
        assert_eq!(listed(&mut client, method).await, expect, "{method}");
    }
    let read = answer(&mut client, "resources/read", json!({"uri": "alpha://7/data"})).await;
    assert_eq!(read["result"]["contents"][0]["text"], "alpha", "what is found by its template can be read");
}
