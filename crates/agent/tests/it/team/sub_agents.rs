//! Agents that start agents: one tree with one account, reports that become results, and rights that only narrow.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_agent::{Driver, Limits, RunConfig, RunOptions, Status};
use toolwright_core::agents::{AgentConfig, AgentLimits, AgentTree as _, Rights};
use toolwright_core::model::Usage;
use toolwright_core::store::LedgerStore as _;
use toolwright_core::trace::TraceOp;
use toolwright_core::{Effects, Policy, Principal, Profile, Services, Session, SessionId};
use toolwright_runtime::{Executor, ExecutorOptions, SystemClock};

use crate::fixture::{Counter, Reply, begin, begin_with, options};
use crate::team::agent_tree::{Tree, agent, approving, start, three_levels};

#[tokio::test(flavor = "multi_thread")]
async fn three_levels_roll_up_to_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
    let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let report = tree.run(&options()).await;
    assert_eq!((report.status, report.answer.as_str(), tool.count()), (Status::Success, "all done", 1));
    let usage = Usage { input_tokens: 800, output_tokens: 80, ..Usage::default() };
    assert_eq!(report.usage, usage, "eight requests");
    assert!(report.cost_usd.is_some_and(|cost| (cost - 0.016).abs() < 1e-9), "{report:?}");
    assert_eq!(report.calls.len(), 1);

    let trace = tree.trace().await;
    assert_eq!((trace.totals.model_calls, trace.totals.tool_calls, trace.totals.usage), (8, 4, usage));
    let cost = trace.totals.cost_usd.unwrap();
    assert!((cost - 0.016).abs() < 1e-9, "{cost}");
    let call = |ops: &[TraceOp]| ops.iter().find(|op| op.agent.is_some()).cloned().unwrap();
    let a = call(&trace.turns[0].ops);
    let b = call(&a.children);
    let c = call(&b.children);
    let requests = |op: &TraceOp| op.agent.as_ref().unwrap().totals.model_calls;
    assert_eq!([&a, &b, &c].map(requests), [6, 4, 2]);
    assert!(c.children.iter().any(|op| op.name == "t:write@1.0.0"), "{c:?}");
    let listed = tree.store.traces(10).await.unwrap();
    assert_eq!((listed.len(), listed[0].sums.model_calls), (1, 8), "agents are part of the run that began them");
    assert_eq!(tree.agents().await, (3, 0), "an agent that has ended holds nothing");
    assert!(!tree.shown("b").iter().any(|name| name == "agent__a" || name == "agent__b"), "{:?}", tree.shown("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_run_without_a_job_store() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
    let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let (store, model) = (tree.store.clone(), tree.model.clone());
    let services = Services { model: model.clone(), log: store.clone(), ..Services::none(Arc::new(SystemClock)) };
    let executor = Executor::new(ExecutorOptions::new(Arc::new(services), store.clone(), store.clone()));
    let driver = Driver::new(executor, tree.catalogue.clone(), model, Some(store.clone()));
    let driver = driver.with_agents(store, AgentLimits::default());
    let report = driver.run(&mut begin(Limits::default()), &options()).await.unwrap();
    assert_eq!((report.answer.as_str(), tool.count()), ("all done", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spawning_model_stops_at_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let four = || (0..4).map(|n| start(["1", "2", "3", "4"][n], "agent__a")).collect();
    let scripts = HashMap::from([("root", vec![Reply::Calls(four())]), ("a", vec![Reply::Text("a done")])]);
    let tree = Tree::new(dir.path(), scripts, vec![agent("a")], Vec::new()).await;
    let boss = AgentConfig { limits: AgentLimits { agents: Some(6), ..AgentLimits::default() }, ..agent("boss") };
    let config = RunConfig {
        limits: Limits { turns: 4, ..Limits::default() },
        agent: Some(Arc::new(boss)),
        ..RunConfig::new("test/m", "sys")
    };
    let mut state = begin_with(config);
    let report = tree.driver.run(&mut state, &options()).await.unwrap();
    let started = report.calls.iter().filter(|call| call.ok).count();
    assert_eq!((started, report.calls.len(), tree.agents().await), (6, 16, (6, 0)));
    let reported = tree.results("root");
    assert!(
        reported.contains("6 agents were started below agent boss") && reported.contains("do the rest yourself"),
        "{reported}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_cannot_start_their_ancestors() {
    let dir = tempfile::tempdir().unwrap();
    let chain = |next| vec![Reply::Calls(vec![start("1", next)]), Reply::Text("done")];
    let scripts = HashMap::from([("root", chain("agent__a")), ("a", chain("agent__b")), ("b", chain("agent__a"))]);
    let tree = Tree::new(dir.path(), scripts, ["a", "b"].map(agent).to_vec(), Vec::new()).await;
    tree.run(&options()).await;
    assert_eq!(tree.agents().await, (2, 0));
    assert!(!tree.shown("b").iter().any(|name| name == "agent__a"), "{:?}", tree.shown("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn depth_and_agents_at_once_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let chain = |next| vec![Reply::Calls(vec![start("1", next)]), Reply::Text("done")];
    let scripts = HashMap::from([
        ("root", vec![Reply::Calls(vec![start("1", "agent__a"), start("2", "agent__c")]), Reply::Text("done")]),
        ("a", chain("agent__b")),
        ("b", chain("agent__c")),
        ("c", vec![Reply::Text("c done")]),
    ]);
    let limits = AgentLimits { depth: Some(2), ..AgentLimits::default() };
    let tree = Tree::new(dir.path(), scripts, ["a", "b", "c"].map(agent).to_vec(), Vec::new()).await;
    let config = |limits: AgentLimits| RunConfig {
        agent: Some(Arc::new(AgentConfig { limits, ..agent("boss") })),
        ..RunConfig::new("test/m", "sys")
    };
    tree.driver.run(&mut begin_with(config(limits)), &options()).await.unwrap();
    assert!(tree.results("b").contains("agent boss may have 2 levels"), "{}", tree.results("b"));
    assert_eq!(tree.agents().await, (3, 0));

    let limits = AgentLimits { live: Some(0), ..AgentLimits::default() };
    let session = Session { id: SessionId::new("other"), ..Session::clone(&options().session) };
    let options = RunOptions { run_id: "run-2".into(), session: Arc::new(session), ..options() };
    tree.driver.run(&mut begin_with(config(limits)), &options).await.unwrap();
    assert!(tree.results("root").contains("0 agents run below agent boss"), "{}", tree.results("root"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_money_end_the_tree() {
    for limits in [
        AgentLimits { tokens: Some(5000), ..AgentLimits::default() },
        AgentLimits { cost: Some(0.42), ..AgentLimits::default() },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (scripts, agents) = three_levels();
        let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
        let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
        let config = RunConfig {
            agent: Some(Arc::new(AgentConfig { limits: limits.clone(), ..agent("boss") })),
            ..RunConfig::new("test/m", "sys")
        };
        let report = tree.driver.run(&mut begin_with(config), &options()).await.unwrap();
        // Each request may have an answer of 4096 tokens, so the agents below run out of them first.
        assert_eq!(report.status, Status::Success, "{limits:?} {report:?}");
        assert!(tree.results("root").contains("would exceed the limit of"), "{}", tree.results("root"));
        assert!(tree.model.requests() < 8, "{}", tree.model.requests());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_from_depth_three_shows_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let (scripts, agents) = three_levels();
    let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
    let tree = Tree::new(dir.path(), scripts, agents, vec![tool.clone()]).await;
    let inbox = approving();
    let options = RunOptions { policy: Arc::new(Policy::of(Profile::Ask)), approver: inbox.clone(), ..options() };
    let report = tree.run(&options).await;
    assert_eq!((report.status, tool.count()), (Status::Success, 1));
    let asked = inbox.requests();
    let path = asked[0].agent_path().unwrap();
    let step = |name: &str| format!("{name} (it is asked for)");
    assert_eq!((asked.len(), path), (1, ["a", "b", "c"].map(step).join(" > ")), "starting an agent asks nobody");
    assert_eq!(asked[0].tool.as_str(), "t:write@1.0.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_reports_become_results() {
    let report = |status: &str, key: &str, content: Value| {
        let format = if key == "content_json" { "json" } else { "markdown" };
        vec![Reply::Calls(vec![(
            "r",
            "agent__final_report",
            json!({"status": status, "format": format, key: content}),
        )])]
    };
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let typed = |name| AgentConfig { output_schema: schema.as_object().cloned(), ..agent(name) };
    let calls = ["good", "half", "bad", "typed", "untyped"];
    let names = ["agent__good", "agent__half", "agent__bad", "agent__typed", "agent__untyped"];
    let root = calls.iter().zip(names).map(|(id, name)| start(id, name)).collect();
    let scripts = HashMap::from([
        ("root", vec![Reply::Calls(root), Reply::Text("done")]),
        ("good", report("success", "content", json!("found it"))),
        ("half", report("partial", "content", json!("half of it"))),
        ("bad", report("failure", "content", json!("there is none"))),
        ("typed", report("success", "content_json", json!({"n": 3}))),
        ("untyped", vec![Reply::Text("no JSON at all")]),
    ]);
    let agents = vec![agent("good"), agent("half"), agent("bad"), typed("typed"), typed("untyped")];
    let dir = tempfile::tempdir().unwrap();
    let tree = Tree::new(dir.path(), scripts, agents, Vec::new()).await;
    let run = tree.run(&options()).await;
    assert_eq!(run.calls.iter().map(|call| call.ok).collect::<Vec<_>>(), [true, true, false, true, false]);
    let reported = tree.results("root");
    for part in ["found it", "half of it", "The agent is not done: the model reported partial", "there is none"] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert!(reported.contains("without a report in the form that is asked for"), "{reported}");
    assert!(tree.shown("typed").contains(&"agent__final_report".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_agents_only_narrow() {
    let config = |tools: Option<&[&str]>, policy| AgentConfig {
        tools: tools.map(|globs| globs.iter().map(|glob| (*glob).to_owned()).collect()),
        policy,
        ..agent("a")
    };
    // Profile of the run, that of the agent, its tools; whether it may call `t__write`, and whether it is asked about.
    for (root, own, tools, ran, asked) in [
        (Profile::Trusted, None, None, 1, 0),
        (Profile::Ask, Some(Profile::Trusted), None, 1, 1),
        (Profile::Trusted, Some(Profile::Ask), None, 1, 1),
        (Profile::Owner, None, None, 1, 1),
        (Profile::Client, None, None, 1, 1),
        (Profile::Client, Some(Profile::Trusted), None, 1, 0),
        (Profile::Trusted, None, Some(&["t:read"][..]), 0, 0),
    ] {
        let scripts = HashMap::from([
            ("root", vec![Reply::Calls(vec![start("1", "agent__a")]), Reply::Text("done")]),
            ("a", vec![Reply::Calls(vec![("1", "t__write", json!({}))]), Reply::Text("a done")]),
        ]);
        let dir = tempfile::tempdir().unwrap();
        let tool = Counter::new("t:write@1.0.0", Effects::UNKNOWN);
        let read = Counter::new("t:read@1.0.0", Effects::READ);
        let tree = Tree::new(dir.path(), scripts, vec![config(tools, own)], vec![tool.clone(), read]).await;
        let inbox = approving();
        let options = RunOptions { policy: Arc::new(Policy::of(root)), approver: inbox.clone(), ..options() };
        tree.run(&options).await;
        assert_eq!((tool.count(), inbox.count()), (ran, asked), "{root:?} {own:?} {tools:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handed_over_request_keeps_its_rights() {
    let of = |tools: &[&str]| Some(tools.iter().map(|&tool| tool.to_owned()).collect::<Vec<_>>());
    for (rights, shown, ran) in [
        (of(&["t:read"]), &["t__read", "agent__final_report"][..], 0),
        (of(&[]), &["agent__final_report"], 0),
        (None, &["t__read", "t__write", "agent__final_report"], 1),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let scripts = HashMap::from([
            ("root", vec![Reply::Calls(vec![("1", "router__handoff-to", json!({"agent": "a"}))])]),
            ("a", vec![Reply::Calls(vec![("1", "t__write", json!({}))]), Reply::Text("a done")]),
        ]);
        let tools = [Counter::new("t:read@1.0.0", Effects::READ), Counter::new("t:write@1.0.0", Effects::UNKNOWN)];
        let all = tools.iter().map(|tool| tool.clone() as _).collect();
        let tree = Tree::new(dir.path(), scripts, vec![agent("a")], all).await;
        let router = serde_json::from_value(json!({"destinations": ["a"]})).unwrap();
        let rights = Rights {
            principal: Principal::owner(),
            policies: vec![Policy::of(Profile::Trusted)],
            tools: rights,
            limits: AgentLimits { tokens: Some(90_000), ..AgentLimits::default() },
            root: dir.path().to_owned(),
        };
        let config = RunConfig {
            agent: Some(Arc::new(AgentConfig { router, tools: Some(Vec::new()), ..agent("triage") })),
            denied: vec!["*".to_owned()],
            rights: Some(Arc::new(rights)),
            ..RunConfig::new("test/m", "sys")
        };
        tree.driver.run(&mut begin_with(config), &options()).await.unwrap();
        assert_eq!(tree.shown("a"), shown, "what it may not use itself, no destination gets");
        assert_eq!(tools[1].count(), ran);
        assert_eq!(tree.store.agents_of("run-1").await.unwrap()[0].limits.tokens, Some(90_000));
    }
}
