//! Toolwright as the client of its own calls: it answers the requests of tools' sources. Requests to a model run
//! through the executor as calls of `client:sample`, under the policy of the caller.

use std::path::Path;
use std::sync::{Arc, LazyLock, OnceLock};

use async_trait::async_trait;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};
use toolwright_core::approval::{AnswerSource, Approver};
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::catalogue::{CallScope, Provider, ProviderKind, RegistrationError, Snapshot};
use toolwright_core::client::{AskingCall, CallClient, ClientRequest};
use toolwright_core::context::{Services, ToolContext};
use toolwright_core::definition::ToolDefinition;
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};
use toolwright_core::model::{Bound, ModelBounds, ModelBudget, ModelPriority};
use toolwright_core::operation::Lineage;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::policy::{HintTrust, PolicyQuery};
use toolwright_core::session::{CallId, Session};
use toolwright_core::tool::{StaticProvider, Tool};
use toolwright_core::{Effects, Policy, ToolId};
use toolwright_mcp::asking::{ELICIT, ROOTS, SAMPLE, request_of, result_of};
use toolwright_mcp::elicitation::{Form, Page};
use toolwright_runtime::{Executor, RunContext};
use url::Url;

use super::Toolwright;

/// JSON-RPC error codes.
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL: i64 = -32603;
/// MCP's code for a request that the user rejected ("Sampling", "Error Handling").
const USER_REJECTED: i64 = -1;

/// A person who fills in forms and opens pages.
#[async_trait]
pub trait Person: Send + Sync {
    /// Asks the person to fill in a form. `source` is the tool whose source asks. Dropping the future withdraws the form.
    async fn fill_in(&self, source: &str, form: &Form) -> FormAnswer;

    /// Asks the person to open a page. Toolwright does not open it. The future completes with the person's answer
    /// whether they opened it; their actions on the page are not observed. Dropping the future withdraws the question.
    async fn visit(&self, source: &str, page: &Page) -> PageAnswer;
}

/// The person's answer to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageAnswer {
    /// The person opened it.
    Opened,
    /// The person declined.
    Declined,
    /// The person left without an answer.
    Cancelled,
}

/// The person's answer to a form.
#[derive(Debug, Clone, PartialEq)]
pub enum FormAnswer {
    /// The person filled it in.
    Accepted(Map<String, Value>),
    /// The person declined.
    Declined,
    /// The person left without an answer.
    Cancelled,
}

/// The caller for whom Toolwright answers, and the people and models that help.
pub struct ClientOptions {
    /// The session of the calls.
    pub session: Arc<Session>,
    /// Decides whether a model is asked.
    pub policy: Arc<Policy>,
    /// Answers if the policy asks.
    pub approver: Arc<dyn Approver>,
    /// Fills in forms and opens pages; `None`: sources may not ask.
    pub person: Option<Arc<dyn Person>>,
    /// The model that answers if `sampling.model` names none; else `models.default`.
    pub model: Option<String>,
}

impl Toolwright {
    /// Toolwright as the client of calls. It offers sampling if there is a model and policy or an approver could allow
    /// it, within the limits of `sampling` for the life of this client. The workspace is the only root.
    #[must_use]
    pub fn client(&self, options: ClientOptions) -> Arc<dyn CallClient> {
        let config = self.config();
        let section = &config.sections.sampling;
        let model = self.sampling_model(options.model.clone());
        let model = model.filter(|_| may_sample(&options.policy, &options.session, &*options.approver));
        let sampling = model.zip(ToolId::try_parse(SAMPLE_ID)).map(|(model, id)| {
            let bounds = ModelBounds {
                requests: Bound::new(section.max_requests, "sampling.max_requests"),
                tokens: Bound::new(section.max_total_tokens, "sampling.max_total_tokens"),
                cost_usd: section.max_cost.map(|most| Bound::new(most, "sampling.max_cost")),
            };
            let budget = ModelBudget::new(bounds, config.prices());
            let (services, max_tokens) = (Arc::clone(self.executor.services()), section.max_tokens);
            Sampling {
                sample: Arc::new(Sample { id, model, services, max_tokens, budget }),
                catalogue: OnceLock::new(),
            }
        });
        let shared = SharedClientState { executor: Arc::clone(&self.executor), sampling, options };
        Arc::new(AppClient { shared: Arc::new(shared), asking: None })
    }

    /// Returns the model for requests of sources, if any: that of `sampling`, else of the run, else the default.
    pub(super) fn sampling_model(&self, of_run: Option<String>) -> Option<String> {
        let config = self.config();
        let section = &config.sections.sampling;
        let model = section.model.clone().or(of_run).or_else(|| config.sections.models.default.clone());
        model.filter(|model| section.enabled && self.models().check(model).is_ok())
    }
}

/// The tool that asks a model for a source, in its own catalogue. Created for the first request, because few runs have
/// one.
struct Sampling {
    sample: Arc<Sample>,
    catalogue: OnceLock<Arc<Snapshot>>,
}

impl Sampling {
    fn catalogue(&self) -> Result<&Arc<Snapshot>, RegistrationError> {
        if self.catalogue.get().is_none() {
            let provider = StaticProvider::new("client", ProviderKind::Builtin, vec![Arc::clone(&self.sample) as _])?;
            let tools = provider.tools().to_vec();
            let provider: Arc<dyn Provider> = Arc::new(provider);
            let _ = self.catalogue.set(Arc::new(Snapshot::default().with(&provider, &tools)));
        }
        Ok(self.catalogue.wait())
    }
}

struct SharedClientState {
    executor: Arc<Executor>,
    sampling: Option<Sampling>,
    options: ClientOptions,
}

struct AppClient {
    shared: Arc<SharedClientState>,
    /// The call whose source asks, if known.
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
        if self.shared.options.person.is_some() {
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

/// Returns MCP's `ListRootsResult` with one folder, or none if its path has no URI.
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
        match (&*request.method, &self.shared.sampling, &self.shared.options.person) {
            (ROOTS, _, _) => Ok(roots_of(&self.shared.options.session.root)),
            (SAMPLE, Some(sampling), _) => self.sample(sampling, request.params).await,
            (ELICIT, _, Some(person)) => self.elicit(&**person, &request.params).await,
            (other, _, _) => Err(refusal(METHOD_NOT_FOUND, format!("`{other}` is not offered here"))),
        }
    }

    async fn sample(&self, sampling: &Sampling, mut params: Value) -> Result<Value, ProtocolError> {
        let catalogue = sampling.catalogue().map_err(|error| refusal(INTERNAL, error.to_string()))?;
        if let Some(params) = params.as_object_mut() {
            // Rules and people see who asks, so the source must not set it.
            params.remove("_meta");
            params.insert("source".into(), self.source().into());
        }
        let call = ToolCall::new(
            CallId::new(format!("sample-{}", uuid::Uuid::new_v4())),
            SAMPLE_ID.to_owned(),
            RawArguments::Value(params),
        );
        let SharedClientState { executor, options: ClientOptions { session, policy, approver, .. }, .. } =
            &*self.shared;
        let lineage = self.asking.as_ref().and_then(|asking| Lineage::of_traceparent(&asking.traceparent));
        let mut run =
            RunContext::new(Arc::clone(session), Arc::clone(catalogue), Arc::clone(policy), Arc::clone(approver));
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
            // A person skipped it.
            (None, None) => Err(refusal(USER_REJECTED, "the user turned it down".into())),
            (Some(error), _) => {
                let code = match error.kind() {
                    ErrorKind::Denied | ErrorKind::NotPermitted | ErrorKind::LimitExceeded => USER_REJECTED,
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
                PageAnswer::Opened => "accept",
                PageAnswer::Declined => "decline",
                PageAnswer::Cancelled => "cancel",
            }}));
        }
        let form = Form::of(params).map_err(|why| refusal(INVALID_PARAMS, why))?;
        Ok(match person.fill_in(self.source(), &form).await {
            FormAnswer::Accepted(content) => json!({"action": "accept", "content": content}),
            FormAnswer::Declined => json!({"action": "decline"}),
            FormAnswer::Cancelled => json!({"action": "cancel"}),
        })
    }

    /// Returns the server that asks, if known.
    fn server(&self) -> &str {
        self.asking.as_ref().map_or("a tool", |asking| asking.tool.namespace())
    }

    fn source(&self) -> &str {
        self.asking.as_ref().map_or("a tool", |asking| asking.tool.without_version())
    }
}

/// Returns the elicitation capabilities of a person.
pub(super) fn elicitation() -> Value {
    json!({"form": {}, "url": {}})
}

fn refusal(code: i64, message: String) -> ProtocolError {
    ProtocolError { code, message, data: None }
}

/// Id of the tool that asks a model for a tool's source.
const SAMPLE_ID: &str = "client:sample@1.0.0";
/// Maximum bytes of a request.
const MAX_QUESTION: usize = 1 << 20;

/// `client:sample`: a source's request to a model, as a tool, so that rules, guards, approvers and the ledger treat it
/// like any call. No catalogue lists it.
struct Sample {
    /// [`SAMPLE_ID`].
    id: ToolId,
    model: String,
    services: Arc<Services>,
    /// Maximum tokens of one answer.
    max_tokens: u32,
    budget: Arc<ModelBudget>,
}

#[async_trait]
impl Tool for Sample {
    fn definition(&self) -> ToolDefinition {
        sample_definition(self.id.clone(), &self.model)
    }

    fn awaits_others(&self) -> bool {
        true
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let invalid = |why: String| ToolError::new(ErrorKind::InvalidParameters, why);
        if arguments.to_string().len() > MAX_QUESTION {
            return Err(invalid(format!("a question to a model has at most {MAX_QUESTION} bytes")));
        }
        let mut request = request_of(&arguments, self.max_tokens).map_err(invalid)?;
        // The owner's own requests have priority over a server's.
        request.priority = ModelPriority::Background;
        let client = &self.services.model;
        let answer = client.longest_answer(&self.model, request.max_tokens, &request.settings, self.max_tokens);
        let reserved = self.budget.reserve(&self.model, request.tokens() as u64, answer.into())?;
        let answer = context.calls.ask(&self.model, &request).await;
        reserved.settle(answer.as_ref());
        let answer = answer.map_err(|error| {
            ToolError::new(ErrorKind::ExecutionError, format!("{} did not answer: {error}", self.model))
                .with_model_message("the model did not answer")
                .with_source(error)
        })?;
        let result = result_of(&answer, &self.model);
        Ok(ToolOutput { structured: Some(result), ..ToolOutput::text(format!("{} answered", self.model)) })
    }
}

fn sample_definition(id: ToolId, model: &str) -> ToolDefinition {
    let parameters = json!({
        "type": "object",
        "properties": {
            "source": {"type": "string", "description": "The tool whose source asks."},
            "messages": {"type": "array", "items": {"type": "object"}},
            "systemPrompt": {"type": "string"},
            "maxTokens": {"type": "integer", "minimum": 1},
            "temperature": {"type": "number"},
            "stopSequences": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["source", "messages", "maxTokens"],
    });
    let answer = json!({
        "type": "object",
        "properties": {
            "role": {"type": "string"},
            "content": {"type": "object"},
            "model": {"type": "string"},
            "stopReason": {"type": "string"},
        },
        "required": ["role", "content", "model"],
    });
    let about = format!("Lets the source of a tool ask {model} a question of its own.");
    let mut definition = ToolDefinition::new(id, about, Some(parameters));
    definition.output_schema = Some(answer);
    // It changes nothing, but sends the source's text to a model's provider at the owner's cost.
    definition.effects = Effects { read_only: false, destructive: false, idempotent: false, open_world: true };
    definition
}

/// The definition by which policy judges such requests in general.
static ANY: LazyLock<Option<ToolDefinition>> =
    LazyLock::new(|| ToolId::try_parse(SAMPLE_ID).map(|id| sample_definition(id, "a model")));

/// Returns whether policy could allow some request, alone or through the approver.
pub(super) fn may_sample(policy: &Policy, session: &Session, approver: &dyn Approver) -> bool {
    let Some(definition) = &*ANY else { return false };
    let prospects = policy.possible_decisions(&PolicyQuery {
        definition,
        trust: HintTrust::Trusted,
        principal: &session.principal,
        root: &session.root,
        scope: CallScope::Anywhere,
        unvalidated: None,
        arguments: &Value::Null,
        request: None,
        tainted: &[],
    });
    prospects.allows || (prospects.asks && approver.answers() != AnswerSource::Nobody)
}
