//! `*` and `?` patterns over names, for allow and deny lists and policy selectors.

/// Whether `text` matches `pattern`: `*` matches any run of characters, `?` exactly one; ASCII case is
/// ignored. Linear in practice, quadratic at worst; never exponential.
#[must_use]
pub fn glob_match(pattern: &str, text: &str) -> bool {
    if pattern.is_ascii() && text.is_ascii() {
        return matches(pattern.as_bytes(), text.as_bytes(), [b'*', b'?'], u8::eq_ignore_ascii_case);
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    matches(&pattern, &text, ['*', '?'], char::eq_ignore_ascii_case)
}

fn matches<C: Copy + Eq>(pattern: &[C], text: &[C], [any, one]: [C; 2], same: impl Fn(&C, &C) -> bool) -> bool {
    let fits = |part: &[C], place: &[C]| part.iter().zip(place).all(|(p, t)| *p == one || same(p, t));
    let mut parts = pattern.split(|c| *c == any);
    let first = parts.next().unwrap_or_default();
    let Some(last) = parts.next_back() else { return text.len() == first.len() && fits(first, text) };
    let Some(end) = text.len().checked_sub(last.len()).filter(|end| first.len() <= *end) else { return false };
    if !fits(first, text) || !fits(last, &text[end..]) {
        return false;
    }
    // Matching each part at its first position leaves the most text for the later parts.
    let mut rest = &text[first.len()..end];
    parts.filter(|part| !part.is_empty()).all(|part| {
        // Most places differ in their first character.
        let begins = |place: &[C]| part[0] == one || same(&part[0], &place[0]);
        let found = rest.windows(part.len()).position(|place| begins(place) && fits(part, place));
        found.inspect(|at| rest = &rest[at + part.len()..]).is_some()
    })
}

/// Whether a name passes an allow list (if empty, all names pass) and a deny list.
#[must_use]
pub fn allowed_by(allowed: &[String], denied: &[String], name: &str) -> bool {
    (allowed.is_empty() || allowed.iter().any(|p| glob_match(p, name))) && !denied.iter().any(|p| glob_match(p, name))
}

/// Returns the candidate nearest to `word`: a third of its letters may differ, and always one; case
/// is ignored.
#[must_use]
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    // Distance is quadratic, and no name is that long.
    if word.len() > 256 {
        return None;
    }
    let (word, letters) = (word.to_lowercase(), word.chars().count());
    let limit = (letters / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| candidate.chars().count().abs_diff(letters) <= limit)
        .map(|candidate| (strsim::osa_distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_finds_its_neighbour() {
        for (word, expect) in [
            ("comand", Some("command")),
            ("arg", Some("args")),
            ("COMMAND", Some("command")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, ["command", "args"]), expect, "{word}");
        }
        assert_eq!(nearest(&"c".repeat(300), ["command"]), None);
    }

    #[test]
    fn patterns_match() {
        for (pattern, text, expect) in [
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("?b?", "abc", true),
            ("?b?", "ab", false),
            ("GET_*", "get_file", true),
            ("", "", true),
            ("", "a", false),
            ("*a*b*", "xxaxxbxx", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*ab", "aab", true),
            ("*ab*b", "ab", false),
            ("a**b", "ab", true),
            ("*?*", "", false),
            ("*?c*", "xcc", true),
            ("*ä?", "Üxäy", true),
            ("[a]", "a", false),
        ] {
            assert_eq!(glob_match(pattern, text), expect, "{pattern} {text}");
        }
        assert!(!glob_match(&"*a".repeat(50), &"a".repeat(49)));
    }

    #[test]
    fn allow_then_deny() {
        let list = |items: &[&str]| items.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert!(allowed_by(&[], &[], "x"));
        assert!(!allowed_by(&list(&["a*"]), &[], "x"));
        assert!(!allowed_by(&list(&["*"]), &list(&["X"]), "x"));
    }
}
