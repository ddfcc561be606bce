//! Rules about texts. Ids and durations follow `toolwright_core::name` and `toolwright_core::duration`; a test
//! holds the two together.

use std::time::Duration;

/// Whether a namespace or name is legal: `[a-z0-9_-]`, at least one.
pub(crate) fn id_part(part: &str, text: &str) -> Result<(), String> {
    let legal = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-');
    if text.is_empty() || !text.chars().all(legal) {
        return Err(format!("`{text}` is not a legal {part}: only a-z, 0-9, `_` and `-` are allowed, at least one"));
    }
    if part == "namespace" && text.contains("__") {
        return Err(format!("namespace `{text}` may not contain `__`: it separates namespace and name in wire names"));
    }
    Ok(())
}

/// Whether a version is three numbers.
pub(crate) fn version(text: &str) -> Result<(), String> {
    let numbers: Vec<&str> = text.split('.').collect();
    let legal = |number: &&str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if numbers.len() != 3 || !numbers.iter().all(legal) {
        return Err(format!("`{text}` is not a version: expected three numbers, like 1.0.0"));
    }
    Ok(())
}

/// Whether a text is a canonical id.
pub(crate) fn id(text: &str) -> Result<(), String> {
    let parts = text.split_once(':').and_then(|(namespace, rest)| Some((namespace, rest.rsplit_once('@')?)));
    let Some((namespace, (name, numbers))) = parts else {
        return Err(format!("`{text}` is not a tool id: expected namespace:name@major.minor.patch"));
    };
    id_part("namespace", namespace)?;
    id_part("name", name)?;
    version(numbers)
}

/// A duration with its unit; a bare number is milliseconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration: write a number with ms, s, m, h, d or w, like 30s");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "" | "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        _ => return Err(wrong()),
    };
    let duration = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
    if duration.is_zero() {
        return Err(format!("`{text}` leaves no time at all"));
    }
    Ok(duration)
}

/// `read_file` → `ReadFile`.
pub(crate) fn camel_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for word in name.split('_') {
        let mut letters = word.chars();
        out.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(letters.as_str());
    }
    out
}

/// The prose of a doc comment up to its first heading: the lines of a paragraph joined, blank lines between
/// paragraphs, lists, tables, quotes and code line by line.
pub(crate) fn description(lines: &[String]) -> String {
    let mut out = String::new();
    let mut fenced = false;
    let mut joinable = false;
    for line in lines.iter().map(|line| line.trim_end()) {
        let text = line.trim_start();
        let fence = text.starts_with("```");
        if text.starts_with('#') && !fenced {
            break;
        }
        let own_line = fenced || fence || line.starts_with("    ") || starts_own_line(text);
        if text.is_empty() && !fenced {
            if !out.is_empty() && !out.ends_with("\n\n") {
                out.push_str("\n\n");
            }
            joinable = false;
        } else {
            if !out.is_empty() && !out.ends_with("\n\n") {
                out.push(if joinable && !own_line { ' ' } else { '\n' });
            }
            out.push_str(if fenced { line } else { text });
            joinable = !fenced && !fence;
        }
        fenced ^= fence;
    }
    out.trim_end().to_owned()
}

/// Lists, tables and quotes.
fn starts_own_line(text: &str) -> bool {
    let numbered = text.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "+ ", "|", "> "].iter().any(|mark| text.starts_with(mark))
        || (numbered.len() < text.len() && (numbered.starts_with(". ") || numbered.starts_with(") ")))
}

/// The known word that `word` was probably meant to be.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let best =
        known.iter().map(|known| (strsim::levenshtein(word, known), *known)).min_by_key(|(distance, _)| *distance)?;
    (best.0 <= word.chars().count().div_ceil(3).max(1)).then_some(best.1)
}
