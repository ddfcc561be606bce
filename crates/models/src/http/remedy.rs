//! What helps against a failed request, in words.

use toolwright_core::model::{ModelError, ModelErrorKind};

use crate::api::Api;
use crate::discover::{host_variable, key_variable};
use crate::endpoint::Endpoint;

/// Wordings of a model that the provider does not have.
const NO_MODEL: [&str; 5] = ["not found", "not_found", "does not exist", "unknown model", "not a valid model"];

/// What helps against `error` of a request to the model `name`; `None` where nothing is known to.
pub(crate) fn remedy(endpoint: &Endpoint, name: &str, error: &ModelError) -> Option<String> {
    let provider = &endpoint.provider;
    let is_unknown = || {
        let words = error.message.to_lowercase();
        words.contains("model") && NO_MODEL.iter().any(|wording| words.contains(wording))
    };
    match error.kind {
        ModelErrorKind::Auth => Some(match key_variable(provider) {
            Some(variable) => format!("set {variable} to a valid key of provider `{provider}`"),
            None => format!("set models.endpoints.{provider}.api_key to a valid key"),
        }),
        ModelErrorKind::Quota => {
            Some(format!("add credit to the account at provider `{provider}`, or name another model with --model"))
        }
        ModelErrorKind::Unavailable if error.unsent && endpoint.api == Api::Ollama => {
            Some("start it with `ollama serve`, or set OLLAMA_HOST to where it runs".to_owned())
        }
        ModelErrorKind::Unavailable if error.unsent => Some(match host_variable(provider) {
            Some(variable) => format!("check the network, and {variable} if it is set"),
            None => format!("check that the server of models.endpoints.{provider} runs"),
        }),
        ModelErrorKind::Invalid if is_unknown() => Some(match endpoint.api {
            Api::Ollama => format!("`ollama pull {name}` fetches the model, `ollama list` names those that are there"),
            _ => "name a model that the provider has: `toolwright doctor` lists some".to_owned(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_failure_has_its_remedy() {
        let at = |provider: &str, api| Endpoint::new(provider, api, "http://h");
        let error = |kind, message: &str, unsent| ModelError { unsent, ..ModelError::new(kind, message) };
        for (at, error, expect) in [
            (at("openai", Api::OpenAiChat), error(ModelErrorKind::Auth, "no", false), "OPENAI_API_KEY"),
            (at("own", Api::OpenAiChat), error(ModelErrorKind::Auth, "no", false), "models.endpoints.own.api_key"),
            (at("openai", Api::OpenAiChat), error(ModelErrorKind::Quota, "no", false), "add credit"),
            (at("ollama", Api::Ollama), error(ModelErrorKind::Unavailable, "no", true), "ollama serve"),
            (at("openai", Api::OpenAiChat), error(ModelErrorKind::Unavailable, "no", true), "OPENAI_BASE_URL"),
            (at("ollama", Api::Ollama), error(ModelErrorKind::Invalid, "model \"m\" not found", false), "pull m"),
            (at("x", Api::Anthropic), error(ModelErrorKind::Invalid, "model: m (not_found_error)", false), "doctor"),
        ] {
            let said = remedy(&at, "m", &error).unwrap_or_default();
            assert!(said.contains(expect), "{expect}: {said}");
        }
        let broken = error(ModelErrorKind::Unavailable, "overloaded", false);
        assert_eq!(remedy(&at("openai", Api::OpenAiChat), "m", &broken), None);
    }
}
