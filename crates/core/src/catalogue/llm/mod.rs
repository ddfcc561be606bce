//! Tools answered by a model, and tools that only fill in a text template. Pure: the
//! executor chooses models by `resolve`, runs the attempts and records them.

mod answer;
mod check;
mod prompt;
mod resolve;
mod shipped;
mod template;
mod tool;

pub use crate::definition::llm::{LlmDefinition, MaxTokens, OutputKind, TemplateDefinition, Variant};
pub use answer::{AnswerError, ExpectedJson, SHOWN_CHARACTERS, json, text, whole_items};
pub use check::DefineError;
pub use prompt::{JSON_RULE, LlmHooks, OutputHook, PrepareHook, RenderedPrompt, SchemaHook, TokensHook, WarningHook};
pub use resolve::{Resolve, models};
pub use shipped::{escape_mark, shipped};
pub use template::{TemplateError, check_template, evaluate, render};
pub use tool::{LlmTool, TemplateTool, define_llm_tool, define_template_tool, llm_definition};
