//! The settings of the executor, with the defaults of calls such as their time limit.

use super::guards::{GuardBinding, Interceptor};
use crate::jobs::JobManager;
use crate::models::Budgets;
use crate::outputs::cache::ResponseCache;
use crate::queue::Queues;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use toolwright_core::context::Services;
use toolwright_core::duration;
use toolwright_core::model::{Effort, PriceTable, RequestAllowance};
use toolwright_core::output::DEFAULT_MAX_WHOLE;
use toolwright_core::plan::DEFAULT_CALLS_PER_TURN;
use toolwright_core::setting::TimeSpan;
use toolwright_core::store::{ApprovalStore, LedgerMode, LedgerStore};
use toolwright_core::tool_id::ToolId;

/// The default number of calls that one call may make.
const DEFAULT_INNER_CALLS: usize = 100;

/// What holds for calls where neither tool nor server says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CallDefaults {
    /// Time limit of one call. It applies where neither tool nor server sets one.
    #[serde(with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub tool_timeout: Duration,
    /// How long a call may run without a progress report. It applies where neither tool nor server sets a limit.
    /// Default: only `tool_timeout` counts. Changing it needs a restart.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSpan>")]
    pub idle_timeout: Option<Duration>,
    /// Longest text of a result, in bytes; the rest goes to the output store. Default: 12288 in agent runs, 49152 for
    /// MCP clients and programs. For these a server can announce a higher limit of a tool
    /// (`anthropic/maxResultSizeChars`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256))]
    pub tool_response_max_bytes: Option<usize>,
    /// Largest result that is never cut, in bytes of JSON: structured results of tools with an output schema, and what
    /// MCP clients get from `resources/read`, `prompts/get` and the like. A larger one is an error. Changing it needs a
    /// restart.
    #[schemars(range(min = 4096))]
    pub whole_result_max_bytes: usize,
    /// Calls that may run in one turn of a model.
    #[schemars(range(min = 1))]
    pub calls_per_turn: usize,
    /// Time after which a call that still runs becomes a background job. It applies where neither tool nor server sets
    /// one. Default: never. Changing it needs a restart.
    #[serde(with = "duration::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSpan>")]
    pub auto_background_after: Option<Duration>,
    /// What happens to calls while the ledger cannot be written, for example on a full disk. `best_effort`: they run;
    /// the log, `/metrics` and `/ready` report the failure. `required`: they are refused, and no call runs before its
    /// row is on disk. Changing it needs a restart.
    pub ledger: LedgerMode,
}

impl Default for CallDefaults {
    fn default() -> Self {
        Self {
            tool_timeout: Duration::from_secs(300),
            idle_timeout: None,
            tool_response_max_bytes: None,
            whole_result_max_bytes: DEFAULT_MAX_WHOLE,
            calls_per_turn: DEFAULT_CALLS_PER_TURN,
            auto_background_after: None,
            ledger: LedgerMode::BestEffort,
        }
    }
}

/// The model that repairs the arguments of invalid calls. Each attempt is a request to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairOptions {
    /// The model, `provider/model`; asked through the client of the services.
    pub model: String,
    /// Limit of the request.
    pub timeout: Duration,
}

impl RepairOptions {
    /// Uses `model`, with a limit of one minute.
    #[must_use]
    pub fn by(model: impl Into<String>) -> Self {
        Self { model: model.into(), timeout: Duration::from_secs(60) }
    }
}

/// Settings and stores of the executor.
pub struct ExecutorOptions {
    /// Call settings for which nothing nearer has a value.
    pub defaults: CallDefaults,
    /// How long a cancelled or timed-out call may take to stop by itself before it is abandoned.
    pub grace: Duration,
    /// How many calls one call may make in its turn.
    pub inner_calls: usize,
    /// The queues.
    pub queues: Queues,
    /// The folder of lock files, by which an exclusive call keeps other processes out of its workspace; `None`:
    /// exclusive calls wait only for calls of this executor.
    pub lock_dir: Option<PathBuf>,
    /// The services of running tools.
    pub services: Arc<Services>,
    /// The ledger.
    pub ledger: Arc<dyn LedgerStore>,
    /// Standing approvals.
    pub approvals: Arc<dyn ApprovalStore>,
    /// Repairs the arguments of invalid calls; `None`: the caller gets the errors.
    pub repair: Option<RepairOptions>,
    /// May skip or change calls, in order.
    pub interceptors: Vec<Arc<dyn Interceptor>>,
    /// Input guards, in order.
    pub guards: Vec<GuardBinding>,
    /// The response cache.
    pub cache: Option<Arc<dyn ResponseCache>>,
    /// The jobs; without them every call is awaited, regardless of its tool's mode.
    pub jobs: Option<Arc<JobManager>>,
    /// The prices of models.
    pub prices: PriceTable,
    /// The budgets of principals for models; `None`: no budgets.
    pub budgets: Option<Budgets>,
    /// Models that benchmarks recommend for an LLM-backed tool, best first; `provider/model`.
    pub compat: ModelRecommender,
    /// The default model of LLM-backed tools, `provider/model`; without it, the run's model.
    pub default_model: Option<String>,
}

/// Returns the models that are recommended for a tool.
pub type ModelRecommender = Arc<dyn Fn(&ToolId) -> Vec<String> + Send + Sync>;

impl ExecutorOptions {
    /// Creates options with defaults for the given services and stores.
    #[must_use]
    pub fn new(services: Arc<Services>, ledger: Arc<dyn LedgerStore>, approvals: Arc<dyn ApprovalStore>) -> Self {
        Self {
            defaults: CallDefaults::default(),
            grace: Duration::from_secs(2),
            inner_calls: DEFAULT_INNER_CALLS,
            queues: Queues::default(),
            lock_dir: None,
            services,
            ledger,
            approvals,
            repair: None,
            interceptors: Vec::new(),
            guards: Vec::new(),
            cache: None,
            jobs: None,
            prices: PriceTable::default(),
            budgets: None,
            compat: Arc::new(|_| Vec::new()),
            default_model: None,
        }
    }
}

/// How a caller wants LLM-backed tools to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LlmOptions {
    /// The only model to ask, `provider/model`, instead of the tool's models.
    pub model: Option<Arc<str>>,
    /// The mode of asking, for tools whose variants have modes.
    pub mode: Option<Arc<str>>,
    /// The allowance that all attempts at their requests draw on.
    pub requests: RequestAllowance,
    /// The reasoning effort, instead of the tool's.
    pub effort: Option<Effort>,
    /// The name of the variant that is asked. A call sets it for its requests.
    pub variant: Option<Arc<str>>,
    /// The model of tools for which neither benchmarks nor the tool nor the executor's options name one.
    pub default: Option<Arc<str>>,
}
