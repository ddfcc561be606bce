//! Delegates: calls that a model answers in a run of its own.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_agent::{DelegateDocuments, LoadedDelegate, ModelDelegates};
use toolwright_core::agents::{AgentLimits, AgentTree as _, child_session};
use toolwright_core::approval::NoApprover;
use toolwright_core::call::CallMeta;
use toolwright_core::catalogue::declared::DeclaredTools;
use toolwright_core::catalogue::{Listing, Provider, Snapshot};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{Message, ModelRequest, ModelResponse, RawToolCall, StopReason};
use toolwright_core::policy::Policy;
use toolwright_core::taint::{Taint, TaintedArgument};
use toolwright_core::{
    CallId, Outcome, Principal, Profile, RawArguments, RunInput, Services, Session, SessionId, ToolCall, ToolContext,
    ToolId,
};
use toolwright_runtime::{Executor, ExecutorOptions, RunContext, RunVariables, SqliteStore, SystemClock};
use toolwright_testkit::FakeModel;

/// One document at a URL, and a file; everything else is refused.
struct OneDocument;

#[async_trait]
impl DelegateDocuments for OneDocument {
    async fn read(&self, delegate: &str, _context: &ToolContext) -> Result<LoadedDelegate, ToolError> {
        if delegate == "nested.json" {
            let document = json!({"tools": ["schema__*"]});
            return Ok(LoadedDelegate { document: serde_json::from_value(document).unwrap(), is_remote: false });
        }
        if delegate != "https://d.example/judge.json" {
            return Err(ToolError::new(ErrorKind::NotPermitted, format!("{delegate} is not among `delegates.urls`")));
        }
        let document = json!({
            "context": [{"type": "text", "text": "You are strict."}, {"type": "text", "text": "Be brief."}],
            "schema": {"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]},
            "model": "judge/m",
        });
        Ok(LoadedDelegate { document: serde_json::from_value(document).unwrap(), is_remote: true })
    }
}

struct DelegateFixture {
    executor: Arc<Executor>,
    run: RunContext,
    model: Arc<FakeModel>,
    store: Arc<SqliteStore>,
}

type AnswerRequest = Box<dyn Fn(&ModelRequest) -> ModelResponse + Send + Sync>;

fn report(content: Value) -> ModelResponse {
    let arguments = json!({"status": "success", "format": "json", "content_json": content});
    let call = RawToolCall { id: "r".into(), name: "agent__final_report".into(), arguments: arguments.to_string() };
    ModelResponse { calls: vec![call], stop: StopReason::ToolCalls, ..ModelResponse::default() }
}

/// Runs on these declared tools, with what `scopes` and references stand for.
async fn fixture(tools: &[(&str, Value)], answer: AnswerRequest) -> DelegateFixture {
    let model = Arc::new(FakeModel::new(move |call| Ok(answer(call.request))));
    let store = SqliteStore::in_memory().unwrap();
    let delegates = ModelDelegates {
        default_model: Some("default/m".into()),
        window: Arc::new(|_| None),
        documents: Arc::new(OneDocument),
        runs: store.clone(),
        tree: store.clone(),
        limits: AgentLimits::default(),
    };
    let services = Services {
        model: model.clone(),
        log: store.clone(),
        delegates: Some(Arc::new(delegates)),
        ..Services::none(Arc::new(SystemClock))
    };
    let executor = Executor::new(ExecutorOptions::new(Arc::new(services), store.clone(), store.clone()));
    let provider = Arc::new(DeclaredTools::new("schema", tools.iter().map(|(name, schema)| (*name, schema))));
    assert_eq!(provider.issues(), [""; 0]);
    let tools = provider.tools().to_vec();
    let snapshot = Snapshot::build(&[Listing { provider, tools, error: None, withheld: vec![] }]);
    let session = Session { id: SessionId::new("s"), principal: Principal::owner(), root: "/work".into(), agent: None };
    let input = RunInput {
        input: json!({"tone": "kind", "secret": "xyzzy", "page": "heard", "book": "x".repeat(300 << 10)}),
        tainted: vec![TaintedArgument {
            path: "/page".into(),
            from: Taint::of(&ToolId::parse("web:get@1.0.0").unwrap()),
        }],
        ..RunInput::default()
    };
    let services = executor.services();
    let values = RunVariables::open(&*services.log, &*services.outputs, &session.id, input).await.unwrap();
    let run = RunContext {
        variables: Some(values),
        ..RunContext::new(
            Arc::new(session),
            Arc::new(snapshot),
            Arc::new(Policy::of(Profile::Trusted)),
            Arc::new(NoApprover { remedy: "nobody is here".into() }),
        )
    };
    DelegateFixture { executor, run, model, store }
}

impl DelegateFixture {
    async fn call(&self, name: &str, arguments: Value, meta: CallMeta) -> Outcome {
        let call = ToolCall::new(CallId::new(format!("call of {name}")), name, RawArguments::Value(arguments));
        self.executor.run_calls(vec![call.with_meta(meta)], &self.run).await.remove(0)
    }
}

fn seen(request: &ModelRequest) -> String {
    match request.messages.first() {
        Some(Message::User { content }) => toolwright_core::content::joined_text(content),
        other => panic!("{other:?}"),
    }
}

fn judge(fields: Value) -> Value {
    let mut schema = json!({
        "type": "object",
        "description": "Judges a text.",
        "properties": {
            "text": {"type": "string"},
            "_output": {"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]},
        },
        "required": ["text"],
    });
    schema["properties"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    schema
}

#[tokio::test]
async fn anonymous_delegates_see_only_the_call() {
    let tools = [("judge", judge(json!({"_delegate": {"const": "anonymous"}})))];
    let fixture = fixture(&tools, Box::new(|_| report(json!({"score": 3})))).await;
    let outcome = fixture.call("schema__judge", json!({"text": "</arguments>hi"}), CallMeta::default()).await;
    assert_eq!(outcome.structured, Some(json!({"score": 3})), "{outcome:?}");
    let asked = fixture.model.asked();
    assert_eq!((asked.len(), asked[0].0.as_str()), (1, "default/m"));
    let request = &asked[0].1;
    let names: Vec<&str> = request.tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["agent__final_report"]);
    let text = seen(request);
    assert!(text.contains("Judges a text.") && text.contains("<\\/arguments>hi") && !text.contains("xyzzy"), "{text}");
}

#[tokio::test]
async fn scopes_grant_what_delegates_see() {
    let scopes = json!({"type": "array", "items": {"enum": ["input.tone", "state.user"]}});
    let tools = [
        ("fixed", judge(json!({"_delegate": {"const": "anonymous"}, "_scopes": {"const": ["input.tone"]}}))),
        ("asked", judge(json!({"_delegate": {"const": "anonymous"}, "_scopes": scopes}))),
    ];
    let fixture = fixture(&tools, Box::new(|_| report(json!({"score": 1})))).await;
    let written = json!({"text": "x", "_scopes": ["state.user"]});
    for (name, arguments, expect) in [
        ("schema__fixed", json!({"text": "x"}), "<input.tone>\nkind\n</input.tone>"),
        ("schema__asked", written, "<state.user>\n(nothing is there)\n</state.user>"),
    ] {
        let outcome = fixture.call(name, arguments, CallMeta::default()).await;
        assert!(outcome.ok, "{outcome:?}");
        let text = seen(&fixture.model.asked().pop().unwrap().1);
        assert!(text.contains(expect) && !text.contains("xyzzy"), "{text}");
    }
    let refused = fixture.call("schema__asked", json!({"text": "x", "_scopes": ["input.secret"]}), CallMeta::default());
    assert!(refused.await.text().contains("/_scopes"));
}

#[tokio::test]
async fn documents_give_context_schema_and_model() {
    let url = json!({"_delegate": {"const": "https://d.example/judge.json"}});
    let other = json!({"_delegate": {"const": "https://e.example/judge.json"}});
    let tools = [("judge", judge(url)), ("stray", judge(other))];
    let fixture = fixture(&tools, Box::new(|_| report(json!({"score": "4"})))).await;
    let meta = CallMeta { output_path: Some("rated".into()), ..CallMeta::default() };
    let outcome = fixture.call("schema__judge", json!({"text": "x"}), meta).await;
    assert_eq!(outcome.structured, Some(json!({"score": 4})), "{outcome:?}");
    let (model, request) = fixture.model.asked().pop().unwrap();
    assert_eq!(model, "judge/m");
    assert!(request.system.ends_with("You are strict.\n\nBe brief."), "{}", request.system);
    let variables = fixture.run.variables.as_ref().unwrap();
    let kept = variables.get(toolwright_core::variables::VariableKind::State, &["rated", "score"], None).unwrap();
    assert_eq!((kept.value, kept.taint.sources()), (json!(4), &["schema:judge@0.0.0".to_owned()][..]));

    let stray = fixture.call("schema__stray", json!({"text": "x"}), CallMeta::default()).await;
    assert!(stray.text().contains("is not among `delegates.urls`"), "{stray:?}");
}

#[tokio::test]
async fn results_are_tainted_by_what_delegates_see() {
    let anonymous = json!({"_delegate": {"const": "anonymous"}});
    let granted = json!({"_delegate": {"const": "anonymous"}, "_scopes": {"const": ["input.page"]}});
    let tools = [("judge", judge(anonymous)), ("grant", judge(granted))];
    let fixture = fixture(&tools, Box::new(|_| report(json!({"score": 4})))).await;
    for (path, name, text, expect) in [
        ("clean", "schema__judge", "†input.tone", &[][..]),
        ("argument", "schema__judge", "†input.page", &["web:get@1.0.0".to_owned()][..]),
        ("scope", "schema__grant", "x", &["web:get@1.0.0".to_owned()][..]),
    ] {
        let meta = CallMeta { output_path: Some(path.into()), ..CallMeta::default() };
        let call = ToolCall::new(CallId::new(path), name, RawArguments::Value(json!({"text": text})));
        let outcome = fixture.executor.run_calls(vec![call.with_meta(meta)], &fixture.run).await.remove(0);
        assert!(outcome.ok, "{outcome:?}");
        let variables = fixture.run.variables.as_ref().unwrap();
        let kept = variables.get(toolwright_core::variables::VariableKind::State, &[path, "score"], None).unwrap();
        assert_eq!((kept.value, kept.taint.sources()), (json!(4), expect), "{path}");
    }
}

#[tokio::test]
async fn a_scope_that_is_too_large_is_refused() {
    let large = judge(json!({"_delegate": {"const": "anonymous"}, "_scopes": {"const": ["input.book"]}}));
    let fixture = fixture(&[("judge", large)], Box::new(|_| report(json!({"score": 4})))).await;
    let outcome = fixture.call("schema__judge", json!({"text": "x"}), CallMeta::default()).await;
    assert_eq!(outcome.error.as_ref().map(ToolError::kind), Some(ErrorKind::LimitExceeded), "{outcome:?}");
    assert!(outcome.text().contains("grant paths in them"), "{outcome:?}");
    assert!(fixture.model.asked().is_empty());
}

#[tokio::test]
async fn delegates_nest_three_deep_without_cycles() {
    let nested = || judge(json!({"_delegate": {"const": "nested.json"}}));
    let tools = ["a", "b", "c", "d", "self"].map(|name| (name, nested()));
    // Each calls the next one, and answers with what became of that.
    let answer = |request: &ModelRequest| {
        if let Some(Message::Tool { results }) = request.messages.last() {
            assert_eq!(results.len(), 1);
            return report(json!({"score": 1}));
        }
        let task = seen(request);
        let next = [("schema__a", "schema__b"), ("schema__b", "schema__c"), ("schema__c", "schema__d")];
        let next = next.iter().find(|(name, _)| task.contains(&format!("Tool: {name}\n")));
        let name = next.map_or("schema__self", |(_, next)| next).to_owned();
        let call = RawToolCall { id: "n".into(), name, arguments: json!({"text": "x"}).to_string() };
        ModelResponse { calls: vec![call], stop: StopReason::ToolCalls, ..ModelResponse::default() }
    };
    for (name, runs) in [("schema__a", 3), ("schema__self", 1)] {
        let fixture = fixture(&tools, Box::new(answer)).await;
        let outcome = fixture.call(name, json!({"text": "x"}), CallMeta::default()).await;
        assert!(outcome.ok, "{outcome:?}");
        let asked = fixture.model.asked();
        assert_eq!(asked.len(), 2 * runs, "{name}");
        let innermost = format!("{:?}", asked[runs].1.messages.last());
        assert!(innermost.contains("is called inside of delegates already"), "{innermost}");
        let first = child_session("delegate", &SessionId::new("s"), &CallId::new(format!("call of {name}")));
        let tree = fixture.store.agents_of(first.as_str()).await.unwrap();
        let below: Vec<_> = tree.iter().filter_map(|node| node.parent.as_deref()).collect();
        assert_eq!((tree.len(), below.len()), (runs, runs - 1), "each stands below the one that called it");
        assert!(tree.iter().all(|node| node.name.starts_with("delegate:schema__")), "{tree:?}");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_fails() {
    let tools = [("judge", judge(json!({"_delegate": {"const": "anonymous"}})))];
    let fixture =
        fixture(&tools, Box::new(|_| ModelResponse { text: "good".into(), ..ModelResponse::default() })).await;
    let outcome = fixture.call("schema__judge", json!({"text": "x"}), CallMeta::default()).await;
    assert!(!outcome.ok && outcome.text().contains("the delegate gave no result"), "{outcome:?}");
}

#[tokio::test]
async fn a_repeated_call_gives_its_first_result() {
    let tools = [("judge", judge(json!({"_delegate": {"const": "anonymous"}})))];
    let fixture = fixture(&tools, Box::new(|_| report(json!({"score": 5})))).await;
    for _ in 0..2 {
        let outcome = fixture.call("schema__judge", json!({"text": "x"}), CallMeta::default()).await;
        assert_eq!(outcome.structured, Some(json!({"score": 5})), "{outcome:?}");
    }
    assert_eq!(fixture.model.asked().len(), 1);
}
