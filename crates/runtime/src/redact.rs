//! Taking secrets out of text by where they came from: every value that configuration marks as secret.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError, RwLock};

use aho_corasick::{AhoCorasick, MatchKind};
use toolwright_core::Redactor;

/// What stands in a secret's place.
const MARK: &str = "[secret]";
/// Shorter values occur in ordinary text; replacing them would garble it and tell what they are.
const MIN_LENGTH: usize = 6;

/// Replaces registered values. Cheap when there are none.
#[derive(Debug, Default)]
pub struct SecretRedactor {
    state: RwLock<State>,
}

#[derive(Debug, Default, Clone)]
struct State {
    values: Vec<String>,
    matcher: Option<Arc<AhoCorasick>>,
}

impl SecretRedactor {
    /// Registers values for good. Values under six characters are not replaced.
    pub fn add(&self, secrets: impl IntoIterator<Item = String>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.values.extend(secrets.into_iter().filter(|value| value.len() >= MIN_LENGTH));
        state.values.sort_unstable();
        state.values.dedup();
        // Longest first: a secret that contains another is replaced whole.
        state.matcher =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&state.values).ok().map(Arc::new);
    }
}

impl Redactor for SecretRedactor {
    fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let matcher = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            match &state.matcher {
                Some(matcher) if !state.values.is_empty() => Arc::clone(matcher),
                _ => return Cow::Borrowed(text),
            }
        };
        if !matcher.is_match(text) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        matcher.replace_all_with(text, &mut out, |_, _, out| {
            out.push_str(MARK);
            true
        });
        Cow::Owned(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_values_never_come_out() {
        let redactor = SecretRedactor::default();
        assert_eq!(redactor.redact("token abcdef"), "token abcdef");
        redactor.add(["abcdef".into(), "abcdefgh".into(), "no".into()]);
        assert_eq!(redactor.redact("x abcdefghi abcdef no"), "x [secret]i [secret] no");
        assert!(matches!(redactor.redact("clean"), Cow::Borrowed(_)));
    }
}
