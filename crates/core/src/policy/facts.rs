//! The facts of a call for selectors and conditions. They are converted to CEL values at most once, and only if a
//! condition needs them.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::extractors::This;
use cel::objects::{Key, Map};
use cel::{Context, Env, ExecutionError, Value};

use super::condition::{Condition, TAINT, TAINTED, pattern};
use super::rule::{EffectSelector, ToolNote};
use super::text_scan::{self, AddressKind, MAX_ADDRESSES};
use super::user_request::UserRequest;
use super::{HintTrust, PolicyQuery, RuleDirection};
use crate::definition::CallScope;
use crate::definition::Effects;
use crate::identity::taint::TaintedArgument;
use crate::json::pointer::{is_within, push};

/// Bytes of text in arguments that a condition looks at.
const MAX_TEXT: usize = 16 << 20;
/// Bytes of text that count as much as one value.
const TEXT_UNIT: usize = 256;
/// Levels of arguments.
const MAX_LEVELS: usize = 128;

/// The standard library without regular expressions: `matches` is ours, and compiles a pattern once.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A call as seen by rules.
pub(super) struct Facts<'q> {
    pub(super) query: &'q PolicyQuery<'q>,
    /// Its effects from the operator's note, else from the definition.
    pub(super) effects: Effects,
    /// Whether its hints may loosen policy.
    pub(super) trusted: bool,
    /// Tags from the operator's notes, besides the definition's.
    tags: Vec<&'q String>,
    values: OnceCell<CelValues>,
}

/// One part of a call that stands for several.
pub(super) struct BatchedCall<'q> {
    list: &'static str,
    index: usize,
    arguments: &'q serde_json::Value,
}

impl BatchedCall<'_> {
    /// Its name in words.
    pub(super) fn name(&self) -> String {
        format!("{}[{}]", self.list, self.index)
    }

    fn place(&self) -> String {
        let mut place = String::new();
        push(&mut place, self.list);
        push(&mut place, &self.index.to_string());
        place
    }
}

/// Values of a call, and their size for [`Condition::is_affordable`].
struct CelValues {
    args: Value,
    size: u64,
    tool: Value,
    principal: Value,
    workspace: Value,
    request: Option<Arc<UserRequest>>,
}

impl<'q> Facts<'q> {
    /// Collects the facts of a call, with the notes that cover its tool.
    pub(super) fn of(query: &'q PolicyQuery<'q>, notes: &'q [ToolNote]) -> Self {
        let definition = query.definition;
        let own = query.trust == HintTrust::Trusted;
        let mut facts =
            Self { query, effects: definition.effects, trusted: own, tags: Vec::new(), values: OnceCell::new() };
        let mut noted_effects = EffectSelector::default();
        for note in notes.iter().filter(|note| note.covers(&definition.id)) {
            noted_effects = noted_effects.or(note.effects);
            facts.tags.extend(&note.tags);
        }
        if !noted_effects.is_empty() {
            facts.effects = noted_effects.over(if own { definition.effects } else { Effects::UNKNOWN });
            facts.trusted = true;
        }
        facts
    }

    /// The effects that may loosen.
    pub(super) fn trusted_effects(&self) -> Effects {
        if self.trusted { self.effects } else { Effects::UNKNOWN }
    }

    /// Whether the tool has this tag.
    pub(super) fn has_tag(&self, tag: &str) -> bool {
        self.query.definition.tags.iter().chain(self.tags.iter().copied()).any(|has| has == tag)
    }

    /// The effects to test a rule with, one after the other. A foreign tool's own hints loosen nothing:
    /// a rule that allows tests the vouched effects; a rule that tightens tests the hints and unknown effects.
    pub(super) fn views(&self, rule: RuleDirection) -> impl Iterator<Item = Effects> + use<> {
        let (own, unknown) = match (self.trusted, rule) {
            (true, _) | (false, RuleDirection::Loosens) => (Some(self.trusted_effects()), None),
            (false, RuleDirection::Tightens) => (Some(self.effects), Some(Effects::UNKNOWN)),
        };
        own.into_iter().chain(unknown)
    }

    /// Returns the parts of a call that stands for several; only our own tools can declare them.
    pub(super) fn parts(&self) -> Vec<BatchedCall<'q>> {
        let Some(parts) = self.query.definition.parts.as_ref().filter(|_| self.query.trust == HintTrust::Trusted)
        else {
            return Vec::new();
        };
        let listed = self.query.arguments.get(parts.argument).and_then(serde_json::Value::as_array);
        let listed = listed.into_iter().flatten().enumerate();
        listed.map(|(index, arguments)| BatchedCall { list: parts.argument, index, arguments }).collect()
    }

    /// Whether the call meets a condition, with these effects. Arguments of `part` replace the call's own.
    ///
    /// # Errors
    /// Why the condition cannot be evaluated, for operator and model.
    pub(super) fn meets(
        &self,
        condition: &Condition,
        effects: Effects,
        part: Option<&BatchedCall<'_>>,
    ) -> Result<bool, String> {
        let values = self.values.get_or_init(|| self.values());
        if !condition.is_affordable(values.size) {
            return Err("the arguments are too large for it".to_owned());
        }
        let mut context = Context::with_env(Arc::clone(&ENV));
        for (name, value) in [
            (
                "args",
                match part {
                    Some(part) => with_part(&values.args, ArgumentSizer::default().value(part.arguments, 0)),
                    None => values.args.clone(),
                },
            ),
            ("tool", values.tool.clone()),
            ("principal", values.principal.clone()),
            ("workspace", values.workspace.clone()),
            ("effects", effects_value(effects)),
            ("request", request_value(values.request.as_deref())),
        ] {
            context.add_variable_from_value(name, value);
        }
        if condition.asks_taint {
            let taint = taint_value(self.query.arguments, "", self.query.tainted);
            let taint = match part {
                Some(part) => with_part(&taint, taint_value(part.arguments, &part.place(), self.query.tainted)),
                None => taint,
            };
            context.add_variable_from_value(TAINT, taint);
        }
        functions(&mut context, condition, values.request.clone()).map_err(|error| error.to_string())?;
        match Value::resolve(&condition.expression, &context) {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(_) => Err("it is neither true nor false".to_owned()),
            Err(ExecutionError::NoSuchKey(key)) => Err(format!("there is no `{key}`; test with has() first")),
            Err(error) => Err(crate::output::head_and_tail(&error.to_string(), 300)),
        }
    }

    fn values(&self) -> CelValues {
        let query = self.query;
        let id = &query.definition.id;
        let mut meter = ArgumentSizer::default();
        let args = meter.value(query.arguments, 0);
        let tags = query.definition.tags.iter().chain(self.tags.iter().copied());
        CelValues {
            args,
            size: meter.size(),
            tool: object([
                ("id", id.as_str().into()),
                ("namespace", id.namespace().into()),
                ("name", id.name().into()),
                ("tags", list(tags)),
            ]),
            principal: object([
                ("id", query.principal.id.as_str().into()),
                ("roles", list(query.principal.roles.iter())),
            ]),
            workspace: object([
                ("root", query.root.to_string_lossy().as_ref().into()),
                ("inside", (query.scope == CallScope::Workspace).into()),
                ("configuration", (query.scope == CallScope::Configuration).into()),
            ]),
            request: query.request.cloned(),
        }
    }
}

/// Combines the arguments with those of one part.
fn with_part(args: &Value, part: Value) -> Value {
    match (args, part) {
        (Value::Map(args), Value::Map(part)) => {
            let members = args.map.iter().chain(part.map.iter());
            Value::Map(Map::from(members.map(|(key, value)| (key.clone(), value.clone())).collect::<HashMap<_, _>>()))
        }
        (args, _) => args.clone(),
    }
}

/// Turns arguments into CEL values and measures them.
#[derive(Default)]
struct ArgumentSizer {
    values: usize,
    text: usize,
    too_much: bool,
}

impl ArgumentSizer {
    fn size(&self) -> u64 {
        if self.too_much { u64::MAX } else { (self.values + self.text / TEXT_UNIT) as u64 }
    }

    fn value(&mut self, value: &serde_json::Value, level: usize) -> Value {
        self.values += 1;
        if level > MAX_LEVELS || self.text > MAX_TEXT {
            self.too_much = true;
            return Value::Null;
        }
        match value {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(value) => Value::Bool(*value),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(int), _) => Value::Int(int),
                (None, Some(int)) => Value::UInt(int),
                (None, None) => number.as_f64().map_or(Value::Null, Value::Float),
            },
            serde_json::Value::String(text) => {
                self.text += text.len();
                text.as_str().into()
            }
            serde_json::Value::Array(items) => {
                Value::List(Arc::new(items.iter().map(|item| self.value(item, level + 1)).collect()))
            }
            serde_json::Value::Object(members) => {
                let members = members.iter().map(|(key, member)| {
                    self.text += key.len();
                    (Key::from(key.as_str()), self.value(member, level + 1))
                });
                Value::Map(Map::from(members.collect::<HashMap<_, _>>()))
            }
        }
    }
}

fn functions(
    context: &mut Context<'_, '_>,
    condition: &Condition,
    request: Option<Arc<UserRequest>>,
) -> Result<(), cel::DeclarationError> {
    let patterns = Arc::clone(&condition.patterns);
    context.add_function("matches", move |This(text): This<Arc<String>>, regex: Arc<String>| {
        match patterns.get(&*regex) {
            Some(pattern) => Ok(pattern.is_match(&text)),
            None => match pattern(&regex) {
                Ok(pattern) => Ok(pattern.is_match(&text)),
                Err(error) => Err(ExecutionError::function_error("matches", error)),
            },
        }
    })?;
    context.add_function("mentions", move |This(_): This<Value>, value: Value| {
        request.as_ref().is_some_and(|request| names_value(request, &value))
    })?;
    context.add_function("links", |value: Value| found(&[AddressKind::Link], "links", &value))?;
    context.add_function("emails", |value: Value| found(&[AddressKind::Email], "emails", &value))?;
    context.add_function("accounts", |value: Value| found(&[AddressKind::Account], "accounts", &value))?;
    context.add_function("codes", |value: Value| codes_of(&value))?;
    context.add_function("names", |value: Value| names(&value))?;
    context.add_function("switches", |value: Value| switches(&value))?;
    context.add_function("addresses", |value: Value| {
        found(&[AddressKind::Link, AddressKind::Email, AddressKind::Account], "addresses", &value)
    })
}

/// Whether the user's words name a value. A list or map is named if it has nameable values and all are named (keys
/// aside). `null`, an empty text, `true` and `false` cannot be named, and are ignored in lists and maps.
fn names_value(request: &UserRequest, value: &Value) -> bool {
    named(request, value) == Some(true)
}

/// Whether all nameable parts of a value are named; `None` if there are none.
fn named(request: &UserRequest, value: &Value) -> Option<bool> {
    let all = |parts: &mut dyn Iterator<Item = &Value>| {
        parts.filter_map(|part| named(request, part)).reduce(|one, other| one && other)
    };
    match value {
        Value::Null | Value::Bool(_) => None,
        #[expect(clippy::cast_precision_loss, reason = "so large a number is named by one as large")]
        Value::Int(number) => Some(request.names_number(*number as f64)),
        #[expect(clippy::cast_precision_loss, reason = "so large a number is named by one as large")]
        Value::UInt(number) => Some(request.names_number(*number as f64)),
        Value::Float(number) => Some(request.names_number(*number)),
        Value::String(text) => request.names_text(text),
        Value::List(items) => all(&mut items.iter()),
        Value::Map(members) => all(&mut members.map.values()),
        _ => Some(false),
    }
}

/// Returns the taint of a value: a map with the same members, and `tainted`. `place` is its pointer.
fn taint_value(value: &serde_json::Value, place: &str, tainted: &[TaintedArgument]) -> Value {
    let touches = |one: &&TaintedArgument| is_within(&one.path, place) || is_within(place, &one.path);
    let near: Vec<TaintedArgument> = tainted.iter().filter(touches).cloned().collect();
    let below = |step: &str| {
        let mut below = place.to_owned();
        push(&mut below, step);
        below
    };
    let mut members: HashMap<Key, Value> = match value {
        serde_json::Value::Object(members) => members
            .iter()
            .map(|(name, member)| (Key::from(name.as_str()), taint_value(member, &below(name), &near)))
            .collect(),
        serde_json::Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(at, item)| {
                let key = Key::Int(i64::try_from(at).unwrap_or(i64::MAX));
                (key, taint_value(item, &below(&at.to_string()), &near))
            })
            .collect(),
        _ => HashMap::new(),
    };
    members.insert(Key::from(TAINTED), Value::Bool(!near.is_empty()));
    Value::Map(Map::from(members))
}

fn request_value(request: Option<&UserRequest>) -> Value {
    let amounts = request.map(UserRequest::amounts).unwrap_or_default();
    let amounts = amounts.iter().map(|amount| Value::Float(*amount)).collect();
    object([("known", Value::Bool(request.is_some())), ("amounts", Value::List(Arc::new(amounts)))])
}

/// The codes in all texts of a value, keys too,
fn codes_of(value: &Value) -> Result<Value, ExecutionError> {
    let mut all = Vec::new();
    if texts(value, &mut |text| {
        text_scan::find_codes(text, &mut all);
        all.len() <= MAX_ADDRESSES
    }) {
        return Ok(Value::List(Arc::new(all.into_iter().map(Value::from).collect())));
    }
    Err(ExecutionError::function_error("codes", format!("there are more than {MAX_ADDRESSES} codes")))
}

/// Calls `see` with each text of a value, including keys, until it returns `false`. Returns whether all were visited.
fn texts(value: &Value, see: &mut dyn FnMut(&str) -> bool) -> bool {
    match value {
        Value::String(text) => see(text),
        Value::List(items) => items.iter().all(|item| texts(item, see)),
        Value::Map(members) => members.map.iter().all(|(key, member)| {
            let key = match key {
                Key::String(key) => see(key),
                _ => true,
            };
            key && texts(member, see)
        }),
        _ => true,
    }
}

/// The addresses in all texts of a value, keys too.
fn found(kinds: &[AddressKind], function: &str, value: &Value) -> Result<Value, ExecutionError> {
    let mut all = Vec::new();
    if kinds.iter().all(|kind| texts(value, &mut |text| text_scan::find(*kind, text, &mut all))) {
        return Ok(Value::List(Arc::new(all.into_iter().map(Value::from).collect())));
    }
    Err(ExecutionError::function_error(function, format!("there are more than {MAX_ADDRESSES} addresses")))
}

/// The names of all members in a value.
fn names(value: &Value) -> Value {
    let mut found = Vec::new();
    visit_members(value, &mut |name, _| found.push(name.to_owned()));
    sorted(found)
}

/// The members that are true or false, written `name=true` and `name=false`.
fn switches(value: &Value) -> Value {
    let mut found = Vec::new();
    visit_members(value, &mut |name, member| {
        if let Value::Bool(on) = member {
            found.push(format!("{name}={on}"));
        }
    });
    sorted(found)
}

fn sorted(mut found: Vec<String>) -> Value {
    found.sort_unstable();
    Value::List(Arc::new(found.into_iter().map(Value::from).collect()))
}

/// Calls `see` with each member. Depth is bounded because values were parsed with a bound.
fn visit_members(value: &Value, see: &mut dyn FnMut(&str, &Value)) {
    match value {
        Value::List(items) => items.iter().for_each(|item| visit_members(item, see)),
        Value::Map(members) => {
            for (key, member) in members.map.iter() {
                if let Key::String(name) = key {
                    see(name, member);
                }
                visit_members(member, see);
            }
        }
        _ => {}
    }
}

fn effects_value(effects: Effects) -> Value {
    object([
        ("read_only", effects.read_only.into()),
        ("destructive", effects.destructive.into()),
        ("idempotent", effects.idempotent.into()),
        ("open_world", effects.open_world.into()),
    ])
}

fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Map(Map::from(members.into_iter().map(|(key, value)| (Key::from(key), value)).collect::<HashMap<_, _>>()))
}

fn list<'t>(texts: impl Iterator<Item = &'t String>) -> Value {
    Value::List(Arc::new(texts.map(|text| text.as_str().into()).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn request_names_values_only_as_a_whole() {
        let request = UserRequest::new([
            "Pay 'Bill  december.txt' ($1,050.50, or 12) to GB29NWBK60161331926819. See www.true-news.com/a,",
            "then write to bob@example.com, Dora and https://shop.example.org. That is Alice's.",
        ]);
        for (value, named) in [
            (json!("gb29nwbk60161331926819"), true),
            (json!("GB29NWBK6016133192681"), false),
            (json!("bill december.TXT"), true),
            (json!("december.txt"), true),
            (json!("december"), false),
            (json!("www.true-news.com/a"), true),
            (json!("www.true-news.com"), false),
            (json!("news.com"), false),
            (json!("true-news.com/a"), false),
            (json!("https://shop.example.org"), true),
            (json!("shop.example.org"), true),
            (json!("example.org"), false),
            (json!("example.com"), false),
            (json!("bob@example.com"), true),
            (json!("bob"), false),
            (json!("Alice"), true),
            (json!("Ali"), false),
            (json!(1050.5), true),
            (json!(12), true),
            (json!(12.0), true),
            (json!(2), false),
            (json!(1050), false),
            (json!(["Alice", "dora"]), true),
            (json!(["Alice", "Fred"]), false),
            (json!({"who": "Dora", "n": 12}), true),
            (json!({"who": "Eve"}), false),
            (json!(["Alice", true, null, ""]), true),
            (json!(true), false),
            (json!(null), false),
            (json!(" "), false),
            (json!([]), false),
        ] {
            let written = ArgumentSizer::default().value(&value, 0);
            assert_eq!(names_value(&request, &written), named, "{value}");
        }
    }
}
