//! Text after a marker that is the one argument of a tool: code for an interpreter, say.

use serde_json::json;

use super::scan::{Begins, Reach, Scan, begins};
use super::typing::Schema;
use super::{Step, Trust, View, call};
use crate::format::Raw;

/// How far it has been read.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Where the end is looked for.
    search: usize,
}

impl Block {
    /// How far it has been read.
    pub(crate) fn reach(&self) -> usize {
        self.search
    }

    /// The text is over where the next piece begins, or with the answer.
    pub(crate) fn step(&mut self, form: &Raw, head: usize, view: View<'_>) -> Step {
        let (name, start) = match tool(form, head, view) {
            Ok(found) => found,
            Err(step) => return step,
        };
        let bytes = view.text.as_bytes();
        let from = self.search.max(start).min(bytes.len());
        let until = form.until.and_then(|until| memchr::memmem::find(&bytes[from..], until.as_bytes()));
        let end = match until {
            Some(at) => from + at,
            None if !view.ended => {
                self.search = (bytes.len() + 1).saturating_sub(form.until.map_or(0, str::len)).max(from);
                return Step::More;
            }
            None => bytes.len(),
        };
        let code = without(&view.text[start..end], view.stops);
        if code.is_empty() || (until.is_none() && is_cut(code)) {
            return Step::Fail;
        }
        let schema = Schema::of_tool(view.tools, name);
        let member = schema.and_then(|schema| schema.members().first().copied()).unwrap_or(form.argument);
        Step::Done { len: end, calls: vec![call(name, json!({ member: code }).to_string())] }
    }
}

/// The tool, and where its text begins.
fn tool(form: &Raw, head: usize, view: View<'_>) -> Result<(&'static str, usize), Step> {
    let believed = |name: &&&str| view.knows(name);
    let Some(end) = form.name_end else {
        let usual = form.tools.first().filter(|_| view.trust == Trust::Any);
        let name = form.tools.iter().find(believed).or(usual).ok_or(Step::Fail)?;
        return Ok((name, head));
    };
    if form.open.is_empty() && view.trust == Trust::Known {
        return Err(Step::Fail);
    }
    let mut step = Step::Fail;
    for name in form.tools.iter().filter(|name| view.trust == Trust::Any || believed(name)) {
        let rest = &view.text[head..];
        match begins(rest, name) {
            Begins::Yes => match begins(&rest[name.len()..], end) {
                Begins::Yes => return Ok((name, head + name.len() + end.len())),
                Begins::Perhaps => step = view.wait(),
                Begins::No => {}
            },
            Begins::Perhaps => step = view.wait(),
            Begins::No => {}
        }
    }
    Err(step)
}

/// `code` without white space around it and the tokens that end the answer.
fn without<'a>(code: &'a str, stops: &[&str]) -> &'a str {
    let mut code = code.trim_ascii();
    while let Some(rest) = stops.iter().find_map(|stop| code.strip_suffix(stop)) {
        code = rest.trim_ascii_end();
    }
    code
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
