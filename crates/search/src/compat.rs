//! Determines which models work with which tools.

use std::collections::HashMap;
use std::sync::Arc;

use toolwright_core::{Entry, Snapshot};

use crate::rule_search::SearchFilter;

/// The default score from which a model counts as fit for a tool.
pub const FIT: f64 = 0.8;

/// Measured scores of models with tools, from 0 to 1. A pair that was never measured has no score and never passes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compat {
    models: Vec<(String, HashMap<String, f64>)>,
    recommended: HashMap<String, Vec<String>>,
}

impl Compat {
    /// Adds the score of `model` (`provider/model`) with the tool of canonical id `tool`. Models keep the order in
    /// which they were added.
    pub fn insert(&mut self, model: &str, tool: &str, score: f64) {
        let index = self.models.iter().position(|(known, _)| known == model).unwrap_or_else(|| {
            self.models.push((model.to_owned(), HashMap::new()));
            self.models.len() - 1
        });
        self.models[index].1.insert(tool.to_owned(), score);
    }

    /// Sets the recommended models of the tool of canonical id `tool`, in the order in which they are asked.
    pub fn recommend(&mut self, tool: &str, models: Vec<String>) {
        self.recommended.insert(tool.to_owned(), models);
    }

    /// Returns the recommended models of a tool, in order.
    #[must_use]
    pub fn recommended(&self, tool: &str) -> &[String] {
        self.recommended.get(tool).map_or(&[], Vec::as_slice)
    }

    /// Returns the score of `model` with `tool`.
    #[must_use]
    pub fn score(&self, model: &str, tool: &str) -> Option<f64> {
        self.models.iter().find(|(known, _)| known == model)?.1.get(tool).copied()
    }

    /// Returns whether `model` scores at least `min_score` with `tool`. A recommended model without a score counts as
    /// [`FIT`].
    #[must_use]
    pub fn is_fit(&self, model: &str, tool: &str, min_score: f64) -> bool {
        let recommended = || self.recommended(tool).iter().any(|known| known == model).then_some(FIT);
        self.score(model, tool).or_else(recommended).is_some_and(|score| score >= min_score)
    }

    /// Returns the models that score at least `min_score` with the tool of canonical id `tool`, in their order, those
    /// without a score last.
    pub fn models_for<'a>(&'a self, tool: &'a str, min_score: f64) -> impl Iterator<Item = &'a str> {
        let scored = self.models.iter().map(|(model, _)| model.as_str());
        let scored = scored.filter(move |model| self.score(model, tool).is_some());
        let others = self.recommended(tool).iter().map(String::as_str);
        let others = others.filter(move |model| self.score(model, tool).is_none());
        scored.chain(others).filter(move |model| self.is_fit(model, tool, min_score))
    }
}

/// The filter of [`fit_tools`].
#[derive(Debug, Clone)]
pub struct CompatQuery {
    /// By namespace, prefix of the id, and tag.
    pub listed: SearchFilter,
    /// Only tools for which this model, `provider/model`, is fit.
    pub model: Option<String>,
    /// The least score of a fit model.
    pub min_score: f64,
}

impl Default for CompatQuery {
    fn default() -> Self {
        Self { listed: SearchFilter::default(), model: None, min_score: FIT }
    }
}

/// Returns the tools that match all of `wanted`, in registration order.
pub fn fit_tools<'a>(
    snapshot: &'a Snapshot,
    wanted: &'a CompatQuery,
    compat: &'a Compat,
) -> impl Iterator<Item = &'a Arc<Entry>> {
    snapshot.list().iter().filter(move |entry| {
        let fits = |model: &str| compat.is_fit(model, entry.id().as_str(), wanted.min_score);
        wanted.model.as_deref().is_none_or(fits) && wanted.listed.passes(entry)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use toolwright_core::catalogue::Listing;
    use toolwright_core::{ProviderKind, RegisteredTool, StaticProvider, ToolDefinition, ToolId};

    use super::*;

    fn compat() -> Compat {
        let mut compat = Compat::default();
        for (model, tool, score) in [
            ("z/big", "fs:read@1.0.0", 0.95),
            ("a/small", "fs:read@1.0.0", 0.8),
            ("a/small", "web:get@1.0.0", 0.5),
            ("m/odd", "web:get@1.0.0", 1.0),
        ] {
            compat.insert(model, tool, score);
        }
        compat
    }

    #[test]
    fn models_fit_from_a_score_on() {
        let check = |tool: &str, min_score: f64, expect: &[&str]| {
            let compat = compat();
            assert_eq!(compat.models_for(tool, min_score).collect::<Vec<_>>(), expect, "{tool} {min_score}");
        };
        check("fs:read@1.0.0", FIT, &["z/big", "a/small"]);
        check("fs:read@1.0.0", 0.81, &["z/big"]);
        check("web:get@1.0.0", 0.0, &["a/small", "m/odd"]);
        check("fs:read", 0.0, &[]);
        let mut compat = compat();
        compat.recommend("web:get@1.0.0", vec!["by/hand".into(), "a/small".into()]);
        let fit = |min_score: f64| compat.models_for("web:get@1.0.0", min_score).collect::<Vec<_>>();
        assert_eq!((fit(FIT), fit(0.9)), (vec!["m/odd", "by/hand"], vec!["m/odd"]), "a measured score counts before");
    }

    fn tool(id: &str) -> Arc<RegisteredTool> {
        let id = ToolId::parse(id).expect("id");
        RegisteredTool::own(ToolDefinition::new(id, "", Some(json!({"type": "object"})))).expect("registers")
    }

    #[test]
    fn fit_tools_take_every_part_into_account() {
        let snapshot = Snapshot::build(&[Listing {
            provider: Arc::new(StaticProvider::new("p", ProviderKind::Native, Vec::new()).expect("provider")),
            tools: ["fs:read@1.0.0", "web:get@1.0.0", "fs:write@1.0.0"].map(tool).to_vec(),
            error: None,
            withheld: Vec::new(),
        }]);
        let check = |model: Option<&str>, min_score: f64, namespace: Option<&str>, expect: &[&str]| {
            let listed = SearchFilter { namespace: namespace.map(Into::into), ..SearchFilter::default() };
            let wanted = CompatQuery { listed, model: model.map(Into::into), min_score };
            let found: Vec<_> =
                fit_tools(&snapshot, &wanted, &compat()).map(|entry| entry.id().without_version().to_owned()).collect();
            assert_eq!(found, expect, "{wanted:?}");
        };
        check(None, FIT, None, &["fs:read", "web:get", "fs:write"]);
        check(Some("a/small"), FIT, None, &["fs:read"]);
        check(Some("a/small"), 0.5, None, &["fs:read", "web:get"]);
        check(Some("a/small"), 0.5, Some("web"), &["web:get"]);
        check(Some("unknown/model"), 0.0, None, &[]);
    }
}
