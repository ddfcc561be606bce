//! A tool as a Markdown file: settings between two `---` lines, prompts after them.

use serde_json::{Map, Value};

/// The front matter and the text after it.
///
/// # Errors
/// In words.
pub(crate) fn split(text: &str) -> Result<(&str, &str), String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    if first.trim_end() != "---" {
        return Err("it does not begin with a line `---` of front matter".to_owned());
    }
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Ok((&rest[..at], &rest[at + line.len()..]));
        }
        at += line.len();
    }
    Err("its front matter does not end with a line `---`".to_owned())
}

/// Puts the text into `system` and `user`: what stands under the headings `# System` and `# User`, or all of it as
/// the user's message. With `kind: template` in the front matter it is the template.
///
/// # Errors
/// In words.
pub(crate) fn add_body(body: &str, fields: &mut Map<String, Value>) -> Result<(), String> {
    let kind = fields.shift_remove("kind");
    let parts = match kind.as_ref().map(|kind| kind.as_str().unwrap_or_default()) {
        Some("template") => vec![("template", body.to_owned())],
        None | Some("llm") => prompts(body),
        Some(other) => return Err(format!("its kind is `{other}`: only `llm` and `template` are known")),
    };
    for (field, text) in parts {
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        if fields.insert(field.to_owned(), text.into()).is_some() {
            return Err(format!("`{field}` stands both in its front matter and in its text"));
        }
    }
    Ok(())
}

/// The prompts of a text. What stands before the first heading belongs to the user's message.
fn prompts(body: &str) -> Vec<(&'static str, String)> {
    let (mut system, mut user) = (String::new(), String::new());
    let mut into_system = false;
    for line in body.split_inclusive('\n') {
        match line.trim_end().to_ascii_lowercase().as_str() {
            "# system" => into_system = true,
            "# user" => into_system = false,
            _ if into_system => system.push_str(line),
            _ => user.push_str(line),
        }
    }
    vec![("system", system), ("user", user)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str, front: Value) -> Result<Value, String> {
        let (_, body) = split(text)?;
        let mut fields = front.as_object().cloned().unwrap_or_default();
        add_body(body, &mut fields)?;
        Ok(Value::Object(fields))
    }

    #[test]
    fn prompts_stand_under_their_headings() {
        for (text, front, expect) in [
            ("---\na: 1\n---\nHello {{ x }}\n", json!({}), Ok(json!({"user": "Hello {{ x }}"}))),
            (
                "---\n---\n# System\nBe brief.\n\n# Rules\n- one\n# User\n{{ x }}",
                json!({}),
                Ok(json!({"system": "Be brief.\n\n# Rules\n- one", "user": "{{ x }}"})),
            ),
            ("---\r\n---\r\n# system\r\nA\r\n# USER\r\nB", json!({}), Ok(json!({"system": "A", "user": "B"}))),
            ("---\n---\nDear {{ x }}", json!({"kind": "template"}), Ok(json!({"template": "Dear {{ x }}"}))),
            ("---\n---\n", json!({"user": "u"}), Ok(json!({"user": "u"}))),
            ("---\n---\nB", json!({"user": "u"}), Err("both in its front matter")),
            ("---\n---\nB", json!({"kind": "agent"}), Err("`agent`")),
            ("# no front matter", json!({}), Err("does not begin")),
            ("---\na: 1\n", json!({}), Err("does not end")),
        ] {
            match (read(text, front), expect) {
                (Ok(fields), Ok(expect)) => assert_eq!(fields, expect, "{text}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (got, expect) => panic!("{text}: {got:?}, not {expect:?}"),
            }
        }
    }
}
