//! Tools that ask models: which, in which order, and what is told and booked of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::catalogue::{Listing, Provider as _, ProviderKind, Snapshot};
use toolwright_core::context::{EstimatedTokens, Exactness, TokenCounter};
use toolwright_core::definition::{ModelPreference, OnOutputMismatch};
use toolwright_core::event::Event;
use toolwright_core::llm::{LlmDefinition, LlmHooks, Variant, define_llm_tool};
use toolwright_core::model::{
    IgnoreModelEvents, Message, ModelCard, ModelClient, ModelError, ModelErrorKind, ModelRequest, ModelResponse,
    StopReason, Usability, Usage,
};
use toolwright_core::outcome::SCHEMA_MISMATCH;
use toolwright_core::store::LedgerStore as _;
use toolwright_core::{
    CallId, Cancel, CancelCause, Effects, ErrorKind, OpKind, Outcome, RawArguments, Services, StaticProvider, Tool,
    ToolCall, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::ExecutorOptions;
use toolwright_runtime::executor::LlmOptions;
use toolwright_testkit::{FakeEvents, FakeModel, FakeRequest};

use crate::fixture::{Fixture, fixture};

/// What each model says; a kind of failure for a text like `!auth`.
type ModelAnswers = HashMap<&'static str, &'static str>;

fn answer(says: &ModelAnswers, model: &str) -> Result<ModelResponse, ModelError> {
    if model == "a/plain" {
        let message = "Invalid schema for function 'set_temperature'";
        return Err(ModelError::new(ModelErrorKind::Invalid, message));
    }
    let said = says.get(model).copied().unwrap_or("!unavailable");
    let kind = match said {
        "!auth" => Some(ModelErrorKind::Auth),
        "!unavailable" => Some(ModelErrorKind::Unavailable),
        _ => None,
    };
    if let Some(kind) = kind {
        return Err(ModelError::new(kind, format!("{model} says no, hunter2")));
    }
    let usage = Usage { input_tokens: 100, output_tokens: 10, ..Usage::default() };
    Ok(ModelResponse { text: said.to_owned(), usage, ..ModelResponse::default() })
}

fn card(model: &str, windows: &HashMap<&'static str, usize>) -> ModelCard {
    let usability = if model.starts_with("keyless/") { Usability::NoKey } else { Usability::Usable };
    ModelCard { usability, window: windows.get(model).copied(), ..ModelCard::default() }
}

fn answering(says: ModelAnswers) -> Arc<FakeModel> {
    answering_with_windows(says, HashMap::new())
}

fn answering_with_windows(says: ModelAnswers, windows: HashMap<&'static str, usize>) -> Arc<FakeModel> {
    let fake = FakeModel::new(move |call| answer(&says, call.model));
    Arc::new(fake.with_card(move |model| card(model, &windows)))
}

fn preference(models: &[&str]) -> ModelPreference {
    ModelPreference {
        preferred_model: models.first().map(|model| (*model).to_owned()),
        fallback_models: models.iter().skip(1).map(|model| (*model).to_owned()).collect(),
        ..ModelPreference::default()
    }
}

fn declared(models: &[&str]) -> Arc<dyn Tool> {
    let parameters = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
    let id = ToolId::parse("llm:t@1.0.0").expect("id");
    let output = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let mut definition = LlmDefinition::new(id, "d", parameters, "Count.", "{{ text }}");
    definition.output_schema = Some(output);
    definition.model_preference = preference(models);
    let mode = |id: &str, mode: Option<&str>| Variant {
        id: id.to_owned(),
        mode: mode.map(str::to_owned),
        is_default: mode.is_none(),
        ..Variant::default()
    };
    definition.variants = vec![mode("usual", None), mode("brief", Some("brief"))];
    define_llm_tool(definition, LlmHooks::default()).expect("a tool")
}

/// Written by hand: it asks the model that was chosen for it.
struct ModelChoiceTool(Effects, Vec<&'static str>);

#[async_trait]
impl Tool for ModelChoiceTool {
    fn definition(&self) -> ToolDefinition {
        let parameters = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        let id = ToolId::parse("llm:t@1.0.0").expect("id");
        let plain = ToolDefinition::new(id, "d", Some(parameters));
        ToolDefinition { effects: self.0, model_preference: Some(preference(&self.1)), ..plain }
    }

    async fn run(&self, _arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let services = &context.services;
        let model = services.model_id.as_deref().expect("a model was chosen");
        let asked = services.model.complete(model, &ModelRequest::default(), &IgnoreModelEvents, &context.cancel).await;
        let answer = asked.map_err(|error| ToolError::new(ErrorKind::ExecutionError, error.message))?;
        if answer.text == "fail" {
            Ok(ToolOutput::failure("it did not work"))
        } else {
            Ok(ToolOutput::text(answer.text))
        }
    }
}

async fn fixture_with_approval(
    models: &Arc<FakeModel>,
    tool: Arc<dyn Tool>,
    more: impl FnOnce(&mut ExecutorOptions),
) -> Fixture {
    let client = Arc::clone(models);
    let mut fixture = fixture(move |options| {
        let services = Services {
            model: client,
            redactor: Arc::new(toolwright_testkit::FakeRedactor("hunter2")),
            ..(*options.services).clone()
        };
        options.services = Arc::new(services);
        more(options);
    })
    .await;
    let provider = Arc::new(StaticProvider::new("llm", ProviderKind::Llm, vec![tool]).expect("provider"));
    let tools = provider.list().await.expect("tools");
    fixture.run = fixture.on(Snapshot::build(&[Listing { provider, tools, error: None, withheld: Vec::new() }]));
    fixture
}

async fn one(fixture: &Fixture, arguments: Value) -> Outcome {
    let call = ToolCall::new(CallId::new("c"), "llm__t", RawArguments::Value(arguments));
    fixture.all(vec![call]).await.remove(0)
}

fn job_events(events: &mut tokio::sync::broadcast::Receiver<Arc<Event>>) -> Vec<String> {
    let mut job_events = Vec::new();
    while let Ok(event) = events.try_recv().map(Arc::unwrap_or_clone) {
        job_events.push(match event {
            Event::ToolStarted { .. } => "tool".to_owned(),
            Event::ToolFinished { ok, .. } => format!("tool ended {ok}"),
            Event::LlmAttemptStarted { model, attempt, .. } => format!("{attempt} {model}"),
            Event::LlmAttemptFinished { model, usage, variant, .. } => {
                format!("{model} ok {} {}", usage.input_tokens, variant.unwrap_or_default())
            }
            Event::LlmAttemptFailed { model, kind, next, message, variant, .. } => {
                assert!(!message.contains("hunter2"), "{message}");
                let variant = variant.map(|variant| format!(" {variant}")).unwrap_or_default();
                format!("{model} {kind}{variant} then {}", next.unwrap_or_default())
            }
            Event::Fallback { from, to, .. } => format!("{to} for {from}"),
            Event::Warning { code, .. } => code,
            Event::ModelStarted { .. } | Event::ModelFinished { .. } => continue,
            other => panic!("{other:?}"),
        });
    }
    job_events
}

#[tokio::test]
async fn models_are_tried_in_order() {
    let answers = HashMap::from([
        ("a/good", r#"Here: {"n": 3}"#),
        ("a/words", "three"),
        ("a/wrong", r#"{"n": "three"}"#),
        ("a/down", "!unavailable"),
        ("b/good", r#"{"n": 4}"#),
    ]);
    let both: [&str; 7] = [
        "tool",
        "1 a/words",
        "a/words execution_error usual then a/good",
        "a/good for a/words",
        "2 a/good",
        "a/good ok 100 usual",
        "tool ended true",
    ];
    for (preferred, recommended, default, expect, story_of) in [
        (
            &["a/good"][..],
            &[][..],
            None,
            Ok(3),
            Some(&["tool", "1 a/good", "a/good ok 100 usual", "tool ended true"][..]),
        ),
        (&["a/words", "a/good"], &[], None, Ok(3), Some(&both)),
        (&["a/wrong", "keyless/x", "a/good"], &[], None, Ok(3), None),
        (&["a/down", "b/good"], &[], Some("a/good"), Ok(4), None),
        (&["a/good"], &["b/good"], None, Ok(4), None),
        (&[], &[], Some("b/good"), Ok(4), None),
        (&["a/down", "a/words"], &[], None, Err(("execution_error", "a/down: unavailable: a/down says no")), None),
        (
            &["keyless/x"],
            &[],
            Some("a/good"),
            Err(("not_permitted", "keyless/x: there is no key")),
            Some(&["tool ended false"]),
        ),
        (&[], &[], None, Err(("not_permitted", "no model is configured")), Some(&["tool ended false"])),
    ] {
        let models = answering(answers.clone());
        let (recommended, default): (Vec<String>, Option<String>) =
            (recommended.iter().map(|model: &&str| (*model).to_owned()).collect(), default.map(str::to_owned));
        let fixture = fixture_with_approval(&models, declared(preferred), |options| {
            options.compat = Arc::new(move |_| recommended.clone());
            options.default_model = default;
        })
        .await;
        let mut events = fixture.events.subscribe();
        let outcome = one(&fixture, json!({"text": "x"})).await;
        let reported = job_events(&mut events);
        match expect {
            Ok(n) => {
                assert_eq!(outcome.structured, Some(json!({"n": n})), "{preferred:?}: {:?}", outcome.error);
                assert_eq!(outcome.extras["variant"], "usual");
            }
            Err((kind, part)) => {
                let error = outcome.error.as_ref().expect("failed");
                assert_eq!(error.kind().as_str(), kind, "{preferred:?}: {error}");
                assert!(error.message().contains(part), "{preferred:?}: {error}");
            }
        }
        if let Some(story_of) = story_of {
            assert_eq!(reported, story_of, "{preferred:?}");
        }
        // A row for each request, failed ones too, inside the call's operation.
        fixture.store.flush().await.expect("flush");
        let totals = fixture.store.totals().await.expect("totals");
        let asked = models.requests() as u64;
        assert_eq!((totals.tool_calls, totals.model_calls), (1, asked), "{preferred:?}");
    }
}

#[tokio::test]
async fn answers_follow_their_schema_setting() {
    use OnOutputMismatch::{Error, Warn};
    let list = json!({"type": "array", "items": {"type": "string"}});
    let objects = json!({"type": "array", "items": {"type": "object", "required": ["a"]}});
    let object = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
    let pair = json!({"type": "object", "required": ["a", "items"]});
    let (breaks, nothing) = ("the answer breaks its output schema", "the answer has no readable JSON in it");
    // What comes out, and whether it is told to break the schema; else a part of the error.
    for (schema, word, says, expect) in [
        (&object, Error, r#"{"a": "x"}"#, Ok((json!({"a": "x"}), false))),
        (&object, Error, r#"{"b": 1}"#, Err(breaks)),
        (&object, Warn, r#"{"b": 1}"#, Ok((json!({"b": 1}), true))),
        (&object, Warn, "three", Err(nothing)),
        (&object, Error, "[1, 2]", Err(nothing)),
        (&list, Error, r#"{"items": ["a"]}"#, Ok((json!({"items": ["a"]}), false))),
        (&list, Error, r#"["a", "b"]"#, Ok((json!({"items": ["a", "b"]}), false))),
        (&list, Error, "Here:\n```json\n[\"a\"]\n```", Ok((json!({"items": ["a"]}), false))),
        (&list, Error, r#"As [1]: {"items": ["a"]}"#, Ok((json!({"items": ["a"]}), false))),
        (&list, Error, "[1]", Err("/items/0")),
        (&list, Warn, "[1]", Ok((json!({"items": [1]}), true))),
        (&objects, Error, r#"[{"a": 1}, {"a": 2}]"#, Ok((json!({"items": [{"a": 1}, {"a": 2}]}), false))),
        (&objects, Error, r#"[{"b": 1}]"#, Err("/items/0")),
        (&pair, Error, "[1]", Err(nothing)),
    ] {
        let parameters = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        let id = ToolId::parse("llm:t@1.0.0").expect("id");
        let mut definition = LlmDefinition::new(id, "d", parameters, "", "{{ text }}");
        definition.output_schema = Some(schema.clone());
        definition.on_output_mismatch = word;
        definition.model_preference = preference(&["a/m"]);
        let tool = define_llm_tool(definition, LlmHooks::default()).expect("a tool");
        let fixture = fixture_with_approval(&answering(HashMap::from([("a/m", says)])), tool, |_| ()).await;
        let outcome = one(&fixture, json!({"text": "x"})).await;
        match expect {
            Ok((value, is_noted)) => {
                assert_eq!(outcome.structured, Some(value), "{word:?} {says}: {:?}", outcome.error);
                assert_eq!(outcome.extras.contains_key(SCHEMA_MISMATCH), is_noted, "{word:?} {says}");
            }
            Err(part) => {
                let error = outcome.error.unwrap_or_else(|| panic!("{word:?} {says}"));
                assert!(error.message().contains(part), "{says}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn the_usage_of_all_attempts_is_summed() {
    let says = HashMap::from([("a/words", "three"), ("a/good", r#"{"n": 3}"#)]);
    let models = answering(says);
    let fixture = fixture_with_approval(&models, declared(&["a/words", "a/good"]), |_| ()).await;
    let outcome = one(&fixture, json!({"text": "x"})).await;
    assert_eq!(outcome.extras["model"], "a/good");
    assert_eq!(outcome.extras["usage"]["input_tokens"], 200);
    fixture.store.flush().await.expect("flush");
    let traces = fixture.store.traces(9).await.expect("traces");
    let rows = fixture.store.operations(&traces[0], 9).await.expect("rows");
    let call = rows.iter().find(|row| row.kind == OpKind::Tool).expect("the call");
    // The request went well; that its answer was no result stands in the row of the call.
    let why = "a/words: the answer has no readable JSON in it; it began: three";
    assert_eq!((call.note.as_deref(), &outcome.extras["failed_models"]), (Some(why), &json!(why)));
    let requests: Vec<_> = rows.iter().filter(|row| row.kind == OpKind::Model).collect();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|row| row.op.lineage.parent == Some(call.op.id)), "{requests:?}");
    assert!(requests.iter().all(|row| row.note.as_deref() == Some("variant usual")), "{requests:?}");
}

#[tokio::test]
async fn the_caller_names_model_and_mode() {
    let models = answering(HashMap::from([("c/x", r#"{"n": 1}"#)]));
    let mut fixture = fixture_with_approval(&models, declared(&["a/good"]), |_| ()).await;
    fixture.run.llm = LlmOptions { model: Some("c/x".into()), mode: Some("brief".into()), ..LlmOptions::default() };
    let outcome = one(&fixture, json!({"text": "x"})).await;
    assert_eq!((&outcome.extras["model"], &outcome.extras["variant"]), (&json!("c/x"), &json!("brief")));
    fixture.run.llm.model = Some("c/down".into());
    let error = one(&fixture, json!({"text": "x"})).await.error.expect("nothing takes its place");
    assert!(error.message().contains("c/down") && !error.message().contains("a/good"), "{error}");
    assert_eq!(error.for_model(), "(tool failed: c/down: the model behind this tool could not be asked)");
}

#[tokio::test]
async fn a_tool_cannot_prefer_a_recording() {
    let says = HashMap::from([("a/real", "it"), ("replay:r.jsonl", "played")]);
    for (preferred, forced, expect) in [
        (vec!["replay:r.jsonl", "a/real"], None, "it"),
        (vec!["a/real", "replay:r.jsonl"], Some("replay:r.jsonl"), "played"),
    ] {
        let models = answering(says.clone());
        let mut fixture =
            fixture_with_approval(&models, Arc::new(ModelChoiceTool(Effects::READ, preferred)), |_| ()).await;
        fixture.run.llm.model = forced.map(Into::into);
        assert_eq!(one(&fixture, json!({"text": "x"})).await.text(), expect);
    }
}

#[tokio::test]
async fn an_input_over_the_window_skips_the_model() {
    let says = HashMap::from([("a/small", r#"{"n": 1}"#), ("a/large", r#"{"n": 2}"#)]);
    let windows = HashMap::from([("a/small", 600), ("a/large", 100_000)]);
    let models = answering_with_windows(says, windows);
    let fixture = fixture_with_approval(&models, declared(&["a/small", "a/large"]), |_| ()).await;
    let mut events = fixture.events.subscribe();
    assert_eq!(one(&fixture, json!({"text": "x"})).await.extras["model"], "a/small");
    let _ = job_events(&mut events);
    assert_eq!(one(&fixture, json!({"text": "x".repeat(2000)})).await.extras["model"], "a/large");
    assert_eq!(job_events(&mut events)[..3], ["tool", "a/large for a/small", "1 a/large"]);
    let error = one(&fixture, json!({"text": "x".repeat(2_000_000)})).await.error.expect("too long for both");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(models.requests(), 2);
    // After a failure the rest are looked at with the same input.
    let fixture = fixture_with_approval(&models, declared(&["a/down", "a/small", "a/large"]), |_| ()).await;
    assert_eq!(one(&fixture, json!({"text": "x".repeat(2000)})).await.extras["model"], "a/large");
    let asked: Vec<String> = models.asked().iter().map(|(model, _)| model.clone()).collect();
    assert_eq!(asked[2..], ["a/down", "a/large"]);
}

/// Counts ten tokens a text, as the model `a/exact`.
struct TenTokenCounter;

impl TokenCounter for TenTokenCounter {
    fn count(&self, text: &str) -> (usize, Exactness) {
        EstimatedTokens.count(text)
    }

    fn of_model(&self, model: &str) -> Option<Arc<dyn TokenCounter>> {
        struct TenTokens;
        impl TokenCounter for TenTokens {
            fn count(&self, _text: &str) -> (usize, Exactness) {
                (10, Exactness::Exact)
            }
        }
        (model == "a/exact").then(|| Arc::new(TenTokens) as _)
    }
}

#[tokio::test]
async fn a_prompt_leaves_room_for_its_answer() {
    // Which model is asked for an answer of how many tokens at most.
    let check = async |first: &'static str, text: String, expect: Option<(&str, u32)>| {
        let id = ToolId::parse("llm:t@1.0.0").expect("id");
        let parameters = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
        let mut definition = LlmDefinition::new(id, "d", parameters, "", "{{ text }}");
        let models = if first == "a/small" { vec![first, "a/large"] } else { vec![first] };
        definition.model_preference = ModelPreference { max_tokens: Some(4000), ..preference(&models) };
        let says = HashMap::from([("a/small", "1"), ("a/large", "2"), ("a/exact", "3")]);
        let windows = HashMap::from([("a/small", 8192), ("a/large", 32_768), ("a/exact", 8192)]);
        let models = answering_with_windows(says, windows);
        let tool = define_llm_tool(definition, LlmHooks::default()).expect("a tool");
        let fixture = fixture_with_approval(&models, tool, |options| {
            options.services = Arc::new(Services { tokens: Arc::new(TenTokenCounter), ..(*options.services).clone() });
        })
        .await;
        let outcome = one(&fixture, json!({"text": text})).await;
        let asked = models.asked();
        let got = asked.first().map(|(model, request)| (model.as_str(), request.max_tokens.expect("a limit")));
        assert_eq!(got, expect, "{first} {} bytes: {:?}", text.len(), outcome.error);
        assert_eq!(outcome.ok, expect.is_some());
    };
    let usable = 8192 - 8192 / 20;
    check("a/small", "word ".repeat(100), Some(("a/small", 4000))).await;
    // Figures take more than four bytes a token.
    let figures = "12345 ".repeat(2000);
    let takes = u32::try_from(EstimatedTokens::of_text(&figures)).expect("few");
    assert!(takes > 5400 && figures.len() / 4 == 3000);
    check("a/small", figures, Some(("a/small", usable - takes))).await;
    check("a/small", "漢".repeat(7500), Some(("a/small", usable - 7500))).await;
    // Less than the least answer is left.
    check("a/small", "漢".repeat(7600), Some(("a/large", 4000))).await;
    check("a/small", "漢".repeat(40_000), None).await;
    // Its own tokenizer knows better.
    check("a/exact", "漢".repeat(40_000), Some(("a/exact", 4000))).await;
}

#[tokio::test]
async fn no_fallback_after_cancel_or_possible_effect() {
    let answers = HashMap::from([("a/bad", "fail"), ("a/good", "fine")]);
    let write = Effects { idempotent: false, ..Effects::WRITE };
    for (effects, expect) in [(Effects::READ, Some("fine")), (Effects::WRITE, Some("fine")), (write, None)] {
        let models = answering(answers.clone());
        let tool = Arc::new(ModelChoiceTool(effects, vec!["a/bad", "a/good"]));
        let fixture = fixture_with_approval(&models, tool, |_| ()).await;
        let outcome = one(&fixture, json!({})).await;
        assert_eq!(outcome.ok.then(|| outcome.text()).as_deref(), expect, "{effects:?}: {:?}", outcome.error);
        assert_eq!(models.requests(), if expect.is_some() { 2 } else { 1 });
    }
    let says = HashMap::from([("a/good", r#"{"n": 1}"#)]);
    let cancels: Arc<Mutex<Option<Cancel>>> = Arc::default();
    let slot = Arc::clone(&cancels);
    let models = Arc::new(FakeModel::new(move |call| {
        if let Some(cancel) = slot.lock().expect("lock").take() {
            cancel.cancel(CancelCause::User);
        }
        answer(&says, call.model)
    }));
    let fixture = fixture_with_approval(&models, declared(&["a/down", "a/good"]), |_| ()).await;
    *cancels.lock().expect("lock") = Some(fixture.run.cancel.clone());
    let error = one(&fixture, json!({"text": "x"})).await.error.expect("cancelled");
    assert_eq!((error.kind(), models.requests()), (ErrorKind::Canceled, 1));

    let id = ToolId::parse("llm:t@1.0.0").expect("id");
    let mut lacking = LlmDefinition::new(id, "d", json!({"type": "object", "properties": {}}), "", "{{ missing }}");
    lacking.model_preference = preference(&["a/good", "a/other"]);
    let tool = define_llm_tool(lacking, LlmHooks::default()).expect("a tool");
    let models = answering(ModelAnswers::default());
    let fixture = fixture_with_approval(&models, tool, |_| ()).await;
    let error = one(&fixture, json!({})).await.error.expect("refused");
    assert_eq!((error.kind(), models.requests()), (ErrorKind::InvalidParameters, 0));
}

#[tokio::test]
async fn a_refused_request_is_not_repeated() {
    let id = ToolId::parse("llm:t@1.0.0").expect("id");
    let mut cool = LlmDefinition::new(id, "d", json!({"type": "object", "properties": {}}), "", "Hello");
    cool.model_preference = ModelPreference { temperature: Some(0.0), ..preference(&["a/plain"]) };
    let models = answering(ModelAnswers::default());
    let fixture =
        fixture_with_approval(&models, define_llm_tool(cool, LlmHooks::default()).expect("a tool"), |_| ()).await;
    assert!(one(&fixture, json!({})).await.error.is_some());
    let sent: Vec<_> = models.asked().iter().map(|(_, request)| request.temperature).collect();
    assert_eq!(sent, [Some(0.0)], "what another form may help is the client's to know");
}

#[tokio::test]
async fn a_panicking_observer_fails_no_tool() {
    let panics = |event: &Event| {
        assert!(!matches!(event, Event::LlmAttemptStarted { .. } | Event::LlmAttemptFinished { .. }), "no");
    };
    let models = answering(HashMap::from([("a/good", r#"{"n": 1}"#)]));
    let fixture = fixture_with_approval(&models, declared(&["a/good"]), |options| {
        let events = Arc::new(FakeEvents::with(panics));
        options.services = Arc::new(Services { events, ..(*options.services).clone() });
    })
    .await;
    assert!(one(&fixture, json!({"text": "x"})).await.ok);
}

#[tokio::test]
async fn a_model_is_asked_again_with_the_reason() {
    let client = Arc::new(FakeModel::new(|call| {
        let reported = match call.request.messages.last() {
            Some(Message::User { content }) => content[0].as_text().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        let text = if reported.contains("/a: ") { r#"{"a": 1}"# } else { r#"{"a": "x"}"# };
        Ok(ModelResponse { text: text.to_owned(), ..ModelResponse::default() })
    }));
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let outcome = shipped("structure", Arc::clone(&client) as _, json!({"request": "one", "schema": schema})).await;
    assert_eq!(outcome.structured, Some(json!({"a": 1})), "{:?}", outcome.error);
    assert_eq!(client.requests(), 2);
}

/// What a call of one of the shipped tools comes to, answered by `model`.
async fn shipped(name: &str, model: Arc<dyn ModelClient>, arguments: Value) -> Outcome {
    let tool = toolwright_core::llm::shipped().iter().find(|tool| tool.source().id.name() == name);
    let mut fixture = fixture(move |options| {
        options.services = Arc::new(Services { model, ..(*options.services).clone() });
        options.default_model = Some("a/b".to_owned());
    })
    .await;
    let tool: Arc<dyn Tool> = Arc::new(tool.expect("shipped").clone());
    let provider = Arc::new(StaticProvider::new("llm", ProviderKind::Llm, vec![tool]).expect("provider"));
    let tools = provider.list().await.expect("tools");
    fixture.run = fixture.on(Snapshot::build(&[Listing { provider, tools, error: None, withheld: Vec::new() }]));
    let arguments = RawArguments::Value(arguments);
    let call = ToolCall::new(CallId::new("c"), format!("llm__{name}"), arguments);
    fixture.all(vec![call]).await.remove(0)
}

/// Answers each time as it is said, and has room for so many tokens.
fn cut_model(text: &'static str, stop: StopReason) -> FakeModel {
    let answer = move |_: FakeRequest<'_>| {
        Ok(ModelResponse { text: text.to_owned(), stop: stop.clone(), ..ModelResponse::default() })
    };
    FakeModel::new(answer).with_thinking_tokens(8192)
}

#[tokio::test]
async fn a_cut_answer_names_its_limit() {
    let check = async |name: &str, text, stop, arguments: Value| {
        let client = Arc::new(cut_model(text, stop));
        let outcome = shipped(name, Arc::clone(&client) as _, arguments).await;
        (outcome, client.requests())
    };
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let structure = json!({"request": "one", "schema": schema});
    for (text, says) in [("", "thinking has taken all of it"), ("{\"a\"", "before it was complete; it began: {\"a\"")] {
        let (outcome, asked) = check("structure", text, StopReason::MaxTokens, structure.clone()).await;
        let error = outcome.error.expect("cut").to_string();
        assert!(error.contains(says) && error.contains("tokens, thinking among them: a lower `effort`"), "{error}");
        assert_eq!(asked, 1, "{text}");
    }
    // What is empty without a limit may be another time.
    assert_eq!(check("structure", "", StopReason::End, structure).await.1, 2);
    let summary = json!({"content": "c", "max_length": 60});
    let error = check("summarize", "", StopReason::MaxTokens, summary).await.0.error.expect("cut").to_string();
    assert!(error.contains("(the limit is 8720 tokens"), "{error}");
}

#[tokio::test]
async fn whole_facts_of_a_cut_list_are_kept() {
    let fact = r#"{"key": "birth", "value": "1815", "category": "time", "quote": ""}"#;
    let second = r#"{"key": "death", "value": "1852", "category": "time", "quote": "}"}"#;
    let text: &'static str = format!(r#"{{"facts": [{fact}, {second}, {{"key": "w"#).leak();
    let client = Arc::new(cut_model(text, StopReason::MaxTokens));
    let arguments = json!({"text": "Ada, 1815 to 1852.", "max_facts": 150});
    let outcome = shipped("fact-extract", Arc::clone(&client) as _, arguments).await;
    let kept = |key: &str, value: &str| json!({"key": key, "value": value, "category": "time"});
    let expect = json!({"facts": [kept("birth", "1815"), kept("death", "1852")]});
    assert_eq!(outcome.structured, Some(expect), "{:?}", outcome.error);
    assert_eq!((&outcome.extras["cut"], client.requests()), (&json!(true), 1));
    assert!(outcome.extras["warning"].as_str().is_some_and(|said| said.contains("cut")), "{:?}", outcome.extras);
}

#[tokio::test]
async fn a_variant_may_have_its_own_schema() {
    let form = |name: &str| {
        json!({
            "type": "object", "properties": {name: {"type": "string"}}, "required": [name],
            "additionalProperties": false,
        })
    };
    let id = ToolId::parse("llm:t@1.0.0").expect("id");
    let parameters = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let mut definition = LlmDefinition::new(id, "d", parameters, "", "{{ text }}");
    definition.output_schema = Some(form("tags"));
    definition.model_preference = preference(&["a/good", "b/good"]);
    let own =
        Variant { id: "label".into(), is_default: true, output_schema: Some(form("label")), ..Variant::default() };
    let brief = Variant { id: "brief".into(), provider_match: vec!["b/".into()], ..Variant::default() };
    for (variants, expect) in [(vec![own.clone()], "a/good"), (vec![own, brief], "a/good")] {
        let says = HashMap::from([("a/good", r#"{"label": "cat"}"#), ("b/good", r#"{"tags": "cat"}"#)]);
        let models = answering(says);
        let definition = LlmDefinition { variants, ..definition.clone() };
        let tool = define_llm_tool(definition, LlmHooks::default()).expect("a tool");
        let fixture = fixture_with_approval(&models, tool, |_| ()).await;
        let outcome = one(&fixture, json!({"text": "a cat"})).await;
        assert_eq!(outcome.structured, Some(json!({"label": "cat"})), "{:?}", outcome.error);
        assert_eq!(outcome.extras["model"], expect);
    }
}
