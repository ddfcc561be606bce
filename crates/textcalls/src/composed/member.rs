//! The names of a call's members.

use std::borrow::Cow;

/// The tool's name.
pub(super) const TOOL: &str = "_tool";
/// Why the model calls it.
pub(super) const REASONING: &str = "_reasoningForCall";
/// The arguments, where they are not members themselves.
pub(super) const ARGUMENTS: &str = "_arguments";
/// The result that the model writes itself.
pub(super) const OUTPUT: &str = "_output";

/// A parameter's name as a member: one that could be taken for ours has one underscore more.
pub(super) fn from_parameter(name: &str) -> Cow<'_, str> {
    if is_like_ours(name) { Cow::Owned(format!("_{name}")) } else { Cow::Borrowed(name) }
}

/// The parameter's name that stands behind a member which is not one of ours.
pub(super) fn to_parameter(member: &str) -> &str {
    if is_like_ours(member) { &member[1..] } else { member }
}

fn is_like_ours(name: &str) -> bool {
    let bare = name.trim_start_matches('_');
    bare.len() < name.len() && [TOOL, REASONING, ARGUMENTS, OUTPUT].iter().any(|ours| &ours[1..] == bare)
}
