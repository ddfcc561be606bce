//! Requests to models: queues, retries, and records in the ledger and in recordings.

mod agent_budget;
mod attempt_record;
mod budgets;
mod recorder;
mod requests;
mod traffic;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use toolwright_core::operation::{Lineage, Op, OpId};

pub use self::agent_budget::{AgentBudget, ReservedAgent};
pub use self::attempt_record::{ModelAsk, ModelCallRecord, ModelQuestion};
pub use self::budgets::Budgets;
pub use self::recorder::Recorder;
pub use self::requests::{AuxiliaryRequests, ModelRequests};
pub(crate) use self::requests::{OnAnswer, RequestScope};
pub use self::traffic::{ModelQueueConfig, ModelTraffic, TrafficConfig};

/// Generates operation ids. Ids of two processes are practically distinct.
#[derive(Debug)]
pub(crate) struct OpIds(AtomicU64);

impl Default for OpIds {
    fn default() -> Self {
        Self(AtomicU64::new(uuid::Uuid::new_v4().as_u64_pair().0))
    }
}

impl OpIds {
    /// Begins an operation.
    pub(crate) fn begin(&self, lineage: &Lineage) -> Op {
        lineage.begin(OpId::new(self.0.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Returns a duration in microseconds, the unit of events and the ledger.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
