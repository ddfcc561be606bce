//! Writes tools, past calls and results as a model is shown them.

use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{CallResult, Exposed, ShownTool, WrittenCall};

use crate::format::{Form, Format};
use crate::syntax::{PastCall, braces, json, markup, named, nested, pythonic, tagged};

impl Format {
    /// The part of the system prompt that lists `tools` and shows how they are called, in the form that
    /// models of this family were trained on. Empty without tools; deferred ones are not shown.
    #[must_use]
    pub fn prompt(&self, tools: &[ShownTool]) -> String {
        if shown_at_once(tools).next().is_none() {
            return String::new();
        }
        let mut prompt = String::from(
            "# Tools\n\nYou have the tools that are listed here, one a line, as JSON: the name, what the tool does, \
             and the JSON Schema of its arguments.\n\n",
        );
        for tool in shown_at_once(tools) {
            let mut shown = json!({
                "name": tool.name, "description": tool.description, "parameters": tool.parameters,
            });
            if let (Some(body), true) = (&tool.body_argument, self.has_body()) {
                shown["body"] = json!(body);
            }
            prompt.push_str(&format!("{shown}\n"));
        }
        let arguments = json!({"path": "notes.txt", "content": "a longer text,\nperhaps of several lines"});
        let sample =
            WrittenCall { id: String::new(), name: "example_tool".to_owned(), arguments: arguments.to_string() };
        let result = CallResult {
            call_id: "functions.example_tool:0".to_owned(),
            name: sample.name.clone(),
            content: vec![ContentBlock::text("what the tool gave back")],
            ..CallResult::default()
        };
        prompt.push_str(&format!(
            "\nTo call a tool, write its name and arguments in this form, to the letter:\n\n{}\n\nYou may call several \
             tools in one answer, each call in this form. {}{}End your answer after the calls: the results come in \
             the next message, like this:\n\n{}\n\nNever write results yourself, and call only tools of the list.\n",
            self.write_call(&sample, &[]),
            self.hint,
            if self.hint.is_empty() { "" } else { " " },
            self.write_results(&[result]),
        ));
        prompt
    }

    /// Whether a call has a body, which takes one of its arguments.
    fn has_body(&self) -> bool {
        self.calls.first().is_some_and(|call| matches!(call.form, Form::Markup(_)))
    }

    /// How a past call reads in the assistant's turn. `tools` say which argument is a call's body, in
    /// formats that have one. Arguments that are no JSON object are replayed as none.
    #[must_use]
    pub fn write_call(&self, call: &WrittenCall, tools: &[ShownTool]) -> String {
        self.write_calls(std::slice::from_ref(call), tools)
    }

    /// How the calls of one turn read.
    #[must_use]
    pub fn write_calls(&self, calls: &[WrittenCall], tools: &[ShownTool]) -> String {
        let past: Vec<PastCall<'_>> = calls.iter().enumerate().map(PastCall::of).collect();
        let template = self.channels.map_or("{call}", |channels| channels.call);
        let Some(call) = self.calls.first() else {
            return past.iter().map(|past| fill(template, past.name, past.id, past.json)).collect();
        };
        let each = |past: &PastCall<'_>| match &call.form {
            Form::Json(form) => json::write(form, std::slice::from_ref(past)),
            Form::Named(form) => named::write(form, past),
            Form::Tagged(form) => tagged::write(form, past),
            Form::Nested(form) => nested::write(form, past),
            Form::Pythonic(form) => pythonic::write(form, std::slice::from_ref(past)),
            Form::Braces(form) => braces::write(form, past),
            Form::Markup(form) => markup::write(*form, past, tools),
            Form::Raw(form) => format!("{}{}", form.open, past.json),
        };
        let section = |inner: String| match call.section {
            Some((open, close)) => format!("{open}\n{inner}\n{close}"),
            None => inner,
        };
        if self.channels.is_some() {
            return past.iter().map(|past| fill(template, past.name, past.id, &section(each(past)))).collect();
        }
        section(match &call.form {
            Form::Json(form) => json::write(form, &past),
            Form::Pythonic(form) => pythonic::write(form, &past),
            _ => past.iter().map(each).collect::<Vec<_>>().join("\n"),
        })
    }

    /// How results read in the message after the calls. A failure says that it is one; what is no text
    /// is named.
    #[must_use]
    pub fn write_results(&self, results: &[CallResult]) -> String {
        let written = results.iter().map(|result| {
            let blocks: Vec<String> = result.content.iter().map(ContentBlock::stand_in).collect();
            let mut text = blocks.join("\n");
            if result.is_error && !text.starts_with("(tool failed") {
                text.insert_str(0, "(tool failed) ");
            }
            fill(self.result, &result.name, &result.call_id, &text)
        });
        let (open, close) = self.results;
        format!("{open}{}{close}", written.collect::<Vec<_>>().join("\n"))
    }
}

/// `template` with what its braces name, in one pass.
fn fill(template: &str, name: &str, id: &str, content: &str) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let values = [("{name}", name), ("{id}", id), ("{content}", content), ("{call}", content)];
        rest = if let Some((slot, value)) = values.iter().find(|(slot, _)| after.starts_with(slot)) {
            out.push_str(value);
            &after[slot.len()..]
        } else if let Some(after) = after.strip_prefix("{json}") {
            out.push_str(&Value::from(content).to_string());
            after
        } else {
            out.push('{');
            &after[1..]
        };
    }
    out + rest
}

/// The tools that the model sees from the beginning: text has no means to load deferred ones later.
pub(crate) fn shown_at_once(tools: &[ShownTool]) -> impl Iterator<Item = &ShownTool> {
    tools.iter().filter(|tool| tool.exposed != Exposed::Deferred)
}
