//! The meta fields of a call, which are beside the parameters of its tool, and their parsing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The tool's name.
pub const TOOL: &str = "_tool";
/// Why the call is made.
pub const REASONING: &str = "_reasoningForCall";
/// The result: its schema in a tool's schema, the result itself in a call of a latent tool.
pub const OUTPUT: &str = "_output";
/// The registered function that runs the call.
pub const ACTIVITY: &str = "_activity";
/// Who answers the call in a separate request.
pub const DELEGATE: &str = "_delegate";
/// The path in the state that the result is written to.
pub const OUTPUT_PATH: &str = "_outputPath";
/// How the result is combined with the existing value.
pub const OUTPUT_METHOD: &str = "_outputMethod";
/// The instance of a request over many inputs.
pub const INSTANCE: &str = "_instance";
/// Context visible to whoever runs the call.
pub const SCOPES: &str = "_scopes";

/// The names of all meta fields. In tools of our own they are not parameters.
pub const META_FIELDS: [&str; 9] =
    [TOOL, REASONING, OUTPUT, ACTIVITY, DELEGATE, OUTPUT_PATH, OUTPUT_METHOD, INSTANCE, SCOPES];

/// Whether tools of our own treat a property of this name as a meta field.
#[must_use]
pub fn is_meta_field(name: &str) -> bool {
    name.starts_with('_') && META_FIELDS.contains(&name)
}

/// How a value is joined with what stood at its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// It takes the place of what stood there.
    #[default]
    Set,
    /// An object's members are merged into those that stood there, objects in it too. Anything else is set.
    Merge,
    /// An object's members take the place of those of the same names. Anything else is set.
    Assign,
    /// It becomes the last item of the array that stood there.
    Push,
    /// The items of an array are added to the array that stood there, a text to the text.
    Concat,
    /// What stood there is gone.
    Delete,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 6] = [Self::Set, Self::Merge, Self::Assign, Self::Push, Self::Concat, Self::Delete];

    /// Returns its stored form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Merge => "merge",
            Self::Assign => "assign",
            Self::Push => "push",
            Self::Concat => "concat",
            Self::Delete => "delete",
        }
    }

    /// The method that is stored so.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == text)
    }

    /// Whether it discards the earlier values at and below the path.
    #[must_use]
    pub fn replaces(self) -> bool {
        matches!(self, Self::Set | Self::Delete)
    }
}

/// Who runs a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// The tool's own code.
    #[default]
    Tool,
    /// Nobody: the author of the call wrote its result.
    Latent,
    /// A registered function, by the name of a tool: it runs as a call inside the call.
    Activity(String),
    /// A model, in a separate request: `anonymous`, a file or a URL.
    Delegate(String),
}

impl Route {
    /// Whether the call makes or awaits other calls.
    #[must_use]
    pub fn awaits_others(&self) -> bool {
        matches!(self, Self::Activity(_) | Self::Delegate(_))
    }

    /// Whether the tool's own code runs it.
    #[must_use]
    pub fn is_tool(&self) -> bool {
        *self == Self::Tool
    }
}

/// The meta fields of one call, except its tool's name. Unset by default.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CallMeta {
    /// Why the call is made.
    #[serde(rename = "_reasoningForCall", skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The result that the author of the call wrote; null is one.
    #[serde(rename = "_output", deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The registered tool that runs the call; an empty name means none, so that the call is latent.
    #[serde(rename = "_activity", skip_serializing_if = "Option::is_none")]
    pub activity: Option<String>,
    /// Who answers the call in a separate request: `anonymous`, a file or a URL.
    #[serde(rename = "_delegate", skip_serializing_if = "Option::is_none")]
    pub delegate: Option<String>,
    /// The path in the state that the result is written to: names, joined by dots.
    #[serde(rename = "_outputPath", skip_serializing_if = "Option::is_none")]
    pub output_path: Option<String>,
    /// How the result is combined with the existing value.
    #[serde(rename = "_outputMethod", skip_serializing_if = "is_default")]
    pub output_method: Method,
    /// The instance of a request over many inputs; `None` for all instances.
    #[serde(rename = "_instance", skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Context visible to whoever runs the call.
    #[serde(rename = "_scopes", skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
}

impl CallMeta {
    /// Whether no field is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { reasoning, output, activity, delegate, output_path, output_method, instance, scopes } = self;
        let texts = [reasoning, activity, delegate, output_path, instance];
        texts.iter().all(|text| text.is_none()) && output.is_none() && is_default(output_method) && scopes.is_empty()
    }
}

fn is_default(method: &Method) -> bool {
    *method == Method::default()
}

/// A present field is a value, even if null.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn meta_fields_keep_their_names() {
        let written = json!({
            "_reasoningForCall": "why", "_output": null, "_activity": "", "_delegate": "anonymous", "_outputPath": "a.b",
            "_outputMethod": "push", "_instance": "①", "_scopes": ["state"],
        });
        let meta: CallMeta = serde_json::from_value(written.clone()).expect("meta");
        assert_eq!(meta.output, Some(Value::Null));
        assert_eq!(json!(meta), written);
        assert!(written.as_object().expect("object").keys().all(|name| is_meta_field(name)));
        assert!(!meta.is_empty() && CallMeta::default().is_empty() && json!(CallMeta::default()) == json!({}));
        assert!(!is_meta_field("_id"));
    }
}
