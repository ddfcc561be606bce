//! Agents: models that work with tools.
//!
//! ```no_run
//! use toolwright::{Toolwright, tool};
//!
//! /// Adds two numbers.
//! #[tool(namespace = "math", effects(read_only, open_world = false))]
//! async fn add(a: i64, b: i64) -> String {
//!     (a + b).to_string()
//! }
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder().tool(Add).mcp_stdio("time", "uvx", ["mcp-server-time"]).build().await?;
//! let report = tw.agent("openai/gpt-5-mini").task("What is 2 + 40, and what time is it in Oslo?").run().await?;
//! println!("{}", report.answer);
//! # tw.shut_down().await;
//! # Ok(()) }
//! ```
//!
//! # Models
//!
//! A model is `provider/model`. `openai`, `anthropic` and `gemini` are known if the environment has their key
//! (`OPENAI_API_KEY`, …), `ollama` if it runs; [`Builder::model_endpoint`](crate::Builder::model_endpoint) names
//! others. Models without function calling get tools as text.
//!
//! For tests, [`Builder::model_client`](crate::Builder::model_client) lets a model of the program answer, and
//! `replay:FILE` answers from a recording:
//!
//! ```
//! use toolwright::core::model::{ModelError, ModelEvents, ModelRequest, ModelResponse};
//! use toolwright::core::{Cancel, ModelClient};
//! use toolwright::{Toolwright, async_trait};
//!
//! struct Polite;
//!
//! #[async_trait]
//! impl ModelClient for Polite {
//!     async fn complete(
//!         &self,
//!         _model: &str,
//!         _request: &ModelRequest,
//!         _events: &dyn ModelEvents,
//!         _cancel: &Cancel,
//!     ) -> Result<ModelResponse, ModelError> {
//!         Ok(ModelResponse { text: "Good morning.".to_owned(), ..ModelResponse::default() })
//!     }
//! }
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder().model_client("test", Polite).build().await?;
//! let report = tw.agent("test/polite").task("Say something.").run().await?;
//! assert_eq!(report.answer, "Good morning.");
//! # tw.shut_down().await;
//! # Ok(()) }
//! ```
//!
//! # What it may do
//!
//! An agent has the profile [`Ask`](crate::Profile::Ask) by default: it reads without asking, and asks about everything
//! else. See [`policy`](super::policy). [`Agent::tools`](crate::Agent::tools) limits it to some tools,
//! [`Agent::limits`](crate::Agent::limits) to turns, calls, time and tokens:
//!
//! ```no_run
//! # use toolwright::{ApprovalDecision, ApprovalRequest, Toolwright, Limits};
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let tw = Toolwright::builder().builtins(true).build().await?;
//! let report = tw
//!     .agent("anthropic/claude-sonnet-4-5")
//!     .system("You mend tests.")
//!     .task("Mend the failing test.")
//!     .tools(["fs__*", "shell__bash"])
//!     .limits(Limits { turns: 20, tokens: Some(200_000), ..Limits::default() })
//!     .approver(|request: &ApprovalRequest| {
//!         println!("{} {}", request.tool, request.arguments);
//!         ApprovalDecision::Approve
//!     })
//!     .on_event(|event| println!("{event:?}"))
//!     .run()
//!     .await?;
//! # let _ = report;
//! # Ok(()) }
//! ```
//!
//! # Reports
//!
//! The [`RunReport`](crate::RunReport) contains the answer, how the run ended, every call and the tokens used. A
//! failure of a model or tool is not an error of the program: the status shows it.
//! [`Agent::events`](crate::Agent::events) streams the events of the run.
//!
//! # Conversations, and runs that continue later
//!
//! [`Agent::conversation`](crate::Agent::conversation) sends one message after another. With
//! [`Builder::state_dir`](crate::Builder::state_dir) a run is saved after every step, and
//! [`Agent::resume`](crate::Agent::resume) continues it in another process: after a crash, or when a person has
//! decided.
