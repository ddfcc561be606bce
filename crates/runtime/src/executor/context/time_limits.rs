//! The time limits of a call: the tool's own, the run's, or the defaults.

use super::options::ExecutorOptions;
use super::progress::CallProgress;
use super::run_context::RunContext;
use std::time::Duration;
use toolwright_core::catalogue::{Entry, ProviderKind};
use toolwright_core::definition::Mode;
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ToolError};

/// The limits of one call, excluding waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::executor) struct CallTimeLimits {
    /// Whatever it does.
    pub(in crate::executor) absolute: Option<Duration>,
    /// Time without a progress report.
    pub(in crate::executor) idle: Option<Duration>,
    /// How often it is retried if that is safe.
    pub(in crate::executor) retries: u32,
}

/// The limit that a call reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::executor) enum ReachedLimit {
    Absolute,
    Idle,
}

impl CallTimeLimits {
    /// Returns the limits of a call. Sub-agents are exempt from the global limits, because their own calls have limits.
    /// Tools that await other calls are exempt from the global idle limit.
    pub(in crate::executor) fn of(entry: &Entry, run: &RunContext, options: &ExecutorOptions) -> Self {
        let (tool, provider) = (entry.definition(), entry.provider.limits());
        let is_agent = entry.provider.kind() == ProviderKind::Agent;
        // A tool that awaits other calls reports no progress meanwhile; those calls have their own limits.
        let awaits_others = is_agent || entry.provider.awaits_others(entry.id());
        let global = Some(options.defaults.tool_timeout).filter(|_| !is_agent);
        let global_idle = options.defaults.idle_timeout.filter(|_| !awaits_others);
        let idle = tool.idle_timeout.or(provider.idle_timeout).or(global_idle);
        Self {
            absolute: run.timeout.or(tool.timeout).or(provider.timeout).or(global),
            // A stateful job is silent while it waits for input, and that wait has its own limit.
            idle: idle.filter(|_| run.job.is_none() || tool.mode != Mode::Stateful),
            retries: tool.retries.or(provider.retries).unwrap_or(0),
        }
    }

    /// Returns whether a call may run longer than `span`.
    pub(in crate::executor) fn allow(&self, span: Duration) -> bool {
        [self.absolute, self.idle].into_iter().flatten().all(|limit| limit > span)
    }

    /// Waits until the call has reached a limit.
    pub(in crate::executor) async fn wait_for_limit(&self, entry: &Entry, progress: &CallProgress) -> ToolError {
        let reached = loop {
            match progress.time_left(self) {
                None => std::future::pending().await,
                Some((Duration::ZERO, reached)) => break reached,
                Some((left, _)) => tokio::time::sleep(left).await,
            }
        };
        let (did_not, model, limit) = match reached {
            ReachedLimit::Absolute => ("finish within", "timeout after", self.absolute),
            ReachedLimit::Idle => ("report progress for", "timeout: no progress for", self.idle),
        };
        let limit = duration::format(limit.unwrap_or_default());
        ToolError::new(ErrorKind::Timeout, format!("{} did not {did_not} {limit}", entry.id()))
            .with_model_message(format!("{model} {limit}"))
    }
}
