//! Checks as they are written.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;

use super::{At, Reader, present};
use crate::case::{Check, Kind, Of, Order};
use toolwright_core::schema::CompiledSchema;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenCheck {
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
    #[serde(default)]
    words: bool,
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

impl Reader<'_> {
    pub(super) fn check(&mut self, written: WrittenCheck, at: At<'_>) -> Option<Check> {
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
        // RFC 6901, section 3: `~` stands before 0 or 1 alone.
        let is_escaped = path.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        if is_escaped && (path.is_empty() || path.starts_with('/')) {
            return Some(());
        }
        let key = format!("{}.{kind}.path", at.key);
        let message = format!("`{path}` is no JSON Pointer");
        let remedy = "begin it with `/`, like /facts/0/value, and write `~` as ~0, `/` in a name as ~1";
        self.fault(At { line: at.line, key: &key }, message, remedy);
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
        let WrittenContains { path, all, any, none, case, words } = written;
        self.path(&path, at, "contains")?;
        let mut parts = all.iter().chain(&any).chain(&none).peekable();
        if parts.peek().is_none() || parts.any(String::is_empty) {
            let key = format!("{}.contains", at.key);
            let remedy = "write texts under `all`, `any` or `none`";
            self.fault(At { line: at.line, key: &key }, "it looks for nothing", remedy);
            return None;
        }
        let ignore_case = matches!(case, WrittenCaseRule::Ignore);
        Some(Kind::Contains { path, all, any, none, ignore_case, words })
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
