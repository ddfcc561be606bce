//! What `doctor` says of models: which providers are set up, whether their keys are taken, and what they have. Nothing that
//! it asks costs anything.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::core::model::ModelErrorKind;
use toolwright::models::{Endpoint, default_variables, list_models};

use crate::app::agent::can_answer;
use crate::app::config::variable;
use crate::terminal::screen::{BAD, DIM, GOOD, harmless, styled};

/// How long a provider may take to list its models.
const WAIT: Duration = Duration::from_secs(5);
/// Models of a provider that are named.
const NAMED: usize = 5;

/// One provider of models.
pub(super) struct ModelProbe {
    provider: String,
    base_url: String,
    has_key: bool,
    /// Whether somebody set it up: an Ollama on this machine is looked for in any case.
    is_configured: bool,
    models: Result<Vec<String>, String>,
    took: Duration,
}

impl ModelProbe {
    fn is_well(&self) -> bool {
        self.models.is_ok() || !self.is_configured
    }

    /// What is to be mended of it.
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
            "ok": self.is_well(),
            "models": self.models.as_ref().ok(),
            "error": self.models.as_ref().err(),
        })
    }

    pub(super) fn line(&self) -> String {
        let key = if self.has_key { "key set" } else { "no key" };
        let about = styled(DIM, format_args!("{} ms", self.took.as_millis()));
        let (provider, url) = (&self.provider, harmless(&self.base_url));
        match &self.models {
            Ok(models) => {
                let named = models.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = if models.len() > NAMED { ", …" } else { "" };
                let listed = harmless(&format!("{named}{more}"));
                format!(
                    "{} models of {provider} at {url}, {key}: {} ({listed}) {about}",
                    styled(GOOD, "✓"),
                    models.len()
                )
            }
            Err(_) if !self.is_configured => {
                styled(DIM, format_args!("- models of {provider}: nothing answers at {url}"))
            }
            // The finding says why.
            Err(_) => format!("{} models of {provider} at {url}, {key} {about}", styled(BAD, "✗")),
        }
    }
}

/// Asks each provider for its list.
pub(super) async fn probe(app: &Toolwright) -> Vec<ModelProbe> {
    let declared = &app.config().written.models.endpoints;
    let asked = app.models().endpoints().iter().map(async |endpoint: &Endpoint| {
        let started = Instant::now();
        let listed = list_models(app.models().http(), endpoint, WAIT).await;
        let is_set = |name: &&str| variable(name).is_some_and(|value| !value.trim().is_empty());
        ModelProbe {
            provider: endpoint.provider.clone(),
            base_url: without_userinfo(&endpoint.base_url),
            has_key: endpoint.key.is_some(),
            is_configured: declared.contains_key(&endpoint.provider)
                || default_variables(&endpoint.provider).iter().any(is_set),
            models: match listed {
                Ok(models) => Ok(models),
                // A server without such a list may answer all the same.
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

/// Whether the default model can be asked, in a line; and what is to be mended of it.
pub(super) async fn default_of(app: &Toolwright, probes: &[ModelProbe]) -> (String, Option<String>) {
    let Some(model) = app.config().written.models.default.clone() else {
        let found = probes.iter().any(|probe| probe.models.as_ref().is_ok_and(|models| !models.is_empty()));
        let line = match (app.default_model(), found) {
            (Some(model), _) => format!("default model: {model}, by the environment"),
            (None, true) => "default model: the first that answers".to_owned(),
            (None, false) if probes.iter().any(|probe| probe.is_configured) => {
                "no default model: set models.default, or name one with --model".to_owned()
            }
            (None, false) => {
                "no model: `run` and `chat` need one: set OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY, or start Ollama"
                    .to_owned()
            }
        };
        return (styled(DIM, harmless(&line)), None);
    };
    let line = format!("default model: {}", harmless(&model));
    match can_answer(app, &model).await {
        Err(why) => (line, Some(format!("models.default: {why}"))),
        Ok(()) => {
            let listed = model.split_once('/').and_then(|(provider, name)| {
                let models = probes.iter().find(|probe| probe.provider == provider)?.models.as_ref().ok()?;
                // An alias, or a tag that is left out, is no name of the list.
                let known = models.iter().any(|known| known.starts_with(name) || name.starts_with(known.as_str()));
                (!known && !models.is_empty()).then(|| format!("{line} (not in the list of {provider})"))
            });
            (listed.unwrap_or(line), None)
        }
    }
}
