//! Ids of items, and requests to Responses that refer to items by id: clients send items stored by the server as ids.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};

use super::RequestError;

/// Bound on the responses whose items one request may refer to.
const MAX_RESPONSES: usize = 1000;
/// Type of an item that refers to another.
const REFERENCE: &str = "item_reference";
/// Prefixes of ids of items without meaning for a model, which may be missing.
const IGNORED_ID_PREFIXES: [&str; 3] = ["mcp_", "rs_", "appr_"];

/// The id of the item at this place of a response, or of the block of a message.
pub(super) fn item_id(prefix: &str, answer: &str, index: usize) -> String {
    let answer = answer.strip_prefix("resp_").or(answer.strip_prefix("msg_")).unwrap_or(answer);
    format!("{prefix}_{answer}_{index}")
}

/// The response that an item is of, by its id.
fn response_of(item: &str) -> Option<String> {
    let (_, rest) = item.split_once('_')?;
    let (response, _index) = rest.split_once('_')?;
    Some(format!("resp_{response}"))
}

/// A request to Responses that refers to items.
#[derive(Debug)]
pub struct References {
    body: Map<String, Value>,
}

impl References {
    /// Returns the references of a request; `None` if there are none, or it is no request.
    #[must_use]
    pub fn of(body: &[u8]) -> Option<Self> {
        memchr::memmem::find(body, REFERENCE.as_bytes())?;
        let references = Self { body: super::read_body(body).ok()? };
        let has_some = references.items().next().is_some();
        has_some.then_some(references)
    }

    fn items(&self) -> impl Iterator<Item = &Value> {
        let items = self.body.get("input").and_then(Value::as_array).into_iter().flatten();
        items.filter(|item| is_reference(item))
    }

    /// The responses that have the items.
    ///
    /// # Errors
    /// [`RequestError`] if they are too many.
    pub fn responses(&self) -> Result<BTreeSet<String>, RequestError> {
        let ids = self.items().filter_map(|item| response_of(item["id"].as_str()?));
        let responses: BTreeSet<String> = ids.collect();
        if responses.len() > MAX_RESPONSES {
            let why = format!("it refers to items of more than {MAX_RESPONSES} responses: send `previous_response_id`");
            return Err(RequestError::new("input", why));
        }
        Ok(responses)
    }

    /// Replaces references with the items `found`, each once. Items that only show what ran may be missing.
    ///
    /// # Errors
    /// [`RequestError`], naming the reference without an item.
    pub fn resolve(mut self, mut found: HashMap<String, Value>) -> Result<Vec<u8>, RequestError> {
        let items = self.body.get_mut("input").and_then(Value::as_array_mut);
        let items = items.map(std::mem::take).unwrap_or_default();
        let mut resolved = Vec::with_capacity(items.len());
        for (at, item) in items.into_iter().enumerate() {
            if !is_reference(&item) {
                resolved.push(item);
                continue;
            }
            let id = item["id"].as_str().unwrap_or_default();
            match found.remove(id) {
                Some(item) => resolved.push(item),
                None if IGNORED_ID_PREFIXES.iter().any(|prefix| id.starts_with(prefix)) => {}
                None => {
                    let why = "your stored responses have no such item, or it is there twice: send the item itself";
                    return Err(RequestError::new(format!("input[{at}].id"), why));
                }
            }
        }
        self.body.insert("input".into(), Value::Array(resolved));
        Ok(Value::Object(self.body).to_string().into_bytes())
    }
}

fn is_reference(item: &Value) -> bool {
    item["type"] == REFERENCE
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_name_their_response() {
        for (id, expect) in [
            (item_id("msg", "resp_1a", 0).as_str(), Some("resp_1a")),
            (item_id("fc", "resp_1a", 12).as_str(), Some("resp_1a")),
            ("in_1a_0", Some("resp_1a")),
            ("msg_1a", None),
            ("", None),
        ] {
            assert_eq!(response_of(id).as_deref(), expect, "{id}");
        }
    }

    #[test]
    fn references_become_their_items() {
        let reference = |id: &str| json!({"type": "item_reference", "id": id});
        let (said, user) = (json!({"type": "message", "id": "msg_1_0"}), json!({"role": "user", "content": "hi"}));
        let found = HashMap::from([("msg_1_0".to_owned(), said.clone())]);
        for (input, expect) in [
            (json!([user, reference("msg_1_0"), user]), Ok(json!([user, said, user]))),
            (json!([reference("mcp_1_1"), reference("rs_1_2"), reference("appr_1"), user]), Ok(json!([user]))),
            (json!([user, reference("fc_2_0")]), Err("input[1].id")),
            (json!([reference("msg_1_0"), reference("msg_1_0")]), Err("input[1].id")),
            (json!([{"type": "item_reference"}]), Err("input[0].id")),
        ] {
            let body = json!({"model": "m", "input": input});
            let references = References::of(body.to_string().as_bytes()).expect("it has references");
            let resolved = references.resolve(found.clone()).map_err(|error| error.field);
            let resolved = resolved.map(|body| serde_json::from_slice::<Value>(&body).expect("JSON"));
            let expect = expect.map(|input| json!({"model": "m", "input": input})).map_err(str::to_owned);
            assert_eq!(resolved, expect, "{body}");
        }
    }

    #[test]
    fn bodies_without_references_are_left_alone() {
        for body in [r#"{"input": "item_reference"}"#, r#"{"input": [{"type": "message"}]}"#, "item_reference", ""] {
            assert!(References::of(body.as_bytes()).is_none(), "{body}");
        }
    }

    #[test]
    fn responses_of_references_are_bounded() {
        let many = |count: usize| {
            let items = (0..count).map(|at| json!({"type": "item_reference", "id": format!("msg_{at}_0")}));
            let body = json!({"input": items.collect::<Vec<_>>()}).to_string();
            References::of(body.as_bytes()).expect("references").responses().map(|responses| responses.len())
        };
        assert_eq!(many(MAX_RESPONSES), Ok(MAX_RESPONSES));
        assert_eq!(many(MAX_RESPONSES + 1).map_err(|error| error.field), Err("input".to_owned()));
    }
}
