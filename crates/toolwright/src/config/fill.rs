//! Fills in the variables of a tree, where its schema says that they may stand.

use std::path::Path;

use serde_json::Value;
use toolwright_runtime::queue::DEFAULT_QUEUE;

use super::check::branch;
use super::expand::{Expanded, Variables, expand};
use super::node::{Data, Node};
use super::places::Places;
use super::problem::{At, Problem, Severity};
use super::secrets::{in_address, in_arguments, is_surroundings, looks_secret, without_scheme};

/// Schema keyword: variables are filled in here. Its value says what the text is for: a `setting`, a command-line
/// `argument`, the value of a `pair` (a header, an environment variable), or a `secret` of ours.
const VARIABLES: &str = "x-variables";

/// What resolving an entry needs to know and to add to.
pub(crate) struct Scope<'a> {
    /// What the files are called in the names of sources.
    pub(crate) places: &'a Places,
    pub(crate) variables: Variables<'a>,
    pub(crate) queues: &'a [String],
    /// Where servers run that say nothing else.
    pub(crate) root: &'a Path,
    pub(crate) secrets: &'a mut Vec<String>,
    /// Variables that hold keys of ours.
    pub(crate) key_variables: &'a mut Vec<String>,
    pub(crate) problems: &'a mut Vec<Problem>,
}

/// What a string is for, which tells whether it may be secret.
#[derive(Clone, Copy)]
pub(crate) enum Holds<'a> {
    /// A plain setting.
    Setting,
    /// A command-line argument.
    Argument,
    /// The value of this header or environment variable.
    Pair(&'a str),
    /// As a pair of this name, and for us alone: children do not inherit the variables that went into it.
    OwnKey(&'a str),
}

impl Scope<'_> {
    /// Fills in what `node` holds, by its schema. Each fault is told of as one of `field`, an entry at `at`, and leaves the
    /// entry out.
    pub(crate) fn fill_in(&mut self, node: &mut Node, schema: &Value, at: &At, field: &str) {
        if let Some(purpose) = schema.get(VARIABLES).and_then(Value::as_str) {
            self.fill_texts(node, purpose, "", at, field);
            return;
        }
        let schema = branch(node, schema);
        match &mut node.data {
            Data::Map(members) => {
                for member in members {
                    let known = schema.get("properties").and_then(|properties| properties.get(&member.key));
                    let Some(below) = known.or_else(|| schema.get("additionalProperties")) else { continue };
                    self.fill_in(&mut member.value, below, at, &format!("{field}.{}", member.key));
                }
            }
            Data::List(items) => {
                let below = schema.get("items").unwrap_or(&Value::Null);
                items.iter_mut().for_each(|item| self.fill_in(item, below, at, field));
            }
            _ => {}
        }
    }

    fn fill_texts(&mut self, node: &mut Node, purpose: &str, key: &str, at: &At, field: &str) {
        match &mut node.data {
            Data::Text(text) => {
                let holds = match purpose {
                    "argument" => Holds::Argument,
                    "pair" => Holds::Pair(key),
                    "secret" => Holds::OwnKey("secret"),
                    _ => Holds::Setting,
                };
                self.fill(at, field, text, holds);
            }
            Data::List(items) => {
                items.iter_mut().for_each(|item| self.fill_texts(item, purpose, key, at, field));
                let texts: Vec<&str> = items.iter().filter_map(Node::text).collect();
                if purpose == "argument" {
                    for (part, text) in in_arguments(&texts).into_iter().zip(texts) {
                        if let Some(part) = part.filter(|part| part.is_sure) {
                            note(without_scheme(&text[part.range]), self.secrets);
                        }
                    }
                }
            }
            Data::Map(members) => {
                for member in members {
                    let field = format!("{field}.{}", member.key);
                    self.fill_texts(&mut member.value, purpose, &member.key, at, &field);
                }
            }
            _ => {}
        }
    }

    /// Expands a string of an entry in place. A fault leaves the entry out.
    pub(crate) fn fill(&mut self, at: &At, field: &str, text: &mut String, holds: Holds<'_>) {
        match expand(text, self.variables) {
            Ok(expanded) => {
                note_secrets(&expanded, holds, self.secrets);
                if let Holds::OwnKey(_) = holds {
                    self.key_variables.extend(key_variables(&expanded));
                }
                *text = expanded.text;
            }
            Err(error) => self.leave_out(at, field, error.to_string(), error.remedy()),
        }
    }

    /// Notes a fault that leaves the entry out.
    pub(crate) fn leave_out(&mut self, at: &At, field: &str, message: String, remedy: impl Into<String>) {
        self.problems.push(Problem::new(Severity::EntryDisabled, at, field, message, remedy));
    }

    /// Checks that a queue is defined; without one, what was meant to bound the calls would not.
    pub(crate) fn check_queue(&mut self, at: &At, field: &str, queue: &str) {
        if queue == DEFAULT_QUEUE || self.queues.iter().any(|known| known == queue) {
            return;
        }
        let near = toolwright_core::pattern::nearest(queue, self.queues.iter().map(String::as_str));
        let remedy = near.map_or_else(|| format!("define `queues.{queue}`"), |near| format!("did you mean `{near}`?"));
        let message = format!("there is no queue called `{queue}`");
        self.problems.push(Problem::new(Severity::Error, at, field, message, remedy));
    }
}

/// Collects what must not be printed: what variables brought into headers and environment, values whose
/// key says that they are secret, and passwords in addresses.
pub(crate) fn note_secrets(expanded: &Expanded, holds: Holds<'_>, secrets: &mut Vec<String>) {
    for (name, value) in &expanded.used {
        let secret = match holds {
            Holds::Pair(_) | Holds::OwnKey(_) => !is_surroundings(name),
            Holds::Setting | Holds::Argument => looks_secret(name),
        };
        if secret {
            note(value, secrets);
        }
    }
    // What is still a placeholder is filled in by a call.
    if expanded.text.contains("${") {
        return;
    }
    if let Holds::Pair(key) | Holds::OwnKey(key) = holds
        && looks_secret(key)
    {
        note(without_scheme(&expanded.text), secrets);
    }
    for part in in_address(&expanded.text).into_iter().filter(|part| part.is_sure) {
        note(&expanded.text[part.range], secrets);
    }
}

/// The variables of a key of ours that hold it, or a part of it.
pub(crate) fn key_variables(expanded: &Expanded) -> impl Iterator<Item = String> {
    expanded.used.iter().filter(|(name, _)| !is_surroundings(name)).map(|(name, _)| name.clone())
}

/// Adds a secret that is not there yet.
fn note(value: &str, secrets: &mut Vec<String>) {
    if !value.is_empty() && !secrets.iter().any(|have| have == value) {
        secrets.push(value.to_owned());
    }
}
