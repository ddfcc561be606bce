//! From a written `llm_tools` entry to a tool.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolwright_core::catalogue::RegisteredTool;
use toolwright_core::definition::ModelPreference;
use toolwright_core::llm::{DefineError, LlmDefinition, MaxTokens, TemplateDefinition, shipped};
use toolwright_core::tool_id::ToolId;

use super::check::snake_case;
use super::fill::Scope;
use super::layers::read_text;
use super::llm_markdown;
use super::node::{Member, Node};
use super::typed::LlmToolEntry;

const NAMESPACE: &str = "llm";
const COMPARE: &str = "compare it with `toolwright config schema`";

/// What an entry of `llm_tools` comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum LlmEntry {
    /// A tool that a model answers.
    Llm(Box<LlmDefinition>),
    /// A text that is filled in.
    Template(TemplateDefinition),
    /// A shipped tool, described or asked otherwise.
    Tuned(Tuned),
    /// A shipped tool of this name is not offered.
    Off(String),
}

impl LlmEntry {
    /// The tool's name in the namespace `llm`.
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

/// What the configuration says of a shipped tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tuned {
    name: String,
    title: Option<String>,
    description: Option<String>,
    preference: ModelPreference,
    recommended_threshold: Option<u8>,
    tags: Vec<String>,
}

impl Tuned {
    /// The shipped definition with this in place of what it says.
    #[must_use]
    pub fn over(&self, shipped: &LlmDefinition) -> LlmDefinition {
        let own = &shipped.model_preference;
        // A rule of ours is no author's word: it ends where the configuration says.
        let most = self.preference.max_tokens.unwrap_or(u32::MAX);
        let capped = |rule: MaxTokens| MaxTokens { base: rule.base.min(most), max: rule.max.min(most), ..rule };
        LlmDefinition {
            max_tokens: shipped.max_tokens.map(capped),
            title: self.title.clone().or_else(|| shipped.title.clone()),
            description: self.description.clone().unwrap_or_else(|| shipped.description.clone()),
            model_preference: ModelPreference {
                max_tokens: self.preference.max_tokens.or(own.max_tokens),
                temperature: self.preference.temperature.or(own.temperature),
                settings: self.preference.settings.clone().or(&own.settings),
                ..self.preference.clone()
            },
            recommended_threshold: self.recommended_threshold.unwrap_or(shipped.recommended_threshold),
            tags: if self.tags.is_empty() { shipped.tags.clone() } else { self.tags.clone() },
            ..shipped.clone()
        }
    }
}

/// Resolves one entry; `None`, with the reason among the problems, when it cannot be used.
/// `approved` are the texts of the files that a project names, as they were approved.
pub(crate) fn resolve(
    member: &Member,
    written: &LlmToolEntry,
    approved: &BTreeMap<PathBuf, Option<String>>,
    scope: &mut Scope<'_>,
) -> Option<LlmEntry> {
    let (at, entry) = (&member.at, format!("llm_tools.{}", member.key));
    if written.enabled == Some(false) {
        return Some(LlmEntry::Off(member.key.clone()));
    }
    let mut filled = written.clone();
    if let Some(file) = &written.file {
        let path = file_of(member, file);
        let text = match approved.get(&path) {
            Some(text) => text.clone().ok_or_else(|| "it could not be read when it was approved".to_owned()),
            None => read_text(&path).map_err(|error| error.to_string()),
        };
        match text.and_then(|text| from_file(&path, &text)).and_then(|read| over(written, read)) {
            // A file may put the tool out of use, too.
            Ok(read) if read.enabled == Some(false) => return Some(LlmEntry::Off(member.key.clone())),
            Ok(read) => filled = read,
            Err(why) => {
                let message = format!("{}: {why}", path.display());
                let remedy =
                    "write it with the fields of an entry of `llmTools`; of Markdown they stand above, between `---`";
                scope.leave_out(at, &format!("{entry}.file"), message, remedy);
                return None;
            }
        }
    }
    match made(&member.key, &filled) {
        Ok(made) => Some(made),
        Err((field, why)) => {
            let place = if field.is_empty() { entry } else { format!("{entry}.{field}") };
            scope.leave_out(at, &place, why, COMPARE);
            None
        }
    }
}

/// The file of an entry: its path begins in the folder of the configuration file that names it.
pub(crate) fn file_of(member: &Member, file: &str) -> PathBuf {
    let at = member.value.get("file").map_or(&member.at, |named| &named.at);
    at.file.parent().unwrap_or(Path::new("")).join(file)
}

/// What a file says.
fn from_file(path: &Path, text: &str) -> Result<Map<String, Value>, String> {
    let file: Arc<Path> = Arc::from(path);
    let is_markdown = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"));
    let (front, body) = if is_markdown { llm_markdown::split(text)? } else { (text, "") };
    let node = Node::parse(front, &file).map_err(|problem| problem.message)?;
    let Value::Object(mut fields) = node.to_value() else { return Err("it is no mapping".to_owned()) };
    fields = one_spelling(fields);
    if is_markdown {
        llm_markdown::add_body(body, &mut fields)?;
    }
    Ok(fields)
}

/// What the entry says over what its file says.
fn over(written: &LlmToolEntry, mut fields: Map<String, Value>) -> Result<LlmToolEntry, String> {
    if fields.contains_key("file") {
        return Err("it names a `file` of its own: one file says all".to_owned());
    }
    // The name in the configuration is the tool's name.
    fields.shift_remove("name");
    let Ok(Value::Object(own)) = serde_json::to_value(written) else { return Err("it cannot be written".to_owned()) };
    fields.extend(own.into_iter().filter(|(key, _)| key != "file"));
    serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())
}

/// Fields in one spelling, `output_schema`, as those of the configuration are; schemas, examples and prepared values
/// keep theirs.
fn one_spelling(fields: Map<String, Value>) -> Map<String, Value> {
    let within = |key: &str, value: Value| match (key, value) {
        ("max_tokens" | "model_preference", Value::Object(fields)) => Value::Object(one_spelling(fields)),
        ("variants", Value::Array(variants)) => variants
            .into_iter()
            .map(|variant| match variant {
                Value::Object(fields) => Value::Object(one_spelling(fields)),
                other => other,
            })
            .collect(),
        ("provider_match", Value::String(one)) => json!([one]),
        (_, value) => value,
    };
    let respelt = fields.into_iter().map(|(key, value)| {
        let key = snake_case(&key);
        let value = within(&key, value);
        (key, value)
    });
    respelt.collect()
}

/// The tool of an entry, tried: it registers. Else the field and what is wrong with it.
fn made(name: &str, entry: &LlmToolEntry) -> Result<LlmEntry, (String, String)> {
    let refused = |field: &str, why: String| (field.to_owned(), why);
    let version = entry.version.as_deref().unwrap_or("1.0.0");
    let id = ToolId::format(NAMESPACE, name, version).map_err(|error| refused("", error.to_string()))?;
    let define = |error: DefineError| refused(&error.field, error.reason);
    let registers = |definition| {
        RegisteredTool::own(definition).map(drop).map_err(|error| refused("parameters", error.to_string()))
    };
    let mut fields = match serde_json::to_value(entry) {
        Ok(Value::Object(fields)) => fields,
        _ => return Err(refused("", "it cannot be written".to_owned())),
    };
    for ours in ["enabled", "file", "version"] {
        fields.shift_remove(ours);
    }
    fields.insert("id".to_owned(), json!(id));
    let fields = Value::Object(fields);
    match (&entry.user, &entry.template) {
        (Some(_), Some(_)) => Err(refused("template", "a tool has `user` or `template`, not both".to_owned())),
        (Some(_), None) => {
            let definition: LlmDefinition =
                serde_json::from_value(fields).map_err(|error| refused("", error.to_string()))?;
            definition.check().map_err(define)?;
            registers(definition.tool())?;
            Ok(LlmEntry::Llm(Box::new(definition)))
        }
        (None, Some(_)) => {
            let definition: TemplateDefinition =
                serde_json::from_value(fields).map_err(|error| refused("", error.to_string()))?;
            definition.check().map_err(define)?;
            registers(definition.tool())?;
            Ok(LlmEntry::Template(definition))
        }
        (None, None) => tuned(name, entry),
    }
}

fn tuned(name: &str, entry: &LlmToolEntry) -> Result<LlmEntry, (String, String)> {
    let refused = |field: &str, why: &str| Err((field.to_owned(), why.to_owned()));
    let Some(tool) = shipped().into_iter().find(|tool| tool.source().id.name() == name) else {
        return refused("user", "it is missing: a tool asks a model with `user`, or fills in a `template`");
    };
    let whole = LlmToolEntry {
        title: None,
        description: None,
        model_preference: None,
        recommended_threshold: None,
        tags: Vec::new(),
        enabled: None,
        file: None,
        ..entry.clone()
    };
    if whole != LlmToolEntry::default() {
        let why = "of a shipped tool only title, description, model_preference, recommended_threshold and tags can be \
                   changed by themselves: with `user` it is replaced as a whole";
        return refused("", why);
    }
    let preference = entry.model_preference.clone().unwrap_or_default();
    let tuned = Tuned {
        name: name.to_owned(),
        title: entry.title.clone(),
        description: entry.description.clone(),
        preference: ModelPreference {
            settings: preference.settings(),
            preferred_model: preference.preferred_model,
            fallback_models: preference.fallback_models,
            max_tokens: preference.max_tokens,
            temperature: preference.temperature,
        },
        recommended_threshold: entry.recommended_threshold,
        tags: entry.tags.clone(),
    };
    tuned.over(tool.source()).check().map_err(|error| (error.field, error.reason))?;
    Ok(LlmEntry::Tuned(tuned))
}
