//! Holds the input of a run beside its task: the values of `†input` references, for all calls or by instance.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::variables::{KnownValue, child_value};
use crate::identity::taint::{Taint, TaintedArgument};
use crate::json::pointer::{self, is_within};
use crate::json::type_name;
use crate::output::json_bytes;

/// Bound on the instances of one request; more need further requests.
pub const MAX_INSTANCES: usize = 100;
/// Inputs that are given at once.
pub const MAX_INPUTS: usize = 10_000;

/// The input of a run. It never changes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RunInput {
    /// What `†input.x` stands for.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// The inputs of a request over many, by the names of their instances: `†input.x` of a call for an instance stands for
    /// its own first.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub instances: IndexMap<String, Value>,
    /// Whether references are also replaced in arguments for tools of foreign servers. By default their servers get what
    /// the model wrote.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// The places of `input` that came out of untrusted tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(skip)]
    pub tainted: Vec<TaintedArgument>,
}

impl RunInput {
    /// Whether the run has no input.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the input: an object is a single input, an array is many, each an instance named by its number.
    ///
    /// # Errors
    /// The reason why it is no input.
    pub fn of_value(value: Value) -> Result<Self, String> {
        match value {
            Value::Object(_) => Ok(Self { input: value, ..Self::default() }),
            Value::Array(items) if items.is_empty() || items.len() > MAX_INPUTS => {
                Err(format!("an array of 1 to {MAX_INPUTS} inputs is taken, and it has {}", items.len()))
            }
            Value::Array(items) => {
                let named = |(index, item)| (instance_name(index), item);
                Ok(Self { instances: items.into_iter().enumerate().map(named).collect(), ..Self::default() })
            }
            other => Err(format!("it must be a JSON object, or an array of inputs, not of type {}", type_name(&other))),
        }
    }

    /// Describes the input to a model; `None` without input. Large values are named but not shown.
    #[must_use]
    pub fn in_words(&self) -> Option<String> {
        let mut text = String::new();
        if !self.input.is_null() {
            text.push_str("An argument that is wholly `†input.NAME` stands for a value of this input:\n");
            text.push_str(&value_text(&self.input));
        }
        if !self.instances.is_empty() {
            let separator = if text.is_empty() { "" } else { "\n" };
            let count = self.instances.len();
            text.push_str(&format!(
                "{separator}This is a request over {count} inputs. A call with `_instance` is for one of them, and `†input.NAME` \
                 is that one's value:"
            ));
            for (name, input) in &self.instances {
                text.push_str(&format!("\n{name}: {}", value_text(input)));
            }
        }
        (!text.is_empty()).then_some(text)
    }

    /// Splits a request over many inputs into batches of at most [`MAX_INSTANCES`], in order. Without instances there
    /// is one.
    #[must_use]
    pub fn batches(&self) -> Vec<Self> {
        if self.instances.len() <= MAX_INSTANCES {
            return vec![self.clone()];
        }
        let all: Vec<_> = self.instances.iter().map(|(name, input)| (name.clone(), input.clone())).collect();
        let piece = |part: &[(String, Value)]| Self { instances: part.iter().cloned().collect(), ..self.clone() };
        all.chunks(MAX_INSTANCES).map(piece).collect()
    }

    /// The value at `path` for a call of an instance.
    #[must_use]
    pub fn get(&self, path: &[&str], instance: Option<&str>) -> Option<KnownValue> {
        let at = |input| path.iter().try_fold(input, |value, step| child_value(value, step)).cloned();
        if let Some(value) = instance.and_then(|name| self.instances.get(name)).and_then(at) {
            return Some(KnownValue { value, taint: Taint::default() });
        }
        let value = at(&self.input)?;
        let mut place = String::new();
        path.iter().for_each(|step| pointer::push(&mut place, step));
        let mut taint = Taint::default();
        let touches = |one: &&TaintedArgument| is_within(&one.path, &place) || is_within(&place, &one.path);
        self.tainted.iter().filter(touches).for_each(|one| taint.add(&one.from));
        Some(KnownValue { value, taint })
    }
}

/// Bytes of an input, as JSON, that a model is shown.
const MAX_SHOWN: usize = 2048;

/// Formats a value for a model: whole, or a summary of its content.
fn value_text(value: &Value) -> String {
    if json_bytes(value) <= MAX_SHOWN {
        return value.to_string();
    }
    match value {
        Value::Object(members) => {
            let names: Vec<&str> = members.keys().take(50).map(String::as_str).collect();
            format!("an object with {}", names.join(", "))
        }
        other => format!("{} of {} bytes", type_name(other), json_bytes(other)),
    }
}

/// The name of the instance at `index`: ① to ⑳, then ㉑ to ㊿, then the number itself.
#[must_use]
pub fn instance_name(index: usize) -> String {
    let sign = match u32::try_from(index).unwrap_or(u32::MAX) {
        at @ 0..20 => char::from_u32('①' as u32 + at),
        at @ 20..35 => char::from_u32('㉑' as u32 + at - 20),
        at @ 35..50 => char::from_u32('㊱' as u32 + at - 35),
        _ => None,
    };
    sign.map_or_else(|| (index + 1).to_string(), String::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::tool_id::ToolId;

    #[test]
    fn instances_read_their_own_input_first() {
        let web = Taint::of(&ToolId::parse("web:get@1.0.0").expect("id"));
        let input = RunInput {
            input: json!({"city": "Turin", "list": [1, {"to": "a@b.c"}]}),
            instances: [("①".to_owned(), json!({"city": "Oslo"}))].into_iter().collect(),
            tainted: vec![TaintedArgument { path: "/list/1".into(), from: web.clone() }],
            ..RunInput::default()
        };
        for (path, instance, expect, tainted) in [
            (vec!["city"], None, Some(json!("Turin")), false),
            (vec!["city"], Some("①"), Some(json!("Oslo")), false),
            (vec!["list", "0"], Some("①"), Some(json!(1)), false),
            (vec!["list", "1", "to"], None, Some(json!("a@b.c")), true),
            (vec!["list"], None, Some(json!([1, {"to": "a@b.c"}])), true),
            (vec!["other"], Some("①"), None, false),
        ] {
            let known = input.get(&path, instance);
            assert_eq!(known.as_ref().is_some_and(|known| known.taint == web), tainted, "{path:?}");
            assert_eq!(known.map(|known| known.value), expect, "{path:?} of {instance:?}");
        }
    }

    #[test]
    fn many_inputs_come_in_batches_of_a_hundred() {
        let many = |count: usize| RunInput {
            instances: (0..count).map(|at| (instance_name(at), json!(at))).collect(),
            ..RunInput::default()
        };
        let sizes = |count| many(count).batches().iter().map(|part| part.instances.len()).collect::<Vec<_>>();
        assert_eq!((sizes(0), sizes(100), sizes(250)), (vec![0], vec![100], vec![100, 100, 50]));
        let names = many(60);
        let at = |index: usize| names.instances.get_index(index).map(|(name, _)| name.as_str());
        assert_eq!(
            [at(0), at(19), at(20), at(35), at(49), at(50)].map(Option::unwrap_or_default),
            ["①", "⑳", "㉑", "㊱", "㊿", "51"]
        );
    }
}
