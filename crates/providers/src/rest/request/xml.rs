//! Writes values as XML, by the names in a document (OpenAPI 3.0 to 3.2, "XML Object").
//!
//! By default there is an element for each member, with the member's name, and one for each item, with the list's name.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::xml_writer::Writer;

pub(crate) use super::xml_writer::is_name;

/// The XML forms of a body's schemas. They refer to each other by number, possibly in cycles.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct XmlSchema {
    /// The schemas.
    pub(crate) nodes: Vec<XmlNode>,
    /// The schema of the whole body.
    pub(crate) root: usize,
}

/// The XML form of one schema's values.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct XmlNode {
    /// The name of its element or attribute, if it differs from the member's.
    pub(crate) name: Option<String>,
    /// Its namespace.
    pub(crate) namespace: Option<String>,
    /// Its namespace prefix.
    pub(crate) prefix: Option<String>,
    /// The place in the XML.
    pub(crate) place: XmlPlace,
    /// Whether a list has an element around its items.
    pub(crate) list: XmlList,
    /// The known members, by name.
    pub(crate) members: BTreeMap<String, usize>,
    /// The items of a list.
    pub(crate) items: Option<usize>,
}

/// The place of a value in the XML.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum XmlPlace {
    /// In an element.
    #[default]
    Element,
    /// In an attribute of the enclosing element.
    Attribute,
    /// As the text of the enclosing element.
    Text,
}

/// The form of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum XmlList {
    /// Items without an enclosing element.
    #[default]
    Bare,
    /// Items in an enclosing element.
    Wrapped,
}

/// An XML body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct XmlBody {
    pub(crate) schema: Arc<XmlSchema>,
    /// The name of the root, if the document has none.
    pub(crate) root: String,
}

/// The default form of a schema.
pub(super) static PLAIN: XmlNode = XmlNode {
    name: None,
    namespace: None,
    prefix: None,
    place: XmlPlace::Element,
    list: XmlList::Bare,
    members: BTreeMap::new(),
    items: None,
};

impl XmlBody {
    /// Renders the value as a document in UTF-8.
    ///
    /// # Errors
    /// A message for the caller: the value contains something that XML cannot have, or that could not be read back.
    pub(crate) fn render(&self, value: &Value) -> Result<String, String> {
        let mut writer = Writer::new(&self.schema);
        let root = self.schema.nodes.get(self.schema.root).unwrap_or(&PLAIN);
        match value {
            // There is only one root, so a list's items are inside it.
            Value::Array(items) => writer.wrapped(root, &self.root, items, 0)?,
            value => writer.element(root, root.name.as_deref().unwrap_or(&self.root), value, 0)?,
        }
        Ok(writer.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::request::xml_writer::MAX_DEPTH;
    use serde_json::json;

    fn body(nodes: Vec<XmlNode>, root: &str) -> XmlBody {
        XmlBody { schema: Arc::new(XmlSchema { nodes, root: 0 }), root: root.to_owned() }
    }

    fn rendered(body: &XmlBody, value: &Value) -> String {
        let text = body.render(value).unwrap_or_else(|why| panic!("{value}: {why}"));
        text.strip_prefix(r#"<?xml version="1.0" encoding="UTF-8"?>"#).expect("a declaration").to_owned()
    }

    #[test]
    fn values_without_schema_become_named_elements() {
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
    fn invalid_xml_is_refused_not_repaired() {
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
    fn attributes_are_texts_and_declare_their_namespace() {
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
            // A declaration in one element applies only inside it.
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
    fn written_xml_reads_back_by_its_schema() {
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
        // An empty bare list has no element, because a reader would take that for an item.
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
