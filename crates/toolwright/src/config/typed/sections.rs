//! The sections that hold settings rather than tools.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::policy::{Condition, MAX_SOURCE};
use toolwright_core::store::LedgerMode;

use toolwright_core::setting::{TimeSpan, Written};

/// `defaults`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    /// Absolute limit of one call, where neither tool nor server sets one.
    pub tool_timeout: TimeSpan,
    /// How long a call may go on without a report of progress, where neither tool nor server says so. Default:
    /// as long as it may take at all. Changing it needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<TimeSpan>,
    /// Cap on the text of a result, in bytes; what is over it goes to the output store. Default: 12288 in runs of
    /// models, 49152 for MCP clients and programs, who get more of a tool whose server announces it
    /// (`anthropic/maxResultSizeChars`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256))]
    pub tool_response_max_bytes: Option<usize>,
    /// Cap on what is passed on whole or not at all, in bytes of JSON: structured results of tools with an output
    /// schema, and what MCP clients get of `resources/read`, `prompts/get` and the like. What is over it is an error
    /// that says so. Changing it needs a restart.
    #[schemars(range(min = 4096))]
    pub whole_result_max_bytes: usize,
    /// Calls that may run in one turn of a model.
    #[schemars(range(min = 1))]
    pub calls_per_turn: usize,
    /// When the calls of a model's answer start, in `run` and `chat`.
    pub dispatch: DispatchSetting,
    /// Tools of the agent itself that `run` and `chat` show besides. A model may call them in any case;
    /// `agent__final_report` is shown by `run --format` and `--output-schema`.
    pub agent_tools: Vec<AgentToolSetting>,
    /// The model, `provider/model`, that is asked once to mend the arguments of a call that are not valid.
    /// Each attempt is a request to it; without one, whoever made the call is told what is wrong. Changing
    /// it needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair_model: Option<String>,
    /// How long a call keeps its caller waiting before it goes on as a background job, where neither tool nor server
    /// says so. Default: as long as it takes. Changing it needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_background_after: Option<TimeSpan>,
    /// What happens to calls while the ledger cannot be written, as on a full disk: with `best_effort` they run, and
    /// the log, `/metrics` and `/ready` tell; with `required` they are refused, and no call runs before a row for it is on
    /// disk. Changing it needs a restart.
    pub ledger: LedgerMode,
    /// How many MCP servers start at once.
    #[schemars(range(min = 1, max = 256))]
    pub mcp_init_concurrency: usize,
    /// Logs the messages exchanged with MCP servers.
    #[schemars(extend("x-unsupported" = true))]
    pub trace_mcp: bool,
    /// Whether the built-in tools (`fs`, `shell`, `web`) are in the catalogue.
    pub builtins: bool,
    /// Built-in tools that are offered, as globs on wire names (`fs__*`); empty means all.
    pub builtins_allowed: Vec<String>,
    /// Built-in tools that are not offered, as globs; counts after `builtins_allowed`.
    pub builtins_denied: Vec<String>,
    /// What the `fs` tools do about paths outside the workspace root.
    pub path_guard: PathGuardSetting,
    /// Environment variables, as globs, that commands of `shell` and MCP servers do not inherit; besides
    /// Toolwright's own and the keys of model APIs. A server's `env` gives it what it is to have.
    pub withheld_env: Vec<String>,
}

/// When calls start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DispatchSetting {
    /// When they are let: `run` stops and prints them, `run --resume` lets them run.
    Manual,
    /// When the answer is over.
    #[default]
    TurnEnd,
    /// As soon as each is written, if it is valid and needs no approval; the others when the answer is over.
    Streaming,
}

/// A tool of the agent itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentToolSetting {
    /// `agent__batch`: several calls as one.
    Batch,
    /// `agent__task_status`: how far the task is.
    TaskStatus,
}

/// What happens to a path outside the workspace root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathGuardSetting {
    /// The call is not permitted.
    #[default]
    Block,
    /// The call runs; it is logged and noted in the result.
    Warn,
    /// The call runs.
    Off,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            tool_timeout: TimeSpan::seconds(300),
            idle_timeout: None,
            tool_response_max_bytes: None,
            whole_result_max_bytes: toolwright_core::output::DEFAULT_MAX_WHOLE,
            calls_per_turn: toolwright_core::plan::DEFAULT_CALLS_PER_TURN,
            dispatch: DispatchSetting::TurnEnd,
            agent_tools: Vec::new(),
            repair_model: None,
            auto_background_after: None,
            ledger: LedgerMode::BestEffort,
            mcp_init_concurrency: 8,
            trace_mcp: false,
            builtins: true,
            builtins_allowed: Vec::new(),
            builtins_denied: Vec::new(),
            path_guard: PathGuardSetting::Block,
            withheld_env: Vec::new(),
        }
    }
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Calls that run at once.
    #[schemars(range(min = 1))]
    pub concurrent: usize,
    /// Calls that may wait, background calls among them; one more fails at once, or the newest of the lowest priority
    /// where its own is higher. With 0 all fail that cannot run at once. Default 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<usize>,
    /// How long a call may wait. Default 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_timeout: Option<TimeSpan>,
    /// Calls that may start in any minute. Default: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub per_minute: Option<usize>,
}

/// `policy`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySection {
    /// What happens where no rule matches. `--policy` beats it; without either, `run` asks in a
    /// terminal and `serve` leaves it to the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<PolicyProfile>,
    /// In order; the first rule that matches decides. Rules of nearer files come first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<PolicyRule>,
    /// What you say of tools whose servers say nothing. Of several on one tool, each effect is that of the first
    /// which sets it, and all tags count. Those of nearer files come first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<PolicyTool>,
    /// Models that judge calls before the rules do, in order. Changing them needs a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<PolicyGuard>,
}

/// A model that judges calls: it lets them go on to the rules, denies them, has a person asked, or changes their
/// arguments. If it does not answer, they are denied. Every selector that is given must match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyGuard {
    /// What it is called in messages and in the account.
    pub name: String,
    /// The model, `provider/model`.
    pub model: String,
    /// What it is to go by, in words.
    pub instructions: String,
    /// How long it may take. Default 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeSpan>,
    /// Glob on the tool's id, with or without its version (`fs:write`, `github:*`), or on its name (`fs__write`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Glob on the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// A tag the tool has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Effects the tool has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<EffectFlags>,
    /// A role the caller has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What the call must be like, as an expression in CEL; see `policy.rules`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("maxLength" = MAX_SOURCE, "format" = "condition"))]
    pub when: Option<Condition>,
}

/// A named default decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyProfile {
    /// Read-only tools run, all others ask.
    Ask,
    /// The client has its own approval screen.
    Client,
    /// As `ask`, and writes inside the workspace root run.
    Workspace,
    /// Everything runs that no rule denies or asks for.
    Trusted,
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyEffect {
    /// Run.
    Allow,
    /// Refuse.
    Deny,
    /// Ask a person.
    Ask,
}

/// One rule: every selector that is given must match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// What it does.
    pub effect: PolicyEffect,
    /// Glob on the tool's id, with or without its version (`fs:write`, `github:*`), or on its name (`fs__write`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Glob on the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// A tag the tool has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Effects the tool has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<EffectFlags>,
    /// A role the caller has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What the call must be like, as an expression in CEL over `args`, `tool`, `effects`, `principal`,
    /// `workspace` and `request`, like `has(args.amount) && args.amount > 100`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("maxLength" = MAX_SOURCE, "format" = "condition"))]
    pub when: Option<Condition>,
    /// Said when the rule decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What you say of tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyTool {
    /// Glob on the tool's id, with or without its version (`mail:get_*`).
    pub tool: String,
    /// What it may do. Rules and profiles go by it as if the tool's server were trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<EffectFlags>,
    /// Tags, besides its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// What a tool may do, hint by hint. In a rule, one that is not given does not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EffectFlags {
    /// It only reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// It may destroy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destructive: Option<bool>,
    /// Twice is the same as once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// It reaches beyond this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_world: Option<bool>,
}

/// One place that answers model requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelEndpoint {
    /// The API it speaks.
    pub api: ModelApi,
    /// Base address, like `https://api.openai.com/v1`.
    pub base_url: String,
    /// Key, best as `${VAR}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// Further headers.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub headers: IndexMap<String, Written>,
}

/// A model API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelApi {
    /// `OpenAI` Chat Completions, and whatever is compatible with it.
    OpenaiChat,
    /// `OpenAI` Responses.
    OpenaiResponses,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini `generateContent`.
    Gemini,
    /// Ollama.
    Ollama,
}

/// `outputs`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OutputsSection {
    /// Folder of stored outputs, relative to the workspace root. Default: `outputs` in the state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Bytes of all stored outputs together; the oldest go first.
    #[schemars(range(min = 65_536))]
    pub max_bytes: u64,
    /// How long an output is kept.
    pub max_age: TimeSpan,
    /// Model that output__extract asks, `provider/model`. Default: the model of the run, else `models.default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extract_model: Option<String>,
    /// Requests that one call of output__extract may make.
    #[schemars(range(min = 1))]
    pub extract_max_requests: u32,
    /// Tokens of all of these, questions and answers. What a question has is estimated before it is asked, and put right by
    /// what its API reports.
    pub extract_max_tokens: u64,
    /// What all of these may cost, estimated likewise, in US dollars; the model needs `models.<name>.prices` then. Default: any amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub extract_max_cost: Option<f64>,
}

impl Default for OutputsSection {
    fn default() -> Self {
        Self {
            dir: None,
            max_bytes: 1 << 30,
            max_age: TimeSpan::seconds(30 * 24 * 3600),
            extract_model: None,
            extract_max_requests: 150,
            extract_max_tokens: 2_000_000,
            extract_max_cost: None,
        }
    }
}

/// `server`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSection {
    /// Address of `serve --http` where the flag gives none. Changing it needs a restart.
    pub http: String,
    /// Bearer token that HTTP clients must send; needed on addresses other than loopback.
    /// `--token` and `TOOLWRIGHT_TOKEN` beat it. Changing it needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Longest tool name offered, in characters: some clients drop server plus tool names over 60.
    #[schemars(range(min = 16, max = 64))]
    pub max_tool_name: usize,
    /// In which form the schemas of arguments are listed: `portable`, which every client takes (no `anyOf` and its like at the
    /// root, legal names, no tuples; `toolwright tools show` says what differs), or `raw`, as their sources give them. Calls
    /// are checked against the tool's own schema either way. Changing it needs a restart.
    pub schemas: SchemaForm,
    /// How long running calls may go on once `serve` is told to end (SIGTERM, Ctrl-C), before those that may be
    /// repeated are left to the next process as jobs and the others are cancelled. Whoever ends the process otherwise
    /// should wait longer. Over stdio a client that closes its end is gone: then it is two seconds at the most, and what
    /// runs longer is cancelled. Changing it needs a restart.
    pub shutdown_grace: TimeSpan,
    /// Whether clients are offered `agent__batch`, which runs several tools as one call: to a client's own
    /// approval screen it is one call that may do anything. Changing it needs a restart.
    pub batch: bool,
    /// Host names, besides loopback, that requests may be addressed to. Changing it needs a restart.
    pub allowed_hosts: Vec<String>,
    /// Web origins (`https://host[:port]`) whose pages may send requests and read the answers; none by default. They
    /// send a token as other clients do. Changing it needs a restart.
    pub allowed_origins: Vec<String>,
    /// HTTP clients with tokens of their own, by name. Where there are any, nobody gets in without a token.
    /// Changing it needs a restart.
    pub tokens: IndexMap<String, ClientToken>,
}

/// One client under `server.tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientToken {
    /// What it sends as `Authorization: Bearer TOKEN`.
    pub token: String,
    /// Its roles: a tool or view that is for certain roles needs one of them.
    #[serde(default)]
    pub roles: Vec<String>,
    /// The servers and views that it may reach at `/mcp/{name}`. Without the key it reaches all that speaks MCP; the
    /// HTTP API is for `server.token` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub views: Option<Vec<String>>,
}

/// One view: a part of the catalogue at an address of its own, `/mcp/{name}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct View {
    /// Tools in it, as globs on the names that clients see (`github__*`). A server's resources stand there as
    /// `github__resources_read`, its prompts as `github__prompts_get`, both with their lists. Default: all.
    pub allow: Vec<String>,
    /// Tools that are not, as globs.
    pub deny: Vec<String>,
    /// How its tools are put before clients: `direct` or `search`. Default: as `serve --expose` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expose: Option<ViewExposure>,
    /// In which form its schemas are listed: `portable` or `raw`. Default: as `server.schemas` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schemas: Option<SchemaForm>,
    /// The profile that decides where no rule of `policy` does. Default: the one of the whole server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<PolicyProfile>,
    /// Clients that may use it, by role. Default: all.
    pub roles: Vec<String>,
}

/// How a view's tools are put before clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ViewExposure {
    /// All are listed.
    Direct,
    /// Three tools that find, describe and call them are.
    Search,
}

/// In which form the schemas of arguments are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SchemaForm {
    /// In one that every client takes.
    #[default]
    Portable,
    /// As their sources give them.
    Raw,
}

impl Default for ServerSection {
    fn default() -> Self {
        Self {
            http: "127.0.0.1:7117".into(),
            token: None,
            max_tool_name: 48,
            schemas: SchemaForm::default(),
            shutdown_grace: TimeSpan::seconds(10),
            batch: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tokens: IndexMap::new(),
        }
    }
}

/// `web`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WebSection {
    /// Lets requests reach private, loopback and link-local addresses.
    pub allow_private: bool,
    /// Hosts that may be reached whatever they resolve to: `host` or `host:port`, with `*` and `?`.
    pub allowed_hosts: Vec<String>,
    /// Bytes of a page that `web__fetch` reads unless a call asks for another number.
    #[schemars(range(min = 256))]
    pub max_bytes: usize,
    /// Limit of one `web__fetch`.
    pub timeout: TimeSpan,
}

impl Default for WebSection {
    fn default() -> Self {
        Self { allow_private: false, allowed_hosts: Vec::new(), max_bytes: 2 << 20, timeout: TimeSpan::seconds(30) }
    }
}
