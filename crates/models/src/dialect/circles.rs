//! Schemas that refer back to themselves for the same value. What leads back says nothing that is not said
//! already, and no validator comes to an end with it; so it is taken out before a view is made.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::Loss;
use super::refs::Refs;

/// Circles of one schema that are taken out.
const MAX_CIRCLES: usize = 32;
/// Schemas of one tool that are looked at for each of them.
const MAX_NODES: usize = 50_000;
/// Ways through a schema for one value, and the schemas that one way passes: half of what the check of calls
/// bears, as a view may add to them.
const MAX_WAYS: u64 = 50_000;
const MAX_STEPS: usize = 500;

/// Keywords that lead to another place of the document, in the order in which they are read.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords whose schema, or list of schemas, judges the same value.
const HERE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];
/// Keywords whose schemas judge the same value, by name.
const HERE_BY_NAME: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords whose schema, or list of schemas, judges what is inside the value.
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
/// Likewise by name.
const INSIDE_BY_NAME: [&str; 2] = ["properties", "patternProperties"];

/// What to take out of a schema, by address.
pub(super) type Cuts = HashSet<*const Value>;

/// What has to be taken out of `root` so that it goes in no circle.
///
/// # Errors
/// Why there can be no view of it, where there is too much of it to tell or its references multiply.
pub(super) fn find(root: &Value) -> Result<Cuts, String> {
    let mut refs = Refs::new(root);
    let mut cuts = Cuts::new();
    while let Some(cut) = Search::new(&mut refs, &cuts).run(root)? {
        cuts.insert(cut);
        if cuts.len() > MAX_CIRCLES {
            return Err("its schema refers back to itself in too many places".to_owned());
        }
    }
    Ok(cuts)
}

/// How often a schema was come to.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Open,
    Done { ways: u64, steps: usize },
}

/// A way from one schema to another.
#[derive(Clone, Copy)]
struct Step<'a> {
    to: &'a Value,
    /// Whether it leads to an alternative, which can be dropped.
    alternative: bool,
    /// For a reference, the schema that has it, and whether that is an alternative.
    reference: Option<(*const Value, bool)>,
}

/// A schema that is being looked through.
struct Visit<'a> {
    /// How it was come to.
    by: Step<'a>,
    here: Vec<Step<'a>>,
    next: usize,
    ways: u64,
    steps: usize,
}

struct Search<'a, 's> {
    refs: &'s mut Refs<'a>,
    cuts: &'s Cuts,
    states: HashMap<*const Value, State>,
    /// Schemas of other values, to begin with.
    roots: Vec<&'a Value>,
}

impl<'a, 's> Search<'a, 's> {
    fn new(refs: &'s mut Refs<'a>, cuts: &'s Cuts) -> Self {
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
                    if ways > MAX_WAYS || steps > MAX_STEPS {
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
                    // Only a reference leads to where one has been. An alternative is cut, which loses nothing,
                    // else the latest.
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

    /// Opens a schema: what judges the same value is gone into, the rest is left for later.
    fn visit(&mut self, by: Step<'a>) -> Result<Visit<'a>, String> {
        if self.states.len() >= MAX_NODES {
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
                // One that is cut is dropped as a whole but where it must hold beside others.
                let stays = |inner: &&Value| matches!(keyword, "allOf" | "then" | "else") || !self.is_cut(inner);
                visit.here.extend(each(value, false).filter(stays).map(step));
            } else if HERE_BY_NAME.contains(&keyword) {
                visit.here.extend(each(value, true).map(step));
            } else if INSIDE.contains(&keyword) {
                self.roots.extend(each(value, false));
            } else if INSIDE_BY_NAME.contains(&keyword) {
                self.roots.extend(each(value, true));
            }
        }
        if !self.is_cut(by.to)
            && let Some(target) = reference(map).and_then(|(_, text)| self.refs.resolve(text))
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
fn each(value: &Value, by_name: bool) -> impl Iterator<Item = &Value> {
    let (one, list, named) = match value {
        Value::Object(map) if by_name => (None, None, Some(map.values())),
        Value::Array(list) => (None, Some(list.iter()), None),
        other => (Some(other), None, None),
    };
    one.into_iter().chain(list.into_iter().flatten()).chain(named.into_iter().flatten())
}

fn reference(map: &Map<String, Value>) -> Option<(&'static str, &str)> {
    REFERENCES.into_iter().find_map(|keyword| Some((keyword, map.get(keyword)?.as_str()?)))
}

/// `schema` without its circles: an alternative that leads back adds none, so it is dropped; elsewhere the
/// reference is.
pub(super) fn cut(schema: &Value, cuts: &Cuts, tool: &str, losses: &mut Vec<Loss>) -> Value {
    Cutter { cuts, tool, losses }.value(schema, "")
}

struct Cutter<'c, 'l> {
    cuts: &'c Cuts,
    tool: &'c str,
    losses: &'l mut Vec<Loss>,
}

impl Cutter<'_, '_> {
    fn value(&mut self, value: &Value, path: &str) -> Value {
        match value {
            Value::Array(list) => {
                list.iter().enumerate().map(|(at, inner)| self.value(inner, &format!("{path}/{at}"))).collect()
            }
            Value::Object(map) => {
                let dropped = self.is_cut(value).then(|| reference(map)).flatten().map(|(keyword, _)| keyword);
                if let Some(keyword) = dropped {
                    self.lose(path, keyword);
                }
                let mut kept = Map::with_capacity(map.len());
                for (key, inner) in map.iter().filter(|(key, _)| dropped != Some(key.as_str())) {
                    let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                    match self.keyword(key, inner, &path) {
                        Some(inner) => drop(kept.insert(key.clone(), inner)),
                        None => self.lose(&path, key),
                    }
                }
                Value::Object(kept)
            }
            other => other.clone(),
        }
    }

    /// None for a keyword that says nothing without the circle.
    fn keyword(&mut self, keyword: &str, value: &Value, path: &str) -> Option<Value> {
        match (keyword, value) {
            ("anyOf" | "oneOf", Value::Array(list)) => {
                let mut kept = Vec::with_capacity(list.len());
                for (at, branch) in list.iter().enumerate() {
                    let path = format!("{path}/{at}");
                    if self.is_cut(branch) { self.lose(&path, "$ref") } else { kept.push(self.value(branch, &path)) }
                }
                (!kept.is_empty() || list.is_empty()).then(|| Value::Array(kept))
            }
            // What is not to hold, or is asked about, would be the opposite without a part of it.
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

    fn lose(&mut self, path: &str, keyword: &str) {
        self.losses.push(Loss {
            tool: self.tool.to_owned(),
            path: path.to_owned(),
            keyword: keyword.to_owned(),
            note: "leads back to itself for the same value, and so says nothing: left out".to_owned(),
        });
    }
}
