//! Resolves the models that an LLM-backed tool asks, in order.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::definition::ModelPreference;
use crate::error::{ErrorKind, ToolError};
use crate::model::{ModelCard, Usability, is_replay, recorded_of};

/// Models of a recording that are tried for one call.
const MAX_RECORDED: usize = 16;

/// Input of the choice of models.
#[derive(Clone, Copy)]
pub struct Resolve<'a> {
    /// The only model to ask, if the caller names one.
    pub forced: Option<&'a str>,
    /// Models that benchmarks recommend for the tool.
    pub recommended: &'a [String],
    /// The author's or operator's preference.
    pub preference: Option<&'a ModelPreference>,
    /// The configured default, for a tool without other preferences.
    pub default: Option<&'a str>,
    /// The model of the calling run. It counts only if it is a recording: the tool's models are then taken from the
    /// recording.
    pub run: Option<&'a str>,
    /// Returns what is known of a model.
    pub card: &'a dyn Fn(&str) -> ModelCard,
}

/// Returns the models to ask, in order, each once: recommended, preferred, fallbacks; the default only without any of
/// these. Models without a key or a configured provider are left out.
///
/// If the caller, its run or the default names a recording, the tool's models are those found in the recording, in the
/// same order and with or without keys, then the recording's other models: the recording shows which models the call
/// asked and which failed. A recording with none of the tool's models is ignored, unless the caller names it.
///
/// # Errors
/// `not_permitted` if no model is left, with the reason for each.
pub fn models(request: &Resolve<'_>) -> Result<Vec<Arc<str>>, ToolError> {
    if let Some(models) = recorded(request) {
        return Ok(models);
    }
    let mut unusable = String::new();
    let mut usable: Vec<Arc<str>> = Vec::new();
    for model in candidates(request) {
        let why = match (request.card)(model).usability {
            Usability::Usable if model.contains('/') || is_replay(model) => {
                usable.push(model.into());
                continue;
            }
            Usability::Usable => "it is not provider/model".to_owned(),
            Usability::NoKey => "there is no key for it".to_owned(),
            Usability::Unknown(why) => why,
        };
        let separator = if unusable.is_empty() { "" } else { "; " };
        // Writing to a text cannot fail.
        let _ = write!(unusable, "{separator}{model}: {why}");
    }
    if !usable.is_empty() {
        return Ok(usable);
    }
    let message = if unusable.is_empty() {
        "no model is configured for it: set models.default, or name one with --model".to_owned()
    } else {
        format!("none of its models can be used: {unusable}")
    };
    Err(ToolError::new(ErrorKind::NotPermitted, message).with_model_message("no model can be used for this tool here"))
}

/// The models as a recording has them.
fn recorded(request: &Resolve<'_>) -> Option<Vec<Arc<str>>> {
    let is_recording = |model: &&str| is_replay(model);
    let recording = match request.forced {
        Some(forced) => Some(forced).filter(is_recording),
        None => request.run.filter(is_recording).or_else(|| request.default.filter(is_recording)),
    }?;
    let card = (request.card)(recording);
    if card.usability != Usability::Usable {
        return None;
    }
    let named = candidates(&Resolve { forced: None, ..*request });
    let mut models: Vec<&str> =
        named.iter().copied().filter(|model| card.recorded.iter().any(|known| **known == **model)).collect();
    let asks_others = models.is_empty() && named.iter().any(|model| !is_replay(model));
    if asks_others && request.forced.is_none() {
        return None;
    }
    if card.recorded.len() < 2 {
        return Some(vec![recording.into()]);
    }
    for model in card.recorded.iter() {
        if !models.contains(&&**model) {
            models.push(model);
        }
    }
    models.truncate(MAX_RECORDED);
    Some(models.into_iter().map(|model| recorded_of(recording, model).into()).collect())
}

fn candidates<'a>(request: &Resolve<'a>) -> Vec<&'a str> {
    if let Some(forced) = request.forced {
        return vec![forced];
    }
    let preferred = request.preference.and_then(|preference| preference.preferred_model.as_deref());
    let fallbacks = request.preference.map_or(&[][..], |preference| &preference.fallback_models);
    let named = request.recommended.iter().map(String::as_str).chain(preferred);
    let mut models: Vec<&str> = Vec::new();
    for model in named.chain(fallbacks.iter().map(String::as_str)) {
        if !models.contains(&model) {
            models.push(model);
        }
    }
    if models.is_empty() { request.default.into_iter().collect() } else { models }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(model: &str) -> ModelCard {
        let usability = match model.split('/').next() {
            Some("keyless") => Usability::NoKey,
            Some("nowhere") => Usability::Unknown("no provider has this name".to_owned()),
            _ => Usability::Usable,
        };
        ModelCard { usability, ..ModelCard::default() }
    }

    #[test]
    fn recommended_preferred_fallbacks_and_the_default_alone() {
        let texts = |models: &[&str]| models.iter().map(|model| (*model).to_owned()).collect::<Vec<_>>();
        for (forced, recommended, preferred, fallbacks, default, expect) in [
            (None, &["a/r"][..], Some("a/p"), &["a/f", "a/r"][..], Some("a/d"), Ok(&["a/r", "a/p", "a/f"][..])),
            (None, &[], Some("a/p"), &["a/p", "a/f", "a/f"], Some("a/d"), Ok(&["a/p", "a/f"])),
            (None, &[], None, &[], Some("a/d"), Ok(&["a/d"])),
            (Some("a/x"), &["a/r"], Some("a/p"), &[], Some("a/d"), Ok(&["a/x"])),
            (Some("keyless/x"), &["a/r"], None, &[], None, Err("keyless/x: there is no key for it")),
            (None, &[], Some("keyless/p"), &["a/f"], Some("a/d"), Ok(&["a/f"])),
            (None, &[], Some("keyless/p"), &["nowhere/f"], Some("a/d"), Err("key for it; nowhere/f: no provider")),
            (None, &[], None, &[], None, Err("set models.default")),
            (None, &["bare"], None, &[], None, Err("bare: it is not provider/model")),
        ] {
            let preference = ModelPreference {
                preferred_model: preferred.map(str::to_owned),
                fallback_models: texts(fallbacks),
                ..ModelPreference::default()
            };
            let recommended = texts(recommended);
            let wanted = Resolve {
                forced,
                recommended: &recommended,
                preference: Some(&preference),
                default,
                run: None,
                card: &card,
            };
            match (models(&wanted), expect) {
                (Ok(got), Ok(expect)) => assert_eq!(got.iter().map(|model| &**model).collect::<Vec<_>>(), expect),
                (Err(error), Err(part)) => assert!(error.message().contains(part), "{error}"),
                (got, expect) => panic!("{got:?}, not {expect:?}"),
            }
        }
    }
    /// A recording `replay:N` has answers of `a/1` to `a/N`.
    fn recordings(model: &str) -> ModelCard {
        let Some(count) = model.strip_prefix("replay:") else { return card("keyless/x") };
        let recorded: Vec<Arc<str>> =
            (1..=count.parse::<usize>().unwrap_or_default()).map(|n| format!("a/{n}").into()).collect();
        let usability = if recorded.is_empty() { Usability::Unknown("no such file".into()) } else { Usability::Usable };
        ModelCard { usability, recorded: recorded.into(), ..ModelCard::default() }
    }

    #[test]
    fn recording_answers_for_models_it_has() {
        let check = |forced, preferred: &str, fallback: &str, default, run, expect: Result<&[&str], &str>| {
            let text = |model: &str| (!model.is_empty()).then(|| model.to_owned());
            let preference = ModelPreference {
                preferred_model: text(preferred),
                fallback_models: text(fallback).into_iter().collect(),
                ..ModelPreference::default()
            };
            let preference = Some(&preference);
            let wanted = Resolve { forced, recommended: &[], preference, default, run, card: &recordings };
            match (models(&wanted), expect) {
                (Ok(got), Ok(expect)) => assert_eq!(got.iter().map(|model| &**model).collect::<Vec<_>>(), expect),
                (Err(error), Err(part)) => assert!(error.message().contains(part), "{error}"),
                (got, expect) => panic!("{got:?}, not {expect:?}"),
            }
        };
        // A single recorded model answers under the recording's name.
        check(Some("replay:1"), "a/9", "", None, None, Ok(&["replay:1"]));
        check(None, "", "", Some("replay:1"), None, Ok(&["replay:1"]));
        check(None, "", "", None, Some("replay:1"), Ok(&["replay:1"]));
        check(None, "a/1", "", None, Some("replay:1"), Ok(&["replay:1"]));
        // If there are several, the tool's models come first, in its order.
        let of = ["replay:3?model=a/1", "replay:3?model=a/2", "replay:3?model=a/3"];
        check(Some("replay:3"), "", "", None, None, Ok(&of));
        check(None, "", "", Some("a/2"), Some("replay:3"), Ok(&[of[1], of[0], of[2]]));
        check(None, "a/3", "a/1", Some("a/2"), Some("replay:3"), Ok(&[of[2], of[0], of[1]]));
        check(None, "a/3", "a/9", None, Some("replay:3"), Ok(&[of[2], of[0], of[1]]));
        // Models missing in the recording are asked directly, unless the caller names the recording.
        check(None, "a/9", "", None, Some("replay:3"), Err("there is no key"));
        check(Some("replay:3"), "a/9", "", None, None, Ok(&of));
        // Neither does an unreadable recording, or one played by another client.
        check(Some("replay:0"), "", "", None, None, Err("no such file"));
        check(Some("a/1"), "", "", None, Some("replay:3"), Err("there is no key"));
    }
}
