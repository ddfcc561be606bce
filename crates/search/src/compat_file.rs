//! Reads and writes the compat file, which benchmarks write and the runner reads: `{tool id: {recommended: [model…]}}`,
//! with the measurements behind each recommendation.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use toolwright_core::model::is_replay;
use toolwright_core::tool_id::ToolId;

use crate::compat::{Compat, FIT};

/// The largest compat file, in bytes.
pub const MAX_COMPAT_BYTES: usize = 4 << 20;

/// The results of benchmarks, by canonical id of the tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompatFile {
    /// The tools, in order.
    pub tools: IndexMap<String, ToolCompat>,
    /// Entries that cannot be used; they are preserved in the file.
    pub unused: Vec<UnusedEntry>,
}

/// An unused entry of a compat file.
#[derive(Debug, Clone, PartialEq)]
pub struct UnusedEntry {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// The reason.
    pub why: String,
}

/// The results for one tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolCompat {
    /// The models that reach the tool's threshold, `provider/model`, cheapest first.
    pub recommended: Vec<String>,
    /// The scores of models, 0 to 1.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub scores: IndexMap<String, f64>,
    /// The measurements of the scores.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub measured: IndexMap<String, MeasuredCompat>,
    /// Fields of other programs.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// One model's measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredCompat {
    /// The number of calls.
    pub calls: u64,
    /// The cost of all calls in US dollars; null if a price was unknown.
    pub cost_usd: Option<f64>,
    /// Mean milliseconds of a call.
    pub latency_ms: f64,
    /// The hash of the tool's contract when measured. Other prompts make a different tool.
    pub contract: String,
}

impl CompatFile {
    /// Parses a file. An invalid entry becomes [`UnusedEntry`], and the others count.
    ///
    /// # Errors
    /// It is too large, or not a JSON object.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_COMPAT_BYTES {
            return Err(format!("it has {} bytes, and {MAX_COMPAT_BYTES} at most are read", text.len()));
        }
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let entries: IndexMap<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("line {}: {error}", error.line()))?;
        let mut file = Self::default();
        for (key, value) in entries {
            match ToolCompat::read(&key, &value) {
                Ok(found) => {
                    file.tools.insert(key, found);
                }
                Err(why) => file.unused.push(UnusedEntry { key, value, why }),
            }
        }
        Ok(file)
    }

    /// Returns the text of the file.
    #[must_use]
    pub fn write(&self) -> String {
        let unused = self.unused.iter().map(|entry| (&entry.key, entry.value.clone()));
        let used = self.tools.iter().map(|(tool, found)| (tool, serde_json::to_value(found).unwrap_or_default()));
        // If a tool has both, the used entry is written.
        let entries: IndexMap<&String, Value> = unused.chain(used).collect();
        let mut text = serde_json::to_string_pretty(&entries).unwrap_or_else(|_| "{}".to_owned());
        text.push('\n');
        text
    }

    /// Returns the table for the runner and [`fit_tools`](crate::fit_tools): this file, overridden by the operator's scores by model and tool. A
    /// model with an operator's score below [`FIT`] is not recommended, and a recording never is.
    #[must_use]
    pub fn compat(&self, operator: &[(String, String, f64)]) -> Compat {
        let mut compat = Compat::default();
        for (tool, found) in &self.tools {
            let refused = |model: &String| {
                is_replay(model)
                    || operator.iter().any(|(of, about, score)| of == model && about == tool && *score < FIT)
            };
            let recommended: Vec<String> = found.recommended.iter().filter(|model| !refused(model)).cloned().collect();
            // Cheapest first, followed by the others.
            let others = found.scores.keys().filter(|model| !found.recommended.contains(model));
            for model in found.recommended.iter().chain(others).filter(|model| !is_replay(model)) {
                if let Some(score) = found.scores.get(model) {
                    compat.insert(model, tool, *score);
                }
            }
            compat.recommend(tool, recommended);
        }
        for (model, tool, score) in operator {
            compat.insert(model, tool, *score);
        }
        compat
    }

    /// Returns entries, tool and model, whose tool has changed since they were measured. `contract` returns the present
    /// hash of a tool.
    pub fn stale<'a>(
        &'a self,
        contract: &'a dyn Fn(&str) -> Option<String>,
    ) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
        self.tools.iter().flat_map(move |(tool, found)| {
            let now = contract(tool);
            let changed = move |measured: &MeasuredCompat| {
                !measured.contract.is_empty() && now.as_ref().is_some_and(|now| *now != measured.contract)
            };
            let models = found.measured.iter().filter(move |(_, measured)| changed(measured));
            models.map(move |(model, _)| (tool.as_str(), model.as_str()))
        })
    }
}

impl ToolCompat {
    fn read(tool: &str, value: &Value) -> Result<Self, String> {
        if ToolId::parse(tool).is_err() {
            return Err(format!("`{tool}` is no tool id like llm:summarize@1.0.0"));
        }
        let found = Self::deserialize(value).map_err(|error| format!("{tool}: {error}"))?;
        match found.scores.iter().find(|(_, score)| !(0.0..=1.0).contains(*score)) {
            Some((model, score)) => Err(format!("{tool}: the score of {model} is {score}, not within 0 and 1")),
            None => Ok(found),
        }
    }

    /// Sorts the models that reach a threshold of 0 to 100: by the cost of a call, with unknown costs last, then by
    /// latency, then by name. Models that were recommended by others and not measured stay at the end, regardless of
    /// score.
    pub fn recommend(&mut self, threshold: u8) {
        let least = f64::from(threshold) / 100.0;
        let mut fit: Vec<String> =
            self.scores.iter().filter(|(_, score)| **score >= least).map(|(model, _)| model.clone()).collect();
        let key = |model: &String| {
            let measured = self.measured.get(model);
            let cost = measured.and_then(|measured| Some(measured.cost_usd? / measured.calls.max(1) as f64));
            (cost.unwrap_or(f64::INFINITY), measured.map_or(f64::INFINITY, |measured| measured.latency_ms))
        };
        fit.sort_by(|a, b| {
            let (a_key, b_key) = (key(a), key(b));
            a_key.0.total_cmp(&b_key.0).then(a_key.1.total_cmp(&b_key.1)).then_with(|| a.cmp(b))
        });
        let by_hand = |model: &&String| !self.measured.contains_key(*model) && !fit.contains(model);
        let by_hand: Vec<String> = self.recommended.iter().filter(by_hand).cloned().collect();
        fit.extend(by_hand);
        self.recommended = fit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_compat_files_are_refused() {
        for (text, expect) in [
            ("", ""),
            ("{}", ""),
            (r#"{"llm:score@1.0.0": {}}"#, ""),
            ("[]", "line 1"),
            ("{\n\"llm:score@1.0.0\": 3", "line 2"),
        ] {
            match CompatFile::parse(text) {
                Ok(_) => assert_eq!(expect, "", "{text}"),
                Err(error) => assert!(!expect.is_empty() && error.contains(expect), "{text}: {error}"),
            }
        }
        let large = CompatFile::parse(&" ".repeat(MAX_COMPAT_BYTES + 1));
        assert!(large.is_err_and(|why| why.contains("at most are read")));
    }

    #[test]
    fn an_invalid_entry_leaves_the_others() {
        let good = r#""llm:score@1.0.0": {"recommended": ["p/a"]}"#;
        for (wrong, expect) in [
            (r#""summarize": {"recommended": []}"#, "no tool id"),
            (r#""llm:classify@1.0.0": {"scores": {"p/a": 95}}"#, "not within 0 and 1"),
            (r#""llm:classify@1.0.0": {"recommended": 3}"#, "llm:classify@1.0.0: "),
            (r#""llm:classify@1.0.0": 3"#, "llm:classify@1.0.0: "),
        ] {
            let file = CompatFile::parse(&format!("{{{wrong}, {good}}}")).expect("parses");
            assert_eq!(file.compat(&[]).recommended("llm:score@1.0.0"), ["p/a"], "{wrong}");
            assert!(file.unused.len() == 1 && file.unused[0].why.contains(expect), "{:?}", file.unused);
            assert_eq!(CompatFile::parse(&file.write()).expect("parses"), file, "nothing of it is lost");
        }
    }
}
