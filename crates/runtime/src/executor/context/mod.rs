//! What calls run under: the options of the executor, the terms of a batch with its guards, and what a running tool
//! gets, with its progress and the calls that it makes itself.

mod guards;
mod nested;
mod options;
mod progress;
mod tool_context;

pub(super) use self::guards::rewrite;
pub use self::guards::{
    GuardBinding, GuardConfig, GuardContext, GuardMode, GuardVerdict, InputGuard, Interceptor, InterceptorDecision,
    ModelGuard,
};
pub(super) use self::nested::mark;
pub use self::nested::{InnerTaint, NestedCallLimits, NestedContext};
pub use self::options::{
    CallDefaults, CallerNames, ExecutorOptions, HandoffOptions, HandoffSource, LlmOptions, ModelRecommender,
    PartialsFor, PromotedTo, Promotion, RepairOptions, RunContext,
};
pub(super) use self::progress::{CallTimeLimits, Partials, Progress};
