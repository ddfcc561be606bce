//! `llm_tools`: LLM-backed tools, and text templates. A tool may be in a separate file: YAML, or Markdown with settings
//! between two `---` lines and prompts after them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::catalogue::RegisteredTool;
use toolwright_core::definition::ModelPreference;
use toolwright_core::llm::{DefineError, LlmDefinition, MaxTokens, TemplateDefinition, shipped};
use toolwright_core::tool_id::ToolId;

use super::check::snake_case;
use super::variables::ResolveScope;
use crate::config::files::front_matter::split;
use crate::config::files::node::{Data, Member, Node};
use crate::config::files::read_text;

const NAMESPACE: &str = "llm";
const COMPARE: &str = "compare it with `toolwright config schema`";

/// The result of an entry of `llm_tools`.
#[derive(Debug, Clone, PartialEq)]
pub enum LlmEntry {
    /// An LLM-backed tool.
    Llm(Box<LlmDefinition>),
    /// A text template.
    Template(TemplateDefinition),
    /// Changes to a shipped tool's description or models.
    Tuned(ShippedToolOverrides),
    /// The shipped tool of this name is disabled.
    Off(String),
}

impl LlmEntry {
    /// Returns the tool's name in the namespace `llm`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Llm(definition) => definition.id.name(),
            Self::Template(definition) => definition.id.name(),
            Self::Tuned(tuned) => &tuned.name,
            Self::Off(name) => name,
        }
    }
}

/// Changes to a shipped tool.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShippedToolOverrides {
    #[serde(skip)]
    name: String,
    title: Option<String>,
    description: Option<String>,
    model_preference: ModelPreference,
    recommended_threshold: Option<u8>,
    tags: Vec<String>,
}

/// The keys of [`ShippedToolOverrides`].
const OVERRIDE_KEYS: [&str; 5] = ["title", "description", "model_preference", "recommended_threshold", "tags"];

impl ShippedToolOverrides {
    /// Applies these changes to the shipped definition.
    #[must_use]
    pub fn over(&self, shipped: &LlmDefinition) -> LlmDefinition {
        let own = &shipped.model_preference;
        // Limits of the shipped definition are overridden where configured.
        let most = self.model_preference.max_tokens.unwrap_or(u32::MAX);
        let capped = |rule: MaxTokens| MaxTokens { base: rule.base.min(most), max: rule.max.min(most), ..rule };
        LlmDefinition {
            max_tokens: shipped.max_tokens.map(capped),
            title: self.title.clone().or_else(|| shipped.title.clone()),
            description: self.description.clone().unwrap_or_else(|| shipped.description.clone()),
            model_preference: ModelPreference {
                max_tokens: self.model_preference.max_tokens.or(own.max_tokens),
                temperature: self.model_preference.temperature.or(own.temperature),
                settings: self.model_preference.settings.clone().or(&own.settings),
                ..self.model_preference.clone()
            },
            recommended_threshold: self.recommended_threshold.unwrap_or(shipped.recommended_threshold),
            tags: if self.tags.is_empty() { shipped.tags.clone() } else { self.tags.clone() },
            ..shipped.clone()
        }
    }
}

/// An entry of `llm_tools`: a tool that a model answers (`user`), or a text that is filled in (`template`). Its name here is
/// its name in the namespace `llm`. One of a shipped tool's name and with neither only changes how that tool is described,
/// which models it asks and how.
#[derive(Debug)]
pub(in crate::config) struct LlmToolConfig;

impl JsonSchema for LlmToolConfig {
    fn schema_name() -> Cow<'static, str> {
        "LlmToolConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = LlmDefinition::json_schema(generator);
        // Missing fields may be in a file, or as in the shipped tool.
        schema.remove("required");
        schema.insert("description".to_owned(), "A tool that a model answers (`user`), or a text template (`template`). Its name here is its name in the namespace `llm`. An entry with neither has the name of a shipped tool and changes that tool's description and models.".into());
        let keys_of_tool = [
            ("enabled", "boolean", "Whether it is used. `false` removes the shipped tool of this name. Default true."),
            (
                "file",
                "string",
                "File with the other keys, relative to the folder of the file that names it. It is YAML, or Markdown with front matter: its text is the user's message, or has the parts `# System` and `# User`, or is the template. Keys that are set here take precedence.",
            ),
            ("version", "string", "Version of its id. Default 1.0.0."),
            ("template", "string", "The text of a tool that asks no model, with arguments to fill in."),
        ];
        if let Some(Value::Object(keys)) = schema.get_mut("properties") {
            for (key, kind, said) in keys_of_tool {
                keys.insert(key.to_owned(), json!({"description": said, "type": [kind, "null"]}));
            }
        }
        schema
    }
}

/// Reads one entry; `None`, with the reason among the problems, if it is unusable. `approved` has the approved texts of
/// the files that a project names.
pub(crate) fn entry(
    member: &Member,
    approved: &BTreeMap<PathBuf, Option<String>>,
    scope: &mut ResolveScope<'_>,
) -> Option<LlmEntry> {
    let (at, entry) = (&member.at, format!("llm_tools.{}", member.key));
    let Value::Object(mut fields) = member.value.to_value() else { return None };
    if is_off(&fields) {
        return Some(LlmEntry::Off(member.key.clone()));
    }
    if let Some(path) = file_of(member) {
        let text = match approved.get(&path) {
            Some(text) => text.clone().ok_or_else(|| "it could not be read when it was approved".to_owned()),
            None => read_text(&path).map_err(|error| error.to_string()),
        };
        match text.and_then(|text| from_file(&path, &text)).and_then(|read| over(fields, read)) {
            // A file may also disable the tool.
            Ok(read) if is_off(&read) => return Some(LlmEntry::Off(member.key.clone())),
            Ok(read) => fields = read,
            Err(why) => {
                let message = format!("{}: {why}", path.display());
                let remedy =
                    "write it with the fields of an entry of `llmTools`; of Markdown they stand above, between `---`";
                scope.leave_out(at, &format!("{entry}.file"), message, remedy);
                return None;
            }
        }
    }
    match entry_of(&member.key, fields) {
        Ok(made) => Some(made),
        Err((field, why)) => {
            let place = if field.is_empty() { entry } else { format!("{entry}.{field}") };
            scope.leave_out(at, &place, why, COMPARE);
            None
        }
    }
}

fn is_off(fields: &Map<String, Value>) -> bool {
    fields.get("enabled") == Some(&Value::Bool(false))
}

/// Returns the file of an enabled entry; its path is relative to the folder of the configuration file.
pub(crate) fn file_of(member: &Member) -> Option<PathBuf> {
    let (named, file) = (&member.value.get("file")?.at, member.value.text_of("file")?);
    let is_off = member.value.get("enabled").is_some_and(|enabled| enabled.value.data == Data::Bool(false));
    (!is_off).then(|| named.file.parent().unwrap_or(Path::new("")).join(file))
}

/// Returns the fields in a file.
fn from_file(path: &Path, text: &str) -> Result<Map<String, Value>, String> {
    let file: Arc<Path> = Arc::from(path);
    let is_markdown = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"));
    let (front, body) = if is_markdown { split(text)? } else { (text, "") };
    let node = Node::parse(front, &file).map_err(|problem| problem.message)?;
    let Value::Object(mut fields) = node.to_value() else { return Err("it is no mapping".to_owned()) };
    fields = to_snake_case_fields(fields);
    if is_markdown {
        add_body(body, &mut fields)?;
    }
    Ok(fields)
}

/// Overrides the fields of a file by those of the entry.
fn over(mut own: Map<String, Value>, mut fields: Map<String, Value>) -> Result<Map<String, Value>, String> {
    if fields.contains_key("file") {
        return Err("it names a `file` of its own: one file says all".to_owned());
    }
    // The key in the configuration is the tool's name.
    fields.shift_remove("name");
    own.shift_remove("file");
    fields.extend(own);
    Ok(fields)
}

/// Converts field names to snake case, as `output_schema`; names in schemas, examples and prepared values stay.
fn to_snake_case_fields(fields: Map<String, Value>) -> Map<String, Value> {
    let within = |key: &str, value: Value| match (key, value) {
        ("max_tokens" | "model_preference", Value::Object(fields)) => Value::Object(to_snake_case_fields(fields)),
        ("variants", Value::Array(variants)) => variants
            .into_iter()
            .map(|variant| match variant {
                Value::Object(fields) => Value::Object(to_snake_case_fields(fields)),
                other => other,
            })
            .collect(),
        ("provider_match", Value::String(one)) => json!([one]),
        (_, value) => value,
    };
    let respelt = fields.into_iter().map(|(key, value)| {
        let key = match &*snake_case(&key) {
            "input_schema" => "parameters",
            "system_prompt" => "system",
            "user_template" | "user_prompt" | "user_prompt_template" => "user",
            "output_format" | "output_type" => "output",
            "output_example" => "example",
            other => other,
        }
        .to_owned();
        let value = within(&key, value);
        (key, value)
    });
    respelt.collect()
}

/// Creates the tool of an entry and checks that it can be registered. Otherwise returns the field and its error.
fn entry_of(name: &str, mut fields: Map<String, Value>) -> Result<LlmEntry, (String, String)> {
    let refused = |field: &str, why: String| (field.to_owned(), why);
    let define = |error: DefineError| refused(&error.field, error.reason);
    let registers = |definition| {
        RegisteredTool::own(definition).map(drop).map_err(|error| refused("parameters", error.to_string()))
    };
    fields.shift_remove("enabled");
    // A null field counts as not given.
    fields.retain(|_, value| !value.is_null());
    let (asks, fills) = (fields.contains_key("user"), fields.contains_key("template"));
    if !asks && !fills {
        return overrides_of(name, fields);
    }
    let version = fields.shift_remove("version");
    let version = version.as_ref().and_then(Value::as_str).unwrap_or("1.0.0");
    let id = ToolId::format(NAMESPACE, name, version).map_err(|error| refused("", error.to_string()))?;
    fields.insert("id".to_owned(), json!(id));
    let fields = Value::Object(fields);
    match (asks, fills) {
        (true, true) => Err(refused("template", "a tool has `user` or `template`, not both".to_owned())),
        (true, false) => {
            let definition: LlmDefinition =
                serde_json::from_value(fields).map_err(|error| refused("", error.to_string()))?;
            let definition = definition.with_listed_output();
            definition.check().map_err(define)?;
            registers(definition.tool())?;
            Ok(LlmEntry::Llm(Box::new(definition)))
        }
        (false, _) => {
            let definition: TemplateDefinition =
                serde_json::from_value(fields).map_err(|error| refused("", error.to_string()))?;
            definition.check().map_err(define)?;
            registers(definition.tool())?;
            Ok(LlmEntry::Template(definition))
        }
    }
}

fn overrides_of(name: &str, fields: Map<String, Value>) -> Result<LlmEntry, (String, String)> {
    let refused = |field: &str, why: &str| Err((field.to_owned(), why.to_owned()));
    let Some(tool) = shipped().iter().find(|tool| tool.source().id.name() == name) else {
        return refused("user", "it is missing: a tool asks a model with `user`, or fills in a `template`");
    };
    if fields.keys().any(|key| !OVERRIDE_KEYS.contains(&key.as_str())) {
        let why = "of a shipped tool only title, description, model_preference, recommended_threshold and tags can be \
                   changed by themselves: with `user` it is replaced as a whole";
        return refused("", why);
    }
    let tuned: ShippedToolOverrides =
        serde_json::from_value(Value::Object(fields)).map_err(|error| (String::new(), error.to_string()))?;
    let tuned = ShippedToolOverrides { name: name.to_owned(), ..tuned };
    tuned.over(tool.source()).check().map_err(|error| (error.field, error.reason))?;
    Ok(LlmEntry::Tuned(tuned))
}

/// Puts the text into `system` and `user`: what stands under the headings `# System` and `# User`, or all of it as
/// the user's message. With `kind: template` in the front matter it is the template.
///
/// # Errors
/// A message.
fn add_body(body: &str, fields: &mut Map<String, Value>) -> Result<(), String> {
    let kind = fields.shift_remove("kind");
    let parts = match kind.as_ref().map(|kind| kind.as_str().unwrap_or_default()) {
        Some("template") => vec![("template", body.to_owned())],
        None | Some("llm") => prompts(body),
        Some(other) => return Err(format!("its kind is `{other}`: only `llm` and `template` are known")),
    };
    for (field, text) in parts {
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        if fields.insert(field.to_owned(), text.into()).is_some() {
            return Err(format!("`{field}` stands both in its front matter and in its text"));
        }
    }
    Ok(())
}

/// Returns the prompts of a text. Text before the first heading belongs to the user's message.
fn prompts(body: &str) -> Vec<(&'static str, String)> {
    let (mut system, mut user) = (String::new(), String::new());
    let mut into_system = false;
    for line in body.split_inclusive('\n') {
        match line.trim_end().to_ascii_lowercase().as_str() {
            "# system" => into_system = true,
            "# user" => into_system = false,
            _ if into_system => system.push_str(line),
            _ => user.push_str(line),
        }
    }
    vec![("system", system), ("user", user)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str, front: Value) -> Result<Value, String> {
        let (_, body) = split(text)?;
        let mut fields = front.as_object().cloned().unwrap_or_default();
        add_body(body, &mut fields)?;
        Ok(Value::Object(fields))
    }

    #[test]
    fn prompts_have_headings() {
        for (text, front, expect) in [
            ("---\na: 1\n---\nHello {{ x }}\n", json!({}), Ok(json!({"user": "Hello {{ x }}"}))),
            (
                "---\n---\n# System\nBe brief.\n\n# Rules\n- one\n# User\n{{ x }}",
                json!({}),
                Ok(json!({"system": "Be brief.\n\n# Rules\n- one", "user": "{{ x }}"})),
            ),
            ("---\r\n---\r\n# system\r\nA\r\n# USER\r\nB", json!({}), Ok(json!({"system": "A", "user": "B"}))),
            ("---\n---\nDear {{ x }}", json!({"kind": "template"}), Ok(json!({"template": "Dear {{ x }}"}))),
            ("---\n---\n", json!({"user": "u"}), Ok(json!({"user": "u"}))),
            ("---\n---\nB", json!({"user": "u"}), Err("both in its front matter")),
            ("---\n---\nB", json!({"kind": "agent"}), Err("`agent`")),
            ("# no front matter", json!({}), Err("does not begin")),
            ("---\na: 1\n", json!({}), Err("does not end")),
        ] {
            match (read(text, front), expect) {
                (Ok(fields), Ok(expect)) => assert_eq!(fields, expect, "{text}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (got, expect) => panic!("{text}: {got:?}, not {expect:?}"),
            }
        }
    }
}
