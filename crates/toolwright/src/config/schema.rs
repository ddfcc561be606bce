//! The JSON Schema of the configuration, made from the typed structs.

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::check::camel_case;
use super::foreign;
use super::typed::ConfigFile;

/// The schema the checker walks: snake_case keys, no references.
pub(crate) fn checked() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<ConfigFile>().to_value();
        foreign::add_keys(&mut schema["properties"]["mcp_servers"]["additionalProperties"]);
        schema
    })
}

/// The schema of one entry of a section.
pub(crate) fn entry(section: &str) -> &'static Value {
    &self::section(section)["additionalProperties"]
}

/// The schema of one section, as the checker walks it.
pub(crate) fn section(name: &str) -> &'static Value {
    &checked()["properties"][name]
}

/// The schema for editors (`toolwright config schema`): every key in both spellings, `mcp_servers` and
/// `mcpServers`, and sections that may be left empty.
#[must_use]
pub fn published() -> Value {
    let mut schema = checked().clone();
    as_written(&mut schema);
    schema
}

fn as_written(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(as_written);
            if let Some(Value::Object(properties)) = object.get_mut("properties") {
                for property in properties.values_mut() {
                    if let Some(kind) = property.get_mut("type")
                        && matches!(kind.as_str(), Some("object" | "array"))
                    {
                        *kind = json!([kind, "null"]);
                    }
                }
                let camel: Map<String, Value> = properties
                    .iter()
                    .filter(|(key, _)| key.contains('_'))
                    .map(|(key, value)| (camel_case(key), value.clone()))
                    .collect();
                properties.extend(camel);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(as_written),
        _ => {}
    }
}
