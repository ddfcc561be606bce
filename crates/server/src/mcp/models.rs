//! Our own models, in the place of those that a call's client does not have.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures_util::future::join;
use serde_json::{Map, Value, json};
use toolwright_core::approval::Approver;
use toolwright_core::client::{AskingCall, CallClient, ClientRequest, Manner};
use toolwright_core::error::{ProtocolError, ToolError};
use toolwright_core::session::Session;
use toolwright_mcp::asking::SAMPLE;

use super::ask::bounded;
use crate::Gateway;

/// The capability that is announced for such a client.
const SAMPLING: &str = "sampling";

/// Who answers what a tool's source asks of a model (`sampling/createMessage`) where the call's client cannot be
/// asked that.
pub trait ModelHost: Send + Sync {
    /// Whether there is a model that would answer. Looked up with each call.
    fn is_offered(&self) -> bool;

    /// Answers where policy asks about such a question and the client is not asked. The call waits for it, so that
    /// it must not put the answer off.
    fn approver(&self) -> Arc<dyn Approver>;

    /// The client that takes the questions to a model of one call of `session`, and nothing else.
    fn client(&self, session: Arc<Session>, approver: Arc<dyn Approver>) -> Arc<dyn CallClient>;
}

impl Gateway {
    /// This client with our models beside it, if it cannot be asked for its own and there is one of ours. `ask` says
    /// who answers where policy asks about a question, given who does otherwise.
    pub(crate) fn with_model(
        &self,
        client: Arc<dyn CallClient>,
        session: &Arc<Session>,
        ask: impl FnOnce(Arc<dyn Approver>) -> Arc<dyn Approver>,
    ) -> Arc<dyn CallClient> {
        let host = self.options.models.as_ref().filter(|_| !client.capabilities().contains_key(SAMPLING));
        let Some(host) = host.filter(|host| host.is_offered()) else { return client };
        let approver = ask(host.approver());
        let terms = Terms { host: Arc::clone(host), session: Arc::clone(session), approver };
        Arc::new(WithModel::new(client, terms))
    }
}

/// What a [`ModelHost`] makes a client of, once there is a question.
struct Terms {
    host: Arc<dyn ModelHost>,
    session: Arc<Session>,
    approver: Arc<dyn Approver>,
}

/// A client without models, with ours beside it.
struct WithModel {
    client: Arc<dyn CallClient>,
    models: Arc<Models>,
    asking: Option<AskingCall>,
}

struct Models {
    terms: Terms,
    client: OnceLock<Arc<dyn CallClient>>,
}

impl WithModel {
    fn new(client: Arc<dyn CallClient>, terms: Terms) -> Self {
        Self { client, models: Arc::new(Models { terms, client: OnceLock::new() }), asking: None }
    }

    /// Puts what is asked of a model to ours.
    async fn ask_model(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let Models { terms, client } = &*self.models;
        let ours = client.get_or_init(|| terms.host.client(Arc::clone(&terms.session), Arc::clone(&terms.approver)));
        match self.asking.as_ref().and_then(|asking| ours.for_call(asking)) {
            Some(ours) => ours.ask(requests).await,
            None => ours.ask(requests).await,
        }
    }
}

#[async_trait]
impl CallClient for WithModel {
    fn capabilities(&self) -> Map<String, Value> {
        let mut capabilities = self.client.capabilities();
        capabilities.entry(SAMPLING).or_insert_with(|| json!({}));
        capabilities
    }

    fn manner(&self) -> Manner {
        self.client.manner()
    }

    fn for_call(&self, asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        let client = self.client.for_call(asking).unwrap_or_else(|| Arc::clone(&self.client));
        Some(Arc::new(Self { client, models: Arc::clone(&self.models), asking: Some(asking.clone()) }))
    }

    fn identity(&self) -> Option<String> {
        self.client.identity()
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        bounded(&requests)?;
        if self.client.capabilities().contains_key(SAMPLING) {
            return self.client.ask(requests).await;
        }
        let of_model: Vec<bool> = requests.iter().map(|request| request.method == SAMPLE).collect();
        let (questions, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|request| request.method == SAMPLE);
        let asked = async { if others.is_empty() { Ok(Vec::new()) } else { self.client.ask(others).await } };
        let (of_ours, of_client) = join(self.ask_model(questions), asked).await;
        let (mut of_ours, mut of_client) = (of_ours?.into_iter(), of_client?.into_iter());
        // Each gives an answer to each request; the order is that of the requests.
        Ok(of_model.into_iter().filter_map(|ours| if ours { of_ours.next() } else { of_client.next() }).collect())
    }

    fn log_level(&self) -> Option<String> {
        self.client.log_level()
    }

    fn log(&self, message: Value) {
        self.client.log(message);
    }

    fn meta(&self) -> Map<String, Value> {
        self.client.meta()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::approval::NoApprover;
    use toolwright_core::session::{Principal, SessionId};

    /// A client that answers with its name and what it was asked.
    struct Named(&'static str, Value);

    #[async_trait]
    impl CallClient for Named {
        fn capabilities(&self) -> Map<String, Value> {
            self.1.as_object().cloned().unwrap_or_default()
        }

        async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
            Ok(requests.iter().map(|request| Ok(json!([self.0, request.params]))).collect())
        }
    }

    struct Host;

    impl ModelHost for Host {
        fn is_offered(&self) -> bool {
            true
        }

        fn approver(&self) -> Arc<dyn Approver> {
            Arc::new(NoApprover { remedy: String::new() })
        }

        fn client(&self, _: Arc<Session>, _: Arc<dyn Approver>) -> Arc<dyn CallClient> {
            Arc::new(Named("house", json!({})))
        }
    }

    #[tokio::test]
    async fn each_is_asked_what_is_its_own_and_answers_come_in_order() {
        let order = ["roots/list", SAMPLE, "elicitation/create", SAMPLE];
        for (capabilities, announced, expect) in [
            (json!({"roots": {}}), json!({"roots": {}, "sampling": {}}), ["client", "house", "client", "house"]),
            (json!({"sampling": {"tools": {}}}), json!({"sampling": {"tools": {}}}), ["client"; 4]),
        ] {
            let session = Session {
                id: SessionId::new("s"),
                principal: Principal::owner(),
                root: std::path::PathBuf::new(),
                agent: None,
            };
            let terms = Terms { host: Arc::new(Host), session: Arc::new(session), approver: Host.approver() };
            let client = WithModel::new(Arc::new(Named("client", capabilities)), terms);
            assert_eq!(Value::from(client.capabilities()), announced);
            let asked = order.iter().enumerate();
            let asked =
                asked.map(|(at, method)| ClientRequest { key: None, method: (*method).into(), params: json!(at) });
            let answers = client.ask(asked.collect()).await.expect("answered");
            let wanted: Vec<_> = expect.iter().enumerate().map(|(at, who)| Ok(json!([who, at]))).collect();
            assert_eq!(answers, wanted);
        }
    }
}
