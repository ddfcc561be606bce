//! Groups: agents that stay, with a mailbox each.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use toolwright::core::approval::{ApprovalDecision, ApprovalRequest};
use toolwright::core::store::{MAX_HOPS, MAX_WAITING};
use toolwright::{Builder, Profile};
use toolwright_testkit::model_server::{RecordedRequest, Reply, Turn};

use crate::support::{builder, calls, scripted, until};

const MODEL: &str = "scripted/model";
const LONG: Duration = Duration::from_secs(20);

fn with_groups(state: &Path) -> Builder {
    builder().builtins(true).policy(Profile::Trusted).state_dir(state).settings(json!({
        "defaults": {"groups": true}, "models": {"default": MODEL},
    }))
}

/// Answers the sender of the last message.
fn answer(text: &'static str) -> Turn {
    Turn::computed(move |asked: &RecordedRequest| {
        let said = asked.last_user_text();
        let sender =
            said.trim_start_matches("[toolwright notice] ").split(" sent a message").next().unwrap_or_default();
        Reply::calls(vec![("group__send", json!({"name": sender, "message": text}))])
    })
}

/// The last answers of the member and of whoever it told: either may ask first.
fn last() -> Turn {
    Turn::computed(|asked: &RecordedRequest| {
        let said = asked.last_user_text();
        Reply::text(if said.starts_with("[toolwright notice] scout sent") { said } else { "Told.".to_owned() })
    })
}

#[tokio::test]
async fn a_member_survives_a_restart() {
    let dir = tempfile::tempdir().expect("dir");
    let turns = vec![
        calls("group__add_agent", json!({"name": "scout", "instructions": "You look around."})),
        calls("group__start", json!({"name": "scout", "message": "What is there?"})),
        Turn::text("The scout is on its way."),
        answer("A hill.").expecting("its task is there", |asked| asked.last_user_text().ends_with("What is there?")),
        last(),
        last(),
    ];
    let (builder, model) = scripted(with_groups(dir.path()), turns).await;
    let tw = builder.build().await.expect("builds");
    let mut lead = tw.agent(MODEL).policy(Profile::Trusted).conversation().await.expect("begins");
    lead.send("Send the scout").await.expect("runs");
    let driven = tw.drive_groups();
    tokio::time::timeout(LONG, lead.receive()).await.expect("in time").expect("is told");
    let report = lead.proceed().await.expect("runs");
    assert_eq!(report.answer, "[toolwright notice] scout sent a message:\nA hill.");
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    let status = tw.call("group__status", json!({})).await.expect("status").text();
    assert_eq!(status, "scout is started; 0 messages wait");
    drop((driven, lead));
    tw.shut_down().await;
    drop(tw);

    let turns = vec![
        answer("A lake.").expecting("it remembers", |asked| asked.body.to_string().contains("A hill.")),
        Turn::text("Told."),
    ];
    let (builder, model) = scripted(with_groups(dir.path()), turns).await;
    let tw = builder.build().await.expect("builds");
    tw.call("group__send", json!({"name": "scout", "message": "And now?"})).await.expect("sent");
    let _driven = tw.drive_groups();
    let (log, own) = (&tw.executor().services().log, tw.call_session());
    assert!(tokio::time::timeout(LONG, log.wait(&own.id, 0, LONG)).await.expect("in time").expect("waited"));
    let mail = log.messages(&own.id, 0, 9).await.expect("mail");
    assert_eq!(mail[0].message().map(|message| &*message.text), Some("A lake."));
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    tw.shut_down().await;
}

#[tokio::test]
async fn questions_of_members_name_them() {
    let (dir, root) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
    let turns = vec![calls("fs__write", json!({"path": "a.txt", "content": "a"})), Turn::text("Written.")];
    let (asked, mut questions) = tokio::sync::mpsc::unbounded_channel();
    let approver = move |request: &ApprovalRequest| {
        let _ = asked.send(request.agent_path());
        ApprovalDecision::Approve
    };
    let groups = with_groups(dir.path()).root(root.path()).policy(Profile::Ask).approver(approver);
    let (builder, _model) = scripted(groups, turns).await;
    let tw = builder.build().await.expect("builds");
    tw.call("group__add_agent", json!({"name": "scout"})).await.expect("added");
    tw.call("group__start", json!({"name": "scout", "message": "Write."})).await.expect("started");
    let _driven = tw.drive_groups();
    let mut paths = async || tokio::time::timeout(LONG, questions.recv()).await.expect("in time").expect("asked");
    // Before it, whoever added it may have been asked.
    while paths().await.as_deref() != Some("scout") {}
    tw.shut_down().await;
}

/// Writes to the other member whenever it is woken.
fn bounce() -> Turn {
    Turn::computed(|asked: &RecordedRequest| {
        let is_ping = asked.body.to_string().contains("You are `ping`");
        let other = if is_ping { "pong" } else { "ping" };
        let last = asked.body["messages"].as_array().and_then(|messages| messages.last());
        match last.is_some_and(|message| message["role"] == "user") {
            true => Reply::calls(vec![("group__send", json!({"name": other, "message": "Again!"}))]),
            false => Reply::text("Sent."),
        }
    })
}

#[tokio::test]
async fn members_that_wake_each_other_stop() {
    let dir = tempfile::tempdir().expect("dir");
    // Each message wakes one of them, which asks twice.
    let turns = (0..2 * MAX_HOPS).map(|_| bounce()).collect();
    let (builder, model) = scripted(with_groups(dir.path()), turns).await;
    let tw = builder.build().await.expect("builds");
    for name in ["ping", "pong"] {
        tw.call("group__add_agent", json!({"name": name})).await.expect("added");
    }
    tw.call("group__start", json!({"name": "pong"})).await.expect("started");
    tw.call("group__start", json!({"name": "ping", "message": "Go!"})).await.expect("started");
    let _driven = tw.drive_groups();
    until("the last message is refused", || {
        model.requests().iter().any(|request| request.body.to_string().contains("have woken each other"))
    })
    .await;
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    let services = tw.executor().services();
    let mut sent = 0;
    for member in services.groups.members(None).await.expect("members") {
        sent += services.log.messages(&member.session, 0, 99).await.expect("mail").len();
    }
    assert_eq!(sent, MAX_HOPS as usize);
    tw.shut_down().await;
}

#[tokio::test]
async fn members_change_groups_only_if_privileged() {
    let dir = tempfile::tempdir().expect("dir");
    let groups = with_groups(dir.path()).settings(json!({
        "defaults": {"groups": true}, "models": {"default": MODEL}, "agents": {"looker": {"description": "Looks."}},
    }));
    let tw = groups.build().await.expect("builds");
    let said = async |tool: &str, arguments| match tw.call(tool, arguments).await {
        Ok(outcome) => outcome.text(),
        Err(error) => error.to_string(),
    };
    for (tool, arguments, expect) in [
        ("group__status", json!({}), "The group has no members."),
        ("group__add_agent", json!({"name": "b", "agent": "loker"}), "no agent `loker`; did you mean `looker`?"),
        ("group__add_agent", json!({"name": "a"}), "Added a."),
        ("group__add_agent", json!({"name": "a"}), "has a member `a` already"),
        ("group__start", json!({"name": "b"}), "There is no member `b` of the group"),
        ("group__wire", json!({"channel": "news", "name": "a"}), "now wakes a"),
        ("group__channel", json!({"channel": "news", "message": "hear"}), "Sent to channel news."),
        ("group__status", json!({}), "a is stopped; 1 messages wait"),
        ("group__wire", json!({"channel": "news", "name": "a", "wired": false}), "no longer wakes a"),
        ("group__channel", json!({"channel": "news", "message": "hear"}), "Sent to channel news."),
        ("group__send", json!({"name": "a", "message": "hi"}), "Sent to a."),
        ("group__send", json!({"name": "nobody", "message": "hi"}), "There is no member `nobody`"),
        ("group__status", json!({}), "a is stopped; 2 messages wait"),
        ("group__remove_agent", json!({"name": "a"}), "Removed a."),
        ("group__status", json!({}), "The group has no members."),
    ] {
        let text = said(tool, arguments).await;
        assert!(text.contains(expect), "{tool}: {expect} in {text}");
    }
    tw.shut_down().await;
}

#[tokio::test]
async fn a_full_mailbox_error_names_its_member() {
    let dir = tempfile::tempdir().expect("dir");
    let tw = with_groups(dir.path()).build().await.expect("builds");
    tw.call("group__add_agent", json!({"name": "scout"})).await.expect("added");
    let send = || tw.call("group__send", json!({"name": "scout", "message": "hi"}));
    for _ in 0..MAX_WAITING {
        assert_eq!(send().await.expect("sent").text(), "Sent to scout.");
    }
    let said = send().await.map_or_else(|error| error.to_string(), |outcome| outcome.text());
    assert!(said.contains("scout is full: 1000 messages wait") && !said.contains("group-"), "{said}");
    tw.shut_down().await;
}

#[tokio::test]
async fn only_privileged_agents_see_what_changes_groups() {
    let settings = json!({
        "defaults": {"groups": true, "agents": {"turns": 7}}, "models": {"default": MODEL},
        "agents": {"hand": {"description": "d"}, "lead": {"description": "d", "privileged": true}},
    });
    let builder = builder().builtins(true).policy(Profile::Trusted).settings(settings);
    let (builder, model) = scripted(builder, vec![Turn::text("Done."), Turn::text("Done.")]).await;
    let tw = builder.build().await.expect("builds");
    for (n, (name, expect)) in [("hand", false), ("lead", true)].into_iter().enumerate() {
        let agent = tw.agent_named(name).expect("an agent");
        assert_eq!(agent.limits_in_force().turns, 7, "what is configured for all runs counts");
        agent.task("Go.").run().await.expect("runs");
        let tools = model.requests()[n].body["tools"].to_string();
        assert!(tools.contains("group__send"), "{name}: {tools}");
        assert_eq!(tools.contains("group__add_agent"), expect, "{name}: {tools}");
    }
    tw.shut_down().await;
}

#[tokio::test]
async fn a_member_may_be_a_named_agent() {
    let dir = tempfile::tempdir().expect("dir");
    let agent = json!({"looker": {"description": "Looks.", "prompt": "You look.", "tools": ["group__send"]}});
    let turns = vec![
        calls("group__add_agent", json!({"name": "scout", "agent": "looker"})),
        calls("group__start", json!({"name": "scout", "message": "What is there?"})),
        Turn::text("It is on its way."),
        answer("A hill.")
            .expecting("it is the agent", |asked| {
                asked.system().contains("You look.") && !asked.tool_names().iter().any(|name| name == "fs__read")
            })
            .expecting("its task is there", |asked| asked.last_user_text().ends_with("What is there?")),
        last(),
        last(),
    ];
    let builder = with_groups(dir.path()).settings(json!({
        "defaults": {"groups": true}, "models": {"default": MODEL}, "agents": agent,
    }));
    let (builder, model) = scripted(builder, turns).await;
    let tw = builder.build().await.expect("builds");
    let mut lead = tw.agent(MODEL).policy(Profile::Trusted).conversation().await.expect("begins");
    lead.send("Send the scout").await.expect("runs");
    let _driven = tw.drive_groups();
    tokio::time::timeout(LONG, lead.receive()).await.expect("in time").expect("is told");
    let report = lead.proceed().await.expect("runs");
    assert_eq!(report.answer, "[toolwright notice] scout sent a message:\nA hill.");
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    tw.shut_down().await;
}

#[tokio::test]
async fn a_member_has_the_rights_of_its_lead() {
    let dir = tempfile::tempdir().expect("dir");
    let lead = json!({"lead": {
        "description": "Leads.", "privileged": true, "tools": ["group__*", "fs__read", "fs__write"], "policy": "trusted",
        "rules": [{"effect": "deny", "tool": "fs:write"}],
    }});
    let turns = vec![
        calls("group__add_agent", json!({"name": "scout", "privileged": true})),
        calls("group__start", json!({"name": "scout", "message": "What is there?"})),
        Turn::calls(vec![("agent__final_report", json!({"status": "success", "format": "text", "content": "Sent."}))]),
        calls("fs__write", json!({"path": "a.txt", "content": "x"})).expecting("its tools are the lead's", |asked| {
            let names = asked.tool_names();
            names.iter().any(|name| name == "fs__read") && !names.iter().any(|name| name == "shell__bash")
        }),
        calls("group__send", json!({"name": "lead", "message": "A hill."}))
            .expecting("it is denied what its lead is", |asked| asked.last_result_text().contains("denied")),
        Turn::text("Told."),
    ];
    let settings = json!({"defaults": {"groups": true}, "models": {"default": MODEL}, "agents": lead});
    let (builder, model) = scripted(with_groups(dir.path()).settings(settings.clone()), turns).await;
    let elsewhere = tempfile::tempdir().expect("dir");
    let (other, asked) = scripted(with_groups(dir.path()).settings(settings).root(elsewhere.path()), Vec::new()).await;
    let (tw, other) = (builder.build().await.expect("builds"), other.build().await.expect("builds"));
    let _of_another_workspace = other.drive_groups();
    tw.agent_named("lead").expect("an agent").task("Send the scout").run().await.expect("runs");
    let _driven = tw.drive_groups();
    until("the member has worked", || model.requests().len() == 6).await;
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    assert_eq!(asked.requests().len(), 0, "members work in the workspace where they were added");
    tw.shut_down().await;
    other.shut_down().await;
}

#[tokio::test]
async fn a_members_question_waits_in_the_inbox() {
    let (state, root) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
    let turns = vec![
        calls("fs__write", json!({"path": "a.txt", "content": "x"})),
        Turn::text("I wait.").expecting("it waits", |asked| asked.last_result_text().contains("approv")),
    ];
    let builder = with_groups(state.path()).policy(Profile::Ask).root(root.path()).settings(json!({
        "defaults": {"groups": true}, "models": {"default": MODEL},
        "policy": {"rules": [{"effect": "allow", "tool": "group:*"}]},
    }));
    let (builder, model) = scripted(builder, turns).await;
    let tw = builder.build().await.expect("builds");
    tw.call("group__add_agent", json!({"name": "scout"})).await.expect("added");
    tw.call("group__start", json!({"name": "scout", "message": "Write a.txt"})).await.expect("started");
    let _driven = tw.drive_groups();
    until("the member has asked", || model.requests().len() == 2).await;
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    assert!(!root.path().join("a.txt").exists());
    tw.shut_down().await;
}

#[tokio::test]
async fn status_names_workspaces_that_nobody_serves() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().expect("dir"));
    let [state, root, elsewhere] = dirs.each_ref().map(tempfile::TempDir::path);
    let tw = with_groups(state).root(root).build().await.expect("builds");
    let other = with_groups(state).root(elsewhere).build().await.expect("builds");
    tw.call("group__add_agent", json!({"name": "scout"})).await.expect("added");
    tw.call("group__start", json!({"name": "scout"})).await.expect("started");
    let _of_another_workspace = other.drive_groups();
    let status = async || other.call("group__status", json!({})).await.expect("status").text();
    let expect = format!("scout is started, but no process serves its workspace {}", root.display());
    assert!(status().await.starts_with(&expect), "{}", status().await);
    let _driven = tw.drive_groups();
    let is_served = async {
        while status().await != "scout is started; 0 messages wait" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, is_served).await.expect("it is served");
    tw.shut_down().await;
    other.shut_down().await;
}
