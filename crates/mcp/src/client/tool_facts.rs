//! What is known of a server's tools beyond their definitions, by raw name.

use hashbrown::HashMap;
use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};
use toolwright_mcp::headers::Mirrored;

/// What is known of a tool. Most have nothing worth knowing, and are not here.
#[derive(Debug, Default)]
pub(super) struct Facts(pub(super) HashMap<String, Fact>);

/// What is known of one tool.
#[derive(Debug, Clone, Default)]
pub(super) struct Fact {
    /// Its parameters that are said again in headers.
    pub(super) mirrored: Vec<Mirrored>,
    /// It cannot be called but as a task (up to 2025-11-25).
    pub(super) wants_task: bool,
    /// It is no tool of the server, but something else that is offered as one.
    pub(super) stands_for: Option<StandsFor>,
}

/// What a tool of ours stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StandsFor {
    /// `resources/list` and `resources/templates/list`.
    Resources,
    /// `resources/read`.
    Resource,
    /// `prompts/get` of this prompt.
    Prompt(String),
}

impl Facts {
    /// What is known of the tool with this raw name.
    pub(super) fn of(&self, raw_name: &str) -> Option<&Fact> {
        self.0.get(raw_name)
    }
}

impl Fact {
    /// The headers of a call with these arguments.
    pub(super) fn headers(&self, arguments: &Map<String, Value>) -> Vec<(HeaderName, HeaderValue)> {
        let header = |mirrored: &Mirrored| {
            let name = HeaderName::try_from(mirrored.header.as_str()).ok()?;
            let value = HeaderValue::try_from(mirrored.value(arguments)?).ok()?;
            Some((name, value))
        };
        self.mirrored.iter().filter_map(header).collect()
    }
}
