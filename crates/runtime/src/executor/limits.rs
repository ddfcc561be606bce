//! Timeouts and retries. The call overrides the tool, the tool the provider, and the provider the global setting.

use std::time::Duration;

use toolwright_core::catalogue::{Entry, ProviderKind};
use toolwright_core::definition::Mode;
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ToolError};

use super::partials::Partials;
use super::{ExecutorOptions, RunContext};

/// The limits of one call, waits excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Whatever it does.
    pub(super) absolute: Option<Duration>,
    /// Without a report of progress.
    pub(super) idle: Option<Duration>,
    /// How often it is tried again where that is safe.
    pub(super) retries: u32,
}

impl Limits {
    /// Sub-agents are exempt from the global limits: what they call has limits of its own. What awaits other
    /// calls is exempt from the global idle limit.
    pub(super) fn of(entry: &Entry, run: &RunContext, options: &ExecutorOptions) -> Self {
        let (tool, provider) = (entry.definition(), entry.provider.limits());
        let is_agent = entry.provider.kind() == ProviderKind::Agent;
        // Whoever awaits others reports no progress meanwhile; they have limits.
        let awaits_others = is_agent || entry.provider.awaits_others(entry.id());
        let global = Some(options.timeout).filter(|_| !is_agent);
        let global_idle = options.idle_timeout.filter(|_| !awaits_others);
        let idle = tool.idle_timeout.or(provider.idle_timeout).or(global_idle);
        Self {
            absolute: run.timeout.or(tool.timeout).or(provider.timeout).or(global),
            // A stateful job is silent while it waits for its input, which has a limit of its own.
            idle: idle.filter(|_| run.job.is_none() || tool.mode != Mode::Stateful),
            retries: tool.retries.or(provider.retries).unwrap_or(0),
        }
    }

    /// Whether a call may run for longer than that.
    pub(super) fn allow(&self, span: Duration) -> bool {
        [self.absolute, self.idle].into_iter().flatten().all(|limit| limit > span)
    }

    /// Waits until the call has run too long.
    pub(super) async fn reached(&self, entry: &Entry, progress: &Partials) -> ToolError {
        let absolute = async {
            match self.absolute {
                Some(limit) => progress.run_for(limit).await,
                None => std::future::pending().await,
            }
        };
        let idle = async {
            match self.idle {
                Some(limit) => progress.silent_for(limit).await,
                None => std::future::pending().await,
            }
        };
        let (did_not, model, limit) = tokio::select! {
            () = absolute => ("finish within", "timeout after", self.absolute),
            () = idle => ("report progress for", "timeout: no progress for", self.idle),
        };
        let limit = duration::format(limit.unwrap_or_default());
        ToolError::new(ErrorKind::Timeout, format!("{} did not {did_not} {limit}", entry.id()))
            .with_model_message(format!("{model} {limit}"))
    }
}
