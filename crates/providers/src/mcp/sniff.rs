//! The id of an answer that cannot be read as a whole.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::transport::RequestId;

/// How much of a broken message is looked at for its id, at its end.
const TAIL: usize = 64;
/// How much of a message tells whether it is an answer.
const HEAD: usize = 1024;

/// The id of an answer that is there as a whole and cannot be read: JSON that is nested too deeply, or has a number that
/// no float holds, or is no JSON. `None` when it is no answer, or shows no id.
pub(super) fn answered(json: &[u8]) -> Option<RequestId> {
    #[derive(Deserialize)]
    struct Skeleton<'a> {
        #[serde(default)]
        jsonrpc: Option<IgnoredAny>,
        #[serde(default, borrow)]
        id: Option<&'a RawValue>,
        #[serde(default)]
        method: Option<IgnoredAny>,
        #[serde(default)]
        result: Option<IgnoredAny>,
        #[serde(default)]
        error: Option<IgnoredAny>,
    }
    // Of an array the elements would be taken for the fields, in their order.
    if !json.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    // What is not looked into may hold anything.
    match serde_json::from_slice::<Skeleton<'_>>(json) {
        Ok(Skeleton { jsonrpc: None, result: None, error: None, .. } | Skeleton { method: Some(_), .. }) => None,
        Ok(skeleton) => skeleton.id.and_then(|id| own_id(id.get())),
        Err(_) => sniff_id(json, &json[json.len().saturating_sub(TAIL)..]),
    }
}

/// Whether what is no JSON was meant as an answer, as far as it shows.
pub(super) fn seems_answer(json: &[u8]) -> bool {
    let has = |key: &[u8]| memchr::memmem::find(json, key).is_some();
    serde_json::from_slice::<IgnoredAny>(json).is_err()
        && is_answer(&json[..json.len().min(HEAD)])
        && has(b"\"jsonrpc\"")
        && (has(b"\"result\"") || has(b"\"error\""))
}

/// The id of an answer that cannot be parsed or is too long, from its beginning or its end. `None` when it
/// is no answer (a log line in JSON may have an `id` too), or its id is elsewhere.
pub(super) fn sniff_id(head: &[u8], tail: &[u8]) -> Option<RequestId> {
    if [head, tail].iter().all(|part| memchr::memmem::find(part, b"\"jsonrpc\"").is_none()) {
        return None;
    }
    let head = String::from_utf8_lossy(head);
    let key = |name: &str| head.find(&format!("\"{name}\""));
    let body = [key("method"), key("params"), key("result"), key("error")].into_iter().flatten().min();
    if let Some(at) = key("id")
        && body.is_none_or(|body| at < body)
    {
        // A question of the server's has an id too.
        return number_after_key(&head[at..]).filter(|_| key("method").is_none()).map(|(id, _)| id);
    }
    if key("method").is_some_and(|method| Some(method) == body) {
        return None;
    }
    let tail = String::from_utf8_lossy(tail);
    let (id, rest) = number_after_key(&tail[tail.rfind("\"id\"")?..])?;
    let rest: String = rest.split_whitespace().collect();
    // Anything else is a field of the result.
    matches!(rest.as_str(), "}" | ",\"jsonrpc\":\"2.0\"}").then_some(id)
}

/// The ids of the answers in a batch that is broken or cut short, as far as they show. Those of answers that could be read
/// are among them.
pub(super) fn ids_of_batch(json: &[u8]) -> Vec<RequestId> {
    if memchr::memmem::find(json, b"\"jsonrpc\"").is_none() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(json);
    let (mut found, mut id, mut is_answer) = (Vec::new(), None, true);
    // How many brackets are open; the fields of a message stand within two.
    let (mut depth, mut at) = (0_usize, 0);
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 1 {
                    found.extend(id.take().filter(|_| is_answer));
                    is_answer = true;
                }
            }
            b'"' => {
                let end = end_of_text(bytes, at);
                if depth == 2 {
                    let is_key = text.get(end..).is_some_and(|rest| rest.trim_start().starts_with(':'));
                    match &text[at..end] {
                        "\"id\"" if is_key => id = number_after_key(&text[at..]).map(|(id, _)| id),
                        "\"method\"" if is_key => is_answer = false,
                        _ => {}
                    }
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found.extend(id.filter(|_| is_answer));
    found
}

/// Where the text ends that begins at this quotation mark, or all does.
fn end_of_text(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    json.len()
}

/// Whether the beginning of a line is that of an answer, as far as it shows.
pub(super) fn is_answer(head: &[u8]) -> bool {
    memchr::memmem::find(head, b"\"method\"").is_none() && head.trim_ascii_start().starts_with(b"{")
}

/// An id of ours as a server gives it back. Every id of ours is a number, and a text of the same digits is another id.
pub(super) fn own_id(json: &str) -> Option<RequestId> {
    let json = json.trim();
    json.bytes().all(|byte| byte.is_ascii_digit()).then(|| json.parse().ok())?
}

/// The number in `"id": 7`, and what follows it.
fn number_after_key(text: &str) -> Option<(RequestId, &str)> {
    let value = text.strip_prefix("\"id\"")?.trim_start().strip_prefix(':')?;
    let (number, rest) = value.split_at(value.find([',', '}'])?);
    own_id(number).map(|id| (id, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_what_cannot_be_parsed() {
        for (head, tail, expect) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"id":9"#, "", Some(7)),
            (r#"{"id" : 7 ,"jsonrpc":"2.0","#, "", Some(7)),
            (r#"{"id":"7","jsonrpc":"2.0","#, "", None),
            (r#"{"jsonrpc":"2.0","result":{"id":9,"content":["#, r#""x"]},"id":7}"#, Some(7)),
            (r#"{"level":"info","id":7}"#, "", None),
            (r#"{"jsonrpc":"2.0","result":{"content":["#, r#"{"id":9},"x"]}}"#, None),
            (r#"{"result":{"content":["#, r#""x"]},"id":7,"jsonrpc":"2.0"}"#, Some(7)),
            (r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"id":3,"#, r#""id":4}}"#, None),
            (r#"{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"#, "", None),
            ("garbage", "more", None),
        ] {
            assert_eq!(sniff_id(head.as_bytes(), tail.as_bytes()), expect, "{head}");
        }
    }

    #[test]
    fn a_text_of_digits_is_no_id_of_ours() {
        for (json, expect) in
            [("7", Some(7)), (" 7 ", Some(7)), ("\"7\"", None), ("7.0", None), ("+7", None), ("-7", None), ("", None)]
        {
            assert_eq!(own_id(json), expect, "{json}");
        }
    }

    #[test]
    fn the_answers_of_a_broken_batch_are_known_by_their_own_ids() {
        for (json, expect) in [
            (r#"[{"jsonrpc":"2.0","id":3,"result":{"id":9}},{"jsonrpc":"2.0","id":4,"resu"#, &[3, 4][..]),
            (r#"[{"jsonrpc":"2.0","result":{"text":"\"id\":8}\\"},"id":3},{"jsonrpc":"2.0","res"#, &[3]),
            (r#"[{"jsonrpc":"2.0","result":{},"id":"3"},{"jsonrpc":"2.0","res"#, &[]),
            (r#"[{"jsonrpc":"2.0","id":5,"method":"ping"},{"jsonrpc":"2.0","id":6,"result":nonsense}]"#, &[6]),
            (r#"[{"jsonrpc":"2.0","id":5,"method":"pi"#, &[]),
            (r#"[{"jsonrpc":"2.0","id":5"#, &[]),
            (r#"[INFO] {"id":3}"#, &[]),
            ("[\"jsonrpc\" \"\\", &[]),
        ] {
            assert_eq!(ids_of_batch(json.as_bytes()), expect, "{json}");
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_has_its_id_wherever_it_stands() {
        let deep = |before: &str, after: &str| format!("{before}{}{}{after}", "[".repeat(200), "]".repeat(200));
        for (json, expect) in [
            (deep(r#"{"result":{"id":1,"x":"#, r#"},"jsonrpc":"2.0","id":7}"#), Some(7)),
            (deep(r#"{"jsonrpc":"2.0","id":"7","result":"#, "}"), None),
            (r#"{"result":{"x":1e400,"y":"method"},"jsonrpc":"2.0","id":7}"#.to_owned(), Some(7)),
            (deep(r#"{"params":"#, r#","method":"x","jsonrpc":"2.0","id":7}"#), None),
            (deep(r#"{"level":"info","fields":"#, r#","id":7}"#), None),
            (r#"{"result":{"x":nonsense},"jsonrpc":"2.0","id":7}"#.to_owned(), Some(7)),
            (r#"{"result":{"x":nonsense},"id":7}"#.to_owned(), None),
            (r#"{"jsonrpc":"2.0","id":7}"#.to_owned(), Some(7)),
            (r#"["2.0",7,null,{}]"#.to_owned(), None),
        ] {
            assert_eq!(answered(json.as_bytes()), expect, "{json:.60}");
        }
        for (json, expect) in [
            (r#"{"jsonrpc":"2.0","result":{"content":[{"text":"cut"#, true),
            (r#"{"jsonrpc":"2.0","result":{}}"#, false),
            (r#"{"jsonrpc":"2.0","method":"x","params":{"result""#, false),
            (r#"{"level":"info","msg":"result"#, false),
        ] {
            assert_eq!(seems_answer(json.as_bytes()), expect, "{json}");
        }
    }
}
