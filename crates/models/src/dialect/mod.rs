//! Translates the schemas of tools into the dialect of an API, and lists what the translation loses.
//!
//! A definition's own schema is never changed: calls are checked against it.

mod flatten;
mod keyword_values;
mod keywords;
mod object;
mod refs;
mod restore;
mod root;
mod rules;
#[cfg(test)]
mod tests;
mod types;
mod write;

use std::collections::HashSet;

use serde::Serialize;
use serde_json::{Map, Value};
use toolwright_core::model::{RequestTool, ToolVisibility};

pub(crate) use keyword_values::{in_words, is_regular};
pub use restore::PortableSchema;
use root::ViewError;
use rules::Budget;
use write::StrictDeviation;

/// The schema dialect of one or more APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI, Chat Completions and Responses alike.
    OpenAi,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini with `parametersJsonSchema`.
    GeminiJsonSchema,
    /// Ollama.
    Ollama,
    /// Schemas that every MCP client in use can pass on to its model's API.
    Portable,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 5] = [Self::OpenAi, Self::Anthropic, Self::GeminiJsonSchema, Self::Ollama, Self::Portable];
}

/// A constraint of a schema that its translation lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Wire name of the tool.
    pub tool: String,
    /// JSON Pointer into the tool's own schema, or into the merged root if parts of the root were in `anyOf` and the like.
    pub path: String,
    /// The keyword that is lost, moved or changed.
    pub keyword: String,
    /// The change, and its reason.
    pub note: String,
}

/// A tool that the API cannot accept, and so is left out of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Quarantined {
    /// Wire name of the tool.
    pub tool: String,
    /// The reason.
    pub reason: String,
}

/// A tool translated for an API.
#[derive(Debug, Clone, PartialEq)]
pub struct TranslatedTool {
    /// Wire name.
    pub name: String,
    /// Description.
    pub description: String,
    /// The translated schema.
    pub parameters: Value,
    /// Whether the API enforces the schema while the model writes (strict decoding).
    pub strict: bool,
    /// The one property that holds the arguments, if the schema's root had to be wrapped in an object.
    pub wrapped: Option<&'static str>,
    /// Whether it is declared, deferred, or the search tool.
    pub exposed: ToolVisibility,
    /// Its namespace; may be empty.
    pub namespace: String,
    /// How arguments are converted back, if the translation changed anything.
    plan: Option<Box<restore::RestorePlan>>,
}

/// The translated tools of a request, in their order, deferred ones last.
#[derive(Debug, Clone, PartialEq)]
pub struct Toolset {
    /// The dialect.
    pub dialect: Dialect,
    /// The tools that the API accepts.
    pub tools: Vec<TranslatedTool>,
    /// Losses of their translations.
    pub losses: Vec<Loss>,
    /// The tools that the API cannot accept.
    pub quarantined: Vec<Quarantined>,
}

impl Toolset {
    /// Returns a tool by wire name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TranslatedTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// The search tool, if there are deferred tools.
    pub(crate) fn tool_search(&self) -> Option<&TranslatedTool> {
        let deferred = self.tools.iter().rev().any(|tool| tool.exposed == ToolVisibility::Deferred);
        self.tools.iter().find(|tool| deferred && tool.exposed == ToolVisibility::Search)
    }

    /// Converts a model's arguments for a call of `name` back to the tool's own schema: unwrapped, with original
    /// property names, without nulls for absent properties. `None` if there is nothing to convert, as for text that is
    /// not JSON and for unknown tools.
    #[must_use]
    pub fn restore(&self, name: &str, arguments: &str) -> Option<String> {
        let tool = self.get(name).filter(|tool| tool.wrapped.is_some() || tool.plan.is_some())?;
        let arguments = serde_json::from_str(arguments).ok()?;
        let restored = restore::restore(tool.plan.as_deref(), tool.wrapped.is_some(), &tool.parameters, arguments)?;
        Some(restored.to_string())
    }

    /// The inverse of [`Toolset::restore`], for past calls: `arguments` in the translated schema of `name`. `None` if
    /// there is nothing to convert.
    #[must_use]
    pub fn replay(&self, name: &str, arguments: &Value) -> Option<Value> {
        let tool = self.get(name)?;
        restore::replay(tool.plan.as_deref(), tool.wrapped.is_some(), &tool.parameters, arguments)
    }
}

/// Translates `tools` into `dialect`. `strict` requests strict decoding of the tools whose author left it open. A tool gets it
/// if the API has it, the strict schema is equivalent, and the API's limits allow it; else a loss of the keyword `strict`
/// gives the reason. Deferred tools come last, also for those limits: Anthropic builds one grammar from all strict tools,
/// deferred or not.
///
/// The result is always legal. Malformed keywords are corrected if their meaning is clear, and listed as losses; a tool
/// that no arguments satisfy is left out.
#[must_use]
pub fn translate(dialect: Dialect, tools: &[RequestTool], strict: bool) -> Toolset {
    let mut set =
        Toolset { dialect, tools: Vec::with_capacity(tools.len()), losses: Vec::new(), quarantined: Vec::new() };
    let mut budget = Budget::ANTHROPIC;
    let mut names = HashSet::with_capacity(tools.len());
    let deferred = |tool: &&RequestTool| tool.exposed == ToolVisibility::Deferred;
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

/// Translates a response schema to one that the API can enforce: the same shapes, with unsupported bounds of values
/// moved into the descriptions. `None` if there is none.
#[must_use]
pub(crate) fn response_schema(dialect: Dialect, schema: &Value) -> Option<Value> {
    let rules = rules::rules_of_answers(dialect)?;
    let tool = RequestTool { name: "answer".into(), parameters: schema.clone(), ..RequestTool::default() };
    let view = root::write(rules, &tool, &mut Vec::new()).ok()?;
    admit(dialect, &view.parameters, &mut Budget::ANTHROPIC.clone()).ok()?;
    // A response is not converted back.
    (view.wrapped.is_none() && view.plan.is_none()).then_some(view.parameters)
}

/// Translates one tool, or says why not.
fn view(
    dialect: Dialect,
    tool: &RequestTool,
    strict: bool,
    budget: &mut Budget,
    losses: &mut Vec<Loss>,
) -> Result<TranslatedTool, String> {
    let before = losses.len();
    let strict_rules = rules::rules(dialect, true);
    let mut refused = None;
    if strict && strict_rules.strict.is_none() {
        let why = format!("{} has no strict tools", strict_rules.api);
        refused = Some(StrictDeviation { path: String::new(), why });
    } else if strict && let Err(why) = budgeted(dialect, &tool.parameters, budget) {
        refused = Some(StrictDeviation { path: String::new(), why });
    } else if strict {
        match root::write(strict_rules, tool, losses) {
            Ok(mut view) => match admit(dialect, &view.parameters, budget) {
                Ok(()) => {
                    view.strict = true;
                    describe(strict_rules.max_description, &mut view, losses);
                    return Ok(view);
                }
                Err(why) => refused = Some(StrictDeviation { path: String::new(), why }),
            },
            Err(ViewError::Inexact(inexact)) => refused = Some(inexact),
            Err(ViewError::Impossible(reason)) => return Err(reason),
        }
        losses.truncate(before);
    }
    if let Some(StrictDeviation { path, why }) = refused {
        let note = format!("sent without strict decoding: {why}");
        losses.push(Loss { tool: tool.name.clone(), path, keyword: "strict".to_owned(), note });
    }
    let rules = rules::rules(dialect, false);
    let mut view = match root::write(rules, tool, losses) {
        Ok(view) => view,
        Err(ViewError::Inexact(StrictDeviation { why: reason, .. }) | ViewError::Impossible(reason)) => {
            losses.truncate(before);
            return Err(reason);
        }
    };
    // The API has no field for the description of all arguments.
    if dialect == Dialect::Ollama
        && let Some(Value::String(text)) =
            view.parameters.as_object_mut().and_then(|map| map.shift_remove("description"))
    {
        view.description = format!("{} {text}", view.description).trim().to_owned();
    }
    if dialect == Dialect::GeminiJsonSchema && view.description.trim().is_empty() {
        view.description = placeholder_description(&tool.parameters, &tool.name);
    }
    describe(rules.max_description, &mut view, losses);
    Ok(view)
}

/// Returns a description for a tool without one, if the API requires one: that of its schema, else its name.
fn placeholder_description(parameters: &Value, name: &str) -> String {
    let texts = ["description", "title"].into_iter().filter_map(|key| parameters.get(key)?.as_str());
    texts.map(str::trim).find(|text| !text.is_empty()).unwrap_or(name).to_owned()
}

/// Whether a strict translation may be within the limits of the request, as far as known without translating.
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

/// Whether a strict translation is within the API's limits.
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

/// Whether every API accepts this tool name. Gemini requires a letter or `_` first, the others the rest.
fn is_legal_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}
