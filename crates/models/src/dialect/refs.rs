//! Resolves `$ref` inside its own document; nothing is fetched. Finds and cuts references that lead back to themselves
//! for the same value.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::Loss;

/// Nodes of a document that are searched for names.
const MAX_NODES: usize = 20_000;
/// Nested values that are searched.
const MAX_DEPTH: usize = 64;
/// Bound on the values examined to find recursive references, in one document.
const MAX_STEPS: usize = 200_000;
/// Inner documents of one document that a stray pointer is looked up in.
const MAX_INNER: usize = 16;

/// A document and the targets of its references. Dynamic references are treated as static:
/// within one document they differ only where a schema overrides an anchor of another.
pub(super) struct Refs<'a> {
    root: &'a Value,
    /// Schemas by `$id`, `id`, `$anchor` and `$dynamicAnchor`; built when a plain pointer does not suffice.
    named: Option<HashMap<&'a str, &'a Value>>,
    /// Place of the root in the translation, if it is there.
    pub(super) root_at: Option<&'static str>,
    /// Schemas under `$defs` of the translation, with their names there and their own places.
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

    /// The reference to `target` in the translation.
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
        // Equal names are distinguished by their index, which is nearly always free.
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

    /// Returns the `at`th schema to keep under `$defs`: the schema, its name there, its original place.
    pub(super) fn shared(&self, at: usize) -> Option<(&'a Value, String, String)> {
        self.shared.get(at).cloned()
    }

    /// Whether `target` contains a reference back to itself, or takes too long to tell.
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

/// Resolves a JSON Pointer in a URI fragment, which may be percent-encoded.
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
                    // Definitions matter only if they are referred to.
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

/// Cycles of one schema that are cut.
const MAX_CYCLES: usize = 32;
/// Schemas of one tool that are visited to find one.
const MAX_CYCLE_NODES: usize = 50_000;
/// Bounds on paths through a schema for one value, and on schemas of one path: half of those of the call check, because
/// a translation may add some.
const MAX_SCHEMA_PATHS: u64 = 50_000;
const MAX_CYCLE_STEPS: usize = 500;

/// Keywords that refer to another place of the document, in reading order.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords with a schema, or a list of schemas, for the same value.
const HERE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];
/// Keywords with schemas for the same value, by name.
const HERE_BY_NAME: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords with a schema, or a list of schemas, for parts of the value.
const INSIDE: [&str; 8] = [
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
];
/// The same, by name.
const INSIDE_BY_NAME: [&str; 2] = ["properties", "patternProperties"];

/// Schemas to remove, by address.
pub(super) type RemovedSchemas = HashSet<*const Value>;

/// Returns the cuts that make `root` acyclic.
///
/// # Errors
/// Why it cannot be translated: it is too large to search, or its references multiply.
pub(super) fn cycles(root: &Value) -> Result<RemovedSchemas, String> {
    let mut refs = Refs::new(root);
    let mut cuts = RemovedSchemas::new();
    while let Some(cut) = Search::new(&mut refs, &cuts).run(root)? {
        cuts.insert(cut);
        if cuts.len() > MAX_CYCLES {
            return Err("its schema refers back to itself in too many places".to_owned());
        }
    }
    Ok(cuts)
}

/// Search state of a schema.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Open,
    Done { ways: u64, steps: usize },
}

/// A step from one schema to another.
#[derive(Clone, Copy)]
struct Step<'a> {
    to: &'a Value,
    /// Whether it leads to an alternative, which can be dropped.
    alternative: bool,
    /// For a reference, the schema that has it, and whether that is an alternative.
    reference: Option<(*const Value, bool)>,
}

/// A schema being searched.
struct Visit<'a> {
    /// The step that led to it.
    by: Step<'a>,
    here: Vec<Step<'a>>,
    next: usize,
    ways: u64,
    steps: usize,
}

struct Search<'a, 's> {
    refs: &'s mut Refs<'a>,
    cuts: &'s RemovedSchemas,
    states: HashMap<*const Value, State>,
    /// Schemas of other values, to begin with.
    roots: Vec<&'a Value>,
}

impl<'a, 's> Search<'a, 's> {
    fn new(refs: &'s mut Refs<'a>, cuts: &'s RemovedSchemas) -> Self {
        Self { refs, cuts, states: HashMap::new(), roots: Vec::new() }
    }

    /// The next cut to make.
    fn run(mut self, root: &'a Value) -> Result<Option<*const Value>, String> {
        self.roots.push(root);
        while let Some(root) = self.roots.pop() {
            if self.states.contains_key(&std::ptr::from_ref(root)) {
                continue;
            }
            let mut open = vec![self.visit(Step { to: root, alternative: false, reference: None })?];
            while let Some(visit) = open.last_mut() {
                let Some(step) = visit.here.get(visit.next).copied() else {
                    let done = State::Done { ways: visit.ways, steps: visit.steps };
                    let (ways, steps) = (visit.ways, visit.steps + 1);
                    if ways > MAX_SCHEMA_PATHS || steps > MAX_CYCLE_STEPS {
                        return Err("its references multiply into too many ways to judge one value".to_owned());
                    }
                    self.states.insert(std::ptr::from_ref(visit.by.to), done);
                    open.pop();
                    if let Some(outer) = open.last_mut() {
                        (outer.ways, outer.steps) = (outer.ways.saturating_add(ways), outer.steps.max(steps));
                    }
                    continue;
                };
                visit.next += 1;
                match self.states.get(&std::ptr::from_ref(step.to)) {
                    None => open.push(self.visit(step)?),
                    Some(State::Done { ways, steps }) => {
                        (visit.ways, visit.steps) = (visit.ways.saturating_add(*ways), visit.steps.max(steps + 1));
                    }
                    // Only a reference leads back. Cutting an alternative loses nothing; otherwise the latest is cut.
                    Some(State::Open) => {
                        let way = open.iter().rev().map(|visit| visit.by);
                        let way = way.take_while(|by| !std::ptr::eq(by.to, step.to));
                        let references = || std::iter::once(step).chain(way.clone()).filter_map(|step| step.reference);
                        let best = references().find(|(_, alternative)| *alternative).or_else(|| references().next());
                        return Ok(best.map(|(holder, _)| holder));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Visits a schema: keywords for the same value now, the rest later.
    fn visit(&mut self, by: Step<'a>) -> Result<Visit<'a>, String> {
        if self.states.len() >= MAX_CYCLE_NODES {
            return Err("its references lead to too many schemas".to_owned());
        }
        self.states.insert(std::ptr::from_ref(by.to), State::Open);
        let mut visit = Visit { by, here: Vec::new(), next: 0, ways: 1, steps: 0 };
        let Value::Object(map) = by.to else { return Ok(visit) };
        for (keyword, value) in map {
            let keyword = keyword.as_str();
            let alternative = matches!(keyword, "anyOf" | "oneOf");
            let step = |to| Step { to, alternative, reference: None };
            if HERE.contains(&keyword) {
                // A cut one is dropped as a whole unless it must hold together with others.
                let stays = |inner: &&Value| matches!(keyword, "allOf" | "then" | "else") || !self.is_cut(inner);
                visit.here.extend(subschemas(value, false).filter(stays).map(step));
            } else if HERE_BY_NAME.contains(&keyword) {
                visit.here.extend(subschemas(value, true).map(step));
            } else if INSIDE.contains(&keyword) {
                self.roots.extend(subschemas(value, false));
            } else if INSIDE_BY_NAME.contains(&keyword) {
                self.roots.extend(subschemas(value, true));
            }
        }
        if !self.is_cut(by.to)
            && let Some(target) = reference_of(map).and_then(|(_, text)| self.refs.resolve(text))
        {
            let reference = Some((std::ptr::from_ref(by.to), by.alternative));
            visit.here.push(Step { to: target, alternative: false, reference });
        }
        Ok(visit)
    }

    fn is_cut(&self, schema: &Value) -> bool {
        self.cuts.contains(&std::ptr::from_ref(schema))
    }
}

/// The schemas of a keyword: one, a list, or by name.
fn subschemas(value: &Value, by_name: bool) -> impl Iterator<Item = &Value> {
    let (one, list, named) = match value {
        Value::Object(map) if by_name => (None, None, Some(map.values())),
        Value::Array(list) => (None, Some(list.iter()), None),
        other => (Some(other), None, None),
    };
    one.into_iter().chain(list.into_iter().flatten()).chain(named.into_iter().flatten())
}

fn reference_of(map: &Map<String, Value>) -> Option<(&'static str, &str)> {
    REFERENCES.into_iter().find_map(|keyword| Some((keyword, map.get(keyword)?.as_str()?)))
}

/// Returns `schema` without its cycles: a recursive alternative allows nothing more, so it is dropped; elsewhere the
/// reference is dropped.
pub(super) fn cut_cycles(schema: &Value, cuts: &RemovedSchemas, tool: &str, losses: &mut Vec<Loss>) -> Value {
    SchemaRemover { cuts, tool, losses }.value(schema, "")
}

struct SchemaRemover<'c, 'l> {
    cuts: &'c RemovedSchemas,
    tool: &'c str,
    losses: &'l mut Vec<Loss>,
}

impl SchemaRemover<'_, '_> {
    fn value(&mut self, value: &Value, path: &str) -> Value {
        match value {
            Value::Array(list) => {
                list.iter().enumerate().map(|(at, inner)| self.value(inner, &format!("{path}/{at}"))).collect()
            }
            Value::Object(map) => {
                let dropped = self.is_cut(value).then(|| reference_of(map)).flatten().map(|(keyword, _)| keyword);
                if let Some(keyword) = dropped {
                    self.record_loss(path, keyword);
                }
                let mut kept = Map::with_capacity(map.len());
                for (key, inner) in map.iter().filter(|(key, _)| dropped != Some(key.as_str())) {
                    let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                    match self.keyword(key, inner, &path) {
                        Some(inner) => drop(kept.insert(key.clone(), inner)),
                        None => self.record_loss(&path, key),
                    }
                }
                Value::Object(kept)
            }
            other => other.clone(),
        }
    }

    /// Returns `None` for a keyword without meaning after the cut.
    fn keyword(&mut self, keyword: &str, value: &Value, path: &str) -> Option<Value> {
        match (keyword, value) {
            ("anyOf" | "oneOf", Value::Array(list)) => {
                let mut kept = Vec::with_capacity(list.len());
                for (at, branch) in list.iter().enumerate() {
                    let path = format!("{path}/{at}");
                    if self.is_cut(branch) {
                        self.record_loss(&path, "$ref")
                    } else {
                        kept.push(self.value(branch, &path))
                    }
                }
                (!kept.is_empty() || list.is_empty()).then(|| Value::Array(kept))
            }
            // Cutting a part of it would invert its meaning.
            ("not" | "if", _) if self.has_cut(value) => None,
            _ => Some(self.value(value, path)),
        }
    }

    fn has_cut(&self, value: &Value) -> bool {
        self.is_cut(value)
            || match value {
                Value::Array(list) => list.iter().any(|inner| self.has_cut(inner)),
                Value::Object(map) => map.values().any(|inner| self.has_cut(inner)),
                _ => false,
            }
    }

    fn is_cut(&self, value: &Value) -> bool {
        self.cuts.contains(&std::ptr::from_ref(value))
    }

    fn record_loss(&mut self, path: &str, keyword: &str) {
        self.losses.push(Loss {
            tool: self.tool.to_owned(),
            path: path.to_owned(),
            keyword: keyword.to_owned(),
            note: "leads back to itself for the same value, and so says nothing: left out".to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
    fn recursion_is_distinguished_from_sharing() {
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
