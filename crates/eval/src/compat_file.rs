//! The file that benchmarks write and the runner reads: `{tool id: {recommended: [model…]}}`, with what
//! the recommendation rests on beside it.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::summary::{Row, steady};
use toolwright_core::model::is_replay;
use toolwright_core::select::{Compat, FIT};
use toolwright_core::tool_id::ToolId;

/// Bytes that such a file may have.
pub const MAX_COMPAT_BYTES: usize = 4 << 20;

/// What benchmarks found, by canonical id of the tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompatFile {
    /// The tools, in order.
    pub tools: IndexMap<String, ToolCompat>,
    /// What stands there and cannot be used; it is written again as it is.
    pub unused: Vec<Unused>,
}

/// An entry of a compat file that does not count.
#[derive(Debug, Clone, PartialEq)]
pub struct Unused {
    /// Its key.
    pub key: String,
    /// What it says.
    pub value: Value,
    /// Why it does not count.
    pub why: CompatError,
}

/// What they found of one tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolCompat {
    /// The models at or over the tool's threshold, `provider/model`, cheapest first.
    pub recommended: Vec<String>,
    /// How well models do, 0 to 1.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub scores: IndexMap<String, f64>,
    /// What the scores were measured by.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub measured: IndexMap<String, MeasuredCompat>,
    /// What others keep here.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// One model's measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasuredCompat {
    /// Calls.
    pub calls: u64,
    /// US dollars of all of them; null where a price was not known.
    pub cost_usd: Option<f64>,
    /// Mean milliseconds of a call.
    pub latency_ms: f64,
    /// The hash of the tool's contract as it was measured: other prompts make another tool of it.
    pub contract: String,
}

/// Why a compat file cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CompatError {
    /// It is too large.
    #[error("it has {0} bytes, and {MAX_COMPAT_BYTES} at most are read")]
    TooLarge(usize),
    /// It is not of the form.
    #[error("line {line}: {message}")]
    Form {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// What is said of a tool is not of the form.
    #[error("{tool}: {message}")]
    Entry {
        /// The tool.
        tool: String,
        /// What is wrong.
        message: String,
    },
    /// A key is no id of a tool.
    #[error("`{0}` is no tool id like llm:summarize@1.0.0")]
    Id(String),
    /// A score is none.
    #[error("{tool}: the score of {model} is {score}, not within 0 and 1")]
    Score {
        /// The tool.
        tool: String,
        /// The model.
        model: String,
        /// The score.
        score: f64,
    },
}

impl CompatFile {
    /// Reads a file. An entry of a tool that is wrong is [`Unused`], and the others count.
    ///
    /// # Errors
    /// [`CompatError`] where it is too large or no JSON object.
    pub fn parse(text: &str) -> Result<Self, CompatError> {
        if text.len() > MAX_COMPAT_BYTES {
            return Err(CompatError::TooLarge(text.len()));
        }
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let entries: IndexMap<String, Value> = serde_json::from_str(text)
            .map_err(|error| CompatError::Form { line: error.line(), message: error.to_string() })?;
        let mut file = Self::default();
        for (key, value) in entries {
            match ToolCompat::read(&key, &value) {
                Ok(found) => {
                    file.tools.insert(key, found);
                }
                Err(why) => file.unused.push(Unused { key, value, why }),
            }
        }
        Ok(file)
    }

    /// The file's text.
    #[must_use]
    pub fn write(&self) -> String {
        let unused = self.unused.iter().map(|entry| (&entry.key, entry.value.clone()));
        let used = self.tools.iter().map(|(tool, found)| (tool, serde_json::to_value(found).unwrap_or_default()));
        // Of a tool of which both are there, what counts is written.
        let entries: IndexMap<&String, Value> = unused.chain(used).collect();
        let mut text = serde_json::to_string_pretty(&entries).unwrap_or_else(|_| "{}".to_owned());
        text.push('\n');
        text
    }

    /// Takes measurements in: of each tool and model the newer ones take the place of the older. Only models that were
    /// measured wholly count, and no recordings of models. Returns how many were taken.
    pub fn take(&mut self, rows: &[Row]) -> usize {
        let mut taken = 0;
        let mut thresholds: BTreeMap<&str, u8> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.is_whole() && !is_replay(&row.model)) {
            let (Some(score), Some(threshold)) = (row.score, row.threshold) else { continue };
            let found = self.tools.entry(row.tool.clone()).or_default();
            // Thousandths are enough, and rounding may not lift a model over a threshold.
            found.scores.insert(row.model.clone(), steady(score * 10.0).floor() / 1000.0);
            let measured = MeasuredCompat {
                calls: row.done as u64,
                cost_usd: row.cost,
                latency_ms: row.latency_ms.unwrap_or_default().round(),
                contract: row.contract.clone(),
            };
            found.measured.insert(row.model.clone(), measured);
            thresholds.insert(&row.tool, threshold);
            taken += 1;
        }
        for (tool, threshold) in thresholds {
            if let Some(found) = self.tools.get_mut(tool) {
                found.recommend(threshold);
            }
        }
        taken
    }

    /// What the runner and `find` go by: this file, and over it what the operator says of models, by model and tool.
    /// A model that he gives less than [`FIT`] is not recommended, and a recording of one never is.
    #[must_use]
    pub fn compat(&self, operator: &[(String, String, f64)]) -> Compat {
        let mut compat = Compat::default();
        for (tool, found) in &self.tools {
            let refused = |model: &String| {
                is_replay(model)
                    || operator.iter().any(|(of, about, score)| of == model && about == tool && *score < FIT)
            };
            let recommended: Vec<String> = found.recommended.iter().filter(|model| !refused(model)).cloned().collect();
            // Cheapest first, then the others.
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

    /// Entries whose tool has changed since they were measured: tool and model. `contract` gives the hash of a tool as it
    /// is now.
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
    fn read(tool: &str, value: &Value) -> Result<Self, CompatError> {
        if ToolId::parse(tool).is_err() {
            return Err(CompatError::Id(tool.to_owned()));
        }
        let found = Self::deserialize(value)
            .map_err(|error| CompatError::Entry { tool: tool.to_owned(), message: error.to_string() })?;
        match found.scores.iter().find(|(_, score)| !(0.0..=1.0).contains(*score)) {
            Some((model, score)) => {
                Err(CompatError::Score { tool: tool.to_owned(), model: model.clone(), score: *score })
            }
            None => Ok(found),
        }
    }

    /// Puts the models at or over a threshold of 0 to 100 in order: by what a call costs, those of unknown cost after
    /// the others, then by latency, then by name. What somebody else recommended and nobody measured stays, at the end, whatever
    /// its score.
    fn recommend(&mut self, threshold: u8) {
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
mod tests;
