//! Sends requests to models, each as an operation that observers hear of and the ledger has.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::cancel::Cancel;
use toolwright_core::context::Services;
use toolwright_core::event::Event;
use toolwright_core::model::{
    AuxiliaryRequest, AuxiliarySender, IgnoreModelEvents, ModelError, ModelErrorKind, ModelPriority, ModelRequest,
    ModelResponse, ModelSpent, PriceTable, Usage,
};
use toolwright_core::operation::{Lineage, Op};
use toolwright_core::session::Session;
use toolwright_core::store::{LedgerStore, StoreError};

use super::attempt_record::{ModelAsk, ModelCallRecord, ModelQuestion};
use super::{Budgets, OpIds, Recorder};

/// Hears of an answer before it is told of, entered or recorded.
pub(crate) type OnAnswer<'a> = &'a (dyn Fn(&ModelResponse) + Sync);

/// Where a request belongs, and how long it may take.
pub(crate) struct RequestScope<'a> {
    pub(crate) lineage: &'a Lineage,
    pub(crate) session: &'a Session,
    pub(crate) limit: Option<Duration>,
    pub(crate) cancel: &'a Cancel,
    /// What the ledger is to say of it.
    pub(crate) note: Option<String>,
}

/// The way of all requests to models: each attempt is told of and accounted for, however it ends.
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
    /// Requests by the model client of these services.
    pub(crate) fn new(
        services: Arc<Services>,
        ledger: Arc<dyn LedgerStore>,
        prices: PriceTable,
        budgets: Option<Budgets>,
    ) -> Arc<Self> {
        Arc::new(Self { ids: OpIds::default(), services, ledger, prices, recorder: Recorder::default(), budgets })
    }

    /// What models cost.
    #[must_use]
    pub fn prices(&self) -> &PriceTable {
        &self.prices
    }

    /// What records requests and their answers in a file, once it is told in which.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// What is spent of the budget of a principal in the present period, and the period's name; `None` if it has none.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn spent(&self, principal: &str) -> Result<Option<(String, ModelSpent)>, StoreError> {
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

    /// Asks `model` until the scope is cancelled or for at most its limit. `on_answer` has the answer, or what was
    /// whole of it, first, to learn its secrets.
    ///
    /// # Errors
    /// [`ModelError`] of the model client; `Canceled` and `Unavailable` for the two ends.
    pub(crate) async fn ask(
        &self,
        RequestScope { lineage, session, limit, cancel, note }: RequestScope<'_>,
        model: &str,
        request: &ModelRequest,
        on_answer: OnAnswer<'_>,
    ) -> Result<ModelResponse, ModelError> {
        let asked = ModelQuestion::Answer(request);
        let op = self.begin(lineage, session, model, asked);
        let record = self.open_record(ModelAsk { op, session, model, asked, tools: None, lost: Vec::new(), note });
        let answer = tokio::select! {
            biased;
            answer = record.complete(&*self.services.model, request, &IgnoreModelEvents, cancel) => answer,
            limit = passed(limit) => Err(timed_out(limit)),
        };
        // What was whole of a broken answer is recorded as well.
        match &answer {
            Ok(answer) => on_answer(answer),
            Err(error) => error.partial.iter().for_each(|partial| on_answer(partial)),
        }
        record.end(&answer);
        answer
    }

    /// Begins a request that no agent's turn makes, and tells observers. [`ModelRequests::open_record`] is to follow.
    fn begin(&self, lineage: &Lineage, session: &Session, model: &str, asked: ModelQuestion<'_>) -> Op {
        let op = self.ids.begin(lineage);
        self.services.events.emit_routine(|| Event::ModelStarted {
            op: op.clone(),
            session: session.id.clone(),
            model: model.to_owned(),
            turn: lineage.turn,
            shown: match asked {
                ModelQuestion::Answer(request) => request.tools.iter().map(|tool| tool.name.clone()).collect(),
                ModelQuestion::Other { .. } => Vec::new(),
            },
            deferred: 0,
            exposure: None,
        });
        op
    }
}

/// Sends auxiliary requests on behalf of a session, in a trace of it.
#[derive(Debug)]
pub struct AuxiliaryRequests {
    requests: Arc<ModelRequests>,
    session: Arc<Session>,
}

impl AuxiliaryRequests {
    /// By these requests, on behalf of this session.
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
        let asked = ModelQuestion::Other { characters: request.characters() };
        let op = requests.begin(&Lineage::named(session.id.as_str()), session, model, asked);
        let record =
            requests.open_record(ModelAsk { op, session, model, asked, tools: None, lost: Vec::new(), note: None });
        let events = record.watch(&IgnoreModelEvents);
        let used = requests.services.model.send_auxiliary(model, request, priority, &events, &cancel).await;
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

fn timed_out(limit: Duration) -> ModelError {
    let limit = toolwright_core::duration::format(limit);
    ModelError::new(ModelErrorKind::Unavailable, format!("the model did not answer within {limit}"))
}
