//! Checks a configuration tree against the schema of its structs, which defines all keys, types and bounds. Also
//! normalises camelCase keys. The published schema is derived from the same structs.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use toolwright_core::pattern::nearest;
use toolwright_core::policy::Condition;
use toolwright_core::setting::is_off;

use super::file::{ConfigFile, PolicyConfig};
use super::servers;
use crate::config::files::LayerKind;
use crate::config::files::node::{Data, Member, Node, Problem, Severity, SourceLocation};

/// Schema keyword: members of this mapping are independent; an invalid one is left out.
pub(crate) const ENTRIES: &str = "x-entries";
/// Schema keyword: unknown keys are from other programs and only warn.
pub(crate) const FOREIGN_KEYS: &str = "x-foreign-keys";
/// Schema keyword: this section has no effect in this version.
pub(crate) const UNSUPPORTED: &str = "x-unsupported";
/// Schema keyword: alternative names of a key, in snake case.
pub(crate) const ALIASES: &str = "x-aliases";
/// Keys that restrict something. A misspelled one must not be ignored.
const GUARDS: [&str; 10] = [
    "tools_allowed",
    "tools_denied",
    "enabled",
    "disabled",
    "sandbox",
    "include_tools",
    "exclude_tools",
    "enabled_tools",
    "disabled_tools",
    "no_schema_mode",
];
/// Words in other programs' keys that restrict something. Those that permit something (`alwaysAllow`, `autoApprove`)
/// are ignored.
const CLOSING: [&str; 13] = [
    "allow",
    "allowed",
    "allowlist",
    "whitelist",
    "deny",
    "denied",
    "denylist",
    "block",
    "blocked",
    "blocklist",
    "blacklist",
    "readonly",
    "approval",
];
/// Schema keyword: numbers and booleans are taken as their written text.
pub(crate) const TEXT: &str = "x-text";

/// Checks `node`, removes invalid parts, and adds the errors to `problems`.
pub(crate) fn check(node: &mut Node, schema: &Value, problems: &mut Vec<Problem>) {
    Walk { path: Vec::new(), problems }.visit(node, schema);
}

struct Walk<'a> {
    path: Vec<String>,
    problems: &'a mut Vec<Problem>,
}

impl Walk<'_> {
    fn visit(&mut self, node: &mut Node, schema: &Value) {
        let schema = branch(node, schema);
        if schema.get(TEXT).is_some() {
            match &node.data {
                Data::Number(_, written) => node.data = Data::Text(written.clone()),
                Data::Bool(value) => node.data = Data::Text(value.to_string()),
                _ => {}
            }
        }
        if !accepts(node, schema) {
            let remedy = match (&node.data, expected(schema).as_str()) {
                (Data::Number(..) | Data::Bool(_), "text") => "put it in quotes".to_owned(),
                (Data::Text(_), "a whole number") => "write digits only, without quotes or a unit".to_owned(),
                (Data::Text(_), "true or false") => "write true or false without quotes".to_owned(),
                (_, wanted) => format!("write {wanted} here"),
            };
            self.report(&node.at, format!("expected {}, found {}", expected(schema), node.kind()), remedy);
            return;
        }
        self.scalar(node, schema);
        if let Data::List(items) = &mut node.data
            && let Some(item_schema) = schema.get("items")
        {
            for (index, item) in items.iter_mut().enumerate() {
                self.path.push(index.to_string());
                self.visit(item, item_schema);
                self.path.pop();
            }
        }
        self.members(node, schema);
    }

    fn scalar(&mut self, node: &Node, schema: &Value) {
        match &node.data {
            Data::Text(text) if schema.get("format").and_then(Value::as_str) == Some("condition") => {
                if let Err(error) = Condition::compile(text.as_str()) {
                    let remedy = "fix it; `toolwright policy test` tries it on a call";
                    self.report(&node.at, error.to_string(), remedy);
                }
            }
            Data::Text(text) => {
                let choices = choices(schema);
                if !choices.is_empty() && !choices.contains(&text.as_str()) {
                    let hint = nearest(text, choices.iter().copied()).map(|near| format!("did you mean `{near}`?"));
                    let remedy = hint.unwrap_or_else(|| format!("choose one of {}", choices.join(", ")));
                    self.report(&node.at, format!("`{text}` is not one of {}", choices.join(", ")), remedy);
                }
                let format = schema.get("format").and_then(Value::as_str);
                if format == Some("duration") || (format == Some("ttl") && !is_off(text)) {
                    match toolwright_core::duration::parse(text) {
                        Ok(duration) if duration.is_zero() => {
                            let remedy = "write more, like 30s, or leave the key out for its default";
                            self.report(&node.at, format!("`{text}` leaves no time at all"), remedy);
                        }
                        Ok(_) => {}
                        Err(error) => self.report(
                            &node.at,
                            format!("`{}` is not a duration", error.0),
                            "write a number with ms, s, m, h, d or w, like 30s",
                        ),
                    }
                }
            }
            Data::Number(number, written) => {
                let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
                let value = number.as_f64().unwrap_or_default();
                if bound("minimum").is_some_and(|minimum| value < minimum) {
                    let minimum = schema["minimum"].as_f64().unwrap_or_default();
                    self.report(&node.at, format!("{written} is too small"), format!("write {minimum} or more"));
                } else if bound("maximum").is_some_and(|maximum| value > maximum) {
                    let maximum = schema["maximum"].as_f64().unwrap_or_default();
                    self.report(&node.at, format!("{written} is too large"), format!("write {maximum} or less"));
                }
            }
            _ => {}
        }
    }

    fn members(&mut self, node: &mut Node, schema: &Value) {
        let Data::Map(members) = &mut node.data else { return };
        let properties = schema.get("properties").and_then(Value::as_object);
        let entries = schema.get(ENTRIES).is_some();
        let mut seen_keys: Vec<String> = Vec::new();
        members.retain_mut(|member| {
            if let Some(properties) = properties
                && !properties.contains_key(&member.key)
                && let Some(known) = known_as(&snake_case(&member.key), properties)
            {
                member.key = known;
            }
            self.path.push(member.key.clone());
            let before = self.problems.len();
            let key_schema = properties.and_then(|properties| properties.get(&member.key));
            // A key without a value, for example because everything below it is commented out, counts as not given.
            if matches!(member.value.data, Data::Null) && key_schema.is_some_and(|known| !accepts(&member.value, known))
            {
                self.path.pop();
                return false;
            }
            let keep = if seen_keys.contains(&member.key) {
                self.report(&member.at, "it is given twice, in two spellings".into(), "keep one of them");
                false
            } else {
                seen_keys.push(member.key.clone());
                self.member(member, key_schema, schema)
            };
            self.path.pop();
            let broken = self.problems[before..].iter().any(|problem| problem.severity == Severity::Error);
            if entries && broken {
                for problem in &mut self.problems[before..] {
                    problem.severity = problem.severity.min(Severity::EntryDisabled);
                }
            }
            keep && !broken
        });
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        // A present but invalid key was already reported.
        for key in required.filter(|key| !seen_keys.iter().any(|have| have == key)) {
            let at = node.at.clone();
            self.report(&at, format!("`{key}` is missing"), format!("add `{key}:`"));
        }
    }

    /// Checks one member. Returns whether it may stay.
    fn member(&mut self, member: &mut Member, key_schema: Option<&Value>, schema: &Value) -> bool {
        // An error of a whole mapping or list is best reported at its key.
        if matches!(member.value.data, Data::Map(_) | Data::List(_)) {
            member.value.at = member.at.clone();
        }
        match (key_schema, schema.get("additionalProperties")) {
            (Some(known), _) if known.get(UNSUPPORTED).is_some() => {
                self.problems.push(Problem::new(
                    Severity::Warning,
                    &member.at,
                    self.path.join("."),
                    "not supported by this version: it has no effect",
                    "remove it, or keep it for a later version",
                ));
                false
            }
            (Some(known), _) => {
                self.visit(&mut member.value, known);
                true
            }
            (None, Some(Value::Object(each))) => {
                self.visit(&mut member.value, &Value::Object(each.clone()));
                true
            }
            (None, Some(Value::Bool(false))) => {
                self.unknown(member, schema);
                false
            }
            (None, _) => {
                if schema.get(FOREIGN_KEYS).is_some() {
                    self.unknown(member, schema);
                    return false;
                }
                true
            }
        }
    }

    fn unknown(&mut self, member: &Member, schema: &Value) {
        let properties = schema.get("properties").and_then(Value::as_object);
        let names = || properties.into_iter().flat_map(|properties| properties.keys().map(String::as_str));
        let foreign = self.foreign_section(&member.key);
        let near = nearest(&snake_case(&member.key), names());
        let guards = near.is_some_and(|near| GUARDS.contains(&near)) || closes(&snake_case(&member.key));
        let is_warning = schema.get(FOREIGN_KEYS).is_some() && !guards;
        let severity = if is_warning { Severity::Warning } else { Severity::Error };
        let remedy = match near {
            _ if foreign.is_some() => foreign.unwrap_or_default(),
            // In the spelling of the documentation, or of the file.
            Some(near) if is_section(near) || member.key.contains(|c: char| c.is_ascii_uppercase()) => {
                format!("did you mean `{}`?", camel_case(near))
            }
            Some(near) => format!("did you mean `{near}`?"),
            None if is_default(&member.key, schema) => "write it under `defaults`".to_owned(),
            None if severity == Severity::Warning => "it is ignored".to_owned(),
            None => format!("remove it; the keys here are {}", names().collect::<Vec<_>>().join(", ")),
        };
        let field = self.path.join(".");
        self.problems.push(Problem::new(severity, &member.at, field, format!("unknown key `{}`", member.key), remedy));
    }

    /// Returns the remedy for a section under which another client keeps its servers.
    fn foreign_section(&self, key: &str) -> Option<String> {
        let client = match (self.path.len(), key) {
            (1, "servers" | "inputs") => "vscode",
            (1, "context_servers") => "zed",
            _ => return None,
        };
        Some(format!(
            "it is another client's: servers are under `mcpServers` here; `toolwright import {client}` imports them"
        ))
    }

    fn report(&mut self, at: &SourceLocation, message: String, remedy: impl Into<String>) {
        self.problems.push(Problem::new(Severity::Error, at, self.path.join("."), message, remedy));
    }
}

/// Returns whether an unknown key is one of the section `defaults`.
fn is_default(key: &str, schema: &Value) -> bool {
    let defaults = schema.pointer("/properties/defaults/properties").and_then(Value::as_object);
    defaults.is_some_and(|defaults| known_as(&snake_case(key), defaults).is_some())
}

/// Returns whether an unknown key looks like a restriction.
fn closes(key: &str) -> bool {
    let words: Vec<&str> = key.split('_').collect();
    let opens = matches!(words.first(), Some(&("always" | "auto")));
    !opens && (words.iter().any(|word| CLOSING.contains(word)) || key.contains("read_only"))
}

/// Returns the branch of an `anyOf` that fits the node: `Option<T>` gives `[T, null]`.
pub(in crate::config) fn branch<'s>(node: &Node, schema: &'s Value) -> &'s Value {
    let Some(branches) = schema.get("anyOf").and_then(Value::as_array) else { return schema };
    branches.iter().find(|branch| accepts(node, branch)).or_else(|| branches.first()).unwrap_or(schema)
}

fn accepts(node: &Node, schema: &Value) -> bool {
    let types = types(schema);
    types.is_empty()
        || types.iter().any(|kind| match &node.data {
            Data::Null => *kind == "null",
            Data::Bool(_) => *kind == "boolean",
            Data::Number(number, _) => *kind == "number" || (*kind == "integer" && !number.is_f64()),
            Data::Text(_) => *kind == "string",
            Data::List(_) => *kind == "array",
            Data::Map(_) => *kind == "object",
        })
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        // The variants of a documented enum are a `oneOf` of constants.
        _ => schema.get("oneOf").and_then(Value::as_array).into_iter().flatten().flat_map(types).collect(),
    }
}

fn expected(schema: &Value) -> String {
    match schema.get("format").and_then(Value::as_str) {
        Some("duration") => return "a duration like 30s".to_owned(),
        Some("ttl") => return "a duration like 5m, or off".to_owned(),
        _ => {}
    }
    let mut words: Vec<&str> = Vec::new();
    for kind in types(schema) {
        let word = match kind {
            "string" => "text",
            "integer" => "a whole number",
            "number" => "a number",
            "boolean" => "true or false",
            "array" => "a list",
            "object" => "a mapping",
            _ => continue,
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words.join(" or ")
}

fn choices(schema: &Value) -> Vec<&str> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().filter_map(Value::as_str).collect();
    }
    let mut all = Vec::new();
    for variant in schema.get("oneOf").and_then(Value::as_array).into_iter().flatten() {
        all.extend(variant.get("const").and_then(Value::as_str));
        all.extend(choices(variant));
    }
    all
}

/// Returns the known key for `key`, in snake case.
fn known_as(key: &str, properties: &Map<String, Value>) -> Option<String> {
    if properties.contains_key(key) {
        return Some(key.to_owned());
    }
    let is_meant = |property: &Value| {
        let aliases = property.get(ALIASES).and_then(Value::as_array);
        aliases.is_some_and(|aliases| aliases.iter().any(|alias| alias == key))
    };
    properties.iter().find(|(_, property)| is_meant(property)).map(|(known, _)| known.clone())
}

/// Converts `mcpServers` to `mcp_servers`, `traceMCP` to `trace_mcp`.
pub(crate) fn snake_case(key: &str) -> String {
    let mut out = String::with_capacity(key.len() + 4);
    let mut chars = key.chars().peekable();
    let mut before = None;
    while let Some(c) = chars.next() {
        let ends_acronym = chars.peek().is_some_and(char::is_ascii_lowercase);
        let begins =
            c.is_ascii_uppercase() && before.is_some_and(|before: char| !before.is_ascii_uppercase() || ends_acronym);
        if begins {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
        before = Some(c);
    }
    out
}

/// Converts `mcp_servers` to `mcpServers`.
pub(crate) fn camel_case(key: &str) -> String {
    let mut parts = key.split('_');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut chars = part.chars();
        out.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        out.push_str(chars.as_str());
    }
    out
}

/// Returns whether documentation writes this section in camelCase, because other clients share it.
fn is_section(key: &str) -> bool {
    matches!(key, "mcp_servers" | "rest_tools")
}

/// Returns the schema for the checker: with snake_case keys and without references.
pub(crate) fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<ConfigFile>().to_value();
        servers::add_keys(&mut schema["properties"]["mcp_servers"]["additionalProperties"]);
        schema
    })
}

/// Returns the schema of one entry of a section.
pub(in crate::config) fn entry_schema(section: &str) -> &'static Value {
    &section_schema(section)["additionalProperties"]
}

/// Returns the schema of one entry of `models.endpoints`.
pub(in crate::config) fn endpoint_schema() -> &'static Value {
    &section_schema("models")["properties"]["endpoints"]["additionalProperties"]
}

/// Returns the schema of one section for the checker.
pub(in crate::config) fn section_schema(name: &str) -> &'static Value {
    &schema()["properties"][name]
}

/// Returns the schema for editors (`toolwright config schema`): every key in both spellings, `mcp_servers` and
/// `mcpServers`, and sections that may be empty.
#[must_use]
pub fn json_schema() -> Value {
    let mut schema = schema().clone();
    as_written(&mut schema);
    schema
}

fn as_written(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(as_written);
            if let Some(Value::Object(properties)) = object.get_mut("properties") {
                for property in properties.values_mut() {
                    if let Some(kind) = property.get_mut("type")
                        && matches!(kind.as_str(), Some("object" | "array"))
                    {
                        *kind = json!([kind, "null"]);
                    }
                }
                let camel: Map<String, Value> = properties
                    .iter()
                    .filter(|(key, _)| key.contains('_'))
                    .map(|(key, value)| (camel_case(key), value.clone()))
                    .collect();
                properties.extend(camel);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(as_written),
        _ => {}
    }
}

/// Reads a policy from the text of `file`: the content of a `policy` section, alone or under the key `policy`, with
/// other sections ignored. So a whole configuration is accepted.
///
/// # Errors
/// All its errors, with lines.
pub fn policy_file(text: &str, file: &Path) -> Result<PolicyConfig, Vec<Problem>> {
    let file: Arc<Path> = file.into();
    let mut node = Node::parse(text, &file).map_err(|problem| vec![problem])?;
    if !matches!(node.data, Data::Map(_)) {
        let remedy = "write `profile` and `rules`, as in the policy section of a configuration";
        let message = format!("it holds {}, where a mapping belongs", node.kind());
        return Err(vec![Problem::new(Severity::Error, &node.at, "", message, remedy)]);
    }
    if let Some(section) = node.take("policy") {
        node = section.value;
    }
    let mut problems = Vec::new();
    check(&mut node, section_schema("policy"), &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    serde_json::from_value(node.to_value()).map_err(|error| {
        let remedy = "compare it with `toolwright config schema`";
        vec![Problem::new(Severity::Error, &SourceLocation { file, line: 0 }, "policy", error.to_string(), remedy)]
    })
}

/// Parses the text of a file to a tree that fits the schema; other parts are left out and reported.
///
/// # Errors
/// It is neither YAML nor JSON.
pub(crate) fn checked(
    text: &str,
    file: &Arc<Path>,
    kind: LayerKind,
    problems: &mut Vec<Problem>,
) -> Result<Node, Problem> {
    let is_foreign = kind == LayerKind::Foreign;
    let mut node = Node::parse(text, file).map_err(|problem| match is_foreign {
        // An invalid file of another program must not prevent the start.
        true => Problem { severity: Severity::EntryDisabled, ..problem },
        false => problem,
    })?;
    if is_foreign {
        keep_servers(&mut node, problems);
    }
    check(&mut node, schema(), problems);
    Ok(node)
}

fn keep_servers(node: &mut Node, problems: &mut Vec<Problem>) {
    if let Data::Map(members) = &mut node.data {
        members.retain(|member| {
            let ours = matches!(member.key.as_str(), "mcpServers" | "mcp_servers");
            if !ours {
                let message = "only `mcpServers` is read from this file";
                problems.push(Problem::new(
                    Severity::Warning,
                    &member.at,
                    &member.key,
                    message,
                    "move other settings to toolwright.yaml",
                ));
            }
            ours
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn camel_case_becomes_snake_case() {
        for (from, to) in [
            ("mcpServers", "mcp_servers"),
            ("url", "url"),
            ("httpUrl", "http_url"),
            ("toolResponseMaxBytes", "tool_response_max_bytes"),
            ("traceMCP", "trace_mcp"),
            ("MCPServers", "mcp_servers"),
        ] {
            assert_eq!(snake_case(from), to);
        }
    }

    fn read(text: &str) -> Result<PolicyConfig, Vec<Problem>> {
        policy_file(text, Path::new("p.yaml"))
    }

    #[test]
    fn policies_stand_alone_or_in_configurations() {
        let bare = "profile: ask\nrules:\n- effect: deny\n  when: has(args.x)\ntools:\n- tool: 'a:*'\n  tags: [t]\n";
        let whole =
            format!("server: {{http: x}}\npolicy:\n{}", bare.replace('\n', "\n  ").replace("profile", "  profile"));
        let policy = read(bare).expect("a policy");
        assert_eq!((policy.rules.len(), policy.tools.len()), (1, 1));
        assert_eq!(read(&whole).expect("a policy"), policy);
    }

    #[test]
    fn problems_name_file_line_and_field() {
        for (text, expect) in [
            (
                "rules:\n- effect: ask\n  when: args.",
                "p.yaml:3: error: rules.0.when: the condition cannot be read: 1:6",
            ),
            ("rules:\n- effect: ask\n  when: arg.x == 1", "names `arg`, which does not exist; did you mean `args`?"),
            ("rules:\n- effect: ask\n  whne: 'true'", "rules.0.whne: unknown key `whne`; did you mean `when`?"),
            ("- a", "holds a list, where a mapping belongs"),
            ("rules: [", "p.yaml"),
        ] {
            let problems = read(text).expect_err(text);
            let reported = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            assert!(reported.contains(expect), "{text}: {reported}");
        }
    }
}
