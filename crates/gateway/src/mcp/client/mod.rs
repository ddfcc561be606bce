//! Asks the MCP client of a call on behalf of the tool's source: elicitation, sampling, roots, log messages.

pub(crate) mod approval;
pub(crate) mod fallback_client;
pub(crate) mod input_required;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolwright_core::approval::EXPIRY;
use toolwright_core::client::{AskStyle, AskingCall, CallClient, ClientRequest};
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};
use toolwright_mcp::{asking, convert};

use self::input_required::{PausedCalls, QuestionContext, RequestBinding};
use super::message::{Response, RpcError, notification, request};
use super::protocol::{Level, client_info, own_meta};
use super::response::{ReplyTo, ResponseChannel};
use super::session::{ClientState, Question};

/// The most requests that may be asked at once.
const MAX_REQUESTS: usize = 32;

/// The client of a session. Requests in the stream of the call's response ask it.
pub(crate) struct SessionClient {
    pub(crate) channel: Arc<ResponseChannel>,
    pub(crate) state: Arc<ClientState>,
    pub(crate) params: Option<Box<RawValue>>,
}

/// The client of a session for work that has no waiting request. It cannot be asked, but has the session's identity.
pub(crate) struct DetachedClient {
    pub(crate) state: Arc<ClientState>,
}

/// The client of a modern request (2026-07-28). To ask it, the gateway answers the request with `input_required` and
/// pauses the call until a request brings the answers.
pub(crate) struct RequestClient {
    pub(crate) channel: Arc<ResponseChannel>,
    pub(crate) paused_calls: Arc<PausedCalls>,
    /// The number of the call among paused calls.
    pub(crate) call: u128,
    pub(crate) capabilities: Arc<Map<String, Value>>,
    /// Answers in the first request, by key; each is used once.
    pub(crate) given_answers: Mutex<HashMap<String, Value>>,
    /// Values that a resuming request must match.
    pub(crate) binding: RequestBinding,
}

/// Asks the permitted `requests` together, and returns refusals in the places of the others.
pub(crate) async fn ask_permitted<F>(
    requests: Vec<ClientRequest>,
    capabilities: &Map<String, Value>,
    code: i64,
    ask: impl FnOnce(Vec<ClientRequest>) -> F,
) -> Result<Vec<Result<Value, ProtocolError>>, ToolError>
where
    F: Future<Output = Result<Vec<Result<Value, ProtocolError>>, ToolError>>,
{
    check_count(&requests)?;
    let refusals: Vec<Option<ProtocolError>> = requests.iter().map(|one| refusal(one, capabilities, code)).collect();
    let mut permitted: Vec<ClientRequest> =
        requests.into_iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none()).map(|(one, _)| one).collect();
    permitted.iter_mut().for_each(|asked| without_token(&mut asked.params));
    let mut answers = if permitted.is_empty() { Vec::new() } else { ask(permitted).await? }.into_iter();
    let gone =
        || Err(ProtocolError { code: RpcError::INTERNAL, message: "the client gave no answer".into(), data: None });
    Ok(refusals.into_iter().map(|refusal| refusal.map_or_else(|| answers.next().unwrap_or_else(gone), Err)).collect())
}

/// Removes a source's progress token. The gateway does not forward clients' progress, and the tokens of two sources may
/// clash (MCP, "Progress").
fn without_token(params: &mut Value) {
    let Some(meta) = params.get_mut("_meta").and_then(Value::as_object_mut) else { return };
    if meta.shift_remove("progressToken").is_some()
        && meta.is_empty()
        && let Some(params) = params.as_object_mut()
    {
        params.shift_remove("_meta");
    }
}

/// Refuses too many requests at once.
pub(super) fn check_count(requests: &[ClientRequest]) -> Result<(), ToolError> {
    if requests.len() <= MAX_REQUESTS {
        return Ok(());
    }
    let message = format!("the tool asks {} things at once; {MAX_REQUESTS} are passed on", requests.len());
    Err(ToolError::new(ErrorKind::ExecutionError, message))
}

/// Returns the refusal of a request that these capabilities do not cover.
fn refusal(request: &ClientRequest, capabilities: &Map<String, Value>, code: i64) -> Option<ProtocolError> {
    let needed = asking::missing(capabilities, &request.method, &request.params)?;
    let message = format!("the client does not offer `{}`", request.method);
    Some(ProtocolError { code, message, data: Some(json!({"requiredCapabilities": needed})) })
}

fn unanswered(why: &str) -> ToolError {
    ToolError::new(ErrorKind::ExecutionError, format!("the tool asked its caller something, and {why}"))
}

#[async_trait]
impl CallClient for SessionClient {
    fn capabilities(&self) -> Map<String, Value> {
        if self.channel.takes_questions() { (*self.state.capabilities()).clone() } else { Map::new() }
    }

    fn ask_style(&self) -> AskStyle {
        AskStyle::Requests
    }

    fn session_ask_style(&self) -> AskStyle {
        self.state.ask_style()
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        ask_permitted(requests, &self.capabilities(), RpcError::METHOD_NOT_FOUND, async |permitted| {
            let mut open = Vec::with_capacity(permitted.len());
            for mut asked in permitted {
                if asked.method == asking::ELICIT {
                    self.state.record_page_request(None, &asked.params);
                    convert::name_page(&mut asked.params, || uuid::Uuid::new_v4().to_string());
                }
                let (question, answer) = self.state.question();
                let message = request(&question.id, &asked.method, &asked.params);
                let stream = self.channel.question(message).await.ok_or_else(|| unanswered("the client is gone"))?;
                open.push((OpenQuestion { question, stream }, answer));
            }
            let mut answers = Vec::with_capacity(open.len());
            for (question, answer) in open {
                let response = tokio::select! {
                    response = answer => response.ok(),
                    () = question.stream.closed() => None,
                };
                let Some(Response { outcome, .. }) = response else {
                    return Err(unanswered("the client is gone"));
                };
                answers.push(outcome.map_err(|error| ProtocolError {
                    code: error.code,
                    message: error.message.into_owned(),
                    data: error.data.map(|data| *data),
                }));
            }
            Ok(answers)
        })
        .await
    }

    fn log_level(&self) -> Option<String> {
        Some(self.state.level().as_str().to_owned())
    }

    fn log(&self, message: Value) {
        if self.state.wants(Level::of_message(&message)) {
            self.channel.note(|_| Some(notification("notifications/message", Some(&message))));
        }
    }

    fn meta(&self) -> Map<String, Value> {
        own_meta(self.params.as_deref())
    }
}

#[async_trait]
impl CallClient for DetachedClient {
    fn session_ask_style(&self) -> AskStyle {
        self.state.ask_style()
    }
}

/// An open question in a stream. It is cancelled there when nobody waits for its answer any more.
struct OpenQuestion {
    question: Question,
    stream: ReplyTo,
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        if self.question.is_open() {
            let cancelled = json!({"requestId": self.question.id, "reason": "nobody waits for the answer any more"});
            // A client that does not read has not seen the question.
            self.stream.try_note(notification("notifications/cancelled", Some(&cancelled)));
        }
    }
}

#[async_trait]
impl CallClient for RequestClient {
    fn capabilities(&self) -> Map<String, Value> {
        Map::clone(&self.capabilities)
    }

    fn identity(&self) -> Option<String> {
        // Several programs may share a session, because it is derived from principal and view.
        Some(client_info(self.binding.params.as_deref()))
    }

    fn is_client_absent(&self) -> bool {
        !self.channel.is_attached()
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        ask_permitted(requests, &self.capabilities, RpcError::MISSING_CAPABILITY, async |permitted| {
            let asking = QuestionContext {
                call: self.call,
                channel: &self.channel,
                binding: &self.binding,
                given_answers: &self.given_answers,
            };
            let answers = self.paused_calls.ask(permitted, asking, EXPIRY).await?;
            Ok(answers.into_iter().map(Ok).collect())
        })
        .await
    }

    fn log_level(&self) -> Option<String> {
        self.channel.level().map(|level| level.as_str().to_owned())
    }

    fn log(&self, message: Value) {
        if self.channel.level().is_some_and(|level| Level::of_message(&message) >= level) {
            self.channel.note(|_| Some(notification("notifications/message", Some(&message))));
        }
    }

    fn meta(&self) -> Map<String, Value> {
        own_meta(self.binding.params.as_deref())
    }
}

/// A client whose user sees the configured name of the source that asks. The message itself is the source's.
pub(crate) struct NamedSource {
    pub(crate) client: Arc<dyn CallClient>,
    /// The source; `None` until a tool call asks.
    pub(crate) source: Option<Box<str>>,
}

impl NamedSource {
    fn named(&self, mut requests: Vec<ClientRequest>) -> Vec<ClientRequest> {
        if let Some(source) = &self.source {
            requests.iter_mut().filter(|request| request.method == asking::ELICIT).for_each(|asked| {
                if let Some(Value::String(message)) = asked.params.get_mut("message") {
                    *message = format!("{source} asks:\n{message}");
                }
            });
        }
        requests
    }
}

#[async_trait]
impl CallClient for NamedSource {
    fn inner(&self) -> Option<&dyn CallClient> {
        Some(&*self.client)
    }

    fn for_call(&self, asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        let client = self.client.for_call(asking).unwrap_or_else(|| Arc::clone(&self.client));
        // A namespace consists of letters, digits, `-` and `_`.
        Some(Arc::new(Self { client, source: Some(asking.tool.namespace().into()) }))
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        self.client.ask(self.named(requests)).await
    }

    async fn ask_until(
        &self,
        requests: Vec<ClientRequest>,
        over: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Option<Result<Vec<Result<Value, ProtocolError>>, ToolError>> {
        self.client.ask_until(self.named(requests), over).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask_for(method: &str) -> ClientRequest {
        ClientRequest { key: None, method: method.into(), params: json!({}) }
    }

    #[tokio::test]
    async fn requests_beyond_the_clients_capabilities_are_refused() {
        let capabilities = json!({"roots": {}}).as_object().cloned().expect("object");
        let requests = ["sampling/createMessage", "roots/list", "tools/call"].map(ask_for).to_vec();
        let answers = ask_permitted(requests, &capabilities, -32021, async |permitted| {
            assert_eq!(permitted, [ask_for("roots/list")]);
            Ok(vec![Ok(json!({"roots": []}))])
        })
        .await
        .expect("answers");
        assert_eq!(
            answers[0].as_ref().map_err(|error| (error.code, error.data.clone())),
            Err((-32021, Some(json!({"requiredCapabilities": {"sampling": {}}}))))
        );
        assert_eq!(answers[1], Ok(json!({"roots": []})));
        assert!(answers[2].is_err());
        // Two sources may choose the same token.
        for (given, expect) in [
            (json!({"_meta": {"progressToken": 0}}), json!({})),
            (json!({"_meta": {"progressToken": 0, "k": 1}, "a": 2}), json!({"_meta": {"k": 1}, "a": 2})),
        ] {
            let asked = ClientRequest { params: given, ..ask_for("roots/list") };
            let put = ask_permitted(vec![asked], &capabilities, -32021, async |permitted| {
                Ok(permitted.into_iter().map(|asked| Ok(asked.params)).collect())
            });
            assert_eq!(put.await.expect("answers"), [Ok(expect)]);
        }
        let many = vec![ask_for("roots/list"); MAX_REQUESTS + 1];
        assert!(ask_permitted(many, &capabilities, -32021, async |_| Ok(Vec::new())).await.is_err());
    }
}
