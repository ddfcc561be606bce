//! Reads and writes the compat file, which benchmarks write and the runner reads: `{tool id: {recommended: [model…]}}`,
//! with the measurements behind each recommendation.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::compat::{Compat, FIT};
use toolwright_core::model::is_replay;
use toolwright_core::tool_id::ToolId;

use super::summary::{Row, round_figure};

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

    /// Returns its content as rows of a report.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (tool, found) in &self.tools {
            let unscored = found.recommended.iter().filter(|model| !found.scores.contains_key(*model));
            for model in found.scores.keys().chain(unscored) {
                let measured = found.measured.get(model);
                let calls = measured.map_or(0, |measured| usize::try_from(measured.calls).unwrap_or(usize::MAX));
                rows.push(Row {
                    score: found.scores.get(model).map(|score| score * 100.0),
                    cost: measured.and_then(|measured| measured.cost_usd),
                    latency_ms: measured.map(|measured| measured.latency_ms),
                    calls,
                    done: calls,
                    recommended: found.recommended.contains(model),
                    contract: measured.map(|measured| measured.contract.clone()).unwrap_or_default(),
                    ..Row::new(tool.clone(), model.clone())
                });
            }
        }
        let key = |row: &Row| row.score.unwrap_or(-1.0);
        rows.sort_by(|a, b| a.tool.cmp(&b.tool).then(key(b).total_cmp(&key(a))).then_with(|| a.model.cmp(&b.model)));
        rows
    }

    /// Adds measurements, which replace older ones of the same tool and model. Only completely measured models count,
    /// and no recordings of models. Returns how many were added.
    pub fn take(&mut self, rows: &[Row]) -> usize {
        let mut taken = 0;
        let mut thresholds: BTreeMap<&str, u8> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.is_whole() && !is_replay(&row.model)) {
            let (Some(score), Some(threshold)) = (row.score, row.threshold) else { continue };
            let found = self.tools.entry(row.tool.clone()).or_default();
            // Thousandths are precise enough, and rounding must not lift a model over a threshold.
            found.scores.insert(row.model.clone(), round_figure(score * 10.0).floor() / 1000.0);
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

    /// Returns the table for the runner and `find`: this file, overridden by the operator's scores by model and tool. A
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
mod tests {
    use serde_json::json;

    use super::*;

    fn row(model: &str, score: f64, cost: Option<f64>, latency_ms: f64) -> Row {
        Row {
            score: Some(score),
            cost,
            latency_ms: Some(latency_ms),
            calls: 2,
            done: 2,
            threshold: Some(90),
            recommended: score >= 90.0,
            contract: "one".to_owned(),
            ..Row::new("llm:score@1.0.0".to_owned(), model.to_owned())
        }
    }

    #[test]
    fn the_cheapest_fit_model_comes_first() {
        let by_hand = r#"{"llm:score@1.0.0": {"recommended": ["hand/made"], "note": "kept"}}"#;
        let mut file = CompatFile::parse(by_hand).expect("parses");
        let partial = Row { done: 1, ..row("p/partial", 100.0, Some(0.0), 1.0) };
        let rows = [
            row("p/dear", 99.0, Some(2.0), 1.0),
            row("p/unknown", 95.0, None, 1.0),
            row("p/bad", 89.99, Some(0.1), 1.0),
            partial,
        ];
        assert_eq!(file.take(&rows), 3);
        let rows = [row("p/cheap", 90.0, Some(1.0), 9.0), row("p/quick", 91.0, Some(1.0), 3.0)];
        assert_eq!(file.take(&rows), 2);
        let again = CompatFile::parse(&file.write()).expect("parses");
        assert_eq!(again, file);
        let found = &again.tools["llm:score@1.0.0"];
        assert_eq!(found.recommended, ["p/quick", "p/cheap", "p/dear", "p/unknown", "hand/made"]);
        assert_eq!(
            (found.scores["p/bad"], found.scores["p/dear"], &found.others["note"]),
            (0.899, 0.99, &json!("kept"))
        );
        assert_eq!(found.measured["p/dear"].cost_usd, Some(2.0));
        let worse = [row("p/quick", 10.0, Some(1.0), 3.0)];
        assert_eq!((file.take(&worse), &file.tools["llm:score@1.0.0"].recommended[0]), (1, &"p/cheap".to_owned()));
    }

    #[test]
    fn the_operator_overrides_measurements() {
        let mut file = CompatFile::default();
        file.take(&[
            row("p/a", 95.0, Some(2.0), 1.0),
            row("p/b", 95.0, Some(1.0), 1.0),
            row("p/c", 50.0, Some(0.0), 1.0),
        ]);
        let id = "llm:score@1.0.0";
        let plain = file.compat(&[]);
        assert_eq!(plain.recommended(id), ["p/b", "p/a"]);
        assert_eq!(plain.models_for(id, FIT).collect::<Vec<_>>(), ["p/b", "p/a"]);
        assert_eq!(plain.models_for(id, 0.4).collect::<Vec<_>>(), ["p/b", "p/a", "p/c"]);
        let said = |model: &str, score| (model.to_owned(), id.to_owned(), score);
        let compat = file.compat(&[said("p/b", 0.1), said("p/c", 0.9), said("p/new", 1.0)]);
        assert_eq!(compat.recommended(id), ["p/a"]);
        assert_eq!(compat.models_for(id, FIT).collect::<Vec<_>>(), ["p/a", "p/c", "p/new"]);
        assert!(compat.recommended("llm:other@1.0.0").is_empty());
    }

    #[test]
    fn a_recording_is_never_recommended() {
        let id = "llm:score@1.0.0";
        let mut file = CompatFile::default();
        assert_eq!(file.take(&[row("replay:a/b.jsonl", 99.0, None, 1.0), row("p/a", 95.0, None, 1.0)]), 1);
        assert_eq!(file.tools[id].recommended, ["p/a"]);
        let written = r#"{"llm:score@1.0.0": {"recommended": ["replay:r.jsonl", "p/a"], "scores": {"replay:s": 1.0}}}"#;
        let compat = CompatFile::parse(written).expect("read").compat(&[]);
        assert_eq!(compat.recommended(id), ["p/a"]);
        assert_eq!(compat.models_for(id, 0.0).collect::<Vec<_>>(), ["p/a"]);
    }

    #[test]
    fn measurements_of_older_contracts_are_found() {
        let mut file = CompatFile::default();
        file.take(&[row("p/a", 95.0, None, 1.0)]);
        let stale = |now: Option<&str>| {
            let now = now.map(str::to_owned);
            file.stale(&move |_| now.clone()).map(|(_, model)| model.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(stale(Some("two")), ["p/a"]);
        assert_eq!((stale(Some("one")), stale(None)), (Vec::new(), Vec::new()));
    }

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

    #[test]
    fn manual_recommendations_are_kept() {
        let by_hand = r#"{"llm:score@1.0.0": {"recommended": ["hand/made", "p/old"],
            "scores": {"hand/made": 0.5, "p/old": 0.9}, "measured": {"p/old": {"calls": 1}}}}"#;
        let mut file = CompatFile::parse(by_hand).expect("parses");
        assert_eq!(file.compat(&[]).models_for("llm:score@1.0.0", FIT).collect::<Vec<_>>(), ["p/old"]);
        file.take(&[row("p/old", 10.0, Some(1.0), 1.0), row("p/new", 99.999_999_999_999_99, Some(1.0), 1.0)]);
        let found = &file.tools["llm:score@1.0.0"];
        assert_eq!((found.recommended.join(" "), found.scores["p/new"]), ("p/new hand/made".to_owned(), 1.0));
        let minimal = CompatFile::parse(r#"{"llm:score@1.0.0": {"recommended": ["p/a"]}}"#).expect("parses");
        assert_eq!(minimal.compat(&[]).models_for("llm:score@1.0.0", FIT).collect::<Vec<_>>(), ["p/a"]);
    }
}
