//! `tools/call`, and whatever else runs through the executor: from the client's parameters to a result.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio_util::task::TaskTracker;
use toolwright_core::approval::{Approver, NoApprover};
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::client::CallClient;
use toolwright_core::context::PartialSink;
use toolwright_core::error::{ErrorKind, ProtocolError};
use toolwright_core::operation::{Lineage, Origin, TraceId};
use toolwright_core::outcome::Outcome;
use toolwright_core::output::ResultsFor;
use toolwright_core::session::{CallId, PeerProcess, Session};
use toolwright_mcp::{asking, convert};
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::{CallerNames, PartialsFor};

use super::approve::ClientApprover;
use super::ask::{NamedSource, RequestClient, SessionClient, Unasked};
use super::dispatch::Reply;
use super::input_required::{Bound, Ending, Resumed, given_answers};
use super::message::{Id, Params, RpcError, SaidBy, to_json};
use super::peer::Peer;
use super::progress::Progress;
use super::protocol::{Era, Level};
use super::response_channel::{Attached, ResponseChannel, To, Waiting};
use super::result::CallResult;
use super::running_calls::{CallPermit, RunningCalls};
use super::tasks::{Task, TaskClient, TaskProgress, Way, wished};
use super::tools::output_schema;
use super::view::{Expose, View};
use crate::Gateway;
use crate::gateway::Elicitation;
use crate::http::Connection;

/// Told after policy's reason about what the gateway does by itself.
const NOBODY: &str = "no client waits for this call, so nobody is asked; one that makes it itself is";

/// Whose requests these are.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) session: Arc<Session>,
    pub(crate) view: View,
    /// How the address that it came to says that tools are put before it, if it does.
    pub(crate) expose_asked: Option<Expose>,
    /// What the caller has running; a cancel is looked up here.
    pub(crate) running: Arc<RunningCalls>,
    /// Its client, as far as it is one of a session.
    pub(crate) peer: Arc<Peer>,
    /// What runs for it.
    pub(crate) tasks: TaskTracker,
    /// At whose other end the one sits who is asked about its calls.
    pub(crate) asker: Asker,
}

/// Who sits at the other end where a client is asked whether a call may run.
#[derive(Debug, Clone)]
pub(crate) enum Asker {
    /// Whoever started this process.
    Parent,
    /// A program that came over HTTP.
    Remote {
        connection: Connection,
        /// Whether it has shown a token.
        is_proven: bool,
    },
}

impl Asker {
    /// Whether it may decide in its owner's name.
    pub(crate) async fn may_decide(&self) -> bool {
        match self {
            Self::Parent => true,
            Self::Remote { connection, is_proven } => match connection.process().await {
                PeerProcess::Owners => true,
                PeerProcess::Nested => false,
                PeerProcess::Unknown => *is_proven,
            },
        }
    }
}

impl Caller {
    pub(crate) fn new(session: Arc<Session>, view: View) -> Self {
        let (running, peer, tasks) = (Arc::default(), Arc::default(), TaskTracker::new());
        Self { session, view, expose_asked: None, running, peer, tasks, asker: Asker::Parent }
    }

    /// Takes a notification of its client.
    pub(crate) fn notified(&self, method: &str, params: &Params) {
        if let ("notifications/cancelled", Some(id)) = (method, &params.request_id) {
            self.running.cancel(id);
        }
    }
}

/// A request whose answer takes a while.
pub(crate) struct Ask {
    pub(crate) id: Id,
    pub(crate) era: Era,
    pub(crate) method: String,
    pub(crate) params: Box<Params>,
    pub(crate) raw: Option<Box<RawValue>>,
    pub(crate) to: To,
    /// How long it is kept if it becomes a task; only calls of tools do.
    pub(crate) task: Option<Duration>,
}

/// What the work on one request needs: for whom it is, and under which conditions calls run.
pub(crate) struct Work {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) caller: Caller,
    client: Arc<dyn CallClient>,
    lineage: Option<Lineage>,
    pub(crate) cancel: Cancel,
    /// To the request that waits for it.
    pub(crate) channel: Option<Arc<ResponseChannel>>,
    progress: Option<Arc<dyn PartialSink>>,
    approver: Arc<dyn Approver>,
}

impl Work {
    /// Work that nobody waits for, at a caller's address. Where policy asks it is denied: what an answer came to would
    /// be nobody's.
    pub(crate) fn of_nobody(gateway: &Arc<Gateway>, caller: Caller) -> Self {
        Self {
            gateway: Arc::clone(gateway),
            client: Arc::new(Unasked { peer: Arc::clone(&caller.peer) }),
            caller,
            lineage: None,
            cancel: Cancel::new(),
            channel: None,
            progress: None,
            approver: Arc::new(NoApprover { remedy: NOBODY.into() }),
        }
    }

    /// The same work, of which this approver is asked.
    pub(crate) fn asking(self, approver: &Arc<dyn Approver>) -> Self {
        Self { approver: Arc::clone(approver), ..self }
    }

    /// The same work, as far as this token lets it.
    pub(crate) fn under(&self, cancel: Cancel) -> Self {
        Self {
            gateway: Arc::clone(&self.gateway),
            caller: self.caller.clone(),
            client: Arc::clone(&self.client),
            lineage: self.lineage.clone(),
            cancel,
            channel: self.channel.clone(),
            progress: self.progress.clone(),
            approver: Arc::clone(&self.approver),
        }
    }

    /// The least severe log message that its client has said it wants.
    fn wanted_level(&self, era: Era) -> Option<Level> {
        match era {
            Era::Legacy => self.caller.peer.said_level(),
            Era::Modern => self.channel.as_ref().and_then(|channel| channel.level()),
        }
    }

    /// Runs one call of a name or id in this snapshot.
    pub(crate) async fn call(
        &self,
        snapshot: &Arc<Snapshot>,
        name: String,
        arguments: RawArguments,
        names: Option<CallerNames>,
    ) -> Result<Outcome, RpcError> {
        let number = uuid::Uuid::new_v4();
        let mut id = *b"call_00000000000000000000000000000000";
        number.simple().encode_lower(&mut id[5..]);
        let call = ToolCall { id: CallId::new(&*String::from_utf8_lossy(&id)), name, arguments };
        let own_trace = || Lineage::in_trace(TraceId::new(number.as_u128()));
        let lineage = self.lineage.clone().unwrap_or_else(own_trace);
        let partials =
            self.progress.clone().map(|sink| -> PartialsFor { Arc::new(move |_: &CallId| Arc::clone(&sink)) });
        let (session, policy) = (Arc::clone(&self.caller.session), self.gateway.policy_at(&self.caller.view));
        let run = RunContext {
            names,
            follows: self.gateway.follows_jobs(&self.caller.view),
            origin: Origin::Gateway,
            results_for: ResultsFor::Client,
            cancel: self.cancel.clone(),
            client: Arc::clone(&self.client),
            partials,
            ..RunContext::under(lineage, session, Arc::clone(snapshot), policy, Arc::clone(&self.approver))
        };
        let outcomes = pin!(self.gateway.options.executor.run_calls(vec![call], &run)).await;
        let none = || RpcError::new(RpcError::INTERNAL, "the executor returned no outcome");
        outcomes.into_iter().next().ok_or_else(none)
    }
}

impl Gateway {
    /// Starts a call of a tool.
    ///
    /// # Errors
    /// A JSON-RPC error for what is no tool failure: no name, no such tool in the view, and as [`Gateway::start`].
    pub(crate) fn start_call(self: &Arc<Self>, caller: &Caller, mut ask: Ask) -> Result<Waiting, RpcError> {
        let written = ask.params.name.take().ok_or_else(|| RpcError::invalid_params("tools/call needs a `name`"))?;
        let list = self.tools(&caller.view, &caller.session);
        ask.task = wished(&mut ask, &list, &written)?;
        let arguments = ask.params.arguments.take().unwrap_or(Value::Null);
        let meant = list.carried(&written, &arguments).cloned();
        let call = list.for_executor(&caller.view, &written, arguments);
        let (era, entry) = (ask.era, list.named(&written).cloned());
        self.start(caller, ask, async move |work| {
            if let (Some(level), Some(entry)) = (work.wanted_level(era), meant)
                && let Ok(provider) = work.provider(entry.provider.name())
            {
                Box::pin(work.tell_level_once(&provider, level)).await;
            }
            let named = Arc::clone(&list);
            let names: CallerNames = Arc::new(move |entry| named.name_of(entry).map(str::to_owned));
            let outcome = match call {
                // Pinned, here and below: a future that is awaited by value is copied first.
                Ok((name, arguments)) => pin!(work.call(&list.snapshot, name, arguments, Some(names))).await?,
                Err(error) => Outcome::failed(CallId::new(&*written), error),
            };
            work.note_links_of_call(&list.snapshot, &outcome);
            work.gateway.note_broken_schema(&list.snapshot, &outcome);
            match protocol_error(&outcome) {
                Some(error) => {
                    let mut entries = list.snapshot.list().iter();
                    let entry = entries.find(|entry| Some(entry.id()) == outcome.tool.as_ref());
                    work.caller.peer.refused(entry.map(|entry| entry.provider.name()), &error);
                    Err(error)
                }
                None => {
                    let schema = entry.as_deref().and_then(output_schema);
                    // A client that has listed since does not look for what is not promised any more.
                    let hash = entry.as_ref().map(|entry| entry.tool.hash());
                    let schema =
                        schema.filter(|_| !work.gateway.broken_output_schemas.is_known_to(hash, &work.caller.peer));
                    let result = CallResult::of(outcome, schema, era, &work.gateway.options.info);
                    Ok(to_json(&if era == Era::Legacy {
                        result.downgraded(work.caller.peer.version())
                    } else {
                        result
                    }))
                }
            }
        })
    }

    /// Starts the work on a request, in a task of its own, so that it ends in good order whatever becomes of the
    /// connection. Its result goes to whichever request waits for it then.
    ///
    /// # Errors
    /// The JSON-RPC error to answer with: shutting down, too many calls, an id that is in use.
    pub(crate) fn start<F>(
        self: &Arc<Self>,
        caller: &Caller,
        ask: Ask,
        work: impl FnOnce(Work) -> F,
    ) -> Result<Waiting, RpcError>
    where
        F: Future<Output = Result<Vec<u8>, RpcError>> + Send + 'static,
    {
        if self.is_draining() {
            return Err(RpcError::new(RpcError::BUSY, "the server is shutting down"));
        }
        let slot = CallPermit::of(&self.slots).ok_or_else(|| {
            let message = format!("{} calls are running, which is the limit; try again", self.options.max_calls);
            RpcError::new(RpcError::BUSY, message)
        })?;
        let Ask { id, era, method, mut params, raw, to, task } = ask;
        let given = given_answers(&mut params)?;
        let cancel = caller.running.token();
        let entered = caller.running.enter(&id, &cancel)?;
        let clock = &self.options.executor.services().clock;
        let task = task.map(|ttl| Task::new(caller, era, ttl, cancel.clone(), clock));
        if let Some(task) = task.as_ref().filter(|_| era == Era::Legacy) {
            self.tasks.keep(task)?;
        }
        let progress = params.meta.progress_token.take();
        let mut wants_progress = progress.is_some();
        let level = params.meta.log_level.as_deref().and_then(Level::parse);
        let channel =
            ResponseChannel::new(era, cancel.clone(), Attached { id: id.clone(), to, progress, level, entered });
        let waiting = Waiting::on(&channel, id);
        let number = uuid::Uuid::new_v4().as_u128();
        let ending =
            Ending { paused_calls: Arc::clone(&self.paused_calls), call: number, channel: Arc::clone(&channel) };
        let (client, can_be_asked): (Arc<dyn CallClient>, bool) = match era {
            Era::Legacy => {
                let (channel, peer) = (Arc::clone(&channel), Arc::clone(&caller.peer));
                let can_be_asked = (task.is_some() || channel.takes_questions()) && has_forms(&peer.capabilities());
                (Arc::new(SessionClient { channel, peer, params: raw }), can_be_asked)
            }
            Era::Modern => {
                // Whose request may not be answered with a question is not asked.
                let capabilities = params.meta.client_capabilities.take();
                let capabilities = capabilities.filter(|_| convert::may_require_input(&method)).unwrap_or_default();
                let can_be_asked = has_forms(&capabilities);
                // The request that comes back with answers may want what the first did not.
                wants_progress |= !capabilities.is_empty();
                let client = RequestClient {
                    channel: Arc::clone(&channel),
                    paused_calls: Arc::clone(&self.paused_calls),
                    call: number,
                    slot: Arc::downgrade(&slot),
                    capabilities,
                    given: Mutex::new(given.into_iter().collect()),
                    bound: bound(caller, method, raw),
                };
                (Arc::new(client), can_be_asked)
            }
        };
        let client = match &task {
            Some(task) => {
                let way = match era {
                    Era::Legacy => Way::InStream(Arc::clone(&caller.peer)),
                    Era::Modern => Way::ByStatus,
                };
                Arc::new(TaskClient { task: Arc::clone(task), way, first: client })
            }
            None => client,
        };
        let owner = can_be_asked.then(|| Arc::clone(&client));
        let approver = self.approver(caller, owner.clone(), Arc::clone(&self.options.approver));
        let client = Arc::new(NamedSource { client, source: None }) as Arc<dyn CallClient>;
        let client = self.with_fallback(client, (&caller.session, self.profile_at(&caller.view)), |otherwise| {
            self.approver(caller, owner, otherwise)
        });
        let beating = wants_progress.then(|| Arc::new(Progress::new(Arc::clone(&channel))));
        let progress = beating.clone().map(|progress| progress as Arc<dyn PartialSink>);
        let progress = match &task {
            Some(task) => Some(Arc::new(TaskProgress { task: Arc::clone(task), to_client: progress }) as Arc<_>),
            None => progress,
        };
        let work = work(Work {
            gateway: Arc::clone(self),
            caller: caller.clone(),
            client,
            lineage: params.meta.traceparent.as_deref().and_then(Lineage::of_traceparent),
            cancel,
            channel: Some(Arc::clone(&channel)),
            progress,
            approver,
        });
        // The task's future holds it once only.
        let work = match beating {
            Some(progress) => {
                let (work, every) = (work.boxed(), self.options.heartbeat);
                async move { progress.beside(work, every).await }.boxed()
            }
            None => work.boxed(),
        };
        let (counted, gateway) = (caller.tasks.token(), Arc::clone(self));
        // Boxed: a task's future is copied on its way into the task, and again when it has ended.
        self.running.spawn(Box::pin(async move {
            let _held = (slot, counted);
            let result = match task {
                Some(task) => task.run(&gateway.tasks, &channel, &gateway.server_info, work).boxed().await,
                None => Some(work.await),
            };
            if let Some(result) = result {
                ending.end(result).await;
            }
        }));
        Ok(waiting)
    }

    /// Who answers where policy asks: the user of `client` where that can be asked and is the owner's, else `otherwise`.
    fn approver(
        &self,
        caller: &Caller,
        client: Option<Arc<dyn CallClient>>,
        otherwise: Arc<dyn Approver>,
    ) -> Arc<dyn Approver> {
        match (self.options.elicitation, client) {
            // What others than the owner may do is not theirs to decide.
            (Elicitation::WherePossible { expiry }, Some(client)) if caller.session.principal.owner => {
                Arc::new(ClientApprover { client, asker: caller.asker.clone(), expiry, otherwise })
            }
            _ => otherwise,
        }
    }

    /// Takes a request that brings answers to a call that waits for them.
    ///
    /// # Errors
    /// As [`PausedCalls::resume`](super::input_required::PausedCalls::resume).
    pub(crate) fn resume(&self, caller: &Caller, ask: Ask, state: &str) -> Result<Reply, RpcError> {
        let Ask { id, method, mut params, raw, to, .. } = ask;
        let progress = params.meta.progress_token.take();
        let level = params.meta.log_level.as_deref().and_then(Level::parse);
        let attached = |channel: &ResponseChannel| {
            let entered = caller.running.enter(&id, &channel.cancel)?;
            Ok(Attached { id: id.clone(), to, progress, level, entered })
        };
        match self.paused_calls.resume(&bound(caller, method, raw), &mut params, state, attached)? {
            Resumed::GoesOn(channel) => Ok(Reply::Running(Waiting::on(&channel, id))),
            Resumed::AskedAgain(result) => Ok(Reply::Result(result)),
            Resumed::Ended(result) => result.map(Reply::Result),
        }
    }
}

/// Whether a client can ask its user about a call.
fn has_forms(capabilities: &Map<String, Value>) -> bool {
    // Most offer nothing at all, and what is missing is not asked here.
    !capabilities.is_empty() && asking::missing(capabilities, asking::ELICIT, &Value::Null).is_none()
}

fn bound(caller: &Caller, method: String, params: Option<Box<RawValue>>) -> Bound {
    let principal = caller.session.principal.id.clone();
    Bound { principal, place: caller.view.scope.path(), method, params }
}

/// The outcomes that are answered with a JSON-RPC error: an unknown tool (MCP, "Error Handling"), and
/// an upstream that needs what only the client can do: declare a capability, have its user open an address. An
/// unknown name inside a call is the model's to mend, who sees results but not errors.
fn protocol_error(outcome: &Outcome) -> Option<RpcError> {
    let error = outcome.error.as_ref()?;
    if error.kind() == ErrorKind::UnknownTool && !outcome.provenance.carried {
        return Some(RpcError::invalid_params(error.message().to_owned()));
    }
    let for_client = [RpcError::MISSING_CAPABILITY, RpcError::PAGES_REQUIRED];
    error.protocol().filter(|upstream| for_client.contains(&upstream.code)).map(passed_on)
}

/// A source's own error, untouched.
pub(crate) fn passed_on(error: &ProtocolError) -> RpcError {
    let data = error.data.clone().map(Box::new);
    RpcError { code: error.code, message: error.message.clone().into(), data, said_by: SaidBy::Source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolwright_core::error::{ProtocolError, ToolError};

    fn outcome(error: ToolError) -> Outcome {
        Outcome::failed(CallId::new("c"), error)
    }

    #[test]
    fn what_only_the_client_can_mend_is_a_protocol_error() {
        let failed = |code| {
            let protocol = ProtocolError { code, message: "m".into(), data: Some(json!({"a": 1})) };
            outcome(ToolError::new(ErrorKind::ExecutionError, "x").with_protocol(protocol))
        };
        let error = protocol_error(&failed(-32021)).expect("passed on");
        assert_eq!((error.code, error.data), (-32021, Some(Box::new(json!({"a": 1})))));
        assert!(protocol_error(&failed(-32602)).is_none());
        let unknown = ToolError::new(ErrorKind::UnknownTool, "did you mean x?");
        assert_eq!(protocol_error(&outcome(unknown)).expect("error").code, RpcError::INVALID_PARAMS);
    }
}
