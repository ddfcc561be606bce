//! Tracks the origin of values: the tools whose output anybody may have written.
//!
//! An output is tainted if nobody vouches for its tool, or if an argument of its call was tainted. A value keeps the taint
//! through the state, through merges and through further calls. What a model writes itself is not followed: policy asks
//! the user's own words about that.

use serde::{Deserialize, Serialize};

use crate::identity::tool_id::ToolId;

/// Tools that one value names; what comes from more names the first.
const MAX_SOURCES: usize = 8;

/// The untrusted tools that a value came out of, sorted by their ids. Empty: none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Taint(Vec<String>);

impl Taint {
    /// Of what one tool returned.
    #[must_use]
    pub fn of(tool: &ToolId) -> Self {
        Self(vec![tool.as_str().to_owned()])
    }

    /// Whether no untrusted tool had a part in the value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tools' ids.
    #[must_use]
    pub fn sources(&self) -> &[String] {
        &self.0
    }

    /// Whether all of it came from tools of one namespace.
    #[must_use]
    pub fn is_of(&self, namespace: &str) -> bool {
        let is_there = |source: &String| source.split_once(':').is_some_and(|(whose, _)| whose == namespace);
        // Of more tools than these the names are lost.
        self.0.len() < MAX_SOURCES && self.0.iter().all(is_there)
    }

    /// Adds the tools of another value that has become a part of this one.
    pub fn add(&mut self, other: &Self) {
        for source in &other.0 {
            if let Err(at) = self.0.binary_search(source)
                && self.0.len() < MAX_SOURCES
            {
                self.0.insert(at, source.clone());
            }
        }
    }
}

/// A place in arguments whose value came out of untrusted tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tainted {
    /// JSON Pointer to it; what lies below is tainted too.
    pub path: String,
    /// The tools.
    pub from: Taint,
}

/// The taint of arguments as a whole.
#[must_use]
pub fn of_all(tainted: &[Tainted]) -> Taint {
    let mut all = Taint::default();
    tainted.iter().for_each(|place| all.add(&place.from));
    all
}

/// Which places came out of which tools, in one line; `None`: none did.
#[must_use]
pub fn in_words(tainted: &[Tainted]) -> Option<String> {
    let one = |place: &Tainted| {
        let path = if place.path.is_empty() { "all of it" } else { &place.path };
        format!("{path} out of {}", place.from.sources().join(", "))
    };
    (!tainted.is_empty()).then(|| tainted.iter().map(one).collect::<Vec<_>>().join("; "))
}

/// The taint of arguments that were made out of these: nobody knows which place became which.
#[must_use]
pub fn as_whole(tainted: &[Tainted]) -> Option<Tainted> {
    let from = of_all(tainted);
    (!from.is_empty()).then(|| Tainted { path: String::new(), from })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_with_their_tools() {
        let at = |path: &str| Tainted { path: path.into(), from: Taint::of(&ToolId::parse("b:t@1.0.0").expect("id")) };
        assert_eq!(in_words(&[]), None);
        let words = in_words(&[at("/to"), at("")]);
        assert_eq!(words.as_deref(), Some("/to out of b:t@1.0.0; all of it out of b:t@1.0.0"));
    }

    #[test]
    fn taints_add_up_within_their_bound() {
        let of = |name: &str| Taint::of(&ToolId::parse(name).expect("id"));
        let mut all = of("b:t@1.0.0");
        all.add(&of("a:t@1.0.0"));
        all.add(&of("b:t@1.0.0"));
        assert_eq!(all.sources(), ["a:t@1.0.0", "b:t@1.0.0"]);
        (0..20).for_each(|n| all.add(&of(&format!("c{n}:t@1.0.0"))));
        assert_eq!(all.sources().len(), MAX_SOURCES);
    }
}
