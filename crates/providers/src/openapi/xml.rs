//! What a document says of its schemas as XML: a graph of names and places for `rest::xml`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use super::combined::{Steps, combined, properties};
use super::document::{Document, Part, Version};
use crate::rest::{XmlBody, XmlList, XmlNode, XmlPlace, XmlSchema, is_xml_name};

/// Schemas of one body.
const MAX_NODES: usize = 10_000;

/// A body of this schema. Its root is named by its `xml`, else as the schema that it refers to, else `otherwise`.
///
/// # Errors
/// What of it is no name, or that the root has none.
pub(super) fn body(
    document: &Document,
    schema: Part<'_>,
    otherwise: Option<&str>,
    steps: &mut Steps,
) -> Result<XmlBody, String> {
    let mut graph = Graph { document, steps, nodes: Vec::new(), known: HashMap::new(), waiting: Vec::new() };
    let root = graph.node(schema)?;
    while let Some((index, part)) = graph.waiting.pop() {
        graph.fill(index, part)?;
    }
    let named = graph.nodes.get(root).and_then(|node| node.name.as_deref());
    // A file that is referred to as a whole has a name of its own, which is none of a component.
    let fragment = schema.text("$ref").and_then(|reference| reference.split_once('#'));
    let component = fragment.and_then(|(_, pointer)| pointer.rsplit('/').next());
    let name = named.or(component.filter(|name| is_xml_name(name))).or(otherwise.filter(|name| is_xml_name(name)));
    let name = name.ok_or("its schema has no name for the root of its XML (`xml.name`)")?.to_owned();
    Ok(XmlBody { schema: Arc::new(XmlSchema { nodes: graph.nodes, root }), root: name })
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
        // Beside a reference, 3.1 lets a schema say more.
        let says_more = self.document.version == Version::V31 && part.get("xml").is_some();
        let part = if says_more { part } else { self.document.follow(part)? };
        let key: *const Value = part.value;
        if let Some(index) = self.known.get(&key) {
            return Ok(*index);
        }
        if self.nodes.len() == MAX_NODES {
            return Err(format!("its body has more than {MAX_NODES} schemas"));
        }
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
        let node = XmlNode {
            name: name("name")?,
            namespace: namespace.map(str::to_owned),
            prefix: name("prefix")?,
            place: if flag("attribute") { XmlPlace::Attribute } else { XmlPlace::Element },
            list: if flag("wrapped") { XmlList::Wrapped } else { XmlList::Bare },
            members,
            items: items.transpose()?,
        };
        if let Some(slot) = self.nodes.get_mut(index) {
            *slot = node;
        }
        Ok(())
    }
}
