//! Triggers that agents install: what they start has the rights of its creator.

use std::path::Path;

use serde_json::json;
use toolwright::{Builder, Profile};
use toolwright_testkit::model_server::Turn;

use crate::support::{builder, calls, scripted, until};

const MODEL: &str = "scripted/model";

fn with_triggers(state: &Path, agents: serde_json::Value) -> Builder {
    builder().builtins(true).policy(Profile::Trusted).state_dir(state).settings(json!({
        "defaults": {"triggers": true}, "models": {"default": MODEL}, "agents": agents,
    }))
}

fn report(text: &str) -> Turn {
    Turn::calls(vec![("agent__final_report", json!({"status": "success", "format": "text", "content": text}))])
}

#[tokio::test]
async fn a_firing_keeps_the_rules_of_its_creator() {
    let dir = tempfile::tempdir().expect("dir");
    let agents = json!({"clerk": {
        "description": "Writes.", "tools": ["fs__write", "trigger__timer"], "policy": "trusted",
        "rules": [{"effect": "deny", "tool": "fs:write"}], "limits": {"tokens": 50_000},
    }});
    let turns = vec![
        calls("trigger__timer", json!({"interval": "1d", "immediate": true, "prompt": "Write a.txt"})),
        report("Installed."),
        calls("fs__write", json!({"path": "a.txt", "content": "x"})).expecting("a run of its own begins", |asked| {
            asked.last_user_text() == "Write a.txt" && !asked.tool_names().iter().any(|name| name == "fs__read")
        }),
        Turn::text("It is forbidden.").expecting("the rule holds", |asked| asked.last_result_text().contains("denied")),
    ];
    let root = tempfile::tempdir().expect("dir");
    let (builder, model) = scripted(with_triggers(dir.path(), agents).root(root.path()), turns).await;
    let tw = builder.build().await.expect("builds");
    tw.agent_named("clerk").expect("an agent").task("Write it each day").run().await.expect("runs");
    let _triggers = tw.run_triggers().await;
    until("it has fired", || model.requests().len() == 4).await;
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    assert!(!root.path().join("a.txt").exists());
    let trigger = tw.triggers().of_root(root.path()).await.expect("listed").remove(0);
    assert_eq!(trigger.rights.limits.tokens, Some(50_000), "{:?}", trigger.rights);
    tw.shut_down().await;
}
