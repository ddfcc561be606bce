//! Answers and errors in the form of their API, and the order of their streams.

use serde_json::json;
use toolwright_core::model::{Message, ModelEvent, OpaqueData, RawToolCall};
use toolwright_models::served::{
    Fault, ResponseEnd, ResponseHead, ResponsePiece, ResponseWriter, ServedApi, error_body, read_request,
};
use toolwright_models::{Decoder, decode_whole};
use toolwright_testkit::stream_order::check_stream;

use super::{least, read};

/// Runs number their calls anew, also where the model's API has no ids.
#[test]
fn local_calls_have_ids_from_their_answer() {
    let call = || RawToolCall { id: "call_0".into(), name: "look".into(), arguments: "{}".into() };
    let ended = |ok| ResponsePiece::Ended { id: "call_0".into(), ok, text: "done".into() };
    for (api, answer, list, expect) in [
        (ServedApi::Responses, "resp_1a", "output", ["mcp_1a_0", "mcp_1a_1"]),
        (ServedApi::Responses, "resp_2b", "output", ["mcp_2b_0", "mcp_2b_1"]),
        (ServedApi::Messages, "msg_1a", "content", ["srvtoolu_1a_0", "srvtoolu_1a_1"]),
    ] {
        let head = ResponseHead { id: answer.into(), shows_calls: true, ..ResponseHead::default() };
        let mut writer = ResponseWriter::new(api, head);
        let mut stream = writer.begin();
        for piece in [ResponsePiece::Began(call()), ended(true), ResponsePiece::Began(call()), ended(false)] {
            stream.push_str(&writer.piece(&piece));
        }
        stream.push_str(&writer.end(ResponseEnd::default()));
        assert_eq!(check_stream(api.path(), &stream), Ok(()));
        let items = writer.body()[list].clone();
        assert_eq!([&items[0]["id"], &items[1]["id"]], expect, "{items}");
        if api == ServedApi::Responses {
            assert_eq!([&items[0]["status"], &items[1]["status"]], ["completed", "failed"], "{items}");
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
            stream.push_str(&writer.piece(&ResponsePiece::Reasoning(said.into())));
        }
        let data = OpaqueData { api: api.api().as_str().into(), data: item.clone() };
        stream.push_str(&writer.piece(&ResponsePiece::Opaque(data)));
        stream.push_str(&writer.piece(&ResponsePiece::Text("hello".into())));
        stream.push_str(&writer.end(ResponseEnd::default()));
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
    let call = |id: &str| RawToolCall { id: id.into(), name: "look".into(), arguments: "{\"a\":1}".into() };
    let mut stream = writer.begin();
    for piece in [
        ResponsePiece::Text("hello".into()),
        ResponsePiece::Began(call("own")),
        ResponsePiece::Ended { id: "own".into(), ok: true, text: "done".into() },
        ResponsePiece::Call(call("theirs")),
    ] {
        stream.push_str(&writer.piece(&piece));
    }
    let failed = error_body(api, Fault::Internal, "broken", None);
    stream.push_str(&if error { writer.interrupt(&failed) } else { writer.end(ResponseEnd::default()) });
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
