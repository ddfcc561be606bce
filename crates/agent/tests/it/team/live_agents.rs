//! Agents that still run: beside the run that began them, when it is stopped, and after its process died.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use toolwright_agent::{ChildEnd, Limits, RunConfig, RunOptions, Status};
use toolwright_core::agents::{AgentConfig, AgentLimits, AgentTree as _, NewAgent, OnChildren};
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest};
use toolwright_core::job::{JobFilter, JobRecord, JobScope, Jobs as _};
use toolwright_core::model::Usage;
use toolwright_core::policy::Rule;
use toolwright_core::store::RunStore;
use toolwright_core::{CancelCause, Effects, Event, Policy, Profile, Session, SessionId, Snapshot};
use toolwright_runtime::{RecoveryOptions, RunContext};
use toolwright_testkit::FakeApprover;

use crate::fixture::{Counter, Reply, begin, begin_with, options, until};
use crate::team::agent_tree::{
    AgentScripts, Tree, WAIT, WaitingTool, agent, approving, run_and_send, start, three_levels, who,
};
use crate::turns::resume::FaultyStore;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_does_not_end_over_live_agents() {
    for (policy, expect) in [(OnChildren::Wait, None), (OnChildren::Cancel, Some(ChildEnd::Cancelled))] {
        let scripts = HashMap::from([
            (
                "root",
                vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("too early"), Reply::Text("with all")],
            ),
            ("a", vec![Reply::Calls(vec![("1", "t__slow", json!({}))]), Reply::Text("a done")]),
        ]);
        let dir = tempfile::tempdir().unwrap();
        let slow = Counter::new("t:slow@1.0.0", Effects::READ);
        let slow = if expect.is_some() { slow.hang(1) } else { slow };
        let background = AgentConfig { background: true, ..agent("a") };
        let tree = Tree::new(dir.path(), scripts, vec![background], vec![slow.clone()]).await;
        let boss = AgentConfig { on_children: policy, ..agent("boss") };
        let config = RunConfig { agent: Some(Arc::new(boss)), ..RunConfig::new("test/m", "sys") };
        let mut state = begin_with(config);
        let options = options();
        let running = tree.driver.run(&mut state, &options);
        let report = tokio::time::timeout(WAIT, running).await.unwrap().unwrap();
        assert_eq!((report.answer.as_str(), report.turns), ("with all", 3), "{policy:?} {report:?}");
        let reported = tree.results("root");
        assert!(reported.contains("not accepted yet") && reported.contains("a (job a_"), "{policy:?}: {reported}");
        assert_eq!(report.children.first().map(|child| child.end), expect, "{policy:?}");
        if policy == OnChildren::Wait {
            assert!(reported.contains("is done. Its result:\\na done"), "{reported}");
            assert_eq!(report.usage.input_tokens, 500, "what its agents used counts");
        }
        until(|| {
            !tree.log.seen().iter().filter(|e| matches!(e, Event::JobFinished { .. })).collect::<Vec<_>>().is_empty()
        })
        .await;
        assert_eq!(tree.agents().await.1, 0, "{policy:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_reaches_an_agent_in_the_background() {
    let scripts = HashMap::from([
        ("root", vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("early"), Reply::Text("all done")]),
        ("a", vec![Reply::Calls(vec![("1", "t__slow", json!({}))]), Reply::Text("a done")]),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let slow = WaitingTool::new();
    let background = AgentConfig { background: true, ..agent("a") };
    let tree = Tree::new(dir.path(), scripts, vec![background], vec![slow.clone()]).await;
    let report = run_and_send(&tree, &slow, "look into the cellar").await;
    assert_eq!(report.answer, "all done");
    let reported = tree.results("a");
    assert!(reported.contains("your caller sent a message:\\nlook into the cellar"), "{reported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_depth_three() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN).hang(1);
    let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let options = options();
    let stop = async {
        until(|| tool.count() == 1).await;
        assert_eq!(tree.agents().await, (3, 3));
        options.cancel.cancel(CancelCause::User);
    };
    let (report, ()) = tokio::join!(tree.run(&options), stop);
    assert_eq!(report.status, Status::Cancelled);
    assert_eq!(tree.agents().await, (3, 0));
    let events = tree.log.seen();
    let ended =
        events.iter().filter(|event| matches!(event, Event::RunFinished { status, .. } if status == "cancelled"));
    assert_eq!(ended.count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_agent_suspends_its_callers() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
    let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let asking = |approver| RunOptions { policy: Arc::new(Policy::of(Profile::Ask)), approver, ..options() };
    let report = tree.run(&asking(Arc::new(FakeApprover::saying(ApprovalDecision::Later)))).await;
    assert_eq!((report.status, tool.count()), (Status::Suspended, 0));
    assert_eq!(report.pending[0].tool.as_str(), "t:write@1.0.0");
    assert_eq!(report.pending[0].agents.len(), 3);
    let before = tree.model.requests();
    let report = tree.driver.resume(&asking(approving())).await.unwrap();
    assert_eq!((report.status, tool.count()), (Status::Success, 1));
    assert_eq!(tree.model.requests() - before, 4, "each goes on where it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_save_repeats_nothing() {
    let fresh = |dir: &Path, breaks: Option<(usize, bool)>| {
        let scripts = HashMap::from([
            ("root", vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("all done")]),
            ("a", vec![Reply::Calls(vec![("1", "t__write", json!({}))]), Reply::Text("a done")]),
        ]);
        let (dir, tool) = (dir.to_owned(), Counter::new("t:write@1.0.0", Effects::UNKNOWN));
        async move {
            let (at, written) = breaks.unwrap_or((usize::MAX, true));
            let fragile = |store| FaultyStore::new(store, at, written);
            (Tree::over(&dir, scripts, vec![agent("a")], vec![tool.clone()], fragile).await, tool)
        }
    };
    // Four saves of the root (model, calls, model, end), and four of the agent inside its calls.
    for (at, written) in (2..=8).flat_map(|n| [(n, true), (n, false)]) {
        let dir = tempfile::tempdir().unwrap();
        let (tree, first) = fresh(dir.path(), Some((at, written))).await;
        let broken = tokio::time::timeout(WAIT, tree.driver.run(&mut begin(Limits::default()), &options())).await;
        let ended = broken.unwrap();
        let asked = tree.model.requests();
        drop(tree);
        let (tree, second) = fresh(dir.path(), None).await;
        let report = match ended {
            // The root hears that its agent could not be saved, as of any tool.
            Ok(report) => report,
            Err(_) => tree.driver.resume(&options()).await.unwrap(),
        };
        assert_eq!(report.answer, "all done", "save {at}, written {written}");
        assert!(first.count() + second.count() <= 1, "save {at}, written {written}: it ran twice");
        assert!(asked + tree.model.requests() <= 5, "save {at}, written {written}");
        assert_eq!(tree.agents().await.1, 0, "save {at}, written {written}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_agent_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::READ).hang(1);
    // A runtime that is gone with all of its tasks, as if the process had died.
    let (path, parts, hangs) = (dir.path().to_owned(), (scripts.clone(), agents.clone()), tool.clone());
    let died = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let asked = runtime.block_on(async {
            let tree = Tree::new(&path, parts.0, parts.1, vec![hangs.clone()]).await;
            let driver = tree.driver.clone();
            tokio::spawn(async move { driver.run(&mut begin(Limits::default()), &options()).await });
            until(|| hangs.count() == 1).await;
            tree.model.requests()
        });
        runtime.shutdown_background();
        asked
    });
    let asked = tokio::task::spawn_blocking(move || died.join().unwrap()).await.unwrap();
    let report = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let resumed = tokio::time::timeout(WAIT, report.driver.resume(&options())).await.unwrap().unwrap();
    assert_eq!((resumed.status, resumed.answer.as_str()), (Status::Success, "all done"));
    assert_eq!((asked, report.model.requests()), (4, 4), "nothing is asked again");
    let usage = Usage { input_tokens: 800, output_tokens: 80, ..Usage::default() };
    assert_eq!(resumed.usage, usage);
    assert!(resumed.cost_usd.is_some_and(|cost| (cost - 0.016).abs() < 1e-9), "{resumed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_the_wait_for_agents() {
    // Why the run is cancelled while it waits, how it ends, and whether its agent goes on.
    for (cause, expect, is_open) in
        [(CancelCause::User, Some(Status::Cancelled), false), (CancelCause::Shutdown, None, true)]
    {
        let dir = tempfile::tempdir().unwrap();
        let root = vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("early"), Reply::Text("with all")];
        let scripts = HashMap::from([("root", root), ("a", vec![Reply::Hang])]);
        let tree = Tree::new(dir.path(), scripts, vec![AgentConfig { background: true, ..agent("a") }], vec![]).await;
        let options = options();
        let requests = |of: &str| tree.model.asked().iter().filter(|(_, request)| who(&request.system) == of).count();
        let cancels = async {
            until(|| requests("a") == 1 && requests("root") == 2).await;
            // The answer has come once the run waits for its agent.
            let saved = async || {
                RunStore::run(&*tree.store, &options.run_id)
                    .await
                    .unwrap()
                    .map_or_else(String::new, |saved| saved.state.to_string())
            };
            while !saved().await.contains("early") {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            options.cancel.cancel(cause);
        };
        let mut state = begin(Limits::default());
        let (ended, ()) = tokio::join!(tree.driver.run(&mut state, &options), cancels);
        assert_eq!(ended.as_ref().ok().map(|report| report.status), expect, "{ended:?}");
        let open = async || tree.jobs.list(JobScope::All, JobFilter::Open, 9).await.unwrap().len() == 1;
        while open().await != is_open {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

/// The agent m starts `a` in the background, whose process ends while it asks its model: at `root` requests of the root.
async fn leave_behind(dir: &Path, agents: &[AgentConfig], m: Vec<Reply>, policy: Policy, root: usize) {
    let scripts = HashMap::from([
        ("root", vec![Reply::Calls(vec![start("1", "agent__m")]), Reply::Hang]),
        ("m", m),
        ("a", vec![Reply::Hang]),
    ]);
    let (dir, agents) = (dir.to_owned(), agents.to_vec());
    // A runtime that is gone with all of its tasks: a run that is only dropped stops its agents.
    let died = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let tree = Tree::new(&dir, scripts, agents, vec![write()]).await;
            let options = RunOptions { policy: Arc::new(policy), ..options() };
            let (driver, model) = (tree.driver.clone(), tree.model.clone());
            tokio::spawn(async move { driver.run(&mut begin(Limits::default()), &options).await });
            let requests = |of: &str| model.asked().iter().filter(|(_, request)| who(&request.system) == of).count();
            until(|| requests("a") == 1 && requests("root") == root).await;
            tree.jobs.shut_down(WAIT).await;
        });
        runtime.shutdown_background();
    });
    tokio::task::spawn_blocking(move || died.join().unwrap()).await.unwrap();
}

/// Lets the job that was left behind go on where everything is trusted. Returns it at its end, with what a person was asked.
async fn take_over(tree: &Tree) -> (JobRecord, Vec<ApprovalRequest>) {
    let inbox = approving();
    let approver = inbox.clone();
    let context = move |session: Session, snapshot| {
        let policy = Arc::new(Policy::of(Profile::Trusted));
        RunContext::new(Arc::new(session), snapshot, policy, approver.clone())
    };
    let job = tree.jobs.list(JobScope::All, JobFilter::Open, 1).await.unwrap().remove(0);
    recover(tree, None, context);
    let job = tree.jobs.wait(JobScope::All, &job.id, WAIT).await.unwrap();
    let asked = inbox.requests();
    (job, asked)
}

fn recover(
    tree: &Tree,
    session: Option<SessionId>,
    context: impl Fn(Session, Arc<Snapshot>) -> RunContext + Send + Sync + 'static,
) {
    let (catalogue, root) = (tree.catalogue.clone(), "/work".into());
    tree.executor.recover_jobs(RecoveryOptions { catalogue, root, session, context: Arc::new(context) });
}

fn write() -> Arc<Counter> {
    Counter::new("t:write@1.0.0", Effects::UNKNOWN)
}

/// Scripts of a second process: `a` writes.
fn then_writes(root: Vec<Reply>, m: Vec<Reply>) -> AgentScripts {
    let a = vec![Reply::Calls(vec![("1", "t__write", json!({}))]), Reply::Text("a done")];
    HashMap::from([("root", root), ("m", m), ("a", a)])
}

fn starts_a() -> Reply {
    Reply::Calls(vec![start("1", "agent__a")])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_agent_keeps_its_rights() {
    let trusted = || Policy::of(Profile::Trusted);
    let denying = Policy { rules: vec![Rule::deny("t:write").because("not here")], ..trusted() };
    // The policy of the run, the tools of the agent that starts one in the background, and what becomes of the call of the
    // latter in a process where everything runs: whether it ran, whether a person was asked, what it was told.
    for (policy, tools, ran, asked, answer) in [
        (trusted(), None, 1, 0, "counted"),
        (Policy::of(Profile::Ask), None, 1, 1, "counted"),
        (denying, None, 0, 0, "not here"),
        (trusted(), Some(vec!["agent:*".to_owned()]), 0, 0, "no tool is called `t__write`"),
    ] {
        let (dir, name) = (tempfile::tempdir().unwrap(), format!("{policy:?}"));
        let agents = [AgentConfig { tools, ..agent("m") }, AgentConfig { background: true, ..agent("a") }];
        leave_behind(dir.path(), &agents, vec![starts_a(), Reply::Hang], policy, 1).await;
        let tool = write();
        let second = Tree::new(dir.path(), then_writes(vec![], vec![]), agents.to_vec(), vec![tool.clone()]).await;
        let (job, asks) = take_over(&second).await;
        let said = job.outcome.unwrap().model_text();
        assert!(said.starts_with("a done"), "{said}: {}", second.results("a"));
        assert_eq!((tool.count(), asks.len()), (ran, asked), "{name}");
        assert!(second.results("a").contains(answer), "{answer}: {}", second.results("a"));
        for request in &asks {
            assert_eq!(request.agent_path().unwrap(), "m (it is asked for) > a (it is asked for)");
        }
        let known = second.store.agents_of("run-1").await.unwrap();
        let of = |name: &str| known.iter().find(|agent| agent.name == name).unwrap();
        assert_eq!((of("a").parent.as_ref(), of("a").spent.tokens), (Some(&of("m").id), 220), "it stays in its tree");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_a_missing_run_stops() {
    let dir = tempfile::tempdir().unwrap();
    let m = AgentConfig { on_children: OnChildren::Detach, ..agent("m") };
    let agents = [m, AgentConfig { background: true, ..agent("a") }];
    let says = vec![starts_a(), Reply::Text("early"), Reply::Text("m done")];
    leave_behind(dir.path(), &agents, says, Policy::of(Profile::Trusted), 2).await;
    let tool = write();
    let second = Tree::new(dir.path(), then_writes(vec![], vec![]), agents.to_vec(), vec![tool.clone()]).await;
    // A new task of the root: the agents of the earlier one that have ended are forgotten.
    let limits = AgentLimits::default();
    let root =
        NewAgent { id: "run-1".into(), parent: None, name: String::new(), limits, starts_task: true, time_left: None };
    second.store.begin_agent(root).await.unwrap();
    let (job, _) = take_over(&second).await;
    let said = job.outcome.unwrap().model_text();
    assert!(said.contains("the run that it is charged to is not known any more"), "{said}");
    assert_eq!((tool.count(), second.model.requests()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nested_agent_continues_with_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let agents = [agent("m"), AgentConfig { background: true, ..agent("a") }];
    let trusted = Policy::of(Profile::Trusted);
    leave_behind(dir.path(), &agents, vec![starts_a(), Reply::Hang], trusted, 1).await;
    let root = vec![Reply::Hang, Reply::Text("all done")];
    let m = vec![Reply::Hang, Reply::Text("early"), Reply::Text("m done")];
    let tool = write();
    let second = Tree::new(dir.path(), then_writes(root, m), agents.to_vec(), vec![tool.clone()]).await;
    // As in `run`: jobs of other sessions are left alone.
    recover(&second, Some(options().session.id.clone()), |_, _| panic!("its run is driven here"));
    let report = tokio::time::timeout(WAIT, second.driver.resume(&options())).await.unwrap().unwrap();
    assert_eq!((report.answer.as_str(), tool.count()), ("all done", 1), "{}", second.results("m"));
    // One request of the root and one of m had their answers before. The second of m is spared when `a` is quicker.
    assert_eq!(report.usage.input_tokens, 100 * (2 + second.model.requests() as u64));
}
