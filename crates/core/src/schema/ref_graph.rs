//! Bounds the work that a schema can cause. References may multiply the paths through a schema without limit, or form
//! chains that overflow the stack. The validator remembers per position whether a value is valid, but looks for faults
//! on every path.
//!
//! References are followed as the validator follows them: by pointer, anchor or `$id`.

use std::collections::HashMap;

use jsonschema::{Draft, Registry, Uri, uri};
use serde_json::Value;

use super::validate::RefuseRemote;

/// Bound on paths through a schema for one value; more take too long.
const MAX_SCHEMA_PATHS: u64 = 100_000;
/// Bound on the schemas of one path, including the levels of the value: each uses stack.
const MAX_STEPS: usize = 1000;

/// Represents the name of any member: it has no members itself.
static NAME: Value = Value::Null;
/// Levels of a value: nested containers, and the innermost scalar.
const MAX_LEVELS: usize = crate::json::MAX_DEPTH + 1;

/// Why a schema is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SchemaRefusal {
    /// Schemas that refer to each other without descending into the value.
    Circle,
    /// Too many ways, or too long a one.
    Ways,
    /// A reference that resolves neither in the document nor to a metaschema.
    Lost(String),
}

impl SchemaRefusal {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Circle => {
                "it refers back to itself for the same value, so that it says nothing; refer to itself only for members or items".into()
            }
            Self::Ways => "its references multiply into too many ways to judge one value; name the alternatives once".into(),
            Self::Lost(reference) => {
                format!("the reference `{reference}` leads nowhere in the document; put the definition under $defs")
            }
        }
    }
}

/// The schemas of a document and their references.
#[derive(Debug, Default)]
pub(super) struct RefGraph {
    /// The document's own node first; empty if no reference can be a problem.
    nodes: Vec<Node>,
    /// Steps of the longest way for one value.
    longest: usize,
}

#[derive(Debug, Default)]
struct Node {
    here: Vec<usize>,
    named: Vec<(Box<str>, usize)>,
    members: Vec<usize>,
    /// Nodes for member names.
    names: Vec<usize>,
    items: Vec<usize>,
}

impl RefGraph {
    /// Looks through `schema`, written in `draft`.
    pub(super) fn of(schema: &Value, draft: Draft) -> Result<Self, SchemaRefusal> {
        let nodes = nodes(schema, draft)?;
        let mut ref_graph = Self { nodes, longest: 0 };
        ref_graph.measure()?;
        Ok(ref_graph)
    }

    /// Counts the ways through each schema for one value, and their steps; iteratively, as a document may
    /// chain any number of references.
    fn measure(&mut self) -> Result<(), SchemaRefusal> {
        let mut passed: Vec<Option<PassCost>> = vec![None; self.nodes.len()];
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
                    let mut all = PassCost { ways: 1, steps: 0 };
                    here.iter().filter_map(|&next| passed[next]).for_each(|inner| all.add(inner));
                    all.steps += 1;
                    if all.ways > MAX_SCHEMA_PATHS || all.steps > MAX_STEPS {
                        return Err(SchemaRefusal::Ways);
                    }
                    self.longest = self.longest.max(all.steps);
                    passed[index] = Some(all);
                    open.pop();
                } else if std::mem::replace(&mut entered[index], true) {
                    // All its dependencies are visited, and one of them depends on it.
                    return Err(SchemaRefusal::Circle);
                } else {
                    open.extend(waiting);
                }
            }
        }
        Ok(())
    }

    /// Whether every path of `value` through the schema fits on the stack.
    pub(super) fn is_short_for(&self, value: &Value) -> bool {
        self.longest * MAX_LEVELS <= MAX_STEPS || self.count(value).is_some()
    }

    /// Whether the paths of `value` through the schema are few and short enough to walk them all.
    pub(super) fn is_clear_for(&self, value: &Value) -> bool {
        self.nodes.is_empty() || self.count(value).is_some_and(|passed| passed.ways <= MAX_SCHEMA_PATHS)
    }

    fn count(&self, value: &Value) -> Option<PassCost> {
        PathCounter { ref_graph: self, costs: HashMap::new(), steps: 0 }.pass(0, value)
    }
}

/// The cost of passing a schema with a value and its content.
#[derive(Clone, Copy)]
struct PassCost {
    ways: u64,
    /// Length of the longest path.
    steps: usize,
}

impl PassCost {
    fn add(&mut self, inner: Self) {
        self.ways = self.ways.saturating_add(inner.ways);
        self.steps = self.steps.max(inner.steps);
    }
}

struct PathCounter<'a> {
    ref_graph: &'a RefGraph,
    costs: HashMap<(usize, usize), PassCost>,
    /// Length of the path so far.
    steps: usize,
}

impl PathCounter<'_> {
    /// Returns the cost; `None` if a path is too long.
    fn pass(&mut self, index: usize, value: &Value) -> Option<PassCost> {
        let place = (index, std::ptr::from_ref(value).addr());
        if let Some(&known) = self.costs.get(&place) {
            return (self.steps + known.steps <= MAX_STEPS).then_some(known);
        }
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return None;
        }
        let ref_graph = self.ref_graph;
        let node = &ref_graph.nodes[index];
        let mut all = PassCost { ways: 1, steps: 0 };
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
                for &next in &node.names {
                    for _ in members {
                        all.add(self.pass(next, &NAME)?);
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
        self.costs.insert(place, all);
        Some(all)
    }
}

/// Keywords that refer to another place of the document.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords whose schemas apply to the same value.
const HERE: [&str; 9] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"];
/// Keywords whose schemas apply to members.
const MEMBERS: [&str; 3] = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
/// Keywords whose schemas apply to items.
const ITEMS: [&str; 5] = ["items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"];
/// Keywords with schemas by name.
const BY_NAME: [&str; 3] = ["dependentSchemas", "dependencies", "patternProperties"];

/// The validator's name for a schema without an `$id`.
const NAMELESS: &str = "json-schema:///";

/// Builds the nodes of `root`, its own first; none if there is no reference: then it is a tree, and each part
/// is passed once.
///
/// # Errors
/// [`SchemaRefusal::Lost`] for an unresolvable reference.
fn nodes(root: &Value, draft: Draft) -> Result<Vec<Node>, SchemaRefusal> {
    if !refers(root) {
        return Ok(Vec::new());
    }
    let lost = |_| SchemaRefusal::Lost(NAMELESS.into());
    let resource = draft.create_resource_ref(root);
    let base = uri::from_str(NAMELESS).map_err(lost)?;
    let base = resource.id().map_or(Ok(base.clone()), |id| uri::resolve_against(&base.borrow(), id)).map_err(lost)?;
    let registry = Registry::new().retriever(RefuseRemote).draft(draft).add(base.as_str(), resource);
    let registry = registry.and_then(|registry| registry.prepare()).map_err(lost)?;
    let mut build = GraphBuilder {
        draft,
        registry: &registry,
        nodes_by_address: HashMap::new(),
        places: HashMap::new(),
        dynamic: Vec::new(),
        nodes: Vec::new(),
        open: Vec::new(),
    };
    build.index(root, &base);
    build.index_of(root, &base);
    while let Some((index, schema, base)) = build.open.pop() {
        build.fill(index, schema, &base)?;
    }
    Ok(build.nodes)
}

/// Whether `value` contains a reference.
fn refers(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(name, member)| REFERENCES.contains(&name.as_str()) || refers(member))
        }
        Value::Array(items) => items.iter().any(refers),
        _ => false,
    }
}

struct GraphBuilder<'a> {
    draft: Draft,
    /// Follows references as the validator does.
    registry: &'a Registry<'a>,
    /// Schemas by their address in the document.
    nodes_by_address: HashMap<usize, usize>,
    /// The base URI of each place in the document, before its own `$id`.
    places: HashMap<usize, Uri<String>>,
    /// Possible targets of dynamic references, which depend on the path.
    dynamic: Vec<&'a Value>,
    nodes: Vec<Node>,
    open: Vec<(usize, &'a Value, Uri<String>)>,
}

impl<'a> GraphBuilder<'a> {
    /// Records every place of the document, whether or not it is a schema.
    fn index(&mut self, value: &'a Value, base: &Uri<String>) {
        self.places.insert(address(value), base.clone());
        match value {
            Value::Object(members) => {
                if value.get("$dynamicAnchor").is_some() || value.get("$recursiveAnchor").is_some() {
                    self.dynamic.push(value);
                }
                let base = self.base_in(value, base);
                members.values().for_each(|member| self.index(member, &base));
            }
            Value::Array(items) => items.iter().for_each(|item| self.index(item, base)),
            _ => {}
        }
    }

    /// Returns the base URI of references in `schema`.
    fn base_in(&self, schema: &Value, base: &Uri<String>) -> Uri<String> {
        let resource = self.draft.detect(schema).create_resource_ref(schema);
        let named = resource.id().and_then(|id| self.registry.resolve_uri(&base.borrow(), id).ok());
        named.map_or_else(|| base.clone(), |uri| (*uri).clone())
    }

    fn index_of(&mut self, schema: &'a Value, base: &Uri<String>) -> usize {
        let next = self.nodes.len();
        let index = *self.nodes_by_address.entry(address(schema)).or_insert(next);
        if index == next {
            self.nodes.push(Node::default());
            self.open.push((index, schema, base.clone()));
        }
        index
    }

    fn fill(&mut self, index: usize, schema: &'a Value, base: &Uri<String>) -> Result<(), SchemaRefusal> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        let base = &self.base_in(schema, base);
        let mut node = Node::default();
        for (keyword, value) in keywords {
            let keyword = keyword.as_str();
            let into = match keyword {
                _ if REFERENCES.contains(&keyword) => {
                    if let Some(reference) = value.as_str() {
                        self.follow(keyword, reference, base, &mut node.here)?;
                    }
                    continue;
                }
                "properties" => {
                    for (name, schema) in value.as_object().into_iter().flatten() {
                        node.named.push((name.as_str().into(), self.index_of(schema, base)));
                    }
                    continue;
                }
                "propertyNames" => &mut node.names,
                _ if HERE.contains(&keyword) => &mut node.here,
                _ if MEMBERS.contains(&keyword) => &mut node.members,
                _ if ITEMS.contains(&keyword) => &mut node.items,
                _ => continue,
            };
            match value {
                Value::Array(schemas) => into.extend(schemas.iter().map(|schema| self.index_of(schema, base))),
                Value::Object(schemas) if BY_NAME.contains(&keyword) => {
                    into.extend(schemas.values().map(|schema| self.index_of(schema, base)));
                }
                Value::Object(_) => into.push(self.index_of(value, base)),
                _ => {}
            }
        }
        self.nodes[index] = node;
        Ok(())
    }

    /// The places that `reference` may lead to. A metaschema is one schema more: it is known to be harmless.
    fn follow(
        &mut self,
        keyword: &str,
        reference: &str,
        base: &Uri<String>,
        into: &mut Vec<usize>,
    ) -> Result<(), SchemaRefusal> {
        let registry = self.registry;
        let found = registry.resolver(base.clone()).lookup(reference);
        let (target, resolver, _) = found.map_err(|_| SchemaRefusal::Lost(reference.to_owned()))?.into_inner();
        if self.places.contains_key(&address(target)) {
            into.push(self.index_of(target, &resolver.base_uri()));
        }
        let anchor = reference.rsplit_once('#').map_or("", |(_, anchor)| anchor);
        let dynamic = self.dynamic.clone();
        for schema in dynamic.into_iter().filter(|&schema| match keyword {
            "$dynamicRef" => schema["$dynamicAnchor"] == *anchor && !std::ptr::eq(schema, target),
            "$recursiveRef" => schema["$recursiveAnchor"] == true && !std::ptr::eq(schema, target),
            _ => false,
        }) {
            if let Some(base) = self.places.get(&address(schema)).cloned() {
                into.push(self.index_of(schema, &base));
            }
        }
        Ok(())
    }
}

fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(schema: &Value) -> Result<RefGraph, SchemaRefusal> {
        RefGraph::of(schema, Draft::default())
    }

    #[test]
    fn schema_paths_are_counted_before_validation() {
        let doubling = |levels: usize| {
            let step = |level: usize| json!({"$ref": format!("#/$defs/{level}")});
            let level = |level: usize| (level.to_string(), json!({"anyOf": [step(level + 1), step(level + 1)]}));
            let mut definitions: serde_json::Map<String, Value> = (0..levels).map(level).collect();
            definitions.insert(levels.to_string(), json!({"type": "string"}));
            json!({"$defs": definitions, "$ref": "#/$defs/0"})
        };
        assert!(of(&doubling(10)).is_ok());
        assert_eq!(of(&doubling(40)).err(), Some(SchemaRefusal::Ways));
        assert_eq!(of(&json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]})).err(), Some(SchemaRefusal::Circle));
        assert_eq!(
            of(&json!({"$defs": {"a": {"$anchor": "x", "not": {"$ref": "#x"}}}, "$ref": "#x"})).err(),
            Some(SchemaRefusal::Circle)
        );
        assert!(of(&json!({"properties": {"a": {"$ref": "#"}}, "items": {"$ref": "#"}})).is_ok());
        assert!(of(&json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {}}})).is_ok());
    }

    #[test]
    fn values_with_few_schema_paths_are_validated() {
        let either = json!({"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]});
        let ref_graph = of(&either).expect("bearable");
        let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!({"a": inner}));
        assert!(
            ref_graph.is_clear_for(&nested(10))
                && !ref_graph.is_clear_for(&nested(40))
                && ref_graph.is_short_for(&nested(127))
        );
        let tree = of(&json!({"properties": {"a": {"$ref": "#"}}})).expect("bearable");
        assert!(tree.is_clear_for(&nested(127)));
        let long = (0..30).fold(json!({"properties": {"a": {"$ref": "#"}}}), |inner, _| json!({"allOf": [inner]}));
        let ref_graph = of(&long).expect("bearable");
        assert!(ref_graph.is_short_for(&nested(20)) && !ref_graph.is_short_for(&nested(127)));
    }

    #[test]
    fn all_kinds_of_references_are_counted() {
        let doubling = |level: &dyn Fn(usize) -> Value, top: Value| {
            let mut definitions: serde_json::Map<String, Value> =
                (0..40).map(|step| (format!("d{step}"), level(step))).collect();
            definitions.insert("d40".into(), json!({"$id": "d40", "type": "string"}));
            json!({"$id": "http://x.test/", "$defs": definitions, "allOf": [top]})
        };
        let twice = |step: Value| json!([step, step]);
        let by_id =
            |step: usize| json!({"$id": format!("d{step}"), "anyOf": twice(json!({"$ref": format!("d{}", step + 1)}))});
        let escaped = |step: usize| json!({"anyOf": twice(json!({"$ref": format!("#/%24defs/d{}", step + 1)}))});
        let depending = |step: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", step + 1)});
            json!({"dependencies": {"x": next, "y": next, "z": ["x"]}})
        };
        let names =
            |step: usize| json!({"propertyNames": {"anyOf": twice(json!({"$ref": format!("#/$defs/d{}", step + 1)}))}});
        let top = json!({"$ref": "#/$defs/d0"});
        assert_eq!(of(&doubling(&by_id, json!({"$ref": "d0"}))).err(), Some(SchemaRefusal::Ways));
        assert_eq!(of(&doubling(&escaped, top.clone())).err(), Some(SchemaRefusal::Ways));
        assert_eq!(of(&doubling(&depending, top.clone())).err(), Some(SchemaRefusal::Ways));
        // A member name has no members: each level after the first validates nothing.
        assert!(of(&doubling(&names, top)).is_ok());
        let lost = of(&json!({"properties": {"a": {"$ref": "elsewhere"}}})).err();
        assert!(matches!(lost, Some(SchemaRefusal::Lost(_))), "{lost:?}");
        assert!(of(&json!({"$ref": "https://json-schema.org/draft/2020-12/schema"})).is_ok());
    }

    /// Schemas of real servers, if present: `TOOLWRIGHT_TEST_DATA` names their folder.
    #[test]
    fn published_schemas_validate_within_the_stack() {
        let Some(folder) = std::env::var_os("TOOLWRIGHT_TEST_DATA").map(std::path::PathBuf::from) else { return };
        let lines = std::fs::read_to_string(folder.join("mcp_catalogue/tools.jsonl")).expect("the tools");
        for line in lines.lines() {
            let tool: Value = serde_json::from_str(line).expect("a tool");
            // Some refer to parts that were omitted when they were published.
            let refused = of(&tool["inputSchema"]).err();
            assert!(matches!(refused, None | Some(SchemaRefusal::Lost(_))), "{refused:?} {line}");
        }
    }
}
