//! Values as XML, by the names that a document gives them (OpenAPI 3.0 and 3.1, "XML Object").
//!
//! Without a word of the document: an element for each member, named as it is, and one for each item, named as the list.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::template::plain_text;

/// Elements inside one another.
const MAX_DEPTH: usize = 64;

/// The schemas of a body as far as XML goes: they refer to each other by number, and may do so in circles.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct XmlSchema {
    /// The schemas.
    pub(crate) nodes: Vec<XmlNode>,
    /// That of the whole.
    pub(crate) root: usize,
}

/// How the values of one schema are written.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct XmlNode {
    /// The name of its element or attribute, where that is not its member's.
    pub(crate) name: Option<String>,
    /// Its namespace.
    pub(crate) namespace: Option<String>,
    /// What stands before its name.
    pub(crate) prefix: Option<String>,
    /// Where it is written.
    pub(crate) place: XmlPlace,
    /// Whether a list has an element of its own around its items.
    pub(crate) list: XmlList,
    /// Members that are known, by their names.
    pub(crate) members: BTreeMap<String, usize>,
    /// The items of a list.
    pub(crate) items: Option<usize>,
}

/// Where a value is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum XmlPlace {
    /// In an element.
    #[default]
    Element,
    /// In an attribute of the element around it.
    Attribute,
}

/// How a list is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum XmlList {
    /// Item after item.
    #[default]
    Bare,
    /// Inside an element.
    Wrapped,
}

/// A body of XML.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct XmlBody {
    pub(crate) schema: Arc<XmlSchema>,
    /// The name of the root, where the document gives none.
    pub(crate) root: String,
}

/// What is not said of a schema.
static PLAIN: XmlNode = XmlNode {
    name: None,
    namespace: None,
    prefix: None,
    place: XmlPlace::Element,
    list: XmlList::Bare,
    members: BTreeMap::new(),
    items: None,
};

impl XmlBody {
    /// The value as a document in UTF-8.
    ///
    /// # Errors
    /// A message for the caller: a name or a text that XML cannot have, or too much nesting.
    pub(crate) fn render(&self, value: &Value) -> Result<String, String> {
        let mut writer = Writer { schema: &self.schema, out: r#"<?xml version="1.0" encoding="UTF-8"?>"#.to_owned() };
        let root = self.schema.nodes.get(self.schema.root).unwrap_or(&PLAIN);
        match value {
            // There is one root: what it lists is inside of it.
            Value::Array(items) => writer.wrapped(root, &self.root, items, 0)?,
            value => writer.element(root, root.name.as_deref().unwrap_or(&self.root), value, 0)?,
        }
        Ok(writer.out)
    }
}

struct Writer<'s> {
    schema: &'s XmlSchema,
    out: String,
}

impl Writer<'_> {
    /// A member of an object, or an item of a list: one element, or one for each item.
    fn value(&mut self, node: &XmlNode, name: &str, value: &Value, depth: usize) -> Result<(), String> {
        match (value, node.list) {
            (Value::Array(items), XmlList::Wrapped) => self.wrapped(node, name, items, depth),
            (Value::Array(items), XmlList::Bare) => self.items(node, name, items, depth),
            _ => self.element(node, node.name.as_deref().unwrap_or(name), value, depth),
        }
    }

    /// A list inside an element. Its items are named as the list is, unless they have a name of their own.
    fn wrapped(&mut self, node: &XmlNode, name: &str, items: &[Value], depth: usize) -> Result<(), String> {
        let name = node.name.as_deref().unwrap_or(name);
        let qualified = qualified(node, name)?;
        self.open(node, &qualified, None)?;
        self.out.push('>');
        self.items(node, name, items, depth + 1)?;
        self.close(&qualified);
        Ok(())
    }

    fn items(&mut self, node: &XmlNode, name: &str, items: &[Value], depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("the body nests deeper than {MAX_DEPTH} levels, which is not written as XML"));
        }
        let schema = self.schema;
        let item = node.items.and_then(|index| schema.nodes.get(index)).unwrap_or(&PLAIN);
        items.iter().filter(|item| !item.is_null()).try_for_each(|value| self.value(item, name, value, depth + 1))
    }

    fn element(&mut self, node: &XmlNode, name: &str, value: &Value, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("the body nests deeper than {MAX_DEPTH} levels, which is not written as XML"));
        }
        let name = qualified(node, name)?;
        let Value::Object(members) = value else {
            self.open(node, &name, None)?;
            self.out.push('>');
            if !value.is_null() {
                text(&mut self.out, &plain_text(value), Inside::Element)?;
            }
            self.close(&name);
            return Ok(());
        };
        self.open(node, &name, Some(members))?;
        let schema = self.schema;
        let known = |key: &String| node.members.get(key).and_then(|index| schema.nodes.get(*index)).unwrap_or(&PLAIN);
        let inside: Vec<(&String, &Value)> =
            members.iter().filter(|(key, value)| !value.is_null() && known(key).place == XmlPlace::Element).collect();
        if inside.is_empty() {
            self.out.push_str("/>");
            return Ok(());
        }
        self.out.push('>');
        for (key, value) in inside {
            self.value(known(key), key, value, depth + 1)?;
        }
        self.close(&name);
        Ok(())
    }

    /// The beginning of an element, with its namespace and the attributes among its members, up to its `>`.
    fn open(&mut self, node: &XmlNode, name: &str, members: Option<&Map<String, Value>>) -> Result<(), String> {
        let _ = write!(self.out, "<{name}");
        let (schema, mut declared) = (self.schema, Vec::new());
        self.declare(node, &mut declared)?;
        for (key, value) in members.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            let member = node.members.get(key).and_then(|index| schema.nodes.get(*index)).unwrap_or(&PLAIN);
            if member.place != XmlPlace::Attribute {
                continue;
            }
            if value.is_object() || value.is_array() {
                return Err(format!("`{key}` is written as an attribute, which holds one text or number"));
            }
            // One without a prefix is in no namespace (Namespaces in XML, section 6.2).
            if member.prefix.is_some() {
                self.declare(member, &mut declared)?;
            }
            let name = qualified(member, member.name.as_deref().unwrap_or(key))?;
            let _ = write!(self.out, " {name}=\"");
            text(&mut self.out, &plain_text(value), Inside::Attribute)?;
            self.out.push('"');
        }
        Ok(())
    }

    /// Declares the namespace of an element or attribute, once for each prefix.
    fn declare(&mut self, node: &XmlNode, declared: &mut Vec<Option<String>>) -> Result<(), String> {
        let Some(namespace) = node.namespace.as_deref().filter(|_| !declared.contains(&node.prefix)) else {
            return Ok(());
        };
        match &node.prefix {
            Some(prefix) => {
                let _ = write!(self.out, " xmlns:{prefix}=\"");
            }
            None => self.out.push_str(" xmlns=\""),
        }
        text(&mut self.out, namespace, Inside::Attribute)?;
        self.out.push('"');
        declared.push(node.prefix.clone());
        Ok(())
    }

    fn close(&mut self, name: &str) {
        let _ = write!(self.out, "</{name}>");
    }
}

/// A name with its prefix.
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

/// Whether XML takes this as a name, or as a prefix (Namespaces in XML 1.0, `NCName`).
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

/// What a text stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    Element,
    Attribute,
}

/// A text, so that it is read as it is.
fn text(out: &mut String, text: &str, inside: Inside) -> Result<(), String> {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            // `]]>` may not stand in a text.
            '>' => out.push_str("&gt;"),
            '"' if inside == Inside::Attribute => out.push_str("&quot;"),
            // Readers turn it into a line feed, and in an attribute white space into blanks.
            '\r' => out.push_str("&#13;"),
            '\n' | '\t' if inside == Inside::Attribute => {
                let _ = write!(out, "&#{};", u32::from(c));
            }
            '\n' | '\t' | '\u{20}'..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..='\u{10FFFF}' => out.push(c),
            other => return Err(format!("a text has the character U+{:04X}, which XML cannot have", u32::from(other))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(nodes: Vec<XmlNode>, root: &str) -> XmlBody {
        XmlBody { schema: Arc::new(XmlSchema { nodes, root: 0 }), root: root.to_owned() }
    }

    fn rendered(body: &XmlBody, value: &Value) -> String {
        let text = body.render(value).unwrap_or_else(|why| panic!("{value}: {why}"));
        text.strip_prefix(r#"<?xml version="1.0" encoding="UTF-8"?>"#).expect("a declaration").to_owned()
    }

    #[test]
    fn values_without_a_schema_are_elements_by_their_names() {
        for (value, expect) in [
            (json!("a<b>&\"\r"), "<r>a&lt;b&gt;&amp;\"&#13;</r>"),
            (json!({}), "<r/>"),
            (
                json!({"a": 1, "b": [true, null, "x"], "c": {"d": 1.5}, "e": null}),
                "<r><a>1</a><b>true</b><b>x</b><c><d>1.5</d></c></r>",
            ),
            (json!([1, {"a": 2}]), "<r><r>1</r><r><a>2</a></r></r>"),
        ] {
            assert_eq!(rendered(&body(Vec::new(), "r"), &value), expect);
        }
    }

    #[test]
    fn what_xml_cannot_have_is_refused_and_not_mended() {
        let mut deep = json!(1);
        for _ in 0..=MAX_DEPTH {
            deep = json!({"a": deep});
        }
        for (value, says) in [
            (json!({"a b": 1}), "`a b` cannot be the name"),
            (json!({"1": 1}), "`1`"),
            (json!({"a:b": 1}), "`a:b`"),
            (json!({"": 1}), "``"),
            (json!({"a": "\u{1}"}), "U+0001"),
            (json!("\u{FFFF}"), "U+FFFF"),
            (deep, "nests deeper"),
        ] {
            let why = body(Vec::new(), "r").render(&value).expect_err("refused");
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn an_attribute_is_one_text_and_declares_the_namespace_of_its_prefix() {
        let id = XmlNode { place: XmlPlace::Attribute, ..XmlNode::default() };
        let kind = XmlNode {
            place: XmlPlace::Attribute,
            name: Some("type".into()),
            namespace: Some("urn:k?a&b".into()),
            prefix: Some("k".into()),
            ..XmlNode::default()
        };
        let members = BTreeMap::from([("id".to_owned(), 1), ("kind".to_owned(), 2)]);
        let namespace = Some("urn:r".to_owned());
        let root = XmlNode { name: Some("thing".into()), namespace, members, ..XmlNode::default() };
        let body = body(vec![root, id, kind], "r");
        let value = json!({"id": 7, "kind": "a\"\n", "more": "x"});
        let expect =
            "<thing xmlns=\"urn:r\" id=\"7\" xmlns:k=\"urn:k?a&amp;b\" k:type=\"a&quot;&#10;\"><more>x</more></thing>";
        assert_eq!(rendered(&body, &value), expect);
        assert_eq!(rendered(&body, &json!({"id": null})), "<thing xmlns=\"urn:r\"/>");
        assert!(body.render(&json!({"id": [1]})).expect_err("a list").contains("attribute"));
    }
}
