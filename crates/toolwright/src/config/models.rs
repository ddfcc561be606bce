//! From a written model endpoint to one that can be asked.

use std::path::PathBuf;

use indexmap::IndexMap;
use toolwright_core::Secret;
use toolwright_core::model::RetryOptions;
use toolwright_models::{Api, Endpoint, ModelOverrides, Timeouts, ToolFormat};
use toolwright_runtime::{QueueSpec, TrafficTerms, default_model_queue};
use toolwright_textcalls as textcalls;

use super::fill::{Holds, Scope};
use super::node::Member;
use super::problem::{At, Problem, Severity};
use super::typed::{ExposureSetting, ModelApi, ModelEndpoint, ModelOverrides as WrittenOverrides, Written};

/// Resolves one entry; `None`, with the reason among the problems, when it cannot be used.
pub(crate) fn resolve(member: &Member, written: &ModelEndpoint, scope: &mut Scope<'_>) -> Option<Endpoint> {
    let (at, entry) = (&member.at, format!("models.endpoints.{}", member.key));
    let before = scope.problems.len();
    if member.key.is_empty() || member.key.contains('/') {
        scope.leave_out(at, &entry, "a provider's name may not be empty or contain `/`".into(), "rename it");
    }
    let mut filled = written.clone();
    scope.fill(at, &format!("{entry}.base_url"), &mut filled.base_url, Holds::Setting);
    if let Some(key) = &mut filled.api_key {
        scope.fill(at, &format!("{entry}.api_key"), key, Holds::OwnKey("api_key"));
    }
    for (name, Written(value)) in &mut filled.headers {
        scope.fill(at, &format!("{entry}.headers.{name}"), value, Holds::OwnKey(name));
    }
    if let Err(error) = url::Url::parse(&filled.base_url) {
        scope.leave_out(
            at,
            &format!("{entry}.base_url"),
            format!("it is not an address: {error}"),
            "write it like https://host/v1",
        );
    }
    if scope.problems.len() > before {
        return None;
    }
    let api = match filled.api {
        ModelApi::OpenaiChat => Api::OpenAiChat,
        ModelApi::OpenaiResponses => Api::OpenAiResponses,
        ModelApi::Anthropic => Api::Anthropic,
        ModelApi::Gemini => Api::Gemini,
        ModelApi::Ollama => Api::Ollama,
    };
    let headers = filled.headers.into_iter().map(|(name, value)| (name, value.0)).collect();
    Some(Endpoint {
        provider: member.key.clone(),
        api,
        base_url: filled.base_url,
        key: filled.api_key.map(Secret::new),
        headers,
    })
}

/// Resolves how requests to a model are made, sizes and bounds that it leaves open by what stands under its provider's
/// name in `all`; `None`, with the reason among the problems, when its format is unknown.
pub(crate) fn overrides(
    name: &str,
    all: &IndexMap<String, WrittenOverrides>,
    at: &At,
    problems: &mut Vec<Problem>,
) -> Option<ModelOverrides> {
    let written = all.get(name)?;
    let provider = name.split_once('/').and_then(|(provider, _)| all.get(provider));
    let tool_format = match written.tool_format.as_deref() {
        None => None,
        Some("auto") => Some(ToolFormat::Auto),
        Some(format) => match textcalls::by_name(format) {
            Some(format) => Some(ToolFormat::Named(format)),
            None => {
                let known: Vec<_> = textcalls::formats().iter().map(textcalls::Format::name).collect();
                problems.push(Problem::new(
                    Severity::Error,
                    at,
                    format!("models.{name}.tool_format"),
                    format!("there is no text format `{format}`"),
                    format!("write auto or one of {}", known.join(", ")),
                ));
                return None;
            }
        },
    };
    // Who writes it of a model knows that its endpoint can.
    let tool_search = (written.exposure == Some(ExposureSetting::Deferred)).then_some(true);
    let (own, of_all) = (written.timeouts, provider.and_then(|provider| provider.timeouts));
    let timeouts = (own.is_some() || of_all.is_some()).then(|| {
        let (own, of_all, default) = (own.unwrap_or_default(), of_all.unwrap_or_default(), Timeouts::default());
        Timeouts {
            first_byte: own.first_byte.or(of_all.first_byte).map_or(default.first_byte, |span| span.0),
            idle: own.idle.or(of_all.idle).map_or(default.idle, |span| span.0),
            answer: own.answer.or(of_all.answer).map_or(default.answer, |span| span.0),
            ..default
        }
    });
    let temperature = written.temperature.or_else(|| provider?.temperature);
    let mut settings = written.settings();
    if let Some(provider) = provider {
        settings = settings.or(&provider.settings());
    }
    if let Err((field, why)) = settings.check() {
        let place = format!("models.{name}.{field}");
        problems.push(Problem::new(Severity::Error, at, place, why, "mend it, or take it out".to_owned()));
        return None;
    }
    Some(ModelOverrides {
        tool_format,
        strict_tools: written.strict_tools.unwrap_or(false),
        tool_search,
        window: written.window.or_else(|| provider?.window),
        max_output: written.max_output.or_else(|| provider?.max_output),
        temperature,
        settings,
        keep_alive: written.keep_alive.or_else(|| provider?.keep_alive).map(|span| span.0),
        timeouts,
    })
}

/// The file of a model's tokenizer. One that is not there is told of: tokens are estimated without it.
pub(crate) fn tokenizer(name: &str, written: &WrittenOverrides, at: &At, scope: &mut Scope<'_>) -> Option<PathBuf> {
    let (mut path, field) = (written.tokenizer.clone()?, format!("models.{name}.tokenizer"));
    let before = scope.problems.len();
    scope.fill(at, &field, &mut path, Holds::Setting);
    if scope.problems.len() > before || path.is_empty() {
        return None;
    }
    let path = scope.root.join(path);
    let file = if path.is_dir() { path.join("tokenizer.json") } else { path };
    if !file.is_file() {
        scope.problems.push(Problem::new(
            Severity::Warning,
            at,
            field,
            format!("there is no file {}: its tokens are estimated", file.display()),
            "give the path of the model's tokenizer.json",
        ));
        return None;
    }
    Some(file)
}

/// How requests wait and are made again; `None` where nothing is said of it.
pub(crate) fn traffic(written: &WrittenOverrides) -> Option<TrafficTerms> {
    let queue = written.queue.as_ref().map(|queue| {
        let default = default_model_queue();
        QueueSpec {
            concurrent: queue.concurrent.unwrap_or(default.concurrent),
            per_minute: queue.requests_per_minute,
            max_waiting: queue.max_waiting.unwrap_or(default.max_waiting),
            wait_timeout: queue.wait_timeout.map_or(default.wait_timeout, |span| span.0),
        }
    });
    let retry = written.retry.as_ref().map(|retry| {
        let default = RetryOptions::default();
        RetryOptions {
            attempts: retry.attempts.unwrap_or(default.attempts),
            longest_wait: retry.longest_wait.map_or(default.longest_wait, |span| span.0),
        }
    });
    (queue.is_some() || retry.is_some()).then_some(TrafficTerms { queue, retry })
}
