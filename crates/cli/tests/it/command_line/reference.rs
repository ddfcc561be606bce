//! The reference pages of the guide: `docs/commands.md` from the help texts, `docs/configuration.md` from the published
//! JSON Schema. Each page keeps what stands above its marker. `UPDATE=1 cargo test -p toolwright-cli --test it reference`
//! writes them; without `UPDATE` the tests fail where a page differs.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value};
use toolwright::models::served::{Handling, SHAPES, ServedApi, Shape, fields_of, unsupported_by};

use crate::command_line::cli::ok;
use crate::support::Fixture;

/// What a page says above this line is written by hand.
const MARKER: &str = "<!-- generated from here on: UPDATE=1 cargo test -p toolwright-cli --test it reference -->\n";

#[test]
fn command_reference_is_that_of_the_help_texts() {
    check("commands.md", &commands());
}

#[test]
fn configuration_reference_is_that_of_the_schema() {
    check("configuration.md", &configuration());
}

#[test]
fn fields_of_facades_are_those_of_the_table() {
    check("facades.md", &fields());
}

/// What becomes of each field of the served APIs.
fn fields() -> String {
    let mut text = String::new();
    for (api, name) in
        [(ServedApi::Chat, "Chat Completions"), (ServedApi::Responses, "Responses"), (ServedApi::Messages, "Messages")]
    {
        write!(text, "\n### {name}\n\n| field | | |\n|---|---|---|\n").expect("text");
        for field in fields_of(api) {
            let handling = match field.handling {
                Handling::Honoured => "honoured".to_owned(),
                Handling::Ignored => "no effect".to_owned(),
                Handling::Refused([]) => "refused".to_owned(),
                Handling::Refused(unless) => format!("refused unless `{}`", unless[0]),
            };
            let name = linked(field.name, field.inner);
            let lost = unsupported_by(field.name).map(|(what, apis)| {
                let apis: Vec<String> = apis.iter().map(|api| format!("`{api}`")).collect();
                let of = if what.contains('.') { format!("`{what}` is ") } else { String::new() };
                format!("{of}lost with {}", apis.join(", "))
            });
            let note = [field.note, lost.as_deref().unwrap_or_default()].map(str::to_owned);
            let note = note.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
            writeln!(text, "| {name} | {handling} | {note} |").expect("text");
        }
        text.push_str("\n| object | honoured | no effect | refused |\n|---|---|---|---|\n");
        for shape in SHAPES.iter().filter(|shape| shape.api == api) {
            writeln!(text, "{}", row(shape)).expect("text");
        }
    }
    text
}

/// A field, and what its objects are.
fn linked(name: &str, inner: &str) -> String {
    if inner.is_empty() { format!("`{name}`") } else { format!("`{name}` → {inner}") }
}

fn row(shape: &Shape) -> String {
    let words = |words: &str| {
        let words = words.split_whitespace().map(|word| word.split_once(':').unwrap_or((word, "")));
        words.map(|(name, inner)| linked(name, inner)).collect::<Vec<_>>().join(", ")
    };
    let kinds: Vec<String> =
        shape.kinds.iter().filter(|kind| !kind.is_empty()).map(|kind| format!("`{kind}`")).collect();
    let object = format!("{} {}", shape.name, kinds.join(", "));
    let ignored = if shape.is_answer { format!("{} and others", words(shape.ignored)) } else { words(shape.ignored) };
    format!("| {} | {} | {} | {} |", object.trim(), words(shape.honoured), ignored.trim(), words(shape.refused))
}

fn check(page: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(&path).expect("the page");
    let (head, below) = text.split_once(MARKER).expect("the marker of a generated page");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{head}{MARKER}{generated}")).expect("written");
    } else {
        assert!(
            below == generated,
            "docs/{page} is not what it is made of: UPDATE=1 cargo test -p toolwright-cli --test it reference"
        );
    }
}

/// The groups of `--help`, and of each command and subcommand its whole help; the global options once.
fn commands() -> String {
    let fixture = Fixture::new();
    let help = ok(&fixture, &["--help"]);
    let mut text = String::new();
    let mut global = None;
    for line in help.lines().skip_while(|line| !line.starts_with("Usage:")).skip(1) {
        if line.starts_with("Options:") {
            break;
        }
        if let Some(group) = line.strip_suffix(':') {
            write!(text, "\n## {group}\n").expect("text");
        } else if let Some(command) = line.split_whitespace().next().filter(|&command| command != "help") {
            let options = describe(&fixture, &mut text, &[command]);
            global.get_or_insert(options);
        }
    }
    let global = global.expect("a command");
    write!(text, "\n## Global options\n\n```text\n{global}\n```\n").expect("text");
    text
}

/// Appends the help of a command and its subcommands without the global options, which are returned.
fn describe(fixture: &Fixture, text: &mut String, path: &[&str]) -> String {
    let help = ok(fixture, &[&["help"], path].concat());
    let (own, rest) = help.split_once("\nGlobal options:\n").expect("global options");
    // What stands behind the global options (examples, exit codes) is the command's own.
    let (global, after) = rest.split_once("`toolwright help COMMAND` prints all of it\n").unwrap_or((rest, ""));
    let level = if path.len() == 1 { "###" } else { "####" };
    write!(text, "\n{level} {}\n\n```text\n{}\n", path.join(" "), own.trim_end()).expect("text");
    if !after.trim().is_empty() {
        write!(text, "\n{}\n", after.trim_matches('\n')).expect("text");
    }
    text.push_str("```\n");
    let subcommands = own.split_once("\nCommands:\n").map_or("", |(_, list)| list);
    let listed = subcommands.lines().take_while(|line| !line.is_empty());
    for line in listed.filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        if let Some(command) = line.split_whitespace().next().filter(|&command| command != "help") {
            describe(fixture, text, &[path, &[command]].concat());
        }
    }
    global.trim_end_matches(['\n', ' ']).to_owned()
}

/// A table of keys for each section of the configuration.
fn configuration() -> String {
    let schema: Value = serde_json::from_str(&ok(&Fixture::new(), &["config", "schema"])).expect("JSON");
    let sections = schema["properties"].as_object().expect("sections");
    let mut text = String::new();
    for (name, section) in supported(sections) {
        write!(text, "\n## {name}\n\n{}\n", prose(section)).expect("text");
        let mut rows = String::new();
        members(&mut rows, "", section);
        if !rows.is_empty() {
            write!(text, "\n| key | type | default | meaning |\n|---|---|---|---|\n{rows}").expect("text");
        }
    }
    text
}

/// The members that do something, each under its one name of several.
fn supported(members: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    members.iter().filter(|(name, member)| {
        member.get("x-unsupported").is_none() && (snake(name) == **name || !members.contains_key(&snake(name)))
    })
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// A row for each key below `at`, at any depth.
fn members(rows: &mut String, at: &str, schema: &Value) {
    let joined = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    for (name, member) in schema.get("properties").and_then(Value::as_object).into_iter().flat_map(supported) {
        let key = joined(name);
        let default = member.get("default").filter(|default| is_shown(default));
        let default = default.map_or(String::new(), |default| format!("`{}`", plain(default)));
        writeln!(rows, "| `{key}` | {} | {default} | {} |", kind(member), cell(&prose(member))).expect("text");
        members(rows, &key, member);
    }
    // A map whose entries have members of their own.
    if let Some(entry) = schema.get("additionalProperties").filter(|entry| entry.is_object()) {
        members(rows, &joined("NAME"), entry);
    }
    if let Some(item) = schema.get("items") {
        members(rows, &format!("{at}[]"), item);
    }
    for choice in ["anyOf", "oneOf"].iter().filter_map(|name| schema.get(name)?.as_array()).flatten() {
        members(rows, at, choice);
    }
}

/// Empty values and those of whole objects tell a reader nothing.
fn is_shown(default: &Value) -> bool {
    match default {
        Value::Null | Value::Object(_) => false,
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What a value may be, in words.
fn kind(schema: &Value) -> String {
    let constant = schema.get("const").into_iter();
    let values: Vec<&Value> = schema["enum"].as_array().into_iter().flatten().chain(constant).collect();
    let mut kinds: Vec<String> =
        values.iter().filter(|value| !value.is_null()).map(|value| format!("`{}`", plain(value))).collect();
    if schema.get("x-text").is_some() {
        kinds.push("text".to_owned());
    }
    if kinds.is_empty() {
        let choices = ["anyOf", "oneOf"].iter().filter_map(|name| schema.get(name)?.as_array()).flatten();
        kinds.extend(choices.map(kind).filter(|kind| kind != "null"));
    }
    if kinds.is_empty() {
        let types = match &schema["type"] {
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            other => other.as_str().into_iter().collect::<Vec<_>>(),
        };
        let some: Vec<&str> = types.iter().copied().filter(|&name| name != "null").collect();
        if some == ["string", "integer"] {
            return "duration".to_owned();
        }
        kinds.extend(some.iter().map(|&name| match name {
            "array" => schema.get("items").map_or("list".to_owned(), |item| format!("list of {}", kind(item))),
            "object" if schema.get("properties").is_none() => "map".to_owned(),
            name => name.to_owned(),
        }));
        if some.is_empty() {
            kinds.push(if types.is_empty() { "any" } else { "null" }.to_owned());
        }
    }
    kinds.dedup();
    kinds.join(", ")
}

fn prose(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}
