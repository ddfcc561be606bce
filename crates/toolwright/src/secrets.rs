//! Finds the secrets in a configuration, to mask them where it is shown and to keep them out of all other output.

use std::ops::Range;

use serde_json::Value;

/// Replaces a secret.
const MASK: &str = "[secret]";

/// Returns whether a key, flag or header names something that should not be printed.
pub(crate) fn looks_secret(key: &str) -> bool {
    const WORDS: [&str; 11] = [
        "token",
        "secret",
        "password",
        "passwd",
        "api_key",
        "apikey",
        "access_key",
        "private_key",
        "authorization",
        "credential",
        "bearer",
    ];
    let key = key.to_ascii_lowercase().replace('-', "_");
    WORDS.iter().any(|word| key.contains(word))
        || ["cookie", "auth", "key", "pat", "pass"].iter().any(|word| key.split('_').any(|part| part == *word))
}

/// Returns whether a variable decides which program, library, module or package runs, so that a reviewer must see its
/// value.
pub(crate) fn affects_execution(variable: &str) -> bool {
    const STARTS: [&str; 13] = [
        "LD_",
        "DYLD_",
        "PYTHON",
        "BASH_",
        "NODE_",
        "GIT_",
        "PERL5",
        "RUBY",
        "JAVA_",
        "UV_",
        "PIP_",
        "NPM_CONFIG_",
        "CARGO_",
    ];
    let name = variable.to_ascii_uppercase();
    let is_named = STARTS.iter().any(|start| name.starts_with(start))
        || ["PATH", "_OPTIONS", "OPT", "OPTS"].iter().any(|end| name.ends_with(end))
        || ["ENV", "SHELL", "EDITOR", "VISUAL", "PAGER", "BROWSER", "HOME", "IFS"].contains(&name.as_str());
    is_named && !looks_secret(variable)
}

/// Returns whether a variable describes the environment. Such values are in every log and are not secret.
pub(crate) fn describes_environment(variable: &str) -> bool {
    matches!(
        variable,
        "HOME"
            | "PATH"
            | "USER"
            | "LOGNAME"
            | "PWD"
            | "SHELL"
            | "LANG"
            | "TERM"
            | "TZ"
            | "TMPDIR"
            | "HOSTNAME"
            | "workspaceFolder"
    ) || variable.starts_with("XDG_")
        || variable.starts_with("LC_")
}

/// Returns a header's value without its scheme, which is not secret.
pub(crate) fn without_scheme(value: &str) -> &str {
    match value.split_once(' ') {
        Some((scheme, rest)) if ["bearer", "basic", "token"].contains(&scheme.to_ascii_lowercase().as_str()) => rest,
        _ => value,
    }
}

/// A part of a text that is masked for display.
pub(crate) struct MaskedPart {
    /// Its place in the text.
    pub(crate) range: Range<usize>,
    /// Whether it is certainly a secret, so that it must not be printed anywhere. Other parts are only masked here,
    /// because redacting a common word would mutilate all output.
    pub(crate) is_certain: bool,
}

/// Finds the secret in each of these arguments: `--api-key=…`, `API_KEY=…`, `Authorization: …`, the argument after
/// `--api-key`, and the value in the argument after `--header`.
pub(crate) fn secrets_in_arguments(arguments: &[&str]) -> Vec<Option<MaskedPart>> {
    let mut after = "";
    arguments
        .iter()
        .map(|argument| {
            let flag = std::mem::take(&mut after);
            if let Some(at) = argument.find(['=', ':']) {
                let (name, value) = (argument[..at].trim_start_matches('-'), argument[at + 1..].trim_start());
                let is_certain = looks_secret(name);
                let is_header = name == "header" || matches!(flag, "header" | "H");
                // `https://…` is handled as an address.
                if (is_certain || is_header) && !value.starts_with("//") {
                    return Some(MaskedPart { range: argument.len() - value.len()..argument.len(), is_certain });
                }
            }
            match argument.strip_prefix('-') {
                Some(rest) if !argument.contains('=') && (argument.starts_with("--") || !looks_secret(flag)) => {
                    after = rest.trim_start_matches('-');
                    None
                }
                _ => looks_secret(flag).then_some(MaskedPart { range: 0..argument.len(), is_certain: true }),
            }
        })
        .collect()
}

/// Finds what may be secret in the address `text`: what stands before `@`, the query values and the fragment. Empty if it
/// is no address. Works on addresses with placeholders.
pub(crate) fn secrets_in_address(text: &str) -> Vec<MaskedPart> {
    let Some(start) = text.find("://").map(|at| at + 3) else { return Vec::new() };
    let mut parts = Vec::new();
    let host_end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    if let Some(at) = text[start..host_end].rfind('@') {
        let colon = text[start..start + at].find(':');
        let from = colon.map_or(start, |colon| start + colon + 1);
        parts.push(MaskedPart { range: from..start + at, is_certain: colon.is_some() });
    }
    let fragment = text[host_end..].find('#').map(|at| host_end + at);
    let query_end = fragment.unwrap_or(text.len());
    if let Some(at) = text[host_end..query_end].find('?') {
        let mut from = host_end + at + 1;
        for pair in text[from..query_end].split('&') {
            let (key, value) = pair.split_once('=').unwrap_or(("", pair));
            let end = from + pair.len();
            parts.push(MaskedPart { range: end - value.len()..end, is_certain: looks_secret(key) });
            from = end + 1;
        }
    }
    parts.extend(fragment.map(|at| MaskedPart { range: at + 1..text.len(), is_certain: false }));
    parts.retain(|part| !part.range.is_empty());
    parts
}

/// Masks actual and possible secrets: header, environment and query values, values under a key that names a secret, and
/// what [`secrets_in_arguments`] and [`secrets_in_address`] find. A `${VAR}` reference is not secret.
pub(crate) fn mask(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, item) in map {
                match (key.as_str(), item) {
                    // In JSON Schemas, a property called `query` or `token` is a description, not a value.
                    ("parameters" | "output_schema", _) => {}
                    ("env", Value::Object(pairs)) => pairs
                        .iter_mut()
                        .for_each(|(name, value)| if affects_execution(name) { mask(value) } else { mask_all(value) }),
                    ("headers" | "query", Value::Object(pairs)) => pairs.values_mut().for_each(mask_all),
                    ("args", Value::Array(items)) => mask_arguments(items),
                    (key, item @ Value::String(_)) if looks_secret(key) => mask_all(item),
                    (_, other) => mask(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::String(text) => mask_address(text),
        _ => {}
    }
}

fn mask_all(value: &mut Value) {
    match value {
        Value::String(text) => mask_range(text, 0..text.len()),
        Value::Array(items) => items.iter_mut().for_each(mask_all),
        Value::Object(map) => map.values_mut().for_each(mask_all),
        _ => {}
    }
}

fn mask_arguments(items: &mut [Value]) {
    let texts: Vec<String> = items.iter().map(|item| item.as_str().unwrap_or_default().to_owned()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for (item, found) in items.iter_mut().zip(secrets_in_arguments(&texts)) {
        match (item, found) {
            (Value::String(text), Some(part)) => mask_range(text, part.range),
            (item, _) => mask(item),
        }
    }
}

fn mask_address(text: &mut String) {
    let ranges: Vec<_> = secrets_in_address(text).into_iter().map(|part| part.range).collect();
    for range in ranges.into_iter().rev() {
        mask_range(text, range);
    }
}

fn mask_range(text: &mut String, range: Range<usize>) {
    if !is_reference(&text[range.clone()]) {
        text.replace_range(range, MASK);
    }
}

/// Returns whether the text contains only references to variables: `Bearer ${VAR}`, not `${VAR:-literal}`.
fn is_reference(text: &str) -> bool {
    let mut rest = without_scheme(text);
    while let Some(body) = rest.strip_prefix("${") {
        let Some((expression, after)) = body.split_once('}') else { return false };
        if expression.split_once(":-").is_some_and(|(_, default)| !default.is_empty()) {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_known_by_their_keys() {
        for key in ["GITHUB_TOKEN", "Authorization", "X-API-Key", "DB_PASSWORD", "OPENAI_KEY", "api-key"] {
            assert!(looks_secret(key), "{key}");
        }
        for key in ["HOME", "PORT", "KEYBOARD", "AUTHOR"] {
            assert!(!looks_secret(key), "{key}");
        }
    }

    fn check(mut value: Value, expect: &Value) {
        mask(&mut value);
        assert_eq!(&value, expect);
    }

    #[test]
    fn secrets_are_masked_everywhere() {
        for (address, expect) in [
            ("https://h:1/mcp", "https://h:1/mcp"),
            ("https://me:pw@h/mcp", "https://me:[secret]@h/mcp"),
            ("https://tok@h/mcp", "https://[secret]@h/mcp"),
            ("https://h/mcp?key=a&b=${B}&bare#frag", "https://h/mcp?key=[secret]&b=${B}&[secret]#[secret]"),
            ("https://${USER}:${PASS}@h/?t=${T:-lit}", "https://${USER}:${PASS}@h/?t=[secret]"),
            ("plain?x=1#y", "plain?x=1#y"),
        ] {
            check(json!({ "url": address }), &json!({ "url": expect }));
        }
        check(
            json!({"args": ["-y", "--api-key=k1", "--token", "t1", "-e", "GH_TOKEN=g", "--header", "X-Thing: v", "Authorization: Bearer b", "--port", "80", "--key=${K}", "https://h/?k=v", "--header=X-A: b", "--secret", "--next", 7]}),
            &json!({"args": ["-y", "--api-key=[secret]", "--token", "[secret]", "-e", "GH_TOKEN=[secret]", "--header", "X-Thing: [secret]", "Authorization: [secret]", "--port", "80", "--key=${K}", "https://h/?k=[secret]", "--header=[secret]", "--secret", "--next", 7]}),
        );
        check(
            json!({"headers": {"X-A": "a", "X-B": "Bearer ${B}"}, "env": {"A": "1", "B": "${B}x", "C": "${C:-}", "PATH": "/x", "PIP_INDEX_URL": "https://u:p@h/", "NODE_AUTH_TOKEN": "t"}, "description": "d", "api_key": "k"}),
            &json!({"headers": {"X-A": "[secret]", "X-B": "Bearer ${B}"}, "env": {"A": "[secret]", "B": "[secret]", "C": "${C:-}", "PATH": "/x", "PIP_INDEX_URL": "https://u:[secret]@h/", "NODE_AUTH_TOKEN": "[secret]"}, "description": "d", "api_key": "[secret]"}),
        );
        let schema = json!({"parameters": {"properties": {"query": {"type": "string"}, "token": {"default": "x"}}}});
        check(schema.clone(), &schema);
    }
}
