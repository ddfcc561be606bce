//! What models take of how they are to sample, and where to stop. Those that refuse a parameter answer 400 to any value of
//! it, the default included.

use serde_json::{Map, Value};
use toolwright_core::model::ModelRequest;

use crate::encoder::set;
use crate::maker::Maker;

/// Whether `model` (the name without its provider) may be sent a temperature.
///
/// OpenAI's reasoning models refuse one ("'temperature' does not support 0 with this model"), and so does every
/// model of Anthropic's since Opus 4.7 ("`temperature` is deprecated for this model"). A name that tells of neither
/// is one of somebody else's models, which take one. Who takes a temperature takes `top_p` and `top_k` where the API has
/// them, and of OpenAI's models `stop` ("'stop' is not supported with this model").
pub(crate) fn takes_temperature(model: &str) -> bool {
    match Maker::of(model) {
        Maker::Claude(_, version) => version.is_some_and(|version| version < (4, 7)),
        maker => !maker.is_reasoning_openai(),
    }
}

/// Whether `model` refuses a temperature beside `top_p`: Anthropic's since Opus 4.1 ("`temperature` and `top_p` cannot
/// both be specified for this model").
pub(crate) fn takes_one_of_both(model: &str) -> bool {
    matches!(Maker::of(model), Maker::Claude(_, Some(version)) if version >= (4, 1))
}

/// What an API calls the parameters; `None` for those that it has not.
#[derive(Default)]
pub(crate) struct Names {
    pub temperature: Option<&'static str>,
    pub top_p: Option<&'static str>,
    pub top_k: Option<&'static str>,
    pub seed: Option<&'static str>,
    pub stop: Option<&'static str>,
}

/// Writes into `place` what `request` says of sampling, as far as the API has names for it and `model` takes it.
pub(crate) fn write(place: &mut Map<String, Value>, request: &ModelRequest, model: &str, names: &Names) {
    let settings = &request.settings;
    let samples = takes_temperature(model);
    let mut put = |name: Option<&'static str>, value: Option<Value>| {
        if let Some(name) = name {
            set(place, name, value);
        }
    };
    put(names.temperature, request.temperature.filter(|_| samples).map(Value::from));
    let top_p = settings.top_p.filter(|_| samples && !(request.temperature.is_some() && takes_one_of_both(model)));
    put(names.top_p, top_p.map(Value::from));
    put(names.top_k, settings.top_k.filter(|_| samples).map(Value::from));
    put(names.seed, settings.seed.map(Value::from));
    let stops = !settings.stop.is_empty() && !Maker::of(model).is_reasoning_openai();
    put(names.stop, stops.then(|| settings.stop.clone().into()));
}

#[cfg(test)]
mod tests {
    use super::takes_temperature;

    #[test]
    fn a_name_tells_whether_a_model_takes_a_temperature() {
        for (takes, names) in [
            (true, "ft:gpt-4o-mini-2024-07-18:acme::a1"),
            (false, "ft:gpt-5-mini-2025-08-07:acme::a1 openai/ft:o4-mini-2025-04-16:acme:x:b2"),
            (true, "gpt-4.1 gpt-4o-mini gpt-3.5-turbo gpt-5-chat-latest gpt-oss:20b openai/gpt-oss-120b qwen3:8b"),
            (true, "olmo-2 o llama-4 mistral-large gemini-3-pro some-model meta/opt-1"),
            (
                false,
                "o1 o3-mini o4-mini-2025-04-16 gpt-5 gpt-5-mini gpt-5.2-chat-latest openai/gpt-5.6-sol gpt-6-astra GPT-5",
            ),
            (true, "claude-2.1 claude-3-opus-20240229 claude-3-5-sonnet-20241022 claude-3-7-sonnet-latest"),
            (true, "claude-opus-4-20250514 claude-sonnet-4@20250514 claude-opus-4-5-20251101 claude-haiku-4-5"),
            (true, "claude-sonnet-4-6 anthropic/claude-opus-4.6 us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
            (
                false,
                "claude-opus-4-7 claude-opus-4-8 claude-opus-5 claude-sonnet-5-5 claude-fable-5 claude-mythos-preview",
            ),
            (false, "anthropic/claude-opus-4.8 eu.anthropic.claude-opus-4-7-v1:0 claude-latest"),
        ] {
            for name in names.split(' ') {
                assert_eq!(takes_temperature(name), takes, "{name}");
            }
        }
    }
}
