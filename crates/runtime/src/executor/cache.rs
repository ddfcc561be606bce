//! The response cache: what a tool said before, where its author or operator says that it still holds.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolwright_core::call::ValidCall;
use toolwright_core::canonical::ContentHash;
use toolwright_core::outcome::ToolOutput;

use super::admission::Admitted;
use super::{Executor, RunContext};

/// Keeps successful outputs of tools that have a `cache_ttl`.
#[async_trait]
pub trait ResponseCache: Send + Sync {
    /// A live entry.
    async fn get(&self, key: &ContentHash) -> Option<ToolOutput>;
    /// Keeps an entry.
    async fn put(&self, key: &ContentHash, ttl: Duration, output: &ToolOutput);
}

/// What the cache says of a call.
#[derive(Default)]
pub(super) struct Cached {
    /// A live entry.
    pub(super) hit: Option<ToolOutput>,
    /// Where its output may be kept, if it has none.
    pub(super) place: Option<(ContentHash, Duration)>,
}

impl Executor {
    pub(super) async fn cached(&self, call: &ValidCall, admitted: Admitted, run: &RunContext) -> Cached {
        let Some(cache) = &self.options.cache else { return Cached::default() };
        let Some((key, ttl)) = cache_key(call, run, admitted) else { return Cached::default() };
        match cache.get(&key).await {
            Some(output) => Cached { hit: Some(output.with_extra("cached", true)), place: None },
            None => Cached { hit: None, place: Some((key, ttl)) },
        }
    }

    /// Keeps a success.
    pub(super) async fn keep(&self, place: Option<(ContentHash, Duration)>, output: &ToolOutput) {
        if let (Some(cache), Some((key, ttl)), false) = (&self.options.cache, place, output.is_error) {
            cache.put(&key, ttl, output).await;
        }
    }
}

/// The key and lifetime under which a call's output may be kept; `None` for a call that never may:
/// no lifetime, unsafe, unvalidated, or approved by hand.
fn cache_key(call: &ValidCall, run: &RunContext, admitted: Admitted) -> Option<(ContentHash, Duration)> {
    let definition = call.entry.definition();
    let ttl = definition.cache_ttl?;
    if admitted == Admitted::Approved || !definition.safe || call.unvalidated.is_some() {
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
