//! Starts the work on a long request: its response, the client and approver that it may ask, and its task.

pub(crate) mod call;
mod task;
pub(crate) mod tasks;

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;
use toolwright_core::approval::{Approver, NoApprover};
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::client::CallClient;
use toolwright_core::context::PartialSink;
use toolwright_core::operation::{CallOrigin, Lineage, TraceId};
use toolwright_core::outcome::Outcome;
use toolwright_core::output::ResultAudience;
use toolwright_core::session::CallId;
use toolwright_mcp::{asking, convert};
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::{CallerNames, PartialSinkFactory};
use toolwright_runtime::queue::WorkspaceTurn;

use self::task::Task;
use self::tasks::{AskRoute, TaskClient, TaskProgress};
use super::client::approval::ClientApprover;
use super::client::input_required::{PausableCall, RequestBinding, ResumeOutcome, given_answers};
use super::client::{DetachedClient, NamedSource, RequestClient, SessionClient};
use super::message::{Params, Request, RpcError};
use super::protocol::{Era, Level};
use super::response::{AttachedRequest, Progress, Reply, ReplyTo, ResponseChannel, ResponseGuard};
use super::session::Caller;
use crate::Gateway;
use crate::mcp::Elicitation;

pub(crate) const CALL: &str = "tools/call";

/// Added to policy's reason if the gateway acts by itself.
const NO_CLIENT_WAITS: &str =
    "no client waits for this call, so nobody is asked; a client that makes the call itself is asked";

/// A request whose answer takes time.
pub(crate) struct PendingRequest {
    pub(crate) era: Era,
    pub(crate) request: Request,
    pub(crate) reply_to: ReplyTo,
    /// How long the call is kept if it becomes a task. Only tool calls become tasks.
    pub(crate) task: Option<Duration>,
}

impl PendingRequest {
    pub(crate) fn new(era: Era, request: Request, to: ReplyTo) -> Self {
        Self { era, request, reply_to: to, task: None }
    }
}

/// The context of the work on one request: its caller, and the conditions under which calls run.
pub(crate) struct McpRequestContext {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) caller: Caller,
    client: Arc<dyn CallClient>,
    lineage: Option<Lineage>,
    pub(crate) cancel: Cancel,
    /// The channel to the waiting request.
    pub(crate) channel: Option<Arc<ResponseChannel>>,
    progress: Option<Arc<dyn PartialSink>>,
    approver: Arc<dyn Approver>,
    /// Its place in the order of calls of its connection.
    turn: Option<Arc<WorkspaceTurn>>,
}

impl McpRequestContext {
    /// Creates work without a waiting client, at a caller's address. A call that needs approval is denied.
    pub(crate) fn detached(gateway: &Arc<Gateway>, caller: Caller) -> Self {
        Self {
            gateway: Arc::clone(gateway),
            client: Arc::new(DetachedClient { state: Arc::clone(&caller.client) }),
            caller,
            lineage: None,
            cancel: Cancel::new(),
            channel: None,
            progress: None,
            approver: Arc::new(NoApprover { remedy: NO_CLIENT_WAITS.into() }),
            turn: None,
        }
    }

    /// Returns the same work with this approver.
    pub(crate) fn asking(self, approver: &Arc<dyn Approver>) -> Self {
        Self { approver: Arc::clone(approver), ..self }
    }

    /// Returns the same work under another cancel token.
    pub(crate) fn with_cancel(&self, cancel: Cancel) -> Self {
        Self {
            gateway: Arc::clone(&self.gateway),
            caller: self.caller.clone(),
            client: Arc::clone(&self.client),
            lineage: self.lineage.clone(),
            cancel,
            channel: self.channel.clone(),
            progress: self.progress.clone(),
            approver: Arc::clone(&self.approver),
            turn: None,
        }
    }

    /// Runs one tool call, by the tool's name or id in this snapshot.
    ///
    /// # Errors
    /// The executor failed. A failed call is an outcome, not an error.
    pub(crate) async fn run_call(
        &self,
        snapshot: &Arc<Snapshot>,
        name: String,
        arguments: RawArguments,
        names: Option<CallerNames>,
    ) -> Result<Outcome, RpcError> {
        let number = uuid::Uuid::new_v4();
        let call = ToolCall::new(
            CallId::new(["call_", number.simple().encode_lower(&mut uuid::Uuid::encode_buffer())].concat()),
            name,
            arguments,
        );
        let new_trace = || Lineage::in_trace(TraceId::new(number.as_u128()));
        let lineage = self.lineage.clone().unwrap_or_else(new_trace);
        let partials =
            self.progress.clone().map(|sink| -> PartialSinkFactory { Arc::new(move |_: &CallId| Arc::clone(&sink)) });
        let (session, policy) = (Arc::clone(&self.caller.session), self.gateway.policy_at(&self.caller.view));
        let run = RunContext {
            names,
            follows: self.gateway.follows_jobs(&self.caller.view),
            origin: CallOrigin::Gateway,
            results_for: ResultAudience::Client,
            cancel: self.cancel.clone(),
            client: Arc::clone(&self.client),
            partials,
            turn: self.turn.clone(),
            ..RunContext::in_trace(lineage, session, Arc::clone(snapshot), policy, Arc::clone(&self.approver))
        };
        let outcomes = pin!(self.gateway.options.executor.run_calls(vec![call], &run)).await;
        let none = || RpcError::new(RpcError::INTERNAL, "the executor returned no outcome");
        outcomes.into_iter().next().ok_or_else(none)
    }
}

impl Gateway {
    /// Starts the work on a request in its own task, so that it completes even if the connection breaks. The result
    /// goes to the request that waits for it at that time.
    ///
    /// # Errors
    /// The JSON-RPC error to answer with: the server shuts down, too many calls run, or the id is in use.
    pub(crate) fn start<F>(
        self: &Arc<Self>,
        caller: &Caller,
        pending: PendingRequest,
        work: impl FnOnce(McpRequestContext) -> F,
    ) -> Result<ResponseGuard, RpcError>
    where
        F: Future<Output = Result<Vec<u8>, RpcError>> + Send + 'static,
    {
        let permit = self.call_permit()?;
        let PendingRequest { era, request: Request { id, method, mut params, raw }, reply_to: to, task } = pending;
        let answers = given_answers(&mut params)?;
        let cancel = caller.running.token();
        let entered = caller.running.enter(&id, &cancel)?;
        let clock = &self.options.executor.services().clock;
        let task = task.map(|ttl| Task::new(caller, era, ttl, cancel.clone(), clock));
        if let Some(task) = task.as_ref().filter(|_| era == Era::Legacy) {
            self.tasks.keep(task)?;
        }
        let (progress, level) = progress_and_level(&mut params);
        let mut wants_progress = progress.is_some();
        let channel =
            ResponseChannel::new(era, cancel.clone(), AttachedRequest { entered, reply_to: to, progress, level });
        let waiting = ResponseGuard::on(&channel, id);
        let is_call = method == CALL;

        let (mut client, route, capabilities, pausable): (Arc<dyn CallClient>, _, _, _) = match era {
            Era::Legacy => {
                let (channel, state) = (Arc::clone(&channel), Arc::clone(&caller.client));
                let capabilities =
                    if task.is_some() || channel.takes_questions() { state.capabilities() } else { Arc::default() };
                let route = AskRoute::InStream(Arc::clone(&state));
                (Arc::new(SessionClient { channel, state, params: raw }), route, capabilities, None)
            }
            Era::Modern => {
                // Some methods must not be answered with `input_required`.
                let capabilities = params.meta.client_capabilities.take();
                let capabilities = capabilities.filter(|_| convert::may_require_input(&method)).unwrap_or_default();
                let capabilities = Arc::new(capabilities);
                // The request that resumes the call may ask for progress although the first did not.
                wants_progress |= !capabilities.is_empty();
                let pausable = PausableCall::new(&self.paused_calls, &channel);
                let client = RequestClient {
                    channel: Arc::clone(&channel),
                    paused_calls: Arc::clone(&self.paused_calls),
                    call: pausable.number(),
                    capabilities: Arc::clone(&capabilities),
                    given_answers: Mutex::new(answers.into_iter().collect()),
                    binding: binding(caller, method, raw),
                };
                (Arc::new(client), AskRoute::ByStatus, capabilities, Some(pausable))
            }
        };
        if let Some(task) = &task {
            client = Arc::new(TaskClient { task: Arc::clone(task), route, first: client });
        }
        let owner = has_forms(&capabilities).then(|| Arc::clone(&client));
        let approver = self.approver(caller, owner.clone(), Arc::clone(&self.options.approver));
        let client = Arc::new(NamedSource { client, source: None });
        let client = self
            .with_fallback(client, &caller.session, Some(&caller.view), |other| self.approver(caller, owner, other));

        let progress = wants_progress.then(|| Arc::new(Progress::new(Arc::clone(&channel))));
        let to_client = progress.clone().map(|progress| progress as Arc<dyn PartialSink>);
        let sink = match &task {
            Some(task) => Some(Arc::new(TaskProgress { task: Arc::clone(task), to_client }) as Arc<_>),
            None => to_client,
        };
        let work = work(McpRequestContext {
            gateway: Arc::clone(self),
            caller: caller.clone(),
            client,
            lineage: params.meta.traceparent.as_deref().and_then(Lineage::of_traceparent),
            cancel,
            channel: Some(Arc::clone(&channel)),
            progress: sink,
            approver,
            // Taken here: the task of this work may begin after that of a later request.
            turn: is_call.then(|| caller.order.arrive()),
        });
        let work = work.boxed();
        let (counted, gateway) = (caller.tasks.token(), Arc::clone(self));
        self.running.spawn(async move {
            let _held = (permit, counted);
            let work = match progress {
                Some(progress) => {
                    let every = gateway.options.heartbeat;
                    async move { progress.with_heartbeats(work, every).await }.boxed()
                }
                None => work,
            };
            let result = match task {
                Some(task) => task.run(&gateway.tasks, &channel, &gateway.server_info, work).boxed().await,
                None => Some(work.await),
            };
            match (result, pausable) {
                (Some(result), Some(pausable)) => pausable.end(result).await,
                (Some(result), None) => channel.end(result).await,
                (None, _) => {}
            }
        });
        Ok(waiting)
    }

    /// Takes one of the permits for concurrent calls.
    fn call_permit(&self) -> Result<OwnedSemaphorePermit, RpcError> {
        if self.is_draining() {
            return Err(RpcError::new(RpcError::BUSY, "the server is shutting down"));
        }
        Arc::clone(&self.call_permits).try_acquire_owned().map_err(|_| {
            let message = format!("{} calls are running, which is the limit; try again", self.options.max_calls);
            RpcError::new(RpcError::BUSY, message)
        })
    }

    /// Returns the approver: the user of `client` if the client can be asked and is the owner's, else `fallback_approver`.
    fn approver(
        &self,
        caller: &Caller,
        client: Option<Arc<dyn CallClient>>,
        fallback_approver: Arc<dyn Approver>,
    ) -> Arc<dyn Approver> {
        match (self.options.elicitation, client) {
            // Other principals must not approve their own calls.
            (Elicitation::WherePossible { expiry }, Some(client)) if caller.session.principal.owner => {
                Arc::new(ClientApprover { client, asker: caller.asker.clone(), expiry, fallback_approver })
            }
            _ => fallback_approver,
        }
    }

    /// Handles a request that brings the answers for a paused call.
    ///
    /// # Errors
    /// As [`PausedCalls::resume`](super::client::input_required::PausedCalls::resume).
    pub(crate) fn resume(&self, caller: &Caller, pending: PendingRequest, state: &str) -> Result<Reply, RpcError> {
        let PendingRequest { request: Request { id, method, mut params, raw }, reply_to: to, .. } = pending;
        let (progress, level) = progress_and_level(&mut params);
        let attached = |channel: &ResponseChannel| {
            let entered = caller.running.enter(&id, &channel.cancel)?;
            Ok(AttachedRequest { entered, reply_to: to, progress, level })
        };
        match self.paused_calls.resume(&binding(caller, method, raw), &mut params, state, attached)? {
            ResumeOutcome::Continues(channel) => Ok(Reply::Running(ResponseGuard::on(&channel, id))),
            ResumeOutcome::InputRequired(result) => Ok(Reply::Result(result)),
            ResumeOutcome::Ended(result) => result.map(Reply::Result),
        }
    }
}

/// Returns the progress token and the log level of a request.
fn progress_and_level(params: &mut Params) -> (Option<super::message::Id>, Option<Level>) {
    (params.meta.progress_token.take(), params.meta.log_level.as_deref().and_then(Level::parse))
}

/// Returns whether a client can show its user a form.
fn has_forms(capabilities: &Map<String, Value>) -> bool {
    // Most clients offer no capability at all.
    !capabilities.is_empty() && asking::missing(capabilities, asking::ELICIT, &Value::Null).is_none()
}

fn binding(caller: &Caller, method: String, params: Option<Box<RawValue>>) -> RequestBinding {
    let principal = caller.session.principal.id.clone();
    RequestBinding { principal, path: caller.view.scope.path(), method, params }
}
