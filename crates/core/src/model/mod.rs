//! Models: conversations in Toolwright's form, the client that answers them, and costs. Wire formats are in
//! `toolwright-models`; this module is independent of any API.

mod budget;
pub mod call_meta;
mod client;
pub mod embedding;
pub mod exposure;
mod message;
mod native;
mod prices;
mod recording;
mod retry;
mod settings;

pub use budget::{
    Bound, BudgetedClient, ModelBounds, ModelBudget, ModelBudgetReservation, ModelSpending, RequestAllowance, cost,
    used_by,
};
pub use call_meta::{CallMeta, Route};
pub use client::{
    AuxiliaryRequest, AuxiliarySender, IgnoreModelEvents, ModelCard, ModelClient, ModelError, ModelErrorKind,
    ModelEvent, ModelEvents, NoModel, Usability,
};
pub(crate) use message::definition_bytes;
pub use message::{
    CallResult, FRAME_TOKENS, Message, ModelRequest, ModelResponse, NonFunctionCall, OpaqueData, OutputFormat,
    RawToolCall, RequestTool, StopReason, ToolChoice, ToolVisibility, shown_tokens, usable_window,
};
pub use native::{Artifact, Citation, FetchedFile, NativeOutput, NativeTool, NativeUse};
pub(crate) use prices::is_zero;
pub use prices::{Cost, MAX_TOKENS, PriceTable, Prices, Usage};
pub use recording::{
    MAX_RECORDED_LINE, MAX_RECORDING, NotRecorded, RECORDED_OF, RECORDING_VERSION, REPLAY, RecordedError, RecordedLine,
    is_replay, recorded_of,
};
pub use retry::{
    MAX_REFUSED_FORMS, ModelPriority, RateLimitWindow, RateLimits, RequestProgress, RetryConfig, pause, retry,
};
pub use settings::{
    Effort, MAX_SEED, MAX_STOP, MAX_THINKING_TOKENS, ModelSettings, PromptCache, PromptReuse, RequestSettings,
    UnknownEffort,
};
