//! What binds the agents of one tree together: its time, the notices before its limits, and messages to agents.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use toolwright_agent::{ChildEnd, Limits, RunConfig, RunReport, Status};
use toolwright_core::agents::{AgentConfig, AgentLimits, OnChildren};
use toolwright_core::error::ErrorKind;
use toolwright_core::job::{JobFilter, JobScope, JobState, Jobs as _};
use toolwright_core::store::SessionLog as _;

use crate::fixture::{Reply, begin_with, options, until};
use crate::team::agent_tree::{AgentScripts, Tree, WAIT, WaitingTool, agent, run_and_send, send_to_job, start};

/// A root with these limits, whose answer leaves agents alone.
async fn run_root(tree: &Tree, limits: AgentLimits) -> RunReport {
    let own = Limits { time: limits.time, ..Limits::default() };
    let boss = AgentConfig { on_children: OnChildren::Detach, limits, ..agent("boss") };
    let mut state =
        begin_with(RunConfig { agent: Some(Arc::new(boss)), limits: own, ..RunConfig::new("test/m", "sys") });
    let options = options();
    tokio::time::timeout(WAIT, tree.driver.run(&mut state, &options)).await.unwrap().unwrap()
}

/// A root that starts `a` and answers, and what `a` says.
fn scripts(a: Vec<Reply>) -> AgentScripts {
    let root = vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("early"), Reply::Text("all done")];
    HashMap::from([("root", root), ("a", a)])
}

fn background(name: &str) -> AgentConfig {
    AgentConfig { background: true, ..agent(name) }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_above_bounds_detached_agents() {
    let dir = tempfile::tempdir().unwrap();
    let tree = Tree::new(dir.path(), scripts(vec![Reply::Hang]), vec![background("a")], Vec::new()).await;
    let time = Some(Duration::from_millis(1500));
    let report = run_root(&tree, AgentLimits { time, ..AgentLimits::default() }).await;
    assert_eq!((report.status, report.children[0].end), (Status::Success, ChildEnd::Detached));
    let job = &report.children[0].job;
    let ended = tree.jobs.wait(JobScope::All, job, WAIT).await.unwrap();
    let outcome = ended.outcome.unwrap().model_text();
    assert!(outcome.contains("the time of agent boss was over"), "{outcome}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_warned_once_before_tree_limits() {
    let dir = tempfile::tempdir().unwrap();
    let root = ["1", "2"].map(|id| Reply::Calls(vec![start(id, "agent__a")]));
    let root = root.into_iter().chain([Reply::Calls(vec![("3", "nope", json!({}))]), Reply::Text("done")]).collect();
    let scripts = HashMap::from([("root", root), ("a", vec![Reply::Text("a done")])]);
    let tree = Tree::new(dir.path(), scripts, vec![agent("a")], Vec::new()).await;
    let limits = AgentLimits { agents: Some(2), tokens: Some(1 << 20), ..AgentLimits::default() };
    run_root(&tree, limits).await;
    let reported = tree.results("root");
    assert_eq!(reported.matches("2 of 2 agents were started below agent boss").count(), 1, "{reported}");
    assert!(!reported.contains("tokens"), "{reported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_refuses_a_background_agent_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let slow = WaitingTool::new();
    let root = vec![Reply::Calls(vec![start("1", "agent__a"), start("2", "agent__a")]), Reply::Text("done")];
    let scripts = HashMap::from([("root", root), ("a", vec![Reply::Calls(vec![("1", "t__slow", json!({}))])])]);
    let tree = Tree::new(dir.path(), scripts, vec![background("a")], vec![slow.clone()]).await;
    let report = run_root(&tree, AgentLimits { live: Some(1), ..AgentLimits::default() }).await;
    let failed: Vec<_> = report.calls.iter().filter_map(|call| call.error.as_ref()).map(|error| error.kind).collect();
    assert_eq!(failed, [ErrorKind::LimitExceeded], "{report:?}");
    assert_eq!(
        tree.jobs.list(JobScope::All, JobFilter::All, 9).await.unwrap().len(),
        1,
        "no job is made for the other"
    );
    assert_eq!(tree.agents().await, (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_keeps_an_agent_working() {
    let report = json!({"status": "success", "format": "markdown", "content": "too early"});
    let both = Reply::Calls(vec![("1", "t__slow", json!({})), ("2", "agent__final_report", report)]);
    let dir = tempfile::tempdir().unwrap();
    let slow = WaitingTool::new();
    let agents = vec![background("a")];
    let tree = Tree::new(dir.path(), scripts(vec![both, Reply::Text("with cellar")]), agents, vec![slow.clone()]).await;
    let report = run_and_send(&tree, &slow, "look into the cellar").await;
    assert_eq!(report.answer, "all done");
    assert!(tree.results("a").contains("look into the cellar"), "{}", tree.results("a"));
    assert!(tree.results("root").contains("Its result:\\nwith cellar"), "{}", tree.results("root"));
}

#[tokio::test(flavor = "multi_thread")]
async fn senders_are_notified_of_unread_messages() {
    let dir = tempfile::tempdir().unwrap();
    let slow = WaitingTool::new();
    let work = vec![Reply::Calls(vec![("1", "t__slow", json!({}))])];
    let tree = Tree::new(dir.path(), scripts(work), vec![background("a")], vec![slow.clone()]).await;
    run_root(&tree, AgentLimits::default()).await;
    until(|| slow.began.load(Ordering::SeqCst)).await;
    send_to_job(&tree, "look into the cellar").await;
    let options = options();
    let scope = JobScope::Of(&options.session);
    let job = tree.jobs.list(scope, JobFilter::Open, 1).await.unwrap().remove(0).id;
    tree.jobs.stop(scope, &job).await.unwrap();
    assert_eq!(tree.jobs.wait(scope, &job, WAIT).await.unwrap().state, JobState::Cancelled);
    let is_reported = async || {
        let mail = tree.store.messages(&options.session.id, 0, 99).await.unwrap();
        let mut texts = mail.iter().filter_map(|row| row.message()).map(|message| message.notice("toolwright"));
        texts.any(|text| text.contains("Agent a has ended") && text.ends_with("look into the cellar"))
    };
    tokio::time::timeout(WAIT, async {
        while !is_reported().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    let refused = tree.jobs.send(scope, &job, "again".into()).await.unwrap_err();
    assert!(refused.to_string().contains("it is cancelled"), "{refused}");
}
