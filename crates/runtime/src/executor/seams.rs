//! Stages that pass through until something is configured for them.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::call::ValidCall;
use toolwright_core::canonical::ContentHash;
use toolwright_core::outcome::{Outcome, ToolOutput};

use super::RunContext;

/// What an input guard says of a call (SPEC section 8).
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Go on to policy.
    Allow,
    /// Stop, with the reason.
    Deny(String),
    /// Let a person decide, with the reason; policy may still deny.
    Ask(String),
    /// Go on with these arguments, an object, which are validated again and get the tool's defaults; the
    /// provenance says so.
    Rewrite(Value),
}

/// A function or agent that looks at a call before policy does. Guards run in order; the first that
/// does not allow decides.
#[async_trait]
pub trait InputGuard: Send + Sync {
    /// Judges one call.
    async fn judge(&self, call: &ValidCall, run: &RunContext) -> Verdict;
}

/// Keeps successful outputs of tools that have a `cache_ttl`.
#[async_trait]
pub trait ResponseCache: Send + Sync {
    /// A live entry.
    async fn get(&self, key: &ContentHash) -> Option<ToolOutput>;
    /// Keeps an entry.
    async fn put(&self, key: &ContentHash, ttl: Duration, output: &ToolOutput);
}

/// The room left in the conversation that the outcomes go to.
#[async_trait]
pub trait ContextBudget: Send + Sync {
    /// Reserves room for an outcome, or replaces its content by what fits.
    async fn admit(&self, outcome: Outcome) -> Outcome;
}

/// The key and lifetime under which a call's output may be kept; `None` for a call that never may:
/// no lifetime, unsafe, unvalidated, or approved by hand.
pub(super) fn cache_key(call: &ValidCall, run: &RunContext, was_asked: bool) -> Option<(ContentHash, Duration)> {
    let definition = call.entry.definition();
    let ttl = definition.cache_ttl?;
    if was_asked || !definition.safe || call.unvalidated.is_some() {
        return None;
    }
    let key = ContentHash::of_value(&json!({
        "tool": definition.id,
        "definition": call.entry.tool.hash(),
        "arguments": call.arguments,
        "principal": run.session.principal.id,
        "root": run.session.root,
    }));
    Some((key, ttl))
}
