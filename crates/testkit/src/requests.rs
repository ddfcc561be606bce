//! Requests with plans that answer them, and a fake server for the tools of such a plan. It gives the same value for
//! the same arguments, with every field that other calls refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use toolwright_core::canonical::{ContentHash, canonical_json};
use toolwright_core::plan::PlanDocument;
use toolwright_core::store::{WrittenValue, fold};

/// A tool of the data set.
#[derive(Debug, Clone, Deserialize)]
pub struct ServerTool {
    /// Its name.
    pub name: String,
    /// Its description.
    #[serde(default)]
    pub description: String,
    /// The schema of its arguments.
    pub parameters: Value,
    /// The schema of its results.
    pub output_schema: Value,
}

/// A request with a plan that answers it.
#[derive(Debug, Clone, Deserialize)]
pub struct PlannedRequest {
    /// Its name.
    pub id: String,
    /// The text of the request.
    #[serde(default)]
    pub request: String,
    /// The calls.
    pub plan: Value,
}

/// Reads a file with one JSON value a line.
///
/// # Errors
/// A message if the file cannot be read or parsed.
pub fn read_lines<T: DeserializeOwned>(file: &Path) -> Result<Vec<T>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parsed = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    parsed.map_err(|error| format!("{}: {error}", file.display()))
}

/// The calls of one plan, with the server's answers.
#[derive(Debug)]
pub struct ServerScript {
    /// The arguments of each call, with references replaced by values.
    pub arguments: Vec<Value>,
    /// The answers, by [`call_key`].
    pub answers: BTreeMap<String, Value>,
    /// The earlier calls that each call waits for.
    pub producers: Vec<BTreeSet<usize>>,
}

/// Collects the references in a value, each with the type that the tool's schema wants there.
fn references(value: &Value, schema: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::String(text) if text.starts_with('†') && !text.starts_with("††") => {
            found.push((text.clone(), schema["type"].clone()));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, &schema["items"], found)),
        Value::Object(members) => {
            members.iter().for_each(|(name, member)| references(member, &schema["properties"][name], found));
        }
        _ => {}
    }
}

/// Returns a value of this type; the same `place` always gives the same value.
fn value_of(kind: &Value, place: &str) -> Value {
    let hash = ContentHash::of_value(&json!(place)).to_string();
    let number = hash.bytes().map(u64::from).sum::<u64>();
    let short: String = hash.chars().take(12).collect();
    match kind.as_str() {
        Some("integer" | "number") => json!(number),
        Some("boolean") => json!(number.is_multiple_of(2)),
        Some("array") => json!([short]),
        Some("object") => json!({"of": short}),
        _ => json!(short),
    }
}

/// Splits a path such as `author[0].id` into its steps; an item's step is its index.
fn steps(path: &str) -> Vec<&str> {
    path.split(['.', '[', ']']).filter(|step| !step.is_empty()).collect()
}

fn put(target: &mut Value, path: &[&str], value: Value) {
    match path {
        [] => *target = value,
        [step, rest @ ..] => match step.parse::<usize>() {
            Ok(item) => {
                let mut items = target.as_array().cloned().unwrap_or_default();
                items.resize(items.len().max(item + 1), Value::Null);
                put(&mut items[item], rest, value);
                *target = items.into();
            }
            Err(_) => {
                if !target.is_object() {
                    *target = json!({});
                }
                put(&mut target[*step], rest, value);
            }
        },
    }
}

/// Converts a value to the type that the tool wants, if it has an equivalent of that type.
fn fitted(value: &Value, kind: &Value) -> Value {
    match (kind.as_str(), value) {
        (Some("string"), Value::Number(number)) => json!(number.to_string()),
        (Some("integer" | "number"), Value::String(text)) => text.parse::<i64>().map_or(value.clone(), Value::from),
        (Some("array"), Value::String(text)) => json!([text]),
        _ => value.clone(),
    }
}

/// Returns the value of a reference, from the answers of earlier calls.
fn resolve_reference(reference: &str, state: &[WrittenValue]) -> Result<Value, String> {
    let mut alternatives = reference.split("||").map(str::trim);
    let found = alternatives.find_map(|term| match term.strip_prefix("†state.") {
        Some(path) => {
            let (first, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
            let whole = fold(state.iter(), first, None)?;
            let pointer: String = steps(rest).iter().map(|step| format!("/{step}")).collect();
            whole.pointer(&pointer).cloned()
        }
        None => serde_json::from_str(term).ok(),
    });
    found.ok_or_else(|| format!("{reference} means nothing"))
}

fn replaced(value: &Value, state: &[WrittenValue]) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) if text.starts_with('†') && !text.starts_with("††") => {
            resolve_reference(text, state)?
        }
        Value::Array(items) => items.iter().map(|item| replaced(item, state)).collect::<Result<_, _>>()?,
        Value::Object(members) => {
            let member = |(name, member): (&String, &Value)| Ok((name.clone(), replaced(member, state)?));
            members.iter().map(member).collect::<Result<Map<_, _>, String>>()?.into()
        }
        other => other.clone(),
    })
}

/// Returns a key of a call: its tool and arguments, independent of the order of the arguments.
#[must_use]
pub fn call_key(tool: &str, arguments: &Value) -> String {
    format!("{tool} {}", canonical_json(arguments))
}

impl ServerScript {
    /// Computes the calls and answers of a plan without the executor. Each answer has at least `bytes` bytes.
    ///
    /// # Errors
    /// An unknown tool, or a reference without a value.
    pub fn of(plan: &PlanDocument, tools: &BTreeMap<&str, &ServerTool>, bytes: usize) -> Result<Self, String> {
        let tool = |name: &str| tools.get(name).copied().ok_or_else(|| format!("there is no tool {name}"));
        let mut read: Vec<Vec<(String, Value)>> = Vec::new();
        for call in &plan.calls {
            let mut found = Vec::new();
            references(&Value::Object(call.arguments.clone()), &tool(&call.tool)?.parameters, &mut found);
            read.push(found);
        }
        let paths: Vec<Option<&str>> = plan.calls.iter().map(|call| call.meta.output_path.as_deref()).collect();
        let (mut state, mut script) =
            (Vec::new(), Self { arguments: Vec::new(), answers: BTreeMap::new(), producers: Vec::new() });
        for (index, call) in plan.calls.iter().enumerate() {
            let tool = tool(&call.tool)?;
            let mut arguments = replaced(&Value::Object(call.arguments.clone()), &state)?;
            for (name, schema) in tool.parameters["properties"].as_object().into_iter().flatten() {
                if let Some(value) = arguments.get_mut(name) {
                    *value = fitted(value, &schema["type"]);
                }
            }
            let named = |reference: &str, path: &str| {
                reference.split("||").map(str::trim).any(|term| {
                    term.strip_prefix("†state.")
                        .and_then(|term| term.strip_prefix(path))
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
                })
            };
            // Calls that write the same path run in written order.
            let producers = (0..index).filter(|&producer| {
                paths[producer].is_some_and(|path| {
                    paths[index] == Some(path) || read[index].iter().any(|(reference, _)| named(reference, path))
                })
            });
            script.producers.push(producers.collect());
            let known = script.answers.entry(call_key(&call.tool, &arguments)).or_insert_with(|| json!({}));
            let fields = tool.output_schema["properties"].as_object();
            for name in fields.into_iter().flatten().map(|(name, _)| name) {
                if known.get(name).is_none() {
                    put(known, &[name], value_of(&Value::Null, &format!("{}.{name} of {arguments}", call.tool)));
                }
            }
            if let Some(path) = paths[index] {
                for (reference, kind) in read.iter().flatten() {
                    for term in reference.split("||").map(str::trim) {
                        let Some(rest) = term.strip_prefix(&format!("†state.{path}.")) else { continue };
                        put(known, &steps(rest), value_of(kind, &format!("{}.{rest} of {arguments}", call.tool)));
                    }
                }
            }
            if let Some(short) = bytes.checked_sub(known.to_string().len()) {
                known["more"] = "x".repeat(short).into();
            }
            if let Some(path) = paths[index] {
                state.push(WrittenValue::set(path, known.clone()));
            }
            script.arguments.push(arguments);
        }
        Ok(script)
    }
}
