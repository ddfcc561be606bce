//! Translates one foreign server entry into Toolwright's keys.

use std::time::Duration;

use serde_json::{Map, Value, json};
use toolwright_core::duration;
use toolwright_core::tool_id::server_namespace;

use super::Source;
use crate::config::{is_understood, snake_case, timeout};

/// Returns the entry with our keys; settings that are lost go to `notes`. `None` if there is nothing to connect to.
pub(super) fn convert_entry(source: Source, name: &str, written: &Value, notes: &mut Vec<String>) -> Option<Value> {
    let mut entry = Map::new();
    let mut note = |text: String| {
        let note = format!("{name}: {text}");
        if !notes.contains(&note) {
            notes.push(note);
        }
    };
    let written = written.as_object()?;
    let unused = if source == Source::Gemini { unused_by_gemini(written, &mut note) } else { &[] };
    for (key, value) in written.iter().filter(|(key, _)| !unused.contains(&key.as_str())) {
        let value = &translated(source, value, &mut note);
        match snake_case(key).as_str() {
            // Zed nests path, args and env under `command`.
            "command" if value.is_object() => {
                for (from, to) in [("path", "command"), ("args", "args"), ("env", "env")] {
                    put(&mut entry, to, value.get(from));
                }
            }
            // opencode includes the arguments.
            "command" if value.is_array() => {
                let words = value.as_array().map(Vec::as_slice).unwrap_or_default();
                put(&mut entry, "command", words.first());
                put(&mut entry, "args", words.get(1..).map(|args| Value::from(args.to_vec())).as_ref());
            }
            "environment" => put(&mut entry, "env", Some(value)),
            key @ ("command" | "args" | "env" | "cwd" | "headers") => put(&mut entry, key, Some(value)),
            "url" | "server_url" | "http_url" => put(&mut entry, "url", Some(value)),
            "http_headers" => put_pairs(&mut entry, "headers", value, |text| text.to_owned()),
            "env_http_headers" => put_pairs(&mut entry, "headers", value, |text| format!("${{{text}}}")),
            "env_vars" => {
                let name = |variable: &'_ Value| variable.get("name").unwrap_or(variable).as_str().map(str::to_owned);
                for variable in value.as_array().into_iter().flatten().filter_map(name) {
                    put_pairs(&mut entry, "env", &json!({ &*variable: variable }), |text| format!("${{{text}}}"));
                }
            }
            "bearer_token_env_var" => put_pairs(&mut entry, "headers", &json!({ "Authorization": value }), |text| {
                format!("Bearer ${{{text}}}")
            }),
            "type" | "transport" => match value.as_str() {
                Some("sse" | "ws" | "websocket") => put(&mut entry, "type", Some(value)),
                Some("stdio" | "local" | "http" | "remote" | "streamable-http" | "streamableHttp") => {}
                _ => note(format!("its type {value} is not known and was left out")),
            },
            "disabled" if value == &json!(true) => put(&mut entry, "enabled", Some(&json!(false))),
            "enabled" if value == &json!(false) => put(&mut entry, "enabled", Some(value)),
            "disabled" | "enabled" | "name" => {}
            // For these clients an empty list allows nothing, for us everything.
            "enabled_tools" | "include_tools" if value.as_array().is_some_and(Vec::is_empty) => {
                deny(&mut entry, [&json!("*")]);
            }
            "enabled_tools" | "include_tools" | "tools_allowed" => put(&mut entry, "tools_allowed", Some(value)),
            "disabled_tools" | "exclude_tools" | "tools_denied" => {
                deny(&mut entry, value.as_array().into_iter().flatten());
            }
            "tools" if source == Source::Codex => {
                for (tool, settings) in value.as_object().into_iter().flatten() {
                    codex_tool(name, tool, settings, &mut entry, &mut note);
                }
            }
            "default_tools_approval_mode" if source == Source::Codex => approval_mode(name, "*", value, &mut note),
            span @ ("tool_timeout_sec" | "startup_timeout_sec" | "startup_timeout_ms") => {
                let of = if span == "tool_timeout_sec" { "request_timeout" } else { "connect_timeout" };
                match seconds(value, if span.ends_with("_ms") { 0.001 } else { 1.0 }) {
                    Some(time) => put(&mut entry, of, Some(&json!(duration::format(time)))),
                    None => note(format!("`{key}` is not imported: {value} is no time")),
                }
            }
            "timeout" => match value.as_u64().and_then(timeout) {
                Some(read) => {
                    let text = duration::format(read);
                    note(format!("its `timeout` {value} is read as {text}"));
                    entry.entry("request_timeout").or_insert(Value::String(text));
                }
                None => note(format!("`{key}` is not imported")),
            },
            "always_allow" | "auto_approve" if value.as_array().is_some_and(Vec::is_empty) => {}
            "always_allow" | "auto_approve" => {
                note(format!("its list of tools that run without asking is not imported: {value}"))
            }
            "source" if source == Source::Zed => {}
            "trust" => note("its permission to run tools without asking is not imported".into()),
            "trusted" => {
                note(format!("`{key}` is not imported: set it here if its claims about effects may loosen policy"))
            }
            known if is_understood(known, value) => put(&mut entry, known, Some(value)),
            "env_file" => note(format!("`{key}` is not imported: write the variables of that file under `env`")),
            _ => note(format!("`{key}` is not imported")),
        }
    }
    let usable = entry.contains_key("command") || entry.contains_key("url");
    usable.then(|| Value::Object(ordered(entry)))
}

/// Returns the keys that Gemini CLI ignores: it uses the first of `httpUrl`, `url` and `command` that an entry has
/// (`createTransport` of its `packages/core/src/tools/mcp-client.ts`).
fn unused_by_gemini(written: &Map<String, Value>, note: &mut dyn FnMut(String)) -> &'static [&'static str] {
    let has = |key: &str| written.get(key).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    let (used, unused): (_, &[&str]) = match (has("httpUrl"), has("url")) {
        (true, _) => ("httpUrl", &["url", "command", "args", "env", "cwd"]),
        (false, true) => ("url", &["command", "args", "env", "cwd"]),
        (false, false) => return &[],
    };
    for other in ["url", "command"] {
        if unused.contains(&other) && has(other) {
            note(format!("Gemini CLI uses its `{used}`, so its `{other}` is not imported"));
        }
    }
    unused
}

/// Translates Codex's settings of one tool (`McpServerToolConfig` of its `config/src/mcp_types.rs`).
fn codex_tool(
    server: &str,
    tool: &str,
    settings: &Value,
    entry: &mut Map<String, Value>,
    note: &mut dyn FnMut(String),
) {
    for (key, value) in settings.as_object().into_iter().flatten() {
        match key.as_str() {
            "approval_mode" => approval_mode(server, tool, value, note),
            "enabled" if value == &json!(false) => deny(entry, [&json!(tool)]),
            "enabled" => {}
            _ => note(format!("`tools.{tool}.{key}` is not imported")),
        }
    }
}

/// Translates Codex's modes: `auto` and `writes` ask as policy does here; `prompt` asks more, `approve` never.
fn approval_mode(server: &str, tool: &str, mode: &Value, note: &mut dyn FnMut(String)) {
    let namespace = server_namespace(server, &|_| false);
    match mode.as_str() {
        Some("auto" | "writes") => {}
        Some("prompt") => note(format!(
            "codex asks before `{tool}`: to keep that, write {{effect: ask, tool: \"{namespace}:{tool}\"}} under policy.rules"
        )),
        Some("approve") => note(format!("codex runs `{tool}` without asking: that is not imported")),
        _ => note(format!("the approval mode {mode} of `{tool}` is unknown and is not imported")),
    }
}

/// Adds to the denied tools.
fn deny<'v>(entry: &mut Map<String, Value>, tools: impl IntoIterator<Item = &'v Value>) {
    let mut tools = tools.into_iter().cloned().peekable();
    if tools.peek().is_some()
        && let Some(denied) = entry.entry("tools_denied").or_insert_with(|| json!([])).as_array_mut()
    {
        denied.extend(tools);
    }
}

fn put(entry: &mut Map<String, Value>, key: &str, value: Option<&Value>) {
    if let Some(value) = value
        && !matches!(value, Value::Null)
        && !value.as_array().is_some_and(Vec::is_empty)
        && !value.as_object().is_some_and(Map::is_empty)
    {
        entry.insert(key.to_owned(), value.clone());
    }
}

/// Converts a number of `unit` seconds; `None` below a millisecond.
fn seconds(number: &Value, unit: f64) -> Option<Duration> {
    let time = Duration::try_from_secs_f64(number.as_f64()? * unit).ok()?;
    (time >= Duration::from_millis(1)).then_some(time)
}

fn put_pairs(entry: &mut Map<String, Value>, key: &str, pairs: &Value, form: impl Fn(&str) -> String) {
    for (name, value) in pairs.as_object().into_iter().flatten() {
        if let Some(text) = value.as_str()
            && let Some(map) = entry.entry(key).or_insert_with(|| json!({})).as_object_mut()
        {
            map.insert(name.clone(), Value::String(form(text)));
        }
    }
}

/// Orders keys as people write them.
fn ordered(mut entry: Map<String, Value>) -> Map<String, Value> {
    let mut out = Map::new();
    for key in ["enabled", "type", "command", "args", "env", "cwd", "url", "headers"] {
        if let Some(value) = entry.shift_remove(key) {
            out.insert(key.to_owned(), value);
        }
    }
    out.extend(entry);
    out
}

/// Converts other clients' placeholders to ours: `${input:api-key}` becomes `${API_KEY}`, opencode's `{env:KEY}` and
/// Gemini's `$KEY` become `${KEY}`.
fn translated(source: Source, value: &Value, note: &mut dyn FnMut(String)) -> Value {
    match value {
        Value::String(text) if source == Source::Opencode && text.contains('{') => {
            if text.contains("{file:") {
                note(format!("`{text}` names a file: put its content into a variable, and write ${{VARIABLE}}"));
            }
            Value::String(text.replace("{env:", "${env:"))
        }
        Value::String(text) if source == Source::Gemini && text.contains('$') => Value::String(with_braces(text)),
        Value::String(text) if text.contains("${") => {
            let mut out = text.replace("${userHome}", "${HOME}");
            if out.contains("${workspaceFolder}") {
                note("`${workspaceFolder}` is filled in with Toolwright's workspace root (--root), not with the folder that the client has open".into());
            }
            while let Some(start) = out.find("${input:") {
                let Some(length) = out[start..].find('}') else { break };
                let variable: String = out[start + 8..start + length]
                    .chars()
                    .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
                    .collect();
                note(format!("it asks for an input; set the variable {variable} instead"));
                out.replace_range(start..=start + length, &format!("${{{variable}}}"));
            }
            Value::String(out)
        }
        Value::Array(items) => items.iter().map(|item| translated(source, item, note)).collect(),
        Value::Object(map) => {
            map.iter().map(|(key, item)| (key.clone(), translated(source, item, note))).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

/// Replaces each `$NAME` in the text by `${NAME}`.
fn with_braces(text: &str) -> String {
    let mut parts = text.split('$');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        if name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            out.push_str(&format!("${{{name}}}{rest}"));
        } else {
            out.push('$');
            out.push_str(part);
        }
    }
    out
}
