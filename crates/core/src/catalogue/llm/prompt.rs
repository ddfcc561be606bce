//! Builds the one request of an attempt from the arguments, in this order: defaults, prepare, variant, both prompts,
//! schema and example, the JSON rule first, the token limit.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::template::{TemplateError, prepare, render};
use crate::content::TokenCounter;
use crate::definition::llm::{LlmDefinition, OutputKind};
use crate::error::{ErrorKind, ToolError};
use crate::identity::tool_id::ToolId;
use crate::model::{Message, ModelRequest, ModelSettings, OutputFormat, PromptCache, PromptReuse};
use crate::schema::fill_defaults;

/// First rule in the system prompt of a tool with a JSON answer.
pub const JSON_RULE: &str = "Your whole answer is one JSON value and nothing else: no sentence before or after it, no \
                             code fence, no comment. It begins with its opening bracket and ends with its closing one.";

/// Minimal tokens of a system prompt that is worth caching for the tool's next call. Anthropic's models do not cache
/// much shorter prompts.
const LONG_PROMPT: usize = 1024;

/// Computes the templates' values from the arguments.
pub type PrepareHook = Arc<dyn Fn(Map<String, Value>) -> Result<Map<String, Value>, ToolError> + Send + Sync>;
/// Limits the answer's tokens for these arguments; `None` uses the definition's limit.
pub type TokensHook = Arc<dyn Fn(&Map<String, Value>, &dyn TokenCounter) -> Option<u32> + Send + Sync>;
/// The schema of the answer to these arguments, in place of the definition's.
pub type SchemaHook = Arc<dyn Fn(&Map<String, Value>) -> Option<Value> + Send + Sync>;
/// Corrects or refuses an answer to these arguments; a refusal is a failed attempt.
pub type OutputHook = Arc<dyn Fn(Value, &Map<String, Value>) -> Result<Value, String> + Send + Sync>;

/// Returns a warning, in one sentence, about an accepted result.
pub type WarningHook = Arc<dyn Fn(&Value, &Map<String, Value>) -> Option<String> + Send + Sync>;

/// Code hooks of a definition in Rust, which a file cannot have. All are pure.
#[derive(Clone, Default)]
pub struct LlmHooks {
    /// Runs before the definition's own `prepare`.
    pub prepare: Option<PrepareHook>,
    /// Runs before the definition's own rule.
    pub max_tokens: Option<TokensHook>,
    /// Schema of the answer, for tools whose caller chooses its form.
    pub output_schema: Option<SchemaHook>,
    /// The schema to request from the model, if stricter than the answer's schema: without optional
    /// properties, say, which OpenAI's strict mode does not support.
    pub asked_schema: Option<Value>,
    /// Name of the result's only list of objects. If the token limit cuts the answer, its complete items are the
    /// result, and the outcome's `extras` have `cut`.
    pub cut_list: Option<&'static str>,
    /// Runs after the answer was read as JSON.
    pub output: Option<OutputHook>,
    /// Runs after `output`: its text becomes a warning of code `llm_tool_result`, and `warning` in the outcome's
    /// `extras`.
    pub warning: Option<WarningHook>,
    /// How often a model is asked again with the fault of its answer, before the next model is tried.
    pub asks_again: u32,
}

impl fmt::Debug for LlmHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmHooks")
            .field("prepare", &self.prepare.is_some())
            .field("max_tokens", &self.max_tokens.is_some())
            .field("output_schema", &self.output_schema.is_some())
            .field("asked_schema", &self.asked_schema)
            .field("cut_list", &self.cut_list)
            .field("output", &self.output.is_some())
            .field("warning", &self.warning.is_some())
            .field("asks_again", &self.asks_again)
            .finish()
    }
}

/// One attempt's request, and how to read its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedPrompt {
    /// The request.
    pub request: ModelRequest,
    /// The chosen variant.
    pub variant: Option<String>,
    /// The kind of answer.
    pub output: OutputKind,
    /// The schema that it must fit.
    pub schema: Option<Value>,
    /// The arguments, with defaults.
    pub arguments: Map<String, Value>,
    /// Tokens of both prompts.
    pub input_tokens: usize,
}

/// Target of a request: model, mode and token counter.
#[derive(Clone, Copy)]
pub(super) struct PromptTarget<'a> {
    pub(super) model: &'a str,
    pub(super) mode: Option<&'a str>,
    pub(super) tokens: &'a dyn TokenCounter,
}

/// Makes the request of an attempt.
///
/// # Errors
/// `invalid_parameters` for arguments from which a prompt cannot be made.
pub(super) fn prompt(
    definition: &LlmDefinition,
    hooks: &LlmHooks,
    arguments: Value,
    target: PromptTarget<'_>,
) -> Result<RenderedPrompt, ToolError> {
    let mut arguments = arguments;
    fill_defaults(&definition.parameters, &mut arguments);
    let Value::Object(arguments) = arguments else {
        return Err(ToolError::new(ErrorKind::InvalidParameters, "the arguments are no object"));
    };
    let mut values = match &hooks.prepare {
        Some(prepare) => prepare(arguments.clone())?,
        None => arguments.clone(),
    };
    let variant = definition.variant(target.mode, target.model);
    let way = variant.map_or_else(|| definition.clone(), |variant| variant.over(definition));
    let failed = |field: &str, error| unfit(&way.id, field, error);
    prepare(&way.prepare, &mut values).map_err(|(field, error)| failed(&field, error))?;
    let system = render(&way.system, &values).map_err(|error| failed("system", error))?;
    let user = render(&way.user, &values).map_err(|error| failed("user", error))?;
    let schema = match &hooks.output_schema {
        Some(schema) => schema(&arguments).or_else(|| way.output_schema.clone()),
        None => way.output_schema.clone(),
    };
    // It belongs to the definition's own schema: a variant with another schema requests that.
    let closer = hooks.asked_schema.as_ref().filter(|_| schema == definition.output_schema);
    let asked_schema = closer.or(schema.as_ref());
    let output = way.output_kind();
    let system = match output {
        OutputKind::Text => system,
        OutputKind::Json => with_json_rule(&system, asked_schema, way.example.as_ref()),
    };
    let system_tokens = target.tokens.count(&system).0;
    let input_tokens = system_tokens + target.tokens.count(&user).0;
    let settings = way.model_preference.settings.clone();
    let preferred = way.model_preference.max_tokens;
    let max_tokens = hooks.max_tokens.as_ref().and_then(|rule| rule(&arguments, target.tokens));
    // A computed limit is not the author's word, so the configuration may lower it.
    let max_tokens = max_tokens.map(|tokens| preferred.map_or(tokens, |most| tokens.min(most)));
    let max_tokens = max_tokens.or_else(|| way.max_tokens.map(|rule| rule.of(input_tokens)));
    let request = ModelRequest {
        system,
        messages: vec![Message::user(user)],
        output: required_format(&way, output, asked_schema),
        max_tokens: max_tokens.or(preferred),
        temperature: way.model_preference.temperature,
        reuse: reuse(&settings, system_tokens),
        settings: settings.into(),
        ..ModelRequest::default()
    };
    Ok(RenderedPrompt {
        request,
        variant: variant.map(|variant| variant.id.clone()),
        output,
        schema,
        arguments,
        input_tokens,
    })
}

/// Returns the output format to demand from the API. Without a schema, APIs can only demand a JSON object, so nothing
/// is demanded if the example is another value.
fn required_format(way: &LlmDefinition, output: OutputKind, schema: Option<&Value>) -> Option<OutputFormat> {
    let is_other = schema.is_none() && way.example.as_ref().is_some_and(|example| !example.is_object());
    if output != OutputKind::Json || is_other {
        return None;
    }
    Some(OutputFormat { name: format!("{}_{}", way.id.namespace(), way.id.name()), schema: schema.cloned() })
}

/// Returns how much of the request later calls will repeat: a long system prompt, or all of the author's text.
fn reuse(settings: &ModelSettings, system_tokens: usize) -> PromptReuse {
    match settings.cache {
        Some(PromptCache::FiveMinutes | PromptCache::Hour) => PromptReuse::Conversation,
        _ if system_tokens >= LONG_PROMPT => PromptReuse::Prompt,
        _ => PromptReuse::Once,
    }
}

/// The JSON rule, the prompt, the schema and the example.
fn with_json_rule(system: &str, schema: Option<&Value>, example: Option<&Value>) -> String {
    let mut parts = vec![JSON_RULE.to_owned()];
    if !system.trim().is_empty() {
        parts.push(system.to_owned());
    }
    if let Some(schema) = schema {
        parts.push(format!("The value fits this JSON Schema:\n{schema}"));
    }
    if let Some(example) = example {
        parts.push(format!("An example of such a value, for its form and not for what it says:\n{example}"));
    }
    parts.join("\n\n")
}

/// The error for arguments that lack a value that a template uses.
pub(super) fn unfit(id: &ToolId, field: &str, error: TemplateError) -> ToolError {
    let message = format!("{id}: its `{field}` cannot be filled in: {error}");
    ToolError::new(ErrorKind::InvalidParameters, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::EstimatedTokens;
    use crate::definition::llm::{MaxTokens, Variant};
    use serde_json::json;

    fn definition() -> LlmDefinition {
        let parameters = json!({"type": "object", "properties": {
            "text": {"type": "string"}, "tone": {"type": "string", "default": "dry"},
        }});
        let id = ToolId::parse("x:t@1.0.0").expect("an id");
        let mut definition = LlmDefinition::new(id, "d", parameters, "Be {{ tone }}.", "{{ n }}: {{ text }}");
        definition.prepare.insert("n".to_owned(), "text | length".to_owned());
        definition.model_preference.max_tokens = Some(77);
        definition
    }

    fn ask(definition: &LlmDefinition, hooks: &LlmHooks, mode: Option<&str>) -> Result<RenderedPrompt, ToolError> {
        let asked = PromptTarget { model: "p/m", mode, tokens: &EstimatedTokens };
        prompt(definition, hooks, json!({"text": "abc"}), asked)
    }

    fn user(prompted: &RenderedPrompt) -> String {
        match &prompted.request.messages[..] {
            [Message::User { content }] => content[0].as_text().unwrap_or_default().to_owned(),
            other => panic!("not one user message: {other:?}"),
        }
    }

    #[test]
    fn the_steps_run_in_order() {
        let got = ask(&definition(), &LlmHooks::default(), None).expect("a request");
        assert_eq!((got.request.system.as_str(), user(&got).as_str()), ("Be dry.", "3: abc"));
        assert_eq!((got.request.max_tokens, got.request.output.clone(), got.variant.clone()), (Some(77), None, None));
        let shout: PrepareHook = Arc::new(|mut values| {
            values.insert("text".to_owned(), "ABCD".into());
            Ok(values)
        });
        let hooks = LlmHooks { prepare: Some(shout), ..LlmHooks::default() };
        let brief = Variant {
            id: "brief".to_owned(),
            mode: Some("brief".to_owned()),
            system: Some("Short.".to_owned()),
            max_tokens: Some(MaxTokens { base: 5, per_input_token: 1.0, max: 50 }),
            ..Variant::default()
        };
        let with_variant = LlmDefinition { variants: vec![brief], ..definition() };
        let got = ask(&with_variant, &hooks, Some("brief")).expect("a request");
        assert_eq!((got.request.system.as_str(), user(&got).as_str()), ("Short.", "4: ABCD"));
        assert_eq!(got.variant.as_deref(), Some("brief"));
        assert_eq!(got.request.max_tokens, Some(5 + got.input_tokens as u32));
        assert_eq!(got.arguments["text"], "abc", "the arguments stay what was asked");
    }

    #[test]
    fn long_system_prompts_are_marked_for_reuse() {
        let reuse = |words: usize, cache| {
            let mut long = LlmDefinition { system: "word ".repeat(words), ..definition() };
            long.model_preference.settings.cache = cache;
            ask(&long, &LlmHooks::default(), None).expect("a request").request.reuse
        };
        assert_eq!((reuse(10, None), reuse(4000, None)), (PromptReuse::Once, PromptReuse::Prompt));
        assert_eq!(reuse(4000, Some(PromptCache::Off)), PromptReuse::Prompt, "what is off is off whatever is kept");
        assert_eq!(reuse(10, Some(PromptCache::Hour)), PromptReuse::Conversation);
    }

    #[test]
    fn json_is_demanded_first_and_shown_last() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let json =
            LlmDefinition { output_schema: Some(schema.clone()), example: Some(json!({"a": 1})), ..definition() };
        let got = ask(&json, &LlmHooks::default(), None).expect("a request");
        let system = &got.request.system;
        let places: Vec<Option<usize>> =
            [JSON_RULE, "Be dry.", &schema.to_string(), r#"{"a":1}"#].iter().map(|part| system.find(part)).collect();
        assert!(places.is_sorted() && places.iter().all(Option::is_some) && places[0] == Some(0), "{system}");
        assert_eq!(got.request.output, Some(OutputFormat { name: "x_t".to_owned(), schema: Some(schema) }));
        let own: SchemaHook = Arc::new(|_| Some(json!({"type": "object"})));
        let got = ask(&json, &LlmHooks { output_schema: Some(own), ..LlmHooks::default() }, None).expect("a request");
        assert_eq!(got.schema, Some(json!({"type": "object"})));
    }

    #[test]
    fn json_without_schema_demands_an_object() {
        let check = |example: Option<Value>, demands: bool| {
            let json = LlmDefinition { output: Some(OutputKind::Json), example: example.clone(), ..definition() };
            let got = ask(&json, &LlmHooks::default(), None).expect("a request").request.output;
            let expect = OutputFormat { name: "x_t".to_owned(), schema: None };
            assert_eq!(got, demands.then_some(expect), "{example:?}");
        };
        check(None, true);
        check(Some(json!({"a": 1})), true);
        check(Some(json!([1, 2])), false);
        let text = ask(&definition(), &LlmHooks::default(), None).expect("a request");
        assert_eq!(text.request.output, None);
    }

    #[test]
    fn asked_schema_differs_from_checked_schema() {
        let own = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let closer = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        let json = LlmDefinition { output_schema: Some(own.clone()), ..definition() };
        let hooks = LlmHooks { asked_schema: Some(closer.clone()), ..LlmHooks::default() };
        let got = ask(&json, &hooks, None).expect("a request");
        assert!(got.request.system.contains(&closer.to_string()), "{}", got.request.system);
        assert_eq!(got.request.output.and_then(|output| output.schema), Some(closer));
        assert_eq!(got.schema, Some(own));
    }

    #[test]
    fn a_preferred_limit_caps_the_hooks_limit() {
        let check = |hook: u32, preferred: Option<u32>, expect: u32| {
            let mut preferring = definition();
            preferring.model_preference.max_tokens = preferred;
            let rule: TokensHook = Arc::new(move |_, _| Some(hook));
            let hooks = LlmHooks { max_tokens: Some(rule), ..LlmHooks::default() };
            let got = ask(&preferring, &hooks, None).expect("a request").request.max_tokens;
            assert_eq!(got, Some(expect), "{hook} {preferred:?}");
        };
        check(500, Some(77), 77);
        check(50, Some(77), 50);
        check(500, None, 500);
    }

    #[test]
    fn missing_template_value_is_invalid_parameters() {
        let lacking = LlmDefinition { user: "{{ more }}".to_owned(), ..definition() };
        let error = ask(&lacking, &LlmHooks::default(), None).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidParameters);
        assert!(error.message().contains("`user`"), "{error}");
    }
}
