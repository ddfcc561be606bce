//! Merges the lists of many servers: every item gets a unique name or address. A resource keeps its
//! own address if no other server has it.

use std::collections::HashMap;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Map, Value};
use toolwright_core::catalogue::ListKind;
use toolwright_core::tool_id::{short_hash, wire_candidate};

/// Hash digits that distinguish two names.
const DIGITS: usize = 6;

fn merged_name_of(kind: ListKind, server: &str, own: &str) -> String {
    match kind {
        ListKind::Prompts => wire_candidate(server, own),
        ListKind::Resources | ListKind::Templates => own.to_owned(),
    }
}

/// Returns another name for an item whose usual name is taken.
fn disambiguated_name(kind: ListKind, server: &str, own: &str) -> String {
    match kind {
        ListKind::Prompts => {
            let hash = short_hash(&format!("{server}\n{own}"), DIGITS);
            format!("{}_{hash}", wire_candidate(server, own))
        }
        ListKind::Resources | ListKind::Templates => qualify(server, own),
    }
}

/// The server of an item, and the server's name for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemOrigin {
    /// The server.
    pub server: String,
    /// Its own name or address.
    pub own: String,
}

/// A list merged from several.
#[derive(Debug, Default)]
pub struct MergedItems {
    /// The items, in the order of their servers, under the names that they have here.
    pub items: Vec<Value>,
    /// The origin of each item, by its displayed name.
    pub by_shown_name: HashMap<String, ItemOrigin>,
}

/// Merges the lists of servers; their order decides who keeps the usual name on a collision. Items
/// without a name or address are skipped, and so are duplicates of the same server. The lists must have passed
/// [`list_validation::page`](crate::protocol::list_validation::page).
#[must_use]
pub fn merge(kind: ListKind, lists: Vec<(&str, &[Value])>) -> MergedItems {
    let mut merged = MergedItems::default();
    for (server, list) in lists {
        for item in list {
            let Some(own) = item.get(kind.item_key()).and_then(Value::as_str).map(str::to_owned) else { continue };
            let Some(merged_name) = free_name(kind, server, &own, &merged.by_shown_name) else { continue };
            let mut item = item.clone();
            if merged_name != own {
                item[kind.item_key()] = merged_name.clone().into();
            }
            merged.items.push(item);
            merged.by_shown_name.insert(merged_name, ItemOrigin { server: server.to_owned(), own });
        }
    }
    merged
}

fn free_name(kind: ListKind, server: &str, own: &str, taken: &HashMap<String, ItemOrigin>) -> Option<String> {
    let is_same = |name: &str| taken.get(name).is_some_and(|other| other.server == server && other.own == own);
    let names = [merged_name_of(kind, server, own), disambiguated_name(kind, server, own)];
    if names.iter().any(|name| is_same(name)) {
        return None;
    }
    names.into_iter().find(|name| !taken.contains_key(name))
}

/// Replaces a resource's own address in a result of `resources/read` with the merged one.
pub fn rewrite_uri(result: &mut Map<String, Value>, own: &str, merged_uri: &str) {
    for content in result.get_mut("contents").and_then(Value::as_array_mut).into_iter().flatten() {
        if content.get("uri").and_then(Value::as_str) == Some(own) {
            content["uri"] = merged_uri.into();
        }
    }
}

/// Scheme of an address that names its server.
const SCHEME: &str = "toolwright-resource://";
/// Characters that are encoded in addresses. Braces stay, so that templates work; so do all characters legal in an
/// address, including `%`: a client encodes values of a template (RFC 6570), and this cannot be told apart later.
const NEVER: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`');

/// Returns an address that includes the server, for a resource or template that another server has too.
#[must_use]
pub fn qualify(server: &str, uri: &str) -> String {
    format!("{SCHEME}{server}/{}", utf8_percent_encode(uri, NEVER))
}

/// Splits an address made by [`qualify`], or expanded by a client from such a template, into server and own address. An
/// own address that is invalid by RFC 3986 (with blanks, say) comes back percent-encoded; only its list has the
/// original.
#[must_use]
pub fn qualified(uri: &str) -> Option<(&str, &str)> {
    let (server, own) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    (!server.is_empty() && !own.is_empty()).then_some((server, own))
}

/// Whether an address equals this resource or is below it: a path, query or fragment follows.
#[must_use]
pub fn is_within(resource: &str, uri: &str) -> bool {
    uri.strip_prefix(resource).is_some_and(|rest| {
        rest.is_empty() || (!resource.is_empty() && (resource.ends_with('/') || rest.starts_with(['/', '?', '#'])))
    })
}

/// Whether an address can be an expansion of a template (RFC 6570): the literal parts occur in order, the
/// first at the beginning and the last at the end. Values of expressions are not checked. Returns the
/// number of literal bytes, to find the closest of several templates.
#[must_use]
pub fn fits(template: &str, uri: &str) -> Option<usize> {
    let mut literals = Vec::new();
    let mut rest = template;
    while let Some((before, expression)) = rest.split_once('{') {
        literals.push(before);
        rest = expression.split_once('}')?.1;
    }
    let Some(first) = literals.first().copied() else { return (template == uri).then_some(uri.len()) };
    let mut left = uri.strip_prefix(first)?.strip_suffix(rest)?;
    for literal in &literals[1..] {
        left = left.split_once(literal)?.1;
    }
    Some(literals.iter().map(|literal| literal.len()).sum::<usize>() + rest.len())
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
                let owned = &merged.by_shown_name[shown];
                (shown, owned.server.as_str(), owned.own.as_str())
            })
            .collect();
        assert_eq!(found, expect);
        assert_eq!(merged.by_shown_name.len(), expect.len());
    }

    #[test]
    fn prompt_names_carry_their_server_and_differ() {
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
    fn read_resources_keep_the_address_asked_for() {
        let mut result = json!({"contents": [{"uri": "t://x", "text": "1"}, {"uri": "t://z"}]});
        rewrite_uri(result.as_object_mut().expect("object"), "t://x", "shown");
        assert_eq!(result, json!({"contents": [{"uri": "shown", "text": "1"}, {"uri": "t://z"}]}));
    }

    #[test]
    fn an_address_with_its_server_is_read_back() {
        for (uri, expect) in [
            ("test://a/b?c=d#e", "test://a/b?c=d#e"),
            ("x", "x"),
            ("file:///%20", "file:///%20"),
            ("note://{id}{?q*}", "note://{id}{?q*}"),
            ("toolwright-resource://a/b", "toolwright-resource://a/b"),
            ("file:///ü %20", "file:///%C3%BC%20%20"),
        ] {
            let address = qualify("git-hub", uri);
            assert_eq!(qualified(&address), Some(("git-hub", expect)), "{address}");
        }
        assert_eq!(qualify("a", "note://{id}"), "toolwright-resource://a/note://{id}");
        for other in ["test://a", "toolwright-resource://", "toolwright-resource:///x", "toolwright-resource://a/"] {
            assert_eq!(qualified(other), None, "{other}");
        }
    }

    #[test]
    fn servers_decode_values_in_qualified_templates() {
        // `{id}` of "note://{id}" by RFC 6570, section 3.2.2.
        for (value, own) in [("a%2Fb", "note://a%2Fb"), ("a%20b~", "note://a%20b~"), ("100%25", "note://100%25")] {
            let filled = qualify("b", "note://{id}").replace("{id}", value);
            assert_eq!(qualified(&filled), Some(("b", own)));
        }
    }

    #[test]
    fn resources_contain_the_uris_below_them() {
        for (resource, uri, expect) in [
            ("file:///dir", "file:///dir", true),
            ("file:///dir", "file:///dir/a.txt", true),
            ("file:///dir/", "file:///dir/a.txt", true),
            ("db://t", "db://t?row=1", true),
            ("db://t", "db://t#1", true),
            ("file:///dir", "file:///directory", false),
            ("file:///dir/a.txt", "file:///dir", false),
            ("", "/x", false),
        ] {
            assert_eq!(is_within(resource, uri), expect, "{resource} {uri}");
        }
    }

    #[test]
    fn templates_match_addresses_they_can_make() {
        for (template, uri, expect) in [
            ("test://a", "test://a", Some(8)),
            ("test://a", "test://ab", None),
            ("test://{id}/data", "test://7/data", Some(12)),
            ("test://{id}/data", "test://7/date", None),
            ("test://{id}/data", "test://data", None),
            ("test://{a}/x/{b}", "test://1/x/2", Some(10)),
            ("test://{a}/x/{b}", "test://1/y/2", None),
            ("{+path}", "anything", Some(0)),
            ("a{b}c{d}c", "abcdc", Some(3)),
            ("a{b", "ab", None),
        ] {
            assert_eq!(fits(template, uri), expect, "{template} {uri}");
        }
    }
}
