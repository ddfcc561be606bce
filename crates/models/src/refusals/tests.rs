//! What servers say, and which form may help.

use std::borrow::Cow;

use serde_json::{Value, json};
use toolwright_core::model::{Effort, Message, ModelSettings, OutputFormat, ShownTool};

use super::table::{PARAMETERS, next, next_of_overflow};
use super::*;
use crate::api::Api;
use crate::encode::encode;

fn place(name: &str) -> usize {
    PARAMETERS.iter().position(|names| names.contains(&name)).expect("a parameter")
}

fn without(name: &str) -> Form {
    Form::Without(place(name))
}

/// A limit with room.
const ANSWER_ROOM: Option<AnswerRoom> = Some(AnswerRoom { limit: 9000, whole: 9500 });

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
fn server_message_selects_the_next_form() {
    let check = |api: Api, model: &str, schema: Option<Value>, words: &str, expect: Option<Form>| {
        let request = request(schema);
        let encoded = encode(api, &request, model);
        let got = next(&words.to_lowercase(), &Sent { api, request: &request, encoded: &encoded, answer_room: None });
        assert_eq!(got, expect, "{api} {model}: {words}");
    };
    let chat = |words: &str, expect| check(Api::OpenAiChat, "some-model", closed(), words, expect);
    let as_it_is = |name: &str, words: &str| {
        let request = request(closed());
        let encoded = encode(Api::OpenAiChat, &request, "some-model");
        let sent = Sent { api: Api::OpenAiChat, request: &request, encoded: &encoded, answer_room: None };
        Form::WithoutAs(place(name), ParameterState::refused(place(name), words, &sent).expect("it is there"))
    };
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
    chat(
        "`temperature` and `top_p` cannot both be specified for this model",
        Some(as_it_is("temperature", "and top_p")),
    );
    chat("temperature: range: 0..1", Some(as_it_is("temperature", "")));
    chat("`top_p` must be between 0 and 1", Some(as_it_is("top_p", "")));
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

#[test]
fn refused_room_may_be_left_out() {
    let request = request(None);
    let encoded = encode(Api::OpenAiChat, &request, "some-model");
    let sent = |answer_room| Sent { api: Api::OpenAiChat, request: &request, encoded: &encoded, answer_room };
    for words in [
        "max_completion_tokens is too large: 9000. This model supports at most 8192 completion tokens",
        "max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens for claude-x",
        "Unable to submit request because it has a maxOutputTokens value of 9000 but the supported range is from 1 \
         (inclusive) to 8193 (exclusive).",
        "`max_completion_tokens` must be less than or equal to `8192`",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
        "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 8192, but got 9000 instead.",
    ] {
        let words = words.to_lowercase();
        assert_eq!(next(&words, &sent(ANSWER_ROOM)), Some(Form::LimitUnder(9000)), "{words}");
        assert_eq!(next(&words, &sent(None)), None, "{words}");
    }
    for (words, is_of_answer) in [
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9500 tokens (500 in the messages, \
             9000 in the completion).",
            true,
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's maximum context length is 8192",
            true,
        ),
        ("input length and `max_tokens` exceed context limit: 500 + 9000 > 8192", true),
        ("prompt is too long: 200001 tokens > 200000 maximum", false),
    ] {
        let expect = is_of_answer.then_some(Form::WindowUnder(9500));
        assert_eq!(next_of_overflow(&words.to_lowercase(), &sent(ANSWER_ROOM)), expect, "{words}");
        assert_eq!(next_of_overflow(&words.to_lowercase(), &sent(None)), None, "{words}");
    }
}

#[test]
fn shape_refused_with_tools_is_tried_again() {
    let bare = ModelRequest { tools: [].into(), ..request(closed()) };
    for (api, words) in [
        (Api::OpenAiChat, "json mode cannot be combined with tool/function calling"),
        (Api::OpenAiChat, "`response_format` json_object cannot be combined with tool/function calling"),
        (
            Api::Gemini,
            "Forced function calling (ANY mode) with a response mime type: 'application/json' is unsupported",
        ),
    ] {
        let said = |request: &ModelRequest| {
            let encoded = encode(api, request, "gemini-3-pro");
            next(&words.to_lowercase(), &Sent { api, request, encoded: &encoded, answer_room: None })
        };
        assert_eq!(said(&request(closed())), Some(Form::NoShapeBesideTools), "{words}");
        assert_ne!(said(&bare), Some(Form::NoShapeBesideTools), "{words}");
    }
}

fn refusal(words: &str) -> ModelError {
    ModelError::new(ModelErrorKind::Invalid, words)
}

#[test]
fn form_is_kept_only_once_it_worked() {
    let refusals = Refusals::default();
    let (one, mut other) = (request(closed()), request(closed()));
    other.system = "Another.".into();
    let encoded = encode(Api::OpenAiChat, &one, "m");
    let sent = Sent { api: Api::OpenAiChat, request: &one, encoded: &encoded, answer_room: None };
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
    assert!(refusals.kept().values().all(|kept| kept.tried.is_empty()));
    assert_eq!(refusals.forms("p/m", &one).trial, None);
}

#[test]
fn form_that_brought_the_answer_is_kept() {
    let check = |said: &[&str], expect: &[Form]| {
        let refusals = Refusals::default();
        let one = request(closed());
        for words in said {
            let forms = refusals.forms("p/m", &one);
            let asked = forms.around(Api::OpenAiChat, Cow::Borrowed(&one));
            let mut encoded = encode(Api::OpenAiChat, &asked, "m");
            forms.apply(&asked.settings, &mut encoded);
            let sent = Sent { api: Api::OpenAiChat, request: &asked, encoded: &encoded, answer_room: ANSWER_ROOM };
            let mut error = refusal(words);
            refusals.failed("p/m", &one, &sent, forms, &mut error);
            assert!(error.wants_another_form(), "{words}");
        }
        refusals.answered("p/m", &refusals.forms("p/m", &one));
        let other = ModelRequest { system: "Another.".into(), ..one };
        let mut kept = refusals.forms("p/m", &other).all;
        let of_value = kept.extract_if(.., |form| matches!(form, Form::WithoutAs(..))).count();
        assert_eq!(kept, expect, "{said:?}");
        assert_eq!(of_value, said.iter().filter(|words| words.contains("0..1")).count(), "{said:?}");
    };
    let (temperature, seed) = ("'temperature' is not supported", "'seed' is not supported");
    check(&[temperature, seed], &[without("seed")]);
    check(&[seed, temperature], &[without("temperature")]);
    check(&["temperature: range: 0..1"], &[]);
    check(&["temperature: range: 0..1", seed], &[without("seed")]);
    check(&[seed, "temperature: range: 0..1"], &[without("seed")]);
    check(&["max_tokens: 9000 > 8192"], &[Form::LimitUnder(9000)]);
    let shape = "Unsupported parameter: 'response_format'";
    check(&[shape, shape], &[Form::Schemas, Form::Json]);
    check(&[seed, shape, shape], &[Form::Schemas, Form::Json]);
}

#[test]
fn smaller_limit_replaces_larger_one() {
    let mut kept = ModelForms::default();
    for form in [Form::LimitUnder(9000), Form::WindowUnder(7), Form::LimitUnder(5000)] {
        kept.take("p/m", form);
    }
    assert_eq!(kept.taken, [Form::WindowUnder(7), Form::LimitUnder(5000)]);
}

#[test]
fn what_is_kept_is_bounded() {
    let refusals = Refusals::default();
    let fail = |model: &str, request: &ModelRequest, words: &str| {
        let encoded = encode(Api::OpenAiChat, request, "m");
        let sent = Sent { api: Api::OpenAiChat, request, encoded: &encoded, answer_room: None };
        let mut error = refusal(words);
        refusals.failed(model, request, &sent, Forms::default(), &mut error);
        assert!(error.wants_another_form(), "{words}");
    };
    for number in 0..2 * MAX_KEPT {
        fail(&format!("p/{number}"), &request(None), "'seed' is not supported");
        let other = ModelRequest { system: number.to_string(), ..request(None) };
        fail("p/m", &other, "'seed' is not supported");
        let kept = refusals.kept();
        assert!(kept.len() <= MAX_KEPT && kept.values().all(|kept| kept.tried.len() <= MAX_FORMS));
    }
    for number in 0..2 * MAX_FORMS {
        let shaped = request(Some(json!({"type": "object", "title": number.to_string()})));
        fail("p/m", &shaped, "The compiled grammar is too large");
        refusals.answered("p/m", &refusals.forms("p/m", &shaped));
        let taken = refusals.kept()["p/m"].taken.len();
        assert!((1..=MAX_FORMS).contains(&taken), "{taken}");
    }
}

/// The requests until `one` is answered by a server that looks at the names of parameters for what to refuse.
fn requests_until_answered(
    refusals: &Refusals,
    one: &ModelRequest,
    refuses: &dyn Fn(&[&str]) -> Option<String>,
) -> usize {
    for requests in 1..20 {
        let forms = refusals.forms("p/m", one);
        let mut encoded = encode(Api::OpenAiChat, one, "m");
        forms.apply(&one.settings, &mut encoded);
        let names: Vec<&str> = PARAMETERS
            .iter()
            .flat_map(|names| names.iter().copied())
            .filter(|name| encoded.has_parameter(name))
            .collect();
        let Some(words) = refuses(&names) else {
            refusals.answered("p/m", &forms);
            return requests;
        };
        let sent = Sent { api: Api::OpenAiChat, request: one, encoded: &encoded, answer_room: None };
        let mut error = refusal(&words);
        refusals.failed("p/m", one, &sent, forms, &mut error);
        assert!(error.wants_another_form(), "{words}");
    }
    panic!("it is never answered");
}

#[test]
fn refused_value_stays_out() {
    let has = |names: &[&str], name: &str| names.contains(&name);
    let refusals = Refusals::default();
    // The value is refused first, and then three others as a whole.
    let range = |names: &[&str]| {
        if has(names, "temperature") {
            return Some("temperature: range: 0..1".to_owned());
        }
        let whole = ["seed", "top_p", "stop"].into_iter().find(|name| has(names, name));
        whole.map(|name| format!("'{name}' is not supported"))
    };
    let one = request(None);
    assert_eq!(requests_until_answered(&refusals, &one, &range), 5);
    // The same two that may not stand together may each stand alone.
    let refusals = Refusals::default();
    let both = |names: &[&str]| {
        let stand_together = has(names, "temperature") && has(names, "top_p");
        stand_together.then(|| "`temperature` and `top_p` cannot both be specified".to_owned())
    };
    assert_eq!(requests_until_answered(&refusals, &one, &both), 2);
    assert_eq!(requests_until_answered(&refusals, &one, &both), 1);
    let mut alone = one.clone();
    alone.settings.top_p = None;
    let mut encoded = encode(Api::OpenAiChat, &alone, "m");
    refusals.forms("p/m", &alone).apply(&alone.settings, &mut encoded);
    assert!(encoded.has_parameter("temperature"));
}

#[test]
fn varying_values_cost_other_forms_nothing() {
    let mut kept = ModelForms::default();
    kept.take("p/m", Form::Schemas);
    let of_value = |number: u32| {
        let mut one = request(None);
        one.settings.seed = Some(number);
        let encoded = encode(Api::OpenAiChat, &one, "m");
        let sent = Sent { api: Api::OpenAiChat, request: &one, encoded: &encoded, answer_room: None };
        next("seed must be between 0 and 1", &sent).expect("a form")
    };
    let last = 3 * u32::try_from(MAX_FORMS).expect("a number");
    let mut told = 0;
    for number in 0..=last {
        told += usize::from(kept.is_news(of_value(number)));
        kept.take("p/m", of_value(number));
    }
    assert_eq!((kept.taken.len(), told), (1 + MAX_VALUES, 1));
    assert!(kept.taken.contains(&Form::Schemas) && kept.taken.contains(&of_value(last)));
    assert!(!kept.taken.contains(&of_value(0)), "the oldest gives way");
    // Where all is full of others, a value is not kept.
    kept.taken = vec![Form::Schemas; MAX_FORMS];
    kept.take("p/m", of_value(0));
    assert_eq!(kept.taken, vec![Form::Schemas; MAX_FORMS]);
}

#[test]
fn trials_at_one_model_leave_others_alone() {
    let refusals = Refusals::default();
    let one = request(None);
    let encoded = encode(Api::OpenAiChat, &one, "m");
    let sent = Sent { api: Api::OpenAiChat, request: &one, encoded: &encoded, answer_room: None };
    refusals.failed("p/m", &one, &sent, Forms::default(), &mut refusal("'seed' is not supported"));
    assert_eq!(refusals.kept().keys().collect::<Vec<_>>(), ["p/m"]);
    assert!(refusals.forms("p/m", &one).trial.is_some());
    assert!(refusals.forms("p/n", &one).trial.is_none());
    // A conversation that does not fit is taken up again as another request.
    let mut overflow = ModelError::new(ModelErrorKind::ContextOverflow, "prompt is too long");
    refusals.failed("p/m", &one, &sent, refusals.forms("p/m", &one), &mut overflow);
    assert_eq!((overflow.kind, overflow.should_retry), (ModelErrorKind::ContextOverflow, None));
    assert!(refusals.kept()["p/m"].tried.is_empty());
}
