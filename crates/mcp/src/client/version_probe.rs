//! Which generation a server speaks, once that has been found: by this process, or by an earlier one that kept it with
//! the server's manifest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::protocol::revision::Era;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::store::ManifestCache;

use super::handshake::ServerInfo;

/// Key of what is kept in a manifest.
pub(crate) const KEPT: &str = "generation";

/// What is known of one server.
pub(crate) struct VersionProbe {
    manifests: Arc<dyn ManifestCache>,
    key: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// That of the last connection of this process.
    last: Option<Era>,
    /// What was found by trying both.
    found: Option<Found>,
    was_read: bool,
}

/// What trying both found, and of which program: another version of it may speak what this one did not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    is_modern: bool,
    program: Option<Value>,
}

/// How sure a handshake makes which generation is the newest that a server speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// It speaks the newest too, as it said too late for this connection.
    Newer,
    /// The newest was tried, and the server does not speak it.
    Tried,
    /// It was not tried, or not for long enough.
    #[default]
    Untried,
}

impl VersionProbe {
    /// Nothing is known yet but what `manifests` has under `key`.
    pub(crate) fn new(manifests: Arc<dyn ManifestCache>, key: String) -> Arc<Self> {
        Arc::new(Self { manifests, key, state: Mutex::default() })
    }

    /// What to try first.
    pub(crate) async fn known(&self) -> Option<Era> {
        let (last, was_read) = {
            let state = self.lock();
            (state.last, state.was_read)
        };
        if last.is_some() || was_read {
            return last;
        }
        // A store that cannot be read costs a try.
        let kept = self.manifests.manifest(&self.key).await.ok().flatten();
        let found = kept.as_ref().and_then(|kept| Found::deserialize(kept.get(KEPT)?).ok());
        let mut state = self.lock();
        state.was_read = true;
        state.found = state.found.take().or(found);
        state.found.as_ref().map(|found| if found.is_modern { Era::Modern } else { Era::Legacy })
    }

    /// Notes what a handshake ended with.
    pub(crate) fn note(&self, server: &ServerInfo, certainty: Certainty) {
        let mut state = self.lock();
        let newest = if certainty == Certainty::Newer { Era::Modern } else { server.era };
        state.last = Some(newest);
        let now = Found { is_modern: newest == Era::Modern, program: server.program.clone() };
        // Who speaks the newest has nothing left to be found; of an older one only the same program is still known.
        let still_holds = now.is_modern || certainty == Certainty::Tried || state.found.as_ref() == Some(&now);
        state.found = still_holds.then_some(now);
    }

    /// What to keep with the manifest.
    pub(crate) fn found(&self) -> Option<Found> {
        self.lock().found.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use serde_json::{Map, json};
    use toolwright_core::store::StoreError;

    struct Kept(Value);

    #[async_trait]
    impl ManifestCache for Kept {
        async fn manifest(&self, _: &str) -> Result<Option<Value>, StoreError> {
            Ok(Some(self.0.clone()))
        }
        async fn set_manifest(&self, _: &str, _: &Value) -> Result<(), StoreError> {
            Ok(())
        }
    }

    fn said(era: Era, program: &str) -> ServerInfo {
        let (version, instructions) = ("2025-11-25", None);
        let (capabilities, program) = (Arc::new(Map::new()), Some(json!({"version": program})));
        ServerInfo { era, version, capabilities, instructions, program }
    }

    #[tokio::test]
    async fn what_was_found_holds_for_the_program_that_it_was_found_of() {
        let old = json!({"is_modern": false, "program": {"version": "1"}});
        for (kept, known, said, certainty, keeps) in [
            (json!({}), None, said(Era::Legacy, "1"), Certainty::Tried, Some(old.clone())),
            (json!({}), None, said(Era::Legacy, "1"), Certainty::Untried, None),
            (
                json!({}),
                None,
                said(Era::Legacy, "1"),
                Certainty::Newer,
                Some(json!({"is_modern": true, "program": {"version": "1"}})),
            ),
            (json!({KEPT: old}), Some(Era::Legacy), said(Era::Legacy, "1"), Certainty::Untried, Some(old.clone())),
            (json!({KEPT: old}), Some(Era::Legacy), said(Era::Legacy, "2"), Certainty::Untried, None),
            (
                json!({KEPT: old}),
                Some(Era::Legacy),
                said(Era::Modern, "2"),
                Certainty::Untried,
                Some(json!({"is_modern": true, "program": {"version": "2"}})),
            ),
            (json!({KEPT: "?"}), None, said(Era::Legacy, "1"), Certainty::Tried, Some(old.clone())),
        ] {
            let generation = VersionProbe::new(Arc::new(Kept(kept.clone())), "k".to_owned());
            assert_eq!(generation.known().await, known, "{kept}");
            generation.note(&said, certainty);
            let found = generation.found().map(|found| serde_json::to_value(found).expect("JSON"));
            assert_eq!(found, keeps, "{kept} {said:?} {certainty:?}");
            let last = if certainty == Certainty::Newer { Era::Modern } else { said.era };
            assert_eq!(generation.known().await, Some(last), "of this process");
        }
    }
}
