//! Output schemas that results have broken. Clients of the official SDKs throw a result away that breaks the schema its
//! tool is listed with, so such a schema is not announced again until the tool's definition is another one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::outcome::{Outcome, SCHEMA_MISMATCH};

use super::peer::Peer;
use crate::Gateway;

/// Definitions of which this is remembered; what is broken beyond them is announced on.
const MAX_BROKEN: usize = 4096;

/// Tools, by the hash of their definition, whose results have broken their output schemas.
#[derive(Default)]
pub(crate) struct BrokenOutputSchemas(Mutex<HashMap<ContentHash, u64>>);

impl BrokenOutputSchemas {
    /// Notes it of a definition. Whether that is news.
    fn note(&self, definition: ContentHash) -> bool {
        let mut all = self.lock();
        if all.len() >= MAX_BROKEN || all.contains_key(&definition) {
            return false;
        }
        let number = all.len() as u64 + 1;
        all.insert(definition, number);
        true
    }

    /// Whether a definition's output schema is not announced any more.
    pub(crate) fn has(&self, definition: ContentHash) -> bool {
        self.lock().contains_key(&definition)
    }

    /// How many are not.
    pub(crate) fn count(&self) -> u64 {
        self.lock().len() as u64
    }

    /// Whether a client knows that this definition's output schema is not announced any more.
    pub(crate) fn is_known_to(&self, definition: Option<ContentHash>, peer: &Peer) -> bool {
        definition.and_then(|definition| self.lock().get(&definition).copied()).is_some_and(|n| n <= peer.unannounced())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContentHash, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    /// Notes where a result broke its tool's output schema. Lists are others from then on, and clients are told.
    pub(crate) fn note_broken_schema(&self, snapshot: &Snapshot, outcome: &Outcome) {
        if !outcome.ok || !outcome.extras.contains_key(SCHEMA_MISMATCH) {
            return;
        }
        let Some(entry) = outcome.tool.as_ref().and_then(|id| snapshot.get(id.as_str())) else { return };
        if self.broken_output_schemas.note(entry.tool.hash()) {
            self.lists.forget();
            self.options.catalogue.notify_watchers();
        }
    }
}
