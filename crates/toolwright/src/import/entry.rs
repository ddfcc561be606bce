//! One foreign server entry in our keys.

use std::time::Duration;

use serde_json::{Map, Value, json};
use toolwright_core::duration;

use super::Source;
use crate::config::{foreign, snake_case};

/// The entry in our keys; what is lost goes to `notes`. `None` when there is nothing to connect to.
pub(super) fn carry_over(source: Source, name: &str, written: &Value, notes: &mut Vec<String>) -> Option<Value> {
    let mut entry = Map::new();
    let mut note = |text: String| {
        let note = format!("{name}: {text}");
        if !notes.contains(&note) {
            notes.push(note);
        }
    };
    let written = written.as_object()?;
    for (key, value) in written {
        let value = &translated(value, &mut note);
        match snake_case(key).as_str() {
            // Zed nests path, args and env under `command`.
            "command" if value.is_object() => {
                for (from, to) in [("path", "command"), ("args", "args"), ("env", "env")] {
                    put(&mut entry, to, value.get(from));
                }
            }
            key @ ("command" | "args" | "env" | "cwd" | "headers") => put(&mut entry, key, Some(value)),
            "url" | "server_url" | "http_url" => put(&mut entry, "url", Some(value)),
            "http_headers" => put_pairs(&mut entry, "headers", value, |text| text.to_owned()),
            "env_http_headers" => put_pairs(&mut entry, "headers", value, |text| format!("${{{text}}}")),
            "env_vars" => {
                for variable in value.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    put_pairs(&mut entry, "env", &json!({ variable: variable }), |text| format!("${{{text}}}"));
                }
            }
            "bearer_token_env_var" => put_pairs(&mut entry, "headers", &json!({ "Authorization": value }), |text| {
                format!("Bearer ${{{text}}}")
            }),
            "type" | "transport" => match value.as_str() {
                Some("sse" | "ws" | "websocket") => put(&mut entry, "type", Some(value)),
                Some("stdio" | "http" | "streamable-http" | "streamableHttp") => {}
                _ => note(format!("its type {value} is not known and was left out")),
            },
            "disabled" if value == &json!(true) => put(&mut entry, "enabled", Some(&json!(false))),
            "enabled" if value == &json!(false) => put(&mut entry, "enabled", Some(value)),
            "disabled" | "enabled" | "name" => {}
            "enabled_tools" | "tools_allowed" => put(&mut entry, "tools_allowed", Some(value)),
            "disabled_tools" | "tools_denied" => put(&mut entry, "tools_denied", Some(value)),
            span @ ("tool_timeout_sec" | "startup_timeout_sec" | "startup_timeout_ms") => {
                let of = if span == "tool_timeout_sec" { "request_timeout" } else { "connect_timeout" };
                match seconds(value, if span.ends_with("_ms") { 0.001 } else { 1.0 }) {
                    Some(time) => put(&mut entry, of, Some(&json!(duration::format(time)))),
                    None => note(format!("`{key}` is not carried over: {value} is no time")),
                }
            }
            "timeout" => match value.as_u64().and_then(foreign::timeout) {
                Some(read) => {
                    let text = duration::format(read);
                    note(format!("its `timeout` {value} is read as {text}"));
                    entry.entry("request_timeout").or_insert(Value::String(text));
                }
                None => note(format!("`{key}` is not carried over")),
            },
            "always_allow" | "auto_approve" if value.as_array().is_some_and(Vec::is_empty) => {}
            "always_allow" | "auto_approve" => {
                note(format!("its list of tools that run without asking is not taken over: {value}"))
            }
            "source" if source == Source::Zed => {}
            "trusted" => {
                note(format!("`{key}` is not carried over: write it here if its word on effects may loosen policy"))
            }
            known if foreign::is_understood(known, value) => put(&mut entry, known, Some(value)),
            "env_file" => note(format!("`{key}` is not carried over: write the variables of that file under `env`")),
            _ => note(format!("`{key}` is not carried over")),
        }
    }
    let usable = entry.contains_key("command") || entry.contains_key("url");
    usable.then(|| Value::Object(ordered(entry)))
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

/// A number of `unit` seconds; less than a millisecond is no time at all.
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

/// Keys in the order people write them.
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

/// Other clients' placeholders in our form: `${input:api-key}` becomes `${API_KEY}`.
fn translated(value: &Value, note: &mut dyn FnMut(String)) -> Value {
    match value {
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
        Value::Array(items) => items.iter().map(|item| translated(item, note)).collect(),
        Value::Object(map) => {
            map.iter().map(|(key, item)| (key.clone(), translated(item, note))).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}
