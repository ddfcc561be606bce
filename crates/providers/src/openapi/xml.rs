//! What a document says of its schemas as XML: a graph of names and places for `rest::xml`.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::budget::of_text;
use super::combined::{Steps, combined, properties};
use super::document::{Document, Part};
use super::schema::only_type;
use crate::rest::{XmlBody, XmlList, XmlNode, XmlPlace, XmlSchema, is_xml_name};

/// Schemas of one body.
const MAX_NODES: usize = 10_000;

/// The schemas of a document for XML, by the address of the value: the document is not moved while it is read. Bodies of
/// one schema share it.
#[derive(Debug, Default)]
pub(super) struct XmlSchemas(RefCell<HashMap<*const Value, Made>>);

/// What was made of a schema, and how many were made before it.
#[derive(Debug, Clone)]
struct Made {
    before: usize,
    schema: Result<Arc<XmlSchema>, String>,
}

impl XmlSchemas {
    /// How many there are, to [forget](Self::forget) those that are made from here on.
    pub(super) fn mark(&self) -> usize {
        self.0.borrow().len()
    }

    /// Forgets what was made since this mark: its parts are given back, and who needs it again pays for it again.
    pub(super) fn forget(&self, mark: usize) {
        self.0.borrow_mut().retain(|_, made| made.before < mark);
    }
}

/// A body of this schema. Its root is named by its `xml`, else as the schema that it refers to, else `otherwise`.
///
/// # Errors
/// What of it is no name, or that the root has none.
pub(super) fn body(document: &Document, schema: Part<'_>, otherwise: Option<&str>) -> Result<XmlBody, String> {
    let part = meant(document, schema)?;
    let key: *const Value = part.value;
    let known = document.xml.0.borrow().get(&key).cloned();
    let made = known.unwrap_or_else(|| {
        let schema = graph(document, part, &mut Steps::new()).map(Arc::new);
        let mut all = document.xml.0.borrow_mut();
        let made = Made { before: all.len(), schema };
        all.insert(key, made.clone());
        made
    });
    let made = made.schema?;
    let named = made.nodes.get(made.root).and_then(|node| node.name.as_deref());
    // A file that is referred to as a whole has a name of its own, which is none of a component.
    let fragment = schema.text("$ref").and_then(|reference| reference.split_once('#'));
    let component = fragment.and_then(|(_, pointer)| pointer.rsplit('/').next());
    let name = named.or(component.filter(|name| is_xml_name(name))).or(otherwise.filter(|name| is_xml_name(name)));
    let root = name.ok_or("its schema has no name for the root of its XML (`xml.name`)")?.to_owned();
    Ok(XmlBody { schema: made, root })
}

/// The schema that says how it is written: what a reference leads to, unless more is said beside it.
fn meant<'d>(document: &'d Document, part: Part<'d>) -> Result<Part<'d>, String> {
    let says_more = document.version.has_json_schema() && part.get("xml").is_some();
    if says_more { Ok(part) } else { document.follow(part) }
}

fn graph(document: &Document, part: Part<'_>, steps: &mut Steps) -> Result<XmlSchema, String> {
    let mut graph = Graph { document, steps, nodes: Vec::new(), known: HashMap::new(), waiting: Vec::new() };
    let root = graph.node(part)?;
    while let Some((index, part)) = graph.waiting.pop() {
        graph.fill(index, part)?;
    }
    let nodes = graph.nodes;
    // Elements around may declare it, as far as any does.
    let (declaring, using): (Vec<&XmlNode>, Vec<&XmlNode>) = nodes.iter().partition(|node| node.namespace.is_some());
    let declared: HashSet<&str> = declaring.iter().filter_map(|node| node.prefix.as_deref()).collect();
    let mut used = using.iter().filter_map(|node| node.prefix.as_deref());
    if let Some(prefix) = used.find(|prefix| *prefix != "xml" && !declared.contains(prefix)) {
        return Err(format!(
            "no schema of its body says which namespace the prefix `{prefix}` stands for (`xml.namespace`)"
        ));
    }
    Ok(XmlSchema { nodes, root })
}

struct Graph<'d, 's> {
    document: &'d Document,
    steps: &'s mut Steps,
    nodes: Vec<XmlNode>,
    /// By address of the value: the document is not moved while it is read.
    known: HashMap<*const Value, usize>,
    waiting: Vec<(usize, Part<'d>)>,
}

impl<'d> Graph<'d, '_> {
    /// The node of a schema; a new one waits to be filled.
    fn node(&mut self, part: Part<'d>) -> Result<usize, String> {
        let part = meant(self.document, part)?;
        let key: *const Value = part.value;
        if let Some(index) = self.known.get(&key) {
            return Ok(*index);
        }
        if self.nodes.len() == MAX_NODES {
            return Err(format!("its body has more than {MAX_NODES} schemas"));
        }
        self.document.budget.take(1)?;
        let index = self.nodes.len();
        self.nodes.push(XmlNode::default());
        self.known.insert(key, index);
        self.waiting.push((index, part));
        Ok(index)
    }

    fn fill(&mut self, index: usize, part: Part<'d>) -> Result<(), String> {
        let schema = self.document.follow(part)?;
        // Its own, or that of the first of those that it is all of.
        let xml = match part.get("xml") {
            Some(xml) => Some(xml),
            None => {
                combined(self.document, schema, &["allOf"], self.steps)?.into_iter().find_map(|part| part.get("xml"))
            }
        };
        let mut members = BTreeMap::new();
        for (name, property) in properties(self.document, Some(schema), self.steps)? {
            self.document.budget.take(1 + of_text(&name))?;
            members.insert(name, self.node(property)?);
        }
        let items = schema.get("items").filter(|items| items.value.is_object()).map(|items| self.node(items));
        let flag = |key: &str| xml.and_then(|xml| xml.value.get(key)) == Some(&Value::Bool(true));
        let name = |key: &str| {
            let stated = xml.and_then(|xml| xml.text(key)).filter(|name| !name.is_empty());
            match stated {
                Some(stated) if !is_xml_name(stated) => {
                    Err(format!("`{stated}`, which its schema gives as `xml.{key}`, is no name of XML"))
                }
                stated => Ok(stated.map(str::to_owned)),
            }
        };
        let namespace = xml.and_then(|xml| xml.text("namespace")).filter(|namespace| !namespace.is_empty());
        let texts = ["name", "namespace", "prefix"].iter().filter_map(|key| xml?.text(key));
        self.document.budget.take(texts.map(of_text).sum())?;
        let (mut place, mut list) = (XmlPlace::Element, XmlList::Bare);
        if flag("attribute") {
            place = XmlPlace::Attribute;
        }
        if flag("wrapped") {
            list = XmlList::Wrapped;
        }
        let is_list = only_type(schema.value) == Some("array");
        // OpenAPI 3.2, "XML Object": in the place of those two.
        match xml.and_then(|xml| xml.text("nodeType")) {
            None => {}
            Some("attribute") => place = XmlPlace::Attribute,
            Some("text" | "cdata") if !is_list => place = XmlPlace::Text,
            Some("element") if is_list => list = XmlList::Wrapped,
            Some("element") => {}
            Some("none") if is_list => list = XmlList::Bare,
            Some(other) => {
                let what = if is_list { "a list" } else { "no list" };
                return Err(format!("`{other}` as the `xml.nodeType` of what is {what} is not written"));
            }
        }
        let node = XmlNode {
            name: name("name")?,
            namespace: namespace.map(str::to_owned),
            prefix: name("prefix")?,
            place,
            list,
            members,
            items: items.transpose()?,
        };
        if let Some(slot) = self.nodes.get_mut(index) {
            *slot = node;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::openapi::Origin;

    #[test]
    fn bodies_of_one_schema_share_what_is_made_of_it() {
        let schemas =
            json!({"S": {"type": "object", "properties": {"a": {"type": "string"}}}, "T": {"type": "object"}});
        let text = json!({"openapi": "3.0.0", "components": {"schemas": schemas}}).to_string();
        let document = Document::read(&text, Origin::File("api.json".into())).expect("a document");
        let made = |name: &str| {
            let reference = json!({"$ref": format!("#/components/schemas/{name}")});
            let part = Part { file: 0, value: &reference };
            body(&document, part, None).expect("a body")
        };
        let (one, other, third) = (made("S"), made("S"), made("T"));
        assert!(Arc::ptr_eq(&one.schema, &other.schema) && !Arc::ptr_eq(&one.schema, &third.schema));
        assert_eq!((one.root.as_str(), third.root.as_str()), ("S", "T"));
    }
}
