//! The schema that clients of MCP are listed for a tool, and what becomes of calls that were written by it.

use serde_json::{Value, json};
use toolwright_core::model::ShownTool;

use super::root::{self, Failed};
use super::write::Unlike;
use super::{Dialect, Loss, ToolView, restore, rules};

/// A tool's schema in the form that every client of MCP in use takes. The tool's own schema still judges calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Portable {
    view: Option<ToolView>,
    schema: Value,
    losses: Vec<Loss>,
}

impl Portable {
    /// The portable form of a schema; `name` is the tool's, for [`Portable::losses`]. There always is one: a schema that no
    /// arguments fit, or that cannot be followed, becomes an open object.
    #[must_use]
    pub fn new(name: &str, parameters: &Value) -> Self {
        let tool = ShownTool { name: name.to_owned(), parameters: parameters.clone(), ..ShownTool::default() };
        let mut losses = Vec::new();
        match root::write(rules::rules(Dialect::Portable, false), &tool, &mut losses) {
            Ok(mut view) => Self { schema: view.parameters.take(), view: Some(view), losses },
            Err(Failed::Unlike(Unlike { why, .. }) | Failed::Impossible(why)) => {
                let note = format!("shown as an object of anything: {why}");
                let loss = Loss { tool: tool.name, path: String::new(), keyword: "schema".to_owned(), note };
                Self { view: None, schema: json!({"type": "object", "properties": {}}), losses: vec![loss] }
            }
        }
    }

    /// What is listed: of an object, with `properties`, and nothing at the root that combines schemas.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// What the tool's own schema says and this form does not, or says otherwise.
    #[must_use]
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// Whether calls have to be changed back, see [`Portable::restore`].
    #[must_use]
    pub fn renames(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.plan.is_some())
    }

    /// The arguments of a call as the tool takes them: properties by their own names.
    #[must_use]
    pub fn restore(&self, arguments: Value) -> Value {
        let Some(plan) = self.view.as_ref().and_then(|view| view.plan.as_deref()) else { return arguments };
        // Nothing is wrapped: a root that may not stand as it is is merged.
        restore::restore(Some(plan), false, &self.schema, arguments.clone()).unwrap_or(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_by_shown_names_are_changed_back() {
        let schema = json!({
            "type": "object",
            "properties": {"$.xgafv": {"type": "string"}, "list": {"type": "array", "items": {"properties": {"a b": {}}}}},
        });
        let portable = Portable::new("t", &schema);
        let shown: Vec<&String> = portable.schema()["properties"].as_object().expect("properties").keys().collect();
        let inner = portable.schema()["properties"]["list"]["items"]["properties"].as_object().expect("properties");
        let inner = inner.keys().next().expect("a name");
        assert!(shown[0] != "$.xgafv" && inner != "a b", "{}", portable.schema());
        let mut call = json!({"list": [{}]});
        call[shown[0].as_str()] = json!("1");
        call["list"][0][inner.as_str()] = json!(2);
        let own = json!({"$.xgafv": "1", "list": [{"a b": 2}]});
        assert_eq!(portable.restore(call), own);
        assert_eq!(portable.restore(own.clone()), own, "own names stay");
        assert_eq!(portable.losses().len(), 2);
    }

    #[test]
    fn a_schema_that_takes_no_arguments_is_listed_as_an_open_object() {
        for schema in [json!(false), json!({"type": "string"}), json!(7)] {
            let portable = Portable::new("t", &schema);
            assert_eq!(*portable.schema(), json!({"type": "object", "properties": {}}), "{schema}");
            assert_eq!((portable.losses().len(), portable.losses()[0].keyword.as_str()), (1, "schema"));
        }
        assert!(Portable::new("t", &json!(null)).losses().is_empty(), "a tool without a schema has nothing to lose");
    }
}
