//! A scripted model server that speaks like the real ones: OpenAI Chat Completions and Responses, Anthropic Messages,
//! Gemini and Ollama, streaming and not.
//!
//! A script is a list of API-independent [`Turn`]s; each request takes the next one. Requests are checked as strictly
//! as by the real APIs and refused with the same messages. Every request is recorded, so that tests can check the bytes
//! sent.

mod apis;
mod check;
mod cli;
mod counting;
mod fault;
mod recorded_request;
mod script;
mod sending;
mod server;
mod talk;
#[cfg(test)]
mod tests;

use apis::{anthropic, gemini, ollama, openai, responses};

pub use cli::{Options, run};
pub use counting::tokens as count_tokens;
pub use recorded_request::{RecordedRequest, ToolResult};
pub use script::{Answer, Fault, Reply, Script, Stop, Tokens, Turn};
pub use server::{Recorded, ScriptedModel};
pub use talk::{LongTalk, MEMORY_MODEL, STEP_TOOL, Tally};

/// The API of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireApi {
    /// `POST /v1/chat/completions`
    OpenAi,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Anthropic,
    /// `POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent`, and the same under `/v1`
    Gemini,
    /// `POST /api/chat`
    Ollama,
}

impl WireApi {
    /// All APIs.
    pub const ALL: [Self; 5] = [Self::OpenAi, Self::Responses, Self::Anthropic, Self::Gemini, Self::Ollama];

    /// Checks the body of a request as the server does.
    ///
    /// # Errors
    /// The reason why the API would refuse it.
    pub fn check(self, body: &serde_json::Value) -> Result<(), String> {
        match self {
            Self::OpenAi => openai::check(body),
            Self::Responses => responses::check(body),
            Self::Anthropic => anthropic::check(body),
            Self::Gemini => gemini::check(body),
            Self::Ollama => ollama::check(body),
        }
    }

    /// Encodes a reply to the `number`th request.
    fn speak(self, asked: &RecordedRequest, reply: &Reply, number: usize) -> sending::Sent {
        let speak = match self {
            Self::OpenAi => openai::speak,
            Self::Responses => responses::speak,
            Self::Anthropic => anthropic::speak,
            Self::Gemini => gemini::speak,
            Self::Ollama => ollama::speak,
        };
        speak(asked, reply, number)
    }

    fn error_body(self, status: u16, code: &str, message: &str) -> serde_json::Value {
        let body = match self {
            Self::OpenAi | Self::Responses => openai::error_body,
            Self::Anthropic => anthropic::error_body,
            Self::Gemini => gemini::error_body,
            Self::Ollama => ollama::error_body,
        };
        body(status, code, message)
    }

    /// Returns the error event or line that ends a stream early.
    fn error_frame(self) -> String {
        match self {
            Self::OpenAi => openai::error_frame("the server had an error"),
            Self::Responses => responses::error_frame("the server had an error"),
            Self::Anthropic => anthropic::error_frame("Overloaded"),
            Self::Gemini => gemini::error_frame("The model is overloaded"),
            Self::Ollama => ollama::error_frame("model runner has unexpectedly stopped"),
        }
    }

    /// Returns status and message of an overloaded server.
    fn overload(self) -> (u16, &'static str) {
        match self {
            Self::OpenAi | Self::Responses => (503, "The engine is currently overloaded, please try again later"),
            Self::Anthropic => (529, "Overloaded"),
            Self::Gemini => (503, "The model is overloaded. Please try again later."),
            Self::Ollama => (503, "server busy, please try again.  maximum pending requests exceeded"),
        }
    }
}
