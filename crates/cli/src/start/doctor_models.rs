//! What `doctor` says of the providers of models: which of them answer, and whether the default model can be asked.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::core::model::ModelErrorKind;
use toolwright::models::{Endpoint, default_variables, list_models};

use crate::app::agent::can_answer;
use crate::app::variable;
use crate::terminal::screen::{BAD, DIM, GOOD, sanitize, styled};

/// Time limit of a model provider's list. None of the requests costs anything.
const MODELS_WAIT: Duration = Duration::from_secs(5);
/// The most models of a provider that are named.
const MAX_NAMED: usize = 5;

/// A provider of models.
pub(super) struct ModelProbe {
    provider: String,
    base_url: String,
    has_key: bool,
    /// Whether it is configured. An Ollama on this machine is looked for in any case.
    is_configured: bool,
    models: Result<Vec<String>, String>,
    took: Duration,
}

impl ModelProbe {
    fn is_healthy(&self) -> bool {
        self.models.is_ok() || !self.is_configured
    }

    /// Returns its problem.
    pub(super) fn finding(&self) -> Option<String> {
        let error = self.models.as_ref().err().filter(|_| self.is_configured)?;
        Some(format!("model provider {}: {error}", self.provider))
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.provider,
            "url": self.base_url,
            "key": self.has_key,
            "configured": self.is_configured,
            "ok": self.is_healthy(),
            "models": self.models.as_ref().ok(),
            "error": self.models.as_ref().err(),
        })
    }

    pub(super) fn line(&self) -> String {
        let key = if self.has_key { "key set" } else { "no key" };
        let about = styled(DIM, format_args!("{} ms", self.took.as_millis()));
        let (provider, url) = (&self.provider, sanitize(&self.base_url));
        match &self.models {
            Ok(models) => {
                let named = models.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = if models.len() > MAX_NAMED { ", …" } else { "" };
                let listed = sanitize(&format!("{named}{more}"));
                format!(
                    "{} models of {provider} at {url}, {key}: {} ({listed}) {about}",
                    styled(GOOD, "✓"),
                    models.len()
                )
            }
            Err(_) if !self.is_configured => {
                styled(DIM, format_args!("- models of {provider}: nothing answers at {url}"))
            }
            // The finding has the reason.
            Err(_) => format!("{} models of {provider} at {url}, {key} {about}", styled(BAD, "✗")),
        }
    }
}

/// Requests each provider's list.
pub(super) async fn probe_models(app: &Toolwright) -> Vec<ModelProbe> {
    let config = app.config();
    let asked = app.models().endpoints().iter().map(async |endpoint: &Endpoint| {
        let started = Instant::now();
        let listed = list_models(app.models().http(), endpoint, MODELS_WAIT).await;
        let is_set = |name: &&str| variable(name).is_some_and(|value| !value.trim().is_empty());
        ModelProbe {
            provider: endpoint.provider.clone(),
            base_url: without_userinfo(&endpoint.base_url),
            has_key: endpoint.key.is_some(),
            is_configured: config.model_endpoints.iter().any(|declared| declared.provider == endpoint.provider)
                || default_variables(&endpoint.provider).iter().any(is_set),
            models: match listed {
                Ok(models) => Ok(models),
                // A server without such a list may still answer requests.
                Err(error) if error.kind == ModelErrorKind::Invalid => Ok(Vec::new()),
                Err(error) => Err(error.message),
            },
            took: started.elapsed(),
        }
    });
    futures_util::future::join_all(asked).await
}

fn without_userinfo(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(mut parsed) if !parsed.username().is_empty() || parsed.password().is_some() => {
            let _ = parsed.set_username("");
            let _ = parsed.set_password(None);
            parsed.to_string()
        }
        _ => url.to_owned(),
    }
}

/// Returns a line on whether the default model can be asked, and its problem.
pub(super) async fn default_model(app: &Toolwright, probes: &[ModelProbe]) -> (String, Option<String>) {
    let Some(model) = app.config().sections.models.default.clone() else {
        let found = probes.iter().any(|probe| probe.models.as_ref().is_ok_and(|models| !models.is_empty()));
        let line = match (app.default_model(), found) {
            (Some(model), _) => format!("default model: {model}, by the environment"),
            (None, true) => "default model: the first that answers".to_owned(),
            (None, false) if probes.iter().any(|probe| probe.is_configured) => {
                "no default model: set models.default, or name one with --model".to_owned()
            }
            (None, false) => {
                "no model: `run`, `chat` and the LLM tools (llm__summarize, …) need one: set OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY, or start Ollama"
                    .to_owned()
            }
        };
        return (styled(DIM, sanitize(&line)), None);
    };
    let line = format!("default model: {}", sanitize(&model));
    match can_answer(app, &model).await {
        Err(why) => (line, Some(format!("models.default: {why}"))),
        Ok(()) => {
            let listed = model.split_once('/').and_then(|(provider, name)| {
                let models = probes.iter().find(|probe| probe.provider == provider)?.models.as_ref().ok()?;
                // The list may lack aliases, and names without a tag.
                let known = models.iter().any(|known| known.starts_with(name) || name.starts_with(known.as_str()));
                (!known && !models.is_empty()).then(|| format!("{line} (not in the list of {provider})"))
            });
            (listed.unwrap_or(line), None)
        }
    }
}
