//! The fields of requests: those that are taken, ignored and refused, by their names.

use serde_json::{Value, json};
use toolwright_core::model::Message;
use toolwright_models::served::{FIELDS, Handling, SHAPES, ServedApi, Shape, fields_of};

use super::{least, read, with_call};

#[test]
fn minimal_requests_are_parsed() {
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
        (Chat, "tool_choice", json!({"type": "allowed_tools", "allowed_tools": {}}), "tool_choice.type"),
        (Responses, "tool_choice", json!({"type": "allowed_tools", "mode": "auto", "tools": []}), "tool_choice.type"),
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
fn shape_tables_are_complete() {
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
        (Responses, "/stream_options", "stream_options.odd", ""),
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
