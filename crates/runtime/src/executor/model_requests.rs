//! Requests to a model that a call makes, or that concern a call.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{
    AuxiliaryRequest, AuxiliarySender, IgnoreModelEvents, ModelError, ModelErrorKind, ModelPriority, ModelRequest,
    ModelResponse, Usage,
};
use toolwright_core::operation::Lineage;
use toolwright_core::session::Session;

use super::model_call_record::{Asked, ModelAsk};
use super::{Executor, RunContext};

/// Hears of an answer.
type OnAnswer<'a> = &'a (dyn Fn(&ModelResponse) + Sync);

/// Where a request belongs, and how long it may take.
struct RequestScope<'a> {
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

    /// [`Executor::ask_model`]. `on_answer` has the answer, or what was whole of it, before it is told of, entered or
    /// recorded, to learn its secrets.
    pub(super) async fn ask_hearing(
        &self,
        model: &str,
        request: &ModelRequest,
        limit: Option<Duration>,
        run: &RunContext,
        on_answer: OnAnswer<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let priority = request.priority.max(run.priority.into());
        let room = if run.llm.requests.is_endless() { &request.room } else { &run.llm.requests };
        let request = if priority == request.priority && *room == request.room {
            Cow::Borrowed(request)
        } else {
            Cow::Owned(ModelRequest { priority, room: room.clone(), ..request.clone() })
        };
        let asked = RequestScope { lineage: &run.lineage, session: &run.session, limit, cancel: &run.cancel };
        let answer = self.ask_within(asked, model, &request, on_answer).await;
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
        self.ask_within(RequestScope { lineage, session, limit, cancel }, model, request, &|_| {}).await
    }

    async fn ask_within(
        &self,
        RequestScope { lineage, session, limit, cancel }: RequestScope<'_>,
        model: &str,
        request: &ModelRequest,
        on_answer: OnAnswer<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let asked = Asked::Answer(request);
        let op = self.begin_model(lineage, session, model, asked);
        let record = self.open_model_record(ModelAsk { op, session, model, asked, tools: None });
        let events = record.watch(&IgnoreModelEvents);
        let answer = tokio::select! {
            biased;
            cause = cancel.cancelled() => {
                Err(ModelError::new(ModelErrorKind::Canceled, format!("cancelled {}", cause.describe())))
            }
            answer = self.options.services.model.complete(model, request, &events, cancel) => answer,
            limit = passed(limit) => Err(late(limit)),
        };
        // What was whole of a broken answer is recorded as well.
        match &answer {
            Ok(answer) => on_answer(answer),
            Err(error) => error.partial.iter().for_each(|partial| on_answer(partial)),
        }
        record.end(&answer);
        answer
    }
}

/// Sends auxiliary requests on behalf of a session, as operations of this lineage.
pub struct AuxiliaryRequests {
    executor: Arc<Executor>,
    lineage: Lineage,
    session: Arc<Session>,
}

impl std::fmt::Debug for AuxiliaryRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuxiliaryRequests").field("session", &self.session.id).finish_non_exhaustive()
    }
}

impl AuxiliaryRequests {
    /// By this executor's client of models, in a trace of the session.
    #[must_use]
    pub fn new(executor: Arc<Executor>, session: Arc<Session>) -> Self {
        Self { executor, lineage: Lineage::named(session.id.as_str()), session }
    }
}

#[async_trait]
impl AuxiliarySender for AuxiliaryRequests {
    async fn send(
        &self,
        model: &str,
        request: &dyn AuxiliaryRequest,
        priority: ModelPriority,
    ) -> Result<Usage, ModelError> {
        let (executor, session, cancel) = (&self.executor, &*self.session, Cancel::new());
        let asked = Asked::Other { characters: request.characters() };
        let op = executor.begin_model(&self.lineage, session, model, asked);
        let record = executor.open_model_record(ModelAsk { op, session, model, asked, tools: None });
        let events = record.watch(&IgnoreModelEvents);
        let used = executor.options.services.model.send_auxiliary(model, request, priority, &events, &cancel).await;
        let answer = used.map(|usage| ModelResponse { usage, ..ModelResponse::default() });
        record.end(&answer);
        answer.map(|answer| answer.usage)
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
