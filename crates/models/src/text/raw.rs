//! Text after a marker that is the one argument of a tool: code for an interpreter, say.

use serde_json::json;

use super::block::{Step, View, call};
use super::grammar::Raw;
use super::scan::{Reach, Scan};
use super::typing::Schema;

/// The text is over only with the answer.
pub(super) fn step(form: &Raw, head: usize, view: View<'_>) -> Step {
    let Some(name) = form.tools.iter().find(|name| view.knows(name)) else { return Step::Fail };
    let text = view.text[head..].trim_ascii();
    if !view.ended {
        return Step::More;
    }
    if is_cut(text) {
        return Step::Fail;
    }
    let member = Schema::of_tool(view.tools, name).and_then(|schema| schema.members().first().copied());
    match member {
        Some(member) if !text.is_empty() => {
            Step::Done { len: view.text.len(), calls: vec![call(name, json!({ member: text }).to_string())] }
        }
        _ => Step::Fail,
    }
}

/// Whether brackets or texts in `code` are open: it ended before its end.
fn is_cut(code: &str) -> bool {
    let mut scan = Scan::code();
    loop {
        match scan.run(code) {
            Reach::More => return scan.is_open(),
            Reach::End(_) => {}
            // A comment.
            Reach::Watched(at) => {
                let line = code[at..].find('\n').unwrap_or(code.len() - at);
                (0..line).for_each(|_| scan.skip());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_was_cut_is_told_apart() {
        for (code, expect) in [
            ("print(1)", false),
            ("x = {'a': [1]}\nprint(x)  # it's done", false),
            ("print(", true),
            ("x = 'a", true),
            ("{\"name\": ", true),
        ] {
            assert_eq!(is_cut(code), expect, "{code}");
        }
    }
}
