//! The names of option values on the command line.

use std::net::{IpAddr, SocketAddr};

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use toolwright::agent::{Dispatch, Format};
use toolwright::config::typed::ExposureSetting;
use toolwright::core::Profile;
use toolwright::core::model::Effort;
use toolwright::core::schema::Draft;
use toolwright::import::Source;
use toolwright::models::Api;

/// The port that examples have.
const DEFAULT_PORT: u16 = 7117;

/// What a final report is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Plain text.
    Text,
    /// Markdown.
    Markdown,
    /// A JSON value.
    Json,
    /// Text for a terminal.
    Tty,
    /// Slack's own markup.
    Slack,
}

impl From<ReportFormat> for Format {
    fn from(format: ReportFormat) -> Self {
        match format {
            ReportFormat::Text => Self::Text,
            ReportFormat::Markdown => Self::Markdown,
            ReportFormat::Json => Self::Json,
            ReportFormat::Tty => Self::Tty,
            ReportFormat::Slack => Self::Slack,
        }
    }
}

/// Who is asked by an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AskName {
    /// You, here.
    Terminal,
    /// Whoever looks there: `toolwright approvals`.
    Inbox,
    /// Nobody: it is refused.
    Nobody,
}

/// Who is asked by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServeAskName {
    /// The client's user, by elicitation; the inbox, of clients that lack it.
    #[value(alias = "elicit")]
    Client,
    /// Whoever looks there: `toolwright approvals`.
    Inbox,
    /// Nobody: it is refused.
    #[value(alias = "deny")]
    Nobody,
}

/// A policy profile by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// Read-only tools run, all others ask.
    Ask,
    /// The client has its own approval screen: everything runs that no rule denies or asks for.
    Client,
    /// As `ask`, and writes inside the workspace root run.
    Workspace,
    /// Everything runs that no rule denies or asks for.
    Trusted,
}

impl From<PolicyName> for Profile {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Ask => Self::Ask,
            PolicyName::Client => Self::Client,
            PolicyName::Workspace => Self::Workspace,
            PolicyName::Trusted => Self::Trusted,
        }
    }
}

/// A dispatch policy by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DispatchName {
    /// When they are let: the run stops and prints them, and --resume lets them run.
    Manual,
    /// When the answer is over.
    TurnEnd,
    /// As soon as each is written, if it is valid and needs no approval.
    Streaming,
}

impl From<DispatchName> for Dispatch {
    fn from(name: DispatchName) -> Self {
        match name {
            DispatchName::Manual => Self::Manual,
            DispatchName::TurnEnd => Self::TurnEnd,
            DispatchName::Streaming => Self::Streaming,
        }
    }
}

/// Reads an address to listen at.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let example =
            match (text.parse::<IpAddr>(), text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()))) {
                (Ok(ip), _) => SocketAddr::new(ip, DEFAULT_PORT).to_string(),
                (_, Some(("" | "localhost", Ok(port)))) => format!("127.0.0.1:{port}"),
                _ => format!("127.0.0.1:{DEFAULT_PORT}"),
            };
        format!("write a numeric address and a port, like {example}")
    })
}

/// Reads an effort by its name.
pub(crate) fn effort() -> impl TypedValueParser<Value = Effort> {
    PossibleValuesParser::new(Effort::ALL.map(Effort::as_str)).try_map(|name| name.parse::<Effort>())
}

/// An exposure by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExposureName {
    /// All while they are few or small, else deferred or search.
    Auto,
    /// All, whole.
    Direct,
    /// Those that fit the task.
    Pick,
    /// By the model API's own tool search, where it has one.
    Deferred,
    /// Three tools that find, describe and call the others.
    Search,
}

impl From<ExposureName> for ExposureSetting {
    fn from(name: ExposureName) -> Self {
        match name {
            ExposureName::Auto => Self::Auto,
            ExposureName::Direct => Self::Direct,
            ExposureName::Pick => Self::Pick,
            ExposureName::Deferred => Self::Deferred,
            ExposureName::Search => Self::Search,
        }
    }
}

/// What becomes of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReasoningName {
    /// It is apart from the text.
    Split,
    /// It stays in the text, with its markers.
    Keep,
}

/// A model API by its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ApiName(pub(crate) Api);

impl ApiName {
    pub(crate) fn as_str(self) -> &'static str {
        match self.0 {
            Api::OpenAiChat => "openai-chat",
            Api::OpenAiResponses => "openai-responses",
            Api::Anthropic => "anthropic",
            Api::Gemini => "gemini",
            Api::Ollama => "ollama",
        }
    }
}

impl ValueEnum for ApiName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [ApiName; Api::ALL.len()] = {
            let mut all = [ApiName(Api::OpenAiChat); Api::ALL.len()];
            let mut index = 0;
            while index < all.len() {
                all[index] = ApiName(Api::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.as_str()))
    }
}

/// A draft of JSON Schema by its number or date.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DraftName(pub(crate) Draft);

impl ValueEnum for DraftName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [DraftName; Draft::ALL.len()] = {
            let mut all = [DraftName(Draft::Draft202012); Draft::ALL.len()];
            let mut index = 0;
            while index < all.len() {
                all[index] = DraftName(Draft::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.as_str()))
    }
}

/// An import source by its name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SourceName {
    /// Another client's configuration.
    Client(Source),
    /// An OpenAPI document.
    OpenApi,
}

impl ValueEnum for SourceName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [SourceName; Source::ALL.len() + 1] = {
            let mut all = [SourceName::OpenApi; Source::ALL.len() + 1];
            let mut index = 0;
            while index < Source::ALL.len() {
                all[index] = SourceName::Client(Source::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(match self {
            Self::Client(source) => source.as_str(),
            Self::OpenApi => "openapi",
        }))
    }
}

pub(crate) fn duration(text: &str) -> Result<std::time::Duration, String> {
    match toolwright::core::duration::parse(text) {
        Ok(duration) if duration.is_zero() => Err("that leaves no time at all; give more, like 30s".into()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}
