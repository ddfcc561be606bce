//! Files of cases as they are written: YAML (and so JSON), one tool a document, or JSON lines, one case a line.

mod checks;

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use self::checks::WrittenCheck;
use super::case::{Case, CaseError, Check, Kind, Order, Spot, Suite};
use toolwright_core::canonical::ContentHash;
use toolwright_core::pointer::push;

/// Bytes that a file of cases may have.
pub const MAX_FILE_BYTES: usize = 4 << 20;
/// Characters of an id.
const MAX_ID: usize = 100;
/// How often a case may be measured.
const MAX_REPEAT: u32 = 100;
/// The largest weight.
const MAX_WEIGHT: f64 = 1000.0;
/// Digits of an id that is made of the input.
const ID_DIGITS: usize = 12;
/// Faults that are told at once.
const MAX_TOLD: usize = 20;

const COMPARE: &str = "compare it with docs/bench.md";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSuite {
    tool: Option<Spanned<String>>,
    mode: Option<Spanned<String>>,
    repeat: Option<Spanned<u32>>,
    cases: Spanned<Vec<Spanned<WrittenCase>>>,
}

/// A case. What it says of its tool counts before what stands above the cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCase {
    tool: Option<Spanned<String>>,
    mode: Option<Spanned<String>>,
    repeat: Option<Spanned<u32>>,
    id: Option<Spanned<String>>,
    input: Spanned<Value>,
    weight: Option<Spanned<f64>>,
    #[serde(default, deserialize_with = "present")]
    expect: Option<Value>,
    #[serde(default)]
    checks: Vec<Spanned<WrittenCheck>>,
}

/// The values that a file of that size has, with room to spare; aliases may not make more of it.
const MAX_VALUES: usize = 1_000_000;

/// `yes` and `no` are texts, as in the configuration.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_nodes: MAX_VALUES, max_events: 2 * MAX_VALUES, enforce_alias_anchor_ratio: false },
    }
}

/// What `expect` is short for: each of its members is there as it says, or the whole is.
fn expected(value: Value) -> Vec<Check> {
    let check = |path: String, value| Check {
        weight: 1.0,
        kind: Kind::Exact { path, one_of: vec![value], order: Order::Given },
    };
    let Value::Object(members) = value else { return vec![check(String::new(), value)] };
    let member = |(name, value): (String, Value)| {
        let mut path = String::new();
        push(&mut path, &name);
        check(path, value)
    };
    members.into_iter().map(member).collect()
}

/// A null that is written is a value.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Reads the cases of a file. One whose name ends in `.jsonl` has a case a line; every other is YAML, with the cases of a
/// tool a document, or a list of cases that name their tools.
///
/// # Errors
/// Each fault with its place; what cannot be read at all is one.
pub fn parse(text: &str, file: &str) -> Result<Vec<Suite>, Vec<CaseError>> {
    let mut reader = Reader { file, faults: Vec::new(), groups: Vec::new() };
    let whole = At { line: 0, key: "" };
    if text.len() > MAX_FILE_BYTES {
        let message = format!("it has {} bytes, and {MAX_FILE_BYTES} at most are read", text.len());
        reader.fault(whole, message, "split it, and give both files with --cases");
        return Err(reader.faults);
    }
    if file.ends_with(".jsonl") {
        reader.lines(text);
    } else if is_list(text) {
        reader.list(text);
    } else {
        reader.documents(text);
    }
    if reader.faults.is_empty() && reader.groups.is_empty() {
        reader.fault(whole, "it has no cases", "write them as docs/bench.md says");
    }
    let Reader { mut faults, groups, .. } = reader;
    faults.truncate(MAX_TOLD);
    if faults.is_empty() { Ok(groups.into_iter().map(|(suite, _)| suite).collect()) } else { Err(faults) }
}

/// Whether the first thing that a YAML text says is an item of a list.
fn is_list(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_start);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("---"));
    first.is_some_and(|line| line == "-" || line.starts_with("- ") || line.starts_with('['))
}

struct Reader<'a> {
    file: &'a str,
    faults: Vec<CaseError>,
    /// The cases by tool, mode and repeat, and the ids that are taken.
    groups: Vec<(Suite, HashSet<String>)>,
}

/// Where something is written.
#[derive(Clone, Copy)]
struct At<'a> {
    line: u32,
    key: &'a str,
}

impl At<'_> {
    /// The key of a member here.
    fn member(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }
}

/// What stands above cases, for those that do not say it themselves.
#[derive(Default)]
struct Above {
    tool: Option<Spanned<String>>,
    mode: Option<Spanned<String>>,
    repeat: Option<Spanned<u32>>,
}

fn line_of<T>(spanned: &Spanned<T>) -> u32 {
    u32::try_from(spanned.referenced.line()).unwrap_or(0)
}

impl Reader<'_> {
    fn fault(&mut self, at: At<'_>, message: impl Into<String>, remedy: &'static str) {
        let At { line, key } = at;
        self.faults.push(CaseError {
            file: self.file.to_owned(),
            line,
            key: key.to_owned(),
            message: message.into(),
            remedy,
        });
    }

    /// What the parser says; `before` are the lines before its text.
    fn syntax(&mut self, error: &serde_saphyr::Error, before: u32) {
        let within = error.location().map_or(0, |location| u32::try_from(location.line()).unwrap_or(0));
        let said = error.without_snippet().to_string();
        let first = said.lines().next().unwrap_or_default().to_owned();
        self.fault(At { line: before + within, key: "" }, first, COMPARE);
    }

    fn documents(&mut self, text: &str) {
        let written: Vec<WrittenSuite> = match serde_saphyr::from_multiple_with_options(text, options()) {
            Ok(written) => written,
            Err(error) => return self.syntax(&error, 0),
        };
        for WrittenSuite { tool, mode, repeat, cases } in written {
            if cases.value.is_empty() {
                self.fault(At { line: line_of(&cases), key: "cases" }, "it is empty", "write a case, or leave it out");
            }
            let above = Above { tool, mode, repeat };
            self.above(&above, At { line: 0, key: "" }, 0);
            for (index, case) in cases.value.into_iter().enumerate() {
                let line = line_of(&case);
                self.case(case.value, &above, At { line, key: &format!("cases[{index}]") }, 0);
            }
        }
    }

    fn list(&mut self, text: &str) {
        let written: Vec<Spanned<WrittenCase>> = match serde_saphyr::from_str_with_options(text, options()) {
            Ok(written) => written,
            Err(error) => return self.syntax(&error, 0),
        };
        for (index, case) in written.into_iter().enumerate() {
            let line = line_of(&case);
            self.case(case.value, &Above::default(), At { line, key: &format!("[{index}]") }, 0);
        }
    }

    fn lines(&mut self, text: &str) {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let before = u32::try_from(index).unwrap_or(u32::MAX);
            match serde_saphyr::from_str_with_options(line, options()) {
                Ok(case) => self.case(case, &Above::default(), At { line: before + 1, key: "" }, before),
                Err(error) => self.syntax(&error, before),
            }
        }
    }

    /// Looks at what is said of a tool.
    fn above(&mut self, above: &Above, at: At<'_>, before: u32) {
        if let Some(tool) = above.tool.as_ref().filter(|tool| tool.value.trim().is_empty()) {
            let here = At { line: before + line_of(tool), key: &at.member("tool") };
            self.fault(here, "it is empty", "name the tool, like llm:classify");
        }
        if let Some(repeat) = above.repeat.as_ref().filter(|repeat| !(1..=MAX_REPEAT).contains(&repeat.value)) {
            let message = format!("{} is not within 1 and {MAX_REPEAT}", repeat.value);
            let here = At { line: before + line_of(repeat), key: &at.member("repeat") };
            self.fault(here, message, "write how often each case is measured");
        }
    }

    /// Where the cases of this tool are gathered.
    fn group(&mut self, (tool, tool_at): (String, Spot), mode: Option<(String, Spot)>, repeat: Option<u32>) -> usize {
        let (mode, mode_at) = mode.map_or((None, tool_at.clone()), |(mode, at)| (Some(mode), at));
        let same = |suite: &Suite| suite.tool == tool && suite.mode == mode && suite.repeat == repeat;
        if let Some(at) = self.groups.iter().position(|(suite, _)| same(suite)) {
            return at;
        }
        let suite = Suite { tool, mode, repeat, cases: Vec::new(), file: self.file.to_owned(), tool_at, mode_at };
        self.groups.push((suite, HashSet::new()));
        self.groups.len() - 1
    }

    fn case(&mut self, written: WrittenCase, above: &Above, at: At<'_>, before: u32) {
        let WrittenCase { tool, mode, repeat, id, input, weight, expect, checks } = written;
        let own = Above { tool, mode, repeat };
        self.above(&own, at, before);
        // What a case says itself, else what stands above the cases.
        let said = |own: &Option<Spanned<String>>, above: &Option<Spanned<String>>, name: &str| {
            let key = if own.is_some() { at.member(name) } else { name.to_owned() };
            let text = own.as_ref().or(above.as_ref())?;
            Some((text.value.clone(), Spot { line: before + line_of(text), key }))
        };
        let Some(tool) = said(&own.tool, &above.tool, "tool") else {
            let here = At { line: at.line, key: &at.member("tool") };
            return self.fault(here, "it names no tool", "name it in the case, or above the cases");
        };
        let mode = said(&own.mode, &above.mode, "mode").filter(|(mode, _)| !mode.is_empty());
        let repeat = own.repeat.as_ref().or(above.repeat.as_ref()).map(|repeat| repeat.value);
        let group = self.group(tool, mode, repeat);
        if !input.value.is_object() {
            let here = At { line: before + line_of(&input), key: &at.member("input") };
            return self.fault(here, "it is no mapping", "write the arguments of the call by name");
        }
        let (id, id_line) = match id {
            Some(id) => (id.value.trim().to_owned(), before + line_of(&id)),
            None => {
                let hash = ContentHash::of_value(&input.value).to_hex();
                (hash.get(..ID_DIGITS).unwrap_or_default().to_owned(), at.line)
            }
        };
        let here = At { line: id_line, key: &at.member("id") };
        if id.is_empty() || id.chars().count() > MAX_ID || id.chars().any(char::is_control) {
            self.fault(here, "it is no name", "use 1 to 100 characters on one line, or leave it out");
        } else if !self.groups[group].1.insert(id.clone()) {
            self.fault(here, format!("another case is called `{id}`"), "give one of them an id of its own");
        }
        let case_weight = weight.as_ref().map_or(1.0, |weight| weight.value);
        let weight_line = weight.as_ref().map_or(at.line, |weight| before + line_of(weight));
        self.weight(case_weight, At { line: weight_line, key: &at.member("weight") });
        let mut all = expect.map_or_else(Vec::new, expected);
        for (index, check) in checks.into_iter().enumerate() {
            let line = before + line_of(&check);
            all.extend(self.check(check.value, At { line, key: &at.member(&format!("checks[{index}]")) }));
        }
        self.groups[group].0.cases.push(Case {
            id,
            input: input.value,
            weight: case_weight,
            checks: all,
            line: at.line,
            key: at.key.to_owned(),
        });
    }

    fn weight(&mut self, weight: f64, at: At<'_>) {
        if !(weight > 0.0 && weight <= MAX_WEIGHT) {
            self.fault(at, format!("{weight} is no weight"), "write a number over 0, 1000 at most");
        }
    }
}

#[cfg(test)]
mod tests;
