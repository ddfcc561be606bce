//! What a query asks for.

use super::super::words::{each_word, is_stop_word};
use super::dictionary::{Dictionary, Term};

/// The stems of a query that the dictionary has, in the order of their first occurrence.
pub(super) struct Query {
    /// With what each counts.
    pub(super) terms: Vec<(Term, f32)>,
}

impl Query {
    pub(super) fn read(text: &str, dictionary: &Dictionary) -> Self {
        let mut terms: Vec<(Term, f32)> = Vec::new();
        each_word(text, |word, _| {
            let Some(term) = (!is_stop_word(word)).then(|| dictionary.term(word)).flatten() else { return };
            match terms.iter_mut().find(|(own, _)| *own == term) {
                Some((_, weight)) => *weight += 1.0,
                None => terms.push((term, 1.0)),
            }
        });
        Self { terms }
    }
}
