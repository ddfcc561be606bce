//! Writes XML text: elements, attributes and namespaces, without characters that XML forbids.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::xml::{PLAIN, XmlList, XmlNode, XmlPlace, XmlSchema};
use crate::rest::request::template::plain_text;

/// The deepest nesting of elements.
pub(super) const MAX_DEPTH: usize = 64;
/// The namespaces of the prefixes `xml` and `xmlns` only (Namespaces in XML 1.0, section 3).
const XML: &str = "http://www.w3.org/XML/1998/namespace";
const XMLNS: &str = "http://www.w3.org/2000/xmlns/";

/// Writes one document.
pub(super) struct Writer<'s> {
    schema: &'s XmlSchema,
    /// The text so far.
    pub(super) out: String,
    /// The prefixes that enclosing elements declare, with their namespaces.
    scope: Vec<(Option<&'s str>, &'s str)>,
}

impl<'s> Writer<'s> {
    /// Creates a document with only the XML declaration.
    pub(super) fn new(schema: &'s XmlSchema) -> Self {
        let out = r#"<?xml version="1.0" encoding="UTF-8"?>"#.to_owned();
        Self { schema, out, scope: Vec::new() }
    }

    /// Writes a member of an object or an item of a list: one element, or one for each item.
    fn value(&mut self, node: &'s XmlNode, name: &str, value: &Value, depth: usize) -> Result<(), String> {
        match (value, node.list) {
            (Value::Array(items), XmlList::Wrapped) => self.wrapped(node, name, items, depth),
            (Value::Array(items), XmlList::Bare) => self.items(node, name, items, depth),
            _ => self.element(node, node.name.as_deref().unwrap_or(name), value, depth),
        }
    }

    /// Writes a list inside an element. Its items have the list's name, unless they have their own.
    pub(super) fn wrapped(
        &mut self,
        node: &'s XmlNode,
        name: &str,
        items: &[Value],
        depth: usize,
    ) -> Result<(), String> {
        let name = node.name.as_deref().unwrap_or(name);
        let qualified = qualified(node, name)?;
        let outer = self.open(node, &qualified, None)?;
        self.out.push('>');
        self.items(node, name, items, depth + 1)?;
        self.close(&qualified, outer);
        Ok(())
    }

    fn items(&mut self, node: &'s XmlNode, name: &str, items: &[Value], depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("the body nests deeper than {MAX_DEPTH} levels, which is not written as XML"));
        }
        let schema = self.schema;
        let item = node.items.and_then(|index| schema.nodes.get(index)).unwrap_or(&PLAIN);
        for value in items {
            if value.is_null() {
                return Err(format!("null among the items of `{name}` is not written as XML: leave it out"));
            }
            // The end of one nested list could not be distinguished from the beginning of the next.
            if value.is_array() && item.list == XmlList::Bare {
                return Err(format!("`{name}` is a list of lists, which is not written as XML without `xml.wrapped`"));
            }
            self.value(item, name, value, depth + 1)?;
        }
        Ok(())
    }

    pub(super) fn element(&mut self, node: &'s XmlNode, name: &str, value: &Value, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("the body nests deeper than {MAX_DEPTH} levels, which is not written as XML"));
        }
        let name = qualified(node, name)?;
        let Value::Object(members) = value else {
            if value.is_null() {
                return Err(format!("null as `{name}` is not written as XML"));
            }
            let outer = self.open(node, &name, None)?;
            self.out.push('>');
            text(&mut self.out, &plain_text(value), XmlContext::Element)?;
            self.close(&name, outer);
            return Ok(());
        };
        let outer = self.open(node, &name, Some(members))?;
        let schema = self.schema;
        let known = |key: &str| node.members.get(key).and_then(|index| schema.nodes.get(*index)).unwrap_or(&PLAIN);
        let placed = |place: XmlPlace| {
            let here = move |(key, value): &(&String, &Value)| !value.is_null() && known(key).place == place;
            members.iter().filter(here).collect::<Vec<(&String, &Value)>>()
        };
        let (inside, texts) = (placed(XmlPlace::Element), placed(XmlPlace::Text));
        if inside.is_empty() && texts.is_empty() {
            self.out.push_str("/>");
            self.scope.truncate(outer);
            return Ok(());
        }
        self.out.push('>');
        match texts.as_slice() {
            [] => {}
            [(key, value)] if inside.is_empty() => {
                if value.is_object() || value.is_array() {
                    return Err(format!("`{key}` is written as the text of an element, which is one text or number"));
                }
                text(&mut self.out, &plain_text(value), XmlContext::Element)?;
            }
            [(key, _), ..] => {
                return Err(format!("`{key}` is written as the text of an element, which then holds nothing else"));
            }
        }
        let mut names = HashSet::new();
        for (key, value) in inside {
            let member = known(key);
            // Two members with the same element could not be distinguished from each other or from a list.
            if let Some((one, name)) = self.named(member, key, value)
                && !names.insert((one.prefix.as_deref(), one.namespace.as_deref(), name))
            {
                return Err(format!("its document writes two members as elements named `{name}` in one element"));
            }
            self.value(member, key, value, depth + 1)?;
        }
        self.close(&name, outer);
        Ok(())
    }

    /// Returns the node and the name of the elements that a member is written as; `None` if it has none.
    fn named<'n>(&self, node: &'s XmlNode, key: &'n str, value: &Value) -> Option<(&'s XmlNode, &'n str)>
    where
        's: 'n,
    {
        let schema = self.schema;
        match value {
            Value::Array(items) if node.list == XmlList::Bare => {
                let item = node.items.and_then(|index| schema.nodes.get(index)).unwrap_or(&PLAIN);
                (!items.is_empty()).then(|| (item, item.name.as_deref().unwrap_or(key)))
            }
            _ => Some((node, node.name.as_deref().unwrap_or(key))),
        }
    }

    /// Writes the start of an element, with its namespace and the attributes among its members, up to its `>`. Returns
    /// the size of the enclosing elements' scope.
    fn open(&mut self, node: &'s XmlNode, name: &str, members: Option<&Map<String, Value>>) -> Result<usize, String> {
        let _ = write!(self.out, "<{name}");
        let (schema, outer) = (self.schema, self.scope.len());
        self.declare(node, outer)?;
        let mut attributes = Vec::new();
        for (key, value) in members.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            let member = node.members.get(key).and_then(|index| schema.nodes.get(*index)).unwrap_or(&PLAIN);
            if member.place != XmlPlace::Attribute {
                continue;
            }
            if value.is_object() || value.is_array() {
                return Err(format!("`{key}` is written as an attribute, which holds one text or number"));
            }
            // An attribute without a prefix is in no namespace (Namespaces in XML, section 6.2).
            if member.prefix.is_some() {
                self.declare(member, outer)?;
            }
            attributes.push((member, member.name.as_deref().unwrap_or(key), value));
        }
        self.namespace(node)?;
        let mut names = HashSet::new();
        for (member, name, value) in attributes {
            // Readers would take it for a namespace declaration.
            if member.prefix.is_none() && name == "xmlns" {
                return Err("`xmlns` cannot be the name of an attribute".into());
            }
            if !names.insert((self.namespace(member)?, name)) {
                return Err(format!("its document writes two attributes named `{name}` in one element"));
            }
            let _ = write!(self.out, " {}=\"", qualified(member, name)?);
            text(&mut self.out, &plain_text(value), XmlContext::Attribute)?;
            self.out.push('"');
        }
        Ok(outer)
    }

    /// Declares the namespace of an element or attribute, once for each prefix. The scope up to `outer` belongs to the
    /// enclosing elements.
    fn declare(&mut self, node: &'s XmlNode, outer: usize) -> Result<(), String> {
        let Some(namespace) = node.namespace.as_deref() else { return Ok(()) };
        let prefix = node.prefix.as_deref();
        match prefix {
            Some("xml") if namespace == XML => return Ok(()),
            Some(reserved @ ("xml" | "xmlns")) => {
                return Err(format!("the prefix `{reserved}` does not stand for `{namespace}` in XML"));
            }
            _ if namespace == XML || namespace == XMLNS => {
                return Err(format!("`{namespace}` cannot be declared as a namespace in XML"));
            }
            _ => {}
        }
        if let Some((_, known)) = self.scope.iter().skip(outer).find(|(known, _)| *known == prefix) {
            let prefix = prefix.unwrap_or_default();
            let two = || format!("the prefix `{prefix}` stands for two namespaces in one element");
            return if *known == namespace { Ok(()) } else { Err(two()) };
        }
        match prefix {
            Some(prefix) => {
                let _ = write!(self.out, " xmlns:{prefix}=\"");
            }
            None => self.out.push_str(" xmlns=\""),
        }
        text(&mut self.out, namespace, XmlContext::Attribute)?;
        self.out.push('"');
        self.scope.push((prefix, namespace));
        Ok(())
    }

    /// Returns the namespace of an element's or attribute's prefix.
    fn namespace(&self, node: &XmlNode) -> Result<Option<&'s str>, String> {
        match node.prefix.as_deref() {
            None => Ok(None),
            Some("xml") => Ok(Some(XML)),
            Some(prefix) => match self.scope.iter().rev().find(|(known, _)| *known == Some(prefix)) {
                Some((_, namespace)) => Ok(Some(namespace)),
                None => Err(format!("the prefix `{prefix}` has no namespace where its document has it written")),
            },
        }
    }

    /// Writes the end of an element, and ends its declarations.
    fn close(&mut self, name: &str, outer: usize) {
        let _ = write!(self.out, "</{name}>");
        self.scope.truncate(outer);
    }
}

/// Returns a name with its prefix.
fn qualified(node: &XmlNode, name: &str) -> Result<String, String> {
    if !is_name(name) {
        let shown: String = name.chars().take(100).collect();
        return Err(format!("`{shown}` cannot be the name of an element or attribute of XML"));
    }
    Ok(match &node.prefix {
        Some(prefix) => format!("{prefix}:{name}"),
        None => name.to_owned(),
    })
}

/// Returns whether this is a valid XML name or prefix (Namespaces in XML 1.0, `NCName`).
pub(crate) fn is_name(name: &str) -> bool {
    let is_start = |c: char| {
        matches!(c, 'A'..='Z' | '_' | 'a'..='z' | '\u{C0}'..='\u{D6}' | '\u{D8}'..='\u{F6}' | '\u{F8}'..='\u{2FF}'
            | '\u{370}'..='\u{37D}' | '\u{37F}'..='\u{1FFF}' | '\u{200C}'..='\u{200D}' | '\u{2070}'..='\u{218F}'
            | '\u{2C00}'..='\u{2FEF}' | '\u{3001}'..='\u{D7FF}' | '\u{F900}'..='\u{FDCF}' | '\u{FDF0}'..='\u{FFFD}'
            | '\u{10000}'..='\u{EFFFF}')
    };
    let is_more = |c: char| {
        is_start(c) || matches!(c, '-' | '.' | '0'..='9' | '\u{B7}' | '\u{300}'..='\u{36F}' | '\u{203F}'..='\u{2040}')
    };
    name.chars().next().is_some_and(is_start) && name.chars().all(is_more)
}

/// The context of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum XmlContext {
    Element,
    Attribute,
}

/// Writes a text so that it is read back unchanged.
fn text(out: &mut String, text: &str, inside: XmlContext) -> Result<(), String> {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            // `]]>` is forbidden in a text.
            '>' => out.push_str("&gt;"),
            '"' if inside == XmlContext::Attribute => out.push_str("&quot;"),
            // Readers turn it into a line feed, and white space in attributes into spaces.
            '\r' => out.push_str("&#13;"),
            '\n' | '\t' if inside == XmlContext::Attribute => {
                let _ = write!(out, "&#{};", u32::from(c));
            }
            '\n' | '\t' | '\u{20}'..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..='\u{10FFFF}' => out.push(c),
            other => return Err(format!("a text has the character U+{:04X}, which XML cannot have", u32::from(other))),
        }
    }
    Ok(())
}
