//! `*` and `?` patterns over names, for allow and deny lists and policy selectors.

/// Whether `text` matches `pattern`: `*` any run of characters, `?` exactly one, all else itself,
/// without regard to ASCII case. Linear in practice, quadratic at worst; never exponential.
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
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == any {
            star = Some((p + 1, t));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == one || same(&pattern[p], &text[t])) {
            p += 1;
            t += 1;
        } else if let Some((after, from)) = star {
            // Let the last star take one more character.
            star = Some((after, from + 1));
            p = after;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == any)
}

/// Whether a name passes an allow list (empty: all pass) and then a deny list.
#[must_use]
pub fn allowed_by(allowed: &[String], denied: &[String], name: &str) -> bool {
    (allowed.is_empty() || allowed.iter().any(|p| glob_match(p, name))) && !denied.iter().any(|p| glob_match(p, name))
}

/// The candidate that `word` was most likely meant to be: a third of its letters may differ, and one always; their case
/// does not matter.
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
