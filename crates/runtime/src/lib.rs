//! The one executor, the live catalogue, and the stores and clocks that they need.
//!
//! Everything that runs a tool comes through [`Executor::execute`]: agent loop, gateway, command line.

pub mod approvals;
pub mod cache;
pub mod catalogue;
pub mod clock;
pub mod events;
pub mod executor;
pub mod files;
pub mod jobs;
pub mod manuals;
pub mod model_traffic;
pub mod outputs;
pub mod pins;
pub mod queue;
pub mod recorder;
pub mod redact;
pub mod select;
pub mod store;

pub use approvals::{FormInbox, FormInboxParts, Inbox, InboxParts};
pub use cache::Responses;
pub use catalogue::Catalogue;
pub use clock::SystemClock;
pub use events::{EventHub, Observation};
pub use executor::{Executor, ExecutorOptions, RecoveryTerms, RunContext};
pub use files::SessionFiles;
pub use jobs::JobManager;
pub use manuals::SessionManuals;
pub use model_traffic::{ModelTraffic, TrafficTerms, default_model_queue};
pub use outputs::OutputFiles;
pub use pins::Pins;
pub use queue::{Priority, QueueSpec, Queues};
pub use recorder::Recorder;
pub use redact::SecretRedactor;
pub use select::{Selector, ToolFinder, ToolVectors, searchable};
pub use store::SqliteStore;
