//! Text after a marker that is the one argument of a tool: code for an interpreter, say.

use serde_json::json;

use super::block::{Step, View, call};
use super::grammar::Raw;
use super::typing::Schema;

/// The text is over only with the answer.
pub(super) fn step(form: &Raw, head: usize, view: View<'_>) -> Step {
    let Some(name) = form.tools.iter().find(|name| view.knows(name)) else { return Step::Fail };
    let text = view.text[head..].trim_ascii();
    if !view.ended {
        return Step::More;
    }
    let member = Schema::of_tool(view.tools, name).and_then(|schema| schema.members().first().copied());
    match member {
        Some(member) if !text.is_empty() => {
            Step::Done { len: view.text.len(), calls: vec![call(name, json!({ member: text }).to_string())] }
        }
        _ => Step::Fail,
    }
}
