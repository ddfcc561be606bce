//! Counts the model usage of calls, separate from the run's own requests.

use std::sync::{Mutex, PoisonError};

use serde::Deserialize as _;
use toolwright_core::context::UsageRecorder;
use toolwright_core::model::Usage;
use toolwright_core::outcome::Outcome;

/// What the requests of some calls used, however they ended.
#[derive(Debug, Default)]
pub(super) struct Meter(Mutex<Usage>);

impl Meter {
    /// What was used since this was last asked.
    pub(super) fn take(&self) -> Usage {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl UsageRecorder for Meter {
    fn record(&self, _model: &str, usage: Usage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(usage);
    }
}

/// What calls used, by their outcomes: all that is known of them where a run was interrupted.
pub(super) fn used_by<'o>(outcomes: impl IntoIterator<Item = &'o Outcome>) -> Usage {
    let mut total = Usage::default();
    let used = outcomes.into_iter().filter_map(|outcome| Usage::deserialize(outcome.extras.get("usage")?).ok());
    used.for_each(|used| total.add(used));
    total
}
