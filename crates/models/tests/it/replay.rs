//! Recordings played: which answer a request gets, and how plainly that is told.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use toolwright_core::Redactor;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::model::{
    IgnoreModelEvents, Message, ModelClient, ModelError, ModelErrorKind, ModelEvent, ModelEvents, ModelRequest,
    ModelResponse, ShownTool, Traffic, Usability, WrittenCall,
};
use toolwright_models::{Endpoints, HttpModelClient, Models};

/// Knows one secret.
struct Known;

impl Redactor for Known {
    fn spans(&self, text: &str) -> Vec<Range<usize>> {
        text.match_indices("hunter2").map(|(at, found)| at..at + found.len()).collect()
    }
}

fn models() -> Models {
    Models::new(HttpModelClient::new(Endpoints::default()), Arc::new(Known))
}

fn question(text: &str) -> ModelRequest {
    let tool = |name: &str| ShownTool { name: name.into(), ..ShownTool::default() };
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
    Known.redact_value(&line).to_string()
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
async fn a_request_gets_the_answers_that_were_recorded_for_it_in_order() {
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
    assert!(error.message.contains("as it was (replayed from /"), "{error}");

    let mut asked = question("one");
    asked.system = "another".into();
    asked.temperature = Some(0.5);
    assert_eq!(ask(&models, &id, &asked).await.unwrap(), "1 again", "what is not what was asked does not count");
    asked.tools = [].into();
    let error = ask(&models, &id, &asked).await.unwrap_err();
    let said = "the recording holds 5 requests, and not this one; the nearest is number";
    assert!(error.kind == ModelErrorKind::BadResponse && error.message.starts_with(said), "{error}");
    assert!(error.message.contains("differs at tools[0]: recorded `\"a\"`, asked nothing"), "{error}");
    let error = ask(&models, &id, &question("your password is hunter2, or was")).await.unwrap_err();
    assert!(error.message.contains("differs at messages[0].content[0].text"), "{error}");
    assert!(!error.message.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn loosely_what_was_not_recorded_gets_the_next_answer() {
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
async fn what_was_secret_only_then_and_the_system_prompt_tell_requests_apart() {
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

#[derive(Default)]
struct Pieces(Mutex<(Vec<ModelEvent>, Vec<Traffic>)>);

impl ModelEvents for Pieces {
    fn on_event(&self, event: ModelEvent) {
        self.0.lock().unwrap().0.push(event);
    }

    fn on_traffic(&self, traffic: Traffic) {
        self.0.lock().unwrap().1.push(traffic);
    }
}

#[tokio::test]
async fn an_answer_comes_in_pieces_and_is_told_to_be_replayed_once() {
    let call = WrittenCall { id: "c".into(), name: "a".into(), arguments: "{}".into() };
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
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    models.on_replay(move |replayed| sink.lock().unwrap().push(replayed.clone()));
    for _ in 0..2 {
        let pieces = Pieces::default();
        let got = models.complete(&id, &question("q"), &pieces, &Cancel::new()).await.unwrap();
        assert_eq!(got, answer);
        let (events, traffic) = pieces.0.into_inner().unwrap();
        assert_eq!(traffic, [Traffic::FirstByte]);
        assert_eq!(events.first(), Some(&ModelEvent::Reasoning("so".into())));
        assert_eq!(events.last(), Some(&ModelEvent::Call(call.clone())));
        let texts = events.iter().map(|event| match event {
            ModelEvent::Text(piece) => Cow::Borrowed(piece.as_str()),
            _ => Cow::Borrowed(""),
        });
        let texts: Vec<_> = texts.filter(|piece| !piece.is_empty()).collect();
        assert!(texts.len() > 5 && texts.concat() == text, "{texts:?}");
    }
    let told = told.lock().unwrap().clone();
    assert_eq!((told.len(), told[0].requests, told[0].is_torn), (1, 1, true));
    assert!(Path::new(&told[0].file).is_absolute());

    let cancel = Cancel::new();
    cancel.cancel(CancelCause::User);
    let error = models.complete(&id, &question("q"), &IgnoreModelEvents, &cancel).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Canceled);
}

#[tokio::test]
async fn what_is_no_recording_is_refused_by_its_name() {
    let deferred = json!({"name": "a", "description": "", "parameters": {}, "exposed": "deferred"});
    let (dir, id) =
        recording(&[line(&question("q"), Ok("1")).replace(r#""tools":["#, &format!(r#""tools":[{deferred},"#))]);
    let models = models();
    let card = models.card(&id);
    assert_eq!((card.usability, card.stands_for.as_deref()), (Usability::Usable, Some("openai/m")));
    assert!(models.has_tool_search(&id) && models.check(&id).is_ok());
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
    ] {
        let id = format!("replay:{file}");
        let error = ask(&models, &id, &question("q")).await.unwrap_err();
        assert!(error.kind == ModelErrorKind::Unsupported && error.message.contains(part), "{id}: {error}");
        assert!(matches!(models.card(&id).usability, Usability::Unknown(why) if why.contains(part)), "{id}");
        assert!(models.check(&id).is_err(), "{id}");
    }
    // Only the prefix makes a recording.
    let error = ask(&models, "openai/replay:x", &question("q")).await.unwrap_err();
    assert!(error.message.contains("unknown provider `openai`"), "{error}");
    assert!(!models.has_tool_search("openai/m"));
}
