//! Requests to a model that a call makes, or that are made about one.

use std::borrow::Cow;
use std::time::Duration;

use toolwright_core::cancel::Cancel;
use toolwright_core::model::{IgnoreModelEvents, ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use toolwright_core::operation::Lineage;
use toolwright_core::session::Session;

use super::model_account::ModelAsk;
use super::{Executor, RunContext};

/// Hears of an answer.
type Hears<'a> = &'a (dyn Fn(&ModelResponse) + Sync);

/// Where a request belongs, and how long it may take.
struct Asked<'a> {
    lineage: &'a Lineage,
    session: &'a Session,
    limit: Option<Duration>,
    cancel: &'a Cancel,
}

impl Executor {
    /// Asks `model` as an operation in the lineage of `run`, until that is cancelled or for at most `limit`. What a
    /// background call asks goes behind what somebody waits for. Told and accounted for however it ends, each attempt.
    ///
    /// # Errors
    /// [`ModelError`] of the model client; `Canceled` and `Unavailable` for the two ends.
    pub async fn ask_model(
        &self,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        run: &RunContext,
    ) -> Result<ModelResponse, ModelError> {
        self.ask_hearing(model, request, limit, run, &|_| {}).await
    }

    /// [`Executor::ask_model`]. `hears` has the answer before it is told of, entered or recorded, to learn its secrets.
    pub(super) async fn ask_hearing(
        &self,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        run: &RunContext,
        hears: Hears<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let priority = request.priority.max(run.priority.into());
        let request = if priority == request.priority {
            Cow::Borrowed(request)
        } else {
            Cow::Owned(ModelRequest { priority, ..request.clone() })
        };
        let asked = Asked { lineage: &run.lineage, session: &run.session, limit, cancel: &run.cancel };
        let answer = self.ask_within(asked, model, &request, hears).await;
        if let Some(recorder) = &run.usage {
            recorder.record(model, answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage));
        }
        answer
    }

    /// [`Executor::ask_model`] in this lineage and on behalf of this session.
    pub(crate) async fn ask_as(
        &self,
        lineage: &Lineage,
        session: &Session,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        self.ask_within(Asked { lineage, session, limit, cancel }, model, request, &|_| {}).await
    }

    async fn ask_within(
        &self,
        Asked { lineage, session, limit, cancel }: Asked<'_>,
        model: &str,
        request: &ModelRequest,
        hears: Hears<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let op = self.begin_model(lineage, session, model, request);
        let account = self.open_model_account(ModelAsk { op, session, model, request, tools: None });
        let events = account.watch(&IgnoreModelEvents);
        let answer = tokio::select! {
            biased;
            cause = cancel.cancelled() => {
                Err(ModelError::new(ModelErrorKind::Canceled, format!("cancelled {}", cause.describe())))
            }
            answer = self.options.services.model.complete(model, request, &events, cancel) => answer,
            limit = passed(limit) => Err(late(limit)),
        };
        if let Ok(answer) = &answer {
            hears(answer);
        }
        account.end(&answer);
        answer
    }
}

/// Waits until `limit` is over; for ever where there is none.
async fn passed(limit: Option<Duration>) -> Duration {
    let Some(limit) = limit else { return std::future::pending().await };
    tokio::time::sleep(limit).await;
    limit
}

fn late(limit: Duration) -> ModelError {
    let limit = toolwright_core::duration::format(limit);
    ModelError::new(ModelErrorKind::Unavailable, format!("the model did not answer within {limit}"))
}
