//! Translates a schema by the rules of an API in one pass, and repairs malformed keywords.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use toolwright_core::pointer::push;

use super::Loss;
use super::flatten::merge;
use super::keyword_values::{self, KeywordForm};
use super::keywords::append_description;
use super::refs::Refs;
use super::restore::{RestorePlan, SchemaRestore};
use super::rules::{References, Rules};
use super::types::Types;

/// Nested schemas that are translated; deeper ones become an empty schema.
pub(super) const MAX_DEPTH: usize = 40;
/// Schemas of one tool that are translated; further ones become an empty schema.
pub(super) const MAX_NODES: usize = 10_000;
/// Likewise inside references that are written out, which can multiply.
const MAX_NODES_INLINED: usize = 2_000;
/// Schemas of one tool that are merged, which copies them.
const MAX_MERGED: usize = 200;
/// References to references that are followed.
const MAX_HOPS: usize = 16;
/// How often a recursive schema is expanded inside itself.
const MAX_UNROLLED: usize = 2;
/// Bound on nested expanded references.
const MAX_INLINED: usize = 24;

/// A place where the strict form of a schema would differ from the schema.
#[derive(Debug)]
pub(super) struct StrictDeviation {
    pub(super) path: String,
    pub(super) why: String,
}

/// A translated schema.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) view: Map<String, Value>,
    pub(super) undo: SchemaRestore,
    /// Sentences to add to the description.
    pub(super) sentences: Vec<String>,
}

impl Node {
    /// Adds the sentences to the description.
    pub(super) fn describe(&mut self) {
        append_description(&mut self.view, &std::mem::take(&mut self.sentences));
    }
}

/// `Err` from strict rules only.
pub(super) type WriteResult = Result<Node, StrictDeviation>;

pub(super) struct Writer<'a, 'l> {
    pub(super) rules: &'static Rules,
    pub(super) refs: Refs<'a>,
    tool: &'a str,
    losses: &'l mut Vec<Loss>,
    /// JSON Pointer to the schema being written.
    pub(super) path: String,
    depth: usize,
    nodes: usize,
    merged: usize,
    /// The references that are being written out.
    inlined: Vec<*const Value>,
    /// Whether [`SchemaRestore`] cannot reach the place, so that nothing may be renamed.
    pub(super) blind: bool,
    /// Whether the schema has references that resolve.
    pub(super) refers: bool,
    /// Whether arguments must be converted back.
    pub(super) undoes: bool,
}

impl<'a, 'l> Writer<'a, 'l> {
    pub(super) fn new(rules: &'static Rules, tool: &'a str, root: &'a Value, losses: &'l mut Vec<Loss>) -> Self {
        let (refs, path, inlined) = (Refs::new(root), String::new(), Vec::new());
        Self {
            rules,
            refs,
            tool,
            losses,
            path,
            depth: 0,
            nodes: 0,
            merged: 0,
            inlined,
            blind: false,
            refers: false,
            undoes: false,
        }
    }

    pub(super) fn record_loss(&mut self, keyword: &str, note: impl Into<String>) {
        let (tool, path) = (self.tool.to_owned(), self.path.clone());
        self.losses.push(Loss { tool, path, keyword: keyword.to_owned(), note: note.into() });
    }

    /// An error in a strict translation, otherwise a loss.
    pub(super) fn differ(&mut self, keyword: &str, why: &str) -> Result<(), StrictDeviation> {
        if self.rules.strict.is_some() {
            return Err(self.inexact(format!("`{keyword}`: {why}")));
        }
        self.record_loss(keyword, why);
        Ok(())
    }

    pub(super) fn inexact(&self, why: impl Into<String>) -> StrictDeviation {
        StrictDeviation { path: self.path.clone(), why: why.into() }
    }

    /// Writes with `segment` on the path.
    pub(super) fn at<T>(&mut self, segment: &[&str], write: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        for part in segment {
            push(&mut self.path, part);
        }
        let written = write(self);
        self.path.truncate(length);
        written
    }

    /// Writes a schema that [`SchemaRestore`] cannot reach.
    fn write_unrestorable(&mut self, segment: &[&str], schema: &Value) -> Result<Value, StrictDeviation> {
        let was = std::mem::replace(&mut self.blind, true);
        let written = self.at(segment, |writer| writer.schema(schema));
        self.blind = was;
        written.map(|node| Value::Object(node.view))
    }

    pub(super) fn schema(&mut self, schema: &Value) -> WriteResult {
        match schema {
            Value::Object(map) => self.map(map, false),
            Value::Bool(true) => self.write_any("true", "a value of any kind is allowed"),
            Value::Bool(false) => {
                self.differ("false", "no value is allowed here, which no API takes")?;
                Ok(Node::default())
            }
            Value::String(text) => {
                let (types, _) = Types::read(schema);
                let keyword = if types == Types::NONE { "description" } else { "type" };
                self.record_loss("schema", format!("{} is no schema: read as its `{keyword}`", brief(schema)));
                let value = if types == Types::NONE { Value::from(text.as_str()) } else { types.to_value() };
                self.map(&Map::from_iter([(keyword.to_owned(), value)]), false)
            }
            other => {
                let note = format!("{} is no schema: shown as anything", brief(other));
                self.write_any("schema", &note)
            }
        }
    }

    fn write_any(&mut self, keyword: &str, why: &str) -> WriteResult {
        if self.rules.strict.is_some() {
            return Err(self.inexact(why));
        }
        if keyword != "true" {
            self.record_loss(keyword, why);
        }
        Ok(Node::default())
    }

    pub(super) fn map(&mut self, map: &Map<String, Value>, is_root: bool) -> WriteResult {
        self.nodes += 1;
        let most = if self.inlined.is_empty() { MAX_NODES } else { MAX_NODES_INLINED };
        if self.depth >= MAX_DEPTH || self.nodes > most {
            return self.write_any("schema", "too deep or too much to be shown: shown as anything");
        }
        self.depth += 1;
        let written = self.resolved(map, is_root);
        self.depth -= 1;
        written
    }

    fn resolved(&mut self, map: &Map<String, Value>, is_root: bool) -> WriteResult {
        let mut reference = None;
        let mut all_of = None;
        for (key, value) in map {
            match (key.as_str(), value) {
                ("$ref", Value::String(text)) => reference = Some(("$ref", text)),
                (dynamic @ ("$dynamicRef" | "$recursiveRef"), Value::String(text)) if reference.is_none() => {
                    reference = Some((if dynamic == "$dynamicRef" { "$dynamicRef" } else { "$recursiveRef" }, text));
                }
                ("allOf", Value::Array(list)) if !list.is_empty() => all_of = Some(list.as_slice()),
                _ => {}
            }
        }
        if let Some((keyword, text)) = reference {
            return self.reference(map, keyword, text, is_root);
        }
        match all_of {
            Some(_) if self.rules.keeps("allOf") => self.keywords(map, is_root, None),
            // Older drafts put a description beside a reference like this.
            Some([Value::Object(only)]) if only.len() == 1 && only.get("$ref").is_some_and(Value::is_string) => {
                let text = only.get("$ref").and_then(Value::as_str).unwrap_or_default();
                self.reference(map, "allOf", text, is_root)
            }
            Some(list) => self.all_of(map, list, is_root),
            None => self.keywords(map, is_root, None),
        }
    }

    /// Resolves `text`; `None` if it has no target.
    fn target(&mut self, text: &str) -> Option<&'a Value> {
        let mut target = self.refs.resolve(text)?;
        for _ in 0..MAX_HOPS {
            match target.as_object().filter(|map| map.len() == 1).and_then(|map| map.get("$ref")) {
                Some(Value::String(next)) => target = self.refs.resolve(next)?,
                _ => return Some(target),
            }
        }
        None
    }

    fn reference(&mut self, map: &Map<String, Value>, keyword: &str, text: &str, is_root: bool) -> WriteResult {
        if keyword.len() > "$ref".len() && keyword != "allOf" {
            self.record_loss(keyword, "shown as a `$ref` to what it names in this schema");
        }
        let Some(target) = self.target(text) else {
            self.differ(
                keyword,
                &format!("`{text}` is not in this schema, and nothing is fetched: shown as anything"),
            )?;
            return self.keywords(&without_keys(map, &[keyword]), is_root, None);
        };
        self.refers = true;
        let Value::Object(target_map) = target else { return self.schema(target) };
        let beside = || map.iter().filter(|(key, _)| *key != keyword && !is_annotation_keyword(key));
        let alone = beside().next().is_none();
        if self.rules.strict.is_some_and(|strict| !strict.recursion) && self.refs.is_recursive(target) {
            return Err(self.inexact("a recursive schema"));
        }
        // A root must be an object itself.
        let shared = !is_root
            && match self.rules.references {
                References::Shared => true,
                References::Alone => alone,
                References::AloneUnrolled => alone && !self.refs.is_recursive(target),
                References::Inline => false,
            };
        if shared {
            let at = self.refs.share(target, text);
            return self.keywords(map, is_root, Some((keyword, at)));
        }
        let inside = self.inlined.iter().filter(|known| std::ptr::eq(**known, target)).count();
        let merges = beside().any(|(key, value)| !keyword_values::is_annotation(key, value));
        if inside >= MAX_UNROLLED || self.inlined.len() >= MAX_INLINED || merges && self.merged >= MAX_MERGED {
            self.differ(keyword, &format!("`{text}` is written out {inside} levels deep, then shown as anything"))?;
            let mut rest = without_keys(map, &[keyword]);
            if let Some(types) = target_map.get("type") {
                rest.entry("type").or_insert_with(|| types.clone());
            }
            return self.keywords(&rest, is_root, None);
        }
        self.inlined.push(target);
        let outer = text.strip_prefix('#').map(|pointer| std::mem::replace(&mut self.path, pointer.to_owned()));
        let written = if merges {
            self.merged += 1;
            let (both, exact) = merge(without_keys(map, &[keyword]), target_map);
            let allowed = if exact { Ok(()) } else { self.differ(keyword, "contradicts what stands beside it") };
            allowed.and_then(|()| self.map(&both, is_root))
        } else {
            self.map(target_map, is_root)
        };
        if let Some(outer) = outer {
            self.path = outer;
        }
        self.inlined.pop();
        let mut node = written?;
        if !merges && !alone {
            let own = node.view.shift_remove("description");
            for (key, value) in beside() {
                match key.as_str() {
                    "description" => self.description(value, &mut node),
                    _ => self.plain(key, value, &mut node)?,
                }
            }
            node.sentences.extend(own.as_ref().and_then(Value::as_str).map(str::to_owned));
            node.describe();
        }
        Ok(node)
    }

    /// Writes `allOf` as one merged schema.
    fn all_of(&mut self, map: &Map<String, Value>, list: &[Value], is_root: bool) -> WriteResult {
        let mut merged = without_keys(map, &["allOf"]);
        let before = self.inlined.len();
        for part in list {
            let mut part = part;
            for _ in 0..MAX_INLINED {
                let Some(target) = part.get("$ref").and_then(Value::as_str).and_then(|text| self.refs.resolve(text))
                else {
                    break;
                };
                self.refers = true;
                self.inlined.push(target);
                if part.as_object().is_some_and(|map| map.len() > 1) {
                    merged = self.merged(merged, part)?;
                    merged.shift_remove("$ref");
                }
                part = target;
            }
            merged = self.merged(merged, part)?;
        }
        let written = self.map(&merged, is_root);
        self.inlined.truncate(before);
        written
    }

    fn merged(&mut self, map: Map<String, Value>, part: &Value) -> Result<Map<String, Value>, StrictDeviation> {
        match part {
            Value::Object(part) if self.merged < MAX_MERGED => {
                self.merged += 1;
                let (both, exact) = merge(map, part);
                if !exact {
                    self.differ("allOf", "its parts cannot be said as one: the first of two stands")?;
                }
                Ok(both)
            }
            Value::Bool(true) => Ok(map),
            other => {
                self.differ("allOf", &format!("a part is left out: {}", brief(other)))?;
                Ok(map)
            }
        }
    }

    /// Omits an unsupported keyword, and describes it if that helps.
    pub(super) fn leave_out(&mut self, keyword: &str, value: &Value, node: &mut Node) -> Result<(), StrictDeviation> {
        let may_go = keyword_values::is_annotation(keyword, value)
            || self.rules.are_of_answers() && keyword_values::is_bound(keyword);
        if self.rules.strict.is_some() && !may_go {
            return Err(self.inexact(format!("strict tools have no `{keyword}`{}", self.with(keyword, value))));
        }
        match keyword_values::sentence(keyword, value) {
            Some(sentence) => {
                node.sentences.push(sentence);
                self.record_loss(keyword, format!("{} has none: said in the description", self.rules.api));
            }
            None => self.record_loss(keyword, format!("{} has none: left out", self.rules.api)),
        }
        Ok(())
    }

    fn with(&self, keyword: &str, value: &Value) -> String {
        if self.rules.keeps(keyword) { format!(" of {}", brief(value)) } else { String::new() }
    }

    /// A keyword that does not depend on others.
    pub(super) fn plain(&mut self, keyword: &str, value: &Value, node: &mut Node) -> Result<(), StrictDeviation> {
        let form = keyword_values::form(keyword);
        if form == KeywordForm::Unknown {
            if self.rules.for_clients {
                node.view.insert(keyword.to_owned(), value.clone());
            } else {
                self.record_loss(keyword, "no keyword of JSON Schema: left out");
            }
            return Ok(());
        }
        let keeps = self.rules.keeps(keyword);
        let shown = match (form, value) {
            (KeywordForm::Schema, Value::Object(_)) if keeps => Some(self.write_unrestorable(&[keyword], value)?),
            (KeywordForm::Schema, Value::Object(_) | Value::Bool(_)) => Some(value.clone()),
            (KeywordForm::Schemas, Value::Object(map)) if keeps => {
                let mut schemas = Map::with_capacity(map.len());
                for (name, schema) in map {
                    schemas.insert(name.clone(), self.write_unrestorable(&[keyword, name], schema)?);
                }
                Some(Value::Object(schemas))
            }
            (KeywordForm::Names, Value::Object(map)) => Some(Value::Object(
                map.iter()
                    .filter(|(_, names)| names.is_array())
                    .map(|(name, names)| (name.clone(), unique(names)))
                    .collect(),
            )),
            (KeywordForm::Schemas, Value::Object(_)) => Some(value.clone()),
            (KeywordForm::Schema | KeywordForm::Schemas | KeywordForm::Names, _) => None,
            _ => keyword_values::legal(keyword, form, value),
        };
        let Some(shown) = shown else {
            self.record_loss(keyword, format!("{} is not what it takes: left out", brief(value)));
            return Ok(());
        };
        if keeps && self.rules.keeps_value(keyword, &shown) {
            node.view.insert(keyword.to_owned(), shown);
            return Ok(());
        }
        self.leave_out(keyword, &shown, node)
    }

    /// Adds the targets of `$ref`s to the translated root. Returns how arguments are converted back, and whether there were
    /// references.
    pub(super) fn finish(
        mut self,
        view: &mut Map<String, Value>,
        root: SchemaRestore,
    ) -> Result<(Option<Box<RestorePlan>>, bool), StrictDeviation> {
        let mut definitions = Map::new();
        let mut shared = BTreeMap::new();
        let mut at = 0;
        while let Some((target, name, path)) = self.refs.shared(at) {
            self.path = path;
            let node = self.schema(target)?;
            definitions.insert(name.clone(), Value::Object(node.view));
            shared.insert(format!("#/$defs/{name}"), node.undo);
            at += 1;
        }
        if !definitions.is_empty() {
            view.insert("$defs".to_owned(), Value::Object(definitions));
        }
        Ok((self.undoes.then(|| Box::new(RestorePlan { root, shared })), self.refers))
    }
}

/// Whether a keyword beside a `$ref` says nothing about the value.
fn is_annotation_keyword(keyword: &str) -> bool {
    matches!(keyword, "$defs" | "definitions" | "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor")
}

fn without_keys(map: &Map<String, Value>, keys: &[&str]) -> Map<String, Value> {
    let kept = map.iter().filter(|(key, _)| !keys.contains(&key.as_str()) && !is_annotation_keyword(key));
    kept.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The strings of a list, each once.
fn unique(names: &Value) -> Value {
    let names: BTreeSet<&str> = names.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    names.into_iter().collect()
}

/// A value for a message.
pub(super) fn brief(value: &Value) -> String {
    match keyword_values::quoted(value, 60) {
        Ok(text) => format!("`{text}`"),
        Err(start) => format!("`{start}…`"),
    }
}

/// A set of types for a message.
pub(super) fn listed(types: Types) -> String {
    types.names().collect::<Vec<_>>().join(" or ")
}
