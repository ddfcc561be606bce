//! Recordings played: which answer a request gets, and how plainly that is told.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use toolwright_core::Redactor;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::model::{
    IgnoreModelEvents, Message, ModelCard, ModelClient, ModelError, ModelErrorKind, ModelEvent, ModelRequest,
    ModelResponse, NotRecorded, RawToolCall, RecordedError, RequestProgress, RequestTool, Usability, Usage,
};
use toolwright_models::{Endpoints, HttpModelClient, Models};
use toolwright_testkit::{FakeModelEvents, FakeRedactor};

/// Knows one secret.
const KNOWN: FakeRedactor = FakeRedactor("hunter2");

fn models() -> Models {
    Models::new(HttpModelClient::new(Endpoints::default()), Arc::new(KNOWN))
}

fn question(text: &str) -> ModelRequest {
    let tool = |name: &str| RequestTool { name: name.into(), ..RequestTool::default() };
    ModelRequest {
        system: "not looked at".into(),
        messages: vec![Message::user(text)],
        tools: [tool("a"), tool("b")].into(),
        ..ModelRequest::default()
    }
}

/// A line of a recording, redacted as its writer does.
fn line(request: &ModelRequest, answer: Result<&str, ModelErrorKind>) -> String {
    let mut line = json!({"type": "exchange", "model": "openai/m", "request": request});
    match answer {
        Ok(text) => line["response"] = json!(ModelResponse { text: text.into(), ..ModelResponse::default() }),
        Err(kind) => line["error"] = json!({"kind": kind, "message": "as it was"}),
    }
    KNOWN.redact_value(&line).to_string()
}

/// A recording in a folder of its own.
fn recording(lines: &[String]) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    let id = format!("replay:{}", file.display());
    (dir, id)
}

async fn ask(models: &Models, id: &str, request: &ModelRequest) -> Result<String, ModelError> {
    models.complete(id, request, &IgnoreModelEvents, &Cancel::new()).await.map(|answer| answer.text)
}

#[tokio::test]
async fn recorded_answers_come_in_order() {
    let lines = [
        line(&question("one"), Ok("1")),
        line(&question("two"), Ok("2")),
        line(&question("one"), Ok("1 again")),
        line(&question("my password is hunter2"), Ok("hunter2, you say")),
        line(&question("three"), Err(ModelErrorKind::RateLimit)),
    ];
    let (_dir, id) = recording(&lines);
    let models = models();
    let check = async |text: &str, expect: &str| assert_eq!(ask(&models, &id, &question(text)).await.unwrap(), expect);
    check("two", "2").await;
    check("one", "1").await;
    check("one", "1 again").await;
    check("one", "1 again").await;
    check("two", "2").await;
    check("my password is hunter2", "[secret], you say").await;
    let error = ask(&models, &id, &question("three")).await.unwrap_err();
    assert_eq!((error.kind, error.should_retry), (ModelErrorKind::RateLimit, Some(false)), "{error}");
    assert_eq!(error.message, "as it was");

    let mut asked = question("one");
    asked.system = "another".into();
    asked.temperature = Some(0.5);
    assert_eq!(ask(&models, &id, &asked).await.unwrap(), "1 again", "what is not what was asked does not count");
    asked.tools = [].into();
    let error = ask(&models, &id, &asked).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::BadResponse);
    assert!(error.source.as_ref().is_some_and(|source| source.is::<NotRecorded>()), "{error:?}");
    for part in [
        "r.jsonl holds 5 requests, and not this one; the nearest is on line ",
        "differs at tools[0]: recorded `\"a\"`, asked nothing; record it again, or append ?loose to the file's name",
    ] {
        assert!(error.message.contains(part), "{error}");
    }
    let error = ask(&models, &id, &question("your password is hunter2, or was")).await.unwrap_err();
    assert!(error.message.contains("differs at messages[0].content[0].text"), "{error}");
    assert!(!error.message.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn loose_replay_answers_unrecorded_requests() {
    let (_dir, id) = recording(&[
        line(&question("one"), Ok("1")),
        line(&question("two"), Ok("2")),
        line(&question("three"), Ok("3")),
    ]);
    let (models, loose) = (models(), format!("{id}?loose"));
    for (text, expect) in [("other", "1"), ("three", "3"), ("another", "2"), ("one", "1")] {
        assert_eq!(ask(&models, &loose, &question(text)).await.unwrap(), expect, "{text}");
    }
    let error = ask(&models, &loose, &question("a third")).await.unwrap_err();
    assert!(error.kind == ModelErrorKind::BadResponse && error.message.contains("all of its 3 answers"), "{error}");
}

#[tokio::test]
async fn past_secrets_and_system_prompt_distinguish_requests() {
    let marked = line(&question("my password is hunter2"), Ok("marked"));
    let with = |system: &str| ModelRequest { system: system.into(), ..question("q") };
    let lines = [line(&with("brief"), Ok("brief")), line(&with("long"), Ok("long")), marked];
    let (_dir, id) = recording(&lines);
    let models = models();
    assert_eq!(ask(&models, &id, &question("my password is not known here")).await.unwrap(), "marked");
    assert_eq!(ask(&models, &id, &question("my password was")).await.unwrap_err().kind, ModelErrorKind::BadResponse);
    for (system, expect) in [("long", "long"), ("another", "brief"), ("brief", "brief"), ("long", "long")] {
        assert_eq!(ask(&models, &id, &with(system)).await.unwrap(), expect, "{system}");
    }
}

#[tokio::test]
async fn replay_streams_and_announces_itself_once() {
    let call = RawToolCall { id: "c".into(), name: "a".into(), arguments: "{}".into() };
    let text = "É".repeat(100);
    let answer = ModelResponse {
        text: text.clone(),
        reasoning: "so".into(),
        calls: vec![call.clone()],
        ..ModelResponse::default()
    };
    // As a run's transcript has it, and cut in its last line.
    let lines = [
        json!({"type": "request", "turn": 1, "model": "openai/m", "request": question("q")}).to_string(),
        json!({"type": "response", "turn": 1, "response": answer}).to_string(),
        r#"{"type": "req"#.to_owned(),
    ];
    let (_dir, id) = recording(&lines);
    let models = models();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reported);
    models.on_replay(move |replayed| sink.lock().unwrap().push(replayed.clone()));
    for _ in 0..2 {
        let pieces = FakeModelEvents::default();
        let got = models.complete(&id, &question("q"), &pieces, &Cancel::new()).await.unwrap();
        assert_eq!(got, answer);
        let (events, traffic) = (pieces.events(), pieces.traffic());
        assert_eq!(traffic, [RequestProgress::FirstByte]);
        assert_eq!(events.first(), Some(&ModelEvent::Reasoning("so".into())));
        assert_eq!(events.last(), Some(&ModelEvent::Call(call.clone())));
        let texts = events.iter().map(|event| match event {
            ModelEvent::Text(piece) => Cow::Borrowed(piece.as_str()),
            _ => Cow::Borrowed(""),
        });
        let texts: Vec<_> = texts.filter(|piece| !piece.is_empty()).collect();
        assert!(texts.len() > 5 && texts.concat() == text, "{texts:?}");
    }
    let reported = reported.lock().unwrap().clone();
    assert_eq!((reported.len(), reported[0].requests, reported[0].is_torn), (1, 1, true));
    assert!(Path::new(&reported[0].file).is_absolute());

    let cancel = Cancel::new();
    cancel.cancel(CancelCause::User);
    let error = models.complete(&id, &question("q"), &IgnoreModelEvents, &cancel).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Canceled);
}

#[tokio::test]
async fn non_recordings_are_refused_by_name() {
    let deferred = json!({"name": "a", "description": "", "parameters": {}, "exposed": "deferred"});
    let (dir, id) =
        recording(&[line(&question("q"), Ok("1")).replace(r#""tools":["#, &format!(r#""tools":[{deferred},"#))]);
    let models = models();
    // A card does no I/O.
    assert_eq!((models.card(&id), models.has_tool_search(&id)), (ModelCard::default(), false));
    models.ready(&id).await.unwrap();
    let card = models.card(&id);
    assert_eq!((card.usability, card.stands_for.as_deref()), (Usability::Usable, Some("openai/m")));
    assert!(models.has_tool_search(&id) && models.check(&id).is_ok());
    assert_eq!(card.recorded[..], ["openai/m".into()]);
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let empty = write("empty", "{\"type\": \"report\"}\n");
    let broken = write("broken", "no\nyes\n");
    for (file, part) in [
        ("", "names no recording"),
        ("?loose", "names no recording"),
        ("/no/such/file", "it cannot be read"),
        ("/dev/null", "it cannot be read"),
        (empty.as_str(), "it holds no request"),
        (broken.as_str(), "line 1 is no line"),
        (
            &format!("{}?model=openai/other", id.trim_start_matches("replay:")),
            "has no answer of openai/other; it has those of openai/m",
        ),
    ] {
        let id = format!("replay:{file}");
        let error = ask(&models, &id, &question("q")).await.unwrap_err();
        assert!(error.kind == ModelErrorKind::Unsupported && error.message.contains(part), "{id}: {error}");
        assert!(matches!(models.card(&id).usability, Usability::Unknown(why) if why.contains(part)), "{id}");
        assert!(models.check(&id).is_err(), "{id}");
    }
    // Only the prefix makes a recording.
    let error = ask(&models, "openai/replay:x", &question("q")).await.unwrap_err();
    assert!(error.message.contains("`openai/replay:x` has no key: set OPENAI_API_KEY"), "{error}");
    assert!(!models.has_tool_search("openai/m"));
}

/// A line of a recording of this model.
fn line_of(model: &str, request: &ModelRequest, answer: Result<&str, RecordedError>) -> String {
    let mut line = json!({"type": "exchange", "model": model, "request": request});
    match answer {
        Ok(text) => line["response"] = json!(ModelResponse { text: text.into(), ..ModelResponse::default() }),
        Err(error) => line["error"] = json!(error),
    }
    line.to_string()
}

#[tokio::test]
async fn replayed_failure_keeps_usage_and_partial_answer() {
    let call = RawToolCall { id: "c".into(), name: "a".into(), arguments: "{}".into() };
    let usage = Usage { input_tokens: 12, output_tokens: 3, ..Usage::default() };
    let partial =
        ModelResponse { text: "half an ans".into(), calls: vec![call.clone()], usage, ..ModelResponse::default() };
    let error = RecordedError {
        kind: ModelErrorKind::BadResponse,
        message: "the answer broke off".into(),
        usage,
        partial: Some(Box::new(partial.clone())),
    };
    let transcript = [
        json!({"type": "request", "turn": 1, "model": "openai/m", "request": question("t")}).to_string(),
        json!({"type": "model_error", "turn": 1, "kind": error.kind, "message": error.message, "usage": usage, "partial": partial})
            .to_string(),
    ];
    let lines = [&[line_of("openai/m", &question("q"), Err(error.clone()))], &transcript[..]].concat();
    let (_dir, id) = recording(&lines);
    let models = models();
    for text in ["q", "t"] {
        let pieces = FakeModelEvents::default();
        let got = models.complete(&id, &question(text), &pieces, &Cancel::new()).await.unwrap_err();
        assert_eq!((got.kind, &*got.message, got.usage), (error.kind, "the answer broke off", usage), "{text}");
        assert_eq!((got.partial.as_deref(), got.should_retry), (Some(&partial), Some(false)), "{text}");
        let (events, traffic) = (pieces.events(), pieces.traffic());
        assert_eq!(traffic, [RequestProgress::FirstByte], "an answer had begun: {text}");
        assert_eq!(events, [ModelEvent::Text("half an ans".into()), ModelEvent::Call(call.clone())], "{text}");
    }
}

#[tokio::test]
async fn shared_requests_replay_per_model_in_order() {
    let failed = |message: &str| {
        Err(RecordedError {
            kind: ModelErrorKind::RateLimit,
            message: message.into(),
            usage: Usage::default(),
            partial: None,
        })
    };
    let lines = [
        line_of("a/first", &question("q"), failed("too many")),
        line_of("b/second", &question("q"), Ok("by the second")),
        line_of("b/second", &question("other"), Ok("its own")),
    ];
    let (_dir, id) = recording(&lines);
    let (first, second) = (format!("{id}?model=a/first"), format!("{id}?model=b/second"));
    let models = models();
    models.ready(&id).await.unwrap();
    assert_eq!(models.card(&id).recorded[..], ["a/first".into(), "b/second".into()]);
    assert_eq!(models.card(&second).stands_for.as_deref(), Some("b/second"));
    assert_eq!(models.card(&second).recorded[..], ["b/second".into()]);
    // Each by its name, as often as it is asked.
    for _ in 0..2 {
        assert_eq!(ask(&models, &second, &question("q")).await.unwrap(), "by the second");
        assert_eq!(ask(&models, &first, &question("q")).await.unwrap_err().message, "too many");
    }
    let error = ask(&models, &first, &question("other")).await.unwrap_err();
    assert!(error.source.as_ref().is_some_and(|source| source.is::<NotRecorded>()), "{error:?}");
    assert!(error.message.contains("has this request of b/second (line 3), and not of a/first"), "{error}");
    // By the name of the recording alone, one after the other.
    let (_dir, id) = recording(&lines);
    assert_eq!(ask(&models, &id, &question("q")).await.unwrap_err().message, "too many");
    assert_eq!(ask(&models, &id, &question("q")).await.unwrap(), "by the second");
    // Loosely a model has answers of its own.
    let loose = format!("{id}?loose?model=b/second");
    assert_eq!(ask(&models, &loose, &question("new")).await.unwrap(), "its own");
    let error = ask(&models, &loose, &question("newer")).await.unwrap_err();
    assert!(error.message.contains("all of its 2 answers are played"), "{error}");
}

/// Many at once, of which each gets its own answer, and answers of one request go to each once.
#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_get_each_their_own_answer() {
    let lines: Vec<String> = (0..32)
        .flat_map(|number| [(format!("q{number}"), format!("a{number}")), ("same".into(), format!("s{number}"))])
        .map(|(text, answer)| line(&question(&text), Ok(&answer)))
        .collect();
    let (_dir, id) = recording(&lines);
    let (models, id) = (Arc::new(models()), Arc::new(id));
    let asked = (0..32).flat_map(|number| [format!("q{number}"), "same".to_owned()]).map(|text| {
        let (models, id) = (Arc::clone(&models), Arc::clone(&id));
        tokio::spawn(async move { (text.clone(), ask(&models, &id, &question(&text)).await.unwrap()) })
    });
    let asked: Vec<_> = asked.collect();
    let mut same = Vec::new();
    for answer in asked {
        let (text, answer) = answer.await.unwrap();
        match text.strip_prefix('q') {
            Some(number) => assert_eq!(answer, format!("a{number}")),
            None => same.push(answer),
        }
    }
    same.sort();
    let mut expect: Vec<_> = (0..32).map(|number| format!("s{number}")).collect();
    expect.sort();
    assert_eq!(same, expect, "each answer once");
}
