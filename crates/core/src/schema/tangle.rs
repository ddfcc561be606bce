//! How much work a schema can make: references may multiply the ways through it without end, or chain them
//! past what the stack holds. Whether a value is valid is remembered place by place; what is wrong with it is
//! looked for on every way.
//!
//! References are followed where they stand for a place in the document (`#`, a pointer, an anchor); one
//! through an `$id` inside the document is taken to lead nowhere.

use std::collections::HashMap;

use serde_json::Value;

/// Ways through a schema for one value. Telling apart more takes too long.
const MAX_WAYS: u64 = 100_000;
/// Schemas that one way passes, the levels of the value included: each takes its piece of the stack.
const MAX_STEPS: usize = 1000;

/// Levels of a value: containers in one another, and what is in the innermost.
const MAX_LEVELS: usize = crate::json::MAX_DEPTH + 1;

/// Keywords that lead to another place of the document.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords whose schema, or schemas, judge the same value.
const HERE: [&str; 8] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"];
/// Keywords whose schema, or schemas, judge any member.
const MEMBERS: [&str; 3] = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
/// Keywords whose schema, or schemas, judge any item.
const ITEMS: [&str; 5] = ["items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"];

/// Why a schema is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooMuch {
    /// Schemas that refer to each other without going into the value.
    Circle,
    /// Too many ways, or too long a one.
    Ways,
}

impl TooMuch {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Circle => {
                "it refers back to itself for the same value, so that it says nothing; refer to itself only for members or items"
            }
            Self::Ways => "its references multiply into too many ways to judge one value; name the alternatives once",
        }
    }
}

/// The schemas of a document and how they lead to one another.
#[derive(Debug, Default)]
pub(super) struct Tangle {
    /// The document's own first; none where no reference can make it any trouble.
    nodes: Vec<Node>,
    /// Steps of the longest way for one value.
    longest: usize,
}

#[derive(Debug, Default)]
struct Node {
    here: Vec<usize>,
    named: Vec<(Box<str>, usize)>,
    members: Vec<usize>,
    items: Vec<usize>,
}

impl Tangle {
    /// Looks through `schema`.
    pub(super) fn of(schema: &Value) -> Result<Self, TooMuch> {
        let mut build =
            Build { root: schema, refers: false, known: HashMap::new(), nodes: Vec::new(), open: Vec::new() };
        build.index_of(schema);
        while let Some((index, schema)) = build.open.pop() {
            build.fill(index, schema);
        }
        // Without references a schema is a tree: each part of it is passed once.
        let nodes = if build.refers { build.nodes } else { Vec::new() };
        let mut tangle = Self { nodes, longest: 0 };
        tangle.measure()?;
        Ok(tangle)
    }

    /// Counts the ways through each schema for one value, and their steps; iteratively, as a document may
    /// chain any number of references.
    fn measure(&mut self) -> Result<(), TooMuch> {
        let mut passed: Vec<Option<Passed>> = vec![None; self.nodes.len()];
        let mut entered = vec![false; self.nodes.len()];
        for start in 0..self.nodes.len() {
            let mut open = vec![start];
            while let Some(&index) = open.last() {
                if passed[index].is_some() {
                    open.pop();
                    continue;
                }
                let here = &self.nodes[index].here;
                let waiting: Vec<usize> = here.iter().copied().filter(|&next| passed[next].is_none()).collect();
                if waiting.is_empty() {
                    let mut all = Passed { ways: 1, steps: 0 };
                    here.iter().filter_map(|&next| passed[next]).for_each(|inner| all.add(inner));
                    all.steps += 1;
                    if all.ways > MAX_WAYS || all.steps > MAX_STEPS {
                        return Err(TooMuch::Ways);
                    }
                    self.longest = self.longest.max(all.steps);
                    passed[index] = Some(all);
                    open.pop();
                } else if std::mem::replace(&mut entered[index], true) {
                    // Everything it waits for has been gone into, and one of these waits for it.
                    return Err(TooMuch::Circle);
                } else {
                    open.extend(waiting);
                }
            }
        }
        Ok(())
    }

    /// Whether no way that `value` can take through the schema is too long for the stack.
    pub(super) fn is_short_for(&self, value: &Value) -> bool {
        self.longest * MAX_LEVELS <= MAX_STEPS || self.count(value).is_some()
    }

    /// Whether the ways that `value` can take through the schema are few and short enough to walk them all.
    pub(super) fn is_clear_for(&self, value: &Value) -> bool {
        self.nodes.is_empty() || self.count(value).is_some_and(|passed| passed.ways <= MAX_WAYS)
    }

    fn count(&self, value: &Value) -> Option<Passed> {
        Count { tangle: self, known: HashMap::new(), steps: 0 }.pass(0, value)
    }
}

/// What it takes to pass a schema with a value and all that is in it.
#[derive(Clone, Copy)]
struct Passed {
    ways: u64,
    /// Of the longest way.
    steps: usize,
}

impl Passed {
    fn add(&mut self, inner: Self) {
        self.ways = self.ways.saturating_add(inner.ways);
        self.steps = self.steps.max(inner.steps);
    }
}

struct Count<'a> {
    tangle: &'a Tangle,
    known: HashMap<(usize, usize), Passed>,
    /// Of the way so far.
    steps: usize,
}

impl Count<'_> {
    /// `None` if a way is too long.
    fn pass(&mut self, index: usize, value: &Value) -> Option<Passed> {
        let place = (index, std::ptr::from_ref(value).addr());
        if let Some(&known) = self.known.get(&place) {
            return (self.steps + known.steps <= MAX_STEPS).then_some(known);
        }
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return None;
        }
        let tangle = self.tangle;
        let node = &tangle.nodes[index];
        let mut all = Passed { ways: 1, steps: 0 };
        for &next in &node.here {
            all.add(self.pass(next, value)?);
        }
        match value {
            Value::Object(members) => {
                for (name, next) in &node.named {
                    if let Some(member) = members.get(&**name) {
                        all.add(self.pass(*next, member)?);
                    }
                }
                for &next in &node.members {
                    for member in members.values() {
                        all.add(self.pass(next, member)?);
                    }
                }
            }
            Value::Array(items) => {
                for &next in &node.items {
                    for item in items {
                        all.add(self.pass(next, item)?);
                    }
                }
            }
            _ => {}
        }
        self.steps -= 1;
        all.steps += 1;
        self.known.insert(place, all);
        Some(all)
    }
}

struct Build<'a> {
    root: &'a Value,
    /// It has references.
    refers: bool,
    /// Schemas by their address in the document.
    known: HashMap<usize, usize>,
    nodes: Vec<Node>,
    open: Vec<(usize, &'a Value)>,
}

impl<'a> Build<'a> {
    fn index_of(&mut self, schema: &'a Value) -> usize {
        let (next, address) = (self.nodes.len(), std::ptr::from_ref(schema).addr());
        let index = *self.known.entry(address).or_insert(next);
        if index == next {
            self.nodes.push(Node::default());
            self.open.push((index, schema));
        }
        index
    }

    fn fill(&mut self, index: usize, schema: &'a Value) {
        let Value::Object(keywords) = schema else { return };
        let mut node = Node::default();
        for (keyword, value) in keywords {
            let keyword = keyword.as_str();
            if REFERENCES.contains(&keyword) {
                self.refers = true;
                let target = value.as_str().and_then(|reference| target(self.root, reference));
                node.here.extend(target.map(|target| self.index_of(target)));
            } else if HERE.contains(&keyword) {
                self.schemas(keyword == "dependentSchemas", value, &mut node.here);
            } else if keyword == "properties" {
                for (name, schema) in value.as_object().into_iter().flatten() {
                    node.named.push((name.as_str().into(), self.index_of(schema)));
                }
            } else if MEMBERS.contains(&keyword) {
                self.schemas(keyword == "patternProperties", value, &mut node.members);
            } else if ITEMS.contains(&keyword) {
                self.schemas(false, value, &mut node.items);
            }
        }
        self.nodes[index] = node;
    }

    /// The schemas of a keyword: one, a list, or with `by_name` the members of an object.
    fn schemas(&mut self, by_name: bool, value: &'a Value, into: &mut Vec<usize>) {
        match value {
            Value::Array(schemas) => into.extend(schemas.iter().map(|schema| self.index_of(schema))),
            Value::Object(schemas) if by_name => into.extend(schemas.values().map(|schema| self.index_of(schema))),
            Value::Object(_) => into.push(self.index_of(value)),
            _ => {}
        }
    }
}

/// The place in the document that a reference names.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let fragment = reference.strip_prefix('#')?;
    if fragment.is_empty() || fragment.starts_with('/') {
        return root.pointer(fragment);
    }
    anchored(root, fragment)
}

fn anchored<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let is_name = |keyword: &str| value.get(keyword).and_then(Value::as_str) == Some(name);
    match value {
        Value::Object(_) if is_name("$anchor") || is_name("$dynamicAnchor") => Some(value),
        Value::Object(members) => members.values().find_map(|member| anchored(member, name)),
        Value::Array(items) => items.iter().find_map(|item| anchored(item, name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ways_are_counted_before_anything_walks_them() {
        let doubling = |levels: usize| {
            let step = |level: usize| json!({"$ref": format!("#/$defs/{level}")});
            let level = |level: usize| (level.to_string(), json!({"anyOf": [step(level + 1), step(level + 1)]}));
            let mut definitions: serde_json::Map<String, Value> = (0..levels).map(level).collect();
            definitions.insert(levels.to_string(), json!({"type": "string"}));
            json!({"$defs": definitions, "$ref": "#/$defs/0"})
        };
        assert!(Tangle::of(&doubling(10)).is_ok());
        assert_eq!(Tangle::of(&doubling(40)).err(), Some(TooMuch::Ways));
        assert_eq!(Tangle::of(&json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]})).err(), Some(TooMuch::Circle));
        assert_eq!(
            Tangle::of(&json!({"$defs": {"a": {"$anchor": "x", "not": {"$ref": "#x"}}}, "$ref": "#x"})).err(),
            Some(TooMuch::Circle)
        );
        assert!(Tangle::of(&json!({"properties": {"a": {"$ref": "#"}}, "items": {"$ref": "#"}})).is_ok());
        assert!(
            Tangle::of(&json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {}}})).is_ok()
        );
    }

    #[test]
    fn a_value_is_borne_as_far_as_its_ways_are_few() {
        let either = json!({"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]});
        let tangle = Tangle::of(&either).expect("bearable");
        let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!({"a": inner}));
        assert!(
            tangle.is_clear_for(&nested(10)) && !tangle.is_clear_for(&nested(40)) && tangle.is_short_for(&nested(127))
        );
        let tree = Tangle::of(&json!({"properties": {"a": {"$ref": "#"}}})).expect("bearable");
        assert!(tree.is_clear_for(&nested(127)));
        let long = (0..30).fold(json!({"properties": {"a": {"$ref": "#"}}}), |inner, _| json!({"allOf": [inner]}));
        let tangle = Tangle::of(&long).expect("bearable");
        assert!(tangle.is_short_for(&nested(20)) && !tangle.is_short_for(&nested(127)));
    }
}
