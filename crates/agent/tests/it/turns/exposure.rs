//! How the catalogue is put before the model, request by request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use toolwright_agent::{Limits, RunConfig, RunState, Status};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::exposure::Exposure;
use toolwright_core::model::Message;
use toolwright_core::{CallId, Effects, Event, Tool};
use toolwright_testkit::FakeApprover;

use crate::fixture::{Counter, Fixture, Reply, asking, begin_with, options, provider, run_config};

/// One tool for letters, one for the weather, one for the garden, and many that nobody needs.
fn tools() -> Vec<Arc<dyn Tool>> {
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        Counter::saying("mail:send@1.0.0", Effects::UNKNOWN, " Sends a letter."),
        Counter::saying("sky:weather@1.0.0", Effects::READ, " Tells the weather of a town."),
        Counter::saying("farm:water@1.0.0", Effects::READ, " Waters the garden."),
    ];
    tools.extend((0..30).map(|n| {
        let id: &'static str = Box::leak(format!("dull:t{n:02}@1.0.0").into_boxed_str());
        Counter::new(id, Effects::READ) as Arc<dyn Tool>
    }));
    tools
}

async fn fixture(dir: &tempfile::TempDir, script: Vec<Reply>) -> Fixture {
    Fixture::new(dir.path(), script, tools()).await
}

fn call(id: &'static str, name: &'static str, arguments: Value) -> Reply {
    Reply::Calls(vec![(id, name, arguments)])
}

fn exposed(exposure: Exposure, pinned: &[&str]) -> RunState {
    let pinned = pinned.iter().map(|glob| (*glob).to_owned()).collect();
    begin_with(RunConfig { exposure: Some(exposure), pinned, pick_size: 2, ..run_config(Limits::default()) })
}

/// The requests, as they were sent.
fn requests(fixture: &Fixture) -> Vec<Value> {
    let json = |text: &String| serde_json::from_str(text.strip_prefix("test/m ").unwrap()).unwrap();
    fixture.requests().iter().map(json).collect()
}

/// The names of the tools of each request, `~` before those that are deferred and `?` before the one that finds.
fn shown(fixture: &Fixture) -> Vec<Vec<String>> {
    let mark = |tool: &Value| match tool["exposed"].as_str() {
        Some("deferred") => "~",
        Some("search") => "?",
        _ => "",
    };
    let name = |tool: &Value| format!("{}{}", mark(tool), tool["name"].as_str().unwrap());
    requests(fixture).iter().map(|request| request["tools"].as_array().unwrap().iter().map(name).collect()).collect()
}

/// The text of the results in the last request, and what they load.
fn results(fixture: &Fixture) -> Vec<(String, Value)> {
    let last = requests(fixture).pop().unwrap();
    let messages: Vec<Message> = serde_json::from_value(last["messages"].clone()).unwrap();
    let results = messages.into_iter().filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    let tools = |result: toolwright_core::model::CallResult| {
        (toolwright_core::content::joined_text(&result.content), json!(result.loads))
    };
    results.flatten().map(tools).collect()
}

const THREE: [&str; 3] = ["tools__search", "tools__describe", "tools__call"];

#[tokio::test]
async fn search_shows_three_tools_and_runs_found_ones() {
    let dir = tempfile::tempdir().unwrap();
    let script = vec![
        call("1", "tools__search", json!({"query": "what is the weather", "limit": 1})),
        call("2", "tools__call", json!({"name": "sky__weather", "arguments": {"n": "3"}})),
        Reply::Text("sunny"),
    ];
    let fixture = fixture(&dir, script).await;
    let mut state = exposed(Exposure::Search, &["farm:*"]);
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!(report.status, Status::Success, "{report:?}");
    let calls: Vec<_> = report.calls.iter().map(|call| (call.tool.as_str(), call.ok)).collect();
    assert_eq!(calls, [("tools:search@1.0.0", true), ("sky:weather@1.0.0", true)]);
    assert_eq!(report.calls[1].ran_with, Some(json!({"n": 3})));
    assert!(report.calls[1].provenance.carried);

    // What runs through `tools__call` needs no definition: the list stays as it is.
    let list = [THREE.as_slice(), &["farm__water"]].concat();
    assert_eq!(shown(&fixture), [list.as_slice(), &list, &list]);
    let lists = fixture.model.shown.lock().unwrap().clone();
    assert!(Arc::ptr_eq(&lists[0], &lists[2]), "an API's form of them is made once");
    let results = results(&fixture);
    assert_eq!(results[0], ("sky__weather(n?: integer) — Counts.".into(), json!([])));
    let system = requests(&fixture)[0]["system"].as_str().unwrap().to_owned();
    assert_eq!(system, "sys\n\nFurther tools can be found with tools__search: mail (1), sky (1), farm (1), dull (30)");
    assert!(fixture.requests().iter().all(|request| request.contains(&system.replace('\n', "\\n"))));

    let report = report.to_json();
    assert_eq!((&report["exposure"], &report["exposure_reason"]), (&json!("search"), &json!("it was asked for")));
    let events = fixture.log.seen().clone();
    let counts = |event: &Event| match event {
        Event::ModelStarted { shown, exposure, .. } => Some((shown.len(), *exposure)),
        _ => None,
    };
    assert_eq!(events.iter().find_map(counts), Some((4, Some(Exposure::Search))));
}

#[tokio::test]
async fn a_called_hidden_tool_is_shown_last() {
    let dir = tempfile::tempdir().unwrap();
    let script = vec![
        call("1", "sky__weather", json!({})),
        call("2", "mail:send@1.0.0", json!({})),
        call("3", "sky__weather", json!({"n": 1})),
        Reply::Text("done"),
    ];
    let fixture = fixture(&dir, script).await;
    let mut state = exposed(Exposure::Search, &[]);
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert!(report.calls.iter().all(|call| call.ok), "{report:?}");
    let after = [THREE.as_slice(), &["sky__weather"]].concat();
    let both = [after.as_slice(), &["mail__send"]].concat();
    assert_eq!(shown(&fixture), [THREE.as_slice(), &after, &both, &both]);

    // A resumed run shows the same.
    let saved = RunState::from_json(state.to_json().unwrap()).unwrap();
    let mut state = saved;
    state.continue_with(vec![toolwright_core::ContentBlock::text("more")]).unwrap();
    fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!(shown(&fixture)[4], both);
}

#[tokio::test]
async fn policy_and_tool_list_hold_for_inner_calls() {
    let dir = tempfile::tempdir().unwrap();
    let wrapped_call = |name: &str| json!({"name": name, "arguments": {}});
    let script = vec![
        Reply::Calls(vec![
            ("1", "tools__call", wrapped_call("mail__send")),
            ("2", "tools__call", wrapped_call("sky__weather")),
            ("3", "tools__call", wrapped_call("farm__water")),
            ("4", "tools__search", json!({"query": "prune the roses"})),
            ("5", "tools__describe", json!({"names": ["farm__water"]})),
            ("6", "farm__water", json!({})),
        ]),
        Reply::Text("done"),
    ];
    let fixture = fixture(&dir, script).await;
    let tools = vec!["mail:*".to_owned(), "sky:*".to_owned()];
    let deny = ApprovalDecision::Deny { reason: "no letters".into() };
    let approver = Arc::new(FakeApprover::by_call(&[("1", deny)]));
    let mut state = begin_with(RunConfig { exposure: Some(Exposure::Search), tools, ..run_config(Limits::default()) });
    let report = fixture.driver.run(&mut state, &asking(approver.clone())).await.unwrap();
    let ended: Vec<_> = report.calls.iter().map(|call| (call.tool.as_str(), call.ok)).collect();
    assert_eq!(
        ended,
        [
            ("mail:send@1.0.0", false),
            ("sky:weather@1.0.0", true),
            ("tools__call", false),
            ("tools:search@1.0.0", true),
            ("tools:describe@1.0.0", true),
            ("farm__water", false),
        ]
    );
    let results = results(&fixture);
    assert!(results[0].0.contains("no letters"), "{results:?}");
    assert!(results[3].0.starts_with("No tool fits"), "{results:?}");
    assert!(results[4].0.starts_with("farm__water: there is no such tool"), "{results:?}");
    assert_eq!(approver.count(), 1, "the one that reads is not asked about");
    assert!(requests(&fixture)[0]["system"].as_str().unwrap().ends_with("tools__search: mail (1), sky (1)"));
}

#[tokio::test]
async fn a_pending_inner_call_resumes_as_its_tool() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        vec![call("1", "tools__call", json!({"name": "mail__send", "arguments": {"n": 1}})), Reply::Text("sent")];
    let fixture = fixture(&dir, script).await;
    let later = asking(Arc::new(FakeApprover::by_call(&[("1", ApprovalDecision::Later)])));
    let mut state = exposed(Exposure::Search, &[]);
    let asked = fixture.driver.run(&mut state, &later).await.unwrap();
    assert_eq!(asked.status, Status::Suspended);
    assert_eq!((asked.pending[0].tool.as_str(), &asked.pending[0].arguments), ("mail:send@1.0.0", &json!({"n": 1})));
    let mut state = fixture.driver.load(&later).await.unwrap();
    state.on_approvals(vec![(CallId::new("1"), ApprovalDecision::Approve)]).unwrap();
    let report = fixture.driver.run(&mut state, &later).await.unwrap();
    assert_eq!((report.status, report.calls[0].ok), (Status::Success, true), "{report:?}");
}

#[tokio::test]
async fn deferred_declares_all_tools_and_results_load_them() {
    let dir = tempfile::tempdir().unwrap();
    let script = vec![
        call("1", "tools__search", json!({"query": "weather town", "limit": 1})),
        call("2", "sky__weather", json!({})),
        call("3", "mail__send", json!({})),
        Reply::Text("done"),
    ];
    let fixture = fixture(&dir, script).await;
    fixture.model.tool_search.store(true, Ordering::SeqCst);
    let mut state = exposed(Exposure::Deferred, &["farm:*"]);
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert!(report.calls.iter().all(|call| call.ok), "{report:?}");
    let shown = shown(&fixture);
    assert_eq!(shown[0][..5], ["?tools__search", "farm__water", "~mail__send", "~sky__weather", "~dull__t00"]);
    assert_eq!(
        (shown[0].len(), &shown[1], &shown[2]),
        (34, &shown[0], &shown[0]),
        "what a result loads stays deferred"
    );
    assert_eq!(shown[3][..4], ["?tools__search", "farm__water", "mail__send", "~sky__weather"]);
    assert_eq!(requests(&fixture)[0]["tools"][2]["namespace"], "mail");
    let results = results(&fixture);
    assert_eq!(results[0], ("Found and loaded: sky__weather".into(), json!(["sky__weather"])));
    assert_eq!(results[1].1, json!([]));
}

#[tokio::test]
async fn pick_shows_fitting_tools_or_changes_to_searching() {
    let dir = tempfile::tempdir().unwrap();
    let script = vec![
        call("1", "tools__search", json!({"query": "send a letter", "limit": 1})),
        call("2", "mail__send", json!({})),
        Reply::Text("done"),
        Reply::Text("done"),
    ];
    let fixture = fixture(&dir, script).await;
    let config = RunConfig { exposure: Some(Exposure::Pick), pick_size: 1, ..run_config(Limits::default()) };
    let mut state = RunState::new(config.clone(), vec![Message::user("How is the weather in the town?")]);
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert!(report.calls.iter().all(|call| call.ok), "{report:?}");
    let first = ["tools__search", "sky__weather"];
    let found = [first.as_slice(), &["mail__send"]].concat();
    assert_eq!(shown(&fixture), [first.as_slice(), &found, &found]);
    state.continue_with(vec![toolwright_core::ContentBlock::text("Now water the garden.")]).unwrap();
    fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!(shown(&fixture)[3], [found.as_slice(), &["farm__water"]].concat());

    let mut lost = RunState::new(config, vec![Message::user("zzzz")]);
    let report = fixture.driver.run(&mut lost, &options()).await.unwrap();
    assert_eq!(shown(&fixture)[4], THREE);
    assert!(
        report.exposure.is_some_and(|choice| choice.exposure == Exposure::Search && choice.reason.contains("fits"))
    );
}

#[tokio::test]
async fn direct_shows_later_tools_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let script = vec![call("1", "sky__weather", json!({})), Reply::Text("done"), Reply::Text("done")];
    let fixture = fixture(&dir, script).await;
    let mut state = exposed(Exposure::Direct, &[]);
    fixture.catalogue.add_provider(provider("next", vec![Counter::new("next:b@1.0.0", Effects::READ)])).await.unwrap();
    fixture.catalogue.refresh("next").await;
    fixture.driver.run(&mut state, &options()).await.unwrap();
    // The first provider comes anew with one tool more: in the catalogue that one stands before `next__b`.
    let more = [tools(), vec![Counter::new("new:a@1.0.0", Effects::READ) as Arc<dyn Tool>]].concat();
    fixture.catalogue.remove_provider("next").await;
    fixture.catalogue.remove_provider("test").await;
    for (name, tools) in
        [("test", more[1..].to_vec()), ("next", vec![Counter::new("next:b@1.0.0", Effects::READ) as _])]
    {
        fixture.catalogue.add_provider(provider(name, tools)).await.unwrap();
        fixture.catalogue.refresh(name).await;
    }
    state.continue_with(vec![toolwright_core::ContentBlock::text("more")]).unwrap();
    fixture.driver.run(&mut state, &options()).await.unwrap();
    let shown = shown(&fixture);
    assert_eq!((shown[0].len(), shown[0][0].as_str(), shown[0][33].as_str()), (34, "mail__send", "next__b"));
    assert_eq!(shown[0], shown[1]);
    assert_eq!(shown[2], [&shown[1][1..], &["new__a".to_owned()]].concat());
}

#[tokio::test]
async fn exposure_is_chosen_once_by_cost_and_window() {
    for (window, api, expect, reason) in [
        (None, false, Exposure::Direct, "33 tools"),
        (Some(2_000), false, Exposure::Search, "the model searches them"),
        (Some(2_000), true, Exposure::Deferred, "the model's API searches them"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let fixture = fixture(&dir, vec![call("1", "sky__weather", json!({})), Reply::Text("done")]).await;
        fixture.model.tool_search.store(api, Ordering::SeqCst);
        let mut state = begin_with(RunConfig { window, ..run_config(Limits::default()) });
        let report = fixture.driver.run(&mut state, &options()).await.unwrap();
        let choice = report.exposure.unwrap();
        assert_eq!(choice.exposure, expect);
        assert!(choice.reason.contains(reason), "{}", choice.reason);
        fixture.model.tool_search.store(!api, Ordering::SeqCst);
        state.continue_with(vec![toolwright_core::ContentBlock::text("more")]).unwrap();
        assert_eq!(fixture.driver.run(&mut state, &options()).await.unwrap().exposure.unwrap().exposure, expect);
    }
}

#[tokio::test]
async fn searching_many_tools_costs_a_fraction() {
    let cost = |exposure: Exposure| async move {
        let dir = tempfile::tempdir().unwrap();
        let steps = (0..10).map(|_| {
            Reply::Calls(vec![
                ("a", "tools__search", json!({"query": "weather of a town"})),
                ("b", "tools__call", json!({"name": "sky__weather", "arguments": {}})),
            ])
        });
        let fixture = Fixture::new(dir.path(), steps.chain([Reply::Text("done")]).collect(), {
            let mut tools = tools();
            tools.extend((0..467).map(|n| {
                let id: &'static str = Box::leak(format!("more:t{n}@1.0.0").into_boxed_str());
                Counter::saying(id, Effects::READ, " It does one thing among many, and says so in a few words.")
                    as Arc<dyn Tool>
            }));
            tools
        })
        .await;
        fixture.driver.run(&mut exposed(exposure, &[]), &options()).await.unwrap();
        fixture.requests().iter().map(String::len).sum::<usize>()
    };
    let (direct, search, pick) =
        (cost(Exposure::Direct).await, cost(Exposure::Search).await, cost(Exposure::Pick).await);
    assert!(search * 10 <= direct && pick * 10 <= direct, "direct {direct}, search {search}, pick {pick}");
}
