//! The section `server` of a configuration.

use std::time::Duration;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use toolwright_core::model::{Bound, ModelBounds};
use toolwright_core::setting::TimeSpan;
use toolwright_core::store::BudgetPeriod;
use toolwright_core::{Secret, duration};

use crate::view::ListedSchemas;

/// The default limit on listed tool names: some clients drop tools whose server and tool names exceed 60 characters
/// together.
const DEFAULT_MAX_TOOL_NAME: usize = 48;

/// `server`: how clients are served, and who may come in over HTTP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address of `serve --http` when the flag gives none. Changing it needs a restart.
    pub http: String,
    /// Bearer token that HTTP clients must send; needed on addresses other than loopback. `--token` and
    /// `TOOLWRIGHT_TOKEN` override it. Changing it needs a restart.
    #[serde(skip_serializing)]
    #[schemars(with = "Option<String>", extend("x-variables" = "secret"))]
    pub token: Option<Secret>,
    /// Longest tool name offered, in characters: some clients drop server plus tool names over 60.
    #[schemars(range(min = 16, max = 64))]
    pub max_tool_name: usize,
    /// Form in which argument schemas are listed: `portable`, which every client accepts (no `anyOf` or the like at the
    /// root, legal names, no tuples; `toolwright tools show` says what differs), or `raw`, as their sources give them.
    /// Calls are checked against the tool's own schema either way. Changing it needs a restart.
    pub schemas: ListedSchemas,
    /// How long running calls may continue after `serve` is told to end (SIGTERM, Ctrl-C). Then calls that may be
    /// repeated become jobs for the next process, and the others are cancelled. A service manager should wait longer
    /// than this before it kills the process. When a client closes stdio, it is two seconds at most, and calls that
    /// still run are cancelled. Changing it needs a restart.
    #[serde(with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub shutdown_grace: Duration,
    /// Whether clients are offered `agent__batch`, which runs several tools in one call. A client's approval screen
    /// shows it as one call that may do anything. Changing it needs a restart.
    pub batch: bool,
    /// Host names, besides loopback, that requests may be addressed to. Changing it needs a restart.
    pub allowed_hosts: Vec<String>,
    /// Web origins (`https://host[:port]`) whose pages may send requests and read the answers; none by default. They
    /// send a token as other clients do. Changing it needs a restart.
    pub allowed_origins: Vec<String>,
    /// The APIs of OpenAI and Anthropic at `/v1`. Changing it needs a restart.
    pub facades: FacadeConfig,
    /// HTTP clients with their own tokens, by name. If there are any, every client needs a token. Changing it needs a
    /// restart.
    #[serde(serialize_with = "no_tokens")]
    pub tokens: IndexMap<String, ClientConfig>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            http: "127.0.0.1:7117".into(),
            token: None,
            max_tool_name: DEFAULT_MAX_TOOL_NAME,
            schemas: ListedSchemas::default(),
            shutdown_grace: Duration::from_secs(10),
            batch: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            facades: FacadeConfig::default(),
            tokens: IndexMap::new(),
        }
    }
}

/// A client with a token of its own. Its name is the entry's key in a configuration.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientConfig {
    /// The token that it sends as `Authorization: Bearer TOKEN`.
    #[schemars(with = "String", extend("x-variables" = "secret"))]
    pub token: Secret,
    /// Its roles. Tools and views that are limited to roles need one of them.
    #[serde(default)]
    pub roles: Vec<String>,
    /// The servers and views that it may reach at `/mcp/{name}`, and whose tools agents at `/v1` may use for it.
    /// Without this key it reaches every server and view over MCP; see `api` for the HTTP API.
    pub views: Option<Vec<String>>,
    /// The agents and models that it may ask at `/v1`, as globs on their names. Default: all.
    #[serde(default)]
    pub models: Vec<String>,
    /// Limits of the model use on its behalf: by its requests at `/v1`, their agents, tools and jobs, and by its calls
    /// over MCP. All processes share the count, which is kept in the state directory. Default: no limit.
    #[serde(default)]
    pub budget: Option<ClientBudget>,
    /// Who decides where policy asks about calls of its agents at `/v1`. Default: as `server.facades.approvals` says.
    #[serde(default)]
    pub approvals: Option<FacadeApprovals>,
    /// What it may do at `/api` and in the console: nothing (`none`), or read everything and change nothing (`read`).
    #[serde(default)]
    pub api: ApiAccess,
}

/// What a token other than the server's own may do at `/api`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApiAccess {
    /// Nothing.
    #[default]
    None,
    /// Read everything that the owner sees, and change nothing.
    Read,
}

/// `budget` of a token: what may be used of models on its behalf in each period.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientBudget {
    /// When the count starts again from zero: each `day` or `month` (UTC), or never (`ever`).
    pub period: BudgetPeriod,
    /// Requests to models. Default: no limit.
    pub requests: Option<u32>,
    /// Input and output tokens of all these requests. Default: no limit.
    pub tokens: Option<u64>,
    /// US dollars that all these requests cost. It needs `prices` of each model. Default: no limit.
    #[schemars(range(min = 0.0))]
    pub cost_usd: Option<f64>,
}

impl ClientBudget {
    /// Returns the limits on model use.
    #[must_use]
    pub fn bounds(&self) -> ModelBounds {
        ModelBounds {
            requests: Bound::new(self.requests.unwrap_or(u32::MAX), "budget.requests of the token"),
            tokens: Bound::new(self.tokens.unwrap_or(u64::MAX), "budget.tokens of the token"),
            cost_usd: self.cost_usd.map(|most| Bound::new(most, "budget.cost_usd of the token")),
        }
    }
}

/// `server.facades`: the APIs of OpenAI and Anthropic at `/v1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FacadeConfig {
    /// Whether they are served. Changing it needs a restart.
    pub enabled: bool,
    /// What the name of a configured model stands for: `agent` for the default agent with the tools of the token, or `raw`
    /// for the model itself.
    pub models: ModelTarget,
    /// What happens to a request whose client disconnects: `cancel` it, or `continue` to its end.
    pub on_disconnect: OnDisconnect,
    /// Who decides where policy asks, unless the token says otherwise.
    pub approvals: FacadeApprovals,
    /// How Chat Completions shows calls that run here; the API has no items for them. `hidden`: not at all.
    /// `reasoning`: as lines of `reasoning_content`.
    pub chat_calls: ChatCalls,
    /// How Responses shows calls that run here. `shown`: as one `mcp_call` item each. `hidden`: not at all, for clients
    /// that take such items for errors.
    pub responses_calls: ResponsesCalls,
}

impl Default for FacadeConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            models: ModelTarget::Agent,
            on_disconnect: OnDisconnect::Cancel,
            approvals: FacadeApprovals::Inbox,
            chat_calls: ChatCalls::Hidden,
            responses_calls: ResponsesCalls::Shown,
        }
    }
}

/// What the name of a configured model stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelTarget {
    /// The default agent.
    Agent,
    /// The model itself.
    Raw,
}

/// What happens to a request whose client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    /// It is cancelled.
    Cancel,
    /// It continues; a stored response can be fetched.
    Continue,
}

/// Who decides where policy asks about a call of an agent behind a facade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FacadeApprovals {
    /// Nobody: such calls are denied.
    Deny,
    /// Whoever answers the inbox. The request waits; a stored response is pending meanwhile.
    Inbox,
    /// The client: by the tool `approve_tool_call` if it brings that, by items of Responses, else nobody.
    Tool,
}

/// What Chat Completions shows of calls that run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChatCalls {
    /// Nothing.
    Hidden,
    /// A line for each call and one for its result, as reasoning.
    Reasoning,
}

/// What Responses shows of calls that run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponsesCalls {
    /// An item for each.
    Shown,
    /// Nothing.
    Hidden,
}

/// Serializes the clients' tokens as nothing, so that they stay secret.
fn no_tokens<S: Serializer>(_: &IndexMap<String, ClientConfig>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(std::iter::empty::<(String, ())>())
}
