//! Stages that pass through until something is configured for them.

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::call::ValidCall;

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
