//! The values of a session: a pure fold computes them from its log, and a copy in memory lets references be read without
//! waiting.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::identity::taint::Taint;
pub use crate::model::call_meta::Method;

/// A written value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WrittenValue {
    /// The path: names joined by dots. A name has no dot.
    pub path: String,
    /// The instance of a request over many inputs; `None` for all instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// How it is combined with the existing value.
    pub method: Method,
    /// The data. For a value that is a stored output, the log has only a note `{output}`.
    pub data: Value,
    /// The untrusted tools that it came from.
    #[serde(default, skip_serializing_if = "Taint::is_empty")]
    pub taint: Taint,
    /// The handle of the stored output that holds the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl WrittenValue {
    /// Sets a value for all instances.
    #[must_use]
    pub fn set(path: impl Into<String>, data: Value) -> Self {
        Self { path: path.into(), instance: None, method: Method::Set, data, taint: Taint::default(), output: None }
    }

    /// Deletes everything at and below a path, for all instances.
    #[must_use]
    pub fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::Delete, ..Self::set(path, Value::Null) }
    }
}

/// Whether `path` equals `above` or lies below it. Everything lies below the empty path.
#[must_use]
pub fn is_below(path: &str, above: &str) -> bool {
    above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the value at `path`, if any. `written` is in write order; entries for other paths are
/// ignored. An instance sees entries for it and for all; without an instance, only the latter. A name that
/// is a number can also be an array index.
///
/// The search runs from newest to oldest and ends at the first entry that replaces the whole value; later entries are
/// applied to it.
#[must_use]
pub fn fold<'a>(
    written: impl DoubleEndedIterator<Item = &'a WrittenValue>,
    path: &str,
    instance: Option<&str>,
) -> Option<Value> {
    fold_with_taint(written, path, instance).map(|(value, _)| value)
}

/// Like [`fold`], with the untrusted tools that contributed to the value.
#[must_use]
pub fn fold_with_taint<'a>(
    written: impl DoubleEndedIterator<Item = &'a WrittenValue>,
    path: &str,
    instance: Option<&str>,
) -> Option<(Value, Taint)> {
    let newest = deciding(written, path, instance);
    let (mut tree, taint) = (Map::new(), taint_of(&newest));
    for one in newest.into_iter().rev() {
        match one.method {
            Method::Delete => remove(&mut tree, &one.path),
            method => join(place(&mut tree, &one.path), method, &one.data),
        }
    }
    let (last, above) = names(path);
    let mut at = tree.get_mut(above.first().copied().unwrap_or(last))?;
    for name in above.into_iter().chain([last]).skip(1) {
        at = match at {
            Value::Object(members) => members.get_mut(name)?,
            Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    Some((at.take(), taint))
}

/// Returns the entries that determine the value at a path, newest first.
pub(super) fn deciding<'a>(
    written: impl DoubleEndedIterator<Item = &'a WrittenValue>,
    path: &str,
    instance: Option<&str>,
) -> Vec<&'a WrittenValue> {
    let is_visible = |one: &&WrittenValue| one.instance.is_none() || one.instance.as_deref() == instance;
    let near = |one: &&WrittenValue| is_below(&one.path, path) || is_below(path, &one.path);
    let mut newest = Vec::new();
    for one in written.rev().filter(is_visible).filter(near) {
        newest.push(one);
        if one.method.replaces() && is_below(path, &one.path) {
            break;
        }
    }
    newest
}

/// Returns the untrusted tools that these came from.
pub(super) fn taint_of(written: &[&WrittenValue]) -> Taint {
    let mut taint = Taint::default();
    written.iter().for_each(|one| taint.add(&one.taint));
    taint
}

/// A text as a name of a path: a name has no dot.
#[must_use]
pub fn encoded_name(text: &str) -> String {
    text.replace('~', "~0").replace('.', "~1")
}

/// The text that [`encoded_name`] made a name of.
#[must_use]
pub fn decoded_name(name: &str) -> String {
    name.replace("~1", ".").replace("~0", "~")
}

/// Returns the indices of entries, newest first, that no reader needs any more because a later entry of the same
/// instance replaced them.
#[must_use]
pub fn superseded_values<'a>(newest_first: impl Iterator<Item = (&'a str, Option<&'a str>, Method)>) -> Vec<usize> {
    let mut replaced: HashSet<(&str, Option<&str>)> = HashSet::new();
    let mut gone = Vec::new();
    for (index, (path, instance, method)) in newest_first.enumerate() {
        let dots = path.match_indices('.').map(|(at, _)| &path[..at]);
        if dots.chain(["", path]).any(|above| replaced.contains(&(above, instance))) {
            gone.push(index);
        } else if method.replaces() {
            replaced.insert((path, instance));
        }
    }
    gone
}

/// Splits a path into its last name and the names above it. The empty name is the root, so there is always one.
fn names(path: &str) -> (&str, Vec<&str>) {
    let mut names = vec![""];
    names.extend(path.split('.').filter(|name| !name.is_empty()));
    let last = names.pop().unwrap_or_default();
    (last, names)
}

/// Returns the place of a path, created if missing, before the first name that sorts after it: values of concurrent
/// calls have the same order whichever came first. Values above it that are no objects are replaced.
fn place<'a>(tree: &'a mut Map<String, Value>, path: &str) -> &'a mut Value {
    let (last, above) = names(path);
    let mut at = tree;
    for name in above {
        let value = member(at, name);
        if !value.is_object() {
            *value = Value::Object(Map::new());
        }
        match value {
            Value::Object(members) => at = members,
            other => return other,
        }
    }
    member(at, last)
}

fn member<'a>(members: &'a mut Map<String, Value>, name: &str) -> &'a mut Value {
    if !members.contains_key(name) {
        let place = members.keys().position(|other| other.as_str() > name).unwrap_or(members.len());
        members.shift_insert(place, name.to_owned(), Value::Null);
    }
    members.entry(name).or_insert(Value::Null)
}

fn remove(tree: &mut Map<String, Value>, path: &str) {
    let (last, above) = names(path);
    if let Some(at) = above.into_iter().try_fold(tree, |at, name| at.get_mut(name)?.as_object_mut()) {
        at.remove(last);
    }
}

/// Combines `data` with the existing value.
fn join(at: &mut Value, method: Method, data: &Value) {
    match (method, &mut *at, data) {
        (Method::Merge, Value::Object(_), Value::Object(_)) => merge(at, data),
        (Method::Assign, Value::Object(members), Value::Object(new)) => {
            members.extend(new.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        (Method::Push, Value::Array(items), _) => items.push(data.clone()),
        (Method::Push, Value::Null, _) => *at = Value::Array(vec![data.clone()]),
        (Method::Push, one, _) => *at = Value::Array(vec![one.take(), data.clone()]),
        (Method::Concat, Value::Array(items), Value::Array(new)) => items.extend(new.iter().cloned()),
        (Method::Concat, Value::String(text), Value::String(new)) => text.push_str(new),
        _ => *at = data.clone(),
    }
}

fn merge(at: &mut Value, data: &Value) {
    match (at, data) {
        (Value::Object(members), Value::Object(new)) => {
            for (name, value) in new {
                merge(members.entry(name).or_insert(Value::Null), value);
            }
        }
        (at, data) => *at = data.clone(),
    }
}

/// Root path of call outputs among the values of a session.
pub const STATE: &str = "state";
/// Root path of a session's notes.
pub const SCRATCH: &str = "scratch";

/// Returns the log path of a path below one of these roots.
#[must_use]
pub fn log_path(root: &str, path: &str) -> String {
    if path.is_empty() { root.to_owned() } else { format!("{root}.{path}") }
}

/// Bytes of a path.
const MAX_PATH: usize = 400;

/// Parses a path of the state, also written as a reference (`†state.a.b`): names joined by dots. `None`
/// if it is not a path.
#[must_use]
pub fn state_path(written: &str) -> Option<&str> {
    let path = written.trim();
    let path = path.strip_prefix("†state.").unwrap_or(path);
    let is_name = |name: &str| {
        !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || c.is_control() || "[]†|&".contains(c))
    };
    (path.len() <= MAX_PATH && path.split('.').all(is_name)).then_some(path)
}

/// Hears of the values of a session as they are written.
pub trait ValueWatcher: Send + Sync {
    /// A value was written under this number. Must not block. Numbers may come out of order, and more than once.
    fn written(&self, seq: u64, value: &WrittenValue);
}

/// The values of one session in log order, without superseded ones.
#[derive(Debug, Clone, Default)]
pub struct SessionValues {
    rows: Vec<(u64, WrittenValue)>,
}

impl SessionValues {
    /// Adds the value with this number, once.
    pub fn put(&mut self, seq: u64, value: WrittenValue) {
        // Deletions leave the surrounding objects, so they must be kept.
        let covers = |one: &WrittenValue, other: &WrittenValue| {
            one.method == Method::Set
                && is_below(&other.path, &one.path)
                && (one.instance.is_none() || one.instance == other.instance)
        };
        let Err(at) = self.rows.binary_search_by_key(&seq, |(seq, _)| *seq) else { return };
        if self.rows[at..].iter().any(|(_, later)| covers(later, &value)) {
            return;
        }
        if value.method == Method::Set {
            let mut index = 0;
            self.rows.retain(|(_, earlier)| {
                index += 1;
                index > at || !covers(&value, earlier)
            });
        }
        let at = self.rows.partition_point(|(earlier, _)| *earlier < seq);
        self.rows.insert(at, (seq, value));
    }

    /// Adds a value outside of any log, as the newest.
    pub fn push(&mut self, value: WrittenValue) {
        let next = self.rows.last().map_or(1, |(seq, _)| seq.saturating_add(1));
        self.put(next, value);
    }

    /// Returns the value at a path, and the untrusted tools that contributed to it.
    #[must_use]
    pub fn get(&self, path: &str, instance: Option<&str>) -> Option<(Value, Taint)> {
        fold_with_taint(self.rows.iter().map(|(_, value)| value), path, instance)
    }

    /// Returns the untrusted tools that contributed to a path, even if it has no value.
    #[must_use]
    pub fn taint(&self, path: &str, instance: Option<&str>) -> Taint {
        taint_of(&deciding(self.rows.iter().map(|(_, value)| value), path, instance))
    }

    /// The values, the oldest first, with their numbers.
    #[must_use]
    pub fn rows(&self) -> &[(u64, WrittenValue)] {
        &self.rows
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::identity::tool_id::ToolId;

    fn written(lines: &[(&str, &str, Value)]) -> Vec<WrittenValue> {
        let one = |(path, how, data): &(&str, &str, Value)| {
            let (how, instance) = how.split_once(' ').map_or((*how, None), |(how, one)| (how, Some(one.to_owned())));
            let method = Method::parse(how).expect("a method");
            WrittenValue { instance, method, ..WrittenValue::set(*path, data.clone()) }
        };
        lines.iter().map(one).collect()
    }

    #[test]
    fn values_fold_by_their_methods() {
        let check = |lines: &[(&str, &str, Value)], path: &str, expect: Option<Value>| {
            assert_eq!(fold(written(lines).iter(), path, None), expect, "{lines:?} at {path}");
        };
        check(&[], "a", None);
        check(&[("a", "set", json!(1)), ("a", "set", json!(2))], "a", Some(json!(2)));
        check(&[("a", "set", json!(null))], "a", Some(json!(null)));
        check(&[("a", "set", json!(1)), ("b", "set", json!(2))], "", Some(json!({"a": 1, "b": 2})));
        check(&[("a", "set", json!({"b": {"c": 1}}))], "a.b.c", Some(json!(1)));
        check(&[("a", "set", json!({"b": 1})), ("a.c", "set", json!(2))], "a", Some(json!({"b": 1, "c": 2})));
        check(&[("a.c", "set", json!(2)), ("a", "set", json!({"b": 1}))], "a.c", None);
        check(&[("a", "set", json!(1)), ("a.b", "set", json!(2))], "a", Some(json!({"b": 2})));
        check(&[("ab", "set", json!(1))], "a", None);
        let (old, new) = (json!({"x": {"y": 1}, "z": 1}), json!({"x": {"w": 2}}));
        check(
            &[("a", "set", old.clone()), ("a", "merge", new.clone())],
            "a",
            Some(json!({"x": {"y": 1, "w": 2}, "z": 1})),
        );
        check(&[("a", "set", old), ("a", "assign", new)], "a", Some(json!({"x": {"w": 2}, "z": 1})));
        check(&[("a", "merge", json!({"b": 1}))], "a", Some(json!({"b": 1})));
        check(&[("a", "push", json!(1)), ("a", "push", json!([2]))], "a", Some(json!([1, [2]])));
        check(&[("a", "set", json!("x")), ("a", "push", json!(2))], "a", Some(json!(["x", 2])));
        check(&[("a", "concat", json!([1])), ("a", "concat", json!([2, 3]))], "a", Some(json!([1, 2, 3])));
        check(&[("a", "concat", json!("x")), ("a", "concat", json!("y"))], "a", Some(json!("xy")));
        check(
            &[("a.b", "set", json!(1)), ("a.c", "set", json!(2)), ("a.b", "delete", json!(null))],
            "a",
            Some(json!({"c": 2})),
        );
        check(
            &[("a.b", "set", json!(1)), ("a", "delete", json!(null)), ("a.c", "push", json!(2))],
            "a",
            Some(json!({"c": [2]})),
        );
        check(&[("a.b", "set", json!(1)), ("a.b", "delete", json!(null))], "a.b", None);
    }

    #[test]
    fn an_instance_sees_own_and_shared_values() {
        let lines = written(&[("a", "set", json!(1)), ("b", "set x", json!(2)), ("a", "set y", json!(3))]);
        let read = |path, instance| fold(lines.iter(), path, instance);
        assert_eq!(read("", None), Some(json!({"a": 1})));
        assert_eq!(read("", Some("x")), Some(json!({"a": 1, "b": 2})));
        assert_eq!(read("a", Some("y")), Some(json!(3)));
    }

    #[test]
    fn replaced_values_are_found() {
        let check = |lines: &[(&str, &str, Value)], expect: &[usize]| {
            let lines = written(lines);
            let rows = lines.iter().rev().map(|one| (&*one.path, one.instance.as_deref(), one.method));
            assert_eq!(superseded_values(rows), expect, "{lines:?}");
        };
        let one = json!(1);
        check(&[("a", "set", one.clone()), ("a", "push", one.clone())], &[]);
        check(&[("a", "push", one.clone()), ("a", "set", one.clone())], &[1]);
        check(&[("a.b", "set", one.clone()), ("ab", "set", one.clone()), ("a", "delete", one.clone())], &[2]);
        check(&[("a", "set", one.clone()), ("a", "set x", one.clone()), ("", "delete", one)], &[2]);
    }

    fn any_value() -> impl Strategy<Value = WrittenValue> {
        let path = prop::sample::select(vec!["a", "a.b", "a.b.c", "a.d", "ab", "b", "a.b.0"]);
        let instance = prop::option::of(prop::sample::select(vec!["x", "y"]));
        let method = prop::sample::select(Method::ALL.to_vec());
        let data =
            prop::sample::select(vec![json!(1), json!("t"), json!([1, {"c": 2}]), json!({"b": {"c": 1}, "d": 2})]);
        (path, instance, method, data, any::<bool>()).prop_map(|(path, instance, method, data, bad)| WrittenValue {
            instance: instance.map(str::to_owned),
            method,
            taint: if bad { Taint::of(&ToolId::parse("web:get@1.0.0").expect("id")) } else { Taint::default() },
            ..WrittenValue::set(path, data)
        })
    }

    #[test]
    fn paths_are_names_joined_by_dots() {
        for (written, expect) in [
            ("user.name", Some("user.name")),
            (" †state.user ", Some("user")),
            ("a..b", None),
            ("", None),
            ("a b", None),
            ("†input.x", None),
            ("a || b", None),
        ] {
            assert_eq!(state_path(written), expect, "{written}");
        }
    }

    const READS: [&str; 8] = ["", "a", "a.b", "a.b.c", "a.d", "a.b.0", "ab", "b"];

    proptest! {
        /// Reads equal those of the whole log, in whatever order values arrive.
        #[test]
        fn values_read_as_the_whole_log(
            log in prop::collection::vec(any_value(), 0..12),
            order in Just((0..12).collect::<Vec<usize>>()).prop_shuffle(),
        ) {
            let mut values = SessionValues::default();
            for &at in order.iter().chain(&[0, 1]).filter(|at| **at < log.len()) {
                values.put(at as u64 + 1, log[at].clone());
            }
            for path in READS {
                for instance in [None, Some("x"), Some("y"), Some("z")] {
                    let expect = fold(log.iter(), path, instance);
                    prop_assert_eq!(values.get(path, instance).map(|(value, _)| value), expect, "{} {:?}", path, instance);
                }
            }
        }

        /// A mark that only untrusted values have is never read without their taint.
        #[test]
        fn untrusted_values_stay_tainted(log in prop::collection::vec(any_value(), 0..12)) {
            let mut values = SessionValues::default();
            for one in &log {
                let mark = if one.taint.is_empty() { "clean" } else { "bad" };
                values.push(WrittenValue { data: json!({"b": mark, "c": [one.data, mark]}), ..one.clone() });
            }
            for path in READS {
                for instance in [None, Some("x"), Some("y")] {
                    let Some((value, taint)) = values.get(path, instance) else { continue };
                    prop_assert!(!value.to_string().contains("bad") || !taint.is_empty(), "{}: {}", path, value);
                    prop_assert!(log.iter().any(|one| !one.taint.is_empty()) || taint.is_empty());
                }
            }
        }
    }
}
