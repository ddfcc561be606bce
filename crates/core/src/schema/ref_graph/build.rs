//! Finding the schemas of a document and what leads from one to another.

use std::collections::HashMap;

use jsonschema::{Draft, Registry, Uri, uri};
use serde_json::Value;

use super::{Node, TooMuch};
use crate::schema::validate::RefuseRemote;

/// Keywords that lead to another place of the document.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords whose schema, or schemas, judge the same value.
const HERE: [&str; 9] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"];
/// Keywords whose schema, or schemas, judge any member.
const MEMBERS: [&str; 3] = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
/// Keywords whose schema, or schemas, judge any item.
const ITEMS: [&str; 5] = ["items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"];
/// Those of them that hold schemas by name.
const BY_NAME: [&str; 3] = ["dependentSchemas", "dependencies", "patternProperties"];

/// What a schema without an `$id` is called; the validator's name for it.
const NAMELESS: &str = "json-schema:///";

/// The schemas of `root`, its own first; none if there is no reference in it: then it is a tree, and each part
/// is passed once.
///
/// # Errors
/// [`TooMuch::Lost`] for a reference that leads nowhere.
pub(super) fn nodes(root: &Value, draft: Draft) -> Result<Vec<Node>, TooMuch> {
    if !refers(root) {
        return Ok(Vec::new());
    }
    let lost = |_| TooMuch::Lost(NAMELESS.into());
    let resource = draft.create_resource_ref(root);
    let base = uri::from_str(NAMELESS).map_err(lost)?;
    let base = resource.id().map_or(Ok(base.clone()), |id| uri::resolve_against(&base.borrow(), id)).map_err(lost)?;
    let registry = Registry::new().retriever(RefuseRemote).draft(draft).add(base.as_str(), resource);
    let registry = registry.and_then(|registry| registry.prepare()).map_err(lost)?;
    let mut build = Build {
        draft,
        registry: &registry,
        known: HashMap::new(),
        places: HashMap::new(),
        dynamic: Vec::new(),
        nodes: Vec::new(),
        open: Vec::new(),
    };
    build.survey(root, &base);
    build.index_of(root, &base);
    while let Some((index, schema, base)) = build.open.pop() {
        build.fill(index, schema, &base)?;
    }
    Ok(build.nodes)
}

/// Whether there is a reference anywhere in `value`.
fn refers(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(name, member)| REFERENCES.contains(&name.as_str()) || refers(member))
        }
        Value::Array(items) => items.iter().any(refers),
        _ => false,
    }
}

struct Build<'a> {
    draft: Draft,
    /// Follows references as the validator does.
    registry: &'a Registry<'a>,
    /// Schemas by their address in the document.
    known: HashMap<usize, usize>,
    /// What each address of the document is called, before its own `$id`.
    places: HashMap<usize, Uri<String>>,
    /// Where a reference may lead that depends on the way that led to it.
    dynamic: Vec<&'a Value>,
    nodes: Vec<Node>,
    open: Vec<(usize, &'a Value, Uri<String>)>,
}

impl<'a> Build<'a> {
    /// Goes over the whole document, whether or not it is schemas.
    fn survey(&mut self, value: &'a Value, base: &Uri<String>) {
        self.places.insert(address(value), base.clone());
        match value {
            Value::Object(members) => {
                if value.get("$dynamicAnchor").is_some() || value.get("$recursiveAnchor").is_some() {
                    self.dynamic.push(value);
                }
                let base = self.base_in(value, base);
                members.values().for_each(|member| self.survey(member, &base));
            }
            Value::Array(items) => items.iter().for_each(|item| self.survey(item, base)),
            _ => {}
        }
    }

    /// What references in `schema` are relative to.
    fn base_in(&self, schema: &Value, base: &Uri<String>) -> Uri<String> {
        let resource = self.draft.detect(schema).create_resource_ref(schema);
        let named = resource.id().and_then(|id| self.registry.resolve_uri(&base.borrow(), id).ok());
        named.map_or_else(|| base.clone(), |uri| (*uri).clone())
    }

    fn index_of(&mut self, schema: &'a Value, base: &Uri<String>) -> usize {
        let next = self.nodes.len();
        let index = *self.known.entry(address(schema)).or_insert(next);
        if index == next {
            self.nodes.push(Node::default());
            self.open.push((index, schema, base.clone()));
        }
        index
    }

    fn fill(&mut self, index: usize, schema: &'a Value, base: &Uri<String>) -> Result<(), TooMuch> {
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
    ) -> Result<(), TooMuch> {
        let registry = self.registry;
        let found = registry.resolver(base.clone()).lookup(reference);
        let (target, resolver, _) = found.map_err(|_| TooMuch::Lost(reference.to_owned()))?.into_inner();
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
