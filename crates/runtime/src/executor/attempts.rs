//! Dispatches a call, and retries it if that repeats no effect.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::{Entry, ProviderCall};
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::ToolOutput;

use super::llm_call::LlmCall;
use super::partials::Partials;

/// The pause before the second attempt; each further one is twice as long, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// What one call is dispatched with, however often.
pub(super) struct Attempts {
    pub(super) call: Arc<ValidCall>,
    pub(super) context: ToolContext,
    pub(super) progress: Arc<Partials>,
    /// The models of a tool that asks one.
    pub(super) models: Option<Box<LlmCall>>,
    /// How often it may be tried again.
    pub(super) retries: u32,
    /// Goes along with each attempt.
    pub(super) idempotency_key: String,
    /// Spreads the pauses of calls that failed together.
    pub(super) seed: u64,
}

impl Attempts {
    /// Runs the call: with one model after the other, where its tool asks any.
    pub(super) async fn run(&mut self) -> Result<ToolOutput, ToolError> {
        match self.models.take() {
            Some(models) => Box::pin(models.run(self)).await,
            None => pin!(self.repeated()).await,
        }
    }

    /// Runs the call until it succeeds, must not be tried again, or is cancelled.
    pub(super) async fn repeated(&self) -> Result<ToolOutput, ToolError> {
        for failed in 0..self.retries {
            match self.dispatch().await {
                Err(error) if repeats_nothing(&error, &self.call.entry) => {
                    tracing::debug!(tool = %self.call.entry.id(), "attempt {} failed: {error}", failed + 1);
                    tokio::select! {
                        cause = self.context.cancel.cancelled() => {
                            return Err(ToolError::canceled(cause).with_last_words(&error));
                        }
                        () = tokio::time::sleep(pause(failed, self.seed)) => {}
                    }
                }
                ended => return ended,
            }
        }
        pin!(self.dispatch()).await
    }

    /// The only place that runs a tool.
    #[expect(clippy::disallowed_methods, reason = "this is the one executor")]
    async fn dispatch(&self) -> Result<ToolOutput, ToolError> {
        self.progress.note_attempt();
        let entry = &self.call.entry;
        let request = ProviderCall {
            tool: entry.id(),
            raw_name: entry.tool.raw_name(),
            source_hash: entry.tool.source_hash(),
            arguments: self.call.arguments.clone(),
            idempotency_key: &self.idempotency_key,
        };
        entry.provider.call(request, &self.context).await
    }
}

/// Whether another attempt cannot repeat an effect: nothing was dispatched, or a provider whose word counts says
/// that the tool only reads or that twice is the same as once.
fn repeats_nothing(error: &ToolError, entry: &Entry) -> bool {
    let is_lost = matches!(error.kind(), ErrorKind::TransportError | ErrorKind::Timeout);
    error.is_retryable() || (is_lost && entry.is_repeatable())
}

/// Half of the full pause to all of it.
fn pause(failed: u32, seed: u64) -> Duration {
    let full = FIRST_PAUSE.saturating_mul(1 << failed.min(16)).min(MAX_PAUSE);
    let spread = (seed.wrapping_add(failed.into()).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as u32;
    full / 2 + (full / 2).saturating_mul(spread) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_are_bounded_and_are_spread() {
        for failed in 0..40 {
            let full = FIRST_PAUSE.saturating_mul(1 << failed.min(16)).min(MAX_PAUSE);
            for seed in 0..100 {
                assert!((full / 2..=full).contains(&pause(failed, seed)), "{failed} {seed}");
            }
        }
        assert_ne!(pause(0, 1), pause(0, 2));
    }
}
