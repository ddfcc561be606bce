//! A form of a tool's source, filled in at the terminal.

use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};
use toolwright::house::{Filled, Person};
use toolwright::mcp::form::{Choice, Field, Form, Kind};

use super::console::Console;
use super::screen::{BOLD, DIM, Screen, WARN, harmless, one_line, say, styled};

/// Characters of a source's own words that are shown.
const MAX_SHOWN: usize = 4000;
/// Characters of one label.
const MAX_LABEL: usize = 120;

/// Asks field by field. One question at a time; while it stands, the account of the run waits.
pub(crate) struct TerminalPerson {
    console: Arc<Console>,
    screen: Arc<Screen>,
}

impl TerminalPerson {
    pub(crate) fn new(console: Arc<Console>, screen: Arc<Screen>) -> Self {
        Self { console, screen }
    }

    /// A field's value, `None` where it is left out; `Err` at the end of the input.
    async fn field(&self, field: &Field) -> Result<Option<Value>, Filled> {
        for line in described(field) {
            say(line);
        }
        loop {
            let typed = self.console.ask("  > ").await.ok_or(Filled::Cancelled)?;
            if typed.trim().is_empty() {
                match (&field.default, field.is_required) {
                    (Some(default), _) => return Ok(Some(default.clone())),
                    (None, false) => return Ok(None),
                    // An empty text, or no choice, may be just what is meant.
                    (None, true) => {}
                }
            }
            match field.read(&typed) {
                Ok(value) => return Ok(Some(value)),
                Err(why) => say(styled(WARN, format_args!("  {}", harmless(&why)))),
            }
        }
    }

    async fn fields(&self, form: &Form) -> Result<Map<String, Value>, Filled> {
        let mut content = Map::new();
        for field in &form.fields {
            if let Some(value) = self.field(field).await? {
                content.insert(field.name.clone(), value);
            }
        }
        Ok(content)
    }
}

#[async_trait]
impl Person for TerminalPerson {
    async fn fill_in(&self, source: &str, form: &Form) -> Filled {
        let _screen = self.screen.hold().await;
        say(format_args!(
            "\n{} {}",
            styled(WARN, "A tool's server asks you, and gets what you type:"),
            styled(BOLD, harmless(source))
        ));
        for line in harmless(&form.message).chars().take(MAX_SHOWN).collect::<String>().lines() {
            say(format_args!("  {line}"));
        }
        self.console.forget_typed_ahead().await;
        loop {
            let Some(answer) = self.console.ask("[y]es, I answer, [n]o, I do not want to: ").await else {
                return Filled::Cancelled;
            };
            match answer.trim().to_lowercase().as_str() {
                "y" | "yes" => return self.fields(form).await.map_or_else(|ended| ended, Filled::Accepted),
                "n" | "no" => return Filled::Declined,
                _ => say("please answer y or n"),
            }
        }
    }
}

/// A field in lines for a person.
fn described(field: &Field) -> Vec<String> {
    let title = one_line(field.title.as_deref().unwrap_or(&field.name), MAX_LABEL);
    let mut kind = match &field.kind {
        Kind::Text => "a text".to_owned(),
        Kind::Integer => "a whole number".to_owned(),
        Kind::Number => "a number".to_owned(),
        Kind::Boolean => "yes or no".to_owned(),
        Kind::One(_) => "one of these, by its number".to_owned(),
        Kind::Many(_) => "any of these, by their numbers, with commas".to_owned(),
    };
    match (&field.default, field.is_required) {
        (Some(default), _) => {
            let default = one_line(&default.to_string(), MAX_LABEL);
            // Writing to a text cannot fail.
            let _ = write!(kind, "; nothing for {default}");
        }
        (None, false) => kind.push_str("; nothing to leave it out"),
        (None, true) => {}
    }
    let mut lines = vec![format!("{} {}", styled(BOLD, title), styled(DIM, format_args!("({kind})")))];
    lines.extend(field.description.as_deref().map(|about| format!("  {}", one_line(about, MAX_SHOWN))));
    let choices: &[Choice] = match &field.kind {
        Kind::One(choices) | Kind::Many(choices) => choices,
        _ => &[],
    };
    lines.extend((1..).zip(choices).map(|(at, choice)| format!("  {at}  {}", one_line(&choice.label, MAX_LABEL))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_says_what_it_takes_and_hides_nothing_in_control_characters() {
        let params = json!({"message": "m", "requestedSchema": {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string", "title": "A\u{1b}[2Jb", "oneOf": [{"const": "x", "title": "X"}, {"const": "y"}]},
            "n": {"type": "integer", "default": 3},
        }}});
        let form = Form::of(&params).expect("a form");
        let lines: Vec<String> = form.fields.iter().flat_map(described).collect();
        assert!(!lines[0].contains("\u{1b}[2J"), "{lines:?}");
        assert!(lines[0].contains("one of these"), "{lines:?}");
        assert_eq!((&*lines[1], &*lines[2]), ("  1  X", "  2  y"));
        assert!(lines[3].contains("a whole number; nothing for 3"), "{lines:?}");
    }
}
