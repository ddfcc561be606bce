//! The items of an answer, and who is to do something about them.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use toolwright_core::model::{ModelError, OtherCall, WrittenCall};

use super::API;
use crate::response::wire::{Text, parse_part, value};

/// Items that the client is to run beside function calls, with the key of what they ask for. An item of
/// any other type was run by the server, or is no call.
const FOR_THE_CLIENT: [(&str, &str); 8] = [
    ("custom_tool_call", "input"),
    ("shell_call", "action"),
    ("local_shell_call", "action"),
    ("apply_patch_call", "operation"),
    ("computer_call", "action"),
    ("computer_call", "actions"),
    ("tool_search_call", "arguments"),
    ("mcp_approval_request", "arguments"),
];

/// What is read of an item.
#[derive(Deserialize)]
pub(super) struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    pub kind: Text<'a>,
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    call_id: Text<'a>,
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow, default)]
    status: Text<'a>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub phase: Text<'a>,
    #[serde(borrow, default)]
    execution: Text<'a>,
    #[serde(borrow)]
    environment: Option<Environment<'a>>,
    #[serde(borrow, default)]
    pub content: Option<Vec<ContentPart<'a>>>,
    #[serde(borrow, default)]
    pub summary: Option<Vec<ContentPart<'a>>>,
}

#[derive(Deserialize)]
struct Environment<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
}

/// A part of a message or of reasoning.
#[derive(Deserialize)]
pub(super) struct ContentPart<'a> {
    #[serde(borrow, default)]
    pub text: Text<'a>,
    #[serde(borrow, default)]
    pub refusal: Text<'a>,
}

/// What an item means.
pub(super) enum Meaning {
    /// A function call.
    Call(WrittenCall),
    /// Another item for the client.
    Other(OtherCall),
    /// Something of the server's that goes back as it came.
    Opaque(Value),
    /// Nothing that is kept: a message, or an item that was cut.
    Nothing,
}

impl<'a> Item<'a> {
    pub(super) fn read(item: &'a RawValue) -> Result<Self, ModelError> {
        parse_part(API, item)
    }

    /// What `item`, which `self` was read from, means. `streamed` are the arguments that came in pieces; `search`
    /// is the tool that was shown as the tool search.
    pub(super) fn meaning(&self, item: &RawValue, streamed: String, search: Option<&str>) -> Meaning {
        let kind = self.kind.as_str();
        if kind == "message" {
            return Meaning::Nothing;
        }
        let cut = self.status.as_str() == "incomplete";
        let called = match kind {
            "function_call" => Some(self.name.as_str()),
            "tool_search_call" if self.is_for_the_client() => search,
            _ => None,
        };
        if let Some(name) = called {
            let written = self.arguments.map(crate::response::wire::arguments).unwrap_or_default();
            let arguments = if written.is_empty() { streamed } else { written.into_owned() };
            return if cut {
                Meaning::Nothing
            } else {
                Meaning::Call(WrittenCall { id: self.id(), name: name.to_owned(), arguments })
            };
        }
        if !self.is_for_the_client() {
            return Meaning::Opaque(value(item));
        }
        if cut {
            return Meaning::Nothing;
        }
        let mut whole = value(item);
        let mut asked = FOR_THE_CLIENT.iter().filter(|(name, _)| *name == kind).map(|(_, key)| *key);
        let input = asked.find_map(|key| whole.get_mut(key).map(Value::take).filter(|input| !input.is_null()));
        Meaning::Other(OtherCall {
            kind: kind.to_owned(),
            id: self.id(),
            name: self.name.filled().map(str::to_owned),
            input: input.unwrap_or_default(),
        })
    }

    /// The function call that begins with this item.
    pub(super) fn call(&self) -> WrittenCall {
        WrittenCall { id: self.id(), name: self.name.as_str().to_owned(), arguments: String::new() }
    }

    /// The id that a result names.
    fn id(&self) -> String {
        self.call_id.filled().unwrap_or(self.id.as_str()).to_owned()
    }

    fn is_for_the_client(&self) -> bool {
        match self.kind.as_str() {
            // The same search runs on either side, the item says where.
            "tool_search_call" => self.execution.as_str() == "client",
            // A shell in a container of the server's names that container.
            "shell_call" => {
                self.environment.as_ref().is_none_or(|environment| matches!(environment.kind.as_str(), "" | "local"))
            }
            kind => FOR_THE_CLIENT.iter().any(|(name, _)| *name == kind),
        }
    }
}
