//! The served side against the client side: what our encoders send is read back, what is written is decoded to the same
//! answer, and every stream keeps the order of its API.

use proptest::prelude::*;
use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{
    CallResult, Message, ModelEvent, ModelRequest, OpaqueData, OutputFormat, ShownTool, StopReason, ToolChoice, Usage,
    WrittenCall,
};
use toolwright_models::served::{
    ConversationBody, End, FIELDS, Fault, Handling, Piece, ResponseHead, ResponseWriter, SHAPES, ServedApi, Shape,
    error_body, fields_of, read_conversation, read_request,
};
use toolwright_models::{Api, Decoder, decode_whole, encode};
use toolwright_testkit::stream_order::check_stream;

fn least(api: ServedApi) -> Value {
    match api {
        ServedApi::Responses => json!({"model": "m", "input": "hi"}),
        ServedApi::Chat => json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
        ServedApi::Messages => {
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})
        }
    }
}

fn read(api: ServedApi, body: &Value) -> Result<toolwright_models::served::ServedRequest, String> {
    read_request(api, body.to_string().as_bytes()).map_err(|error| error.field)
}

#[test]
fn least_requests_are_read() {
    for api in ServedApi::ALL {
        let read = read(api, &least(api)).unwrap();
        assert_eq!((read.model.as_str(), read.request.messages), ("m", vec![Message::user("hi")]), "{api}");
    }
}

#[test]
fn refused_fields_are_named() {
    for field in FIELDS {
        let Handling::Refused(unless) = field.handling else { continue };
        let mut body = least(field.api);
        body[field.name] = json!({"x": 1});
        assert_eq!(read(field.api, &body).err().as_deref(), Some(field.name));
        for value in unless.iter().chain(&["null"]) {
            body[field.name] = serde_json::from_str(value).unwrap();
            assert!(read(field.api, &body).is_ok(), "{} {value}", field.name);
        }
    }
}

#[test]
fn ignored_and_unknown_fields_are_named() {
    for api in ServedApi::ALL {
        let mut body = least(api);
        let ignored: Vec<&str> =
            fields_of(api).filter(|field| field.handling == Handling::Ignored).map(|field| field.name).collect();
        for name in &ignored {
            body[*name] = json!("x");
        }
        assert_eq!(read(api, &body).unwrap().ignored, ignored, "{api}");
        for (name, named) in [("unheard_of", "unheard_of"), ("", "\"\"")] {
            let mut body = body.clone();
            body[name] = json!(1);
            assert_eq!(read(api, &body).err().as_deref(), Some(named));
        }
    }
}

#[test]
fn wrong_values_name_their_place() {
    use ServedApi::{Chat, Messages, Responses};
    let user = |part: Value| json!([{"role": "user", "content": [part]}]);
    for (api, key, value, field) in [
        (Chat, "messages", json!("x"), "messages"),
        (Chat, "messages", json!([]), "messages"),
        (Chat, "messages", json!([1]), "messages[0]"),
        (Chat, "messages", json!([{"role": "boss", "content": "x"}]), "messages[0].role"),
        (Chat, "messages", user(json!({"type": "input_audio"})), "messages[0].content[0].type"),
        (
            Chat,
            "messages",
            user(json!({"type": "image_url", "image_url": {"url": "https://x/y.png"}})),
            "messages[0].content[0].image_url.url",
        ),
        (Chat, "temperature", json!(3), "temperature"),
        (Chat, "max_tokens", json!(0), "max_tokens"),
        (Chat, "stop", json!(["a", "b", "c", "d", "e"]), "stop"),
        (Chat, "tool_choice", json!({"type": "function", "function": {"name": "x"}}), "tool_choice"),
        (Chat, "tools", json!([{"type": "custom", "custom": {}}]), "tools[0].type"),
        (Chat, "response_format", json!({"type": "json_schema"}), "response_format.schema"),
        (Messages, "messages", user(json!({"type": "video"})), "messages[0].content[0].type"),
        (Messages, "thinking", json!({"type": "deep"}), "thinking.type"),
        (Messages, "tools", json!([{"name": "a", "type": "bash_20250124"}]), "tools[0].type"),
        (Messages, "tools", json!([{"name": "a"}, {"name": "a"}]), "tools[1]"),
        (Responses, "input", json!([]), "input"),
        (Responses, "input", json!([{"type": "item_reference", "id": "x"}]), "input[0].type"),
        (Responses, "tools", json!([{"type": "file_search"}]), "tools[0].type"),
        (Responses, "metadata", json!({"a": 1}), "metadata.a"),
        (Responses, "metadata", json!({"a": "é".repeat(513)}), "metadata.a"),
        (Responses, "metadata", json!({"a".repeat(65): "b"}), "metadata"),
        (Responses, "max_tool_calls", json!("x"), "max_tool_calls"),
        (Responses, "include", json!(["reasoning.encrypted_content", "foo"]), "include[1]"),
        (Responses, "include", json!([1]), "include[0]"),
    ] {
        let mut body = least(api);
        body[key] = value;
        assert_eq!(read(api, &body).err().as_deref(), Some(field), "{body}");
    }
}

#[test]
fn tables_of_shapes_are_whole() {
    let mut links: Vec<(ServedApi, &str)> = FIELDS.iter().map(|field| (field.api, field.inner)).collect();
    for name in ["new_conversation", "changed_conversation", "new_items"] {
        links.push((ServedApi::Responses, name));
    }
    for shape in SHAPES {
        let mut names: Vec<&str> = Vec::new();
        for word in [shape.honoured, shape.ignored, shape.refused].iter().flat_map(|words| words.split_whitespace()) {
            let (name, inner) = word.split_once(':').unwrap_or((word, ""));
            links.push((shape.api, inner));
            names.push(name);
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a field of `{}` is there twice", shape.name);
    }
    for (api, inner) in &links {
        let has = |shape: &Shape| (shape.api, shape.name) == (*api, *inner);
        assert!(inner.is_empty() || SHAPES.iter().any(has), "{api} has no `{inner}`");
    }
    for shape in SHAPES {
        assert!(links.contains(&(shape.api, shape.name)), "nothing has a `{}`", shape.name);
    }
}

/// The messages of a conversation in which a call has a result, with what is added to one of them.
fn with_call(api: ServedApi, at: &str, key: &str, value: Value) -> Value {
    let mut body = least(api);
    match api {
        ServedApi::Chat => {
            let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
            let result = json!({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x"}]});
            let mut messages = body["messages"].as_array().cloned().unwrap_or_default();
            messages.extend([json!({"role": "assistant", "content": null, "tool_calls": [call]}), result]);
            body["messages"] = json!(messages);
            body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
            body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": {}}});
        }
        ServedApi::Responses => {
            body["input"] = json!([
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "x"},
            ]);
            body["tools"] = json!([{"type": "function", "name": "f"}]);
            body["text"] = json!({"format": {"type": "json_schema", "name": "s", "schema": {}}});
            body["reasoning"] = json!({"effort": "low"});
        }
        ServedApi::Messages => {
            let result =
                json!({"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "x"}]});
            body["messages"] = json!([
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]},
                {"role": "user", "content": [result]},
            ]);
            body["tools"] = json!([{"name": "f", "input_schema": {}}]);
            body["output_config"] = json!({"effort": "low"});
            body["metadata"] = json!({"user_id": "x"});
        }
    }
    body.pointer_mut(at).unwrap()[key] = value;
    body
}

/// What a client writes is refused by its path; what it sends back of an answer has no effect, and the answer names it.
#[test]
fn unknown_fields_of_objects_are_named() {
    use ServedApi::{Chat, Messages, Responses};
    for (api, at, refused, ignored) in [
        (Chat, "/messages/0", "messages[0].odd", ""),
        (Chat, "/messages/1", "", "messages[].odd"),
        (Chat, "/messages/1/tool_calls/0/function", "", "messages[].tool_calls[].function.odd"),
        (Chat, "/messages/2", "messages[2].odd", ""),
        (Chat, "/messages/2/content/0", "messages[2].content[0].odd", ""),
        (Chat, "/tools/0", "tools[0].odd", ""),
        (Chat, "/tools/0/function", "tools[0].function.odd", ""),
        (Chat, "/response_format/json_schema", "response_format.json_schema.odd", ""),
        (Chat, "/response_format/json_schema/schema", "", ""),
        (Responses, "/input/0", "input[0].odd", ""),
        (Responses, "/input/0/content/0", "input[0].content[0].odd", ""),
        (Responses, "/input/1", "", "input[].odd"),
        (Responses, "/input/1/content/0", "", "input[].content[].odd"),
        (Responses, "/input/2", "", "input[].odd"),
        (Responses, "/input/3", "input[3].odd", ""),
        (Responses, "/tools/0", "tools[0].odd", ""),
        (Responses, "/text", "text.odd", ""),
        (Responses, "/text/format", "text.format.odd", ""),
        (Responses, "/reasoning", "reasoning.odd", ""),
        (Messages, "/messages/0", "messages[0].odd", ""),
        (Messages, "/messages/0/content/0", "messages[0].content[0].odd", ""),
        (Messages, "/messages/1", "", "messages[].odd"),
        (Messages, "/messages/1/content/0", "", "messages[].content[].odd"),
        (Messages, "/messages/1/content/0/input", "", ""),
        (Messages, "/messages/2/content/0/content/0", "messages[2].content[0].content[0].odd", ""),
        (Messages, "/tools/0", "tools[0].odd", ""),
        (Messages, "/tools/0/input_schema", "", ""),
        (Messages, "/output_config", "output_config.odd", ""),
        (Messages, "/metadata", "metadata.odd", ""),
    ] {
        let found = read(api, &with_call(api, at, "odd", json!(1))).map(|read| read.ignored);
        let listed =
            |path: &str| -> Vec<String> { Some(path.to_owned()).filter(|path| !path.is_empty()).into_iter().collect() };
        let expect = if refused.is_empty() { Ok(listed(ignored)) } else { Err(refused.to_owned()) };
        assert_eq!(found, expect, "{api} {at}");
        assert!(read(api, &with_call(api, at, "odd", Value::Null)).is_ok(), "{api} {at}: null counts as absent");
    }
}

#[test]
fn documented_fields_of_objects_are_known() {
    use ServedApi::{Chat, Messages, Responses};
    let cache = json!({"type": "ephemeral"});
    for (api, at, key, value, ignored) in [
        (Chat, "/messages/0", "name", json!("me"), vec!["messages[].name"]),
        (Chat, "/messages/1", "refusal", Value::Null, vec![]),
        (Chat, "/messages/1", "annotations", json!([]), vec!["messages[].annotations"]),
        (Chat, "/messages/1", "audio", Value::Null, vec![]),
        (Chat, "/tools/0/function", "strict", json!(true), vec![]),
        (Responses, "/input/1", "id", json!("msg_1"), vec![]),
        (Responses, "/input/1", "status", json!("completed"), vec![]),
        (Responses, "/input/1/content/0", "annotations", json!([{"type": "url_citation", "url": "x"}]), vec![]),
        (Responses, "/input/1/content/0", "logprobs", json!([]), vec![]),
        (Responses, "/text", "verbosity", json!("low"), vec!["text.verbosity"]),
        (Messages, "/messages/0/content/0", "cache_control", cache.clone(), vec!["messages[].content[].cache_control"]),
        (Messages, "/messages/2/content/0", "cache_control", cache.clone(), vec!["messages[].content[].cache_control"]),
        (Messages, "/tools/0", "cache_control", cache, vec!["tools[].cache_control"]),
        (Messages, "/messages/2/content/0", "is_error", json!(true), vec![]),
    ] {
        let read =
            read(api, &with_call(api, at, key, value)).unwrap_or_else(|field| panic!("{api} {at} {key}: {field}"));
        assert_eq!(read.ignored, ignored, "{api} {at} {key}");
    }
}

/// However many fields a client makes up, and however long their names are.
#[test]
fn names_of_ignored_fields_are_bounded() {
    let mut body = with_call(ServedApi::Chat, "/messages/1", "é".repeat(1000).as_str(), json!(1));
    for at in 0..1000 {
        body["messages"][1][format!("made_up_{at}")] = json!(at);
    }
    let ignored = read(ServedApi::Chat, &body).unwrap().ignored;
    assert_eq!(ignored.len(), 64);
    assert!(ignored.iter().all(|path| path.len() < 100 && path.is_ascii()), "{ignored:?}");
}

#[test]
fn results_without_their_call_are_refused() {
    use ServedApi::{Chat, Messages, Responses};
    for (api, at, key, field) in [
        (Chat, "/messages/2", "tool_call_id", "messages[2].tool_call_id"),
        (Responses, "/input/3", "call_id", "input[3].call_id"),
        (Messages, "/messages/2/content/0", "tool_use_id", "messages[2].content[0].tool_use_id"),
    ] {
        assert_eq!(read(api, &with_call(api, at, key, json!("c2"))).err().as_deref(), Some(field));
    }
    for key in ["previous_response_id", "conversation"] {
        let mut body = with_call(Responses, "/input/3", "call_id", json!("c2"));
        body[key] = json!("x");
        assert!(read(Responses, &body).is_ok(), "the calls of what it continues are not in it");
    }
}

#[test]
fn bodies_of_conversations_are_checked() {
    use ConversationBody::{Changed, Items, New};
    let said = json!({"role": "user", "content": "hi"});
    let result = json!({"type": "function_call_output", "call_id": "c1", "output": "x"});
    let metadata = |count: usize| -> Value { (0..count).map(|at| (at.to_string(), json!("x"))).collect() };
    for (what, body, field) in [
        (New, json!({}), None),
        (New, json!({"metadata": metadata(16), "items": [said]}), None),
        (New, json!({"metadata": metadata(17)}), Some("metadata")),
        (New, json!({"metadata": {"a": [1]}}), Some("metadata.a")),
        (New, json!({"metadata": "x"}), Some("metadata")),
        (New, json!({"odd": 1}), Some("odd")),
        (New, json!({"items": {"role": "user"}}), Some("items")),
        (New, json!({"items": [{"role": "user", "content": "hi", "odd": 1}]}), Some("items[0].odd")),
        (New, json!({"items": [{"type": "item_reference"}]}), Some("items[0].type")),
        (New, json!({"items": [result]}), Some("items[0].call_id")),
        (New, json!({"items": vec![said.clone(); 21]}), Some("items")),
        (New, json!([]), Some("body")),
        (Changed, json!({"metadata": {"a": "b"}}), None),
        (Changed, json!({"items": []}), Some("items")),
        (Items, json!({"items": [result]}), None),
        (Items, json!({"items": []}), Some("items")),
        (Items, json!({"items": [said], "metadata": {}}), Some("metadata")),
    ] {
        let read = read_conversation(body.to_string().as_bytes(), what);
        assert_eq!(read.err().map(|error| error.field).as_deref(), field, "{body}");
    }
    assert!(read_conversation(b"", New).is_ok());
}

#[test]
fn hosted_searches_are_listed_as_ignored() {
    for (api, kind) in [(ServedApi::Messages, "web_search_20250305"), (ServedApi::Responses, "web_search")] {
        let mut body = least(api);
        body["tools"] = json!([{"type": kind, "name": "web_search"}]);
        let read = read(api, &body).unwrap();
        assert_eq!((read.ignored, read.request.tools.len()), (vec![format!("tools[0].type={kind}")], 0));
    }
}

#[test]
fn values_of_include_without_effect_are_named() {
    let mut body = least(ServedApi::Responses);
    let sources = "web_search_call.action.sources";
    body["include"] = json!([sources, "reasoning.encrypted_content", sources]);
    let read = read(ServedApi::Responses, &body).unwrap();
    assert_eq!((read.wants_signatures, read.ignored), (true, vec![format!("include[]={sources}")]));
}

#[test]
fn responses_name_their_conversation() {
    for (given, expect) in [
        (json!("conv_1"), json!({"id": "conv_1"})),
        (json!({"id": "conv_1"}), json!({"id": "conv_1"})),
        (Value::Null, Value::Null),
    ] {
        let mut body = least(ServedApi::Responses);
        body["conversation"] = given;
        let echo = read(ServedApi::Responses, &body).unwrap().echo;
        let mut writer = ResponseWriter::new(ServedApi::Responses, ResponseHead { echo, ..ResponseHead::default() });
        writer.begin();
        assert_eq!(writer.body()["conversation"], expect);
    }
}

/// Runs number their calls anew, also where the model's API has no ids.
#[test]
fn calls_that_run_here_have_ids_of_their_answer() {
    let call = || WrittenCall { id: "call_0".into(), name: "look".into(), arguments: "{}".into() };
    let ended = |ok| Piece::Ended { id: "call_0".into(), ok, text: "done".into() };
    for (api, answer, list, expect) in [
        (ServedApi::Responses, "resp_1a", "output", ["mcp_1a_0", "mcp_1a_1"]),
        (ServedApi::Responses, "resp_2b", "output", ["mcp_2b_0", "mcp_2b_1"]),
        (ServedApi::Messages, "msg_1a", "content", ["srvtoolu_1a_0", "srvtoolu_1a_1"]),
    ] {
        let head = ResponseHead { id: answer.into(), shows_calls: true, ..ResponseHead::default() };
        let mut writer = ResponseWriter::new(api, head);
        let mut stream = writer.begin();
        for piece in [Piece::Began(call()), ended(true), Piece::Began(call()), ended(false)] {
            stream.push_str(&writer.piece(&piece));
        }
        stream.push_str(&writer.end(End::default()));
        assert_eq!(check_stream(api.path(), &stream), Ok(()));
        let items = writer.body()[list].clone();
        assert_eq!([&items[0]["id"], &items[1]["id"]], expect, "{items}");
        if api == ServedApi::Responses {
            assert_eq!([&items[0]["status"], &items[1]["status"]], ["completed", "failed"], "{items}");
        }
    }
}

/// A conversation that began at another server.
#[test]
fn what_other_servers_ran_is_passed_over() {
    let user = |text: &str| json!({"role": "user", "content": text});
    for kind in ["file_search_call", "computer_call", "computer_call_output", "tool_search_call", "compaction"] {
        let mut body = least(ServedApi::Responses);
        let item = json!({"type": kind, "id": "x", "status": "completed", "odd": {"a": 1}});
        body["input"] = json!([user("a"), item, {"role": "assistant", "content": "b"}, item, user("c")]);
        let read = read(ServedApi::Responses, &body).unwrap();
        assert_eq!((read.ignored, read.request.messages.len()), (vec![format!("input[].type={kind}")], 3));
    }
    for kind in ["compaction", "fallback", "container_upload"] {
        let mut body = least(ServedApi::Messages);
        let block = json!({"type": kind, "odd": 1});
        let said = json!({"role": "assistant", "content": [block, {"type": "text", "text": "b"}]});
        body["messages"] = json!([user("a"), said, user("c")]);
        let passed = read(ServedApi::Messages, &body).unwrap();
        let named = vec![format!("messages[].content[].type={kind}")];
        assert_eq!((passed.ignored, passed.request.messages.len()), (named, 3));
        body["messages"][0]["content"] = json!([block]);
        assert_eq!(read(ServedApi::Messages, &body).err().as_deref(), Some("messages[0].content[0].type"));
    }
}

#[test]
fn functions_of_namespaces_are_called_in_them() {
    let mut body = least(ServedApi::Responses);
    let function = json!({"type": "function", "name": "close", "parameters": {"type": "object"}});
    body["tools"] = json!([{"type": "namespace", "name": "agents", "description": "", "tools": [function]}]);
    body["input"] = json!([
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c1", "name": "close", "namespace": "agents", "arguments": "{}"},
    ]);
    let read = read(ServedApi::Responses, &body).unwrap();
    assert_eq!(read.request.tools[0].name, "agents__close");
    let Message::Assistant { calls, .. } = &read.request.messages[1] else { panic!("no call") };
    assert_eq!(calls[0].name, "agents__close");
    let head = ResponseHead { id: "resp_1".into(), namespaced: read.namespaced, ..ResponseHead::default() };
    let mut writer = ResponseWriter::new(ServedApi::Responses, head);
    writer.begin();
    writer.piece(&Piece::Call(calls[0].clone()));
    let item = writer.body()["output"][0].clone();
    assert_eq!((&item["namespace"], &item["name"]), (&json!("agents"), &json!("close")));
}

#[test]
fn files_and_images_are_taken() {
    let png = "data:image/png;base64,AAAA";
    let text = "data:text/plain;base64,aGk=";
    for (api, part, expect) in [
        (ServedApi::Chat, json!({"type": "image_url", "image_url": {"url": png}}), "image"),
        (ServedApi::Chat, json!({"type": "file", "file": {"filename": "a", "file_data": text}}), "resource"),
        (ServedApi::Responses, json!({"type": "input_image", "image_url": png}), "image"),
        (ServedApi::Responses, json!({"type": "input_file", "filename": "a", "file_data": text}), "resource"),
        (
            ServedApi::Messages,
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}),
            "image",
        ),
        (
            ServedApi::Messages,
            json!({"type": "document", "title": "a", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}}),
            "resource",
        ),
    ] {
        let key = if api == ServedApi::Responses { "input" } else { "messages" };
        let mut body = least(api);
        body[key] = json!([{"role": "user", "content": [part]}]);
        let messages = read(api, &body).unwrap().request.messages;
        let Message::User { content } = &messages[0] else { panic!("{messages:?}") };
        assert_eq!(serde_json::to_value(&content[0]).unwrap()["type"], expect, "{api}");
    }
}

#[test]
fn data_that_is_not_base64_is_named() {
    use ServedApi::{Chat, Messages, Responses};
    let [png, pdf, text] =
        ["image/png", "application/pdf", "text/plain"].map(|kind| format!("data:{kind};base64,not base64"));
    let source = |kind: &str| json!({"type": "base64", "media_type": kind, "data": "AA\nA="});
    for (api, part, field) in [
        (Chat, json!({"type": "image_url", "image_url": {"url": png}}), "image_url.url"),
        (Chat, json!({"type": "file", "file": {"file_data": pdf}}), "file.file_data"),
        (Chat, json!({"type": "file", "file": {"file_data": text}}), "file.file_data"),
        (Responses, json!({"type": "input_image", "image_url": png}), "image_url"),
        (Responses, json!({"type": "input_file", "file_data": pdf}), "file_data"),
        (Messages, json!({"type": "image", "source": source("image/png")}), "source.data"),
        (Messages, json!({"type": "document", "source": source("application/pdf")}), "source.data"),
        (Messages, json!({"type": "image", "source": source("image/tiff")}), "source.media_type"),
    ] {
        let key = if api == Responses { "input" } else { "messages" };
        let mut body = least(api);
        body[key] = json!([{"role": "user", "content": [part]}]);
        assert_eq!(read(api, &body).err(), Some(format!("{key}[0].content[0].{field}")), "{body}");
    }
}

#[test]
fn documents_reach_every_api_that_reads_them() {
    let pdf = "JVBERg==";
    let url = format!("data:application/pdf;base64,{pdf}");
    let resource = json!({"uri": "a.pdf", "mimeType": "application/pdf", "blob": pdf});
    let document = ContentBlock::Resource { resource, extra: serde_json::Map::new() };
    let messages = vec![Message::User { content: vec![ContentBlock::text("Read."), document] }];
    let request = ModelRequest { messages, max_tokens: Some(9), ..ModelRequest::default() };
    let sent = |api| serde_json::from_slice::<Value>(&encode(api, &request, "m").bytes()).expect("JSON");
    for (api, at, expect) in [
        (
            Api::OpenAiChat,
            "/messages/0/content/1",
            json!({"type": "file", "file": {"filename": "a.pdf", "file_data": url}}),
        ),
        (
            Api::OpenAiResponses,
            "/input/0/content/1",
            json!({"type": "input_file", "filename": "a.pdf", "file_data": url}),
        ),
        (
            Api::Anthropic,
            "/messages/0/content/1",
            json!({"type": "document", "title": "a.pdf", "source": {
                "type": "base64", "media_type": "application/pdf", "data": pdf,
            }}),
        ),
        (Api::Gemini, "/contents/0/parts/1", json!({"inlineData": {"mimeType": "application/pdf", "data": pdf}})),
    ] {
        let mut found = sent(api).pointer(at).cloned().unwrap_or_default();
        found.as_object_mut().map(|found| found.remove("cache_control"));
        assert_eq!(found, expect, "{api}");
    }
    assert!(sent(Api::Ollama).to_string().contains("a.pdf, binary, not shown"));
    for api in ServedApi::ALL {
        let read = read_request(api, &encode(api.api(), &request, "m").bytes()).expect("it is read back");
        assert_eq!(read.request.messages, request.messages, "{api}");
        for (upstream, taken) in
            [(Some(api.api()), true), (Some(Api::Gemini), true), (Some(Api::Ollama), false), (None, false)]
        {
            assert_eq!(read.check_files(api, upstream).is_ok(), taken, "{api} {upstream:?}");
        }
    }
}

#[test]
fn errors_have_the_form_of_the_api() {
    let openai = error_body(ServedApi::Chat, Fault::NotFound, "no", Some("model"));
    assert_eq!(
        openai,
        json!({"error": {"message": "no", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}})
    );
    let anthropic = error_body(ServedApi::Messages, Fault::Overloaded, "full", None);
    assert_eq!(anthropic["error"], json!({"type": "overloaded_error", "message": "full"}));
    let mut body = least(ServedApi::Messages);
    body["thread"] = json!({"type": "create"});
    let refused = read_request(ServedApi::Messages, body.to_string().as_bytes()).unwrap_err();
    assert_eq!(
        refused.body(ServedApi::Messages)["error"],
        json!({
            "type": "invalid_request_error",
            "message": "thread: it is not supported here: send the whole conversation",
            "details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        })
    );
}

fn object() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("{}".to_owned()),
        "[a-z]{1,8}".prop_map(|text| json!({"a": text, "b": [1, null]}).to_string()),
        any::<i32>().prop_map(|number| json!({"n": number}).to_string()),
    ]
}

/// A conversation as every API carries it: turns of a question, and answers with calls and their results.
fn conversation() -> impl Strategy<Value = Vec<Message>> {
    let text = "[a-z]{1,12}( [a-z]{1,6})?";
    let turn = (text, text, proptest::collection::vec((object(), text), 0..3));
    proptest::collection::vec(turn, 1..4).prop_map(|turns| {
        let mut messages = Vec::new();
        let last = turns.len() - 1;
        for (at, (question, said, called)) in turns.into_iter().enumerate() {
            messages.push(Message::user(question));
            let call = |(number, (arguments, _)): (usize, &(String, String))| WrittenCall {
                id: format!("call_{at}_{number}"),
                name: format!("tool_{number}"),
                arguments: arguments.clone(),
            };
            let calls: Vec<WrittenCall> = called.iter().enumerate().map(call).collect();
            if calls.is_empty() && at == last {
                break;
            }
            let result = |(call, (_, text)): (&WrittenCall, &(String, String))| CallResult {
                call_id: call.id.clone(),
                name: call.name.clone(),
                content: vec![ContentBlock::text(text)],
                ..CallResult::default()
            };
            let results: Vec<CallResult> = calls.iter().zip(&called).map(result).collect();
            messages.push(Message::Assistant { text: said, calls, opaque: Vec::new() });
            if !results.is_empty() {
                messages.push(Message::Tool { results });
            }
        }
        messages
    })
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let text = "[a-z é]{1,10}";
    let piece = prop_oneof![
        text.prop_map(Piece::Text),
        text.prop_map(Piece::Reasoning),
        Just(Piece::Break),
        object()
            .prop_map(|arguments| { Piece::Call(WrittenCall { id: String::new(), name: "look".into(), arguments }) }),
        (object(), any::<bool>()).prop_map(|(arguments, _)| {
            Piece::Began(WrittenCall { id: String::new(), name: "own".into(), arguments })
        }),
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| {
        let mut out = Vec::new();
        for (at, mut piece) in pieces.into_iter().enumerate() {
            let id = format!("c{at}");
            match &mut piece {
                Piece::Call(call) => call.id.clone_from(&id),
                Piece::Began(call) => {
                    call.id.clone_from(&id);
                    out.push(piece);
                    out.push(Piece::Ended { id, ok: at % 2 == 0, text: "done".into() });
                    continue;
                }
                _ => {}
            }
            out.push(piece);
        }
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sent_conversations_are_read_back(
        messages in conversation(),
        system in "[a-z]{0,10}",
        temperature in proptest::option::of(Just(0.5)),
        forced in any::<bool>(),
    ) {
        let tool = ShownTool {
            name: "tool_0".into(),
            description: "Looks.".into(),
            parameters: json!({"type": "object", "properties": {"a": {"type": "string"}}}),
            ..ShownTool::default()
        };
        let request = ModelRequest {
            system,
            messages,
            tools: vec![tool].into(),
            tool_choice: if forced { ToolChoice::Required } else { ToolChoice::Auto },
            parallel_calls: Some(false),
            output: Some(OutputFormat { name: "answer".into(), schema: Some(json!({
                "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false,
            })) }),
            max_tokens: Some(100),
            temperature,
            ..ModelRequest::default()
        };
        for api in ServedApi::ALL {
            let sent = encode(api.api(), &request, "some-model");
            let read = read_request(api, &sent.bytes()).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(&read.model, "some-model");
            prop_assert!(read.stream);
            let back = &read.request;
            prop_assert_eq!(&back.system, &request.system, "{}", api);
            prop_assert_eq!(&back.messages, &request.messages, "{}", api);
            prop_assert_eq!(&back.tools[0].name, "tool_0");
            prop_assert_eq!(&back.tools[0].parameters["properties"], &request.tools[0].parameters["properties"]);
            prop_assert_eq!(&back.tool_choice, &request.tool_choice, "{}", api);
            prop_assert_eq!(back.parallel_calls, Some(false), "{}", api);
            prop_assert_eq!(&back.output, &request.output, "{}", api);
            prop_assert_eq!(back.max_tokens, Some(100));
            prop_assert_eq!(back.temperature, temperature);
        }
    }

    #[test]
    fn written_answers_are_decoded_to_the_same(pieces in pieces(), include_usage in any::<bool>(), cut in any::<bool>()) {
        let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for piece in &pieces {
            match piece {
                Piece::Text(said) => text.push_str(said),
                Piece::Reasoning(said) => reasoning.push_str(said),
                Piece::Call(call) => calls.push(call.clone()),
                _ => {}
            }
        }
        let usage = Usage { input_tokens: 20, output_tokens: 7, cached_tokens: 5, reasoning_tokens: 3, ..Usage::default() };
        let stop = match (cut, calls.is_empty()) {
            (true, _) => StopReason::MaxTokens,
            (false, true) => StopReason::End,
            (false, false) => StopReason::ToolCalls,
        };
        for api in ServedApi::ALL {
            let head = ResponseHead {
                id: "resp_1".into(),
                model: "m".into(),
                include_usage,
                shows_calls: api == ServedApi::Responses,
                ..ResponseHead::default()
            };
            let mut writer = ResponseWriter::new(api, head);
            let mut stream = writer.begin();
            for piece in &pieces {
                stream.push_str(&writer.piece(piece));
            }
            stream.push_str(&writer.end(End { stop: stop.clone(), usage, pending: false }));
            check_stream(api.path(), &stream).map_err(TestCaseError::fail)?;
            let mut decoder = Decoder::new(api.api());
            decoder.feed(stream.as_bytes(), &mut |_| {});
            let streamed = decoder.finish().map_err(|error| TestCaseError::fail(error.to_string()))?;
            let whole = decode_whole(api.api(), writer.body().to_string().as_bytes())
                .map_err(|error| TestCaseError::fail(error.to_string()))?;
            for (answer, is_whole) in [(streamed, false), (whole, true)] {
                // Chat sets texts of two turns apart by an empty line.
                let plain = |text: &str| text.replace("\n\n", "");
                prop_assert_eq!(plain(&answer.text), plain(&text), "{}", api);
                prop_assert_eq!(plain(&answer.reasoning), plain(&reasoning), "{}", api);
                // A whole message of Anthropic's that was cut loses a call at its end.
                if !(cut && is_whole) {
                    prop_assert_eq!(&answer.calls, &calls, "{}", api);
                    prop_assert_eq!(&answer.stop, &stop, "{}", api);
                }
                if include_usage || is_whole || api != ServedApi::Chat {
                    prop_assert_eq!(answer.usage, usage, "{}", api);
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        for api in ServedApi::ALL {
            prop_assert!(read_request(api, &bytes).is_err());
        }
    }
}

/// Signed reasoning of an API, written to a client of it, comes back in its next request as it was.
#[test]
fn signed_reasoning_is_written_and_read_back() {
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "sealed"});
    let silent = json!({"type": "thinking", "thinking": "", "signature": "sealed"});
    let redacted = json!({"type": "redacted_thinking", "data": "sealed"});
    let reasoning = json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "sealed"});
    let bare = json!({"type": "reasoning", "summary": [], "encrypted_content": "sealed"});
    for (api, said, item) in [
        (ServedApi::Messages, "hm", thinking),
        (ServedApi::Messages, "", silent),
        (ServedApi::Messages, "", redacted),
        (ServedApi::Responses, "hm", reasoning),
        (ServedApi::Responses, "", bare),
    ] {
        let mut writer = ResponseWriter::new(api, ResponseHead { id: "resp_1".into(), ..ResponseHead::default() });
        let mut stream = writer.begin();
        if !said.is_empty() {
            stream.push_str(&writer.piece(&Piece::Reasoning(said.into())));
        }
        let data = OpaqueData { api: api.api().as_str().into(), data: item.clone() };
        stream.push_str(&writer.piece(&Piece::Opaque(data)));
        stream.push_str(&writer.piece(&Piece::Text("hello".into())));
        stream.push_str(&writer.end(End::default()));
        check_stream(api.path(), &stream).unwrap();
        let mut decoder = Decoder::new(api.api());
        let mut heard = Vec::new();
        decoder.feed(stream.as_bytes(), &mut |event| heard.push(event));
        let streamed = decoder.finish().unwrap();
        let whole = decode_whole(api.api(), writer.body().to_string().as_bytes()).unwrap();
        assert_eq!(streamed.opaque, whole.opaque, "{api}");
        assert!(heard.iter().any(|event| matches!(event, ModelEvent::Opaque(_))), "{heard:?}");
        let mut body = least(api);
        let written = writer.body();
        if api == ServedApi::Messages {
            body["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": written["content"]}));
        } else {
            let user = json!({"role": "user", "content": "hi"});
            body["input"] =
                std::iter::once(user).chain(written["output"].as_array().unwrap().iter().cloned()).collect();
        }
        let Message::Assistant { text, opaque, .. } = &read(api, &body).unwrap().request.messages[1] else {
            panic!("no answer in {body}")
        };
        assert_eq!((text.as_str(), &opaque[0].data["item"]), ("hello", &item), "{api}");
    }
}

/// The stream of an answer: text, a call that runs here and one of the client; `error`: it breaks off with one.
fn stream(api: ServedApi, error: bool) -> String {
    let head = ResponseHead {
        id: "resp_1".into(),
        model: "m".into(),
        include_usage: true,
        shows_calls: api == ServedApi::Responses,
        ..ResponseHead::default()
    };
    let mut writer = ResponseWriter::new(api, head);
    let call = |id: &str| WrittenCall { id: id.into(), name: "look".into(), arguments: "{\"a\":1}".into() };
    let mut stream = writer.begin();
    for piece in [
        Piece::Text("hello".into()),
        Piece::Began(call("own")),
        Piece::Ended { id: "own".into(), ok: true, text: "done".into() },
        Piece::Call(call("theirs")),
    ] {
        stream.push_str(&writer.piece(&piece));
    }
    let failed = error_body(api, Fault::Internal, "broken", None);
    stream.push_str(&if error { writer.interrupt(&failed) } else { writer.end(End::default()) });
    stream
}

#[test]
fn checkers_find_what_is_out_of_order() {
    for api in ServedApi::ALL {
        let check = |frames: &[&str]| check_stream(api.path(), &frames.concat());
        for error in [false, true] {
            let whole = stream(api, error);
            let frames: Vec<&str> = whole.split_inclusive("\n\n").collect();
            assert_eq!(check(&frames), Ok(()), "{whole}");
            // Whatever event is missing, comes twice or comes before its turn is found; but for pieces of a text.
            for at in 0..frames.len() {
                let is_piece = |frame: &str| {
                    let pieces =
                        ["\"content\":\"hello", "\"arguments\":\"{", "text_delta", "input_json_delta", "in_progress"];
                    pieces.iter().any(|piece| frame.contains(piece))
                };
                // An error may come while a block is open.
                let breaks_off = error && at + 2 == frames.len();
                let less = [&frames[..at], &frames[at + 1..]].concat();
                let twice = [&frames[..=at], &frames[at..]].concat();
                for changed in [less, twice] {
                    assert!(
                        check(&changed).is_err() || is_piece(frames[at]) || breaks_off,
                        "{api} {at}: {}",
                        changed.concat()
                    );
                }
            }
        }
    }
}
