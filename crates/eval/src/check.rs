//! What checks say of an output.

use std::borrow::Cow;

use serde_json::Value;

use super::case::{Kind, Of, Order};
use toolwright_core::schema::CompiledSchema;

/// Characters of a note.
const MAX_NOTE: usize = 200;

/// What a check says.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// 0 for nothing of it, to 1.
    pub value: f64,
    /// What is missing, where something is.
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

/// The beginning of a text, on one line.
#[must_use]
pub fn clipped(text: &str, max: usize) -> String {
    let mut out: String = text.chars().take(max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(max).is_some() {
        out.push('…');
    }
    out
}

/// What a judge's score, 0 to 100, comes to under a rubric with this least score.
#[must_use]
pub fn judged(score: f64, min: f64) -> Verdict {
    if !(0.0..=100.0).contains(&score) {
        return Verdict::missed(format!("the judge gave {score}"));
    }
    let said = format!("the judge gave {score:.0}");
    if score < min { Verdict::missed(format!("{said}, less than {min}")) } else { Verdict::part(score / 100.0, said) }
}

impl Kind {
    /// What the check says of an output; `None` where a judge has to say it.
    #[must_use]
    pub fn verdict(&self, output: &Value) -> Option<Verdict> {
        let there =
            |path: &str| output.pointer(path).ok_or_else(|| Verdict::missed(format!("there is nothing at {path}")));
        let verdict = match self {
            Self::Exact { path, one_of, order } => there(path).map(|value| exact(value, one_of, *order)),
            Self::Numeric { path, of, min, max } => there(path).map(|value| numeric(value, *of, *min, *max)),
            Self::Contains { path, all, any, none, ignore_case, words } => {
                let holds = Holds { ignore_case: *ignore_case, words: *words };
                there(path).map(|value| contains(&as_text(value), [all, any, none], holds))
            }
            Self::Schema { schema } => Ok(fits(output, schema)),
            Self::Rubric { .. } => return None,
        };
        Some(verdict.unwrap_or_else(|missed| missed))
    }

    /// The text that a judge is shown of an output; `None` for other checks, and where there is nothing.
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

/// Equal as JSON values: 1 is 1.0, and members have no order. The order that may not count is that of the outermost
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

fn numeric(value: &Value, of: Of, min: f64, max: f64) -> Verdict {
    let number = match (of, value) {
        (Of::Value, value) => value.as_f64(),
        (Of::Words, Value::String(text)) => Some(text.split_whitespace().count() as f64),
        (Of::Characters, Value::String(text)) => Some(text.chars().count() as f64),
        (Of::Items, Value::Array(items)) => Some(items.len() as f64),
        (Of::Items, Value::Object(members)) => Some(members.len() as f64),
        _ => None,
    };
    match number {
        Some(number) if (min..=max).contains(&number) => Verdict::met(),
        Some(number) if number < min => Verdict::missed(format!("{number} is less than {min}")),
        Some(number) => Verdict::missed(format!("{number} is more than {max}")),
        None => Verdict::missed(format!("{} is of another kind", clipped(&value.to_string(), 80))),
    }
}

/// What counts as a part of a text.
#[derive(Clone, Copy)]
struct Holds {
    ignore_case: bool,
    words: bool,
}

impl Holds {
    fn folded(self, text: &str) -> Cow<'_, str> {
        if self.ignore_case { Cow::Owned(text.to_lowercase()) } else { Cow::Borrowed(text) }
    }

    /// Whether a part is in a text; both are folded.
    fn has(self, text: &str, part: &str) -> bool {
        // Where the part itself begins or ends with a mark, anything may stand beside it.
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

fn contains(text: &str, [all, any, none]: [&[String]; 3], holds: Holds) -> Verdict {
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

    fn number(path: &str, of: Of, min: f64, max: f64) -> Kind {
        Kind::Numeric { path: path.to_owned(), of, min, max }
    }

    #[test]
    fn checks_say_how_much_is_met() {
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
            (number("/x", Of::Value, 0.5, 0.6), 1.0, ""),
            (number("/x", Of::Value, 0.6, 1.0), 0.0, "less than 0.6"),
            (number("/text", Of::Words, 3.0, 3.0), 1.0, ""),
            (number("/text", Of::Characters, 0.0, 18.0), 0.0, "19 is more than 18"),
            (number("/list", Of::Items, 3.0, 3.0), 1.0, ""),
            (number("/text", Of::Items, 0.0, 9.0), 0.0, "another kind"),
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
    fn a_judge_has_the_say_over_rubrics() {
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
