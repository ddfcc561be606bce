//! Every rule has tools that break it and nothing else, and the same tools mended.

mod anthropic;
mod gemini;
mod ollama;
mod openai;

use serde_json::{Value, json};
use toolwright_testkit::rules::{ApiRules, Breach, check_tools};

use ApiRules::{Anthropic, Gemini, Ollama, OpenAiChat, OpenAiResponses};

/// Tools that break `rule` of `api`, and the same tools mended.
struct Example {
    api: ApiRules,
    rule: &'static str,
    breaks: Value,
    mended: Value,
}

fn examples() -> Vec<Example> {
    let mut all = Vec::new();
    for api in ApiRules::ALL {
        all.extend(any_api(api));
    }
    for api in [OpenAiChat, OpenAiResponses] {
        all.extend(openai::openai(api));
        all.extend(openai::openai_strict(api));
    }
    all.extend(openai::responses());
    all.extend(anthropic::anthropic());
    all.extend(anthropic::anthropic_deferred());
    all.extend(anthropic::anthropic_strict());
    all.extend(anthropic::anthropic_request());
    all.extend(gemini::gemini());
    all.extend(gemini::gemini_schema());
    all.extend(gemini::gemini_json());
    all.extend(ollama::ollama());
    all
}

/// One tool of `api` with this schema, and a name and a description that nobody objects to.
fn tool(api: ApiRules, schema: &Value, strict: bool) -> Value {
    named(api, "look_up", schema, strict)
}

fn named(api: ApiRules, name: &str, schema: &Value, strict: bool) -> Value {
    let described = json!({ "name": name, "description": "Looks something up." });
    let with = |fields: Value| {
        let mut tool = described.clone();
        for (key, value) in fields.as_object().into_iter().flatten() {
            tool[key] = value.clone();
        }
        tool
    };
    match api {
        OpenAiChat => {
            json!({ "type": "function", "function": with(json!({ "parameters": schema, "strict": strict })) })
        }
        OpenAiResponses => with(json!({ "type": "function", "parameters": schema, "strict": strict })),
        Anthropic => with(json!({ "input_schema": schema, "strict": strict })),
        Gemini => with(json!({ "parametersJsonSchema": schema })),
        Ollama => json!({ "type": "function", "function": with(json!({ "parameters": schema })) }),
    }
}

/// A `tools` array as `api` wants it.
fn array(api: ApiRules, tools: Vec<Value>) -> Value {
    if api == Gemini { json!([{ "functionDeclarations": tools }]) } else { Value::Array(tools) }
}

/// An example whose tools are one tool each that differ in their schema.
fn schemas(api: ApiRules, strict: bool, rule: &'static str, breaks: Value, mended: Value) -> Example {
    let one = |schema: Value| array(api, vec![tool(api, &schema, strict)]);
    Example { api, rule, breaks: one(breaks), mended: one(mended) }
}

/// An example whose tools differ at the places `changes` names, from a tool that nobody objects to.
fn fields(api: ApiRules, rule: &'static str, changes: Value) -> Example {
    let good = array(api, vec![tool(api, &json!({ "type": "object", "properties": {} }), false)]);
    let mut bad = good.clone();
    for (path, value) in changes.as_object().into_iter().flatten() {
        let (parent, key) = path.rsplit_once('/').unwrap();
        bad.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    Example { api, rule, breaks: bad, mended: good }
}

fn object(properties: Value) -> Value {
    json!({ "type": "object", "properties": properties })
}

/// A closed object that requires all its properties.
fn closed(properties: Value) -> Value {
    let names: Vec<&String> = properties.as_object().unwrap().keys().collect();
    json!({ "type": "object", "properties": properties, "required": names, "additionalProperties": false })
}

/// `closed` with definitions beside it.
fn with_defs(mut schema: Value, defs: Value) -> Value {
    schema["$defs"] = defs;
    schema
}

fn many(count: usize, schema: &Value) -> Value {
    (0..count).map(|at| (format!("p{at}"), schema.clone())).collect::<serde_json::Map<_, _>>().into()
}

fn any_api(api: ApiRules) -> Vec<Example> {
    let good = object(json!({}));
    let two = |second: &str| array(api, vec![named(api, "one", &good, false), named(api, second, &good, false)]);
    let referring = |target: &str| object(json!({ "a": { "$ref": target } }));
    let mut found = vec![
        Example { api, rule: "any/tools", breaks: json!({}), mended: json!([]) },
        Example { api, rule: "any/tools", breaks: array(api, vec![json!("look_up")]), mended: array(api, vec![]) },
        Example { api, rule: "any/name-unique", breaks: two("one"), mended: two("other") },
        schemas(
            api,
            false,
            "any/ref-local",
            referring("https://example.com/a.json"),
            with_defs(referring("#/$defs/a"), json!({ "a": { "type": "string" } })),
        ),
        schemas(api, false, "any/ref-local", referring("#/$defs/a"), referring("#")),
        schemas(
            api,
            false,
            "any/ref-local",
            with_defs(referring("#/$defs/a/b"), json!({ "a/b": { "type": "string" } })),
            with_defs(referring("#/%24defs/a~1b"), json!({ "a/b": { "type": "string" } })),
        ),
    ];
    if api != Anthropic {
        let typed = |kind: Value| object(json!({ "a": { "type": kind } }));
        found.push(schemas(api, false, "any/schema-compiles", typed(json!("dict")), typed(json!("object"))));
    }
    found
}

fn reported(breaches: &[Breach]) -> Vec<String> {
    breaches.iter().map(|breach| format!("{} at {:?}: {}", breach.rule, breach.path, breach.message)).collect()
}

#[test]
fn examples_break_one_rule_each() {
    for Example { api, rule, breaks, mended } in examples() {
        let found = check_tools(api, &breaks);
        let shown: String = breaks.to_string().chars().take(600).collect();
        assert!(!found.is_empty(), "{api:?} {rule}: nothing found in {shown}");
        assert!(found.iter().all(|breach| breach.rule == rule), "{api:?} {rule}: {:#?} in {shown}", reported(&found));
        let left = check_tools(api, &mended);
        let shown: String = mended.to_string().chars().take(600).collect();
        assert!(left.is_empty(), "{api:?} {rule}, mended: {:#?} in {shown}", reported(&left));
    }
}

#[test]
fn every_rule_has_an_example() {
    let examples = examples();
    for api in ApiRules::ALL {
        for rule in api.rules() {
            let shown = examples.iter().any(|example| example.api == api && example.rule == rule.id);
            assert!(shown, "{api:?}: no example breaks {}: {}", rule.id, rule.says);
        }
    }
}

#[test]
fn non_function_tools_are_ignored() {
    let own = [
        (OpenAiChat, json!([{ "type": "custom", "custom": { "name": "a b" } }])),
        (OpenAiResponses, json!([{ "type": "web_search" }, { "type": "custom", "name": "a b" }])),
        (Anthropic, json!([{ "type": "web_search_20250305", "name": "web_search", "max_uses": 3 }])),
        (Gemini, json!([{ "googleSearch": {} }])),
    ];
    for (api, tools) in own {
        assert_eq!(check_tools(api, &tools), [], "{api:?}");
    }
}
