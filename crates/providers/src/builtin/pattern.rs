//! Regular expressions for searches of files and stored outputs.

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use toolwright_core::error::{ErrorKind, ToolError};

/// Memory limit of a compiled expression, in bytes.
const MAX_REGEX: usize = 10 * 1024 * 1024;

/// Whether case matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    Sensitive,
    Insensitive,
}

impl Case {
    /// From an argument `case_insensitive`.
    pub(super) fn insensitive(insensitive: bool) -> Self {
        if insensitive { Self::Insensitive } else { Self::Sensitive }
    }
}

/// Compiles a caller's pattern for matches within lines.
///
/// # Errors
/// `invalid_parameters` for an invalid or too large regular expression.
pub(super) fn line_matcher(pattern: &str, case: Case) -> Result<RegexMatcher, ToolError> {
    build(RegexMatcherBuilder::new().line_terminator(Some(b'\n')), pattern, case)
}

/// Compiles a caller's pattern for matches over several lines.
///
/// # Errors
/// As [`line_matcher`].
pub(super) fn block_matcher(pattern: &str, case: Case) -> Result<RegexMatcher, ToolError> {
    build(RegexMatcherBuilder::new().multi_line(true).dot_matches_new_line(true), pattern, case)
}

fn build(builder: &mut RegexMatcherBuilder, pattern: &str, case: Case) -> Result<RegexMatcher, ToolError> {
    builder.case_insensitive(case == Case::Insensitive).size_limit(MAX_REGEX).build(pattern).map_err(|error| {
        let message = format!("the pattern is not a regular expression that can be searched for: {error}");
        ToolError::new(ErrorKind::InvalidParameters, message)
    })
}
