//! The lists of many servers as one: every item has a name or address of its own, and is found by it.

use std::collections::HashMap;

use serde_json::{Map, Value};
use toolwright_core::catalogue::ListKind;
use toolwright_core::tool_id::{short_hash, wire_candidate};

use crate::protocol::address::qualify;

/// Digits of a hash that tells two names apart.
const DIGITS: usize = 6;

fn shown(kind: ListKind, server: &str, own: &str) -> String {
    match kind {
        ListKind::Prompts => wire_candidate(server, own),
        ListKind::Resources | ListKind::Templates => own.to_owned(),
    }
}

/// For an item whose usual name another has.
fn apart(kind: ListKind, server: &str, own: &str) -> String {
    match kind {
        ListKind::Prompts => {
            let hash = short_hash(&format!("{server}\n{own}"), DIGITS);
            format!("{}_{hash}", wire_candidate(server, own))
        }
        ListKind::Resources | ListKind::Templates => qualify(server, own),
    }
}

/// Whose an item is, and what its server calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The server.
    pub server: String,
    /// Its own name or address.
    pub own: String,
}

/// One list out of many.
#[derive(Debug, Default)]
pub struct Merged {
    /// The items, in the order of their servers, under the names that they have here.
    pub items: Vec<Value>,
    /// Whose each is, by that name.
    pub owners: HashMap<String, Owned>,
}

/// Merges lists of servers, whose order decides who keeps the usual name of two that would have the same. An item
/// that has nothing to be found by is left out, and so is a second one of the same name by the same server. The lists are as
/// [`list_validation::page`](crate::protocol::list_validation::page) leaves them.
#[must_use]
pub fn merge(kind: ListKind, lists: Vec<(&str, &[Value])>) -> Merged {
    let mut merged = Merged::default();
    for (server, list) in lists {
        for item in list {
            let Some(own) = item.get(kind.item_key()).and_then(Value::as_str).map(str::to_owned) else { continue };
            let Some(shown) = free_name(kind, server, &own, &merged.owners) else { continue };
            let mut item = item.clone();
            if shown != own {
                item[kind.item_key()] = shown.clone().into();
            }
            merged.items.push(item);
            merged.owners.insert(shown, Owned { server: server.to_owned(), own });
        }
    }
    merged
}

fn free_name(kind: ListKind, server: &str, own: &str, taken: &HashMap<String, Owned>) -> Option<String> {
    let is_same = |name: &str| taken.get(name).is_some_and(|other| other.server == server && other.own == own);
    let names = [shown(kind, server, own), apart(kind, server, own)];
    if names.iter().any(|name| is_same(name)) {
        return None;
    }
    names.into_iter().find(|name| !taken.contains_key(name))
}

/// Puts the address that a resource has here in the place of its own, in a result of `resources/read`.
pub fn readdress(result: &mut Map<String, Value>, own: &str, shown: &str) {
    for content in result.get_mut("contents").and_then(Value::as_array_mut).into_iter().flatten() {
        if content.get("uri").and_then(Value::as_str) == Some(own) {
            content["uri"] = shown.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(kind: ListKind, lists: &[(&'static str, &[&str])], expect: &[(&str, &str, &str)]) {
        let item = |own: &&str| json!({kind.item_key(): own, "later": [1]});
        let lists: Vec<(&str, Vec<Value>)> =
            lists.iter().map(|(server, own)| (*server, own.iter().map(item).collect())).collect();
        let merged = merge(kind, lists.iter().map(|(server, list)| (*server, &list[..])).collect());
        let found: Vec<_> = merged
            .items
            .iter()
            .map(|item| {
                assert_eq!(item["later"], json!([1]));
                let shown = item[kind.item_key()].as_str().expect("text");
                let owned = &merged.owners[shown];
                (shown, owned.server.as_str(), owned.own.as_str())
            })
            .collect();
        assert_eq!(found, expect);
        assert_eq!(merged.owners.len(), expect.len());
    }

    #[test]
    fn prompts_are_named_for_their_server_and_no_two_alike() {
        check(
            ListKind::Prompts,
            &[("a", &["x", "y"]), ("b", &["x"])],
            &[("a__x", "a", "x"), ("a__y", "a", "y"), ("b__x", "b", "x")],
        );
        let hash = short_hash("a\nx!y", DIGITS);
        let apart = format!("a__x_y_{hash}");
        check(ListKind::Prompts, &[("a", &["x.y", "x!y", "x.y"])], &[("a__x_y", "a", "x.y"), (&apart, "a", "x!y")]);
    }

    #[test]
    fn resources_keep_their_address_unless_another_has_it() {
        check(
            ListKind::Resources,
            &[("a", &["t://x"]), ("b", &["t://x", "t://y", "t://x"])],
            &[("t://x", "a", "t://x"), ("toolwright-resource://b/t://x", "b", "t://x"), ("t://y", "b", "t://y")],
        );
        check(ListKind::Templates, &[("a", &["t://{x}"])], &[("t://{x}", "a", "t://{x}")]);
        assert!(merge(ListKind::Resources, vec![("a", &[json!({"name": "n"}), json!(5)])]).items.is_empty());
    }

    #[test]
    fn what_is_read_has_the_address_that_it_was_asked_by() {
        let mut result = json!({"contents": [{"uri": "t://x", "text": "1"}, {"uri": "t://z"}]});
        readdress(result.as_object_mut().expect("object"), "t://x", "shown");
        assert_eq!(result, json!({"contents": [{"uri": "shown", "text": "1"}, {"uri": "t://z"}]}));
    }
}
