//! Environment variables that children do not inherit.

use std::ffi::OsString;

use toolwright_core::pattern::glob_match;

/// Toolwright's own variables, its token among them, and the keys of model APIs.
const WITHHELD: [&str; 5] = ["TOOLWRIGHT_*", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"];

/// Patterns (`*` and `?`, without regard to case) of the variables that no child inherits unless its
/// configuration says otherwise: Toolwright's own and the keys of model APIs, which are ours to spend.
#[must_use]
pub fn withheld_by_default() -> Vec<String> {
    WITHHELD.map(str::to_owned).to_vec()
}

/// The variables of this process that match one of the patterns.
pub(super) fn matching(patterns: &[String]) -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        patterns.iter().any(|pattern| glob_match(pattern, &name))
    })
}
