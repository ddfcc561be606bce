//! Calls as a name and an object whose keys have no quotation marks: `call:name{key:<|"|>text<|"|>}`.

use serde_json::Value;

use super::PastCall;
use super::literal::Reader;
use super::{MAX_NAME, Step, View, call, is_name};
use crate::format::Braces;

/// End markers in texts that are tried as the end.
const MAX_TRIES: usize = 8;

/// How far it has been read.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Where the end is looked for.
    search: usize,
    tries: usize,
}

impl Block {
    /// How far it has been read.
    pub(crate) fn reach(&self) -> usize {
        self.search
    }

    /// Waits for an end that makes sense of it.
    pub(crate) fn step(&mut self, form: &Braces, head: usize, view: View<'_>) -> Step {
        let rest = &view.text[head..];
        let len = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let body = head + len;
        match rest[len..].bytes().next() {
            None if len <= MAX_NAME => return view.wait(),
            Some(b'{') if len > 0 && len <= MAX_NAME => {}
            _ => return Step::Fail,
        }
        let bytes = view.text.as_bytes();
        let mut from = self.search.max(body);
        while let Some(end) = memchr::memmem::find(&bytes[from..], form.close.as_bytes()).map(|at| from + at) {
            let mut reader = Reader::quoted(view.text[body..end].trim_ascii_end(), form.quote);
            if let Some(arguments) = reader.value().filter(|_| reader.is_done()) {
                let calls = vec![call(&rest[..len], arguments.to_string())];
                return Step::Done { len: end + form.close.len(), calls };
            }
            self.tries += 1;
            if self.tries > MAX_TRIES {
                return Step::Fail;
            }
            from = end + form.close.len();
        }
        self.search = (bytes.len() + 1).saturating_sub(form.close.len()).max(from);
        view.wait()
    }
}

/// A call as it was trained.
pub(crate) fn write(form: &Braces, call: &PastCall<'_>) -> String {
    let arguments = Value::Object(call.arguments.clone());
    format!("{}{}{}{}", form.open, call.name, value(form, &arguments), form.close)
}

fn value(form: &Braces, written: &Value) -> String {
    let join = |items: Vec<String>| items.join(",");
    match written {
        Value::String(text) => format!("{}{text}{}", form.quote, form.quote),
        Value::Array(items) => format!("[{}]", join(items.iter().map(|item| value(form, item)).collect())),
        Value::Object(members) => {
            let members = members.iter().map(|(key, item)| format!("{key}:{}", value(form, item)));
            format!("{{{}}}", join(members.collect()))
        }
        other => other.to_string(),
    }
}
