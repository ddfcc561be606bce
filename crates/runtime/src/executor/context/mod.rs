//! What calls run under: the options of the executor, the terms of a batch with its guards, and what a running tool
//! gets, with its progress and the calls that it makes itself.

mod guards;
mod nested;
mod options;
mod progress;
mod route;
mod run_context;
mod tool_context;

pub(super) use self::guards::rewrite;
pub use self::guards::{
    GuardBinding, GuardConfig, GuardContext, GuardMode, GuardVerdict, InputGuard, Interceptor, InterceptorDecision,
    ModelGuard,
};
pub(super) use self::nested::mark;
pub use self::nested::{InnerTaint, ModelJudge, NestedCallLimits, NestedContext};
pub use self::options::{CallDefaults, ExecutorOptions, LlmOptions, ModelRecommender, RepairOptions};
pub(super) use self::progress::{CallProgress, CallTimeLimits, Progress};
pub(super) use self::route::routed;
pub use self::run_context::{
    CallerNames, HandoffOptions, HandoffSource, PartialSinkFactory, PromotedTo, Promotion, RunContext,
};
