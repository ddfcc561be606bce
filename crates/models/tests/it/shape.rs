//! What a model's server turns out not to do: hold an answer to a shape, read all that it is sent.

use std::sync::Mutex;

use serde_json::json;
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{
    IgnoreModelEvents, Message, ModelClient, ModelError, ModelErrorKind, ModelEvent, ModelEvents, ModelRequest,
    OutputFormat, Traffic,
};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient};
use toolwright_testkit::model_server::{Script, ScriptedModel, Turn, WireApi};

const UNABLE: &str = "output_config: this model does not support structured outputs";
const TOO_LARGE: &str = "The compiled grammar is too large, which would cause performance issues.";
const NO_SCHEMA: &str = "output_config.format.schema: For 'object' type, this is not supported";

fn client(api: Api, server: &ScriptedModel, wire: WireApi) -> HttpModelClient {
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("p", api, server.base_url(wire)).with_key("k"));
    HttpModelClient::new(endpoints)
}

/// A request for an answer with this property.
fn shaped(property: &str) -> ModelRequest {
    let schema = json!({"type": "object", "properties": {property: {"type": "string"}}, "required": [property],
        "additionalProperties": false});
    let output = Some(OutputFormat { name: "o".into(), schema: Some(schema) });
    ModelRequest { system: "Be brief.".into(), messages: vec![Message::user("q")], output, ..ModelRequest::default() }
}

#[tokio::test]
async fn a_model_that_refuses_a_shape_is_asked_in_words_from_then_on() {
    // What the server says -> whether another try may help, and whether this and another schema are demanded after it.
    let check = async |refusal: &str, helps: Option<bool>, same: bool, other: bool| {
        let turns = vec![Turn::error(400, refusal), Turn::text("a"), Turn::text("b"), Turn::text("c")];
        let server = ScriptedModel::start(turns).await.unwrap();
        let client = client(Api::Anthropic, &server, WireApi::Anthropic);
        let ask = async |model: &str, property: &str| -> Result<(), ModelError> {
            client.complete(model, &shaped(property), &IgnoreModelEvents, &Cancel::new()).await.map(drop)
        };
        let error = ask("p/m", "x").await.unwrap_err();
        assert_eq!((error.kind, error.should_retry), (ModelErrorKind::Invalid, helps), "{error}");
        ask("p/m", "x").await.unwrap();
        ask("p/m", "y").await.unwrap();
        ask("p/n", "x").await.unwrap();
        let sent = server.requests();
        let demanded: Vec<_> = sent.iter().map(|sent| sent.body.get("output_config").is_some()).collect();
        assert_eq!(demanded, [true, same, other, true], "{refusal}");
        for (sent, demanded) in sent.iter().zip(demanded) {
            let system = sent.body["system"].as_str().unwrap();
            assert_eq!(system.starts_with("Be brief.\n\nYour final answer is one JSON text"), !demanded, "{system}");
        }
        assert_eq!(server.failures(), [""; 0]);
    };
    check(UNABLE, Some(true), false, false).await;
    check(TOO_LARGE, Some(true), false, true).await;
    check(NO_SCHEMA, Some(true), false, true).await;
    check("max_tokens: 8192 > 4096", None, true, true).await;
    check("output_config.effort: this model does not support it", None, true, true).await;
}

#[tokio::test]
async fn a_schema_that_the_prompt_tells_is_not_told_again() {
    let refusals = vec![Turn::error(400, TOO_LARGE), Turn::text("a")];
    let server = ScriptedModel::start(refusals).await.unwrap();
    let client = client(Api::Anthropic, &server, WireApi::Anthropic);
    let mut request = shaped("x");
    let schema = request.output.as_ref().and_then(|output| output.schema.clone()).unwrap();
    request.system = format!("The value fits this JSON Schema:\n{schema}");
    client.complete("p/m", &request, &IgnoreModelEvents, &Cancel::new()).await.unwrap_err();
    client.complete("p/m", &request, &IgnoreModelEvents, &Cancel::new()).await.unwrap();
    assert_eq!(server.requests()[1].body["system"], request.system);
}

#[tokio::test]
async fn a_refusal_in_words_is_the_last_word() {
    let server = ScriptedModel::start(vec![Turn::error(400, TOO_LARGE), Turn::error(400, TOO_LARGE)]).await.unwrap();
    let client = client(Api::Anthropic, &server, WireApi::Anthropic);
    for expect in [Some(true), None] {
        let answer = client.complete("p/m", &shaped("x"), &IgnoreModelEvents, &Cancel::new()).await;
        assert_eq!(answer.unwrap_err().should_retry, expect);
    }
}

#[tokio::test]
async fn a_model_that_refuses_a_temperature_is_sent_one_once() {
    let refusal = "Unsupported value: 'temperature' does not support 0.5 with this model.";
    let turns = vec![Turn::error(400, refusal), Turn::text("a"), Turn::text("b"), Turn::text("c")];
    let server = ScriptedModel::start(turns).await.unwrap();
    let client = client(Api::OpenAiChat, &server, WireApi::OpenAi);
    let warm = ModelRequest { messages: vec![Message::user("q")], temperature: Some(0.5), ..ModelRequest::default() };
    let ask = async |model: &str| client.complete(model, &warm, &IgnoreModelEvents, &Cancel::new()).await;
    let error = ask("p/m").await.unwrap_err();
    assert!(error.wants_another_form(), "{error}");
    for model in ["p/m", "p/m", "p/n"] {
        ask(model).await.unwrap();
    }
    let sent: Vec<_> = server.requests().iter().map(|sent| sent.body.get("temperature").is_some()).collect();
    assert_eq!(sent, [true, false, false, true]);
}

#[derive(Default)]
struct Told(Mutex<Vec<Traffic>>);

impl ModelEvents for Told {
    fn on_event(&self, _event: ModelEvent) {}

    fn on_traffic(&self, traffic: Traffic) {
        self.0.lock().unwrap().push(traffic);
    }
}

#[tokio::test]
async fn a_server_that_reads_less_than_it_was_sent_is_told_of_once() {
    // The scripted server says that it read ten tokens.
    let server = ScriptedModel::start(Script::echo()).await.unwrap();
    let client = client(Api::Ollama, &server, WireApi::Ollama);
    let told = Told::default();
    for (model, words) in [("p/m", 1), ("p/m", 2000), ("p/m", 2000), ("p/n", 2000)] {
        let request = ModelRequest { messages: vec![Message::user("four".repeat(words))], ..ModelRequest::default() };
        client.complete(model, &request, &told, &Cancel::new()).await.unwrap();
    }
    let told = told.0.into_inner().unwrap();
    let shortened: Vec<_> = told.iter().filter(|traffic| **traffic != Traffic::FirstByte).collect();
    assert_eq!(shortened, [&Traffic::Shortened { sent: 2000, read: 10 }; 2], "once a model");
}
