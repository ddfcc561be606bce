//! Interceptors may skip or change a call: before policy decides, and after it ran.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::call::ValidCall;
use toolwright_core::catalogue::Entry;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::{STANDS_IN, ToolOutput};

use super::pipeline::EarlyExit;
use super::{Executor, RunContext};

/// How long an interceptor may take.
const LIMIT: Duration = Duration::from_secs(10);

/// What an interceptor says of a call that is about to be judged.
#[derive(Debug, Clone, PartialEq)]
pub enum Before {
    /// Go on.
    Continue,
    /// This is its result; the tool does not run.
    Skip(ToolOutput),
    /// Go on with these arguments, an object, which are validated again.
    Override(Value),
}

/// A part of the program that may skip calls or change them: only what is registered as one may. One that panics
/// or does not answer within ten seconds ends the call with an internal error.
#[async_trait]
pub trait Interceptor: Send + Sync {
    /// What it is called in messages.
    fn name(&self) -> &str;
    /// Looks at a call before guards, policy and approval do.
    async fn before(&self, _call: &ValidCall, _run: &RunContext) -> Before {
        Before::Continue
    }
    /// Looks at what a tool said, each step of a stateful one included; `Some` takes its place. Not asked about what
    /// came from the cache, nor about calls that failed without a result.
    async fn after(&self, _tool: &Entry, _output: &ToolOutput, _run: &RunContext) -> Option<ToolOutput> {
        None
    }
}

impl Executor {
    /// Hears every interceptor in order, until one skips the call.
    pub(super) async fn intercept(&self, call: &mut ValidCall, run: &RunContext) -> Result<(), EarlyExit> {
        for interceptor in &self.options.interceptors {
            match answer(interceptor.name(), run, interceptor.before(call, run)).await? {
                Before::Continue => {}
                Before::Skip(mut output) => {
                    // A word in the place of a result is not held against the tool's output schema.
                    if output.structured.is_none() {
                        output.extras.entry(STANDS_IN).or_insert_with(|| "skipped".into());
                    }
                    return Err(EarlyExit::Answered(Box::new(output.with_extra("skipped_by", interceptor.name()))));
                }
                Before::Override(arguments) => {
                    super::rewrite::rewrite(call, arguments, &format!("interceptor {}", interceptor.name()))?;
                }
            }
        }
        Ok(())
    }

    /// Shows an output to every interceptor, the last registered first.
    pub(super) async fn intercept_output(
        &self,
        tool: &Entry,
        mut output: ToolOutput,
        run: &RunContext,
    ) -> Result<ToolOutput, ToolError> {
        for interceptor in self.options.interceptors.iter().rev() {
            if let Some(mut other) = answer(interceptor.name(), run, interceptor.after(tool, &output, run)).await? {
                // Other words in the place of a result are no result either.
                if let Some(what) = output.extras.remove(STANDS_IN).filter(|_| other.structured.is_none()) {
                    other.extras.entry(STANDS_IN).or_insert(what);
                }
                output = other.with_extra("overridden_by", interceptor.name());
            }
        }
        Ok(output)
    }
}

async fn answer<T>(name: &str, run: &RunContext, asked: impl Future<Output = T>) -> Result<T, ToolError> {
    tokio::select! {
        biased;
        answer = asked => Ok(answer),
        // A call that was stopped may still have an output to look at, which does not wait for anything.
        cause = run.cancel.cancelled() => Err(ToolError::canceled(cause)),
        () = tokio::time::sleep(LIMIT) => {
            let message = format!("interceptor {name} did not answer within {LIMIT:?}");
            Err(ToolError::new(ErrorKind::InternalError, message).with_model_message("internal error"))
        }
    }
}
