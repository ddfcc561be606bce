//! The stage that a call has reached, for error reports.

use toolwright_core::catalogue::Entry;

use super::call_record::CallRecord;
use super::panics::Panic;
use super::pipeline::EarlyExit;

/// A stage of a call in which code runs that is not the executor's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    #[default]
    Begin,
    Interceptors,
    Guards,
    Policy,
    Cache,
    Slot,
    Run,
    Shaping,
}

impl Stage {
    /// Whose code runs there.
    pub(super) fn whose(self) -> &'static str {
        match self {
            Self::Begin | Self::Slot => "the executor",
            Self::Interceptors => "an interceptor",
            Self::Guards => "a guard",
            Self::Policy => "the policy, the approver or the scope of the tool",
            Self::Cache => "the response cache",
            Self::Run => "the provider of the tool",
            Self::Shaping => "the shaping of the result",
        }
    }
}

impl CallRecord {
    /// The end of a call in whose present stage something panicked.
    pub(super) fn blame(&self, panicked: &Panic, entry: &Entry) -> EarlyExit {
        let error = panicked.error(self.stage.whose());
        tracing::error!(tool = %entry.id(), "{error}");
        EarlyExit::Failed(error)
    }
}
