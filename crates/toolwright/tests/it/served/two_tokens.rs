//! Two tokens of one server: each has its own sessions, memory, groups, triggers and budget.

use std::time::Duration;

use serde_json::{Value, json};
use toolwright::core::agents::Rights;
use toolwright::core::session::Principal;
use toolwright::core::trigger::{Creator, FiringState, Target, TriggerRequest, Triggers as _};
use toolwright::{Builder, Profile, Toolwright};
use toolwright_testkit::model_server::Turn;

use crate::served::facades::{MODEL, Served, request};
use crate::support::{builder, calls, scripted};

fn with_guests(dir: &std::path::Path, tokens: Value) -> Builder {
    builder().builtins(true).state_dir(dir.join("state")).root(dir).settings(json!({
        "defaults": {"triggers": true, "groups": true}, "models": {"default": MODEL}, "server": {"tokens": tokens},
        "channels": {"news": {"reach": "shared"}},
    }))
}

async fn ask(served: &Served, token: &str) {
    let path = "/v1/chat/completions";
    let answered = served.send("POST", path, &format!("x-api-key: {token}"), &request(path, "x", false)).await;
    assert_eq!(answered.status, 200, "{}", answered.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_principals_are_isolated() {
    let dir = tempfile::tempdir().expect("dir");
    let timer = json!({"interval": "1d", "prompt": "Look"});
    let turns = vec![
        Turn::calls(vec![
            ("memory__scratchpad", json!({"op": "set", "key": "color", "value": "vermilion"})),
            ("group__add_agent", json!({"name": "scout"})),
            ("channel__send", json!({"channel": "news", "message": "The tide is marmalade."})),
            ("trigger__timer", timer),
        ]),
        Turn::text("The marmalade is on the shelf."),
        Turn::calls(vec![
            ("memory__search", json!({"query": "marmalade", "mode": "text"})),
            ("memory__search", json!({"query": "vermilion", "mode": "text"})),
            ("group__status", json!({})),
            ("channel__read", json!({"channel": "news"})),
            ("job__list", json!({})),
        ]),
        calls("group__send", json!({"name": "scout", "message": "hi"})),
        Turn::text("Nothing.")
            .expecting("it has no such member", |asked| asked.last_result_text().contains("no member `scout`")),
    ];
    let tokens = json!({"ann": {"token": "anns"}, "bob": {"token": "bobs"}});
    let (builder, model) = scripted(with_guests(dir.path(), tokens), turns).await;
    let served = Served::under(Profile::Trusted, builder).await;
    ask(&served, "anns").await;
    let triggers = served.tw.triggers().of_root(dir.path()).await.expect("triggers");
    assert_eq!(triggers[0].rights.principal.id, "ann");
    ask(&served, "bobs").await;
    assert_eq!(model.failures(), Vec::<String>::new());
    let seen = model.requests()[3].body.to_string();
    assert!(seen.contains("The group has no members."), "{seen}");
    for kept in ["The tide is", "on the shelf", "scratch.color", &*triggers[0].id] {
        assert!(!seen.contains(kept), "{kept} in {seen}");
    }
    served.end().await;
}

/// Why the latest firing has failed, once it has.
async fn failure(tw: &Toolwright) -> String {
    let ended = async {
        loop {
            let firings = tw.triggers().firings(None, 1).await.expect("firings");
            match firings.first().filter(|firing| firing.state == FiringState::Failed) {
                Some(firing) => break firing.error.clone().unwrap_or_default(),
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.expect("it fails")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_triggers_count_against_their_budget() {
    let dir = tempfile::tempdir().expect("dir");
    let turns = vec![
        calls("trigger__timer", json!({"interval": "1d", "immediate": true, "prompt": "Look"})),
        Turn::text("Installed."),
        calls("group__status", json!({})),
    ];
    let tokens = json!({"guest": {"token": "guests", "budget": {"requests": 3}}});
    let (builder, model) = scripted(with_guests(dir.path(), tokens), turns).await;
    let served = Served::under(Profile::Trusted, builder).await;
    ask(&served, "guests").await;
    let _running = served.tw.run_triggers().await;
    let why = failure(&served.tw).await;
    assert!(why.contains("budget.requests"), "{why}");
    assert_eq!(model.requests().len(), 3, "the run of the trigger had the one request that was left");
    let budgets = served.get("/api/budgets").await.json()["tokens"].clone();
    assert_eq!(budgets[0]["spent"]["requests"], 3, "{budgets}");
    served.end().await;
}

#[tokio::test]
async fn triggers_end_with_their_token() {
    let dir = tempfile::tempdir().expect("dir");
    let (builder, model) = scripted(with_guests(dir.path(), json!({})), Vec::new()).await;
    let tw = builder.build().await.expect("builds");
    let config = json!({"type": "timer", "interval": "1d", "immediate": true, "prompt": "Look"});
    let guest = Principal { id: "guest".into(), roles: Vec::new(), owner: false };
    let request = TriggerRequest {
        id: None,
        config: serde_json::from_value(config).expect("a trigger"),
        target: Target::Run,
        rights: Rights { principal: guest, ..tw.owners_rights() },
        creator: Creator::Owner,
    };
    tw.triggers().install(request).await.expect("installed");
    let _running = tw.run_triggers().await;
    let why = failure(&tw).await;
    assert!(why.contains("`server.tokens` has no such token"), "{why}");
    assert_eq!(model.requests().len(), 0);
    tw.shut_down().await;
}
