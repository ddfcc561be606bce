//! What a model's server turns out not to do: take a form of a request, read all that it is sent.

use serde_json::{Value, json};
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{
    Effort, IgnoreModelEvents, Message, ModelClient, ModelError, ModelErrorKind, ModelRequest, ModelSettings,
    OutputFormat, RequestProgress, RequestTool,
};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient};
use toolwright_testkit::FakeModelEvents;
use toolwright_testkit::model_server::{Script, ScriptedModel, Turn, WireApi};

const UNABLE: &str = "output_config: this model does not support structured outputs";
const TOO_LARGE: &str = "The compiled grammar is too large, which would cause performance issues.";
const NO_SCHEMA: &str = "output_config.format.schema: For 'object' type, this is not supported";

fn client(api: Api, server: &ScriptedModel, wire: WireApi) -> HttpModelClient {
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("p", api, server.base_url(wire)).with_key("sk-secret-7"));
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
async fn a_refused_shape_is_requested_as_text() {
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
async fn schema_in_the_prompt_is_not_repeated() {
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
async fn repeated_shape_refusals_are_returned() {
    let server = ScriptedModel::start(vec![Turn::error(400, TOO_LARGE), Turn::error(400, TOO_LARGE)]).await.unwrap();
    let client = client(Api::Anthropic, &server, WireApi::Anthropic);
    for expect in [Some(true), None] {
        let answer = client.complete("p/m", &shaped("x"), &IgnoreModelEvents, &Cancel::new()).await;
        assert_eq!(answer.unwrap_err().should_retry, expect);
    }
}

#[tokio::test]
async fn refused_temperature_is_sent_only_once() {
    let refusal = "Unsupported value: 'temperature' does not support 0.5 with this model.";
    let turns = vec![Turn::error(400, refusal), Turn::text("a"), Turn::text("b"), Turn::text("c")];
    let server = ScriptedModel::start(turns).await.unwrap();
    let client = client(Api::OpenAiChat, &server, WireApi::OpenAi);
    let warm = ModelRequest { messages: vec![Message::user("q")], temperature: Some(0.5), ..ModelRequest::default() };
    let ask = async |model: &str| client.complete(model, &warm, &IgnoreModelEvents, &Cancel::new()).await;
    let error = ask("p/m").await.unwrap_err();
    assert!(error.is_retried_differently(), "{error}");
    for model in ["p/m", "p/m", "p/n"] {
        ask(model).await.unwrap();
    }
    let sent: Vec<_> = server.requests().iter().map(|sent| sent.body.get("temperature").is_some()).collect();
    assert_eq!(sent, [true, false, false, true]);
}

/// A request that says much: tools with a pattern, a limit, a temperature, a shape.
fn much(schema: Option<Value>) -> ModelRequest {
    let parameters = json!({"type": "object", "properties": {"to": {"type": "string", "pattern": "[a-z]"}}});
    let tools = [RequestTool { name: "set_temperature".into(), parameters, ..RequestTool::default() }];
    ModelRequest {
        system: "Be brief.".into(),
        messages: vec![Message::user("q")],
        tools: tools.into(),
        output: Some(OutputFormat { name: "o".into(), schema }),
        max_tokens: Some(800),
        temperature: Some(0.5),
        ..ModelRequest::default()
    }
}

fn closed() -> Option<Value> {
    shaped("x").output.and_then(|output| output.schema)
}

/// Asks once more for as long as the client says that another form may help, then for something else. What stands at
/// `places` of each request.
async fn sent(
    (api, wire): (Api, WireApi),
    model: &str,
    request: &ModelRequest,
    refusals: &[(u16, &str)],
    places: &[&str],
) -> Vec<Value> {
    let refused = refusals.iter().map(|(status, said)| Turn::error(*status, *said));
    let turns: Vec<Turn> = refused.chain([Turn::text("{}"), Turn::text("{}")]).collect();
    let server = ScriptedModel::start(turns).await.unwrap();
    let client = client(api, &server, wire);
    let other = ModelRequest { messages: vec![Message::user("another")], ..request.clone() };
    for request in [request, &other] {
        for _ in 0..4 {
            match client.complete(model, request, &IgnoreModelEvents, &Cancel::new()).await {
                Err(error) if error.is_retried_differently() => {}
                _ => break,
            }
        }
    }
    let at = |body: &Value| places.iter().map(|place| body.pointer(place).cloned().unwrap_or_default()).collect();
    server.requests().iter().map(|sent| at(&sent.body)).collect()
}

const CHAT: (Api, WireApi) = (Api::OpenAiChat, WireApi::OpenAi);

#[tokio::test]
async fn refused_parameters_are_left_out_later() {
    let shape = ["/response_format/type", "/messages/0/content"];
    let reported = format!(
        "Be brief.\n\nYour final answer is one JSON text and nothing else. It is valid under this JSON Schema:\n{}",
        closed().unwrap()
    );
    // DeepSeek has JSON without a schema.
    let unavailable = (400, "This response_format type is unavailable now");
    let object = json!(["json_object", reported]);
    let got = sent(CHAT, "p/deepseek-chat", &much(closed()), &[unavailable], &shape).await;
    assert_eq!(got, [json!(["json_schema", "Be brief."]), object.clone(), object.clone()]);
    // Another has neither.
    let neither = (400, "Unsupported parameter: 'response_format'");
    let got = sent(CHAT, "p/m", &much(closed()), &[neither, neither], &shape).await;
    assert_eq!(got, [json!(["json_schema", "Be brief."]), object, json!([null, reported]), json!([null, reported])]);
    // LM Studio wants a schema.
    let wants = (400, "'response_format.type' must be 'json_schema' or 'text'");
    let reported = "Be brief.\n\nYour final answer is one JSON object and nothing else.";
    let got = sent(CHAT, "p/m", &much(None), &[wants], &shape).await;
    assert_eq!(got, [json!(["json_object", reported]), json!([null, reported]), json!([null, reported])]);
    // Mistral has the older name of a limit.
    let extra = (422, "extra_forbidden: body.max_completion_tokens: Extra inputs are not permitted");
    let got = sent(CHAT, "p/mistral-small", &much(None), &[extra], &["/max_completion_tokens", "/max_tokens"]).await;
    assert_eq!(got, [json!([800, null]), json!([null, 800]), json!([null, 800])]);
    // A name that does not tell that the model does not reason.
    let encrypted = (400, "Encrypted content is not supported with this model.");
    let responses = (Api::OpenAiResponses, WireApi::Responses);
    let got = sent(responses, "p/prod-4o", &much(closed()), &[encrypted], &["/include", "/store"]).await;
    assert_eq!(got, [json!([["reasoning.encrypted_content"], false]), json!([null, false]), json!([null, false])]);
    // Patterns of another engine.
    let pattern = (400, "Pattern must start with '^' and end with '$'");
    let place = "/tools/0/function/parameters/properties/to";
    let got = sent(CHAT, "p/m", &much(None), &[pattern], &[place]).await;
    let said = json!([{"type": "string", "description": "Must match [a-z]."}]);
    assert_eq!(got, [json!([{"type": "string", "pattern": "[a-z]"}]), said.clone(), said]);
}

#[tokio::test]
async fn refused_effort_beside_tools_is_reversed() {
    let refusal = (400, "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions.");
    let place = ["/reasoning_effort", "/max_completion_tokens"];
    let asked =
        |effort| ModelRequest { settings: ModelSettings { effort, ..ModelSettings::default() }.into(), ..much(None) };
    let got = sent(CHAT, "p/gpt-5.6", &asked(None), &[refusal], &place).await;
    // What it thinks where it is told nothing has room.
    let without_limit = json!([null, 800 + 8192]);
    assert_eq!(got, [without_limit.clone(), json!(["none", 800]), json!(["none", 800])], "a proxy before OpenAI");
    let got = sent(CHAT, "p/gpt-5.6", &asked(Some(Effort::Low)), &[refusal], &place).await;
    assert_eq!(got, [json!(["low", 800 + 1024]), json!(["none", 800]), json!(["none", 800])]);
    let got = sent(CHAT, "p/gpt-5.6-luna", &asked(Some(Effort::None)), &[refusal], &place).await;
    assert_eq!(got, [json!(["none", 800]), without_limit.clone(), without_limit], "Foundry");
    let got = sent(CHAT, "p/prod-6", &asked(Some(Effort::High)), &[refusal, refusal], &place).await;
    let silent = json!([null, 800]);
    assert_eq!(got, [json!(["high", 800 + 24_576]), json!(["none", 800]), silent.clone(), silent], "neither word");
}

#[tokio::test]
async fn unrelated_errors_disable_no_feature() {
    let place = ["/temperature"];
    // The first is about a tool; the second names the parameter, and leaving it out does not help.
    let tool = (400, "Invalid schema for function 'set_temperature': no");
    let other = (400, "This endpoint does not support a temperature beside an adapter");
    let half = json!([0.5]);
    assert_eq!(sent(CHAT, "p/m", &much(None), &[tool], &place).await, [half.clone(), half.clone()]);
    let got = sent(CHAT, "p/m", &much(None), &[other, other], &place).await;
    assert_eq!(got, [half.clone(), json!([null]), half]);
}

#[tokio::test]
async fn refused_room_is_not_made_again() {
    let place = ["/max_completion_tokens"];
    let plain =
        |limit| ModelRequest { messages: vec![Message::user("q")], max_tokens: Some(limit), ..ModelRequest::default() };
    let room = 8192;
    let overflow = "This model's maximum context length is 8192 tokens. However, you requested 9500 tokens (308 in the \
                    messages, 9192 in the completion). Please reduce the length of the messages or completion.";
    let large = "max_completion_tokens is too large: 9192. This model supports at most 4096 completion tokens";
    for said in [overflow, large] {
        for model in ["p/deepseek-r1-distill-qwen-7b", "p/gpt-oss-20b", "p/o9"] {
            let got = sent(CHAT, model, &plain(1000), &[(400, said)], &place).await;
            assert_eq!(got, [json!([1000 + room]), json!([1000]), json!([1000])], "{model}: {said}");
        }
    }
    // What is refused is a size: a smaller one may pass.
    let turns = vec![Turn::error(400, large), Turn::text("a"), Turn::text("b"), Turn::text("c")];
    let server = ScriptedModel::start(turns).await.unwrap();
    let client = client(CHAT.0, &server, CHAT.1);
    for limit in [1000, 1000, 900, 1001] {
        let _ = client.complete("p/gpt-oss-20b", &plain(limit), &IgnoreModelEvents, &Cancel::new()).await;
    }
    let limits: Vec<_> = server.requests().iter().map(|sent| sent.body["max_completion_tokens"].clone()).collect();
    assert_eq!(limits, [json!(1000 + room), json!(1000), json!(900 + room), json!(1001)]);
    // A conversation that is too long by itself stays one.
    let turns = vec![Turn::error(400, overflow), Turn::error(400, overflow)];
    let server = ScriptedModel::start(turns).await.unwrap();
    let client = self::client(CHAT.0, &server, CHAT.1);
    let mut kinds = Vec::new();
    for helps in [true, false] {
        let answer = client.complete("p/gpt-oss-20b", &plain(1000), &IgnoreModelEvents, &Cancel::new()).await;
        let error = answer.unwrap_err();
        assert_eq!(error.is_retried_differently(), helps, "{error}");
        kinds.push(error.kind);
    }
    assert_eq!(kinds, [ModelErrorKind::ContextOverflow; 2]);
}

#[tokio::test]
async fn shape_refused_with_tools_is_demanded_without_them() {
    let refusal = "json mode cannot be combined with tool/function calling";
    let server =
        ScriptedModel::start(vec![Turn::error(400, refusal), Turn::text("{}"), Turn::text("{}")]).await.unwrap();
    let client = client(CHAT.0, &server, CHAT.1);
    let with_tools = much(closed());
    let without = ModelRequest { tools: [].into(), ..with_tools.clone() };
    for request in [&with_tools, &with_tools, &without] {
        let _ = client.complete("p/m", request, &IgnoreModelEvents, &Cancel::new()).await;
    }
    let demanded: Vec<_> = server.requests().iter().map(|sent| sent.body["response_format"]["type"].clone()).collect();
    assert_eq!(demanded, [json!("json_schema"), Value::Null, json!("json_schema")]);
}

#[tokio::test]
async fn refused_value_is_dropped_for_itself_only() {
    let turns = vec![Turn::error(400, "temperature: range: 0..1"), Turn::text("a"), Turn::text("b"), Turn::text("c")];
    let server = ScriptedModel::start(turns).await.unwrap();
    let client = client(Api::Anthropic, &server, WireApi::Anthropic);
    for temperature in [1.3, 1.3, 0.0, 1.3] {
        let request = ModelRequest {
            messages: vec![Message::user("q")],
            temperature: Some(temperature),
            ..ModelRequest::default()
        };
        let _ = client.complete("p/claude-haiku-4-5", &request, &IgnoreModelEvents, &Cancel::new()).await;
    }
    let sent: Vec<_> = server.requests().iter().map(|sent| sent.body.get("temperature").cloned()).collect();
    assert_eq!(sent, [Some(json!(1.3)), None, Some(json!(0.0)), None]);
}

#[tokio::test]
async fn refused_combination_is_sent_without_one_part() {
    let both = "`temperature` and `top_p` cannot both be specified for this model";
    let turns = vec![Turn::error(400, both), Turn::text("a"), Turn::text("b"), Turn::text("c"), Turn::text("d")];
    let server = ScriptedModel::start(turns).await.unwrap();
    let client = client(CHAT.0, &server, CHAT.1);
    let request = |top_p, effort| ModelRequest {
        messages: vec![Message::user("q")],
        temperature: Some(0.5),
        settings: ModelSettings { top_p, effort, ..ModelSettings::default() }.into(),
        ..ModelRequest::default()
    };
    let beside = request(Some(0.9), None);
    for asked in [&beside, &beside, &beside, &request(None, None), &request(Some(0.9), Some(Effort::High))] {
        let _ = client.complete("p/m", asked, &IgnoreModelEvents, &Cancel::new()).await;
    }
    let sent: Vec<_> =
        server.requests().iter().map(|sent| [sent.body["temperature"].clone(), sent.body["top_p"].clone()]).collect();
    let (half, most) = (json!(0.5), json!(0.9));
    let without = [Value::Null, most.clone()];
    let whole = [half.clone(), most];
    assert_eq!(
        sent,
        [whole.clone(), without.clone(), without, [half, Value::Null], whole],
        "a model may not think elsewhere"
    );
}

#[tokio::test]
async fn shortened_conversation_is_reported_once() {
    // The scripted server says that it read ten tokens.
    let server = ScriptedModel::start(Script::echo()).await.unwrap();
    let client = client(Api::Ollama, &server, WireApi::Ollama);
    let reported = FakeModelEvents::default();
    for (model, words) in [("p/m", 1), ("p/m", 2000), ("p/m", 2000), ("p/n", 2000)] {
        let request = ModelRequest { messages: vec![Message::user("four".repeat(words))], ..ModelRequest::default() };
        client.complete(model, &request, &reported, &Cancel::new()).await.unwrap();
    }
    let reported = reported.traffic();
    let shortened: Vec<_> = reported.iter().filter(|traffic| **traffic != RequestProgress::FirstByte).collect();
    assert_eq!(shortened, [&RequestProgress::Shortened { sent: 2000, read: 10 }; 2], "once a model");
}
