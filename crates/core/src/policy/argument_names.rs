//! What arguments call things: the names in them at any depth, and which switches are on.

use std::sync::Arc;

use cel::Value;
use cel::objects::Key;

/// The names of all members in a value.
pub(super) fn names(value: &Value) -> Value {
    let mut found = Vec::new();
    visit(value, &mut |name, _| found.push(name.to_owned()));
    list(found)
}

/// The members that are true or false, written `name=true` and `name=false`.
pub(super) fn switches(value: &Value) -> Value {
    let mut found = Vec::new();
    visit(value, &mut |name, member| {
        if let Value::Bool(on) = member {
            found.push(format!("{name}={on}"));
        }
    });
    list(found)
}

fn list(mut found: Vec<String>) -> Value {
    found.sort_unstable();
    Value::List(Arc::new(found.into_iter().map(Value::from).collect()))
}

/// Calls `see` with each member. Values are no deeper than what made them allows.
fn visit(value: &Value, see: &mut dyn FnMut(&str, &Value)) {
    match value {
        Value::List(items) => items.iter().for_each(|item| visit(item, see)),
        Value::Map(members) => {
            for (key, member) in members.map.iter() {
                if let Key::String(name) = key {
                    see(name, member);
                }
                visit(member, see);
            }
        }
        _ => {}
    }
}
