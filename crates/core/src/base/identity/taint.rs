//! Tracks the origin of values from untrusted tools.
//!
//! An output is tainted if its tool is not trusted, or if an argument of its call was tainted. A value keeps the taint
//! through the state, merges and further calls. Text written by a model is not tracked: policy compares it with
//! the user's own words.

use serde::{Deserialize, Serialize};

use crate::identity::tool_id::ToolId;

/// Bound on the tools named by one value; a value from more tools names the first ones.
const MAX_SOURCES: usize = 8;

/// The untrusted tools that contributed to a value, sorted by id. Empty if none did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Taint(Vec<String>);

impl Taint {
    /// Taint of the output of one tool.
    #[must_use]
    pub fn of(tool: &ToolId) -> Self {
        Self(vec![tool.as_str().to_owned()])
    }

    /// Whether no untrusted tool contributed to the value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tools' ids.
    #[must_use]
    pub fn sources(&self) -> &[String] {
        &self.0
    }

    /// Whether the whole value came from tools of one namespace.
    #[must_use]
    pub fn is_of(&self, namespace: &str) -> bool {
        let is_there = |source: &String| source.split_once(':').is_some_and(|(whose, _)| whose == namespace);
        // At the bound, names may have been dropped.
        self.0.len() < MAX_SOURCES && self.0.iter().all(is_there)
    }

    /// Adds the tools of another value that became part of this one.
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

/// A place in arguments whose value came from untrusted tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaintedArgument {
    /// JSON Pointer to the value; everything below it is tainted too.
    pub path: String,
    /// The tools.
    pub from: Taint,
}

/// The taint of arguments as a whole.
#[must_use]
pub fn of_all(tainted: &[TaintedArgument]) -> Taint {
    let mut all = Taint::default();
    tainted.iter().for_each(|place| all.add(&place.from));
    all
}

/// Describes in one line which places came from which tools; `None` if no place did.
#[must_use]
pub fn in_words(tainted: &[TaintedArgument]) -> Option<String> {
    let one = |place: &TaintedArgument| {
        let path = if place.path.is_empty() { "all of it" } else { &place.path };
        format!("{path} out of {}", place.from.sources().join(", "))
    };
    (!tainted.is_empty()).then(|| tainted.iter().map(one).collect::<Vec<_>>().join("; "))
}

/// Returns the taint of arguments made from these, as a whole, because the places are unknown.
#[must_use]
pub fn as_whole(tainted: &[TaintedArgument]) -> Option<TaintedArgument> {
    let from = of_all(tainted);
    (!from.is_empty()).then(|| TaintedArgument { path: String::new(), from })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_with_their_tools() {
        let at = |path: &str| TaintedArgument {
            path: path.into(),
            from: Taint::of(&ToolId::parse("b:t@1.0.0").expect("id")),
        };
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
