//! Asks the person at the terminal: approvals of calls, and the forms and pages of tool sources.

use std::fmt::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};
use toolwright::Toolwright;
use toolwright::app::{FormAnswer, PageAnswer, Person};
use toolwright::core::approval::AlwaysScope;
use toolwright::core::inbox::FormQuestion;
use toolwright::core::{ApprovalDecision, ApprovalRequest, Approver, Effects, taint};
use toolwright::mcp::elicitation::{Choice, Field, Form, Kind, Page};

use crate::terminal::console::Console;
use crate::terminal::screen::{BOLD, DIM, Screen, WARN, one_line, sanitize, say, styled};

/// The most characters of a source's own text that are shown.
pub(crate) const MAX_SHOWN: usize = 4000;
/// The most characters of arguments that are shown, more than people read.
const MAX_ARGUMENTS: usize = 8000;
/// The most characters of a label.
const MAX_LABEL: usize = 120;

/// The person at the terminal, who approves calls, fills in forms and opens pages. Questions are asked one at a time,
/// and the progress display pauses meanwhile.
#[derive(Clone)]
pub(crate) struct Terminal {
    pub(crate) console: Arc<Console>,
    pub(crate) screen: Arc<Screen>,
}

impl Terminal {
    pub(crate) fn new(app: &Toolwright) -> Self {
        Self { console: Arc::default(), screen: Arc::new(Screen::new(Arc::clone(app.catalogue()))) }
    }

    /// Asks for a field's value. `None` if it is left out; `Err` at the end of the input.
    async fn field(&self, field: &Field) -> Result<Option<Value>, FormAnswer> {
        for line in field_lines(field) {
            say(line);
        }
        loop {
            let typed = self.console.ask("  > ").await.ok_or(FormAnswer::Cancelled)?;
            if typed.trim().is_empty() {
                match (&field.default, field.is_required) {
                    (Some(default), _) => return Ok(Some(default.clone())),
                    (None, false) => return Ok(None),
                    // An empty text or no choice may be intended.
                    (None, true) => {}
                }
            }
            match field.read(&typed) {
                Ok(value) => return Ok(Some(value)),
                Err(why) => say(styled(WARN, format_args!("  {}", sanitize(&why)))),
            }
        }
    }

    /// Returns whether the person agrees; `None` at the end of the input.
    async fn agrees(&self, question: &str) -> Option<bool> {
        self.console.discard_typed_ahead().await;
        loop {
            match self.console.ask(question).await?.trim().to_lowercase().as_str() {
                "y" | "yes" => return Some(true),
                "n" | "no" => return Some(false),
                _ => say("please answer y or n"),
            }
        }
    }

    async fn fields(&self, form: &Form) -> Result<Map<String, Value>, FormAnswer> {
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
impl Approver for Terminal {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        let _screen = self.screen.hold().await;
        let arguments = sanitize(&format!("{:#}", request.arguments));
        let shown: String = arguments.chars().take(MAX_ARGUMENTS).collect();
        let cut = arguments.chars().count() - shown.chars().count();
        say(format_args!("\n{} {}", styled(WARN, "May this run?"), styled(BOLD, self.screen.name(&request.tool))));
        say(format_args!("  it {}; asked because {}", describe_effects(request.effects), sanitize(&request.reason)));
        if let Some(path) = request.agent_path() {
            say(format_args!("  called by {}", sanitize(&path)));
        }
        if let Some(tainted) = taint::in_words(&request.tainted) {
            say(styled(WARN, format_args!("  untrusted: {}", sanitize(&tainted))));
        }
        for line in shown.lines() {
            say(format_args!("  {line}"));
        }
        if cut > 0 {
            say(styled(WARN, format_args!("  … {cut} more characters are not shown")));
        }
        let covered = match request.always_covers() {
            AlwaysScope::Tool => "this tool".to_owned(),
            AlwaysScope::ToolForAsker => {
                format!("what {} asks", sanitize(request.asker.as_deref().unwrap_or_default()))
            }
            AlwaysScope::ToolInWorkspace => "this tool inside the workspace".to_owned(),
            AlwaysScope::ThisCall => "exactly these arguments".to_owned(),
        };
        let question = format!("[y]es, [n]o, [s]kip, [a]lways for {covered} in this session: ");
        self.console.discard_typed_ahead().await;
        loop {
            let Some(answer) = self.console.ask(&question).await else {
                return ApprovalDecision::Deny { reason: "the input ended before anybody answered".into() };
            };
            match answer.trim().to_lowercase().as_str() {
                "y" | "yes" => return ApprovalDecision::Approve,
                "a" | "always" => return ApprovalDecision::Always,
                "n" | "no" => return ApprovalDecision::Deny { reason: "the user said no".into() },
                "s" | "skip" => return ApprovalDecision::Skip,
                _ => say("please answer y, n, s or a"),
            }
        }
    }
}

#[async_trait]
impl Person for Terminal {
    async fn fill_in(&self, source: &str, form: &Form) -> FormAnswer {
        let _screen = self.screen.hold().await;
        let (what, question) = if form.fields.is_empty() {
            ("A tool's server asks you:", "[y]es, [n]o: ")
        } else {
            ("A tool's server asks you, and gets what you type:", "[y]es, I answer, [n]o, I do not want to: ")
        };
        say_question(what, source, &form.message);
        match self.agrees(question).await {
            Some(true) => self.fields(form).await.map_or_else(|ended| ended, FormAnswer::Accepted),
            Some(false) => FormAnswer::Declined,
            None => FormAnswer::Cancelled,
        }
    }

    async fn visit(&self, source: &str, page: &Page) -> PageAnswer {
        let _screen = self.screen.hold().await;
        say_question("A tool's server asks you to open a page:", source, &page.message);
        for line in page_lines(page) {
            say(line);
        }
        match self.agrees("Open it yourself if you trust it. [y]es, I opened it, [n]o, I do not want to: ").await {
            Some(true) => PageAnswer::Opened,
            Some(false) => PageAnswer::Declined,
            None => PageAnswer::Cancelled,
        }
    }
}

/// Prints who asks, and why.
fn say_question(what: &str, source: &str, message: &str) {
    say(format_args!("\n{} {}", styled(WARN, what), styled(BOLD, sanitize(source))));
    for line in sanitize(message).chars().take(MAX_SHOWN).collect::<String>().lines() {
        say(format_args!("  {line}"));
    }
}

/// Returns the whole address of a page, and separately its host, which identifies its owner.
pub(crate) fn page_lines(page: &Page) -> [String; 2] {
    let host = page.host();
    let odd = if host.split('.').any(|label| label.starts_with("xn--")) {
        "; it has letters that may look like others"
    } else {
        ""
    };
    [
        format!("  {}", sanitize(page.address.as_str())),
        format!("  {} {}{}", styled(DIM, "at"), styled(BOLD, sanitize(host)), styled(WARN, odd)),
    ]
}

/// Describes a field in lines for a person.
pub(crate) fn field_lines(field: &Field) -> Vec<String> {
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
            let _ = write!(kind, "; empty: {default}");
        }
        (None, false) => kind.push_str("; empty: left out"),
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

/// Returns the message for a form of a tool's source.
pub(crate) fn asked_for(form: &FormQuestion) -> String {
    let (source, id) = (sanitize(&form.request.source), &form.id);
    format!("the server of {source} asks you something: toolwright approvals ls shows it, answer {id} or deny {id}")
}

/// Describes effects.
pub(crate) fn describe_effects(effects: Effects) -> String {
    let mut words = Vec::new();
    words.push(match (effects.read_only, effects.destructive) {
        (true, _) => "only reads",
        (false, true) => "may destroy or overwrite",
        (false, false) => "adds or changes",
    });
    if effects.idempotent && !effects.read_only {
        words.push("repeating it changes nothing more");
    }
    words.push(if effects.open_world { "reaches beyond this machine" } else { "stays on this machine" });
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_described_without_control_characters() {
        let params = json!({"message": "m", "requestedSchema": {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string", "title": "A\u{1b}[2Jb", "oneOf": [{"const": "x", "title": "X"}, {"const": "y"}]},
            "n": {"type": "integer", "default": 3},
        }}});
        let form = Form::of(&params).expect("a form");
        let lines: Vec<String> = form.fields.iter().flat_map(field_lines).collect();
        assert!(!lines[0].contains("\u{1b}[2J"), "{lines:?}");
        assert!(lines[0].contains("one of these"), "{lines:?}");
        assert_eq!((&*lines[1], &*lines[2]), ("  1  X", "  2  y"));
        assert!(lines[3].contains("a whole number; empty: 3"), "{lines:?}");
    }

    #[test]
    fn a_page_shows_address_and_host_apart() {
        for (address, whole, host, odd) in [
            ("https://bank.example/a?b=c#d", "https://bank.example/a?b=c#d", "bank.example", false),
            ("https://b\u{430}nk.example/", "https://xn--bnk-6cd.example/", "xn--bnk-6cd.example", true),
        ] {
            let page = Page::of(&json!({"message": "m", "url": address})).expect("a page");
            let [first, second] = page_lines(&page);
            assert_eq!(first.trim(), whole);
            assert_eq!((second.contains(host), second.contains("look like others")), (true, odd), "{second}");
        }
    }
}
