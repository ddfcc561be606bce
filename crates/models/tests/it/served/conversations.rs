//! The conversations in requests: results, items of other servers, files and images.

use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{Message, ModelRequest};
use toolwright_models::served::{
    ConversationBody, ResponseHead, ResponsePiece, ResponseWriter, ServedApi, read_conversation, read_request,
};
use toolwright_models::{Api, encode};

use super::{least, read, with_call};

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

/// A conversation that began at another server.
#[test]
fn items_of_other_servers_are_skipped() {
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
    writer.piece(&ResponsePiece::Call(calls[0].clone()));
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
fn pdfs_without_a_type_are_recognised() {
    use base64::Engine as _;
    let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let binary = encode(b"%PDF-1.7\n\xff\xfe");
    let octets = format!("data:application/octet-stream;base64,{binary}");
    for (name, data, is_pdf) in [
        ("a.PDF", encode(b"anything"), true),
        ("a.pdf", binary.clone(), true),
        ("", binary, true),
        ("a", octets, true),
        ("a.txt", encode(b"some text"), false),
    ] {
        let part = json!({"type": "input_file", "filename": name, "file_data": data});
        let mut body = least(ServedApi::Responses);
        body["input"] = json!([{"role": "user", "content": [part]}]);
        let request = read(ServedApi::Responses, &body).unwrap().request;
        let sent = toolwright_models::encode(toolwright_models::Api::OpenAiResponses, &request, "m").body().to_string();
        assert_eq!(sent.contains("data:application/pdf;base64,"), is_pdf, "{name}: {sent}");
    }
}
