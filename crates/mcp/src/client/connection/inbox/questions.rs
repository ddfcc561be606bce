//! Passes the questions of a server to the client of the call that they belong to.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolwright_core::client::{CallClient, ClientRequest};
use toolwright_core::error::{ErrorKind, ToolError};

use super::listener::ServerRoots;
use super::{Attribution, Caller};
use crate::protocol::asking;
use crate::protocol::message::{ErrorAuthor, RpcError, read as read_part, to_json};
use crate::transport::{Outgoing, OutgoingKind, RequestId, Transport};

/// Bound on questions of one server that wait for their answers.
const MAX_OPEN: usize = 64;
/// How long the question of an absent client may hold up others; then it is withdrawn.
const ABSENT_CLIENT_WAIT: Duration = Duration::from_secs(120);

/// The open questions of one connection.
#[derive(Default)]
pub(crate) struct Questions {
    transport: OnceLock<Weak<dyn Transport>>,
    open: Mutex<HashMap<String, SourceQuestion>>,
    folders: OnceLock<Arc<ServerRoots>>,
    has_asked_for_roots: AtomicBool,
    /// Cancelled when the server was told its folders outside of calls.
    roots_answered: CancellationToken,
}

/// A question that waits for its answer.
struct SourceQuestion {
    /// The call; `None` outside of calls.
    call: Option<RequestId>,
    /// The client to ask; `None` outside of calls.
    client: Option<Arc<dyn CallClient>>,
    since: Instant,
    /// It has waited long enough for a client that is away.
    overdue: CancellationToken,
    /// The call that the question belongs to has ended.
    call_ended: CancellationToken,
    /// The server does not want the answer.
    withdrawn: CancellationToken,
    /// Held while its client is asked: each call has one question at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The caller, if the call is only a guess.
    likely: Option<Caller>,
    /// Another possible call, for the end of the first one.
    successor: Option<(RequestId, Caller)>,
}

impl SourceQuestion {
    fn is_overdue(&self) -> bool {
        self.since.elapsed() >= ABSENT_CLIENT_WAIT
            && self.client.as_ref().is_some_and(|client| client.is_client_absent())
    }
}

impl Questions {
    /// Sets the transport for answers.
    pub(crate) fn attach(&self, transport: Weak<dyn Transport>) {
        // It is set once.
        let _ = self.transport.set(transport);
    }

    /// Sets the folders for requests outside of calls.
    pub(crate) fn answer_roots(&self, folders: Arc<ServerRoots>) {
        // The server's folders do not change.
        let _ = self.folders.set(folders);
    }

    /// Waits until folders were sent.
    pub(crate) async fn has_folders(&self) {
        self.roots_answered.cancelled().await;
    }

    /// Whether folders were requested outside of calls.
    pub(crate) fn has_asked_for_roots(&self) -> bool {
        self.has_asked_for_roots.load(Ordering::Relaxed)
    }

    /// Handles a question of the server. `attribution` returns whom to ask, given the calls with an open
    /// question, which hardly ask another; it is called only if needed.
    pub(crate) fn asked(
        self: &Arc<Self>,
        (id, method, params): (&RawValue, &str, Option<&RawValue>),
        version: Option<&'static str>,
        is_at_work: bool,
        attribution: impl FnOnce(&[RequestId]) -> Attribution,
    ) {
        let reply = Reply { id: id.get().to_owned(), version };
        match method {
            "ping" => self.answer(&reply, Ok(Value::Object(serde_json::Map::new()))),
            asking::ELICIT | asking::SAMPLE | asking::ROOTS => {
                // Missing parameters (`roots/list`) count as empty ones.
                let params = match params.map(read_part) {
                    Some(Ok(params)) => params,
                    Some(Err(error)) => {
                        let text = format!("the params of {method}: {error}");
                        return self.answer(&reply, Err(RpcError::invalid_params(text)));
                    }
                    None => Value::Object(serde_json::Map::new()),
                };
                let request = ClientRequest { key: None, method: method.to_owned(), params };
                let busy: Vec<RequestId> = self.lock().values().filter_map(|open| open.call).collect();
                match attribution(&busy) {
                    Attribution::Call(call, caller) => {
                        self.pass_on(reply, (call, caller), request, CallCertainty::Known)
                    }
                    Attribution::Likely(call, caller) => {
                        self.pass_on(reply, (call, caller), request, CallCertainty::Likely)
                    }
                    Attribution::Nobody
                        if method == asking::ROOTS && self.folders.get().is_some_and(|folders| folders.are_known()) =>
                    {
                        self.answer_folders(reply, is_at_work);
                    }
                    Attribution::Nobody | Attribution::Ended => self.answer(&reply, Err(no_call(method))),
                    Attribution::Several => {
                        self.refuse_overdue();
                        let text = format!(
                            "`{method}` must go to the client of a call, and calls of several clients are or were in \
                             flight: set `shared: false` in the entry of this server, so that each session has its \
                             own connection"
                        );
                        self.answer(&reply, Err(RpcError::new(RpcError::INTERNAL, text)));
                    }
                }
            }
            _ => {
                let text = format!("this client does not offer `{}`", method.chars().take(100).collect::<String>());
                self.answer(&reply, Err(RpcError::new(RpcError::METHOD_NOT_FOUND, text)));
            }
        }
    }

    fn pass_on(
        self: &Arc<Self>,
        reply: Reply,
        (call, caller): (RequestId, Caller),
        request: ClientRequest,
        certainty: CallCertainty,
    ) {
        if asking::missing(&caller.client.capabilities(), &request.method, &request.params).is_some() {
            let text = format!("the client of this call does not offer `{}`", request.method);
            return self.answer(&reply, Err(RpcError::new(RpcError::METHOD_NOT_FOUND, text)));
        }
        let [call_ended, withdrawn, overdue] = [(); 3].map(|()| CancellationToken::new());
        let turn;
        {
            let mut open = self.lock();
            if open.len() >= MAX_OPEN {
                drop(open);
                return self.answer(&reply, Err(too_many()));
            }
            let call = Some(call);
            let same = open.values().find(|open| open.call == call);
            turn = same.map(|open| Arc::clone(&open.turn)).unwrap_or_default();
            let question = SourceQuestion {
                call,
                client: Some(Arc::clone(&caller.client)),
                since: Instant::now(),
                overdue: overdue.clone(),
                call_ended: call_ended.clone(),
                withdrawn: withdrawn.clone(),
                turn: Arc::clone(&turn),
                likely: (certainty == CallCertainty::Likely).then(|| caller.clone()),
                successor: None,
            };
            open.insert(reply.id.clone(), question);
        }
        let questions = Arc::clone(self);
        tokio::spawn(async move {
            let method = request.method.clone();
            let asking = async {
                let _turn = tokio::select! {
                    biased;
                    () = withdrawn.cancelled() => return None,
                    turn = turn.lock() => turn,
                };
                let over = async {
                    tokio::select! {
                        () = withdrawn.cancelled() => {}
                        () = overdue.cancelled() => {}
                    }
                };
                // Not dropped on withdrawal: the call must take back the resources that it released to ask.
                let answers = caller.client.ask_until(vec![request.clone()], pin!(over)).await;
                answers.or_else(|| overdue.is_cancelled().then(|| Err(answer_missing())))
            };
            let outcome = tokio::select! {
                biased;
                () = call_ended.cancelled() => {
                    if let Some(successor) = questions.take_successor(&reply, &withdrawn) {
                        return questions.pass_on(reply, successor, request, CallCertainty::Likely);
                    }
                    Some(Err(RpcError::new(RpcError::INTERNAL, "the call that this was asked for has ended")))
                }
                answers = asking => answers.map(|answers| match answers {
                    Ok(answers) => match answers.into_iter().next() {
                        Some(Ok(result)) => Ok(result),
                        Some(Err(refusal)) => Err(RpcError {
                            code: refusal.code,
                            message: refusal.message.into(),
                            data: refusal.data.map(Box::new),
                            author: ErrorAuthor::Source,
                        }),
                        None => Err(RpcError::new(RpcError::INTERNAL, format!("`{method}` was not answered"))),
                    },
                    Err(error) => Err(RpcError::new(RpcError::INTERNAL, error.message().to_owned())),
                }),
            };
            // A withdrawn question is already removed, and its id may be in use again.
            if let Some(outcome) = outcome.filter(|_| !withdrawn.is_cancelled()) {
                questions.lock().remove(&reply.id);
                questions.send(&reply, outcome).await;
            }
        });
    }

    /// Answers `roots/list` outside of calls.
    fn answer_folders(self: &Arc<Self>, reply: Reply, is_at_work: bool) {
        let Some(folders) = self.folders.get().cloned() else { return };
        self.has_asked_for_roots.store(true, Ordering::Relaxed);
        if !is_at_work {
            folders.asked_for(true);
        }
        let withdrawn = CancellationToken::new();
        {
            let mut open = self.lock();
            if open.len() >= MAX_OPEN {
                drop(open);
                return self.answer(&reply, Err(too_many()));
            }
            let question = SourceQuestion {
                call: None,
                client: None,
                since: Instant::now(),
                overdue: CancellationToken::new(),
                call_ended: CancellationToken::new(),
                withdrawn: withdrawn.clone(),
                turn: Arc::default(),
                likely: None,
                successor: None,
            };
            // A repeated id gets a single answer.
            if let Some(former) = open.insert(reply.id.clone(), question) {
                former.withdrawn.cancel();
            }
        }
        let questions = Arc::clone(self);
        tokio::spawn(async move {
            let result = tokio::select! {
                biased;
                () = withdrawn.cancelled() => return,
                result = folders.now() => result,
            };
            questions.lock().remove(&reply.id);
            questions.send(&reply, result.ok_or_else(|| no_call(asking::ROOTS))).await;
            questions.roots_answered.cancel();
        });
    }

    /// Answers the open questions of an ended call. Questions that were only attributed to it move to the call
    /// of the same caller that `successor` finds, given the calls with an open question.
    pub(crate) fn call_ended(
        &self,
        call: RequestId,
        successor: impl FnOnce(&Caller, &[RequestId]) -> Option<(RequestId, Caller)>,
    ) {
        let (likely, busy) = {
            let open = self.lock();
            // Most calls have no questions.
            if open.is_empty() {
                return;
            }
            let questions_of_call = open.values().filter(|open| open.call == Some(call));
            let likely = questions_of_call.filter_map(|open| open.likely.clone()).next();
            (likely, open.values().filter_map(|open| open.call).collect::<Vec<_>>())
        };
        let successor = likely.and_then(|caller| successor(&caller, &busy));
        for open in self.lock().values_mut().filter(|open| open.call == Some(call)) {
            open.successor = successor.clone().filter(|_| open.likely.is_some());
            open.call_ended.cancel();
        }
    }

    /// Answers overdue questions of absent clients with an error when they block other clients' calls, so that the
    /// server can finish those calls.
    fn refuse_overdue(&self) {
        for open in self.lock().values().filter(|open| open.is_overdue()) {
            open.overdue.cancel();
        }
    }

    /// Returns the other possible call of a question, and closes the question.
    fn take_successor(&self, reply: &Reply, withdrawn: &CancellationToken) -> Option<(RequestId, Caller)> {
        let mut open = self.lock();
        let successor = open.get_mut(&reply.id).filter(|_| !withdrawn.is_cancelled())?.successor.take()?;
        open.remove(&reply.id);
        Some(successor)
    }

    /// The server withdraws the question with this id (JSON text).
    pub(crate) fn withdrawn(&self, id: &str) {
        if let Some(open) = self.lock().remove(id) {
            open.withdrawn.cancel();
        }
    }

    /// Ends all questions; nothing can be answered any more.
    pub(crate) fn end(&self) {
        for (_, open) in self.lock().drain() {
            open.withdrawn.cancel();
        }
    }

    fn answer(self: &Arc<Self>, reply: &Reply, outcome: Result<Value, RpcError>) {
        let (questions, reply) = (Arc::clone(self), reply.clone());
        tokio::spawn(async move { questions.send(&reply, outcome).await });
    }

    async fn send(&self, reply: &Reply, outcome: Result<Value, RpcError>) {
        let Some(transport) = self.transport.get().and_then(Weak::upgrade) else { return };
        let (key, body) = match outcome {
            Ok(result) => ("result", to_json(&result)),
            Err(error) => ("error", to_json(&error)),
        };
        let mut json = format!(r#"{{"jsonrpc":"2.0","id":{},"{key}":"#, reply.id).into_bytes();
        json.extend_from_slice(&body);
        json.push(b'}');
        let message = Outgoing { json, kind: OutgoingKind::Response, version: reply.version, headers: Vec::new() };
        if let Err(error) = transport.send(message).await {
            tracing::debug!("an answer to a server's question was not sent: {error:?}");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, SourceQuestion>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_call(method: &str) -> RpcError {
    let text = format!("`{method}` is for the client of a call, and no call is in flight");
    RpcError::new(RpcError::METHOD_NOT_FOUND, text)
}

fn answer_missing() -> ToolError {
    let text = "the client has not come back with an answer, and others are to be asked";
    ToolError::new(ErrorKind::ExecutionError, text)
}

fn too_many() -> RpcError {
    let text = format!("{MAX_OPEN} questions are open already; ask again when some are answered");
    RpcError::new(RpcError::BUSY, text)
}

/// Whether the call behind a question is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallCertainty {
    Known,
    Likely,
}

/// The part of a question that its answer needs.
#[derive(Clone)]
struct Reply {
    /// The id as JSON text.
    id: String,
    version: Option<&'static str>,
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::{Map, json};
    use toolwright_core::context::NoPartials;
    use toolwright_core::error::ProtocolError;
    use toolwright_core::session::{Principal, Session, SessionId};

    use super::*;
    use crate::transport::SendError;

    /// A client that never answers.
    struct SilentClient {
        is_client_absent: bool,
    }

    #[async_trait]
    impl CallClient for SilentClient {
        fn capabilities(&self) -> Map<String, Value> {
            Map::from_iter([("roots".to_owned(), json!({}))])
        }

        fn is_client_absent(&self) -> bool {
            self.is_client_absent
        }

        async fn ask(&self, _: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
            std::future::pending().await
        }
    }

    /// The ids of the questions that were answered.
    #[derive(Default)]
    struct Answered(Mutex<Vec<u64>>);

    #[async_trait]
    impl Transport for Answered {
        async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError> {
            let answer: Value = serde_json::from_slice(&message.json).expect("JSON");
            self.0.lock().expect("answers").push(answer["id"].as_u64().expect("an id"));
            Ok(())
        }

        async fn close(&self) {}
    }

    fn call(id: RequestId, is_client_absent: bool) -> Attribution {
        let principal = Principal { id: "p".to_owned(), owner: false, roles: Vec::new() };
        let session = Session { id: SessionId::new("s"), principal, root: ".".into(), agent: None };
        let client = Arc::new(SilentClient { is_client_absent });
        Attribution::Call(id, Caller { partials: Arc::new(NoPartials), client, session: Arc::new(session) })
    }

    #[tokio::test(start_paused = true)]
    async fn questions_of_absent_clients_are_withdrawn() {
        let answered = Arc::new(Answered::default());
        let transport: Arc<dyn Transport> = Arc::<Answered>::clone(&answered);
        let questions = Arc::new(Questions::default());
        questions.attach(Arc::downgrade(&transport));
        let asked = async |id: &str, attribution: Attribution| {
            let id = RawValue::from_string(id.to_owned()).expect("JSON");
            questions.asked((&*id, asking::ROOTS, None), None, true, |_| attribution);
            tokio::time::sleep(Duration::from_secs(1)).await;
            std::mem::take(&mut *answered.0.lock().expect("answers"))
        };
        assert_eq!(asked("1", call(1, true)).await, [0; 0]);
        assert_eq!(asked("2", call(2, false)).await, [0; 0]);
        assert_eq!(asked("3", Attribution::Several).await, [3], "it may come back yet");
        tokio::time::sleep(ABSENT_CLIENT_WAIT).await;
        assert_eq!(asked("4", call(4, true)).await, [0; 0], "as long as nobody else is to be asked");
        let mut over = asked("5", Attribution::Several).await;
        over.sort_unstable();
        assert_eq!(over, [1, 5], "who is there has all the time, and who was just asked has some");
    }
}
