//! What a pick looks up in a snapshot, so that it need not look at every tool.

use std::sync::Arc;

use super::admit::is_restricted;
use super::exact::NameIndex;
use crate::catalogue::Entry;

/// Names and exceptions of a catalogue; a thousand tools take it a millisecond at most.
#[derive(Debug)]
pub(crate) struct Directory {
    /// What the tools are called.
    pub(super) names: NameIndex,
    /// The positions of the tools that are not for everybody, in order.
    pub(super) restricted: Vec<usize>,
}

impl Directory {
    pub(crate) fn of(tools: &[Arc<Entry>]) -> Self {
        let restricted = (0..tools.len()).filter(|&position| is_restricted(&tools[position])).collect();
        Self { names: NameIndex::of(tools), restricted }
    }
}
