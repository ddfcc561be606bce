//! Checks outputs: defines the format of checks in a file of cases, runs them, and reports the results.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolwright_core::schema::CompiledSchema;

/// The most characters of a note.
const MAX_NOTE: usize = 200;
/// The largest weight.
const MAX_WEIGHT: f64 = 1000.0;

/// A check of an output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Its weight in the case.
    pub weight: f64,
    /// Its kind.
    #[serde(flatten)]
    pub kind: Kind,
}

/// The kind of a check. Every `path` is a JSON Pointer into the output, empty for the whole. The output of a tool
/// without a structured result is its text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The value is one of these. Numbers are compared by value.
    Exact {
        /// The path of the value.
        path: String,
        /// The accepted values, at least one.
        one_of: Vec<Value>,
        /// Whether the order of a list matters.
        order: Order,
    },
    /// A number is within limits.
    Numeric {
        /// The path of the value.
        path: String,
        /// The number that is taken from the value.
        of: NumericMeasure,
        /// The least accepted number.
        min: f64,
        /// The largest accepted number.
        max: f64,
    },
    /// A text contains these parts. Other values are compared as compact JSON.
    Contains {
        /// The path of the text.
        path: String,
        /// All of these; the share that it contains counts.
        all: Vec<String>,
        /// At least one of these.
        any: Vec<String>,
        /// None of these; if it contains one, nothing else counts.
        none: Vec<String>,
        /// Whether case is ignored.
        ignore_case: bool,
        /// Whether they must be whole words: no letter or digit before or after them.
        words: bool,
    },
    /// A value fits a JSON Schema.
    Schema {
        /// The schema.
        schema: Value,
    },
    /// Another model judges it, by `llm:score`.
    Rubric {
        /// The path of the judged text.
        path: String,
        /// The task of the output, for the judge.
        task: String,
        /// The criteria; the default are those of `llm:score`.
        criteria: Vec<String>,
        /// The least score of the judge, 0 to 100, that counts.
        min: f64,
    },
}

/// Whether the order of a list matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// It matters.
    #[default]
    Given,
    /// It does not matter.
    Any,
}

/// The number that a numeric check takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumericMeasure {
    /// The value itself.
    #[default]
    Value,
    /// The number of words in a text.
    Words,
    /// The number of characters in a text.
    Characters,
    /// The number of items in a list, or of members in an object.
    Items,
}

impl Kind {
    /// Returns its name in files and reports.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Exact { .. } => "exact",
            Self::Numeric { .. } => "numeric",
            Self::Contains { .. } => "contains",
            Self::Schema { .. } => "schema",
            Self::Rubric { .. } => "rubric",
        }
    }
}

/// A check as a file of cases writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCheck {
    exact: Option<RawExact>,
    numeric: Option<RawNumeric>,
    contains: Option<RawContains>,
    schema: Option<Value>,
    rubric: Option<RawRubric>,
    weight: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExact {
    #[serde(default)]
    path: String,
    #[serde(default, deserialize_with = "present")]
    equals: Option<Value>,
    #[serde(default)]
    one_of: Vec<Value>,
    #[serde(default)]
    order: Order,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNumeric {
    #[serde(default)]
    path: String,
    #[serde(default)]
    of: NumericMeasure,
    min: Option<f64>,
    max: Option<f64>,
    equals: Option<f64>,
    tolerance: Option<f64>,
    relative: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawContains {
    #[serde(default)]
    path: String,
    #[serde(default)]
    all: Vec<String>,
    #[serde(default)]
    any: Vec<String>,
    #[serde(default)]
    none: Vec<String>,
    #[serde(default)]
    case: LetterCase,
    #[serde(default)]
    words: bool,
}

#[derive(Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LetterCase {
    #[default]
    Ignore,
    Exact,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRubric {
    #[serde(default)]
    path: String,
    task: String,
    #[serde(default)]
    criteria: Vec<String>,
    #[serde(default)]
    min: f64,
}

/// An explicit null is a value.
pub(super) fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// An error in a written check.
pub(super) struct CheckFault {
    /// The place below the check, like `.exact.path`.
    pub(super) key: &'static str,
    pub(super) message: String,
    pub(super) remedy: &'static str,
}

fn fault<T>(key: &'static str, message: impl Into<String>, remedy: &'static str) -> Result<T, CheckFault> {
    Err(CheckFault { key, message: message.into(), remedy })
}

/// Checks that a number may be the weight of a check or a case.
pub(super) fn check_weight(weight: f64) -> Result<f64, CheckFault> {
    if weight > 0.0 && weight <= MAX_WEIGHT {
        return Ok(weight);
    }
    fault(".weight", format!("{weight} is no weight"), "write a number over 0, 1000 at most")
}

impl RawCheck {
    /// Converts it to a check.
    pub(super) fn read(self) -> Result<Check, CheckFault> {
        const KINDS: &str = "write one of exact, numeric, contains, schema and rubric in each item of the list";
        let weight = check_weight(self.weight.unwrap_or(1.0))?;
        let kind = match (self.exact, self.numeric, self.contains, self.schema, self.rubric) {
            (Some(exact), None, None, None, None) => exact.read()?,
            (None, Some(numeric), None, None, None) => numeric.read()?,
            (None, None, Some(contains), None, None) => contains.read()?,
            (None, None, None, Some(schema), None) => match CompiledSchema::compile(&schema) {
                Ok(_) => Kind::Schema { schema },
                Err(error) => return fault(".schema", error.to_string(), "mend the JSON Schema"),
            },
            (None, None, None, None, Some(rubric)) => rubric.read()?,
            (None, None, None, None, None) => return fault("", "it checks nothing", KINDS),
            _ => return fault("", "it has several checks in one", KINDS),
        };
        Ok(Check { weight, kind })
    }
}

fn check_path(path: &str, key: &'static str) -> Result<(), CheckFault> {
    // RFC 6901, section 3: `~` precedes only 0 or 1.
    let is_escaped = path.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    if is_escaped && (path.is_empty() || path.starts_with('/')) {
        return Ok(());
    }
    let remedy = "begin it with `/`, like /facts/0/value, and write `~` as ~0, `/` in a name as ~1";
    fault(key, format!("`{path}` is no JSON Pointer"), remedy)
}

impl RawExact {
    fn read(self) -> Result<Kind, CheckFault> {
        let Self { path, equals, one_of, order } = self;
        check_path(&path, ".exact.path")?;
        if equals.is_some() != one_of.is_empty() {
            return fault(".exact", "it wants no value, or two", "write `equals`, or a list in `one_of`");
        }
        Ok(Kind::Exact { path, one_of: equals.map_or(one_of, |value| vec![value]), order })
    }
}

impl RawNumeric {
    fn read(self) -> Result<Kind, CheckFault> {
        let Self { path, of, min, max, equals, tolerance, relative } = self;
        check_path(&path, ".numeric.path")?;
        let sound = [min, max, equals, tolerance, relative].into_iter().flatten().all(f64::is_finite);
        let spread = tolerance.unwrap_or(0.0) + relative.unwrap_or(0.0) * equals.unwrap_or(0.0).abs();
        let (min, max) = match (min, max, equals) {
            (None, None, Some(equals)) if spread >= 0.0 => (equals - spread, equals + spread),
            (min, max, None) if (min.is_some() || max.is_some()) && tolerance.or(relative).is_none() => {
                (min.unwrap_or(f64::MIN), max.unwrap_or(f64::MAX))
            }
            _ => {
                let remedy = "write `min`, `max` or both, or `equals` with `tolerance` or `relative`";
                return fault(".numeric", "its bounds do not go together", remedy);
            }
        };
        if !sound || min > max {
            let remedy = "write finite numbers, the smaller one as `min`";
            return fault(".numeric", "no number is within its bounds", remedy);
        }
        Ok(Kind::Numeric { path, of, min, max })
    }
}

impl RawContains {
    fn read(self) -> Result<Kind, CheckFault> {
        let Self { path, all, any, none, case, words } = self;
        check_path(&path, ".contains.path")?;
        let mut parts = all.iter().chain(&any).chain(&none).peekable();
        if parts.peek().is_none() || parts.any(String::is_empty) {
            return fault(".contains", "it looks for nothing", "write texts under `all`, `any` or `none`");
        }
        Ok(Kind::Contains { path, all, any, none, ignore_case: case == LetterCase::Ignore, words })
    }
}

impl RawRubric {
    fn read(self) -> Result<Kind, CheckFault> {
        let Self { path, task, criteria, min } = self;
        check_path(&path, ".rubric.path")?;
        let distinct: HashSet<&String> = criteria.iter().collect();
        let is_blank = |text: &String| text.trim().is_empty();
        if is_blank(&task) || criteria.iter().any(is_blank) || distinct.len() < criteria.len() {
            let message = "its `task` is empty, or a criterion is, or stands twice";
            return fault(".rubric", message, "say what the output was to do");
        }
        if !(0.0..=100.0).contains(&min) {
            return fault(".rubric", format!("its `min` of {min} is no score"), "write a score from 0 to 100");
        }
        Ok(Kind::Rubric { path, task, criteria, min })
    }
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// From 0, failed, to 1.
    pub value: f64,
    /// The missing part, if any.
    pub note: Option<String>,
}

impl Verdict {
    fn met() -> Self {
        Self { value: 1.0, note: None }
    }

    fn missed(note: String) -> Self {
        Self::part(0.0, note)
    }

    fn part(value: f64, note: String) -> Self {
        Self { value, note: Some(clipped(&note, MAX_NOTE)) }
    }
}

/// Returns the beginning of a text, on one line.
#[must_use]
pub(super) fn clipped(text: &str, max: usize) -> String {
    let mut out: String = text.chars().take(max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(max).is_some() {
        out.push('…');
    }
    out
}

/// Returns the result for a judge's score, 0 to 100, under a rubric with this least score.
#[must_use]
pub(super) fn judged(score: f64, min: f64) -> Verdict {
    if !(0.0..=100.0).contains(&score) {
        return Verdict::missed(format!("the judge gave {score}"));
    }
    let said = format!("the judge gave {score:.0}");
    if score < min { Verdict::missed(format!("{said}, less than {min}")) } else { Verdict::part(score / 100.0, said) }
}

impl Kind {
    /// Returns the result of the check for an output; `None` if a judge is needed.
    #[must_use]
    pub fn verdict(&self, output: &Value) -> Option<Verdict> {
        let there =
            |path: &str| output.pointer(path).ok_or_else(|| Verdict::missed(format!("there is nothing at {path}")));
        let verdict = match self {
            Self::Exact { path, one_of, order } => there(path).map(|value| exact(value, one_of, *order)),
            Self::Numeric { path, of, min, max } => there(path).map(|value| numeric(value, *of, *min, *max)),
            Self::Contains { path, all, any, none, ignore_case, words } => {
                let holds = TextMatch { ignore_case: *ignore_case, words: *words };
                there(path).map(|value| contains(&as_text(value), [all, any, none], holds))
            }
            Self::Schema { schema } => Ok(fits(output, schema)),
            Self::Rubric { .. } => return None,
        };
        Some(verdict.unwrap_or_else(|missed| missed))
    }

    /// Returns the part of an output for the judge; `None` for other checks, or without a text.
    #[must_use]
    pub fn judged_text<'v>(&self, output: &'v Value) -> Option<Cow<'v, str>> {
        let Self::Rubric { path, .. } = self else { return None };
        output.pointer(path).map(as_text).filter(|text| !text.trim().is_empty())
    }
}

fn as_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

fn exact(value: &Value, one_of: &[Value], order: Order) -> Verdict {
    if one_of.iter().any(|wanted| same(value, wanted, order)) {
        return Verdict::met();
    }
    let wanted = one_of.iter().map(Value::to_string).collect::<Vec<_>>().join(" or ");
    Verdict::missed(format!("{}, not {}", clipped(&value.to_string(), 80), clipped(&wanted, 80)))
}

/// Returns whether two JSON values are equal: 1 equals 1.0, and members have no order. `order` applies to the outermost
/// list.
fn same(a: &Value, b: &Value, order: Order) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => match order {
            Order::Given => a.iter().zip(b).all(|(a, b)| same(a, b, Order::Given)),
            Order::Any => {
                let mut left: Vec<&Value> = b.iter().collect();
                a.iter().all(|a| {
                    let found = left.iter().position(|b| same(a, b, Order::Given));
                    found.map(|at| left.swap_remove(at)).is_some()
                })
            }
        },
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b, Order::Given)))
        }
        (a, b) => a == b,
    }
}

fn numeric(value: &Value, of: NumericMeasure, min: f64, max: f64) -> Verdict {
    let number = match (of, value) {
        (NumericMeasure::Value, value) => value.as_f64(),
        (NumericMeasure::Words, Value::String(text)) => Some(text.split_whitespace().count() as f64),
        (NumericMeasure::Characters, Value::String(text)) => Some(text.chars().count() as f64),
        (NumericMeasure::Items, Value::Array(items)) => Some(items.len() as f64),
        (NumericMeasure::Items, Value::Object(members)) => Some(members.len() as f64),
        _ => None,
    };
    match number {
        Some(number) if (min..=max).contains(&number) => Verdict::met(),
        Some(number) if number < min => Verdict::missed(format!("{number} is less than {min}")),
        Some(number) => Verdict::missed(format!("{number} is more than {max}")),
        None => Verdict::missed(format!("{} is of another kind", clipped(&value.to_string(), 80))),
    }
}

/// How parts of a text are compared.
#[derive(Clone, Copy)]
struct TextMatch {
    ignore_case: bool,
    words: bool,
}

impl TextMatch {
    fn folded(self, text: &str) -> Cow<'_, str> {
        if self.ignore_case { Cow::Owned(text.to_lowercase()) } else { Cow::Borrowed(text) }
    }

    /// Returns whether a text contains a part; both are folded.
    fn has(self, text: &str, part: &str) -> bool {
        // If the part itself begins or ends with punctuation, anything may be beside it.
        let joins = |outer: Option<char>, inner: Option<char>| {
            outer.is_some_and(char::is_alphanumeric) && inner.is_some_and(char::is_alphanumeric)
        };
        text.match_indices(part).any(|(at, found)| {
            let (before, behind) =
                (text.get(..at).unwrap_or_default(), text.get(at + found.len()..).unwrap_or_default());
            !self.words
                || !(joins(before.chars().next_back(), part.chars().next())
                    || joins(behind.chars().next(), part.chars().next_back()))
        })
    }
}

fn contains(text: &str, [all, any, none]: [&[String]; 3], holds: TextMatch) -> Verdict {
    let text = holds.folded(text);
    let has = |part: &String| holds.has(&text, &holds.folded(part));
    if let Some(part) = none.iter().find(|part| has(part)) {
        return Verdict::missed(format!("it has {part:?}"));
    }
    let lacking: Vec<String> = all.iter().filter(|part| !has(part)).map(|part| format!("{part:?}")).collect();
    let lacks_any = !any.is_empty() && !any.iter().any(has);
    let wanted = all.len() + usize::from(!any.is_empty());
    let met = wanted - lacking.len() - usize::from(lacks_any);
    if met == wanted {
        return Verdict::met();
    }
    let mut note = lacking.join(", ");
    if lacks_any {
        note.push_str(if note.is_empty() { "" } else { ", and " });
        note.push_str("any of ");
        note.push_str(&any.iter().map(|part| format!("{part:?}")).collect::<Vec<_>>().join(", "));
    }
    Verdict::part(met as f64 / wanted as f64, format!("it lacks {note}"))
}

fn fits(value: &Value, schema: &Value) -> Verdict {
    // It was compiled when the file was read.
    let Ok(compiled) = CompiledSchema::compile(schema) else { return Verdict::met() };
    if compiled.is_valid(value) {
        return Verdict::met();
    }
    let first = compiled.violations(value).into_iter().next();
    Verdict::missed(first.map_or_else(|| "it breaks the schema".to_owned(), |violation| violation.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn contained(path: &str, all: &[&str], any: &[&str], none: &[&str]) -> Kind {
        let path = path.to_owned();
        Kind::Contains { path, all: texts(all), any: texts(any), none: texts(none), ignore_case: true, words: false }
    }

    fn words(any: &[&str], none: &[&str]) -> Kind {
        let path = "/words".to_owned();
        Kind::Contains { path, all: texts(&[]), any: texts(any), none: texts(none), ignore_case: true, words: true }
    }

    fn wanted(path: &str, one_of: Value, order: Order) -> Kind {
        Kind::Exact { path: path.to_owned(), one_of: vec![one_of], order }
    }

    fn number(path: &str, of: NumericMeasure, min: f64, max: f64) -> Kind {
        Kind::Numeric { path: path.to_owned(), of, min, max }
    }

    #[test]
    fn checks_score_how_much_is_met() {
        let output = json!({
            "i": 1, "x": 0.5, "list": ["b", "a", {"k": 1.0}], "text": "Zwölf Kröten, three", "none": null,
            "words": "It extends the notice; until 10 p.m., ninety.",
        });
        for (kind, expect, note) in [
            (wanted("/i", json!(1.0), Order::Given), 1.0, ""),
            (wanted("/i", json!("1"), Order::Given), 0.0, "1, not \"1\""),
            (wanted("/list", json!(["a", {"k": 1}, "b"]), Order::Any), 1.0, ""),
            (wanted("/list", json!(["a", {"k": 1}, "b"]), Order::Given), 0.0, "not"),
            (wanted("/list", json!(["a", "a", "b"]), Order::Any), 0.0, "not"),
            (wanted("/none", json!(null), Order::Given), 1.0, ""),
            (wanted("/gone", json!(null), Order::Given), 0.0, "nothing at /gone"),
            (number("/x", NumericMeasure::Value, 0.5, 0.6), 1.0, ""),
            (number("/x", NumericMeasure::Value, 0.6, 1.0), 0.0, "less than 0.6"),
            (number("/text", NumericMeasure::Words, 3.0, 3.0), 1.0, ""),
            (number("/text", NumericMeasure::Characters, 0.0, 18.0), 0.0, "19 is more than 18"),
            (number("/list", NumericMeasure::Items, 3.0, 3.0), 1.0, ""),
            (number("/text", NumericMeasure::Items, 0.0, 9.0), 0.0, "another kind"),
            (contained("/text", &["KRÖTEN", "twelve"], &[], &[]), 0.5, "lacks \"twelve\""),
            (contained("/text", &["zwölf"], &["three", "drei"], &["frog"]), 1.0, ""),
            (contained("/text", &["zwölf"], &["3", "drei"], &[]), 0.5, "any of \"3\", \"drei\""),
            (contained("/text", &["zwölf"], &[], &["three"]), 0.0, "it has \"three\""),
            (contained("/list", &["\"k\":1.0"], &[], &[]), 1.0, ""),
            (words(&["ten"], &[]), 0.0, "lacks any of"),
            (words(&["nine", "TEN", "10 p.m."], &["ice", "p.m.,n"]), 1.0, ""),
            (words(&[], &["ninety"]), 0.0, "it has"),
            (words(&[" notice"], &[]), 1.0, ""),
            (Kind::Schema { schema: json!({"required": ["i"]}) }, 1.0, ""),
            (Kind::Schema { schema: json!({"required": ["q"]}) }, 0.0, "q"),
        ] {
            let got = kind.verdict(&output).expect("no judge");
            assert!((got.value - expect).abs() < 1e-9, "{kind:?}: {got:?}");
            assert!(got.note.clone().unwrap_or_default().contains(note), "{kind:?}: {got:?}");
            assert_eq!(got.note.is_none(), got.value == 1.0, "{kind:?}: {got:?}");
        }
    }

    #[test]
    fn judges_decide_rubrics() {
        let rubric =
            |path: &str| Kind::Rubric { path: path.to_owned(), task: "t".to_owned(), criteria: Vec::new(), min: 70.0 };
        let output = json!({"text": "said", "list": [1], "blank": " "});
        assert_eq!(rubric("/text").verdict(&output), None);
        let shown = |path: &str| rubric(path).judged_text(&output).map(Cow::into_owned);
        assert_eq!(
            [shown("/text"), shown("/list"), shown("/blank"), shown("/gone")],
            [Some("said".to_owned()), Some("[1]".to_owned()), None, None]
        );
        let values = [100.0, 70.0, 69.9, -1.0, f64::NAN].map(|score| judged(score, 70.0).value);
        assert_eq!(values, [1.0, 0.7, 0.0, 0.0, 0.0]);
    }
}
