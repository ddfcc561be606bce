//! Which way of asking is taken, and what it comes to.

use super::definition::{LlmDefinition, Variant};

impl Variant {
    /// The definition with what this variant says otherwise.
    #[must_use]
    pub fn over(&self, definition: &LlmDefinition) -> LlmDefinition {
        let mut over = LlmDefinition { variants: Vec::new(), ..definition.clone() };
        let Self { system, user, prepare, model_preference, .. } = self.clone();
        over.system = system.unwrap_or(over.system);
        over.user = user.unwrap_or(over.user);
        over.prepare = prepare.unwrap_or(over.prepare);
        over.model_preference = model_preference.unwrap_or(over.model_preference);
        over.output = self.output.or(over.output);
        over.max_tokens = self.max_tokens.or(over.max_tokens);
        over.output_schema = self.output_schema.clone().or(over.output_schema);
        over.example = self.example.clone().or(over.example);
        over
    }
}

impl LlmDefinition {
    /// The variant for `model`, `provider/model`, in the mode that the caller named. Of those with that mode, or of all
    /// where none has it or none was named: the one that names exactly this model, the first that names a part of it,
    /// the default, the first. `None` where there are none.
    #[must_use]
    pub fn variant(&self, mode: Option<&str>, model: &str) -> Option<&Variant> {
        let in_mode = |variant: &&Variant| mode.is_some() && variant.mode.as_deref() == mode;
        let named: Vec<&Variant> = self.variants.iter().filter(in_mode).collect();
        let choice = if named.is_empty() { self.variants.iter().collect() } else { named };
        let matches = |variant: &&&Variant| variant.provider_match.iter().any(|part| model.contains(part.as_str()));
        let exact = choice.iter().find(|variant| variant.provider_match.iter().any(|part| part == model));
        let matching = || choice.iter().find(matches);
        let default = || choice.iter().find(|variant| variant.is_default);
        exact.or_else(matching).or_else(default).or_else(|| choice.first()).copied()
    }

    /// The modes that a caller may name, in order, each once.
    #[must_use]
    pub fn modes(&self) -> Vec<&str> {
        let mut modes: Vec<&str> = Vec::new();
        for mode in self.variants.iter().filter_map(|variant| variant.mode.as_deref()) {
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
        modes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_id::ToolId;
    use serde_json::json;

    fn definition(variants: Vec<Variant>) -> LlmDefinition {
        let id = ToolId::parse("x:t@1.0.0").expect("an id");
        LlmDefinition { variants, ..LlmDefinition::new(id, "d", json!({"type": "object"}), "system", "user") }
    }

    fn variant(id: &str, mode: Option<&str>, parts: &[&str], is_default: bool) -> Variant {
        Variant {
            id: id.to_owned(),
            mode: mode.map(str::to_owned),
            provider_match: parts.iter().map(|part| (*part).to_owned()).collect(),
            is_default,
            ..Variant::default()
        }
    }

    #[test]
    fn mode_then_exact_model_then_first_match_then_default_then_first() {
        let all = definition(vec![
            variant("first", None, &[], false),
            variant("mini", None, &["mini", "nano"], false),
            variant("gpt", None, &["gpt"], false),
            variant("exact", None, &["openai/gpt-5-mini"], false),
            variant("default", None, &[], true),
            variant("brief", Some("brief"), &[], false),
            variant("brief-mini", Some("brief"), &["mini"], false),
        ]);
        for (mode, model, expect) in [
            (None, "openai/gpt-5-mini", "exact"),
            (None, "openai/gpt-5-mini-2", "mini"),
            (None, "openai/gpt-5", "gpt"),
            (None, "anthropic/claude", "default"),
            (Some("brief"), "anthropic/claude", "brief"),
            (Some("brief"), "openai/gpt-5-mini", "brief-mini"),
            (Some("unheard-of"), "openai/gpt-5", "gpt"),
        ] {
            let got = all.variant(mode, model).map(|variant| variant.id.as_str());
            assert_eq!(got, Some(expect), "{mode:?} {model}");
        }
        let few = definition(vec![variant("a", None, &["x"], false), variant("b", None, &["y"], false)]);
        assert_eq!(few.variant(None, "p/m").map(|variant| variant.id.as_str()), Some("a"));
        assert_eq!(definition(Vec::new()).variant(Some("brief"), "p/m"), None);
        assert_eq!(all.modes(), ["brief"]);
    }

    #[test]
    fn a_variant_says_some_things_otherwise() {
        let variant = Variant { system: Some("mine".to_owned()), ..variant("a", None, &[], false) };
        let over = variant.over(&definition(vec![variant.clone()]));
        assert_eq!((over.system.as_str(), over.user.as_str(), over.variants.len()), ("mine", "user", 0));
    }
}
