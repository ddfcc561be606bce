//! From a model's name to its format.

use super::formats;
use super::grammar::Format;

/// The format of the model called `name`, if its family is known. Case, punctuation, folders, vendors
/// and file endings do not matter: `Qwen/Qwen3-Coder-30B` and `qwen3_coder.jinja` are the same family.
#[must_use]
pub fn for_model(name: &str) -> Option<&'static Format> {
    let plain = plain(name);
    let matches = formats().iter().flat_map(|format| format.models.iter().map(move |pattern| (format, *pattern)));
    let best = matches.filter(|(_, pattern)| fits(&plain, pattern)).max_by_key(|(_, pattern)| pattern.len());
    best.map(|(format, _)| format)
}

/// Letters and digits, with a dash for whatever stands between them.
fn plain(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_ascii_lowercase).collect();
    format!("-{}-", words.join("-"))
}

/// Whether the parts of `pattern`, which stars separate, follow each other in `name`. Each part begins
/// where a word does.
fn fits(name: &str, pattern: &str) -> bool {
    let mut rest = name;
    pattern.split('*').all(|part| match rest.find(&format!("-{part}")) {
        Some(at) => {
            rest = &rest[at + 1 + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_words_in_their_order() {
        let check =
            |name: &str, pattern: &str, expect| assert_eq!(fits(&plain(name), pattern), expect, "{name} {pattern}");
        check("Vendor/Some_Model-3.5.gguf", "some-model-3-5", true);
        check("awesome-model", "some-model", false);
        check("family-medium-v3.1.jinja", "family*v3-1", true);
        check("v3.1-family", "family*v3-1", false);
    }
}
