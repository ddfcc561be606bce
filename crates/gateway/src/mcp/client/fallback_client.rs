//! The fallback for requests that a call's client cannot answer: configured models, and people who can be reached in
//! other ways.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures_util::future::join;
use serde_json::{Map, Value, json};
use toolwright_core::approval::Approver;
use toolwright_core::client::{AskStyle, AskingCall, CallClient, ClientRequest};
use toolwright_core::error::{ProtocolError, ToolError};
use toolwright_core::policy::Profile;
use toolwright_core::session::Session;
use toolwright_mcp::asking::{self, ELICIT, SAMPLE};

use super::check_count;
use crate::Gateway;
use crate::view::View;

/// Answers requests of a tool's source (`sampling/createMessage`, `elicitation/create`) that the call's client cannot.
pub trait FallbackClient: Send + Sync {
    /// Returns what it can answer, as MCP's `ClientCapabilities`. Leaves out what could never be answered or allowed.
    /// Called for every call.
    fn offers(&self, context: &FallbackContext) -> Map<String, Value>;

    /// Returns the approver of requests to models if policy asks and the client is not asked. The call waits for it, so
    /// it must not postpone its answer.
    fn approver(&self) -> Arc<dyn Approver>;

    /// Returns the client that answers exactly the requests that [`offers`](Self::offers) names.
    fn client(&self, context: &FallbackContext) -> Arc<dyn CallClient>;
}

/// The context of a call whose source asks.
#[derive(Clone)]
pub struct FallbackContext {
    /// The session of the call.
    pub session: Arc<Session>,
    /// The profile of the call's view; it has precedence over the server's.
    pub profile: Option<Profile>,
    /// Approves requests to models where policy asks.
    pub approver: Arc<dyn Approver>,
}

impl Gateway {
    /// Adds the fallback, under the view's profile, to a client for requests that the client cannot answer. `ask` wraps
    /// the fallback's approver.
    pub(crate) fn with_fallback(
        &self,
        client: Arc<dyn CallClient>,
        session: &Arc<Session>,
        view: Option<&View>,
        ask: impl FnOnce(Arc<dyn Approver>) -> Arc<dyn Approver>,
    ) -> Arc<dyn CallClient> {
        let Some(host) = &self.options.fallback_client else { return client };
        let profile = view.and_then(|view| self.profile_at(view));
        let context = FallbackContext { session: Arc::clone(session), profile, approver: ask(host.approver()) };
        let mut offered = host.offers(&context);
        if !offered.is_empty() {
            let own = client.capabilities();
            offered.retain(|capability, _| !own.contains_key(capability));
        }
        if offered.is_empty() {
            return client;
        }
        let fallback = Fallback { host: Arc::clone(host), context, offered, client: OnceLock::new() };
        Arc::new(WithFallback { client, fallback: Arc::new(fallback), asking: None })
    }
}

/// The fallback for one call. Its client is created at the first question.
struct Fallback {
    host: Arc<dyn FallbackClient>,
    context: FallbackContext,
    /// The capabilities that the call's own client lacks.
    offered: Map<String, Value>,
    client: OnceLock<Arc<dyn CallClient>>,
}

impl Fallback {
    /// Returns whether the fallback answers this request.
    fn answers(&self, request: &ClientRequest) -> bool {
        let capability = match request.method.as_str() {
            SAMPLE => "sampling",
            ELICIT => "elicitation",
            _ => return false,
        };
        self.offered.contains_key(capability)
    }
}

/// A client with the fallback for the capabilities that it lacks.
struct WithFallback {
    client: Arc<dyn CallClient>,
    fallback: Arc<Fallback>,
    asking: Option<AskingCall>,
}

impl WithFallback {
    async fn ask_fallback(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let Fallback { host, context, client, .. } = &*self.fallback;
        let ours = client.get_or_init(|| host.client(context));
        match self.asking.as_ref().and_then(|asking| ours.for_call(asking)) {
            Some(ours) => ours.ask(requests).await,
            None => ours.ask(requests).await,
        }
    }
}

#[async_trait]
impl CallClient for WithFallback {
    fn inner(&self) -> Option<&dyn CallClient> {
        Some(&*self.client)
    }

    fn capabilities(&self) -> Map<String, Value> {
        let mut capabilities = self.client.capabilities();
        for (capability, how) in &self.fallback.offered {
            capabilities.entry(capability).or_insert_with(|| how.clone());
        }
        capabilities
    }

    fn ask_style(&self) -> AskStyle {
        // The fallback accepts either style, and a client without capabilities does not need its own.
        if self.client.capabilities().is_empty() { AskStyle::Either } else { self.client.ask_style() }
    }

    fn follows_pages(&self) -> bool {
        // The fallback cannot open pages for the client.
        let url = json!({"mode": "url"});
        self.client.follows_pages() && asking::missing(&self.client.capabilities(), ELICIT, &url).is_none()
    }

    fn for_call(&self, asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        let client = self.client.for_call(asking).unwrap_or_else(|| Arc::clone(&self.client));
        Some(Arc::new(Self { client, fallback: Arc::clone(&self.fallback), asking: Some(asking.clone()) }))
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        check_count(&requests)?;
        let is_ours: Vec<bool> = requests.iter().map(|request| self.fallback.answers(request)).collect();
        let (questions, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|one| self.fallback.answers(one));
        let client_answers = async { if others.is_empty() { Ok(Vec::new()) } else { self.client.ask(others).await } };
        let (of_ours, of_client) = join(self.ask_fallback(questions), client_answers).await;
        let (mut of_ours, mut of_client) = (of_ours?.into_iter(), of_client?.into_iter());
        // Both return their answers in the order of their requests.
        Ok(is_ours.into_iter().filter_map(|ours| if ours { of_ours.next() } else { of_client.next() }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::approval::NoApprover;
    use toolwright_core::session::{Principal, SessionId};
    use toolwright_testkit::FakeCallClient;

    /// A client that answers with its name and the parameters.
    fn named(name: &'static str, capabilities: Value) -> Arc<FakeCallClient> {
        let client = FakeCallClient::new(move |request| json!([name, request.params]));
        Arc::new(client.with(|it| (it.capabilities, it.ask_style) = (capabilities, AskStyle::Requests)))
    }

    struct Host;

    impl FallbackClient for Host {
        fn offers(&self, _: &FallbackContext) -> Map<String, Value> {
            Map::new()
        }

        fn approver(&self) -> Arc<dyn Approver> {
            Arc::new(NoApprover { remedy: String::new() })
        }

        fn client(&self, _: &FallbackContext) -> Arc<dyn CallClient> {
            named("fallback", json!({}))
        }
    }

    fn beside(client: Value, offered: &Value) -> WithFallback {
        let session = Session { id: SessionId::new("s"), principal: Principal::owner(), root: "".into(), agent: None };
        let context = FallbackContext { session: Arc::new(session), profile: None, approver: Host.approver() };
        let offered = offered.as_object().cloned().expect("object");
        let fallback = Fallback { host: Arc::new(Host), context, offered, client: OnceLock::new() };
        WithFallback { client: named("client", client), fallback: Arc::new(fallback), asking: None }
    }

    #[tokio::test]
    async fn client_and_fallback_answer_in_request_order() {
        let order = ["roots/list", SAMPLE, ELICIT, SAMPLE];
        let both = json!({"sampling": {}, "elicitation": {"form": {}}});
        for (client, offered, announced, expect) in [
            (
                json!({"roots": {}}),
                json!({"sampling": {}}),
                json!({"roots": {}, "sampling": {}}),
                ["client", "fallback", "client", "fallback"],
            ),
            (
                json!({"sampling": {"tools": {}}}),
                json!({"elicitation": {"form": {}}}),
                json!({"sampling": {"tools": {}}, "elicitation": {"form": {}}}),
                ["client", "client", "fallback", "client"],
            ),
            (
                json!({"roots": {}}),
                both.clone(),
                json!({"roots": {}, "sampling": {}, "elicitation": {"form": {}}}),
                ["client", "fallback", "fallback", "fallback"],
            ),
        ] {
            let client = beside(client, &offered);
            assert_eq!((Value::from(client.capabilities()), client.ask_style()), (announced, AskStyle::Requests));
            let asked = order.iter().enumerate();
            let asked =
                asked.map(|(at, method)| ClientRequest { key: None, method: (*method).into(), params: json!(at) });
            let answers = client.ask(asked.collect()).await.expect("answered");
            let wanted: Vec<_> = expect.iter().enumerate().map(|(at, who)| Ok(json!([who, at]))).collect();
            assert_eq!(answers, wanted);
        }
    }

    #[test]
    fn only_clients_with_url_mode_follow_pages() {
        let both = json!({"elicitation": {"form": {}, "url": {}}});
        for (client, offered, follows) in [
            (json!({"roots": {}}), both.clone(), false),
            (json!({}), both.clone(), false),
            (json!({"elicitation": {}}), json!({"sampling": {}}), false),
            (both, json!({"sampling": {}}), true),
        ] {
            assert_eq!(beside(client.clone(), &offered).follows_pages(), follows, "{client}");
        }
    }

    #[test]
    fn clients_without_capabilities_take_either_ask_style() {
        assert_eq!(beside(json!({}), &json!({"sampling": {}})).ask_style(), AskStyle::Either);
    }
}
