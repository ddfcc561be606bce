//! Describes a tool in sentences, for a sentence-embedding model.

use serde_json::Value;

use crate::Document;
use toolwright_core::json::canonical::ContentHash;

/// Maximal bytes of a text. Usual models read some 250 tokens, about half of that.
const MAX_TEXT: usize = 2000;
/// Weights of the [`texts`] in the [`vector`] of a tool.
const WEIGHTS: [f32; 3] = [1.0, 2.0, 2.0];

/// Returns the embedded texts of a tool: its title, or its name in words; its description; and both with its arguments
/// and their descriptions. Each is cut at 2000 bytes. Missing parts are replaced with existing
/// ones, so texts may be equal; all are empty only for a tool without a name.
///
/// Several short texts find more than one long one, in which the arguments outweigh the name.
pub(super) fn texts(document: &Document<'_>) -> [String; 3] {
    let identifier = Some(document.title.trim()).filter(|title| !title.is_empty()).unwrap_or(document.name);
    let name = Some(spaced(identifier)).filter(|words| !words.is_empty()).unwrap_or_else(|| identifier.to_owned());
    let description = document.description.trim();
    let mut whole = if description.is_empty() { name.clone() } else { format!("{name}: {description}") };
    let properties = document.parameters.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    for (argument, schema) in properties.into_iter().flatten() {
        if whole.len() >= MAX_TEXT {
            break;
        }
        whole.push(' ');
        whole.push_str(&spaced(argument));
        match schema.get("description").and_then(Value::as_str) {
            Some(said) => whole.extend([": ", said.trim()]),
            None => whole.push('.'),
        }
    }
    let description = if description.is_empty() { name.clone() } else { description.to_owned() };
    let mut texts = [name, description, whole];
    texts.iter_mut().for_each(|text| text.truncate(text.floor_char_boundary(MAX_TEXT)));
    texts
}

/// Identifies a tool's vector: a hash of its [`texts`] and of the weights in [`vector`].
pub(super) fn key(texts: &[String; 3]) -> ContentHash {
    ContentHash::of_bytes(format!("{WEIGHTS:?}\0{}", texts.join("\0")).as_bytes())
}

/// Combines the vectors of a tool's [`texts`] into one normalised vector.
pub(super) fn vector(texts: [&[f32]; 3]) -> Vec<f32> {
    let [name, description, whole] = texts;
    let sum = |((a, b), c): ((&f32, &f32), &f32)| a * WEIGHTS[0] + b * WEIGHTS[1] + c * WEIGHTS[2];
    let mut vector: Vec<f32> = name.iter().zip(description).zip(whole).map(sum).collect();
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    vector.iter_mut().for_each(|number| *number /= length);
    vector
}

/// An identifier as words: `getUser_byID2` as `get User by ID 2`.
fn spaced(identifier: &str) -> String {
    #[derive(PartialEq, Clone, Copy)]
    enum Kind {
        Upper,
        Letter,
        Digit,
        Between,
    }
    let kind = |c: char| match c {
        _ if c.is_uppercase() => Kind::Upper,
        _ if c.is_alphabetic() => Kind::Letter,
        _ if c.is_numeric() => Kind::Digit,
        _ => Kind::Between,
    };
    let mut out = String::with_capacity(identifier.len() + 8);
    let mut before = Kind::Between;
    let mut letters = identifier.chars().peekable();
    while let Some(letter) = letters.next() {
        let now = kind(letter);
        let next = letters.peek().map_or(Kind::Between, |next| kind(*next));
        // `HTTPServer` is two words: the last capital of a row begins the next.
        let begins = match (before, now) {
            (Kind::Upper, Kind::Letter) => false,
            (Kind::Upper, Kind::Upper) => next == Kind::Letter,
            _ => before != now,
        };
        if begins && now != Kind::Between && !out.is_empty() && !out.ends_with(' ') {
            out.push(' ');
        }
        if now != Kind::Between {
            out.push(letter);
        }
        before = now;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn identifiers_become_words() {
        for (identifier, words) in [
            ("send_mail", "send mail"),
            ("getUser_byID2", "get User by ID 2"),
            ("HTTPServerStatus", "HTTP Server Status"),
            ("v2.issues/list-all", "v 2 issues list all"),
            ("größeÄndern", "größe Ändern"),
            ("天気", "天気"),
            ("__", ""),
            ("", ""),
        ] {
            assert_eq!(spaced(identifier), words, "{identifier}");
        }
    }

    fn check(document: &Document<'_>, expect: [&str; 3]) {
        assert_eq!(texts(document), expect);
    }

    #[test]
    fn missing_tool_fields_are_substituted() {
        let tool = Document { name: "read_file", description: "Reads a file. ", ..Document::default() };
        check(&tool, ["read file", "Reads a file.", "read file: Reads a file."]);
        check(
            &Document { title: "File reader", ..tool.clone() },
            ["File reader", "Reads a file.", "File reader: Reads a file."],
        );
        check(&Document { description: "", ..tool }, ["read file"; 3]);
        check(&Document { name: "::", ..Document::default() }, ["::"; 3]);
    }

    #[test]
    fn arguments_keep_their_descriptions() {
        let schema = json!({"properties": {"filePath": {"description": "Where."}, "max_lines": {}, "x": true}});
        let tool = Document { name: "read", parameters: Some(&schema), ..Document::default() };
        check(&tool, ["read", "read", "read file Path: Where. max lines. x."]);
        for odd in [json!(true), json!({"properties": ["a"]}), json!({"properties": {"a": {"description": 1}}})] {
            assert!(texts(&Document { parameters: Some(&odd), ..tool.clone() })[2].starts_with("read"));
        }
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let long = "ä".repeat(5000);
        let many: serde_json::Map<String, Value> = (0..9999).map(|n| (format!("a{n}"), json!({}))).collect();
        let schema = json!({"properties": many});
        let tool = Document { name: "x", description: &long, parameters: Some(&schema), ..Document::default() };
        assert_eq!(texts(&tool).map(|text| text.len()), [1, MAX_TEXT, MAX_TEXT - 1]);
        assert!(texts(&Document { description: "", ..tool })[2].len() <= MAX_TEXT);
    }

    #[test]
    fn a_vector_is_the_mean_of_three() {
        let vector = vector([&[0.0, 1.0], &[1.0, 0.0], &[0.0, 1.0]]);
        let length = 13.0_f32.sqrt();
        assert!((vector[0] - 2.0 / length).abs() < 1e-6 && (vector[1] - 3.0 / length).abs() < 1e-6, "{vector:?}");
        assert_eq!(super::vector([&[], &[], &[]]), [0.0; 0]);
    }
}
