//! Files with queries and what they need.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use toolwright::core::ContentHash;

use crate::cli::catalogue_file::MAX_BYTES;
use crate::cli::exit::Failure;
use crate::cli::input;
use crate::cli::records::{Kind, Members, records};

const CASES: Kind = Kind { one: "case", list: "cases", marks: &["query"] };

/// Unknown ids that are named in one message.
const MAX_NAMED: usize = 5;

/// A query, and the positions of the tools that it needs: at least one, each once.
#[derive(Debug, PartialEq)]
pub(super) struct Case {
    /// Which half of the cases it is in, 0 or 1: a matter of its id alone, or of its query if it has none.
    pub(super) half: usize,
    pub(super) query: String,
    pub(super) relevant: Vec<usize>,
}

/// Reads JSON, a list of cases or an object with one under `cases`, or one case a line. A case is
/// `{id?, query, relevant: [tool id]}`; other members are ignored.
pub(super) fn read(file: &Path, positions: &HashMap<&str, usize>) -> Result<Vec<Case>, Failure> {
    let failure = |error: String| Failure::usage(format!("{}: {error}", file.display()));
    let text = input::read_up_to(file, MAX_BYTES)?;
    let cases = parse(&text, positions).map_err(failure)?;
    if cases.is_empty() { Err(failure("it has no cases".into())) } else { Ok(cases) }
}

fn parse(text: &str, positions: &HashMap<&str, usize>) -> Result<Vec<Case>, String> {
    let case = |(place, record)| case(record, positions).map_err(|error| format!("{place}: {error}"));
    records(text, CASES)?.into_iter().map(case).collect()
}

fn case(record: Value, positions: &HashMap<&str, usize>) -> Result<Case, String> {
    let mut record = Members::of(record)?;
    let query = record.text("query")?.ok_or("it has no `query`")?;
    let half = match record.value(&["id"]) {
        Some(Value::String(id)) => half(&id),
        Some(id) => half(&id.to_string()),
        None => half(&query),
    };
    let ids = record.texts("relevant")?;
    if ids.is_empty() {
        return Err("its `relevant` names no tool: leave out queries that need none".into());
    }
    let relevant = positions_of(&ids, positions)?;
    Ok(Case { half, query, relevant })
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
            (Ok(cases), Ok(expect)) => {
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
        check(&format!("{line}\n{{\"query\": \"q\", \"relevant\": []}}"), Err("line 2: its `relevant` names no tool"));
        check(r#"[{"query": "q", "relevant": ["c"]}]"#, Err("case 1: the catalogue has no tool with the id `c`"));
        check(r#"[{"relevant": ["a"]}]"#, Err("case 1: it has no `query`"));
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
            assert_eq!(parse(case, &positions).expect(case)[0].half, expect, "{case}");
        }
    }
}
