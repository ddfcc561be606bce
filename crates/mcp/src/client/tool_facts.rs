//! What is known of a server's tools beyond their definitions, by raw name.

use crate::protocol::headers::Mirrored;
use hashbrown::HashMap;
use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

/// What is known of a tool. Most have nothing worth knowing, and are not here.
#[derive(Debug, Default)]
pub(crate) struct Facts(pub(crate) HashMap<String, Fact>);

/// What is known of one tool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fact {
    /// Its parameters that are said again in headers.
    pub(crate) mirrored: Vec<Mirrored>,
    /// It cannot be called but as a task (up to 2025-11-25).
    pub(crate) wants_task: bool,
    /// It is no tool of the server, but something else that is offered as one.
    pub(crate) stands_for: Option<StandsFor>,
}

/// What a tool of ours stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StandsFor {
    /// `resources/list` and `resources/templates/list`.
    Resources,
    /// `resources/read`.
    Resource,
    /// `prompts/get` of this prompt.
    Prompt(String),
}

impl Facts {
    /// What is known of the tool with this raw name.
    pub(crate) fn of(&self, raw_name: &str) -> Option<&Fact> {
        self.0.get(raw_name)
    }
}

impl Fact {
    /// The headers of a call with these arguments.
    pub(crate) fn headers(&self, arguments: &Map<String, Value>) -> Vec<(HeaderName, HeaderValue)> {
        let header = |mirrored: &Mirrored| {
            let name = HeaderName::try_from(mirrored.header.as_str()).ok()?;
            let value = HeaderValue::try_from(mirrored.value(arguments)?).ok()?;
            Some((name, value))
        };
        self.mirrored.iter().filter_map(header).collect()
    }
}
