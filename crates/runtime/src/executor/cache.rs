//! The cache stage: answers from an earlier result if the tool's author or the operator allows it.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolwright_core::call::ValidCall;
use toolwright_core::canonical::ContentHash;
use toolwright_core::definition::Mode;
use toolwright_core::outcome::ToolOutput;

use super::admission::Admitted;
use super::{Executor, RunContext};

/// Namespaces whose tools depend on what no key holds: files, processes, notes and jobs.
const NEVER: [&str; 4] = ["fs", "shell", "memory", "job"];

/// Keeps successful outputs of tools that have a `cache_ttl`.
#[async_trait]
pub trait ResponseCache: Send + Sync {
    /// An entry that is not over, by what was said when it was kept and by the tool's `ttl` now.
    async fn get(&self, key: &ContentHash, ttl: Duration) -> Option<ToolOutput>;
    /// Keeps an entry.
    async fn put(&self, key: &ContentHash, ttl: Duration, output: &ToolOutput);
}

/// What the cache says of a call.
#[derive(Default)]
pub(super) struct Cached {
    /// A live entry.
    pub(super) hit: Option<ToolOutput>,
    /// Where its output may be kept, if it has none.
    pub(super) place: Option<Place>,
}

/// Where an output may be kept.
pub(super) struct Place {
    key: ContentHash,
    ttl: Duration,
    /// The credentials of the key.
    credentials: Option<ContentHash>,
}

impl Executor {
    pub(super) async fn cached(&self, call: &ValidCall, admitted: Admitted, run: &RunContext) -> Cached {
        let Some(cache) = &self.options.cache else { return Cached::default() };
        let Some(place) = place(call, run, admitted) else { return Cached::default() };
        match cache.get(&place.key, place.ttl).await {
            Some(output) => Cached { hit: Some(output.with_extra("cached", true)), place: None },
            None => Cached { hit: None, place: Some(place) },
        }
    }

    /// Keeps a success, unless other credentials have come into force since the call was about to begin: whose it is, is
    /// not known then.
    pub(super) async fn keep(&self, place: Option<Place>, call: &ValidCall, run: &RunContext, output: &ToolOutput) {
        let (Some(cache), Some(place), false) = (&self.options.cache, place, output.is_error) else { return };
        if call.entry.provider.credential_scope(&run.session.principal) == place.credentials {
            cache.put(&place.key, place.ttl, output).await;
        }
    }
}

/// Where a call's output may be kept; `None` for a call whose output never may: no lifetime,
/// unsafe, unvalidated, approved by hand, or with more to its output than it says at once. Two equal calls at once
/// are two calls: nobody waits for another's output.
fn place(call: &ValidCall, run: &RunContext, admitted: Admitted) -> Option<Place> {
    let (entry, definition) = (&call.entry, call.entry.definition());
    let ttl = definition.cache_ttl?;
    let is_plain = definition.safe && definition.mode == Mode::Direct && !entry.provider.awaits_others(entry.id());
    if matches!(admitted, Admitted::Approved(_))
        || call.unvalidated.is_some()
        || !is_plain
        || NEVER.contains(&definition.id.namespace())
    {
        return None;
    }
    let principal = &run.session.principal;
    let credentials = entry.provider.credential_scope(principal);
    let key = ContentHash::of_value(&json!({
        "tool": definition.id,
        "definition": entry.tool.hash(),
        "arguments": call.arguments,
        "instance": entry.provider.name(),
        "principal": principal.id,
        "credentials": credentials,
        "root": run.session.root,
    }));
    Some(Place { key, ttl, credentials })
}
