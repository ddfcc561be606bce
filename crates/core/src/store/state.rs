//! The values of one session in memory, so that references are read without waiting.

use serde_json::Value;

use super::values::{Method, WrittenValue, deciding, fold_with_taint, is_below, taint_of};
use crate::identity::taint::Taint;

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
/// if it is no path.
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

    use super::super::values::fold;
    use super::*;
    use crate::identity::tool_id::ToolId;

    fn written() -> impl Strategy<Value = WrittenValue> {
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
            log in prop::collection::vec(written(), 0..12),
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
        fn untrusted_values_are_never_read_clean(log in prop::collection::vec(written(), 0..12)) {
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
