//! What a benchmark writes into the compat file, and the report about such a file.

use std::collections::BTreeMap;

use toolwright_core::model::is_replay;
use toolwright_search::{CompatFile, MeasuredCompat};

use super::summary::{Row, round_figure};

/// Returns the content of a compat file as rows of a report.
#[must_use]
pub fn rows_of(file: &CompatFile) -> Vec<Row> {
    let mut rows = Vec::new();
    for (tool, found) in &file.tools {
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

/// Adds measurements to a compat file, which replace older ones of the same tool and model. Only completely measured
/// models count, and no recordings of models. Returns how many were added.
pub fn recommend(file: &mut CompatFile, rows: &[Row]) -> usize {
    let mut taken = 0;
    let mut thresholds: BTreeMap<&str, u8> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.is_whole() && !is_replay(&row.model)) {
        let (Some(score), Some(threshold)) = (row.score, row.threshold) else { continue };
        let found = file.tools.entry(row.tool.clone()).or_default();
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
        if let Some(found) = file.tools.get_mut(tool) {
            found.recommend(threshold);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwright_search::FIT;

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
        assert_eq!(recommend(&mut file, &rows), 3);
        let rows = [row("p/cheap", 90.0, Some(1.0), 9.0), row("p/quick", 91.0, Some(1.0), 3.0)];
        assert_eq!(recommend(&mut file, &rows), 2);
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
        assert_eq!(
            (recommend(&mut file, &worse), &file.tools["llm:score@1.0.0"].recommended[0]),
            (1, &"p/cheap".to_owned())
        );
    }

    #[test]
    fn the_operator_overrides_measurements() {
        let mut file = CompatFile::default();
        recommend(
            &mut file,
            &[row("p/a", 95.0, Some(2.0), 1.0), row("p/b", 95.0, Some(1.0), 1.0), row("p/c", 50.0, Some(0.0), 1.0)],
        );
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
        assert_eq!(recommend(&mut file, &[row("replay:a/b.jsonl", 99.0, None, 1.0), row("p/a", 95.0, None, 1.0)]), 1);
        assert_eq!(file.tools[id].recommended, ["p/a"]);
        let written = r#"{"llm:score@1.0.0": {"recommended": ["replay:r.jsonl", "p/a"], "scores": {"replay:s": 1.0}}}"#;
        let compat = CompatFile::parse(written).expect("read").compat(&[]);
        assert_eq!(compat.recommended(id), ["p/a"]);
        assert_eq!(compat.models_for(id, 0.0).collect::<Vec<_>>(), ["p/a"]);
    }

    #[test]
    fn measurements_of_older_contracts_are_found() {
        let mut file = CompatFile::default();
        recommend(&mut file, &[row("p/a", 95.0, None, 1.0)]);
        let stale = |now: Option<&str>| {
            let now = now.map(str::to_owned);
            file.stale(&move |_| now.clone()).map(|(_, model)| model.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(stale(Some("two")), ["p/a"]);
        assert_eq!((stale(Some("one")), stale(None)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn manual_recommendations_are_kept() {
        let by_hand = r#"{"llm:score@1.0.0": {"recommended": ["hand/made", "p/old"],
            "scores": {"hand/made": 0.5, "p/old": 0.9}, "measured": {"p/old": {"calls": 1}}}}"#;
        let mut file = CompatFile::parse(by_hand).expect("parses");
        assert_eq!(file.compat(&[]).models_for("llm:score@1.0.0", FIT).collect::<Vec<_>>(), ["p/old"]);
        recommend(
            &mut file,
            &[row("p/old", 10.0, Some(1.0), 1.0), row("p/new", 99.999_999_999_999_99, Some(1.0), 1.0)],
        );
        let found = &file.tools["llm:score@1.0.0"];
        assert_eq!((found.recommended.join(" "), found.scores["p/new"]), ("p/new hand/made".to_owned(), 1.0));
        let minimal = CompatFile::parse(r#"{"llm:score@1.0.0": {"recommended": ["p/a"]}}"#).expect("parses");
        assert_eq!(minimal.compat(&[]).models_for("llm:score@1.0.0", FIT).collect::<Vec<_>>(), ["p/a"]);
    }
}
