//! Files of cases as they are written: YAML (and so JSON), one tool a document, or JSON lines, one case a line.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::case::{Case, CaseError, Check, Kind, Of, Order, Suite};
use crate::canonical::ContentHash;
use crate::schema::CompiledSchema;

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
    tool: Spanned<String>,
    mode: Option<String>,
    repeat: Option<Spanned<u32>>,
    cases: Spanned<Vec<Spanned<WrittenCase>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCase {
    id: Option<Spanned<String>>,
    input: Spanned<Value>,
    weight: Option<Spanned<f64>>,
    #[serde(default)]
    checks: Vec<Spanned<WrittenCheck>>,
}

/// A case on a line of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLine {
    tool: Spanned<String>,
    mode: Option<String>,
    repeat: Option<Spanned<u32>>,
    id: Option<Spanned<String>>,
    input: Spanned<Value>,
    weight: Option<Spanned<f64>>,
    #[serde(default)]
    checks: Vec<Spanned<WrittenCheck>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCheck {
    exact: Option<WrittenExact>,
    numeric: Option<WrittenNumeric>,
    contains: Option<WrittenContains>,
    schema: Option<Value>,
    rubric: Option<WrittenRubric>,
    weight: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenExact {
    #[serde(default)]
    path: String,
    #[serde(default, deserialize_with = "present")]
    equals: Option<Value>,
    #[serde(default)]
    one_of: Vec<Value>,
    #[serde(default)]
    order: WrittenOrder,
}

/// A null that is written is a value.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenOrder {
    #[default]
    Given,
    Any,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNumeric {
    #[serde(default)]
    path: String,
    #[serde(default)]
    of: WrittenOf,
    min: Option<f64>,
    max: Option<f64>,
    equals: Option<f64>,
    tolerance: Option<f64>,
    relative: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenOf {
    #[default]
    Value,
    Words,
    Characters,
    Items,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenContains {
    #[serde(default)]
    path: String,
    #[serde(default)]
    all: Vec<String>,
    #[serde(default)]
    any: Vec<String>,
    #[serde(default)]
    none: Vec<String>,
    #[serde(default)]
    case: WrittenCaseRule,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenCaseRule {
    #[default]
    Ignore,
    Exact,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRubric {
    #[serde(default)]
    path: String,
    task: String,
    #[serde(default)]
    criteria: Vec<String>,
    #[serde(default)]
    min: f64,
}

/// Reads the cases of a file. One whose name ends in `.jsonl` has a case a line, with the members of its tool beside
/// its own; every other is YAML, with a tool a document. Cases of one tool in one mode may stand in several places.
///
/// # Errors
/// Each fault with its place; what cannot be read at all is one.
pub fn parse(text: &str, file: &str) -> Result<Vec<Suite>, Vec<CaseError>> {
    let fault =
        |message: String, remedy| CaseError { file: file.to_owned(), line: 0, key: String::new(), message, remedy };
    if text.len() > MAX_FILE_BYTES {
        let message = format!("it has {} bytes, and {MAX_FILE_BYTES} at most are read", text.len());
        return Err(vec![fault(message, "split it, and give both files with --cases")]);
    }
    let mut reader = Reader { file, faults: Vec::new() };
    let suites = if file.ends_with(".jsonl") { reader.lines(text) } else { reader.documents(text) };
    if reader.faults.is_empty() && suites.iter().all(|suite| suite.cases.is_empty()) {
        reader.faults.push(fault("it has no cases".to_owned(), "write them as docs/bench.md says"));
    }
    reader.faults.truncate(MAX_TOLD);
    if reader.faults.is_empty() { Ok(suites) } else { Err(reader.faults) }
}

struct Reader<'a> {
    file: &'a str,
    faults: Vec<CaseError>,
}

/// Where something is written.
#[derive(Clone, Copy)]
struct At<'a> {
    line: u32,
    key: &'a str,
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

    /// What the parser says; `line` is where its text begins, less one.
    fn syntax(&mut self, error: &serde_saphyr::Error, line: u32) {
        let within = error.location().map_or(0, |location| u32::try_from(location.line()).unwrap_or(0));
        let said = error.without_snippet().to_string();
        let first = said.lines().next().unwrap_or_default().to_owned();
        self.fault(At { line: line + within, key: "" }, first, COMPARE);
    }

    fn documents(&mut self, text: &str) -> Vec<Suite> {
        // `yes` and `no` are texts, as in the configuration.
        let options = serde_saphyr::options! { strict_booleans: true };
        let written: Vec<WrittenSuite> = match serde_saphyr::from_multiple_with_options(text, options) {
            Ok(written) => written,
            Err(error) => {
                self.syntax(&error, 0);
                return Vec::new();
            }
        };
        let mut suites = Vec::new();
        for document in written {
            let WrittenSuite { tool, mode, repeat, cases } = document;
            let mut suite = self.suite(tool, mode, repeat.as_ref(), 0);
            if cases.value.is_empty() {
                self.fault(At { line: line_of(&cases), key: "cases" }, "it is empty", "write a case, or leave it out");
            }
            let mut ids = HashSet::new();
            for (index, case) in cases.value.into_iter().enumerate() {
                let line = line_of(&case);
                let case = self.case(case.value, At { line, key: &format!("cases[{index}]") }, &mut ids, 0);
                suite.cases.extend(case);
            }
            suites.push(suite);
        }
        suites
    }

    fn lines(&mut self, text: &str) -> Vec<Suite> {
        let mut suites: Vec<(Suite, HashSet<String>)> = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let before = u32::try_from(index).unwrap_or(u32::MAX);
            let written: WrittenLine = match serde_saphyr::from_str(line) {
                Ok(written) => written,
                Err(error) => {
                    self.syntax(&error, before);
                    continue;
                }
            };
            let WrittenLine { tool, mode, repeat, id, input, weight, checks } = written;
            let same = |suite: &Suite| suite.tool == tool.value && suite.mode == mode;
            let at = match suites.iter().position(|(suite, _)| same(suite)) {
                Some(at) => at,
                None => {
                    suites.push((self.suite(tool, mode, repeat.as_ref(), before), HashSet::new()));
                    suites.len() - 1
                }
            };
            let (suite, ids) = &mut suites[at];
            let case = WrittenCase { id, input, weight, checks };
            let here = At { line: before + 1, key: "" };
            suite.cases.extend(self.case(case, here, ids, before));
        }
        suites.into_iter().map(|(suite, _)| suite).collect()
    }

    fn suite(
        &mut self,
        tool: Spanned<String>,
        mode: Option<String>,
        repeat: Option<&Spanned<u32>>,
        before: u32,
    ) -> Suite {
        let line = before + line_of(&tool);
        if tool.value.trim().is_empty() {
            self.fault(At { line, key: "tool" }, "it is empty", "name the tool, like llm:classify");
        }
        if let Some(repeat) = repeat.filter(|repeat| !(1..=MAX_REPEAT).contains(&repeat.value)) {
            let message = format!("{} is not within 1 and {MAX_REPEAT}", repeat.value);
            self.fault(
                At { line: before + line_of(repeat), key: "repeat" },
                message,
                "write how often each case is measured",
            );
        }
        let (mode, repeat) = (mode.filter(|mode| !mode.is_empty()), repeat.map(|repeat| repeat.value));
        Suite { tool: tool.value, mode, repeat, cases: Vec::new(), file: self.file.to_owned(), line }
    }

    fn case(&mut self, written: WrittenCase, at: At<'_>, ids: &mut HashSet<String>, before: u32) -> Option<Case> {
        let WrittenCase { id, input, weight, checks } = written;
        let key = |member: &str| if at.key.is_empty() { member.to_owned() } else { format!("{}.{member}", at.key) };
        if !input.value.is_object() {
            let here = At { line: before + line_of(&input), key: &key("input") };
            self.fault(here, "it is no mapping", "write the arguments of the call by name");
            return None;
        }
        let (id, id_line) = match id {
            Some(id) => (id.value.trim().to_owned(), before + line_of(&id)),
            None => {
                let hash = ContentHash::of_value(&input.value).to_hex();
                (hash.get(..ID_DIGITS).unwrap_or_default().to_owned(), at.line)
            }
        };
        let here = At { line: id_line, key: &key("id") };
        if id.is_empty() || id.chars().count() > MAX_ID || id.chars().any(char::is_control) {
            self.fault(here, "it is no name", "use 1 to 100 characters on one line, or leave it out");
        } else if !ids.insert(id.clone()) {
            self.fault(here, format!("another case is called `{id}`"), "give one of them an id of its own");
        }
        let case_weight = weight.as_ref().map_or(1.0, |weight| weight.value);
        let weight_line = weight.as_ref().map_or(at.line, |weight| before + line_of(weight));
        self.weight(case_weight, At { line: weight_line, key: &key("weight") });
        let checks = checks.into_iter().enumerate();
        let checks = checks.filter_map(|(index, check)| {
            let line = before + line_of(&check);
            self.check(check.value, At { line, key: &key(&format!("checks[{index}]")) })
        });
        let checks = checks.collect();
        Some(Case { id, input: input.value, weight: case_weight, checks, line: at.line })
    }

    fn weight(&mut self, weight: f64, at: At<'_>) {
        if !(weight > 0.0 && weight <= MAX_WEIGHT) {
            self.fault(at, format!("{weight} is no weight"), "write a number over 0, 1000 at most");
        }
    }

    fn check(&mut self, written: WrittenCheck, at: At<'_>) -> Option<Check> {
        let WrittenCheck { exact, numeric, contains, schema, rubric, weight } = written;
        let given = [exact.is_some(), numeric.is_some(), contains.is_some(), schema.is_some(), rubric.is_some()];
        let count = given.iter().filter(|given| **given).count();
        if count != 1 {
            let message = if count == 0 { "it checks nothing" } else { "it has several checks in one" };
            self.fault(
                at,
                message,
                "write one of exact, numeric, contains, schema and rubric in each item of the list",
            );
            return None;
        }
        let weight = weight.unwrap_or(1.0);
        self.weight(weight, At { line: at.line, key: &format!("{}.weight", at.key) });
        let kinds = [
            exact.and_then(|written| self.exact(written, at)),
            numeric.and_then(|written| self.numeric(&written, at)),
            contains.and_then(|written| self.contains(written, at)),
            schema.and_then(|schema| self.schema(schema, at)),
            rubric.and_then(|written| self.rubric(written, at)),
        ];
        let kind = kinds.into_iter().flatten().next()?;
        Some(Check { weight, kind })
    }

    fn path(&mut self, path: &str, at: At<'_>, kind: &str) -> Option<()> {
        if path.is_empty() || path.starts_with('/') {
            return Some(());
        }
        let key = format!("{}.{kind}.path", at.key);
        let message = format!("`{path}` is no JSON Pointer");
        self.fault(At { line: at.line, key: &key }, message, "begin it with `/`, like /facts/0/value");
        None
    }

    fn exact(&mut self, written: WrittenExact, at: At<'_>) -> Option<Kind> {
        let WrittenExact { path, equals, one_of, order } = written;
        self.path(&path, at, "exact")?;
        if equals.is_some() != one_of.is_empty() {
            let key = format!("{}.exact", at.key);
            self.fault(
                At { line: at.line, key: &key },
                "it wants no value, or two",
                "write `equals`, or a list in `one_of`",
            );
            return None;
        }
        let one_of = equals.map_or(one_of, |value| vec![value]);
        let order = match order {
            WrittenOrder::Given => Order::Given,
            WrittenOrder::Any => Order::Any,
        };
        Some(Kind::Exact { path, one_of, order })
    }

    fn numeric(&mut self, written: &WrittenNumeric, at: At<'_>) -> Option<Kind> {
        let WrittenNumeric { path, of, min, max, equals, tolerance, relative } = written;
        self.path(path, at, "numeric")?;
        let key = format!("{}.numeric", at.key);
        let here = At { line: at.line, key: &key };
        let sound = [min, max, equals, tolerance, relative].into_iter().flatten().all(|figure| figure.is_finite());
        let spread = tolerance.unwrap_or(0.0) + relative.unwrap_or(0.0) * equals.unwrap_or(0.0).abs();
        let (low, high) = match (min, max, equals) {
            (None, None, Some(equals)) if spread >= 0.0 => (equals - spread, equals + spread),
            (min, max, None) if (min.is_some() || max.is_some()) && tolerance.or(*relative).is_none() => {
                (min.unwrap_or(f64::MIN), max.unwrap_or(f64::MAX))
            }
            _ => {
                let remedy = "write `min`, `max` or both, or `equals` with `tolerance` or `relative`";
                self.fault(here, "its bounds do not go together", remedy);
                return None;
            }
        };
        if !sound || low > high {
            self.fault(here, "no number is within its bounds", "write finite numbers, the smaller one as `min`");
            return None;
        }
        let of = match of {
            WrittenOf::Value => Of::Value,
            WrittenOf::Words => Of::Words,
            WrittenOf::Characters => Of::Characters,
            WrittenOf::Items => Of::Items,
        };
        Some(Kind::Numeric { path: path.clone(), of, min: low, max: high })
    }

    fn contains(&mut self, written: WrittenContains, at: At<'_>) -> Option<Kind> {
        let WrittenContains { path, all, any, none, case } = written;
        self.path(&path, at, "contains")?;
        let mut parts = all.iter().chain(&any).chain(&none).peekable();
        if parts.peek().is_none() || parts.any(String::is_empty) {
            let key = format!("{}.contains", at.key);
            let remedy = "write texts under `all`, `any` or `none`";
            self.fault(At { line: at.line, key: &key }, "it looks for nothing", remedy);
            return None;
        }
        let ignore_case = matches!(case, WrittenCaseRule::Ignore);
        Some(Kind::Contains { path, all, any, none, ignore_case })
    }

    fn schema(&mut self, schema: Value, at: At<'_>) -> Option<Kind> {
        match CompiledSchema::compile(&schema) {
            Ok(_) => Some(Kind::Schema { schema }),
            Err(error) => {
                let key = format!("{}.schema", at.key);
                self.fault(At { line: at.line, key: &key }, error.to_string(), "mend the JSON Schema");
                None
            }
        }
    }

    fn rubric(&mut self, written: WrittenRubric, at: At<'_>) -> Option<Kind> {
        let WrittenRubric { path, task, criteria, min } = written;
        self.path(&path, at, "rubric")?;
        let key = format!("{}.rubric", at.key);
        let here = At { line: at.line, key: &key };
        let distinct: HashSet<&String> = criteria.iter().collect();
        if task.trim().is_empty()
            || criteria.iter().any(|name| name.trim().is_empty())
            || distinct.len() < criteria.len()
        {
            self.fault(
                here,
                "its `task` is empty, or a criterion is, or stands twice",
                "say what the output was to do",
            );
            return None;
        }
        if !(0.0..=100.0).contains(&min) {
            self.fault(here, format!("its `min` of {min} is no score"), "write a score from 0 to 100");
            return None;
        }
        Some(Kind::Rubric { path, task, criteria, min })
    }
}

#[cfg(test)]
mod tests;
