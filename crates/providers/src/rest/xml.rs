//! Values as XML, by the names that a document gives them (OpenAPI 3.0 to 3.2, "XML Object").
//!
//! Without a word of the document: an element for each member, named as it is, and one for each item, named as the list.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::template::plain_text;

/// Elements inside one another.
const MAX_DEPTH: usize = 64;
/// What the prefixes `xml` and `xmlns` stand for, and no other (Namespaces in XML 1.0, section 3).
const XML: &str = "http://www.w3.org/XML/1998/namespace";
const XMLNS: &str = "http://www.w3.org/2000/xmlns/";

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
    /// As the text of the element around it.
    Text,
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
    /// A message for the caller: what XML cannot have, or what a reader could not give back as it was.
    pub(crate) fn render(&self, value: &Value) -> Result<String, String> {
        let out = r#"<?xml version="1.0" encoding="UTF-8"?>"#.to_owned();
        let mut writer = Writer { schema: &self.schema, out, scope: Vec::new() };
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
    /// The prefixes that the elements around declare, and what they stand for.
    scope: Vec<(Option<&'s str>, &'s str)>,
}

impl<'s> Writer<'s> {
    /// A member of an object, or an item of a list: one element, or one for each item.
    fn value(&mut self, node: &'s XmlNode, name: &str, value: &Value, depth: usize) -> Result<(), String> {
        match (value, node.list) {
            (Value::Array(items), XmlList::Wrapped) => self.wrapped(node, name, items, depth),
            (Value::Array(items), XmlList::Bare) => self.items(node, name, items, depth),
            _ => self.element(node, node.name.as_deref().unwrap_or(name), value, depth),
        }
    }

    /// A list inside an element. Its items are named as the list is, unless they have a name of their own.
    fn wrapped(&mut self, node: &'s XmlNode, name: &str, items: &[Value], depth: usize) -> Result<(), String> {
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
            // The end of one could not be told from the beginning of the next.
            if value.is_array() && item.list == XmlList::Bare {
                return Err(format!("`{name}` is a list of lists, which is not written as XML without `xml.wrapped`"));
            }
            self.value(item, name, value, depth + 1)?;
        }
        Ok(())
    }

    fn element(&mut self, node: &'s XmlNode, name: &str, value: &Value, depth: usize) -> Result<(), String> {
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
            text(&mut self.out, &plain_text(value), Inside::Element)?;
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
                text(&mut self.out, &plain_text(value), Inside::Element)?;
            }
            [(key, _), ..] => {
                return Err(format!("`{key}` is written as the text of an element, which then holds nothing else"));
            }
        }
        let mut names = HashSet::new();
        for (key, value) in inside {
            let member = known(key);
            // Of two alike nobody could tell which is which, or that they are no list.
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

    /// The elements that a member is written as: whose they are, and their name. None where it is written as none.
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

    /// The beginning of an element, with its namespace and the attributes among its members, up to its `>`; gives how much
    /// of the scope is that of the elements around it.
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
            // One without a prefix is in no namespace (Namespaces in XML, section 6.2).
            if member.prefix.is_some() {
                self.declare(member, outer)?;
            }
            attributes.push((member, member.name.as_deref().unwrap_or(key), value));
        }
        self.namespace(node)?;
        let mut names = HashSet::new();
        for (member, name, value) in attributes {
            // To readers it is the declaration of a namespace.
            if member.prefix.is_none() && name == "xmlns" {
                return Err("`xmlns` cannot be the name of an attribute".into());
            }
            if !names.insert((self.namespace(member)?, name)) {
                return Err(format!("its document writes two attributes named `{name}` in one element"));
            }
            let _ = write!(self.out, " {}=\"", qualified(member, name)?);
            text(&mut self.out, &plain_text(value), Inside::Attribute)?;
            self.out.push('"');
        }
        Ok(outer)
    }

    /// Declares the namespace of an element or attribute, once for each prefix. The scope up to `outer` is that of the
    /// elements around it.
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
        text(&mut self.out, namespace, Inside::Attribute)?;
        self.out.push('"');
        self.scope.push((prefix, namespace));
        Ok(())
    }

    /// What the prefix of an element or attribute stands for.
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

    /// The end of an element, and of what it declares.
    fn close(&mut self, name: &str, outer: usize) {
        let _ = write!(self.out, "</{name}>");
        self.scope.truncate(outer);
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
                json!({"a": 1, "b": [true, "x"], "c": {"d": 1.5}, "e": null}),
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
            "<thing xmlns=\"urn:r\" xmlns:k=\"urn:k?a&amp;b\" id=\"7\" k:type=\"a&quot;&#10;\"><more>x</more></thing>";
        assert_eq!(rendered(&body, &value), expect);
        assert_eq!(rendered(&body, &json!({"id": null})), "<thing xmlns=\"urn:r\"/>");
        assert!(body.render(&json!({"id": [1]})).expect_err("a list").contains("attribute"));
    }

    #[test]
    fn values_that_xml_would_lose_are_refused() {
        let named = |name: &str| XmlNode { name: Some(name.into()), ..XmlNode::default() };
        let attribute = |name: &str| XmlNode { place: XmlPlace::Attribute, ..named(name) };
        let prefixed = |prefix: &str, namespace: Option<&str>, node: XmlNode| XmlNode {
            prefix: Some(prefix.into()),
            namespace: namespace.map(str::to_owned),
            ..node
        };
        let plain = || vec![XmlNode::default()];
        let as_text = || XmlNode { place: XmlPlace::Text, ..XmlNode::default() };
        let with = |a: XmlNode, b: XmlNode| {
            let members = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
            vec![XmlNode { members, ..XmlNode::default() }, a, b]
        };
        let wrapped_of_bare = || {
            let members = BTreeMap::from([("a".to_owned(), 1)]);
            let list = XmlNode { list: XmlList::Wrapped, ..XmlNode::default() };
            vec![XmlNode { members, ..XmlNode::default() }, list]
        };
        let both = || json!({"a": 1, "b": 2});
        for (nodes, value, says) in [
            (plain(), json!({"b": [true, null]}), "null among the items of `b`"),
            (plain(), json!([null]), "null among the items of `r`"),
            (plain(), json!({"b": [[1, 2], [3]]}), "`b` is a list of lists"),
            (plain(), json!([[]]), "`r` is a list of lists"),
            (wrapped_of_bare(), json!({"a": [[1], [2]]}), "`a` is a list of lists"),
            (with(prefixed("p", None, named("x")), named("b")), both(), "prefix `p` has no namespace"),
            (with(prefixed("p", None, attribute("x")), named("b")), both(), "prefix `p` has no namespace"),
            // What one element declares holds inside of it alone.
            (with(prefixed("p", Some("urn:p"), named("a")), prefixed("p", None, named("b"))), both(), "prefix `p`"),
            (with(attribute("x"), attribute("x")), both(), "two attributes named `x`"),
            (with(named("x"), named("x")), both(), "two members as elements named `x`"),
            (with(named("b"), XmlNode::default()), both(), "two members as elements named `b`"),
            (with(named("b"), XmlNode::default()), json!({"a": 1, "b": [2]}), "two members as elements named `b`"),
            (with(as_text(), named("b")), both(), "`a` is written as the text"),
            (with(as_text(), as_text()), both(), "`a` is written as the text"),
            (with(as_text(), attribute("b")), json!({"a": [1]}), "`a` is written as the text"),
            (
                with(prefixed("p", Some("urn:p"), attribute("x")), prefixed("q", Some("urn:p"), attribute("x"))),
                both(),
                "two attributes named `x`",
            ),
            (
                with(prefixed("p", Some("urn:p"), attribute("x")), prefixed("p", Some("urn:q"), attribute("y"))),
                both(),
                "prefix `p` stands for two namespaces",
            ),
            (with(attribute("xmlns"), named("b")), both(), "`xmlns`"),
            (with(prefixed("xmlns", Some("urn:p"), named("a")), named("b")), both(), "`xmlns`"),
            (with(prefixed("xml", Some("urn:p"), named("a")), named("b")), both(), "prefix `xml`"),
        ] {
            let why = body(nodes, "r").render(&value).map_err(|why| (why.contains(says), why));
            assert!(matches!(why, Err((true, _))), "{value}, {says}: {why:?}");
        }
    }

    #[test]
    fn what_a_reader_gives_back_by_the_schema_is_written() {
        let list = XmlNode { list: XmlList::Wrapped, ..XmlNode::default() };
        let nested = XmlNode { items: Some(0), ..list.clone() };
        let named = |name: &str, place: XmlPlace| XmlNode { name: Some(name.into()), place, ..XmlNode::default() };
        let members = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let both = vec![
            XmlNode { members, ..XmlNode::default() },
            named("x", XmlPlace::Attribute),
            named("x", XmlPlace::Element),
        ];
        assert_eq!(rendered(&body(both, "r"), &json!({"a": 1, "b": 2})), "<r x=\"1\"><x>2</x></r>");
        // A bare list of nothing is no element, which is what a reader takes for one.
        assert_eq!(rendered(&body(Vec::new(), "r"), &json!({"b": []})), "<r></r>");
        assert_eq!(rendered(&body(vec![list, nested.clone()], "r"), &json!([])), "<r></r>");
        assert_eq!(rendered(&body(vec![nested], "r"), &json!([[[]], []])), "<r><r><r></r></r><r></r></r>");
        let lang = XmlNode { place: XmlPlace::Attribute, prefix: Some("xml".into()), ..XmlNode::default() };
        let inner = XmlNode { prefix: Some("p".into()), ..XmlNode::default() };
        let members = BTreeMap::from([("lang".to_owned(), 1), ("in".to_owned(), 2)]);
        let outer = XmlNode { namespace: Some("urn:p".into()), members, ..inner.clone() };
        let value = json!({"lang": "de", "in": 1});
        let expect = "<p:r xmlns:p=\"urn:p\" xml:lang=\"de\"><p:in>1</p:in></p:r>";
        assert_eq!(rendered(&body(vec![outer, lang, inner], "r"), &value), expect);
    }
}
