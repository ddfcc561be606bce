//! Which tools the model is shown. The first turn chooses them; later turns only append, so the prompt cache of the
//! provider stays valid.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::model::{CallResult, Message};
use toolwright_core::select::{Choice, Exposure};

use super::RunState;
use super::turn::TurnCall;

/// Tools that come before the model on the way. What is called after that is run, and not shown.
const MAX_LOADED: usize = 200;
/// Hits of a search that come before the model whole; it knows the others by their lines, and may call them too.
const MAX_FOUND: usize = 2;
/// Texts of a conversation that tools are picked by.
const TURNS: usize = 4;
/// How notices to the model begin, which nobody asked for.
pub(super) const NOTICE: &str = "[toolwright notice]";

/// The standing order of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ExposureState {
    choice: Choice,
    /// What the system prompt says of the tools that are not shown; empty for nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    index: String,
    /// Wire names of the tools that were picked, found or called without being shown, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    loaded: Vec<String>,
    /// Wire names of the tools in the last request, in its order. A resumed run begins a new order: by then no
    /// cache is warm.
    #[serde(skip)]
    order: Vec<String>,
}

impl RunState {
    /// How the catalogue is put before the model and why; `None` before the first turn.
    #[must_use]
    pub fn exposure(&self) -> Option<&Choice> {
        self.exposure_state.as_ref().map(|exposure_state| &exposure_state.choice)
    }

    /// Settles how the catalogue is put before the model, for the rest of the run. `index` is added to the system
    /// prompt.
    pub(crate) fn expose(&mut self, choice: Choice, index: String) {
        let before = self.exposure_state.take();
        let (loaded, order) =
            before.map(|exposure_state| (exposure_state.loaded, exposure_state.order)).unwrap_or_default();
        self.exposure_state = Some(ExposureState { choice, index, loaded, order });
    }

    /// Puts tools before the model from the next request on, by wire name.
    pub(crate) fn load(&mut self, names: impl IntoIterator<Item = String>) {
        let Some(exposure_state) = &mut self.exposure_state else { return };
        for name in names {
            if exposure_state.loaded.len() < MAX_LOADED && !exposure_state.loaded.contains(&name) {
                exposure_state.loaded.push(name);
            }
        }
    }

    /// The tools that came before the model on the way; those that are gone are forgotten.
    pub(crate) fn loaded(&mut self, is_there: impl Fn(&str) -> bool) -> &[String] {
        let Some(exposure_state) = &mut self.exposure_state else { return &[] };
        exposure_state.loaded.retain(|name| is_there(name));
        &exposure_state.loaded
    }

    /// Lines `wanted` up, distinct wire names: those of the last request first and in its order, new ones behind.
    pub(crate) fn order_tools(&mut self, wanted: &[&str]) -> &[String] {
        let Some(exposure_state) = &mut self.exposure_state else { return &[] };
        let order = &mut exposure_state.order;
        if !order.iter().eq(wanted) {
            let asked: HashSet<&str> = wanted.iter().copied().collect();
            order.retain(|name| asked.contains(name.as_str()));
            let there: HashSet<&str> = order.iter().map(String::as_str).collect();
            let new: Vec<String> =
                wanted.iter().filter(|name| !there.contains(*name)).map(|&name| name.to_owned()).collect();
            order.extend(new);
        }
        order
    }

    /// Loads what was called without being shown, unless the call was refused.
    pub(super) fn load_called(&mut self, calls: &[TurnCall]) {
        let Some(exposure_state) =
            self.exposure_state.as_ref().filter(|exposure_state| exposure_state.choice.exposure != Exposure::Direct)
        else {
            return;
        };
        let is_hidden = |name: &String| !exposure_state.order.contains(name) && !self.was_loaded_by_a_result(name);
        let taken = calls.iter().filter(|call| call.definition.is_some() && !call.is_refused());
        let known = taken.map(|call| &call.wire_name);
        let hidden: Vec<String> = known.filter(|name| is_hidden(name)).cloned().collect();
        self.load(hidden);
    }

    /// What becomes of the tools that a result has found: an API with a search of its own loads them itself, and
    /// their definitions say more than the lines that were found. Of what is picked the first few are loaded.
    pub(super) fn take_found(&mut self, result: &mut CallResult) {
        if result.loads.is_empty() {
            return;
        }
        match self.exposure().map(|choice| choice.exposure) {
            Some(Exposure::Deferred) => {
                let told = ContentBlock::text(format!("Found and loaded: {}", result.loads.join(", ")));
                if let Some(lines) = result.content.first_mut() {
                    *lines = told;
                }
            }
            Some(Exposure::Pick) => {
                let mut found = std::mem::take(&mut result.loads);
                found.truncate(MAX_FOUND);
                if let Some(lines) = result.content.first_mut() {
                    let told = lines.as_text().map(|lines| without_lines(lines, &found));
                    *lines = told.map_or_else(|| lines.clone(), ContentBlock::text);
                }
                self.load(found);
            }
            _ => result.loads.clear(),
        }
    }

    fn was_loaded_by_a_result(&self, name: &str) -> bool {
        self.loads().any(|loaded| loaded == name)
    }

    /// The deferred tools that results have put before the model, by wire name; some perhaps several times.
    pub(crate) fn loads(&self) -> impl Iterator<Item = &str> {
        let results = self.messages.iter().filter_map(|message| match message {
            Message::Tool { results } => Some(results),
            _ => None,
        });
        results.flatten().flat_map(|result| &result.loads).map(String::as_str)
    }

    /// The system prompt as the model gets it.
    pub(super) fn system(&self) -> String {
        let index =
            self.exposure_state.as_ref().map(|exposure_state| exposure_state.index.as_str()).unwrap_or_default();
        if index.is_empty() {
            return self.spec.system.clone();
        }
        format!("{}\n{index}\n", self.spec.system.trim_end_matches('\n'))
    }

    /// What the model is about to work on: the last texts of the user and the model, in order and at most 4. None if
    /// the model was the last to speak and said nothing: then nothing is new.
    pub(crate) fn said_last(&self) -> Vec<Cow<'_, str>> {
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
        let mut last: Vec<_> = texts.filter(|text| !is_blank(text)).take(TURNS).collect();
        last.reverse();
        last
    }
}

/// The lines of a search's answer but those about `loaded`, which are named instead.
fn without_lines(lines: &str, loaded: &[String]) -> String {
    let is_loaded = |line: &str| {
        let name = line.split('(').next().unwrap_or_default();
        loaded.iter().any(|loaded| loaded == name)
    };
    let others = lines.lines().filter(|line| !is_loaded(line)).map(|line| format!("\n{line}"));
    format!("Found and loaded: {}{}", loaded.join(", "), others.collect::<String>())
}
