//! Which models a run of an LLM-backed tool asks, in which order.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::definition::ModelPreference;
use crate::error::{ErrorKind, ToolError};
use crate::model::{ModelCard, Usability, is_replay};

/// What the choice is made of.
#[derive(Clone, Copy)]
pub struct Resolve<'a> {
    /// The one model that the caller names; no other is asked then.
    pub forced: Option<&'a str>,
    /// What benchmarks recommend for the tool.
    pub recommended: &'a [String],
    /// What its author, or its operator, prefers.
    pub preference: Option<&'a ModelPreference>,
    /// The configured default, for a tool of which nothing else is known.
    pub default: Option<&'a str>,
    /// What is known of a model.
    pub card: &'a dyn Fn(&str) -> ModelCard,
}

/// The models to ask, in order, each once: recommended, preferred, fallbacks; the default only where there is none of
/// these. Models without a key, and those of no configured provider, are left out.
///
/// # Errors
/// `not_permitted` where nothing is left; it says why of each.
pub fn models(wanted: &Resolve<'_>) -> Result<Vec<Arc<str>>, ToolError> {
    let mut unusable = String::new();
    let mut usable: Vec<Arc<str>> = Vec::new();
    for model in candidates(wanted) {
        let why = match (wanted.card)(model).usability {
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

fn candidates<'a>(wanted: &Resolve<'a>) -> Vec<&'a str> {
    if let Some(forced) = wanted.forced {
        return vec![forced];
    }
    let preferred = wanted.preference.and_then(|preference| preference.preferred_model.as_deref());
    let fallbacks = wanted.preference.map_or(&[][..], |preference| &preference.fallback_models);
    let named = wanted.recommended.iter().map(String::as_str).chain(preferred);
    let mut models: Vec<&str> = Vec::new();
    for model in named.chain(fallbacks.iter().map(String::as_str)) {
        if !models.contains(&model) {
            models.push(model);
        }
    }
    if models.is_empty() { wanted.default.into_iter().collect() } else { models }
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
            let wanted =
                Resolve { forced, recommended: &recommended, preference: Some(&preference), default, card: &card };
            match (models(&wanted), expect) {
                (Ok(got), Ok(expect)) => assert_eq!(got.iter().map(|model| &**model).collect::<Vec<_>>(), expect),
                (Err(error), Err(part)) => assert!(error.message().contains(part), "{error}"),
                (got, expect) => panic!("{got:?}, not {expect:?}"),
            }
        }
    }
}
