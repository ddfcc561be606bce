//! Replaces secrets in imported entries by variables, so that the configuration contains none.

use std::ops::Range;

use serde_json::Value;

use crate::secrets::{looks_secret, secrets_in_address, secrets_in_arguments, without_scheme};

/// Replaces the secrets of a converted entry by `${VAR}`. Returns the variables with their values. `variable_of`
/// returns the current value of a variable; a variable with a different value is not used.
///
/// Uncertain secrets and references to variables stay.
pub fn take_secrets(
    server: &str,
    entry: &mut Value,
    variable_of: &dyn Fn(&str) -> Option<String>,
) -> Vec<(String, String)> {
    let mut taken: Vec<(String, String)> = Vec::new();
    let mut take = |name: &str, secret: &str| {
        if secret.trim().is_empty() || secret.contains("${") {
            return None;
        }
        let variable = free_name(name, secret, &taken, variable_of);
        let reference = format!("${{{variable}}}");
        if !taken.iter().any(|(name, _)| *name == variable) {
            taken.push((variable, secret.to_owned()));
        }
        Some(reference)
    };
    for (section, is_own) in [("env", false), ("headers", true)] {
        for (key, value) in entry.get_mut(section).and_then(Value::as_object_mut).into_iter().flatten() {
            let Value::String(text) = value else { continue };
            // A variable keeps the name that its server expects.
            let name = if is_own { format!("{server}_{key}") } else { key.clone() };
            let secret: &str = if is_own { without_scheme(text) } else { &*text };
            if looks_secret(key)
                && let Some(reference) = take(&name, secret)
            {
                let start = text.len() - secret.len();
                text.replace_range(start.., &reference);
            }
        }
    }
    if let Some(Value::Array(args)) = entry.get_mut("args") {
        let texts: Vec<String> = args.iter().map(|arg| arg.as_str().unwrap_or_default().to_owned()).collect();
        let parts = secrets_in_arguments(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        for (index, part) in parts.into_iter().enumerate() {
            let text = &texts[index];
            let mut text = text.clone();
            match part.filter(|part| part.is_certain) {
                Some(part) => {
                    let before =
                        if part.range.start > 0 { &text[..part.range.start] } else { &texts[index.saturating_sub(1)] };
                    let name = format!("{server}_{}", before.trim_matches(['-', '=', ':', ' ']));
                    let start = part.range.end - without_scheme(&text[part.range.clone()]).len();
                    replace(&mut text, start..part.range.end, &name, &mut take);
                }
                None => in_url(server, &mut text, &mut take),
            }
            if text != texts[index] {
                args[index] = Value::String(text);
            }
        }
    }
    if let Some(Value::String(url)) = entry.get_mut("url") {
        in_url(server, url, &mut take);
    }
    taken
}

type TakeSecret<'t> = dyn FnMut(&str, &str) -> Option<String> + 't;

fn in_url(server: &str, url: &mut String, take: &mut TakeSecret<'_>) {
    let parts: Vec<Range<usize>> =
        secrets_in_address(url).into_iter().filter(|part| part.is_certain).map(|part| part.range).collect();
    for range in parts.into_iter().rev() {
        // `?api_key=…` has a name; a password before the host has none.
        let key = url[..range.start].strip_suffix('=').and_then(|before| before.rsplit(['?', '&']).next());
        let name = format!("{server}_{}", key.unwrap_or("password"));
        replace(url, range, &name, take);
    }
}

fn replace(text: &mut String, range: Range<usize>, name: &str, take: &mut TakeSecret<'_>) {
    if let Some(reference) = take(name, &text[range.clone()]) {
        text.replace_range(range, &reference);
    }
}

/// Returns a free name, or the name that already has this secret.
fn free_name(
    name: &str,
    secret: &str,
    taken: &[(String, String)],
    variable_of: &dyn Fn(&str) -> Option<String>,
) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let mut base: String = name.chars().map(legal).collect();
    if !base.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        base.insert(0, '_');
    }
    let holds = |name: &str| {
        let ours = taken.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone());
        ours.or_else(|| variable_of(name))
    };
    let is_free = |name: &String| holds(name).is_none_or(|held| held == secret);
    // One of these names is free, because no file has as many entries.
    let numbered = (2..u32::MAX).map(|number| format!("{base}_{number}"));
    std::iter::once(base.clone()).chain(numbered).find(is_free).unwrap_or(base)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_secrets_become_variables() {
        let mut entry = json!({
            "command": "x",
            "args": ["--api-key", "k1", "-e", "GH_TOKEN=g1", "--port", "80", "--key=${K}", "https://me:pw@h/?api_key=q1&page=2"],
            "env": {"TOKEN": "t1", "MODE": "ro", "OTHER_TOKEN": "${OTHER}"},
            "headers": {"Authorization": "Bearer b1", "X-Region": "us"},
        });
        let known = |name: &str| (name == "TOKEN").then(|| "another".to_owned());
        let taken = take_secrets("my-server", &mut entry, &known);
        let expect = json!({
            "command": "x",
            "args": [
                "--api-key", "${MY_SERVER_API_KEY}", "-e", "GH_TOKEN=${MY_SERVER_GH_TOKEN}", "--port", "80", "--key=${K}",
                "https://me:${MY_SERVER_PASSWORD}@h/?api_key=${MY_SERVER_API_KEY_2}&page=2",
            ],
            "env": {"TOKEN": "${TOKEN_2}", "MODE": "ro", "OTHER_TOKEN": "${OTHER}"},
            "headers": {"Authorization": "Bearer ${MY_SERVER_AUTHORIZATION}", "X-Region": "us"},
        });
        assert_eq!(entry, expect);
        let mut values: Vec<&str> = taken.iter().map(|(_, value)| value.as_str()).collect();
        values.sort_unstable();
        assert_eq!(values, ["b1", "g1", "k1", "pw", "q1", "t1"]);
    }

    #[test]
    fn a_known_secret_keeps_its_name() {
        let mut entry = json!({"command": "x", "env": {"TOKEN": "t1"}});
        let taken = take_secrets("a", &mut entry, &|_| Some("t1".into()));
        assert_eq!((entry["env"]["TOKEN"].as_str(), taken.len()), (Some("${TOKEN}"), 1));
    }
}
