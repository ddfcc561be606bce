//! JSON Pointers (RFC 6901): building them, and removing members.

use serde_json::Value;

/// Appends an escaped step to a pointer.
pub fn push(pointer: &mut String, step: &str) {
    pointer.push('/');
    if step.contains(['~', '/']) {
        pointer.push_str(&step.replace('~', "~0").replace('/', "~1"));
    } else {
        pointer.push_str(step);
    }
}

/// Decodes a step of a pointer.
#[must_use]
pub fn unescape(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// Removes the member at `pointer` from its object. Returns whether it existed.
pub(crate) fn remove_member(value: &mut Value, pointer: &str) -> bool {
    let Some((parent, name)) = pointer.rsplit_once('/') else { return false };
    let Some(Value::Object(members)) = value.pointer_mut(parent) else { return false };
    members.shift_remove(&unescape(name)).is_some()
}

/// Whether the pointer `inner` equals `outer` or lies below it.
pub(crate) fn is_within(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn path_steps_are_escaped_and_parsed() {
        let mut value = json!({"a/b": {"~c": 1, "d": 2}});
        let mut pointer = String::new();
        push(&mut pointer, "a/b");
        push(&mut pointer, "~c");
        assert!(remove_member(&mut value, &pointer) && !remove_member(&mut value, &pointer));
        assert!(!remove_member(&mut value, "") && !remove_member(&mut value, "/a~1b/d/e"));
        assert_eq!(value, json!({"a/b": {"d": 2}}));
        assert!(is_within("/a/b", "/a") && is_within("/a", "") && !is_within("/ab", "/a"));
    }
}
