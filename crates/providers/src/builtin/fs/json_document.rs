//! A JSON text that is changed in place: unchanged parts keep their order, formatting and comments. Pure.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstArray, CstInputValue, CstNode, CstObject, CstRootNode};
use serde_json::Value;
use toolwright_core::pattern::nearest;
use toolwright_core::pointer;

/// The most member names that an error lists.
const MAX_NAMED: usize = 30;

/// Allows comments and trailing commas, which editors write into settings, but no other deviations from JSON.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_loose_object_property_names: false,
    allow_trailing_commas: true,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// A parsed text.
pub(super) struct Document {
    root: CstRootNode,
    has_bom: bool,
    /// The separator after commas, if all members of the document are on one line.
    one_line: Option<&'static str>,
}

/// A change at a place.
pub(super) enum Change<'v> {
    /// Sets the value; adds a member, or an element just past the end.
    Set(&'v Value),
    /// Inserts an element before the existing one.
    Insert(&'v Value),
    Remove,
}

impl Document {
    /// Parses a text.
    ///
    /// # Errors
    /// The position and reason why the text is not JSON.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (has_bom, text) = text.strip_prefix('\u{feff}').map_or((false, text), |text| (true, text));
        let root = CstRootNode::parse(text, &OPTIONS).map_err(|error| error.to_string())?;
        if root.value().is_none() {
            return Err("it is empty".to_owned());
        }
        let body = text.trim();
        let is_one_line = !body.contains('\n')
            && !matches!(root.to_serde_value(), Some(Value::Object(members)) if members.is_empty());
        let one_line = is_one_line.then(|| if body.contains(": ") || body.contains(", ") { " " } else { "" });
        Ok(Self { root, has_bom, one_line })
    }

    pub(super) fn text(&self) -> String {
        let bom = if self.has_bom { "\u{feff}" } else { "" };
        let text = self.root.to_string();
        let body = text.trim();
        // The only line breaks are those around the addition.
        match self.one_line.filter(|_| body.contains('\n')) {
            None => format!("{bom}{text}"),
            Some(gap) => {
                let mut line = String::with_capacity(body.len());
                for piece in body.lines() {
                    let gap = if line.ends_with(',') { gap } else { "" };
                    line.extend([gap, piece.trim_start()]);
                }
                format!("{bom}{}", text.replacen(body, &line, 1))
            }
        }
    }

    pub(super) fn value(&self) -> Value {
        self.root.to_serde_value().unwrap_or_default()
    }

    pub(super) fn object(&self) -> Option<CstObject> {
        self.root.object_value()
    }

    /// Returns the value at a place.
    ///
    /// # Errors
    /// How far the path exists, and what is there.
    pub(super) fn find(&self, steps: &[String]) -> Result<CstNode, String> {
        let mut node = self.root.value().ok_or("it is empty")?;
        let mut place = String::new();
        for step in steps {
            node = child(&node, step).ok_or_else(|| missing(&node, &place, step))?;
            pointer::push(&mut place, step);
        }
        Ok(node)
    }

    /// Changes the text.
    ///
    /// # Errors
    /// Why the change does not fit. The text must then be discarded.
    pub(super) fn change(&self, steps: &[String], change: &Change<'_>) -> Result<(), String> {
        let Some((last, above)) = steps.split_last() else {
            return match change {
                Change::Set(value) => {
                    match self.root.value() {
                        Some(node) => assign(node, value),
                        None => self.root.set_value(input(value)),
                    }
                    Ok(())
                }
                Change::Insert(_) | Change::Remove => Err("the whole document can only be set".to_owned()),
            };
        };
        let place = || {
            let mut place = String::new();
            above.iter().for_each(|step| pointer::push(&mut place, step));
            place
        };
        let parent = self.find(above)?;
        match change {
            Change::Set(value) => match (child(&parent, last), parent.as_object(), parent.as_array()) {
                (Some(node), ..) => assign(node, value),
                (None, Some(object), _) => drop(object.append(last, input(value))),
                (None, _, Some(array)) if is_end(&array, last) => drop(array.append(input(value))),
                _ => return Err(missing(&parent, &place(), last)),
            },
            Change::Insert(value) => {
                let array = parent.as_array().ok_or_else(|| format!("`{}` is no array: use set", place()))?;
                let length = array.elements().len();
                let at = if last == "-" { Some(length) } else { index(last).filter(|&at| at <= length) };
                drop(array.insert(at.ok_or_else(|| missing(&parent, &place(), last))?, input(value)));
            }
            Change::Remove => match (parent.as_object().and_then(|object| object.get(last)), child(&parent, last)) {
                (Some(member), _) => member.remove(),
                (None, Some(element)) => element.remove(),
                (None, None) => return Err(missing(&parent, &place(), last)),
            },
        }
        Ok(())
    }
}

/// Returns a value with the same change, for comparison.
pub(super) fn changed(mut value: Value, steps: &[String], change: &Change<'_>) -> Option<Value> {
    let Some((last, above)) = steps.split_last() else {
        return match change {
            Change::Set(new) => Some((*new).clone()),
            _ => None,
        };
    };
    let mut parent = &mut value;
    for step in above {
        parent = match parent {
            Value::Object(members) => members.get_mut(step)?,
            Value::Array(elements) => elements.get_mut(index(step)?)?,
            _ => return None,
        };
    }
    match (parent, change) {
        (Value::Object(members), Change::Set(new)) => drop(members.insert(last.clone(), (*new).clone())),
        (Value::Object(members), Change::Remove) => drop(members.shift_remove(last)?),
        (Value::Array(elements), change) => {
            let at = if last == "-" { elements.len() } else { index(last)? };
            match change {
                Change::Set(new) if at == elements.len() => elements.push((*new).clone()),
                Change::Set(new) => *elements.get_mut(at)? = (*new).clone(),
                Change::Insert(new) if at <= elements.len() => elements.insert(at, (*new).clone()),
                Change::Remove if at < elements.len() => drop(elements.remove(at)),
                _ => return None,
            }
        }
        _ => return None,
    }
    Some(value)
}

/// Parses a JSON Pointer (`/a/0/b`) or a path (`a[0].b`, `$.a["x.y"]`) into steps.
///
/// # Errors
/// Why it is neither.
pub(super) fn steps(written: &str) -> Result<Vec<String>, String> {
    if let Some(rest) = written.strip_prefix('/') {
        return Ok(rest.split('/').map(pointer::unescape).collect());
    }
    let wrong = |why: &str| format!("`{written}` is neither a JSON Pointer (`/a/0/b`) nor a path (`a[0].b`): {why}");
    let mut rest = written.strip_prefix('$').unwrap_or(written);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (step, after) = match inner.chars().next() {
                Some(quote @ ('"' | '\'')) => {
                    let inner = &inner[1..];
                    let end = inner.find(quote).ok_or_else(|| wrong("a quote is not closed"))?;
                    (&inner[..end], &inner[end + 1..])
                }
                _ => inner.split_at(inner.find(']').ok_or_else(|| wrong("a bracket is not closed"))?),
            };
            steps.push(step.to_owned());
            rest = after.strip_prefix(']').ok_or_else(|| wrong("a bracket is not closed"))?;
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            if end == 0 {
                return Err(wrong("a name is empty"));
            }
            steps.push(name[..end].to_owned());
            rest = &name[end..];
        }
    }
    Ok(steps)
}

/// Parses an element's number: no sign, no leading zero.
fn index(step: &str) -> Option<usize> {
    let is_plain = step == "0" || !step.starts_with(['0', '+']);
    is_plain.then(|| step.parse().ok()).flatten()
}

fn is_end(array: &CstArray, step: &str) -> bool {
    step == "-" || index(step) == Some(array.elements().len())
}

fn child(node: &CstNode, step: &str) -> Option<CstNode> {
    if let Some(object) = node.as_object() {
        return object.get(step)?.value();
    }
    node.as_array()?.elements().into_iter().nth(index(step)?)
}

fn missing(node: &CstNode, place: &str, step: &str) -> String {
    let place = if place.is_empty() { "the document".to_owned() } else { format!("`{place}`") };
    if let Some(object) = node.as_object() {
        let names: Vec<String> = object.properties().iter().filter_map(|member| member.decoded_name()).collect();
        let listed: Vec<_> = names.iter().take(MAX_NAMED).map(|name| format!("`{name}`")).collect();
        let near = nearest(step, names.iter().map(String::as_str));
        let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        return format!(
            "{place} has no member `{step}`, but {}{near}",
            if listed.is_empty() { "none".into() } else { listed.join(", ") }
        );
    }
    match node.as_array() {
        Some(array) => format!("{place} has no element `{step}`: it has {}, counted from 0", array.elements().len()),
        None => format!("{place} is neither an object nor an array, so it has no `{step}`"),
    }
}

/// Sets a node to the value, and changes only what differs.
fn assign(node: CstNode, value: &Value) {
    if node.to_serde_value().as_ref() == Some(value) {
        return;
    }
    match (value, node.as_object(), node.as_array()) {
        (Value::Object(members), Some(object), _) => {
            for member in object.properties() {
                if member.decoded_name().is_none_or(|name| !members.contains_key(&name)) {
                    member.remove();
                }
            }
            for (name, value) in members {
                match object.get(name).and_then(|member| member.value()) {
                    Some(node) => assign(node, value),
                    None => drop(object.append(name, input(value))),
                }
            }
        }
        (Value::Array(values), _, Some(array)) => assign_elements(&array, values),
        _ => replace(node, value),
    }
}

/// Equal elements at both ends stay; those between are assigned, added or removed.
fn assign_elements(array: &CstArray, values: &[Value]) {
    let old: Vec<Option<Value>> = array.elements().iter().map(CstNode::to_serde_value).collect();
    let is_same = |(old, new): &(&Option<Value>, &Value)| old.as_ref() == Some(*new);
    let head = old.iter().zip(values).take_while(is_same).count();
    let room = old.len().min(values.len()) - head;
    let tail = old.iter().rev().zip(values.iter().rev()).take(room).take_while(is_same).count();
    let (old_end, new_end) = (old.len() - tail, values.len() - tail);
    let elements = array.elements();
    for (node, value) in elements[head..old_end].iter().zip(&values[head..new_end]) {
        assign(node.clone(), value);
    }
    for (at, value) in values.iter().enumerate().take(new_end).skip(old_end.max(head)) {
        array.insert(at, input(value));
    }
    elements.into_iter().take(old_end).skip(new_end.max(head)).for_each(CstNode::remove);
}

pub(super) fn replace(node: CstNode, value: &Value) {
    let value = input(value);
    if let Some(node) = node.as_object() {
        node.replace_with(value);
    } else if let Some(node) = node.as_array() {
        node.replace_with(value);
    } else if let Some(node) = node.as_string_lit() {
        node.replace_with(value);
    } else if let Some(node) = node.as_number_lit() {
        node.replace_with(value);
    } else if let Some(node) = node.as_boolean_lit() {
        node.replace_with(value);
    } else if let Some(node) = node.as_null_keyword() {
        node.replace_with(value);
    }
}

pub(super) fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(values) => CstInputValue::Array(values.iter().map(input).collect()),
        Value::Object(members) => {
            CstInputValue::Object(members.iter().map(|(name, value)| (name.clone(), input(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn places_are_pointers_or_paths() {
        for (written, expect) in [
            ("", Some(vec![])),
            ("$", Some(vec![])),
            ("/a/0/b~1c", Some(vec!["a", "0", "b/c"])),
            ("/", Some(vec![""])),
            ("a.b", Some(vec!["a", "b"])),
            ("$.a[0]['x.y'].z", Some(vec!["a", "0", "x.y", "z"])),
            ("[1][\"b]\"]", Some(vec!["1", "b]"])),
            ("a..b", None),
            ("a[0", None),
            ("a['b]", None),
        ] {
            let found = steps(written).ok();
            assert_eq!(found, expect.map(|steps| steps.into_iter().map(str::to_owned).collect()), "{written}");
        }
    }

    fn check(before: &str, place: &str, change: Change<'_>, expect: Result<&str, &str>) {
        let document = Document::parse(before).expect(before);
        let steps = steps(place).expect(place);
        let wanted = changed(document.value(), &steps, &change);
        match (document.change(&steps, &change), expect) {
            (Ok(()), Ok(after)) => {
                assert_eq!(document.text(), after, "{place}");
                assert_eq!(Some(Document::parse(after).expect(after).value()), wanted, "{place}");
            }
            (Err(error), Err(words)) => assert!(error.contains(words), "{error}"),
            (result, _) => panic!("{before} {place}: {result:?}"),
        }
    }

    #[test]
    fn changes_touch_nothing_else() {
        use Change::{Insert, Remove, Set};
        let text = "\u{feff}{\n  // kept\n  \"b\":  {\"x\": [1,2,  3]},\n  \"a\": 1.50,\n}\n";
        check(text, "/a", Set(&json!(2)), Ok(&text.replace("1.50", "2")));
        check(text, "b.x[1]", Set(&json!("y")), Ok(&text.replace(",2,", ",\"y\",")));
        check(text, "/b/x", Set(&json!([1, 2, 4])), Ok(&text.replace("  3]", "  4]")));
        check(text, "/b/x/-", Set(&json!(4)), Ok(&text.replace("  3]", "  3, 4]")));
        check(text, "/c", Set(&json!(null)), Ok(&text.replace("1.50,\n", "1.50,\n  \"c\": null,\n")));
        check(text, "/a", Remove, Ok(&text.replace("  \"a\": 1.50,\n", "")));
        check(text, "/b/x/0", Remove, Ok(&text.replace("[1,2,", "[2,")));
        check(text, "/b/x/0", Insert(&json!(0)), Ok(&text.replace("[1,2", "[0, 1,2")));
        check(
            text,
            "/b",
            Set(&json!({"x": [1, 2, 3], "y": 1})),
            Ok(&text.replace("{\"x\": [1,2,  3]}", "{\n    \"x\": [1,2,  3],\n    \"y\": 1\n  }")),
        );
        check("{\"a\":1}", "", Set(&json!({"a": 2})), Ok("{\"a\":2}"));
        // A document on one line stays on one line.
        check("{\"a\":[1]}\n", "/b", Set(&json!({"c": [1, 2]})), Ok("{\"a\":[1],\"b\": {\"c\": [1, 2]}}\n"));
        check("[{\"a\": 1}, 2]", "/0/b", Set(&json!([3, 4])), Ok("[{\"a\": 1, \"b\": [3, 4]}, 2]"));
        check("{}", "/a", Set(&json!(1)), Ok("{\n  \"a\": 1\n}"));
        check("[\r\n\t1\r\n]\r\n", "/1", Set(&json!(2)), Ok("[\r\n\t1,\r\n\t2\r\n]\r\n"));
        check("[1]", "", Set(&json!("x")), Ok("\"x\""));
        check(text, "/aa", Remove, Err("has no member `aa`, but `b`, `a`; did you mean `a`?"));
        check(text, "/b/x/9", Set(&json!(1)), Err("no element `9`: it has 3"));
        check(text, "/a/b", Set(&json!(1)), Err("`/a` is neither"));
        check(text, "/b/y/z", Set(&json!(1)), Err("`/b` has no member `y`"));
        check(text, "/b/k", Insert(&json!(1)), Err("is no array"));
    }

    #[test]
    fn invalid_json_is_refused() {
        for text in ["", "{a: 1}", "{'a': 1}", "[1 2]", "{\"a\": 0x1}", "{\"a\":"] {
            assert!(Document::parse(text).is_err(), "{text}");
        }
        assert!(Document::parse(&"[".repeat(100_000)).is_err());
    }
}
