//! The values of options on the command line: their names, and their help.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use toolwright::Ask;
use toolwright::agent::{Dispatch, Format};
use toolwright::core::Profile;
use toolwright::core::exposure::{Exposure, ExposureSetting};
use toolwright::core::model::Effort;
use toolwright::core::schema::Draft;
use toolwright::import::Source;
use toolwright::models::Api;
use toolwright::textcalls::Reasoning;

/// The port in examples.
const DEFAULT_PORT: u16 = 7117;

/// Parses one of these values by its name. Each has a name, a help text and the value.
pub(crate) fn one_of<T: Copy + Debug + Send + Sync + 'static>(
    values: impl IntoIterator<Item = (&'static str, &'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let values: Vec<_> = values.into_iter().collect();
    let shown = |(name, help, _): &(&'static str, &'static str, T)| match *help {
        "" => PossibleValue::new(*name),
        help => PossibleValue::new(*name).help(help),
    };
    PossibleValuesParser::new(values.iter().map(shown)).try_map(move |given| {
        let found = values.iter().find(|(name, _, _)| *name == given).map(|(_, _, value)| *value);
        found.ok_or("there is no such value")
    })
}

/// The format of a final report.
pub(crate) fn report_format() -> impl TypedValueParser<Value = Format> {
    one_of([
        ("text", "Plain text", Format::Text),
        ("markdown", "Markdown", Format::Markdown),
        ("json", "A JSON value", Format::Json),
        ("tty", "Text for a terminal", Format::Tty),
        ("slack", "Slack's own markup", Format::Slack),
    ])
}

/// The recipient of questions of an agent or a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskName {
    Terminal,
    Inbox,
    Nobody,
}

/// Parses the recipient of questions of an agent or a call.
pub(crate) fn ask() -> impl TypedValueParser<Value = AskName> {
    one_of([
        ("terminal", "You, in this terminal", AskName::Terminal),
        ("inbox", "Whoever answers `toolwright approvals`", AskName::Inbox),
        ("nobody", "Nobody: the call is denied", AskName::Nobody),
    ])
}

/// Parses the recipient of questions of the server.
pub(crate) fn serve_ask() -> impl TypedValueParser<Value = Ask> {
    one_of([
        ("client", "The client's user, by elicitation; else the inbox", Ask::Client),
        ("inbox", "Whoever answers `toolwright approvals`", Ask::Inbox),
        ("nobody", "Nobody: the call is denied", Ask::Nobody),
    ])
}

/// A policy profile.
pub(crate) fn profile_name() -> impl TypedValueParser<Value = Profile> {
    one_of([
        ("ask", "Read-only tools run; all others need approval", Profile::Ask),
        (
            "client",
            "Everything runs that no rule denies or asks for; the client has its own approval screen",
            Profile::Client,
        ),
        ("workspace", "As `ask`, but writes inside the workspace root also run", Profile::Workspace),
        ("trusted", "Everything runs that no rule denies or asks for", Profile::Trusted),
    ])
}

/// When the calls of an answer start.
pub(crate) fn dispatch() -> impl TypedValueParser<Value = Dispatch> {
    one_of([
        ("manual", "The run stops and prints them, and --resume runs them", Dispatch::Manual),
        ("turn-end", "When the answer is complete", Dispatch::TurnEnd),
        ("streaming", "As soon as each is written, if it is valid and needs no approval", Dispatch::Streaming),
    ])
}

/// How tools are exposed to a model.
pub(crate) fn exposure() -> impl TypedValueParser<Value = ExposureSetting> {
    one_of([
        ("auto", "All tools if they are few or small, else `deferred` or `search`", ExposureSetting::Auto),
        ("direct", "All tools with full definitions", ExposureSetting::Fixed(Exposure::Direct)),
        ("pick", "The tools that fit the task", ExposureSetting::Fixed(Exposure::Pick)),
        (
            "deferred",
            "Tools that the model API's own tool search finds, if it has one",
            ExposureSetting::Fixed(Exposure::Deferred),
        ),
        ("search", "Three tools that find, describe and call the others", ExposureSetting::Fixed(Exposure::Search)),
    ])
}

/// What happens to reasoning in a text.
pub(crate) fn reasoning() -> impl TypedValueParser<Value = Reasoning> {
    one_of([
        ("split", "Separate it from the text", Reasoning::Split),
        ("keep", "Keep it in the text, with its markers", Reasoning::Keep),
    ])
}

/// The model APIs by their names on the command line.
pub(crate) const API_NAMES: [(&str, Api); 5] = [
    ("openai-chat", Api::OpenAiChat),
    ("openai-responses", Api::OpenAiResponses),
    ("anthropic", Api::Anthropic),
    ("gemini", Api::Gemini),
    ("ollama", Api::Ollama),
];

/// A model API.
pub(crate) fn api() -> impl TypedValueParser<Value = Api> {
    one_of(API_NAMES.map(|(name, api)| (name, "", api)))
}

/// A draft of JSON Schema, by its number or date.
pub(crate) fn draft() -> impl TypedValueParser<Value = Draft> {
    one_of(Draft::ALL.map(|draft| (draft.as_str(), "", draft)))
}

/// A model's reasoning effort.
pub(crate) fn effort() -> impl TypedValueParser<Value = Effort> {
    one_of(Effort::ALL.map(|effort| (effort.as_str(), "", effort)))
}

/// The source of `import`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ImportSource {
    /// Another client's configuration.
    Client(Source),
    /// An OpenAPI document.
    OpenApi,
}

/// The source of `import`.
pub(crate) fn import_source() -> impl TypedValueParser<Value = ImportSource> {
    let clients = Source::ALL.map(|source| (source.as_str(), "", ImportSource::Client(source)));
    one_of(clients.into_iter().chain([("openapi", "", ImportSource::OpenApi)]))
}

/// An address to listen at.
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

/// A time that is not zero.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match toolwright::core::duration::parse(text) {
        Ok(duration) if duration.is_zero() => Err("that leaves no time at all; give more, like 30s".into()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

/// An amount of money.
pub(crate) fn usd(text: &str) -> Result<f64, String> {
    let usd = text.strip_prefix('$').unwrap_or(text).parse::<f64>().ok();
    usd.filter(|usd| usd.is_finite() && *usd >= 0.0).ok_or_else(|| "an amount of US dollars, like 0.5".to_owned())
}

/// A score.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a score is a number from 0 to 1".into()),
    }
}
