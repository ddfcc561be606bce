//! Agents over the scripted model.

use std::sync::{Arc, Mutex};

use serde_json::json;
use toolwright::core::model::ModelResponse;
use toolwright::{ApprovalDecision, ApprovalRequest, Error, Event, Limits, Profile, Status};
use toolwright_testkit::FakeModel;
use toolwright_testkit::model_server::{Reply, Turn};

use crate::support::{Add, Send, builder, calls, scripted, sum, with_model};

const MODEL: &str = "scripted/model";

#[tokio::test]
async fn an_agent_calls_tools_and_answers() {
    let turns = vec![
        calls("math__add", sum(2, 40)),
        Turn::computed(|asked| Reply::text(format!("It is {}.", asked.last_result_text()))),
    ];
    let (builder, model) = scripted(builder().tool(Add).tool(Send), turns).await;
    let tw = builder.build().await.expect("builds");
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let sees = Arc::clone(&seen);
    let report = tw
        .agent(MODEL)
        .system("You add.")
        .task("What is 2 + 40?")
        .tools(["math__*"])
        .limits(Limits { turns: 5, ..Limits::default() })
        .on_event(move |event| {
            let name = match event {
                Event::RunStarted { .. } => "started",
                Event::ToolFinished { ok: true, .. } => "tool",
                Event::RunFinished { .. } => "finished",
                _ => return,
            };
            sees.lock().expect("seen").push(name.to_owned());
        })
        .run()
        .await
        .expect("runs");
    assert_eq!((report.status, report.answer.as_str()), (Status::Success, "It is 42."));
    assert_eq!(*seen.lock().expect("seen"), ["started", "tool", "finished"]);
    let body = &model.requests()[0].body;
    assert!(body["messages"][0]["content"].as_str().is_some_and(|system| system.contains("You add.")), "{body}");
    assert_eq!(body["tools"].as_array().map(Vec::len), Some(1), "only the tools that it may use are shown");
    assert!(model.failures().is_empty(), "{:?}", model.failures());
    tw.shut_down().await;
}

#[tokio::test]
async fn a_run_gets_only_its_own_events() {
    let echo = || Turn::computed(|asked| Reply::text(asked.last_user_text()));
    let (builder, _model) = scripted(builder(), vec![echo(), echo()]).await;
    let tw = builder.build().await.expect("builds");
    let run = async |task: &'static str| {
        let agent = tw.agent(MODEL).task(task);
        let mut events = agent.events();
        let read = async {
            let mut text = String::new();
            while let Some(event) = events.next().await {
                if let Event::ModelText { text: piece, .. } = &*event {
                    text.push_str(piece);
                }
            }
            text
        };
        let (report, text) = tokio::join!(agent.run(), read);
        assert_eq!((report.expect("runs").answer.as_str(), text.as_str()), (task, task));
    };
    tokio::join!(run("the first of two"), run("and the second"));
    tw.shut_down().await;
}

#[tokio::test]
async fn the_approver_of_the_agent_is_asked() {
    let turns = vec![calls("mail__send", json!({"to": "me"})), Turn::text("done")];
    let (builder, _model) = scripted(builder().tool(Send), turns).await;
    let tw = builder.build().await.expect("builds");
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = Arc::clone(&asked);
    let approve = move |request: &ApprovalRequest| {
        notes.lock().expect("asked").push(request.tool.without_version().to_owned());
        ApprovalDecision::Approve
    };
    let report = tw.agent(MODEL).task("Send it.").approver(approve).run().await.expect("runs");
    assert!(report.calls[0].ok, "{:?}", report.calls);
    assert_eq!(*asked.lock().expect("asked"), ["mail:send"]);
    tw.shut_down().await;
}

#[tokio::test]
async fn a_conversation_remembers_and_restarts() {
    let turns = vec![Turn::text("Hello."), Turn::text("You said hi."), Turn::text("Hello again.")];
    let (builder, model) = scripted(builder(), turns).await;
    let tw = builder.build().await.expect("builds");
    let mut talk = tw.agent(MODEL).conversation().await.expect("begins");
    assert_eq!(talk.send("hi").await.expect("answers").answer, "Hello.");
    assert_eq!(talk.send("what did I say?").await.expect("answers").answer, "You said hi.");
    talk.reset();
    talk.send("hi").await.expect("answers");
    let lengths: Vec<_> =
        model.requests().iter().map(|asked| asked.body["messages"].as_array().map(Vec::len)).collect();
    assert_eq!(lengths, [Some(2), Some(4), Some(2)]);
    tw.shut_down().await;
}

#[tokio::test]
async fn a_saved_run_continues_in_another_process() {
    let state = tempfile::tempdir().expect("folder");
    let later = |_: &ApprovalRequest| ApprovalDecision::Later;
    let turns = vec![calls("mail__send", json!({"to": "me"})), Turn::text("Sent.")];
    let (first, model) = scripted(builder().tool(Send).state_dir(state.path()), turns).await;
    let tw = first.build().await.expect("builds");
    let report = tw.agent(MODEL).task("Send it.").id("letter").approver(later).run().await.expect("runs");
    assert_eq!((report.status, report.pending.len()), (Status::Suspended, 1));
    tw.shut_down().await;
    drop(tw);
    let second = with_model(builder().tool(Send).state_dir(state.path()), &model);
    let tw = second.build().await.expect("builds");
    let yes = |_: &ApprovalRequest| ApprovalDecision::Approve;
    let report = tw.agent(MODEL).resume("letter").approver(yes).run().await.expect("runs");
    assert_eq!((report.status, report.answer.as_str()), (Status::Success, "Sent."));
    let error = tw.agent(MODEL).resume("none").run().await.expect_err("there is none");
    assert!(matches!(error, Error::Agent(_)) && error.to_string().contains("none"), "{error}");
    tw.shut_down().await;
}

#[tokio::test]
async fn an_agent_needs_a_task_and_a_model() {
    let tw = builder().build().await.expect("builds");
    let error = tw.agent("ollama/x").run().await.expect_err("no task");
    assert!(error.to_string().contains(".task(..)"), "{error}");
    let error = tw.agent("nobody/x").task("Do it.").run().await.expect_err("no such model");
    assert!(matches!(error, Error::Model(_)), "{error}");
    tw.shut_down().await;
}

#[tokio::test]
async fn a_model_of_the_program_answers() {
    let parrot = FakeModel::new(|call| {
        Ok(ModelResponse { text: format!("{} says hello", call.model), ..ModelResponse::default() })
    });
    let tw = builder().model_client("mine", parrot).policy(Profile::Trusted).build().await.expect("builds");
    let report = tw.agent("mine/parrot").task("Hello?").run().await.expect("runs");
    assert_eq!(report.answer, "mine/parrot says hello");
    tw.shut_down().await;
}

#[tokio::test]
async fn a_run_pays_for_its_guards() {
    let guard = json!({"name": "sums", "model": MODEL, "instructions": "Sums are fine.", "tool": "math:*"});
    let verdict = json!({"verdict": "allow", "reason": "It is a sum.", "arguments": null}).to_string();
    let judges =
        || Turn::text(verdict.clone()).expecting("its rules", |asked| asked.system().contains("Sums are fine."));
    for (guards, judged) in [(json!([]), Vec::new()), (json!([guard]), vec![judges()])] {
        let mut turns = vec![calls("math__add", sum(2, 40))];
        turns.extend(judged);
        turns.push(Turn::text("It is 42."));
        let requests = turns.len();
        let builder = builder().tool(Add).settings(json!({"policy": {"guards": guards}}));
        let (builder, model) = scripted(builder, turns).await;
        let tw = builder.build().await.expect("builds");
        let report = tw.agent(MODEL).task("What is 2 + 40?").run().await.expect("runs");
        assert_eq!(report.answer, "It is 42.");
        assert_eq!(report.usage.input_tokens, 10 * requests as u64, "each request has ten tokens");
        assert!(model.failures().is_empty(), "{:?}", model.failures());
        tw.shut_down().await;
    }
}
