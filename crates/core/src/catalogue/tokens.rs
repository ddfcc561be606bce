//! What definitions take in a request.

use std::io;

use serde::Serialize;
use serde_json::Value;

use super::Entry;
use crate::context::EstimatedTokens;
use crate::definition::ToolDefinition;
use crate::model::ShownTool;

/// Estimated tokens ([`EstimatedTokens`]) of a definition as a request carries it: the compact JSON
/// `{"name", "description", "parameters"}`. What an API writes around it differs by a few tokens a tool.
#[must_use]
pub fn shown_tokens(tool: &ShownTool) -> usize {
    EstimatedTokens::of_bytes(bytes_of(&tool.name, &tool.description, &tool.parameters))
}

impl Entry {
    /// As [`shown_tokens`] of the tool under its wire name. The definition is looked at the first time only.
    #[must_use]
    pub fn tokens(&self) -> usize {
        EstimatedTokens::of_bytes(self.tool.nameless_bytes() + self.wire_name.len())
    }
}

/// Bytes of a tool's definition as a request carries it, under an empty name.
pub(crate) fn nameless_bytes(definition: &ToolDefinition) -> usize {
    bytes_of("", &definition.description, &definition.shown_schema())
}

fn bytes_of(name: &str, description: &str, parameters: &Value) -> usize {
    #[derive(Serialize)]
    struct Definition<'a> {
        name: &'a str,
        description: &'a str,
        parameters: &'a Value,
    }
    let mut bytes = Counted(0);
    // Neither a count nor JSON that was read can fail.
    let _ = serde_json::to_writer(&mut bytes, &Definition { name, description, parameters });
    bytes.0
}

/// Counts what is written.
struct Counted(usize);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalogue::{RegisteredTool, Snapshot};
    use crate::testing::listing;
    use crate::tool_id::ToolId;

    fn check(description: &str, parameters: Option<Value>) {
        let id = ToolId::parse("a:b@1.0.0").expect("id");
        let definition = ToolDefinition::new(id, description, parameters);
        let shown = ShownTool {
            name: "a__b".into(),
            description: description.into(),
            parameters: definition.shown_schema(),
            ..ShownTool::default()
        };
        let snapshot = Snapshot::build(&[listing("p", vec![RegisteredTool::foreign(definition, "b")])]);
        let json = json!({"name": shown.name, "description": shown.description, "parameters": shown.parameters});
        assert_eq!(shown_tokens(&shown), json.to_string().len().div_ceil(4), "{json}");
        assert_eq!(snapshot.list()[0].tokens(), shown_tokens(&shown), "{json}");
    }

    #[test]
    fn a_definition_takes_what_its_json_takes() {
        check("Reads \"it\".\n", Some(json!({"type": "object", "properties": {"é": {"type": "dict"}}})));
        check("", None);
        check("Any.", Some(json!({})));
    }
}
