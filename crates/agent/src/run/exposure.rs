//! Chooses the tools that the model is shown. The first turn chooses; later turns only append, so that the provider's
//! prompt cache stays valid.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::RunInput;
use toolwright_core::agents::prompt::Prompt;
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::exposure::{ChosenExposure, Exposure};
use toolwright_core::model::{CallResult, Message, RequestTool};

use super::turn_call::TurnCall;
use super::{NOTICE, RunState};

/// The most tools that are loaded during a run. Further called tools run, but are not shown.
const MAX_LOADED: usize = 200;
/// The most search hits whose definitions are shown. The model gets one line about each other hit, and can call them
/// too.
const MAX_FOUND: usize = 2;
/// The number of last texts of a conversation by which tools are picked.
const RECENT_TEXTS: usize = 4;

/// How a run shows tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ExposureState {
    choice: ChosenExposure,
    /// The text of the system prompt about tools that are not shown; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    index: String,
    /// Wire names of the tools that were picked, found or called without being shown, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    loaded: Vec<String>,
    /// Wire names of the tools in the last request, in its order. Not saved, because no cache is warm when a run is
    /// resumed.
    #[serde(skip)]
    order: Vec<String>,
}

impl RunState {
    /// Returns how the model is shown the catalogue, and why; `None` before the first turn.
    #[must_use]
    pub fn exposure(&self) -> Option<&ChosenExposure> {
        self.exposure.as_ref().map(|exposure| &exposure.choice)
    }

    /// Sets how the model is shown the catalogue for the rest of the run. `index` is added to the system prompt.
    pub(crate) fn expose(&mut self, choice: ChosenExposure, index: String) {
        let before = self.exposure.take();
        let (loaded, order) = before.map(|before| (before.loaded, before.order)).unwrap_or_default();
        self.exposure = Some(ExposureState { choice, index, loaded, order });
    }

    /// Shows tools from the next request on, by wire name.
    pub(crate) fn load(&mut self, names: impl IntoIterator<Item = String>) {
        let Some(exposure) = &mut self.exposure else { return };
        for name in names {
            if exposure.loaded.len() < MAX_LOADED && !exposure.loaded.contains(&name) {
                exposure.loaded.push(name);
            }
        }
    }

    /// Returns the tools that were loaded during the run. Forgets those that no longer exist.
    pub(crate) fn loaded(&mut self, exists: impl Fn(&str) -> bool) -> &[String] {
        let Some(exposure) = &mut self.exposure else { return &[] };
        exposure.loaded.retain(|name| exists(name));
        &exposure.loaded
    }

    /// Orders `names_to_list`, distinct wire names: first those of the last request in its order, then new ones.
    pub(crate) fn order_tools(&mut self, names_to_list: &[&str]) -> &[String] {
        let Some(exposure) = &mut self.exposure else { return &[] };
        let order = &mut exposure.order;
        if !order.iter().eq(names_to_list) {
            let names: HashSet<&str> = names_to_list.iter().copied().collect();
            order.retain(|name| names.contains(name.as_str()));
            let listed_names: HashSet<&str> = order.iter().map(String::as_str).collect();
            let new: Vec<String> = names_to_list
                .iter()
                .filter(|name| !listed_names.contains(*name))
                .map(|&name| name.to_owned())
                .collect();
            order.extend(new);
        }
        order
    }

    /// Loads the tools that were called without being shown, unless the call was denied.
    pub(super) fn load_called(&mut self, calls: &[TurnCall]) {
        let hides_tools = |exposure: &&ExposureState| exposure.choice.exposure != Exposure::Direct;
        let Some(exposure) = self.exposure.as_ref().filter(hides_tools) else { return };
        let is_hidden =
            |name: &String| !exposure.order.contains(name) && !self.loaded_by_results().any(|loaded| loaded == name);
        let resolved_calls = calls.iter().filter(|call| call.definition.is_some() && !call.is_denied());
        let hidden: Vec<String> =
            resolved_calls.map(|call| &call.wire_name).filter(|name| is_hidden(name)).cloned().collect();
        self.load(hidden);
    }

    /// Loads the tools that a search result has found. An API with its own tool search loads them itself, and
    /// definitions replace the lines about them. With the exposure `pick` the first few are loaded.
    pub(super) fn load_found(&mut self, result: &mut CallResult) {
        if result.loads.is_empty() {
            return;
        }
        match self.exposure().map(|choice| choice.exposure) {
            Some(Exposure::Deferred) => {
                let loaded = ContentBlock::text(format!("Found and loaded: {}", result.loads.join(", ")));
                if let Some(lines) = result.content.first_mut() {
                    *lines = loaded;
                }
            }
            Some(Exposure::Pick) => {
                let mut found = std::mem::take(&mut result.loads);
                found.truncate(MAX_FOUND);
                if let Some(lines) = result.content.first_mut() {
                    let shortened = lines.as_text().map(|lines| without_lines(lines, &found));
                    *lines = shortened.map_or_else(|| lines.clone(), ContentBlock::text);
                }
                self.load(found);
            }
            _ => result.loads.clear(),
        }
    }

    /// Returns the deferred tools that results have loaded, by wire name, with repetitions.
    pub(crate) fn loaded_by_results(&self) -> impl Iterator<Item = &str> {
        let results = self.messages.iter().filter_map(|message| match message {
            Message::Tool { results } => Some(results),
            _ => None,
        });
        results.flatten().flat_map(|result| &result.loads).map(String::as_str)
    }

    /// Returns the system prompt of requests, in its sections.
    pub(crate) fn prompt(&self) -> Prompt {
        let index = self.exposure.as_ref().map(|exposure| exposure.index.as_str()).unwrap_or_default();
        self.config.system.with_index(index)
    }

    /// Returns the system prompt of requests.
    pub(super) fn system(&self) -> String {
        self.prompt().text()
    }

    /// Returns the last texts of the user and the model, in order and at most four, which show what the model works on
    /// next. Empty if the last answer has no text, because then nothing is new.
    pub(crate) fn recent_texts(&self) -> Vec<Cow<'_, str>> {
        let texts = self.messages.iter().rev().filter_map(|message| match message {
            Message::User { content } => Some(joined_text(content).into()),
            Message::Assistant { text, .. } => Some(Cow::Borrowed(text.as_str())),
            _ => None,
        });
        let is_blank = |text: &Cow<'_, str>| text.trim().is_empty();
        let mut texts = texts.filter(|text| !text.starts_with(NOTICE)).peekable();
        if texts.peek().is_none_or(is_blank) {
            return Vec::new();
        }
        let mut last: Vec<_> = texts.filter(|text| !is_blank(text)).take(RECENT_TEXTS).collect();
        last.reverse();
        last
    }
}

/// Returns the lines of a search result, with those about `loaded` tools replaced by their names.
fn without_lines(lines: &str, loaded: &[String]) -> String {
    let is_loaded = |line: &str| {
        let name = line.split('(').next().unwrap_or_default();
        loaded.iter().any(|loaded| loaded == name)
    };
    let others = lines.lines().filter(|line| !is_loaded(line)).map(|line| format!("\n{line}"));
    format!("Found and loaded: {}{}", loaded.join(", "), others.collect::<String>())
}

/// Returns the parameter for the input, among many, that a call is for.
pub(crate) fn instance_field(input: &RunInput) -> Value {
    let names: Vec<&String> = input.instances.keys().collect();
    json!({"type": "string", "enum": names, "description": "The input that the call is for. Left out: all of them."})
}

/// Adds a meta field to the parameters of a tool, unless it has one of that name.
pub(crate) fn show_field(tool: &mut RequestTool, name: &str, field: Value) {
    let Some(schema) = tool.parameters.as_object_mut() else { return };
    schema.entry("type").or_insert("object".into());
    if let Some(properties) = schema.entry("properties").or_insert_with(|| json!({})).as_object_mut() {
        properties.entry(name).or_insert(field);
    }
}
