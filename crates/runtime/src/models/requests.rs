//! Sends requests to models, each as an operation that is reported to observers and recorded in the ledger.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::cancel::Cancel;
use toolwright_core::context::Services;
use toolwright_core::event::Event;
use toolwright_core::model::{
    AuxiliaryRequest, AuxiliarySender, IgnoreModelEvents, ModelError, ModelErrorKind, ModelPriority, ModelRequest,
    ModelResponse, ModelSpending, PriceTable, Usage,
};
use toolwright_core::operation::{Lineage, Op};
use toolwright_core::session::Session;
use toolwright_core::store::{LedgerStore, StoreError};

use super::attempt_record::{ModelAsk, ModelCallRecord, ModelQuestion};
use super::{Budgets, OpIds, Recorder};

/// Gets an answer before it is reported or recorded.
pub(crate) type OnAnswer<'a> = &'a (dyn Fn(&ModelResponse) + Sync);

/// The place of a request in the tree of operations, and its time limit.
pub(crate) struct RequestScope<'a> {
    pub(crate) lineage: &'a Lineage,
    pub(crate) session: &'a Session,
    pub(crate) limit: Option<Duration>,
    pub(crate) cancel: &'a Cancel,
    /// A note for the ledger.
    pub(crate) note: Option<String>,
}

/// The only way for requests to models. Each attempt is reported and charged, however it ends.
pub struct ModelRequests {
    pub(crate) ids: OpIds,
    pub(super) services: Arc<Services>,
    pub(super) ledger: Arc<dyn LedgerStore>,
    pub(super) prices: PriceTable,
    pub(super) recorder: Recorder,
    pub(super) budgets: Option<Budgets>,
}

impl std::fmt::Debug for ModelRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelRequests").finish_non_exhaustive()
    }
}

impl ModelRequests {
    /// Creates requests by the model client of these services.
    pub(crate) fn new(
        services: Arc<Services>,
        ledger: Arc<dyn LedgerStore>,
        prices: PriceTable,
        budgets: Option<Budgets>,
    ) -> Arc<Self> {
        Arc::new(Self { ids: OpIds::default(), services, ledger, prices, recorder: Recorder::default(), budgets })
    }

    /// Returns the prices of models.
    #[must_use]
    pub fn prices(&self) -> &PriceTable {
        &self.prices
    }

    /// Returns the recorder of requests and answers.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Returns what a principal has spent of its budget in the present period, and the period's name; `None` without a
    /// budget.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn spent(&self, principal: &str) -> Result<Option<(String, ModelSpending)>, StoreError> {
        let Some(budgets) = &self.budgets else { return Ok(None) };
        let Some((_, period)) = budgets.by_principal.get(principal) else { return Ok(None) };
        let (period, _) = period.at(self.services.clock.wall_ms());
        let spent = budgets.store.budget_spent(principal, &period).await?;
        Ok(Some((period, spent)))
    }

    /// Opens the record of a request that begins now.
    #[must_use]
    pub fn open_record<'a>(&'a self, ask: ModelAsk<'a>) -> ModelCallRecord<'a> {
        ModelCallRecord::open(self, ask)
    }

    /// Asks `model` until the scope is cancelled or for at most its limit. `on_answer` gets the answer, or the complete
    /// parts of it, first, to learn its secrets.
    ///
    /// # Errors
    /// [`ModelError`] of the model client; `Canceled` on cancellation, `Unavailable` at the limit.
    pub(crate) async fn ask(
        &self,
        RequestScope { lineage, session, limit, cancel, note }: RequestScope<'_>,
        model: &str,
        request: &ModelRequest,
        on_answer: OnAnswer<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let question = ModelQuestion::Answer(request);
        let op = self.begin(lineage, session, model, question);
        let record = self.open_record(ModelAsk { op, session, model, question, tools: None, lost: Vec::new(), note });
        let answer = tokio::select! {
            biased;
            answer = record.complete(&*self.services.model, request, &IgnoreModelEvents, cancel) => answer,
            limit = passed(limit) => Err(timed_out(limit)),
        };
        // The complete parts of a broken answer are recorded too.
        match &answer {
            Ok(answer) => on_answer(answer),
            Err(error) => error.partial.iter().for_each(|partial| on_answer(partial)),
        }
        record.end(&answer);
        answer
    }

    /// Begins a request outside of an agent's turn, and reports it. Call [`ModelRequests::open_record`] afterwards.
    fn begin(&self, lineage: &Lineage, session: &Session, model: &str, question: ModelQuestion<'_>) -> Op {
        let op = self.ids.begin(lineage);
        self.services.events.emit_routine(|| Event::ModelStarted {
            op: op.clone(),
            session: session.id.clone(),
            model: model.to_owned(),
            turn: lineage.turn,
            shown: match question {
                ModelQuestion::Answer(request) => request.tools.iter().map(|tool| tool.name.clone()).collect(),
                ModelQuestion::Other { .. } => Vec::new(),
            },
            deferred: 0,
            exposure: None,
        });
        op
    }
}

/// Sends auxiliary requests on behalf of a session, in one of its traces.
#[derive(Debug)]
pub struct AuxiliaryRequests {
    requests: Arc<ModelRequests>,
    session: Arc<Session>,
}

impl AuxiliaryRequests {
    /// Creates them for this session.
    #[must_use]
    pub fn new(requests: Arc<ModelRequests>, session: Arc<Session>) -> Self {
        Self { requests, session }
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
        let (requests, session, cancel) = (&self.requests, &*self.session, Cancel::new());
        let question = ModelQuestion::Other { characters: request.characters() };
        let op = requests.begin(&Lineage::named(session.id.as_str()), session, model, question);
        let record =
            requests.open_record(ModelAsk { op, session, model, question, tools: None, lost: Vec::new(), note: None });
        let events = record.watch(&IgnoreModelEvents);
        let used = requests.services.model.send_auxiliary(model, request, priority, &events, &cancel).await;
        let answer = used.map(|usage| ModelResponse { usage, ..ModelResponse::default() });
        record.end(&answer);
        answer.map(|answer| answer.usage)
    }
}

/// Waits until `limit` has passed; forever without one.
async fn passed(limit: Option<Duration>) -> Duration {
    let Some(limit) = limit else { return std::future::pending().await };
    tokio::time::sleep(limit).await;
    limit
}

fn timed_out(limit: Duration) -> ModelError {
    let limit = toolwright_core::duration::format(limit);
    ModelError::new(ModelErrorKind::Unavailable, format!("the model did not answer within {limit}"))
}
