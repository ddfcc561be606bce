//! Tests that the scripted server refuses the same requests as the real APIs.

use serde_json::{Value, json};

use super::{Answer, Reply, Script, Stop, Tokens, WireApi};

fn check(api: WireApi, body: &Value, expect: Option<&str>) {
    match (api.check(body), expect) {
        (Ok(()), None) => {}
        (Err(refusal), Some(part)) => assert!(refusal.contains(part), "{body}: {refusal}"),
        (got, _) => panic!("{api:?} {body}: {got:?}, expected {expect:?}"),
    }
}

#[test]
fn openai_rules() {
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}},
        {"id": "c2", "type": "function", "function": {"name": "t", "arguments": "{}"}},
    ]});
    let answer = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "ok"});
    let user = json!({"role": "user", "content": "go"});
    let messages = |messages: &[&Value], expect: Option<&str>| {
        check(WireApi::OpenAi, &json!({"model": "m", "messages": messages}), expect)
    };
    messages(&[&user, &call, &answer("c2"), &answer("c1"), &user], None);
    messages(&[], Some("non-empty array"));
    messages(&[&user, &answer("c1")], Some("must respond"));
    messages(&[&user, &call, &answer("c1"), &user], Some("missing: c2"));
    messages(&[&user, &call, &answer("c1")], Some("c2"));
    messages(&[&json!({"role": "assistant", "content": null})], Some("null is only allowed"));
    messages(&[&json!({"role": "assistant", "content": null, "refusal": "No."}), &user], None);
    messages(&[&json!({"role": "assistant", "content": "a", "tool_calls": []})], Some("must not be empty"));

    let tools = |tools: Value, expect: Option<&str>| {
        check(WireApi::OpenAi, &json!({"model": "m", "messages": [user], "tools": tools}), expect);
    };
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let object = json!({"type": "object", "properties": {}});
    tools(json!([tool("a", object.clone())]), None);
    tools(json!([]), Some("non-empty"));
    tools(json!([object]), Some("type"));
    tools(json!([tool("a.b", object.clone())]), Some("does not match"));
    tools(json!([tool("a", object.clone()), tool("a", object)]), Some("unique"));
    tools(json!([tool("a", json!({"type": "string"}))]), Some("object"));
    tools(json!([tool("a", json!({"type": "object"}))]), Some("missing properties"));
    tools(json!([tool("a", json!({"type": "object", "properties": {}, "anyOf": []}))]), Some("top level"));
}

#[test]
fn answer_schemas_fit_strict_modes() {
    let object = |property: Value, required: Value| json!({"type": "object", "properties": {"a": property}, "required": required, "additionalProperties": false});
    let plain = object(json!({"type": "string"}), json!(["a"]));
    let bounded = object(json!({"type": "integer", "minimum": 0}), json!(["a"]));
    let long = object(json!({"type": "string", "maxLength": 9}), json!(["a"]));
    let optional = object(json!({"type": "string"}), json!([]));
    let open = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
    let chat = |schema: &Value, strict: bool, expect: Option<&str>| {
        let format = json!({"name": "o", "schema": schema, "strict": strict});
        let body = json!({
            "model": "m", "messages": [{"role": "user", "content": "go"}],
            "response_format": {"type": "json_schema", "json_schema": format},
        });
        check(WireApi::OpenAi, &body, expect);
        let mut flat = format;
        flat["type"] = json!("json_schema");
        let body = json!({"model": "m", "input": "go", "text": {"format": flat}});
        check(WireApi::Responses, &body, expect);
    };
    chat(&plain, true, None);
    chat(&bounded, true, None);
    chat(&long, true, Some("`maxLength` is not among the supported keywords"));
    chat(&long, false, None);
    chat(&optional, true, Some("`required` and the properties differ"));
    chat(&open, true, Some("`additionalProperties` is not false"));
    let ahead = object(json!({"type": "string", "pattern": "^(?=a)b"}), json!(["a"]));
    for strict in [true, false] {
        chat(&ahead, strict, Some("regex lookaround is not supported"));
    }
    let ollama = |schema: &Value, expect: Option<&str>| {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "go"}], "format": schema});
        check(WireApi::Ollama, &body, expect);
    };
    ollama(&bounded, None);
    ollama(&json!("json"), None);
    ollama(&object(json!({"type": "string", "pattern": "[0-9]"}), json!(["a"])), Some("invalid JSON schema in format"));
    let anthropic = |schema: &Value, expect: Option<&str>| {
        let body = json!({
            "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}],
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        });
        check(WireApi::Anthropic, &body, expect);
    };
    anthropic(&plain, None);
    anthropic(&optional, None);
    anthropic(&bounded, Some("`minimum` is not among the supported keywords"));
    anthropic(&open, Some("`additionalProperties` is not false"));
}

#[test]
fn openai_json_objects_need_the_word_json() {
    let object = json!({"type": "json_object"});
    for (said, expect) in [("one JSON object", None), ("an object", Some("must contain the word 'json'"))] {
        let messages = json!([{"role": "user", "content": said}]);
        check(WireApi::OpenAi, &json!({"model": "m", "messages": messages, "response_format": object}), expect);
        let body = json!({"model": "m", "instructions": "JSON!", "input": messages, "text": {"format": object}});
        check(WireApi::Responses, &body, expect);
    }
}

#[test]
fn responses_rules() {
    let user = json!({"type": "message", "role": "user", "content": "go"});
    let call = json!({"type": "function_call", "call_id": "c1", "name": "t", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "c1", "output": "ok"});
    let thought = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"});
    let unkept = json!({"type": "reasoning", "id": "rs_1", "summary": []});
    let wrong = json!({"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "a"}]});
    let input = |items: &[&Value], expect: Option<&str>| {
        check(WireApi::Responses, &json!({"model": "m", "input": items}), expect);
    };
    input(&[&user, &thought, &call, &output], None);
    input(&[], Some("non-empty array"));
    input(&[&user, &call], Some("No tool output found"));
    input(&[&user, &output], Some("No tool call found"));
    input(&[&user, &unkept, &call, &output], Some("not persisted"));
    input(&[&user, &thought, &user], Some("required following item"));
    input(&[&user, &thought], Some("required following item"));
    input(&[&user, &wrong], Some("Supported values are: 'output_text'"));
    let refusal = |role: &str| json!({"role": role, "content": [{"type": "refusal", "refusal": "No."}]});
    input(&[&user, &refusal("assistant"), &user], None);
    input(&[&refusal("user")], Some("the model's"));
    let tool = |tool: Value, expect: Option<&str>| {
        check(WireApi::Responses, &json!({"model": "m", "input": [user], "tools": [tool]}), expect);
    };
    let object = json!({"type": "object", "properties": {}});
    tool(json!({"type": "function", "name": "t", "parameters": object, "strict": false}), None);
    tool(json!({"type": "function", "name": "t", "parameters": object}), Some("strict"));
    tool(json!({"type": "function", "function": {"name": "t"}, "strict": false}), Some("name"));
    tool(json!({"type": "tool_search", "execution": "client", "parameters": object}), Some("description"));
    let untyped = json!({"role": "user", "content": "go"});
    input(&[&untyped, &call, &output], None);
    input(&[&json!({"content": "go"})], Some("type"));
    check(WireApi::Responses, &json!({"model": "m", "input": "go"}), None);
    check(WireApi::Responses, &json!({"model": "m", "input": ""}), Some("non-empty array"));
}

#[test]
fn tool_searches_pair_and_load_namespaces() {
    let user = json!({"type": "message", "role": "user", "content": "go"});
    let search =
        json!({"type": "tool_search_call", "execution": "client", "call_id": "c1", "arguments": {"query": "a"}});
    let output = |id: &str, tools: Value| json!({"type": "tool_search_output", "execution": "client", "call_id": id, "tools": tools});
    let function = |deferred: bool| {
        let object = json!({"type": "object", "properties": {}});
        json!({"type": "function", "name": "s__t", "parameters": object, "strict": false, "defer_loading": deferred})
    };
    let space =
        |deferred| json!([{"type": "namespace", "name": "s", "description": "d", "tools": [function(deferred)]}]);
    let found = output("c1", space(true));
    let answer = json!({"type": "function_call_output", "call_id": "c2", "output": "ok"});
    let called = |namespace: Value| json!({"type": "function_call", "call_id": "c2", "name": "s__t", "arguments": "{}", "namespace": namespace});
    let input = |items: &[&Value], expect: Option<&str>| {
        check(WireApi::Responses, &json!({"model": "m", "input": items}), expect);
    };
    input(&[&user, &search, &found, &called(json!("s")), &answer], None);
    input(&[&user, &search, &output("c1", json!([]))], None);
    input(&[&user, &search], Some("for tool search call c1"));
    input(&[&user, &found], Some("No tool call found"));
    input(&[&user, &search, &output("c2", json!([]))], Some("call_id c2"));
    input(&[&user, &search, &output("c1", space(false))], Some("must be deferred"));
    input(&[&user, &search, &output("c1", json!([function(true)]))], Some("'namespace'"));
    input(&[&user, &search, &found, &called(Value::Null), &answer], Some("Missing namespace"));
    input(&[&user, &search, &found, &called(json!("x")), &answer], Some("Unknown namespace"));
}

#[test]
fn references_name_deferred_tools_and_stand_alone() {
    let user = json!({"role": "user", "content": "go"});
    let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "s", "input": {}}]});
    let reference = |name: &str| json!({"type": "tool_reference", "tool_name": name});
    let tool = |name: &str, deferred: bool| json!({"name": name, "input_schema": {"type": "object", "properties": {}}, "defer_loading": deferred});
    let loaded = |content: Value, tools: Value, expect: Option<&str>| {
        let results =
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": content}]});
        let body = json!({"model": "m", "max_tokens": 1, "messages": [user, call, results], "tools": tools});
        check(WireApi::Anthropic, &body, expect);
    };
    let tools = json!([tool("s", false), tool("a", true)]);
    loaded(json!([reference("a")]), tools.clone(), None);
    loaded(json!([reference("b")]), tools.clone(), Some("'b' not found"));
    loaded(json!([reference("s")]), tools.clone(), Some("'s' not found"));
    loaded(json!([reference("a"), {"type": "text", "text": "x"}]), tools.clone(), Some("cannot be mixed"));
    loaded(json!("found"), json!([tool("s", true), tool("a", true)]), Some("At least one"));
    let mut cached = tools;
    cached[1]["cache_control"] = json!({"type": "ephemeral"});
    loaded(json!("found"), cached, Some("cannot have both"));
}

#[test]
fn gemini_rules() {
    let user = json!({"role": "user", "parts": [{"text": "go"}]});
    let called = |signature: Value| {
        json!({"role": "model", "parts": [
            {"functionCall": {"name": "t", "args": {}}, "thoughtSignature": signature},
            {"functionCall": {"name": "u", "args": {}, "id": "i"}},
        ]})
    };
    let answered = |parts: Value| json!({"role": "user", "parts": parts});
    let first = json!({"functionResponse": {"name": "t", "response": {"output": "ok"}}});
    let second = json!({"functionResponse": {"name": "u", "id": "i", "response": {"output": "ok"}}});
    let contents = |contents: &[&Value], expect: Option<&str>| {
        check(WireApi::Gemini, &json!({"contents": contents}), expect);
    };
    let call = called(json!("s"));
    contents(&[&user, &call, &answered(json!([first, second, {"text": "go on"}]))], None);
    contents(&[&user, &call, &answered(json!([first]))], Some("equal to the number"));
    contents(&[&user, &call, &answered(json!([second, first]))], Some("another call"));
    contents(&[&user, &call], Some("no response"));
    contents(&[&call, &answered(json!([first, second]))], Some("immediately after a user turn"));
    contents(&[&user, &called(Value::Null), &answered(json!([first, second]))], Some("thought_signature"));
    contents(&[&json!({"role": "assistant", "parts": [{"text": "a"}]})], Some("valid role"));
    contents(&[&json!({"role": "user", "parts": []})], Some("non-empty array"));
    let bare = json!({"role": "model", "parts": [{"functionCall": {"name": "t"}, "thoughtSignature": "s"}]});
    let shown = |key: &str, data: &str| {
        let image = json!({key: {"mimeType": "image/png", "data": data}});
        json!([{"functionResponse": {"name": "t", "response": {"output": "ok"}, "parts": [image]}}])
    };
    contents(&[&user, &bare, &answered(shown("inlineData", "-_A="))], None);
    contents(&[&user, &bare, &answered(shown("inline_data", "+/A="))], None);
    contents(&[&user, &bare, &answered(shown("inlineData", "?"))], Some("inline data"));
    contents(&[&user, &bare, &answered(shown("text", "AAAA"))], Some("inline data"));
    let tools = json!([{"functionDeclarations": [{"name": "t"}]}]);
    let only = |name: &str| json!({"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [name]}});
    check(WireApi::Gemini, &json!({"contents": [user], "tools": tools, "toolConfig": only("t")}), None);
    check(WireApi::Gemini, &json!({"contents": [user], "tools": tools, "toolConfig": only("x")}), Some("not declared"));
}

#[test]
fn anthropic_rules() {
    let user = json!({"role": "user", "content": "go"});
    let call = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "t", "input": {}}]});
    let answer = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]});
    let result_last = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "tool_result", "tool_use_id": "c1"}]});
    let blank = json!({"role": "user", "content": [{"type": "text", "text": " "}]});
    let tools = json!([{"name": "t", "input_schema": {"type": "object", "properties": {}}}]);
    let messages = |messages: &[&Value], expect: Option<&str>| {
        check(
            WireApi::Anthropic,
            &json!({"model": "m", "max_tokens": 1, "messages": messages, "tools": tools}),
            expect,
        );
    };
    messages(&[&user, &call, &answer], None);
    messages(&[&user, &user, &call, &answer, &user], None);
    messages(&[&call, &answer], Some("alternate"));
    messages(&[&user, &call, &user], Some("without `tool_result`"));
    messages(&[&user, &call], Some("without `tool_result`"));
    messages(&[&answer], Some("unexpected `tool_use_id`"));
    messages(&[&user, &call, &result_last], Some("must come first"));
    messages(&[&user, &call, &answer, &call, &answer], Some("unique"));
    messages(&[&blank], Some("non-whitespace"));
    check(WireApi::Anthropic, &json!({"model": "m", "messages": [user]}), Some("max_tokens"));
    check(
        WireApi::Anthropic,
        &json!({"model": "m", "max_tokens": 1, "messages": [user, call, answer]}),
        Some("must define tools"),
    );
    let odd = json!([{"name": "t", "input_schema": {"type": "object", "properties": {"a b": {}}}}]);
    check(
        WireApi::Anthropic,
        &json!({"model": "m", "max_tokens": 1, "messages": [user], "tools": odd}),
        Some("property keys"),
    );
}

#[test]
fn ollama_rules() {
    let messages = |message: Value, expect: Option<&str>| {
        check(WireApi::Ollama, &json!({"model": "m", "messages": [message]}), expect)
    };
    messages(json!({"role": "assistant", "tool_calls": [{"function": {"name": "t", "arguments": {}}}]}), None);
    messages(
        json!({"role": "assistant", "tool_calls": [{"function": {"name": "t", "arguments": "{}"}}]}),
        Some("into an object"),
    );
    messages(json!({"role": "user", "content": [{"type": "text"}]}), Some("type string"));
    messages(json!({"role": "user", "content": "", "images": ["data:…"]}), Some("base64"));
    messages(json!({"role": "critic", "content": ""}), Some("invalid role"));
}

#[test]
fn scripts_are_read_strictly_and_fill_in_results() {
    let script =
        Script::from_json(r#"{"turns": [{"text": "got {{results}}"}, {"error": {"status": 529, "message": "busy"}}]}"#);
    let script = script.expect("script");
    let body = json!({"messages": [{"role": "assistant", "content": ""}, {"role": "tool", "tool_call_id": "c", "content": "7"}]});
    let asked = super::RecordedRequest { api: WireApi::OpenAi, path: String::new(), body, tokens: 10 };
    assert_eq!(script.turns[0].answer(&asked), Ok(Reply::text("got 7")));
    assert_eq!(script.turns[1].answer(&asked), Ok(Reply::error(529, "busy")));
    assert!(Script::from_json(r#"{"turns": [{"txt": "a"}]}"#).expect_err("typo").contains("txt"));
    let full =
        r#"{"turns": [{"thinking": "t", "text": "a", "stop": "max_tokens", "tokens": {"input": 9, "cached": 3}}]}"#;
    let script = Script::from_json(full).expect("script");
    let tokens = Tokens { input: 9, cached: 3, ..Tokens::default() };
    let answer = Answer { thinking: "t".into(), text: "a".into(), stop: Stop::MaxTokens, tokens, ..Answer::default() };
    assert_eq!(script.turns[0].answer(&asked), Ok(Reply::Answer(answer)));
}
