//! What servers say, and which form may help.

use serde_json::{Value, json};
use toolwright_core::model::{Effort, Message, ModelSettings, OutputFormat, ShownTool};

use super::table::{PARAMETERS, next};
use super::*;
use crate::api::Api;
use crate::encoder::encode;

fn without(name: &str) -> Form {
    Form::Without(PARAMETERS.iter().position(|names| names.contains(&name)).expect("a parameter"))
}

/// A request that says everything that may be refused.
fn request(schema: Option<Value>) -> ModelRequest {
    let tools = [ShownTool {
        name: "set_temperature".into(),
        parameters: json!({"type": "object", "properties": {"to": {"type": "string", "pattern": "^a+$"}}}),
        ..ShownTool::default()
    }];
    ModelRequest {
        messages: vec![Message::user("JSON, please")],
        tools: tools.into(),
        parallel_calls: Some(false),
        output: Some(OutputFormat { name: "o".into(), schema }),
        max_tokens: Some(800),
        temperature: Some(0.5),
        settings: ModelSettings {
            effort: Some(Effort::High),
            top_p: Some(0.9),
            top_k: Some(4),
            seed: Some(7),
            stop: vec!["END".into()],
            ..ModelSettings::default()
        },
        ..ModelRequest::default()
    }
}

fn closed() -> Option<Value> {
    Some(json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
        "additionalProperties": false}))
}

#[test]
fn what_a_server_says_tells_which_form_may_help() {
    let check = |api: Api, model: &str, schema: Option<Value>, words: &str, expect: Option<Form>| {
        let request = request(schema);
        let encoded = encode(api, &request, model);
        let got = next(&words.to_lowercase(), &Sent { api, request: &request, encoded: &encoded });
        assert_eq!(got, expect, "{api} {model}: {words}");
    };
    let chat = |words: &str, expect| check(Api::OpenAiChat, "some-model", closed(), words, expect);
    let this = closed().map(|schema| Form::Schema(ContentHash::of_value(&schema)));
    chat("This response_format type is unavailable now (invalid_request_error)", Some(Form::Schemas));
    chat("This model does not support response format `json_schema`.", Some(Form::Schemas));
    chat("Invalid schema for response_format 'o': In context=(), 'required' is required", this);
    chat(
        "Invalid JSON schema: regex lookaround is not supported. Found at $.properties.to.pattern",
        Some(Form::NoPatterns),
    );
    chat("Pattern must start with '^' and end with '$'", Some(Form::NoPatterns));
    chat("\"^[[]$\" is not a \"regex\"", Some(Form::NoPatterns));
    let extra =
        r#"[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted"}]"#;
    chat(extra, Some(Form::OlderLimit));
    chat("max_completion_tokens is too large: 90000. This model supports at most 16384 completion tokens", None);
    chat("Unsupported value: 'temperature' does not support 0.5 with this model.", Some(without("temperature")));
    chat("`temperature` and `top_p` cannot both be specified for this model", Some(without("temperature")));
    chat(
        "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
        Some(without("parallel_tool_calls")),
    );
    chat(
        r#"[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted"}]"#,
        Some(without("seed")),
    );
    chat("Invalid schema for function 'set_temperature': 'x' is not supported", None);
    chat("Unsupported parameter: 'top_k'", None);
    chat("messages: at least one message is required", None);
    let function_tools = "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions.";
    chat(function_tools, Some(Form::NoEffort));
    let object = |api, words: &str, expect| check(api, "some-model", None, words, expect);
    object(Api::OpenAiChat, "'response_format.type' must be 'json_schema' or 'text'", Some(Form::Json));
    object(Api::OpenAiResponses, "Unsupported parameter: 'text.format'", Some(Form::Json));
    // It was asked for in words.
    object(Api::Anthropic, "The compiled grammar is too large", None);
    object(Api::Ollama, "invalid JSON schema in format", None);
    let encrypted = "Encrypted content is not supported with this model.";
    check(Api::OpenAiResponses, "prod-4o", closed(), encrypted, Some(Form::NoThoughtsBack));
    check(Api::OpenAiResponses, "gpt-4o", closed(), encrypted, None);
    let stale = "The encrypted content gAAA could not be verified. (invalid_encrypted_content)";
    check(Api::OpenAiResponses, "gpt-5", closed(), stale, None);
    let bound = "The block is bound to a different conversation.";
    check(Api::Anthropic, "claude-opus-5-5", closed(), bound, Some(Form::DropForeignThoughts));
    check(Api::Anthropic, "claude-opus-4-5", closed(), "output_config.effort: not supported", None);
    check(
        Api::Gemini,
        "gemini-3-pro",
        closed(),
        "Unknown name \"topK\" at 'generation_config'",
        Some(without("top_k")),
    );
}

fn refusal(words: &str) -> ModelError {
    ModelError::new(ModelErrorKind::Invalid, words)
}

#[test]
fn a_form_is_a_model_s_once_it_was_taken_and_not_before() {
    let refusals = Refusals::default();
    let (one, mut other) = (request(closed()), request(closed()));
    other.system = "Another.".into();
    let encoded = encode(Api::OpenAiChat, &one, "m");
    let sent = Sent { api: Api::OpenAiChat, request: &one, encoded: &encoded };
    let fail = |request: &ModelRequest, words: &str| {
        let mut error = refusal(words);
        refusals.failed("p/m", request, &sent, refusals.forms("p/m", request), &mut error);
        error.wants_another_form()
    };
    let forms = |request: &ModelRequest| refusals.forms("p/m", request).all;
    let (temperature, seed) = ("'temperature' is not supported", "'seed' is not supported");
    assert!(fail(&one, temperature));
    assert_eq!((forms(&one), forms(&other)), (vec![without("temperature")], vec![]), "tried for this request alone");
    refusals.answered("p/m", &refusals.forms("p/m", &other));
    assert_eq!(forms(&other), [], "the answer of another request says nothing");
    assert!(fail(&one, seed), "there may be two things");
    assert!(!fail(&one, seed), "the same again helps nobody");
    assert_eq!(forms(&one), [], "what did not help is forgotten");
    assert!(fail(&one, temperature));
    refusals.answered("p/m", &refusals.forms("p/m", &one));
    assert_eq!((forms(&one), forms(&other)), (vec![without("temperature")], vec![without("temperature")]));
    assert_eq!(refusals.forms("p/n", &one).all, []);
    assert!(refusals.kept().tried.is_empty());
}

#[test]
fn what_is_kept_is_bounded() {
    let refusals = Refusals::default();
    let encoded = encode(Api::OpenAiChat, &request(None), "m");
    for number in 0..2 * MAX_KEPT {
        let request = ModelRequest { system: number.to_string(), ..request(None) };
        let sent = Sent { api: Api::OpenAiChat, request: &request, encoded: &encoded };
        let mut error = refusal("'seed' is not supported");
        refusals.failed("p/m", &request, &sent, Forms::default(), &mut error);
        assert!(refusals.kept().tried.len() <= MAX_KEPT);
        refusals.answered(&format!("p/{number}"), &refusals.forms("p/m", &request));
        assert!(refusals.kept().taken.len() <= MAX_KEPT);
        let mut error = refusal("'seed' is not supported");
        refusals.failed("p/m", &request, &sent, Forms::default(), &mut error);
    }
}
