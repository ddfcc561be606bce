//! What calls run under: the options of the executor, the terms of a batch with its guards, and what a running tool
//! gets, with its progress and the calls that it makes itself.

mod guards;
mod nested;
mod options;
mod progress;
mod tool_context;

pub(super) use self::guards::rewrite;
pub use self::guards::{
    Before, GuardBinding, GuardConfig, GuardContext, Guarded, InputGuard, Interceptor, ModelGuard, Verdict,
};
pub(super) use self::nested::mark;
pub use self::nested::{InnerTaint, Nested, NestedCallLimits};
pub use self::options::{
    CallDefaults, CallerNames, ExecutorOptions, HandedOver, HandoffOptions, LlmOptions, PartialsFor, PromotedTo,
    Promotion, Recommends, RepairOptions, RunContext,
};
pub(super) use self::progress::{Limits, Partials, Progress};
