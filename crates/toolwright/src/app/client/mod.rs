//! Toolwright as the client of its own calls: it answers what a tool's source asks back. Questions to a model run
//! through the executor as calls of `client:sample`, under the policy of the caller.

mod fallback_client;
mod inbox;
mod sample;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};
use toolwright_core::approval::Approver;
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::catalogue::{Provider, ProviderKind, Snapshot};
use toolwright_core::client::{AskingCall, CallClient, ClientRequest};
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};
use toolwright_core::model::{Bound, ModelBounds, ModelBudget};
use toolwright_core::operation::Lineage;
use toolwright_core::session::{CallId, Session};
use toolwright_core::tool::StaticProvider;
use toolwright_core::{Policy, ToolId};
use toolwright_mcp::asking::{ELICIT, ROOTS, SAMPLE};
use toolwright_mcp::form::Form;
use toolwright_mcp::page::Page;
use toolwright_runtime::{Executor, RunContext};
use url::Url;

pub use self::fallback_client::GatewayFallback;
pub use self::inbox::InboxPerson;
use self::sample::Sample;
use super::Toolwright;

/// JSON-RPC's codes for what is answered with an error.
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL: i64 = -32603;
/// MCP's code for a request that the user turned down ("Sampling", "Error Handling").
const TURNED_DOWN: i64 = -1;

/// A person who fills in forms and opens pages.
#[async_trait]
pub trait Person: Send + Sync {
    /// Asks the person to fill in a form. `source` is the tool whose source asks. Dropping the future withdraws the form.
    async fn fill_in(&self, source: &str, form: &Form) -> Filled;

    /// Asks the person to open a page. Toolwright does not open it. The future ends when the person says whether they
    /// opened it; what they do on the page is not observed. Dropping the future withdraws the question.
    async fn visit(&self, source: &str, page: &Page) -> Visited;
}

/// The person's answer to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visited {
    /// The person opened it.
    Opened,
    /// The person declined.
    Declined,
    /// The person left without an answer.
    Cancelled,
}

/// The person's answer to a form.
#[derive(Debug, Clone, PartialEq)]
pub enum Filled {
    /// The person filled it in.
    Accepted(Map<String, Value>),
    /// The person declined.
    Declined,
    /// The person left without an answer.
    Cancelled,
}

/// The caller for whom Toolwright answers, and the people and models that help.
pub struct ClientOptions {
    /// Whose calls they are.
    pub session: Arc<Session>,
    /// Decides whether a model is asked.
    pub policy: Arc<Policy>,
    /// Answers where the policy asks.
    pub approver: Arc<dyn Approver>,
    /// Fills in forms and opens pages; `None`: nobody does, and no source may ask.
    pub person: Option<Arc<dyn Person>>,
    /// The model that answers where `sampling.model` names none; else `models.default`.
    pub model: Option<String>,
}

impl Toolwright {
    /// Toolwright as the client of calls under these terms. Models are offered to sources where there is one and policy,
    /// or somebody who is asked, could let them be asked, within what `sampling` allows for the life of this client; the
    /// workspace is its one root.
    #[must_use]
    pub fn client(&self, terms: ClientOptions) -> Arc<dyn CallClient> {
        let config = self.config();
        let section = &config.written.sampling;
        let model = self.sampling_model(terms.model);
        let model = model.filter(|_| sample::may_be_allowed(&terms.policy, &terms.session, &*terms.approver));
        let sampling = model.zip(ToolId::try_parse(sample::ID)).and_then(|(model, id)| {
            let bounds = ModelBounds {
                requests: Bound::new(section.max_requests, "sampling.max_requests"),
                tokens: Bound::new(section.max_total_tokens, "sampling.max_total_tokens"),
                cost_usd: section.max_cost.map(|most| Bound::new(most, "sampling.max_cost")),
            };
            let budget = ModelBudget::new(bounds, config.prices());
            let (services, max_tokens) = (Arc::clone(self.executor.services()), section.max_tokens);
            let sample = Sample { id, model, services, max_tokens, budget };
            provided(sample).inspect_err(|error| tracing::error!("no model is offered to servers: {error}")).ok()
        });
        let ClientOptions { session, policy, approver, person, .. } = terms;
        let executor = Arc::clone(&self.executor);
        let shared = Shared { executor, sampling, session, policy, approver, person };
        Arc::new(AppClient { shared: Arc::new(shared), asking: None })
    }

    /// The model that answers sources, if one does: that of `sampling`, else that of the run, else the default.
    fn sampling_model(&self, of_run: Option<String>) -> Option<String> {
        let config = self.config();
        let section = &config.written.sampling;
        let model = section.model.clone().or(of_run).or_else(|| config.written.models.default.clone());
        model.filter(|model| section.enabled && self.models().check(model).is_ok())
    }
}

/// A catalogue of that one tool.
fn provided(sample: Sample) -> Result<Arc<Snapshot>, toolwright_core::catalogue::RegistrationError> {
    let provider = StaticProvider::new("client", ProviderKind::Builtin, vec![Arc::new(sample)])?;
    let tools = provider.tools().to_vec();
    let provider: Arc<dyn Provider> = Arc::new(provider);
    Ok(Arc::new(Snapshot::default().with(&provider, &tools)))
}

struct Shared {
    executor: Arc<Executor>,
    sampling: Option<Arc<Snapshot>>,
    session: Arc<Session>,
    policy: Arc<Policy>,
    approver: Arc<dyn Approver>,
    person: Option<Arc<dyn Person>>,
}

struct AppClient {
    shared: Arc<Shared>,
    /// The call that asks, where it is known.
    asking: Option<AskingCall>,
}

#[async_trait]
impl CallClient for AppClient {
    fn capabilities(&self) -> Map<String, Value> {
        let mut capabilities = Map::new();
        capabilities.insert("roots".into(), json!({}));
        if self.shared.sampling.is_some() {
            capabilities.insert("sampling".into(), json!({}));
        }
        if self.shared.person.is_some() {
            capabilities.insert("elicitation".into(), elicitation());
        }
        capabilities
    }

    fn for_call(&self, asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        Some(Arc::new(Self { shared: Arc::clone(&self.shared), asking: Some(asking.clone()) }))
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        Ok(join_all(requests.into_iter().map(|request| self.answer(request))).await)
    }
}

/// A folder as the only one (MCP, `ListRootsResult`), where its path is one that a URI can tell.
fn roots_of(root: &Path) -> Value {
    let name = root.file_name().map(|name| name.to_string_lossy().into_owned());
    let uri = Url::from_directory_path(root).ok();
    let root = uri.map(|uri| match name {
        Some(name) => json!({"uri": uri.as_str().trim_end_matches('/'), "name": name}),
        None => json!({"uri": uri.as_str()}),
    });
    json!({"roots": root.into_iter().collect::<Value>()})
}

impl AppClient {
    async fn answer(&self, request: ClientRequest) -> Result<Value, ProtocolError> {
        match (&*request.method, &self.shared.sampling, &self.shared.person) {
            (ROOTS, _, _) => Ok(roots_of(&self.shared.session.root)),
            (SAMPLE, Some(sampling), _) => self.sample(sampling, request.params).await,
            (ELICIT, _, Some(person)) => self.elicit(&**person, &request.params).await,
            (other, _, _) => Err(refusal(METHOD_NOT_FOUND, format!("`{other}` is not offered here"))),
        }
    }

    async fn sample(&self, sampling: &Arc<Snapshot>, mut params: Value) -> Result<Value, ProtocolError> {
        if let Some(params) = params.as_object_mut() {
            // Who asks is for rules and people to know, and not the source's to say.
            params.remove("_meta");
            params.insert("source".into(), self.source().into());
        }
        let call = ToolCall {
            id: CallId::new(format!("sample-{}", uuid::Uuid::new_v4())),
            name: sample::ID.to_owned(),
            arguments: RawArguments::Value(params),
        };
        let Shared { executor, session, policy, approver, .. } = &*self.shared;
        let lineage = self.asking.as_ref().and_then(|asking| Lineage::of_traceparent(&asking.traceparent));
        let mut run =
            RunContext::new(Arc::clone(session), Arc::clone(sampling), Arc::clone(policy), Arc::clone(approver));
        run.lineage = lineage.unwrap_or(run.lineage);
        run.asker = Some(self.server().into());
        if let Some(asking) = &self.asking {
            run.cancel = asking.cancel.child();
            run.usage.clone_from(&asking.usage);
        }
        let outcome = executor.run_calls(vec![call], &run).await.pop();
        let outcome = outcome.ok_or_else(|| refusal(INTERNAL, "the executor gave no outcome".into()))?;
        match (outcome.error, outcome.structured) {
            (None, Some(result)) => Ok(result),
            // A person left it out.
            (None, None) => Err(refusal(TURNED_DOWN, "the user turned it down".into())),
            (Some(error), _) => {
                let code = match error.kind() {
                    ErrorKind::Denied | ErrorKind::NotPermitted | ErrorKind::LimitExceeded => TURNED_DOWN,
                    ErrorKind::InvalidParameters => INVALID_PARAMS,
                    _ => INTERNAL,
                };
                Err(refusal(code, error.for_model()))
            }
        }
    }

    async fn elicit(&self, person: &dyn Person, params: &Value) -> Result<Value, ProtocolError> {
        if params.get("mode").and_then(Value::as_str) == Some("url") {
            let page = Page::of(params).map_err(|why| refusal(INVALID_PARAMS, why))?;
            return Ok(json!({"action": match person.visit(self.source(), &page).await {
                Visited::Opened => "accept",
                Visited::Declined => "decline",
                Visited::Cancelled => "cancel",
            }}));
        }
        let form = Form::of(params).map_err(|why| refusal(INVALID_PARAMS, why))?;
        Ok(match person.fill_in(self.source(), &form).await {
            Filled::Accepted(content) => json!({"action": "accept", "content": content}),
            Filled::Declined => json!({"action": "decline"}),
            Filled::Cancelled => json!({"action": "cancel"}),
        })
    }

    /// The server that asks, as far as it is known.
    fn server(&self) -> &str {
        self.asking.as_ref().map_or("a tool", |asking| asking.tool.namespace())
    }

    fn source(&self) -> &str {
        self.asking.as_ref().map_or("a tool", |asking| asking.tool.without_version())
    }
}

/// What a person can be asked.
fn elicitation() -> Value {
    json!({"form": {}, "url": {}})
}

fn refusal(code: i64, message: String) -> ProtocolError {
    ProtocolError { code, message, data: None }
}
