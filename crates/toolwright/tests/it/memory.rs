//! The scratchpad, channels and the search over what was kept and said.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwright::core::RunInput;
use toolwright::core::plan::PlanDocument;
use toolwright::{Error, Profile, Toolwright};
use toolwright_testkit::model_server::{Reply, Turn};

use crate::support::{Send, approved, builder, calls, scripted};

const MODEL: &str = "scripted/model";

/// Calls a tool as the owner: all such calls are of one session.
async fn called(tw: &Arc<Toolwright>, tool: &str, arguments: Value) -> Result<Value, String> {
    match tw.call(tool, arguments).await {
        Ok(outcome) => Ok(outcome.structured.unwrap_or_default()),
        Err(Error::Call(outcome)) => Err(outcome.text()),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn a_scratchpad_keeps_notes_by_key() {
    let tw = builder().builtins(true).build().await.expect("builds");
    for (arguments, expect) in [
        (json!({"op": "list"}), Ok(json!({"keys": []}))),
        (json!({"op": "set", "key": "plan.next", "value": "test"}), Ok(json!({"message": "Kept `plan.next`."}))),
        (json!({"op": "set", "key": "n", "value": [1, 2]}), Ok(json!({"message": "Kept `n`."}))),
        (json!({"op": "get", "key": "plan"}), Ok(json!({"value": {"next": "test"}}))),
        (json!({"op": "get"}), Ok(json!({"value": {"n": [1, 2], "plan": {"next": "test"}}}))),
        (json!({"op": "delete", "key": "n"}), Ok(json!({"message": "Deleted `n`."}))),
        (json!({"op": "get", "key": "n"}), Err("There is no `n` in the scratchpad: it has plan.")),
        (json!({"op": "set", "key": "a..b", "value": 1}), Err("`a..b` is no key")),
        (json!({"op": "set", "key": "a"}), Err("`value` is missing")),
        (json!({"op": "set", "value": 1}), Err("`key` is missing")),
        (json!({"op": "clear"}), Ok(json!({"message": "The scratchpad is empty."}))),
        (json!({"op": "get", "key": "plan"}), Err("it is empty")),
    ] {
        let result = called(&tw, "memory__scratchpad", arguments.clone()).await;
        match expect {
            Ok(value) => assert_eq!(result, Ok(value), "{arguments}"),
            Err(part) => assert!(result.as_ref().is_err_and(|text| text.contains(part)), "{arguments}: {result:?}"),
        }
    }
    tw.shut_down().await;
}

/// A script that calls tools one after the other, and answers with the last result.
fn script(made: &[(&str, Value)]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = made.iter().map(|(tool, arguments)| calls(tool, arguments.clone())).collect();
    turns.push(Turn::computed(|asked| Reply::text(asked.last_result_text())));
    turns
}

#[tokio::test]
async fn scratch_references_read_what_was_kept() {
    let keep = json!({"op": "set", "key": "to.name", "value": "ada@example.org"});
    let send = json!({"to": "†scratch.to.name"});
    let turns = script(&[("memory__scratchpad", keep.clone()), ("mail__send", send.clone())]);
    let (builder, _model) = scripted(builder().builtins(true).tool(Send), turns).await;
    let tw = builder.build().await.expect("builds");
    let report = tw.agent(MODEL).policy(Profile::Trusted).task("Send it.").run().await.expect("runs");
    assert_eq!(report.answer, "sent to ada@example.org", "{report:?}");
    let named = |tool: &str, mut call: Value| {
        call["_tool"] = tool.into();
        call
    };
    let plan = json!([named("memory__scratchpad", keep), named("mail__send", send)]);
    let plan = PlanDocument::of_value(plan).expect("a plan");
    let ran = tw.run_plan(&plan, approved(RunInput::default())).await.expect("runs").to_json();
    assert_eq!(ran["calls"][1]["output"], "sent to ada@example.org", "{ran}");
    assert_eq!(ran["calls"][1]["arguments"], json!({"to": "ada@example.org"}), "{ran}");
    tw.shut_down().await;
}

/// What one agent does: its name, its calls, and what its last result has and has not.
type Run<'a> = (&'a str, &'a [(&'a str, Value)], &'a [&'a str], &'a [&'a str]);

#[tokio::test]
async fn readers_miss_nothing_but_their_own_messages() {
    let config = json!({"channels": {
        "news": {"reach": "shared"}, "work": {"reach": "shared", "delivery": "queue"},
    }});
    let send = |channel: &str, text: &str| ("channel__send", json!({"channel": channel, "message": text}));
    let read = |channel: &str| ("channel__read", json!({"channel": channel}));
    let runs: [Run<'_>; 8] = [
        ("a", &[send("news", "one"), send("news", "two"), read("news")], &["nothing new"], &["one"]),
        ("b", &[read("news")], &["one", "two"], &[]),
        ("c", &[send("news", "three"), read("news")], &["one", "two"], &["three"]),
        ("b", &[read("news")], &["three"], &["one"]),
        ("a", &[send("work", "task"), send("own", "mine"), read("work")], &["nothing new"], &[]),
        ("b", &[read("work")], &["task"], &[]),
        ("c", &[read("work")], &["nothing new"], &[]),
        ("b", &[read("own")], &["nothing new"], &["mine"]),
    ];
    let turns = runs.iter().flat_map(|(_, made, ..)| script(made)).collect();
    let (builder, model) = scripted(builder().builtins(true).settings(config), turns).await;
    let tw = builder.build().await.expect("builds");
    let mut agents = std::collections::BTreeMap::new();
    for (name, _, parts, others) in &runs {
        if !agents.contains_key(name) {
            let agent = tw.agent(MODEL).policy(toolwright::Profile::Trusted).conversation().await.expect("begins");
            agents.insert(*name, agent);
        }
        let agent = agents.get_mut(name).expect("is there");
        let report = agent.send("go on").await.expect("runs");
        for part in *parts {
            assert!(report.answer.contains(part), "{name}: {part} in {}", report.answer);
        }
        for part in *others {
            assert!(!report.answer.contains(part), "{name}: no {part} in {}", report.answer);
        }
    }
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    tw.shut_down().await;
}

#[tokio::test]
async fn memory_names_the_speakers_of_earlier_runs() {
    let turns = vec![
        calls("memory__scratchpad", json!({"op": "set", "key": "color", "value": "vermilion"})),
        Turn::computed(|_| Reply::text("The marmalade is on the shelf.")),
        calls("memory__search", json!({"query": "where is marmalade?", "mode": "text"})),
        calls("memory__search", json!({"query": "vermilion", "mode": "hybrid"})),
        Turn::computed(|asked| Reply::text(asked.last_result_text())),
    ];
    let (builder, model) = scripted(builder().builtins(true), turns).await;
    let tw = builder.build().await.expect("builds");
    let run = async |task: &str| {
        let agent = tw.agent(MODEL).policy(toolwright::Profile::Trusted).task(task);
        agent.run().await.expect("runs")
    };
    run("Remember the color").await;
    let report = run("Where is it? Not in this marmalade conversation").await;
    let body = model.requests().last().expect("asked").body.to_string();
    assert!(body.contains("assistant] The marmalade is on the shelf."), "{body}");
    assert!(!body.contains("user] Where is it?"), "its own conversation is left out: {body}");
    for part in ["scratch.color in session", "vermilion", "ranked by words alone: no embeddings are set"] {
        assert!(report.answer.contains(part), "{part} in {}", report.answer);
    }
    tw.shut_down().await;
}

#[tokio::test]
async fn a_private_channel_joins_a_runs_agents() {
    let agents = json!({"child": {"description": "Reads."}});
    let config = json!({"models": {"default": MODEL}, "agents": agents, "channels": {"own": {"reach": "private"}}});
    let send = json!({"channel": "own", "message": "the key is under the mat"});
    let start = json!({"reason": "it is asked for", "task": "read own"});
    let last = || Turn::computed(|asked| Reply::text(asked.last_result_text()));
    let turns = vec![
        calls("channel__send", send),
        calls("agent__child", start),
        calls("channel__read", json!({"channel": "own"})),
        last(),
        last(),
    ];
    let (builder, model) = scripted(builder().builtins(true).settings(config), turns).await;
    let tw = builder.build().await.expect("builds");
    let run = tw.agent(MODEL).policy(toolwright::Profile::Trusted).task("Leave a message");
    let answer = run.run().await.expect("runs").answer;
    assert!(answer.contains("under the mat"), "{answer}");
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    tw.shut_down().await;
}
