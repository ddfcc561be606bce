//! Triggers: what they start has the rights of whoever made them.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright::core::agents::Rights;
use toolwright::core::session::{Principal, SessionId};
use toolwright::core::trigger::{Creator, Firing, FiringState, Target, TriggerRequest, Triggers as _};
use toolwright::{ApprovalDecision, ApprovalRequest, Builder, Profile, tool};
use toolwright_testkit::model_server::Turn;

use crate::support::{builder, calls, scripted, until};

const MODEL: &str = "scripted/model";

fn with_triggers(state: &Path, agents: Value) -> Builder {
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

/// An instance that runs triggers of its configuration under the profile `ask`.
fn configured(state: &Path, root: &Path, defaults: Value, rules: Value) -> Builder {
    with_triggers(state, json!({})).policy(Profile::Ask).root(root).settings(json!({
        "defaults": defaults, "models": {"default": MODEL}, "policy": {"rules": rules},
        "triggers": {"daily": {"type": "timer", "interval": "1d", "immediate": true, "prompt": "Write a.txt"}},
    }))
}

fn write() -> Turn {
    calls("fs__write", json!({"path": "a.txt", "content": "x"}))
}

#[tokio::test]
async fn a_configured_trigger_has_the_configurations_rules() {
    let (state, root) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
    let allow = json!([{"effect": "allow", "tool": "fs:write"}]);
    let builder = configured(state.path(), root.path(), json!({}), allow);
    let (builder, model) = scripted(builder, vec![write(), Turn::text("Written.")]).await;
    let tw = builder.build().await.expect("builds");
    let _triggers = tw.run_triggers().await;
    until("it has run", || model.requests().len() == 2).await;
    assert!(root.path().join("a.txt").exists());
    assert!(tw.inbox().questions(None, 9).await.expect("questions").is_empty(), "nobody is asked");
    tw.shut_down().await;
}

#[tokio::test]
async fn a_firings_question_waits_as_configured() {
    for (defaults, expect) in [(json!({}), 7 * 24 * 3_600_000), (json!({"approval_time": "2h"}), 2 * 3_600_000)] {
        let (state, root) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
        let builder = configured(state.path(), root.path(), defaults.clone(), json!([]));
        let (builder, model) = scripted(builder, vec![write(), Turn::text("I wait.")]).await;
        let tw = builder.build().await.expect("builds");
        let _triggers = tw.run_triggers().await;
        until("it was asked", || model.requests().len() == 2).await;
        let asked = tw.inbox().questions(None, 9).await.expect("questions").remove(0);
        assert_eq!(asked.expires_ms - asked.created_ms, expect, "{defaults}");
        tw.shut_down().await;
    }
}

#[tokio::test]
async fn a_creator_without_tools_starts_none() {
    let (state, root) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
    let turn = || {
        Turn::text("Done.").expecting("it has its creator's tools", |asked| {
            let has_tools = asked.tool_names().iter().any(|name| !name.starts_with("agent__"));
            has_tools == (asked.last_user_text() == "some")
        })
    };
    let turns = vec![turn(), turn()];
    let (builder, model) = scripted(with_triggers(state.path(), json!({})).root(root.path()), turns).await;
    let tw = builder.build().await.expect("builds");
    for (prompt, tools) in [("some", None), ("no", Some(Vec::new()))] {
        let config = json!({"type": "timer", "interval": "1d", "prompt": prompt});
        let request = TriggerRequest {
            id: None,
            config: serde_json::from_value(config).expect("a trigger"),
            target: Target::Run,
            rights: Rights { tools, ..tw.owners_rights() },
            creator: Creator::Owner,
        };
        let trigger = tw.triggers().install(request).await.expect("installed").trigger;
        tw.triggers().fire(&trigger.id).await.expect("fires");
    }
    let _triggers = tw.run_triggers().await;
    until("both have run", || model.requests().len() == 2).await;
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    tw.shut_down().await;
}

/// Answers those with a role.
#[tool(namespace = "ops", allowed_roles = ["ops"], effects(read_only, open_world = false))]
async fn restart() -> String {
    "restarted".to_owned()
}

#[tokio::test]
async fn a_firing_has_its_tokens_roles() {
    for (tokens, expect) in [
        (json!({"guest": {"token": "other", "roles": ["ops"]}}), Ok(true)),
        (json!({"guest": {"token": "other"}}), Ok(false)),
        (json!({}), Err("no such token any more")),
    ] {
        let (state, root) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
        let builder = with_triggers(state.path(), json!({})).root(root.path()).tool(Restart);
        let builder = builder.settings(json!({"models": {"default": MODEL}, "server": {"tokens": tokens}}));
        let turn = Turn::text("Done.").expecting("it has the tools of its roles", move |asked| {
            expect == Ok(asked.tool_names().iter().any(|name| name == "ops__restart"))
        });
        let (builder, model) = scripted(builder, vec![turn]).await;
        let tw = builder.build().await.expect("builds");
        let principal = Principal { id: "guest".into(), roles: vec!["ops".into()], owner: false };
        // What a session gets is sent without a run.
        for target in [Target::Run, Target::Session(SessionId::new("guests"))] {
            let config = json!({"type": "timer", "interval": "1d", "prompt": "p"});
            let request = TriggerRequest {
                id: None,
                config: serde_json::from_value(config).expect("a trigger"),
                target,
                rights: Rights { principal: principal.clone(), ..tw.owners_rights() },
                creator: Creator::Owner,
            };
            let trigger = tw.triggers().install(request).await.expect("installed").trigger;
            tw.triggers().fire(&trigger.id).await.expect("fires");
        }
        let _triggers = tw.run_triggers().await;
        let is_over = |firing: &Firing| matches!(firing.state, FiringState::Done | FiringState::Failed);
        let firings = loop {
            let firings = tw.triggers().firings(None, 9).await.expect("firings");
            if firings.iter().all(is_over) {
                break firings;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let errors: Vec<&str> = firings.iter().filter_map(|firing| firing.error.as_deref()).collect();
        match expect {
            Ok(_) => {
                assert_eq!(errors, [""; 0]);
                assert_eq!((model.requests().len(), model.failures()), (1, Vec::new()));
            }
            Err(why) => {
                assert_eq!(errors.len(), 2);
                assert!(errors.iter().all(|error| error.contains(why)), "{errors:?}");
                assert!(model.requests().is_empty());
            }
        }
        tw.shut_down().await;
    }
}

#[tokio::test]
async fn triggers_of_attended_runs_wake_them() {
    let (state, root) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
    let agents = json!({"clerk": {"description": "Writes."}});
    for (n, (reads_mailbox, more, wakes)) in [
        (false, json!({}), false),
        (true, json!({}), true),
        (true, json!({"deliver": "run"}), false),
        (true, json!({"agent": "clerk"}), false),
        (false, json!({"deliver": "session"}), true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut arguments = json!({"interval": "1d", "prompt": "Look"});
        arguments.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let turns = vec![calls("trigger__timer", arguments), Turn::text("Installed.")];
        let builder = with_triggers(&state.path().join(n.to_string()), agents.clone()).root(root.path());
        let (builder, _model) = scripted(builder, turns).await;
        let tw = builder.build().await.expect("builds");
        let agent = tw.agent(MODEL).policy(Profile::Trusted).id("mine").task("Look each day");
        let agent = if reads_mailbox { agent.reading_mailbox() } else { agent };
        agent.run().await.expect("runs");
        let target = tw.triggers().of_root(root.path()).await.expect("listed").remove(0).target;
        let expect = if wakes { Target::Session(SessionId::new("mine")) } else { Target::Run };
        assert_eq!(target, expect, "attended: {reads_mailbox}, {more}");
        tw.shut_down().await;
    }
}

#[tokio::test]
async fn a_person_is_asked_about_a_trigger() {
    let (state, root) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
    for (decision, installed) in [(ApprovalDecision::Deny { reason: "No.".into() }, 0), (ApprovalDecision::Approve, 1)]
    {
        let turns = vec![calls("trigger__timer", json!({"interval": "1d", "prompt": "Look"})), Turn::text("Done.")];
        let builder = with_triggers(state.path(), json!({})).policy(Profile::Ask).root(root.path());
        let (builder, _model) = scripted(builder, turns).await;
        let tw = builder.build().await.expect("builds");
        let agent = tw.agent(MODEL).approver(move |asked: &ApprovalRequest| {
            assert_eq!(asked.tool.without_version(), "trigger:timer");
            decision.clone()
        });
        agent.task("Look each day").run().await.expect("runs");
        assert_eq!(tw.triggers().of_root(root.path()).await.expect("listed").len(), installed);
        tw.shut_down().await;
    }
}
