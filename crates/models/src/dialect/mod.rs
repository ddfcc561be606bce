//! The view of tools that an API takes, and what the view loses.
//!
//! A definition's own schema is never touched: what a model answers is checked against that.

mod flatten;
mod gemini;
mod keywords;
mod object;
mod refs;
mod restore;
mod root;
mod rules;
#[cfg(test)]
mod tests;
mod types;
mod words;
mod write;

use std::collections::HashSet;

use serde::Serialize;
use serde_json::{Map, Value};
use toolwright_core::model::{Exposed, ShownTool};

pub use restore::Portable;
use root::ViewError;
use rules::Budget;
pub(crate) use words::{in_words, is_regular};
use write::Inexact;

/// Rules about tool schemas that one or more APIs share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI, Chat Completions and Responses alike.
    OpenAi,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini with `parametersJsonSchema`.
    GeminiJsonSchema,
    /// Gemini with `parameters`, the subset of OpenAPI that function declarations began with.
    GeminiDeclaration,
    /// Ollama.
    Ollama,
    /// None in particular: what every client of MCP in use can hand on to its model's API.
    Portable,
}

impl Dialect {
    /// Every one.
    pub const ALL: [Self; 6] =
        [Self::OpenAi, Self::Anthropic, Self::GeminiJsonSchema, Self::GeminiDeclaration, Self::Ollama, Self::Portable];
}

/// Something that a schema says and its view does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Wire name of the tool.
    pub tool: String,
    /// JSON Pointer into the tool's own schema; into the merged root, where parts of it stood in `anyOf` and the like.
    pub path: String,
    /// The keyword that is lost, moved or changed.
    pub keyword: String,
    /// What became of it, and why.
    pub note: String,
}

/// A tool that cannot be shown to this API, and so is left out of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Quarantined {
    /// Wire name of the tool.
    pub tool: String,
    /// Why.
    pub reason: String,
}

/// One tool as an API takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct TranslatedTool {
    /// Wire name.
    pub name: String,
    /// Description.
    pub description: String,
    /// The API's view of the schema; null where the API wants none, which is said of tools without
    /// parameters under [`Dialect::GeminiDeclaration`].
    pub parameters: Value,
    /// Whether the API is to hold the model to the schema while it writes.
    pub strict: bool,
    /// The one property that holds the arguments, where the schema's root had to be wrapped in an object.
    pub wrapped: Option<&'static str>,
    /// How it is put before the model.
    pub exposed: Exposed,
    /// The namespace it belongs to; empty for none.
    pub namespace: String,
    /// How calls are changed back, where the view changed anything.
    plan: Option<Box<restore::Plan>>,
}

/// The tools of a request as an API takes them, in the order they were given, deferred ones last.
#[derive(Debug, Clone, PartialEq)]
pub struct Toolset {
    /// Whose rules were applied.
    pub dialect: Dialect,
    /// The tools that can be shown.
    pub tools: Vec<TranslatedTool>,
    /// What their views lose.
    pub losses: Vec<Loss>,
    /// The tools that cannot be shown.
    pub quarantined: Vec<Quarantined>,
}

impl Toolset {
    /// The view of one tool, by wire name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TranslatedTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// The tool that finds deferred ones, where there are any to find.
    pub(crate) fn tool_search(&self) -> Option<&TranslatedTool> {
        let deferred = self.tools.iter().rev().any(|tool| tool.exposed == Exposed::Deferred);
        self.tools.iter().find(|tool| deferred && tool.exposed == Exposed::Search)
    }

    /// The arguments of a call to `name` as the tool takes them, for what the model wrote by its view:
    /// unwrapped, properties by their own names, what is null for being left out left out. None if there is
    /// nothing to undo; so it is for text that is no JSON, and for tools that were not shown.
    #[must_use]
    pub fn restore(&self, name: &str, arguments: &str) -> Option<String> {
        let tool = self.get(name).filter(|tool| tool.wrapped.is_some() || tool.plan.is_some())?;
        let arguments = serde_json::from_str(arguments).ok()?;
        let restored = restore::restore(tool.plan.as_deref(), tool.wrapped.is_some(), &tool.parameters, arguments)?;
        Some(restored.to_string())
    }

    /// The inverse of [`Toolset::restore`], for past calls: `arguments` as the model would have written them
    /// by the view of `name`. None if they are that already.
    #[must_use]
    pub fn replay(&self, name: &str, arguments: &Value) -> Option<Value> {
        let tool = self.get(name)?;
        restore::replay(tool.plan.as_deref(), tool.wrapped.is_some(), &tool.parameters, arguments)
    }
}

/// The view of `tools` under the rules of `dialect`. `strict` asks for strict decoding of the tools whose
/// author left it open; it is sent where the API has it, the strict form of the schema says the same as the
/// schema, and the API's limits allow it; else a loss of the keyword `strict` says why not. Deferred tools
/// come last, also in what a request has room for: Anthropic builds one grammar from all strict tools, deferred
/// or not.
///
/// The result is legal whatever the schemas are. What an author wrote for JSON Schema is read as what was
/// meant, where that can be told, and recorded; a tool that cannot be called by any arguments is left out.
#[must_use]
pub fn translate(dialect: Dialect, tools: &[ShownTool], strict: bool) -> Toolset {
    let mut set =
        Toolset { dialect, tools: Vec::with_capacity(tools.len()), losses: Vec::new(), quarantined: Vec::new() };
    let mut budget = Budget::ANTHROPIC;
    let mut names = HashSet::with_capacity(tools.len());
    let deferred = |tool: &&ShownTool| tool.exposed == Exposed::Deferred;
    for tool in tools.iter().filter(|tool| !deferred(tool)).chain(tools.iter().filter(deferred)) {
        let shown = if !is_legal_name(&tool.name) {
            Err("its name is not one that the API takes".to_owned())
        } else if !names.insert(tool.name.as_str()) {
            Err("its name is that of a tool before it".to_owned())
        } else {
            view(dialect, tool, tool.strict.unwrap_or(strict), &mut budget, &mut set.losses)
        };
        match shown {
            Ok(view) => set.tools.push(view),
            Err(reason) => set.quarantined.push(Quarantined { tool: tool.name.clone(), reason }),
        }
    }
    set
}

/// The schema of an answer as an API can hold a model to it while it writes: the same shapes, without the bounds of
/// values that the API has no keyword for, which stand in the descriptions. None where there is no such view.
#[must_use]
pub(crate) fn answer(dialect: Dialect, schema: &Value) -> Option<Value> {
    let rules = rules::rules_of_answers(dialect)?;
    let tool = ShownTool { name: "answer".into(), parameters: schema.clone(), ..ShownTool::default() };
    let view = root::write(rules, &tool, &mut Vec::new()).ok()?;
    admit(dialect, &view.parameters, &mut Budget::ANTHROPIC.clone()).ok()?;
    // What would have to be changed back has another shape.
    (view.wrapped.is_none() && view.plan.is_none()).then_some(view.parameters)
}

/// The view of one tool, or why it has none.
fn view(
    dialect: Dialect,
    tool: &ShownTool,
    strict: bool,
    budget: &mut Budget,
    losses: &mut Vec<Loss>,
) -> Result<TranslatedTool, String> {
    let before = losses.len();
    let strict_rules = rules::rules(dialect, true);
    let mut refused = None;
    if strict && strict_rules.strict.is_none() {
        let why = format!("{} has no strict tools", strict_rules.api);
        refused = Some(Inexact { path: String::new(), why });
    } else if strict && let Err(why) = budgeted(dialect, &tool.parameters, budget) {
        refused = Some(Inexact { path: String::new(), why });
    } else if strict {
        match root::write(strict_rules, tool, losses) {
            Ok(mut view) => match admit(dialect, &view.parameters, budget) {
                Ok(()) => {
                    view.strict = true;
                    describe(strict_rules.max_description, &mut view, losses);
                    return Ok(view);
                }
                Err(why) => refused = Some(Inexact { path: String::new(), why }),
            },
            Err(ViewError::Inexact(inexact)) => refused = Some(inexact),
            Err(ViewError::Impossible(reason)) => return Err(reason),
        }
        losses.truncate(before);
    }
    if let Some(Inexact { path, why }) = refused {
        let note = format!("sent without strict decoding: {why}");
        losses.push(Loss { tool: tool.name.clone(), path, keyword: "strict".to_owned(), note });
    }
    let rules = rules::rules(dialect, false);
    let mut view = match root::write(rules, tool, losses) {
        Ok(view) => view,
        Err(ViewError::Inexact(Inexact { why: reason, .. }) | ViewError::Impossible(reason)) => {
            losses.truncate(before);
            return Err(reason);
        }
    };
    match dialect {
        Dialect::GeminiDeclaration => {
            view.parameters = gemini::declare(&tool.name, std::mem::take(&mut view.parameters), losses);
        }
        // It has no field for the description of the arguments as a whole.
        Dialect::Ollama => {
            if let Some(Value::String(text)) =
                view.parameters.as_object_mut().and_then(|map| map.shift_remove("description"))
            {
                view.description = format!("{} {text}", view.description).trim().to_owned();
            }
        }
        _ => {}
    }
    if matches!(dialect, Dialect::GeminiJsonSchema | Dialect::GeminiDeclaration) && view.description.trim().is_empty() {
        view.description = placeholder_description(&tool.parameters, &tool.name);
    }
    describe(rules.max_description, &mut view, losses);
    Ok(view)
}

/// A description for a tool without one, where the API wants one: what its schema says of itself, else the
/// name.
fn placeholder_description(parameters: &Value, name: &str) -> String {
    let texts = ["description", "title"].into_iter().filter_map(|key| parameters.get(key)?.as_str());
    texts.map(str::trim).find(|text| !text.is_empty()).unwrap_or(name).to_owned()
}

/// Whether a strict view could be within the limits of the request, as far as that can be told without it.
fn budgeted(dialect: Dialect, parameters: &Value, budget: &Budget) -> Result<(), String> {
    let length = |key: &str| {
        parameters.get(key).and_then(|part| part.as_object().map(Map::len).or(part.as_array().map(Vec::len)))
    };
    let marked = |property: &Value| property.get("required").is_some();
    match dialect {
        Dialect::Anthropic
            if !parameters.get("properties").and_then(Value::as_object).is_some_and(|all| all.values().any(marked)) =>
        {
            budget.admits(length("properties").unwrap_or(0).saturating_sub(length("required").unwrap_or(0)))
        }
        Dialect::Anthropic => budget.admits(0),
        _ => Ok(()),
    }
}

/// Whether a strict view is within the API's limits.
fn admit(dialect: Dialect, parameters: &Value, budget: &mut Budget) -> Result<(), String> {
    let size = rules::size(parameters);
    match dialect {
        Dialect::Anthropic => budget.take(&size),
        _ => rules::over_openai(&size).map_or(Ok(()), Err),
    }
}

fn describe(most: usize, view: &mut TranslatedTool, losses: &mut Vec<Loss>) {
    if view.description.len() <= most {
        return;
    }
    // Room is left for the mark of the cut.
    let Some((end, _)) = view.description.char_indices().nth(most) else { return };
    let end = view.description[..end].char_indices().next_back().map_or(0, |(at, _)| at);
    view.description.truncate(end);
    view.description.push('…');
    losses.push(Loss {
        tool: view.name.clone(),
        path: String::new(),
        keyword: "description".to_owned(),
        note: format!("cut after {most} characters, the most that the API takes"),
    });
}

/// Whether every API takes a tool of this name: Gemini wants a letter or `_` in front, the others what the
/// rest says.
fn is_legal_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}
