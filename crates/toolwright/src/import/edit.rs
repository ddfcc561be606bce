//! Edits a configuration file as text, so that the user's comments and layout stay. Every edit is checked by parsing
//! the result. An edit that is not safe is refused.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolwright_core::policy::Rule;

use crate::config::{parse_value, snake_case};
pub use crate::private_file::write_atomically;

/// The key of a policy's rules.
const RULES: &str = "rules";

/// The reason why a file was not edited. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The present file cannot be parsed.
    #[error("{0}")]
    Broken(String),
    /// An entry of that name exists already.
    #[error("`{0}` is there already; take it out with `toolwright remove {0}`, or choose another name")]
    Exists(String),
    /// No entry has that name.
    #[error("there is no entry called `{0}` in this file")]
    Missing(String),
    /// This layout can only be edited by hand.
    #[error("the section is written in a way that is not edited automatically; do it by hand:\n\n{0}")]
    Layout(String),
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// A section of named entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// `mcpServers`.
    Servers,
    /// `openapi`.
    Documents,
    /// `restTools`.
    RestTools,
    /// `catalogues`.
    Catalogues,
    /// `llmTools`.
    LlmTools,
}

impl Entries {
    /// All sections.
    pub const ALL: [Self; 5] = [Self::Servers, Self::Documents, Self::RestTools, Self::Catalogues, Self::LlmTools];

    /// Returns its key when it is created.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Servers => "mcpServers",
            Self::Documents => "openapi",
            Self::RestTools => "restTools",
            Self::Catalogues => "catalogues",
            Self::LlmTools => "llmTools",
        }
    }

    fn is_called(self, key: &str) -> bool {
        snake_case(key) == snake_case(self.key())
    }
}

/// Adds `entries` to the `mcpServers` section of a text; the section is created if it is missing.
///
/// # Errors
/// [`EditError`]; an existing name is refused.
pub fn add_servers(text: &str, entries: &[(String, Value)]) -> Result<String, EditError> {
    add_entries(text, Entries::Servers, entries)
}

/// Adds `entries` to a section of a text; the section is created if it is missing.
///
/// # Errors
/// [`EditError`]; an existing name is refused.
pub fn add_entries(text: &str, section: Entries, entries: &[(String, Value)]) -> Result<String, EditError> {
    let before = parse(text)?;
    let servers = section_of(&before, section)
        .and_then(|key| before.get(key))
        .cloned()
        .unwrap_or_else(|| Value::Object(Map::new()));
    if let Some((name, _)) = entries.iter().find(|(name, _)| servers.get(name).is_some()) {
        return Err(EditError::Exists(name.clone()));
    }
    let mut expected = before.clone();
    let key = section_of(&before, section).unwrap_or(section.key()).to_owned();
    let there = expected.as_object_mut().map(|map| map.entry(&key).or_insert(Value::Null));
    if let Some(there) = there {
        if !there.is_object() {
            *there = Value::Object(Map::new());
        }
        if let Some(map) = there.as_object_mut() {
            map.extend(entries.iter().cloned());
        }
    }
    let by_hand = || EditError::Layout(yaml_section(section, entries));
    if is_json(text) {
        return edited_json(text, &expected).ok_or_else(by_hand);
    }
    let edited = insert(text, section, entries).ok_or_else(by_hand)?;
    if parse(&edited).is_ok_and(|after| after == expected) { Ok(edited) } else { Err(by_hand()) }
}

/// Returns the names of all entries of a text, with their sections.
///
/// # Errors
/// [`EditError::Broken`].
pub fn entries_of(text: &str) -> Result<Vec<(Entries, String)>, EditError> {
    let value = parse(text)?;
    let of = |section: Entries| {
        let entries = section_of(&value, section).and_then(|key| value.get(key)).and_then(Value::as_object);
        entries.into_iter().flat_map(Map::keys).map(move |name| (section, name.clone()))
    };
    Ok(Entries::ALL.into_iter().flat_map(of).collect())
}

/// Removes the entry `name` of a section from a text.
///
/// # Errors
/// [`EditError`]; a missing name is refused.
pub fn remove_entry(text: &str, section: Entries, name: &str) -> Result<String, EditError> {
    let before = parse(text)?;
    let mut expected = before.clone();
    let key = section_of(&before, section).unwrap_or(section.key()).to_owned();
    let removed = expected.get_mut(&key).and_then(Value::as_object_mut).and_then(|servers| servers.shift_remove(name));
    if removed.is_none() {
        return Err(EditError::Missing(name.to_owned()));
    }
    let by_hand = || EditError::Layout(format!("delete the entry `{name}`"));
    if is_json(text) {
        return edited_json(text, &expected).ok_or_else(by_hand);
    }
    let edited = cut(text, section, name).ok_or_else(by_hand)?;
    // A section that lost its last entry is parsed as null.
    if expected.get(&key).and_then(Value::as_object).is_some_and(Map::is_empty) {
        expected[&key] = Value::Null;
    }
    if parse(&edited).is_ok_and(|after| after == expected) { Ok(edited) } else { Err(by_hand()) }
}

/// Returns a section as written, without its key and indentation. `None` if there is none.
///
/// # Errors
/// [`EditError::Broken`].
pub fn section_text(text: &str, key: &str) -> Result<Option<String>, EditError> {
    let value = parse(text)?;
    let Some(section) = value.get(key) else { return Ok(None) };
    let lines: Vec<&str> = text.lines().collect();
    let found = (!is_json(text)).then(|| find_section(&lines, |name| name == key)).flatten();
    let written = found.and_then(|found| {
        let indent = found.indent?;
        let opened = lines[found.key].split_once(':')?.1.trim();
        let body = lines[found.key + 1..found.end].iter();
        let body: String = body.map(|line| format!("{}\n", line.get(indent..).unwrap_or(line.trim()))).collect();
        (opened.is_empty() || opened.starts_with('#')).then_some(body)
    });
    // A section in one line, or in JSON, is shown as JSON, which is also YAML.
    let as_json = || serde_json::to_string_pretty(section).unwrap_or_default();
    Ok(Some(written.unwrap_or_else(as_json)))
}

/// Replaces a section of a text by `section`, YAML or JSON without its key.
///
/// # Errors
/// [`EditError`].
pub fn put_section(text: &str, key: &str, section: &str) -> Result<String, EditError> {
    let mut expected = parse(text)?;
    expected[key] = parse(section)?;
    let by_hand = || EditError::Layout(format!("{key}:\n{section}"));
    if is_json(text) {
        return edited_json(text, &expected).ok_or_else(by_hand);
    }
    let body = section.trim_end().lines().map(|line| if line.is_empty() { "\n".into() } else { format!("  {line}\n") });
    let body: String = body.collect();
    let block = format!("{key}:\n{body}");
    let lines: Vec<&str> = text.lines().collect();
    let edited: String = match find_section(&lines, |name| name == key) {
        Some(found) => {
            let block = format!("{key}:{}\n{body}", comment_of(lines[found.key]));
            let after = lines[found.end..].iter().map(|line| format!("{line}\n"));
            let before = lines[..found.key].iter().map(|line| format!("{line}\n"));
            before.chain([block]).chain(after).collect()
        }
        None if text.trim().is_empty() => block,
        None => format!("{}\n\n{block}", text.trim_end()),
    };
    if parse(&edited).is_ok_and(|after| after == expected) { Ok(edited) } else { Err(by_hand()) }
}

/// Writes a rule as an element of a list.
///
/// # Errors
/// [`EditError::Broken`] if it is not a rule.
pub fn rule_text(rule: &Rule, indent: usize) -> Result<String, EditError> {
    let value = serde_json::to_value(rule).map_err(|error| EditError::Broken(error.to_string()))?;
    let mut block = String::new();
    yaml_members(&value, indent + 2, &mut block);
    block.replace_range(indent..indent + 1, "-");
    Ok(block)
}

/// Inserts a rule after the first `place` rules of a policy section, in the form of [`section_text`].
///
/// # Errors
/// [`EditError`].
pub fn add_rule(section: &str, place: usize, rule: &Rule) -> Result<String, EditError> {
    let mut expected = if section.trim().is_empty() { Value::Object(Map::new()) } else { parse(section)? };
    let by_hand = || rule_text(rule, 2).map_or_else(|error| error, |text| EditError::Layout(format!("rules:\n{text}")));
    let value = serde_json::to_value(rule).map_err(|error| EditError::Broken(error.to_string()))?;
    match &mut expected[RULES] {
        Value::Array(rules) if place <= rules.len() => rules.insert(place, value),
        rules @ Value::Null => *rules = vec![value].into(),
        _ => return Err(by_hand()),
    }
    if is_json(section) {
        return edited_json(section, &expected).ok_or_else(by_hand);
    }
    let mut lines: Vec<String> = section.lines().map(str::to_owned).collect();
    let key = lines.iter().position(|line| line.strip_prefix(RULES).is_some_and(|rest| rest.starts_with(':')));
    let key = key.unwrap_or_else(|| {
        lines.push(format!("{RULES}:"));
        lines.len() - 1
    });
    let depth = |line: &str| line.len() - line.trim_start().len();
    let is_item = |line: &str| line.trim_start().starts_with("- ");
    let is_remark = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let first = lines[key + 1..].iter().find(|line| !is_remark(line)).filter(|line| is_item(line));
    let indent = first.map_or(2, |line| depth(line));
    if first.is_none() {
        lines[key] = format!("{RULES}:{}", comment_of(&lines[key]));
    }
    // From the first rule to the end of the last.
    let inside = |line: &String| is_remark(line) || depth(line) > indent || (depth(line) == indent && is_item(line));
    let end = lines[key + 1..].iter().position(|line| !inside(line)).map_or(lines.len(), |at| key + 1 + at);
    let starts: Vec<usize> = (key + 1..end).filter(|&at| depth(&lines[at]) == indent && is_item(&lines[at])).collect();
    let mut at = starts.get(place).copied().unwrap_or(end);
    // A comment belongs to what follows it.
    while at > key + 1 && is_remark(&lines[at - 1]) {
        at -= 1;
    }
    lines.insert(at, rule_text(rule, indent)?.trim_end().to_owned());
    let edited: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if parse(&edited).is_ok_and(|after| after == expected) { Ok(edited) } else { Err(by_hand()) }
}

/// Returns the comment at the end of a line with a key, with the space before it: the line has the same value without
/// it.
fn comment_of(line: &str) -> &str {
    let Ok(whole) = parse(line) else { return "" };
    let starts = line.match_indices(" #").map(|(at, _)| at);
    let mut before = starts.filter(|&at| parse(&line[..at]).is_ok_and(|value| value == whole));
    before.next().map(|at| line[at..].trim_end()).unwrap_or_default()
}

fn parse(text: &str) -> Result<Value, EditError> {
    let file: Arc<Path> = Arc::from(Path::new(""));
    let value = parse_value(text, &file).map_err(|problem| EditError::Broken(problem.message))?;
    if value.is_object() { Ok(value) } else { Err(EditError::Broken("the file is not a mapping".into())) }
}

fn section_of(value: &Value, section: Entries) -> Option<&str> {
    value.as_object()?.keys().map(String::as_str).find(|key| section.is_called(key))
}

fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// JSON has no comments to lose, so it is rewritten in its present indentation.
fn edited_json(text: &str, expected: &Value) -> Option<String> {
    serde_json::from_str::<Value>(text).ok()?;
    let indent = text
        .lines()
        .skip(1)
        .map(|line| &line[..line.len() - line.trim_start().len()])
        .find(|indent| !indent.is_empty())
        .unwrap_or("  ");
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    serde::Serialize::serialize(expected, &mut serializer).ok()?;
    out.push(b'\n');
    String::from_utf8(out).ok()
}

/// The lines of the section: its key line, and the line after its last.
struct Section {
    key: usize,
    end: usize,
    /// Indentation of its entries; `None` while it has none.
    indent: Option<usize>,
}

fn find_section(lines: &[&str], is_called: impl Fn(&str) -> bool) -> Option<Section> {
    let key = lines.iter().position(|line| {
        let name = line.split(':').next().unwrap_or_default().trim_matches(['"', '\'']);
        line.contains(':') && is_called(name)
    })?;
    let mut end = key + 1;
    let mut indent = None;
    for (index, line) in lines.iter().enumerate().skip(key + 1) {
        let depth = line.len() - line.trim_start().len();
        if line.trim().is_empty() {
            continue;
        }
        if depth == 0 {
            break;
        }
        if indent.is_none() && !line.trim_start().starts_with('#') {
            indent = Some(depth);
        }
        end = index + 1;
    }
    Some(Section { key, end, indent })
}

fn insert(text: &str, section: Entries, entries: &[(String, Value)]) -> Option<String> {
    let mut lines: Vec<&str> = text.lines().collect();
    let Some(place) = find_section(&lines, |name| section.is_called(name)) else {
        let gap = if text.trim().is_empty() || text.ends_with("\n\n") {
            ""
        } else if text.ends_with('\n') {
            "\n"
        } else {
            "\n\n"
        };
        return Some(format!("{text}{gap}{}", yaml_section(section, entries)));
    };
    let block =
        entries.iter().map(|(name, entry)| yaml_entry(name, entry, place.indent.unwrap_or(2))).collect::<String>();
    let (head, rest) = lines[place.key].split_once(':')?;
    // `mcpServers: {}` is replaced; a comment after the colon stays.
    let opened = format!("{head}:{}", rest.strip_prefix(" {}").unwrap_or(rest));
    let after_key = opened[head.len() + 1..].trim();
    if !after_key.is_empty() && !after_key.starts_with('#') {
        return None;
    }
    lines[place.key] = &opened;
    lines.insert(place.end, block.trim_end());
    Some(lines.join("\n") + "\n")
}

fn cut(text: &str, section: Entries, name: &str) -> Option<String> {
    let mut lines: Vec<&str> = text.lines().collect();
    let section = find_section(&lines, |name| section.is_called(name))?;
    let indent = section.indent?;
    let depth = |line: &str| line.len() - line.trim_start().len();
    let is_entry = |line: &str| depth(line) == indent && !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let start = (section.key + 1..section.end).find(|&index| {
        is_entry(lines[index])
            && lines[index].trim().split(':').next().is_some_and(|key| key.trim().trim_matches(['"', '\'']) == name)
    })?;
    let mut end = start + 1;
    // Comments at the entry's own depth belong to what follows them: those directly above it are removed with it, those
    // below it stay.
    for (index, line) in lines.iter().enumerate().take(section.end).skip(start + 1) {
        if line.trim().is_empty() {
            continue;
        }
        if depth(line) <= indent {
            break;
        }
        end = index + 1;
    }
    let first = (section.key + 1..start)
        .rev()
        .take_while(|&index| depth(lines[index]) == indent && lines[index].trim_start().starts_with('#'))
        .last()
        .unwrap_or(start);
    lines.drain(first..end);
    Some(lines.join("\n") + "\n")
}

fn yaml_section(section: Entries, entries: &[(String, Value)]) -> String {
    let block = entries.iter().map(|(name, entry)| yaml_entry(name, entry, 2)).collect::<String>();
    format!("{}:\n{block}", section.key())
}

fn yaml_entry(name: &str, entry: &Value, indent: usize) -> String {
    let mut out = format!("{:indent$}{}:\n", "", scalar(name));
    yaml_members(entry, indent * 2, &mut out);
    out
}

fn yaml_members(value: &Value, indent: usize, out: &mut String) {
    for (key, item) in value.as_object().into_iter().flatten() {
        out.push_str(&" ".repeat(indent));
        out.push_str(&scalar(key));
        out.push(':');
        match item {
            Value::Object(map) if !map.is_empty() => {
                out.push('\n');
                yaml_members(item, indent + 2, out);
                continue;
            }
            Value::Array(items) => {
                let items: Vec<String> =
                    items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), quoted)).collect();
                out.push_str(&format!(" [{}]", items.join(", ")));
            }
            Value::String(text) => {
                out.push(' ');
                out.push_str(&scalar(text));
            }
            other => out.push_str(&format!(" {other}")),
        }
        out.push('\n');
    }
}

/// Writes a text as a YAML scalar: plain if it is unambiguous, else as a JSON string.
fn scalar(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-@+:".contains(c))
        && !text.ends_with(':')
        && !["true", "false", "null", "yes", "no", "on", "off"].contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn remove_server(text: &str, name: &str) -> Result<String, EditError> {
        remove_entry(text, Entries::Servers, name)
    }

    fn git() -> Vec<(String, Value)> {
        vec![("git".into(), json!({"command": "uvx", "args": ["mcp-server-git"], "env": {"N": "1"}}))]
    }

    fn check_add(before: &str, expect: &str) {
        assert_eq!(add_servers(before, &git()).expect("edit"), expect);
    }

    const GIT: &str = "  git:\n    command: uvx\n    args: [\"mcp-server-git\"]\n    env:\n      \"N\": \"1\"\n";

    #[test]
    fn additions_leave_other_entries_unchanged() {
        let git = GIT.replace("\"N\"", "N");
        check_add("", &format!("mcpServers:\n{git}"));
        check_add("# mine\ndefaults: {}\n", &format!("# mine\ndefaults: {{}}\n\nmcpServers:\n{git}"));
        check_add("mcp_servers: # here\nqueues: {}\n", &format!("mcp_servers: # here\n{git}queues: {{}}\n"));
        check_add("mcpServers: {}\n", &format!("mcpServers:\n{git}"));
        check_add(
            "mcpServers:\n  # one\n  a:\n    command: x # run\n    # env: later\n\n# end\nweb: {}\n",
            &format!("mcpServers:\n  # one\n  a:\n    command: x # run\n    # env: later\n{git}\n# end\nweb: {{}}\n"),
        );
        let four = git
            .replace("      N", "            N")
            .replace("    command", "        command")
            .replace("    args", "        args")
            .replace("    env", "        env");
        let four = four.replacen("  git", "    git", 1).replace("            N", "          N");
        check_add(
            "mcpServers:\n    a:\n        command: x\n",
            &format!("mcpServers:\n    a:\n        command: x\n{four}"),
        );
        check_add(
            "{\n    \"mcpServers\": {}\n}\n",
            "{\n    \"mcpServers\": {\n        \"git\": {\n            \"command\": \"uvx\",\n            \"args\": [\n                \"mcp-server-git\"\n            ],\n            \"env\": {\n                \"N\": \"1\"\n            }\n        }\n    }\n}\n",
        );
    }

    #[test]
    fn uneditable_configurations_are_refused() {
        assert!(matches!(add_servers("mcpServers: {a: {command: x}}\n", &git()), Err(EditError::Layout(_))));
        assert!(matches!(add_servers("mcpServers:\n  git:\n    command: x\n", &git()), Err(EditError::Exists(_))));
        assert!(matches!(add_servers("a: [\n", &git()), Err(EditError::Broken(_))));
        assert!(matches!(remove_server("mcpServers:\n  git:\n    command: x\n", "other"), Err(EditError::Missing(_))));
        assert!(matches!(remove_server("mcpServers: {a: {command: x}}\n", "a"), Err(EditError::Layout(_))));
    }

    #[test]
    fn removal_undoes_addition() {
        for text in
            ["# top\nmcpServers:\n  # one\n  a:\n    command: x\n\n# end\nweb: {}\n", "{\n  \"mcpServers\": {}\n}\n"]
        {
            let added = add_servers(text, &git()).expect("add");
            assert_eq!(remove_server(&added, "git").expect("remove"), text);
        }
        let last = remove_server("mcpServers:\n  a:\n    command: x\n  # note\nweb: {}\n", "a").expect("last");
        assert_eq!(last, "mcpServers:\n  # note\nweb: {}\n");
    }

    #[test]
    fn removal_takes_the_entrys_own_comments() {
        for (before, after) in [
            (
                "mcpServers:\n  # about a\n  # more\n  a:\n    command: x\n  b:\n    command: y\n",
                "mcpServers:\n  b:\n    command: y\n",
            ),
            (
                "mcpServers:\n  # all\n\n  # about a\n  a:\n    command: x\n  # about b\n  b:\n    command: y\n",
                "mcpServers:\n  # all\n\n  # about b\n  b:\n    command: y\n",
            ),
            (
                "mcpServers:\n    # aside\n  a:\n    command: x\n  b:\n    command: y\n",
                "mcpServers:\n    # aside\n  b:\n    command: y\n",
            ),
        ] {
            assert_eq!(remove_server(before, "a").expect("remove"), after);
        }
    }

    #[test]
    fn unusual_texts_survive() {
        let entry = json!({"command": "a b", "args": ["-y", "#x", "a: b", "1.10", "true", ""], "env": {"K": "${V:-x}", "L": "yes"}});
        let text = add_servers("", &[("Time Server".into(), entry.clone())]).expect("edit");
        assert_eq!(parse(&text).expect("yaml")["mcpServers"]["Time Server"], entry);
    }

    #[test]
    fn a_removed_section_returns_to_its_place() {
        let check = |text: &str, shown: Option<&str>, section: &str, expect: &str| {
            assert_eq!(section_text(text, "policy").expect("read").as_deref(), shown, "{text}");
            assert_eq!(put_section(text, "policy", section).expect("edit"), expect, "{text}");
        };
        check("a: 1\n", None, "profile: ask", "a: 1\n\npolicy:\n  profile: ask\n");
        check(
            "policy: # mine\n    # first\n    rules:\n      - effect: deny\n\nweb: {}\n",
            Some("# first\nrules:\n  - effect: deny\n"),
            "# first\nrules: []\n",
            "policy: # mine\n  # first\n  rules: []\n\nweb: {}\n",
        );
        check(
            "policy: {profile: \"a # b\"} # why\n",
            Some("{\n  \"profile\": \"a # b\"\n}"),
            "profile: ask",
            "policy: # why\n  profile: ask\n",
        );
        let json = "{\n  \"profile\": \"ask\"\n}";
        check("policy: {profile: ask}\n", Some(json), json, "policy:\n  {\n    \"profile\": \"ask\"\n  }\n");
        check(
            "{\"policy\": {\"profile\": \"ask\"}}",
            Some(json),
            "profile: client",
            "{\n  \"policy\": {\n    \"profile\": \"client\"\n  }\n}\n",
        );
        assert!(put_section("a: 1\n", "policy", "- x").is_err());
    }

    #[test]
    fn a_rule_is_inserted_at_its_position() {
        let rule = Rule::allow("shop:order");
        let check = |section: &str, place: usize, expect: &str| {
            let edited = add_rule(section, place, &rule).expect("edit");
            assert_eq!(edited, expect, "{section}");
        };
        let added = "rules:\n  - effect: allow\n    tool: shop:order\n";
        check("", 0, added);
        check(
            "profile: ask\nrules: [] # none\n",
            0,
            &format!("profile: ask\n{}", added.replace("s:\n", "s: # none\n")),
        );
        let rules = "rules:\n# no web\n- effect: deny\n  namespace: web\n\n# paid\n- {effect: ask, namespace: shop}\nprofile: ask\n";
        let allow = "- effect: allow\n  tool: shop:order\n";
        check(rules, 0, &rules.replace("# no web", &format!("{allow}# no web")));
        check(rules, 1, &rules.replace("\n\n# paid", &format!("\n{allow}\n# paid")));
        check(rules, 2, &rules.replace("profile", &format!("{allow}profile")));
        check(
            "{\"rules\": []}",
            0,
            "{\n  \"rules\": [\n    {\n      \"effect\": \"allow\",\n      \"tool\": \"shop:order\"\n    }\n  ]\n}\n",
        );
        assert!(add_rule("rules: [{effect: deny}]\n", 0, &rule).is_err());
        assert!(add_rule("rules: []\n", 1, &rule).is_err());
    }
}
