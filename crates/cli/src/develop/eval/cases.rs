//! Reads files with queries and the tools that answer them.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use toolwright::core::ContentHash;

use crate::develop::catalogue_file::MAX_BYTES;
use crate::develop::records::{AdjustedRecords, Kind, Members, Place, records};
use crate::exit::Failure;
use crate::input;

const CASES: Kind = Kind { one: "case", list: "cases", marks: &["query"] };

/// Unknown ids that are named in one message.
const MAX_NAMED: usize = 5;

/// A query, and the positions of the tools that it needs: at least one, each once. A tool that the catalogue does
/// not have stands behind all that it has, where no ranking finds it.
#[derive(Debug, PartialEq)]
pub(super) struct Case {
    /// Which half of the cases it is in, 0 or 1: a matter of its id alone, or of its query if it has none.
    pub(super) half: usize,
    pub(super) query: String,
    pub(super) relevant: Vec<usize>,
}

/// Reads JSON, a list of cases or an object with one under `cases`, or one case a line. A case is
/// `{id?, query, relevant: [tool id]}`; other members are ignored. A case that needs no tool is left out. That one is, and
/// that an id is not in the catalogue, is told on standard error.
pub(super) fn read(file: &Path, positions: &HashMap<&str, usize>) -> Result<Vec<Case>, Failure> {
    let failure = |error: String| Failure::usage(format!("{}: {error}", file.display()));
    let text = input::read_up_to(file, MAX_BYTES)?;
    let Cases { cases, unknown, without } = parse(&text, positions).map_err(failure)?;
    unknown.warn(file, "ids that no tool of the catalogue has count as not found");
    without.warn(file, "cases whose `relevant` names no tool are left out");
    if cases.is_empty() { Err(failure("it has no cases".into())) } else { Ok(cases) }
}

/// The cases of a file, and what is odd about it.
#[derive(Debug, Default)]
struct Cases {
    cases: Vec<Case>,
    /// Ids that the catalogue does not have.
    unknown: AdjustedRecords,
    /// Cases without relevant tools.
    without: AdjustedRecords,
}

fn parse(text: &str, positions: &HashMap<&str, usize>) -> Result<Cases, String> {
    let mut cases = Cases::default();
    for (place, record) in records(text, CASES)? {
        cases.add(&place, record, positions).map_err(|error| format!("{place}: {error}"))?;
    }
    Ok(cases)
}

impl Cases {
    fn add(&mut self, place: &Place, record: Value, positions: &HashMap<&str, usize>) -> Result<(), String> {
        let mut record = Members::of(record)?;
        let query = record.text("query")?.ok_or("it has no `query`")?;
        let half = match record.value(&["id"]) {
            Some(Value::String(id)) => half(&id),
            Some(id) => half(&id.to_string()),
            None => half(&query),
        };
        let mut ids = record.texts("relevant")?;
        if ids.is_empty() {
            self.without.add(|| place.to_string());
            return Ok(());
        }
        ids.sort_unstable();
        ids.dedup();
        let mut behind = positions.len()..;
        let position = |id: String| {
            positions.get(id.as_str()).copied().or_else(|| {
                self.unknown.add(|| format!("`{id}` in {place}"));
                behind.next()
            })
        };
        let mut relevant: Vec<usize> = ids.into_iter().filter_map(position).collect();
        relevant.sort_unstable();
        self.cases.push(Case { half, query, relevant });
        Ok(())
    }
}

/// The last bit of the first byte of the text's SHA-256.
fn half(text: &str) -> usize {
    usize::from(ContentHash::of_bytes(text.as_bytes()).as_bytes()[0] & 1)
}

/// The positions of tools, each once.
pub(super) fn positions_of(ids: &[String], positions: &HashMap<&str, usize>) -> Result<Vec<usize>, String> {
    let unknown: Vec<&String> = ids.iter().filter(|id| !positions.contains_key(id.as_str())).collect();
    if !unknown.is_empty() {
        let named: Vec<String> = unknown.iter().take(MAX_NAMED).map(|id| format!("`{id}`")).collect();
        let more = if unknown.len() > MAX_NAMED { ", …" } else { "" };
        return Err(format!("the catalogue has no tool with the id {}{more}", named.join(", ")));
    }
    let mut relevant: Vec<usize> = ids.iter().filter_map(|id| positions.get(id.as_str()).copied()).collect();
    relevant.sort_unstable();
    relevant.dedup();
    Ok(relevant)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&[(&str, &[usize])], &str>) {
        let positions = HashMap::from([("a", 0), ("b.é", 1)]);
        match (parse(text, &positions), expect) {
            (Ok(Cases { cases, .. }), Ok(expect)) => {
                let got: Vec<_> = cases.iter().map(|case| (case.query.as_str(), case.relevant.as_slice())).collect();
                assert_eq!(got, expect, "{text}");
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }

    #[test]
    fn cases_are_read_in_every_form_and_what_is_wrong_has_a_place() {
        let line = r#"{"id": "1", "query": "q", "relevant": ["b.é", "a", "a"]}"#;
        check(line, Ok(&[("q", &[0, 1])]));
        check(&format!("{line}\n\n{line}"), Ok(&[("q", &[0, 1]), ("q", &[0, 1])]));
        check(&format!("{{\"cases\": [{line}]}}"), Ok(&[("q", &[0, 1])]));
        check("", Ok(&[]));
        check(r#"[{"query": "q", "relevant": [{}]}]"#, Err("case 1: its `relevant` holds what is not a text"));
        check(r#"[{"relevant": ["a"]}]"#, Err("case 1: it has no `query`"));
    }

    #[test]
    fn an_odd_case_does_not_end_the_measurement() {
        check(r#"{"query": "q", "relevant": ["gone", "a", "lost", "gone"]}"#, Ok(&[("q", &[0, 2, 3])]));
        check(r#"{"query": "q", "relevant": "a"}"#, Ok(&[("q", &[0])]));
        check(r#"{"query": 7, "relevant": [7]}"#, Ok(&[("7", &[2])]));
        let text = r#"[{"query": "q", "relevant": []}, {"query": "r"}, {"query": "s", "relevant": ["a", "c"]}]"#;
        check(text, Ok(&[("s", &[0, 2])]));
        let adjusted = parse(text, &HashMap::from([("a", 0)])).expect("cases");
        assert!(format!("{:?}", adjusted.unknown).contains("`c` in case 3"), "{adjusted:?}");
        assert!(format!("{:?}", adjusted.without).contains("\"case 1\", \"case 2\""), "{adjusted:?}");
    }

    #[test]
    fn a_case_is_in_the_half_that_its_id_says() {
        let positions = HashMap::from([("a", 0)]);
        // SHA-256 of `a` begins with ca, that of `1` with 6b.
        for (case, expect) in [
            (r#"{"id": "a", "query": "1", "relevant": ["a"]}"#, 0),
            (r#"{"id": "1", "query": "a", "relevant": ["a"]}"#, 1),
            (r#"{"id": 1, "query": "a", "relevant": ["a"]}"#, 1),
            (r#"{"query": "1", "relevant": ["a"]}"#, 1),
        ] {
            assert_eq!(parse(case, &positions).expect(case).cases[0].half, expect, "{case}");
        }
    }
}
