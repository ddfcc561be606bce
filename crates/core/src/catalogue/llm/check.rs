//! Checks the definition of an LLM-backed tool.

use indexmap::IndexMap;
use serde_json::json;

use super::template::{check_entry, check_template};
use crate::definition::llm::{LlmDefinition, OutputKind, TemplateDefinition};
use crate::identity::tool_id::ToolId;
use crate::model::is_replay;
use crate::schema::CompiledSchema;

/// Why a definition makes no tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{id}: `{field}`: {reason}")]
pub struct DefineError {
    /// The tool.
    pub id: ToolId,
    /// The field, dotted.
    pub field: String,
    /// The fault.
    pub reason: String,
}

impl LlmDefinition {
    /// Checks the definition: templates parse, schemas compile, numbers are in range, names are unique.
    ///
    /// # Errors
    /// [`DefineError`] names the field.
    pub fn check(&self) -> Result<(), DefineError> {
        check_threshold(self)?;
        self.check_variant_fields("")?;
        for (index, variant) in self.variants.iter().enumerate() {
            let field = |name: &str| format!("variants[{index}].{name}");
            let refused = |name: &str, reason: &str| Err(self.error(&field(name), reason));
            if variant.id.trim().is_empty() {
                return refused("id", "it is empty");
            }
            if self.variants[..index].iter().any(|other| other.id == variant.id) {
                return refused("id", "another variant has it");
            }
            if variant.provider_match.iter().any(String::is_empty) {
                return refused("provider_match", "an empty text is part of every model's id");
            }
            variant.over(self).check_variant_fields(&field(""))?;
        }
        Ok(())
    }

    /// Checks fields that a variant may override. `place` is the prefix of field names in errors.
    fn check_variant_fields(&self, place: &str) -> Result<(), DefineError> {
        let refused = |name: &str, reason: String| self.error(&format!("{place}{name}"), reason);
        check_template(&self.system).map_err(|error| refused("system", error.to_string()))?;
        check_template(&self.user).map_err(|error| refused("user", error.to_string()))?;
        check_prepare(&self.prepare).map_err(|(key, reason)| refused(&format!("prepare.{key}"), reason))?;
        if self.user.trim().is_empty() {
            return Err(refused("user", "it is empty".to_owned()));
        }
        if let Some(rule) = self.max_tokens {
            let is_sound = rule.per_input_token.is_finite() && rule.per_input_token >= 0.0;
            if !is_sound || rule.base > rule.max {
                return Err(refused(
                    "max_tokens",
                    "base may not be over max, and no figure negative or no number".into(),
                ));
            }
            if rule.of(usize::MAX) == 0 {
                return Err(refused("max_tokens", "it allows no answer".to_owned()));
            }
        }
        if self.model_preference.max_tokens == Some(0) {
            return Err(refused("model_preference.max_tokens", "it is 0, which allows no answer".to_owned()));
        }
        if let Some(temperature) = self.model_preference.temperature
            && !(0.0..=2.0).contains(&temperature)
        {
            return Err(refused("model_preference.temperature", "it is not between 0 and 2".to_owned()));
        }
        let settings = self.model_preference.settings.check();
        settings.map_err(|(field, reason)| refused(&format!("model_preference.{field}"), reason))?;
        let models = self.model_preference.preferred_model.iter().chain(&self.model_preference.fallback_models);
        for model in models {
            if !model.split_once('/').is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty()) {
                return Err(refused("model_preference", format!("`{model}` is not provider/model")));
            }
            if is_replay(model) {
                let why = format!("`{model}` is a recording, which only `--model` and `models.default` may name");
                return Err(refused("model_preference", why));
            }
        }
        let Some(schema) = &self.output_schema else { return Ok(()) };
        if self.output_kind() == OutputKind::Text {
            return Err(refused("output_schema", "the output is text, which has none".to_owned()));
        }
        if schema.get("type") != Some(&json!("object")) {
            return Err(refused("output_schema", "its `type` is not `object`: structured results are objects".into()));
        }
        let compiled = CompiledSchema::compile(schema).map_err(|error| refused("output_schema", error.to_string()))?;
        match &self.example {
            Some(example) if !compiled.is_valid(example) => {
                let first = compiled.violations(example).into_iter().next();
                let why = first.map_or_else(String::new, |violation| format!(": {violation}"));
                Err(refused("example", format!("it breaks the output schema{why}")))
            }
            _ => Ok(()),
        }
    }

    fn error(&self, field: &str, reason: impl Into<String>) -> DefineError {
        DefineError { id: self.id.clone(), field: field.to_owned(), reason: reason.into() }
    }
}

impl TemplateDefinition {
    /// Checks the definition.
    ///
    /// # Errors
    /// [`DefineError`] names the field.
    pub fn check(&self) -> Result<(), DefineError> {
        let refused =
            |field: &str, reason: String| DefineError { id: self.id.clone(), field: field.to_owned(), reason };
        check_template(&self.template).map_err(|error| refused("template", error.to_string()))?;
        check_prepare(&self.prepare).map_err(|(key, reason)| refused(&format!("prepare.{key}"), reason))
    }
}

fn check_threshold(definition: &LlmDefinition) -> Result<(), DefineError> {
    if definition.recommended_threshold > 100 {
        return Err(definition.error("recommended_threshold", "it is over 100"));
    }
    Ok(())
}

fn check_prepare(prepare: &IndexMap<String, String>) -> Result<(), (&str, String)> {
    prepare.iter().try_for_each(|(key, entry)| check_entry(entry).map_err(|error| (key.as_str(), error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::llm::written;

    #[test]
    fn invalid_definitions_are_explained() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        for (more, expect) in [
            (json!({}), Ok(OutputKind::Text)),
            (json!({"outputSchema": schema, "example": {"a": 1}}), Ok(OutputKind::Json)),
            (json!({"output": "json"}), Ok(OutputKind::Json)),
            (json!({"maxTokens": {"base": 10, "perInputToken": 0.5, "max": 20}}), Ok(OutputKind::Text)),
            (json!({"variants": [{"id": "a", "providerMatch": "mini"}]}), Ok(OutputKind::Text)),
            (json!({"user": "{{ a"}), Err("`user`")),
            (json!({"user": " "}), Err("it is empty")),
            (json!({"system": "{% if %}"}), Err("`system`")),
            (json!({"prepare": {"n": "a |"}}), Err("`prepare.n`")),
            (json!({"output": "text", "output_schema": schema}), Err("the output is text")),
            (json!({"output_schema": {"type": "array"}}), Err("not `object`")),
            (json!({"output_schema": {"type": "object", "properties": 3}}), Err("`output_schema`")),
            (json!({"output_schema": schema, "example": {"a": "x"}}), Err("`example`")),
            (json!({"max_tokens": {"base": 30, "max": 20}}), Err("`max_tokens`")),
            (json!({"max_tokens": {"base": 1, "per_input_token": -1.0, "max": 20}}), Err("`max_tokens`")),
            (json!({"recommended_threshold": 101}), Err("over 100")),
            (json!({"max_tokens": {"base": 0, "max": 20}}), Err("allows no answer")),
            (json!({"model_preference": {"maxTokens": 0}}), Err("`model_preference.max_tokens`")),
            (json!({"variants": [{"id": "a", "model_preference": {"max_tokens": 0}}]}), Err("`variants[0].model_pref")),
            (json!({"model_preference": {"temperature": 3}}), Err("between 0 and 2")),
            (
                json!({"model_preference": {"effort": "low", "topK": 4, "stop": ["END"], "cache": "1h"}}),
                Ok(OutputKind::Text),
            ),
            (json!({"model_preference": {"efort": "low"}}), Err("unknown field `efort`")),
            (json!({"model_preference": {"top_p": 2}}), Err("`model_preference.top_p`")),
            (json!({"model_preference": {"fallback_models": ["gpt"]}}), Err("`gpt` is not provider/model")),
            (json!({"model_preference": {"preferred_model": "replay:a/b"}}), Err("is a recording")),
            (json!({"variants": [{"id": "a"}, {"id": "a"}]}), Err("`variants[1].id`: another")),
            (json!({"variants": [{}]}), Err("`variants[0].id`: it is empty")),
            (json!({"variants": [{"id": "a", "provider_match": [""]}]}), Err("`variants[0].provider_match`")),
            (json!({"variants": [{"id": "a", "user": "{{"}]}), Err("`variants[0].user`")),
            (json!({"variants": [{"id": "a", "tags": []}]}), Err("unknown field `tags`")),
        ] {
            let checked = written(more.clone()).and_then(|definition| {
                definition.check().map_err(|error| error.to_string()).map(|()| definition.output_kind())
            });
            match (checked, expect) {
                (Ok(kind), Ok(expect)) => assert_eq!(kind, expect, "{more}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{more}: {error}"),
                (got, expect) => panic!("{more}: {got:?}, not {expect:?}"),
            }
        }
    }
}
