//! What is known of a model before it is asked.

use std::sync::Arc;

/// Whether requests to a model have a chance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Usability {
    /// As far as is known here.
    #[default]
    Usable,
    /// Its provider wants a key, and there is none. Local providers want none.
    NoKey,
    /// No configured provider has it; the operator's message.
    Unknown(String),
}

/// One model's record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelCard {
    /// Whether it can be asked.
    pub usability: Usability,
    /// Tokens that it takes in, where that is configured.
    pub window: Option<usize>,
    /// Tokens that one answer may have, where that is configured.
    pub max_output: Option<u32>,
    /// The model whose recorded answers it gives, where it is a recording: what goes by a model's name goes by this.
    pub stands_for: Option<Arc<str>>,
    /// The models whose answers a recording has, in the order in which they were first asked; empty for any other
    /// model.
    pub recorded: Arc<[Arc<str>]>,
}
