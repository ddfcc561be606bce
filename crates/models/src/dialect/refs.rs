//! What a `$ref` means. Nothing is ever fetched: a reference is found in its own document or not at all.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// Nodes of a document that are searched for names.
const MAX_NODES: usize = 20_000;
/// Nested values that are searched.
const MAX_DEPTH: usize = 64;
/// Values that are looked at to find out which references are recursive, in one document.
const MAX_STEPS: usize = 200_000;
/// Inner documents of one document that a stray pointer is looked up in.
const MAX_INNER: usize = 16;

/// One document, and the schemas in it that others point at. A dynamic reference is read as a static one:
/// within one document they differ only where a schema overrides an anchor of another.
pub(super) struct Refs<'a> {
    root: &'a Value,
    /// By `$id`, `id`, `$anchor` and `$dynamicAnchor`; made when a plain pointer does not do.
    named: Option<HashMap<&'a str, &'a Value>>,
    /// Where the root itself is found in the view, if it is.
    pub(super) root_at: Option<&'static str>,
    /// Schemas that the view keeps under `$defs`, with their names there and their own places.
    shared: Vec<(&'a Value, String, String)>,
    taken: HashSet<String>,
    at: HashMap<*const Value, usize>,
    recursive: HashMap<*const Value, bool>,
    steps: usize,
}

impl<'a> Refs<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self {
            root,
            named: None,
            root_at: Some("#"),
            shared: Vec::new(),
            taken: HashSet::new(),
            at: HashMap::new(),
            recursive: HashMap::new(),
            steps: 0,
        }
    }

    pub(super) fn is_root(&self, schema: &Value) -> bool {
        std::ptr::eq(self.root, schema)
    }

    /// The schema that `reference` names.
    pub(super) fn resolve(&mut self, reference: &str) -> Option<&'a Value> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        if document.is_empty()
            && let Some(found) = pointer(self.root, fragment)
        {
            return Some(found);
        }
        let root = self.root;
        let named = self.named.get_or_insert_with(|| {
            let mut named = HashMap::new();
            index(root, 0, &mut 0, &mut named);
            named
        });
        if document.is_empty() {
            // A pointer may be relative to a resource inside the document.
            return named.get(fragment).copied().or_else(|| {
                let few = named.len() <= MAX_INNER && !fragment.is_empty();
                let mut found = named.values().filter(|_| few).filter_map(|inner| pointer(inner, fragment));
                let first = found.next()?;
                found.all(|other| std::ptr::eq(first, other)).then_some(first)
            });
        }
        let tail = |id: &str| id.rsplit('/').next().unwrap_or(id).trim_end_matches('#').to_owned();
        let wanted = document.trim_start_matches("./");
        let inner = named.get(wanted).copied().or_else(|| {
            let relative = named.len() <= MAX_INNER && !wanted.contains("://") && !wanted.starts_with("urn:");
            let mut same = named.iter().filter(|(id, _)| relative && tail(id) == tail(wanted)).map(|(_, inner)| *inner);
            same.next().filter(|_| same.next().is_none())
        })?;
        pointer(inner, fragment).or_else(|| named.get(fragment).copied())
    }

    /// The reference by which the view names `target`.
    pub(super) fn share(&mut self, target: &'a Value, reference: &str) -> String {
        if let (true, Some(at)) = (self.is_root(target), self.root_at) {
            return at.to_owned();
        }
        if let Some(at) = self.at.get(&std::ptr::from_ref(target)) {
            return format!("#/$defs/{}", self.shared[*at].1);
        }
        let last = reference.rsplit(['/', '#']).next().unwrap_or_default();
        let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') { c } else { '_' };
        let mut name: String = last.chars().take(64).map(legal).collect();
        if name.is_empty() {
            name.push_str("root");
        }
        // Many of one name are told apart by their place in the list, which is free for all but a few.
        let mut number = self.shared.len();
        while self.taken.contains(&name) {
            number += 1;
            name = format!("{}_{number}", name.split_once('_').map_or(name.as_str(), |(stem, _)| stem));
        }
        let view = format!("#/$defs/{name}");
        self.at.insert(std::ptr::from_ref(target), self.shared.len());
        self.taken.insert(name.clone());
        let place = reference.strip_prefix('#').filter(|place| place.starts_with('/'));
        let place = place.map_or_else(|| format!("/$defs/{name}"), str::to_owned);
        self.shared.push((target, name, place));
        view
    }

    /// The `at`th schema to be kept under `$defs`: itself, its name there, its own place.
    pub(super) fn shared(&self, at: usize) -> Option<(&'a Value, String, String)> {
        self.shared.get(at).cloned()
    }

    /// Whether `target` holds a reference that leads back to it. So it is said of one that takes too long
    /// to find out about.
    pub(super) fn is_recursive(&mut self, target: &'a Value) -> bool {
        let key = std::ptr::from_ref(target);
        if let Some(known) = self.recursive.get(&key) {
            return *known;
        }
        let mut seen: HashSet<*const Value> = HashSet::new();
        let mut open: Vec<&'a Value> = vec![target];
        let mut found = Vec::new();
        let mut back = false;
        'search: while let Some(schema) = open.pop() {
            found.clear();
            references(schema, 0, &mut found, &mut self.steps);
            for reference in &found {
                let Some(next) = self.resolve(reference) else { continue };
                back = std::ptr::eq(next, target) || contains(next, target, 0, &mut self.steps);
                if back || self.steps > MAX_STEPS {
                    back = true;
                    break 'search;
                }
                if seen.insert(std::ptr::from_ref(next)) {
                    open.push(next);
                }
            }
        }
        self.recursive.insert(key, back);
        back
    }
}

/// A JSON Pointer in the fragment of a URI, where it may be percent-encoded.
fn pointer<'a>(root: &'a Value, fragment: &str) -> Option<&'a Value> {
    if !fragment.is_empty() && !fragment.starts_with('/') {
        return None;
    }
    root.pointer(fragment).or_else(|| {
        let bytes = fragment.as_bytes();
        let mut decoded = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while at < bytes.len() {
            let hex = fragment.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
            match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => {
                    decoded.push(byte);
                    at += 3;
                }
                None => {
                    decoded.push(bytes[at]);
                    at += 1;
                }
            }
        }
        root.pointer(std::str::from_utf8(&decoded).ok()?)
    })
}

fn index<'a>(value: &'a Value, depth: usize, nodes: &mut usize, named: &mut HashMap<&'a str, &'a Value>) {
    *nodes += 1;
    if depth > MAX_DEPTH || *nodes > MAX_NODES {
        return;
    }
    match value {
        Value::Object(map) => {
            for keyword in ["$id", "id", "$anchor", "$dynamicAnchor"] {
                if let Some(name) = map.get(keyword).and_then(Value::as_str) {
                    named.entry(name.trim_end_matches('#').trim_start_matches('#')).or_insert(value);
                }
            }
            map.values().for_each(|inner| index(inner, depth + 1, nodes, named));
        }
        Value::Array(list) => list.iter().for_each(|inner| index(inner, depth + 1, nodes, named)),
        _ => {}
    }
}

fn references<'a>(value: &'a Value, depth: usize, found: &mut Vec<&'a str>, steps: &mut usize) {
    *steps += 1;
    if depth > MAX_DEPTH || *steps > MAX_STEPS {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                match inner.as_str() {
                    Some(text) if matches!(key.as_str(), "$ref" | "$dynamicRef" | "$recursiveRef") => found.push(text),
                    // What is only defined here leads nowhere unless it is referred to.
                    _ if matches!(key.as_str(), "$defs" | "definitions") => {}
                    _ => references(inner, depth + 1, found, steps),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| references(inner, depth + 1, found, steps)),
        _ => {}
    }
}

/// Whether `inner` is a part of `outer`, other than by definition.
fn contains(outer: &Value, inner: &Value, depth: usize, steps: &mut usize) -> bool {
    *steps += 1;
    if depth > MAX_DEPTH || *steps > MAX_STEPS {
        return false;
    }
    let mut below = |value: &Value| std::ptr::eq(value, inner) || contains(value, inner, depth + 1, steps);
    match outer {
        Value::Object(map) => {
            map.iter().any(|(key, value)| !matches!(key.as_str(), "$defs" | "definitions") && below(value))
        }
        Value::Array(list) => list.iter().any(below),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_are_found_in_their_own_document_only() {
        let schema = json!({
            "$id": "https://example.com/tool.json",
            "$defs": {
                "a b": {"const": 1}, "anchored": {"$anchor": "here", "const": 2},
                "inner": {"$id": "inner.json", "$defs": {"deep": {"const": 3}}},
            },
        });
        let mut refs = Refs::new(&schema);
        let mut check = |reference: &str, expect: Option<i64>| {
            let found = refs.resolve(reference).and_then(|found| found.get("const")).and_then(Value::as_i64);
            assert_eq!(found, expect, "{reference}");
        };
        check("#/$defs/a b", Some(1));
        check("#/$defs/a%20b", Some(1));
        check("#here", Some(2));
        check("https://example.com/tool.json#/$defs/anchored", Some(2));
        check("inner.json#/$defs/deep", Some(3));
        check("#/$defs/deep", Some(3));
        check("https://elsewhere.example/tool.json", None);
        check("#/$defs/none", None);
        check("#nowhere", None);
    }

    #[test]
    fn recursion_is_told_from_sharing() {
        let schema = json!({
            "properties": {"tree": {"$ref": "#/$defs/tree"}, "all": {"$ref": "#"}},
            "$defs": {
                "tree": {"properties": {"kids": {"items": {"$ref": "#/$defs/kid"}}, "name": {"$ref": "#/$defs/leaf"}}},
                "kid": {"anyOf": [{"$ref": "#/$defs/tree"}]}, "leaf": {"type": "string"},
            },
        });
        let mut refs = Refs::new(&schema);
        for (reference, expect) in [("#", true), ("#/$defs/tree", true), ("#/$defs/kid", true), ("#/$defs/leaf", false)]
        {
            let target = refs.resolve(reference).expect("found");
            assert_eq!(refs.is_recursive(target), expect, "{reference}");
        }
    }
}
