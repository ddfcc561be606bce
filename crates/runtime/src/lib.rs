//! The one executor, the live catalogue, and the stores and clocks that they need.
//!
//! Everything that runs a tool comes through [`Executor::execute`]: agent loop, gateway, command line.

pub mod approvals;
pub mod budget;
pub mod cache;
pub mod catalogue;
pub mod events;
pub mod executor;
pub mod jobs;
pub mod models;
pub mod outputs;
pub mod queue;
pub mod redact;
pub mod sessions;
pub mod store;

use std::time::{Instant, SystemTime};

use toolwright_core::Clock;

pub use approvals::{FormInbox, FormInboxOptions, Inbox, InboxOptions};
pub use cache::Responses;
pub use catalogue::{Catalogue, Pins};
pub use events::{EventHub, Observation};
pub use executor::{Executor, ExecutorOptions, RecoveryOptions, RunContext};
pub use jobs::JobManager;
pub use models::{ModelJudge, ModelQueueConfig, ModelTraffic, Recorder, TrafficConfig};
pub use outputs::OutputFiles;
pub use queue::{Priority, QueueConfig, Queues};
pub use redact::SecretRedactor;
pub use sessions::{SessionFiles, SessionManuals};
pub use store::SqliteStore;

/// The system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}
