//! The table of refusals: wordings of servers' messages, and workarounds.

use std::borrow::Cow;

use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{Effort, ModelRequest, ModelSettings, OutputFormat};

use crate::api::{Api, EncodedRequest};
use crate::dialect::in_words;

/// A parameter to omit or to write another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workaround {
    /// This response schema, by its hash, is described in the system prompt.
    Schema(ContentHash),
    /// Every response schema is described in the system prompt.
    Schemas,
    /// JSON output is described in the system prompt.
    Json,
    /// With tools, the response schema is described in the system prompt.
    NoShapeBesideTools,
    /// With tools, set the effort to `none`.
    NoEffort,
    /// With tools, no effort is sent.
    SilentEffort,
    /// Use the older name of the token limit in Chat Completions.
    OlderLimit,
    /// Patterns in schemas are described in words.
    NoPatterns,
    /// Encrypted reasoning is not requested.
    NoThoughtsBack,
    /// Reasoning of another conversation is dropped.
    DropForeignThoughts,
    /// The parameter at this place of the table is left out.
    Without(usize),
    /// The parameter is omitted in this state: its value is refused, or its combination with others.
    WithoutAs(usize, ParameterState),
    /// The token limit with a thinking allowance stays below this.
    LimitUnder(u32),
    /// The token limit and the estimated request together stay below this.
    WindowUnder(usize),
}

impl Workaround {
    /// Whether this workaround can only follow one with `before`.
    pub(super) fn follows(self, before: Self) -> bool {
        matches!((before, self), (Self::Schema(_) | Self::Schemas, Self::Json) | (Self::NoEffort, Self::SilentEffort))
    }

    /// Whether this workaround includes `other`.
    pub(super) fn replaces(self, other: Self) -> bool {
        match (self, other) {
            (Self::LimitUnder(this), Self::LimitUnder(other)) => this <= other,
            (Self::WindowUnder(this), Self::WindowUnder(other)) => this <= other,
            _ => self == other,
        }
    }
}

/// A request as sent.
pub(crate) struct SentRequest<'a> {
    pub api: Api,
    pub request: &'a ModelRequest,
    pub encoded: &'a EncodedRequest,
    /// Its token limit, if that has a thinking allowance.
    pub thinking_allowance: Option<ThinkingAllowance>,
}

/// A token limit that holds an allowance for thinking.
#[derive(Clone, Copy)]
pub(crate) struct ThinkingAllowance {
    pub limit: u32,
    /// Limit and estimated request together.
    pub total: usize,
}

/// A wording of a refusal.
struct Row {
    /// The server's message, in lower case, has one wording of each list.
    wordings: &'static [&'static [&'static str]],
    /// The message contains none of these.
    but: &'static [&'static str],
    /// The workaround that may help, if it changes the request.
    workaround: fn(&SentRequest<'_>) -> Option<Workaround>,
}

/// Wordings for an unsupported feature.
const REFUSED: &[&str] = &[
    "not support",
    "n't support",
    "unsupported",
    "no longer support",
    "extra",
    "unknown",
    "unrecogni",
    "unexpected",
    "not permitted",
    "not allowed",
    "not available",
    "unavailable",
    "deprecated",
];

/// Wordings for an unsupported value in this request, while another value may work: "temperature: range: 0..1",
/// "temperature and top_p cannot both be specified".
const OF_VALUE: &[&str] = &["may only", "can only", "must be", "range", "both"];

/// Names of the limit of an answer.
const LIMIT: &[&str] =
    &["max_tokens", "max_completion_tokens", "max_output_tokens", "maxoutputtokens", "completion tokens"];
/// Wordings of a limit that is too high. OpenAI: "max_tokens is too large: 90000. This model supports at most 16384
/// completion tokens"; Anthropic: "max_tokens: 200000 > 128000, which is the maximum allowed number of output tokens";
/// Gemini: "it has a maxOutputTokens value of 68192 but the supported range is from 1 (inclusive) to 65537 (exclusive)";
/// Groq: "`max_completion_tokens` must be less than or equal to `8192`".
const TOO_MUCH: &[&str] = &[
    "too large",
    "too high",
    " > ",
    "<=",
    "range",
    "less than",
    "at most",
    "above max",
    "exceed",
    "maximum value",
    "maximum allowed",
];
/// Wordings of an overflow to which the limit of the answer adds. vLLM: "However, you requested 16500 tokens (7308 in
/// the messages, 9192 in the completion)"; Anthropic: "input length and `max_tokens` exceed context limit".
const WITH_ANSWER: &[&str] =
    &["max_tokens", "max_completion_tokens", "max_output_tokens", "maxoutputtokens", "completion", "output tokens"];

/// Wordings about the required format of an answer, from each API and compatible servers.
const SHAPE: &[&str] = &[
    // Anthropic: for Claude 4.5 and newer, and for schemas that compile to a grammar
    // (platform.claude.com/docs/en/build-with-claude/structured-outputs).
    "output_config",
    "output_format",
    "grammar",
    "structured output",
    // OpenAI. DeepSeek: "This response_format type is unavailable now"; LM Studio: "'response_format.type' must be
    // 'json_schema' or 'text'"; Groq: "This model does not support response format `json_schema`".
    "response_format",
    "response format",
    "text.format",
    "json_schema",
    "json_object",
    "json mode",
    // Gemini.
    "responsejsonschema",
    "response_json_schema",
    "response mime type",
    // Ollama: "invalid JSON schema in format".
    "schema in format",
    "'format'",
];
/// Wordings among these that are about this schema, not about the model.
const THIS_SCHEMA: &[&str] = &["grammar", "schema:", "schema for", "schema in"];
/// Wordings for an unsupported combination.
const BESIDE: &[&str] = &[
    "combin",
    "with a response mime",
    "together",
    "alongside",
    "along with",
    "at the same time",
    "in conjunction",
    "simultaneous",
    "with tool",
    "when tool",
    "using tool",
    "with function call",
    "mutually exclusive",
];

/// The first matching row counts. Answers with 400 are not billed.
const TABLE: &[Row] = &[
    // Anthropic, since Fable 5.1 (see `anthropic::drop_foreign_thinking`).
    Row {
        wordings: &[&["bound to a different conversation"]],
        but: &[],
        workaround: |sent| (sent.api == Api::Anthropic).then_some(Workaround::DropForeignThoughts),
    },
    // OpenAI and Azure: "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions.
    // Please use /v1/responses instead." Some allow only `none` there, some no value.
    Row { wordings: &[&["reasoning_effort"], &["function tools"], REFUSED], but: &[], workaround: other_effort },
    Row {
        wordings: &[LIMIT, TOO_MUCH],
        but: &[],
        workaround: |sent| {
            sent.thinking_allowance.map(|thinking_allowance| Workaround::LimitUnder(thinking_allowance.limit))
        },
    },
    // Mistral: 422 "extra_forbidden … max_completion_tokens".
    Row {
        wordings: &[&["max_completion_tokens"], REFUSED],
        but: TOO_MUCH,
        workaround: |sent| sent.encoded.has("max_completion_tokens").then_some(Workaround::OlderLimit),
    },
    // OpenAI: "Encrypted content is not supported with this model." Azure's deployment names do not tell the model.
    Row {
        wordings: &[&["encrypted content", "encrypted_content", "'include'"], REFUSED],
        but: &[],
        workaround: |sent| sent.encoded.has("include").then_some(Workaround::NoThoughtsBack),
    },
    // llama-server: "Pattern must start with '^' and end with '$'" (ggml-org/llama.cpp#26930); DeepSeek: "… is not a "regex"".
    Row {
        wordings: &[&["regex", "regular expression", "pattern must", "invalid pattern", ".pattern", "'pattern'"]],
        but: &[],
        workaround: |sent| has_patterns(sent).then_some(Workaround::NoPatterns),
    },
    // Groq: "json mode cannot be combined with tool/function calling"; Gemini: "Forced function calling (ANY mode) with a
    // response mime type: 'application/json' is unsupported" (vercel/ai#16540).
    Row { wordings: &[SHAPE, &["tool", "function call"], BESIDE], but: &["effort"], workaround: format_with_tools },
    // In `output_config` the effort is beside the format.
    Row { wordings: &[SHAPE, THIS_SCHEMA], but: &["effort"], workaround: |sent| sent_format(sent).map(avoid_format) },
    Row {
        wordings: &[SHAPE],
        but: &["effort"],
        workaround: |sent| {
            sent_format(sent).map(|output| if output.schema.is_some() { Workaround::Schemas } else { Workaround::Json })
        },
    },
];

/// Parameters that may be omitted, with all their names: a model supports one of the names, or none ("'temperature'
/// does not support 0.5 with this model", "`top_k` is deprecated for this model", "temperature and top_p cannot both be
/// specified"). At most 16, see [`ParameterState`].
pub(super) const PARAMETERS: &[&[&str]] = &[
    &["temperature"],
    &["top_p", "topP"],
    &["top_k", "topK"],
    &["seed"],
    &["stop", "stop_sequences", "stopSequences"],
    &["parallel_tool_calls"],
    &["prompt_cache_key"],
    &["stream_options"],
];

/// The state of a parameter when it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ParameterState {
    /// Its value, and whether thinking was requested: some APIs then allow only temperature 1.
    value: ContentHash,
    /// The other sent parameters that the server's message named, as bits by index.
    other_parameters: u16,
}

impl ParameterState {
    /// The state of the parameter at this place that was `sent` and is refused in these `words`, in lower case.
    pub(super) fn refused(at: usize, words: &str, sent: &SentRequest<'_>) -> Option<Self> {
        let is_named = |(other, names): &(usize, &&[&str])| {
            *other != at && names.iter().any(|name| has_word(words, &name.to_lowercase()))
        };
        let named = PARAMETERS.iter().enumerate().filter(is_named).map(|(other, _)| 1 << other).sum::<u16>();
        let value = value(at, sent.encoded, &sent.request.settings)?;
        Some(Self { value, other_parameters: named & parameter_bits(sent.encoded) })
    }

    /// Whether the parameter at this index is in this state.
    pub(super) fn holds(self, at: usize, encoded: &EncodedRequest, settings: &ModelSettings) -> bool {
        value(at, encoded, settings) == Some(self.value) && self.other_parameters & !parameter_bits(encoded) == 0
    }
}

/// The parameters of a request, a bit for the place of each.
fn parameter_bits(encoded: &EncodedRequest) -> u16 {
    let has = |(_, names): &(usize, &&[&str])| names.iter().any(|name| encoded.parameter(name).is_some());
    PARAMETERS.iter().enumerate().filter(has).map(|(at, _)| 1 << at).sum()
}

fn value(at: usize, encoded: &EncodedRequest, settings: &ModelSettings) -> Option<ContentHash> {
    let own = PARAMETERS.get(at)?.iter().find_map(|name| encoded.parameter(name))?;
    let thinks = match (settings.thinking_tokens, settings.effort) {
        (Some(tokens), _) => Some(tokens > 0),
        (None, effort) => effort.map(|effort| effort != Effort::None),
    };
    Some(ContentHash::of_value(&json!([own, thinks])))
}

/// The first name of the parameter at this place.
pub(super) fn name(at: usize) -> &'static str {
    PARAMETERS.get(at).and_then(|names| names.first()).copied().unwrap_or_default()
}

/// The workaround that may help a request that was `sent` and refused in these `words`, in lower case.
pub(super) fn next(words: &str, sent: &SentRequest<'_>) -> Option<Workaround> {
    let said = |any: &[&str]| any.iter().any(|part| words.contains(part));
    let fits = |row: &&Row| row.wordings.iter().all(|any| said(any)) && !said(row.but);
    TABLE.iter().filter(fits).find_map(|row| (row.workaround)(sent)).or_else(|| {
        let names = |(_, names): &(usize, &&[&str])| {
            names.iter().any(|name| has_word(words, &name.to_lowercase()))
                && names.iter().any(|name| sent.encoded.has_parameter(name))
        };
        let (at, _) = PARAMETERS.iter().enumerate().find(names)?;
        if said(OF_VALUE) {
            ParameterState::refused(at, words, sent).map(|how| Workaround::WithoutAs(at, how))
        } else {
            said(REFUSED).then_some(Workaround::Without(at))
        }
    })
}

/// The workaround that may help a request that was `sent` and refused because it and its token limit together exceed the
/// context window: a limit without the thinking allowance.
pub(super) fn overflow_workaround(words: &str, sent: &SentRequest<'_>) -> Option<Workaround> {
    let thinking_allowance = sent.thinking_allowance.filter(|_| WITH_ANSWER.iter().any(|part| words.contains(part)))?;
    Some(Workaround::WindowUnder(thinking_allowance.total))
}

/// Whether `words` contains `word` as a whole, not as a part of another name.
fn has_word(words: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    words
        .match_indices(word)
        .any(|(at, _)| !words[..at].ends_with(is_part) && !words[at + word.len()..].starts_with(is_part))
}

/// The output format that was sent as a parameter.
fn sent_format<'a>(sent: &SentRequest<'a>) -> Option<&'a OutputFormat> {
    let config = |key: &str, name: &str| sent.encoded.value(key).is_some_and(|config| config.get(name).is_some());
    let is_demanded = match sent.api {
        Api::OpenAiChat => sent.encoded.has("response_format"),
        Api::OpenAiResponses => config("text", "format"),
        Api::Anthropic => config("output_config", "format"),
        Api::Gemini => config("generationConfig", "responseMimeType"),
        Api::Ollama => sent.encoded.has("format"),
    };
    sent.request.output.as_ref().filter(|_| is_demanded)
}

/// Whether the schemas of a request to OpenAI's APIs have patterns.
fn has_patterns(sent: &SentRequest<'_>) -> bool {
    let mut without = sent.encoded.clone();
    without.map_schemas(patterns_in_words);
    matches!(sent.api, Api::OpenAiChat | Api::OpenAiResponses) && without.body() != sent.encoded.body()
}

/// A schema without any pattern.
pub(super) fn patterns_in_words(schema: &Value) -> Cow<'_, Value> {
    in_words(schema, |_| false)
}

fn format_with_tools(sent: &SentRequest<'_>) -> Option<Workaround> {
    let applies = !sent.request.tools.is_empty() && sent_format(sent).is_some();
    applies.then_some(Workaround::NoShapeBesideTools)
}

fn other_effort(sent: &SentRequest<'_>) -> Option<Workaround> {
    let effort = sent.encoded.value("reasoning_effort");
    let applies = sent.api == Api::OpenAiChat && !sent.request.tools.is_empty();
    applies.then(|| {
        if effort.is_some_and(|word| word == "none") { Workaround::SilentEffort } else { Workaround::NoEffort }
    })
}

/// The workaround for this output format alone.
pub(super) fn avoid_format(output: &OutputFormat) -> Workaround {
    match &output.schema {
        Some(schema) => Workaround::Schema(hash(schema)),
        None => Workaround::Json,
    }
}

fn hash(schema: &Value) -> ContentHash {
    ContentHash::of_value(&json!(schema))
}

#[cfg(test)]
pub(super) mod tests {
    use toolwright_core::model::{Message, RequestTool};

    use super::*;
    use crate::codec::encode;

    fn place(name: &str) -> usize {
        PARAMETERS.iter().position(|names| names.contains(&name)).expect("a parameter")
    }

    pub(in crate::http) fn without(name: &str) -> Workaround {
        Workaround::Without(place(name))
    }

    /// A limit with room.
    pub(in crate::http) const THINKING_ALLOWANCE: Option<ThinkingAllowance> =
        Some(ThinkingAllowance { limit: 9000, total: 9500 });

    /// A request with everything that may be refused.
    pub(in crate::http) fn request(schema: Option<Value>) -> ModelRequest {
        let tools = [RequestTool {
            name: "set_temperature".into(),
            parameters: json!({"type": "object", "properties": {"to": {"type": "string", "pattern": "^a+$"}}}),
            ..RequestTool::default()
        }];
        ModelRequest {
            messages: vec![Message::user("JSON, please")],
            tools: tools.into(),
            parallel_calls: Some(false),
            output: Some(OutputFormat { name: "o".into(), schema }),
            max_tokens: Some(800),
            temperature: Some(0.5),
            settings: ModelSettings {
                effort: Some(Effort::High),
                top_p: Some(0.9),
                top_k: Some(4),
                seed: Some(7),
                stop: vec!["END".into()],
                ..ModelSettings::default()
            }
            .into(),
            ..ModelRequest::default()
        }
    }

    pub(in crate::http) fn closed() -> Option<Value> {
        Some(json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
            "additionalProperties": false}))
    }

    #[test]
    fn server_message_selects_the_next_form() {
        let check = |api: Api, model: &str, schema: Option<Value>, words: &str, expect: Option<Workaround>| {
            let request = request(schema);
            let encoded = encode(api, &request, model);
            let got = next(
                &words.to_lowercase(),
                &SentRequest { api, request: &request, encoded: &encoded, thinking_allowance: None },
            );
            assert_eq!(got, expect, "{api} {model}: {words}");
        };
        let chat = |words: &str, expect| check(Api::OpenAiChat, "some-model", closed(), words, expect);
        let unchanged = |name: &str, words: &str| {
            let request = request(closed());
            let encoded = encode(Api::OpenAiChat, &request, "some-model");
            let sent =
                SentRequest { api: Api::OpenAiChat, request: &request, encoded: &encoded, thinking_allowance: None };
            Workaround::WithoutAs(place(name), ParameterState::refused(place(name), words, &sent).expect("it is there"))
        };
        let this = closed().map(|schema| Workaround::Schema(ContentHash::of_value(&schema)));
        chat("This response_format type is unavailable now (invalid_request_error)", Some(Workaround::Schemas));
        chat("This model does not support response format `json_schema`.", Some(Workaround::Schemas));
        chat("Invalid schema for response_format 'o': In context=(), 'required' is required", this);
        chat(
            "Invalid JSON schema: regex lookaround is not supported. Found at $.properties.to.pattern",
            Some(Workaround::NoPatterns),
        );
        chat("Pattern must start with '^' and end with '$'", Some(Workaround::NoPatterns));
        chat("\"^[[]$\" is not a \"regex\"", Some(Workaround::NoPatterns));
        let extra = r#"[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted"}]"#;
        chat(extra, Some(Workaround::OlderLimit));
        chat("max_completion_tokens is too large: 90000. This model supports at most 16384 completion tokens", None);
        chat("Unsupported value: 'temperature' does not support 0.5 with this model.", Some(without("temperature")));
        chat(
            "`temperature` and `top_p` cannot both be specified for this model",
            Some(unchanged("temperature", "and top_p")),
        );
        chat("temperature: range: 0..1", Some(unchanged("temperature", "")));
        chat("`top_p` must be between 0 and 1", Some(unchanged("top_p", "")));
        chat(
            "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
            Some(without("parallel_tool_calls")),
        );
        chat(
            r#"[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted"}]"#,
            Some(without("seed")),
        );
        chat("Invalid schema for function 'set_temperature': 'x' is not supported", None);
        chat("Unsupported parameter: 'top_k'", None);
        chat("messages: at least one message is required", None);
        let function_tools =
            "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions.";
        chat(function_tools, Some(Workaround::NoEffort));
        let object = |api, words: &str, expect| check(api, "some-model", None, words, expect);
        object(Api::OpenAiChat, "'response_format.type' must be 'json_schema' or 'text'", Some(Workaround::Json));
        object(Api::OpenAiResponses, "Unsupported parameter: 'text.format'", Some(Workaround::Json));
        // It was requested in words.
        object(Api::Anthropic, "The compiled grammar is too large", None);
        object(Api::Ollama, "invalid JSON schema in format", None);
        let encrypted = "Encrypted content is not supported with this model.";
        check(Api::OpenAiResponses, "prod-4o", closed(), encrypted, Some(Workaround::NoThoughtsBack));
        check(Api::OpenAiResponses, "gpt-4o", closed(), encrypted, None);
        let stale = "The encrypted content gAAA could not be verified. (invalid_encrypted_content)";
        check(Api::OpenAiResponses, "gpt-5", closed(), stale, None);
        let bound = "The block is bound to a different conversation.";
        check(Api::Anthropic, "claude-opus-5-5", closed(), bound, Some(Workaround::DropForeignThoughts));
        check(Api::Anthropic, "claude-opus-4-5", closed(), "output_config.effort: not supported", None);
        check(
            Api::Gemini,
            "gemini-3-pro",
            closed(),
            "Unknown name \"topK\" at 'generation_config'",
            Some(without("top_k")),
        );
    }

    #[test]
    fn refused_room_may_be_left_out() {
        let request = request(None);
        let encoded = encode(Api::OpenAiChat, &request, "some-model");
        let sent = |thinking_allowance| SentRequest {
            api: Api::OpenAiChat,
            request: &request,
            encoded: &encoded,
            thinking_allowance,
        };
        for words in [
            "max_completion_tokens is too large: 9000. This model supports at most 8192 completion tokens",
            "max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens for claude-x",
            "Unable to submit request because it has a maxOutputTokens value of 9000 but the supported range is from 1 \
             (inclusive) to 8193 (exclusive).",
            "`max_completion_tokens` must be less than or equal to `8192`",
            "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
            "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 8192, but got 9000 instead.",
        ] {
            let words = words.to_lowercase();
            assert_eq!(next(&words, &sent(THINKING_ALLOWANCE)), Some(Workaround::LimitUnder(9000)), "{words}");
            assert_eq!(next(&words, &sent(None)), None, "{words}");
        }
        for (words, is_of_answer) in [
            (
                "This model's maximum context length is 8192 tokens. However, you requested 9500 tokens (500 in the messages, \
                 9000 in the completion).",
                true,
            ),
            (
                "'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's maximum context length is 8192",
                true,
            ),
            ("input length and `max_tokens` exceed context limit: 500 + 9000 > 8192", true),
            ("prompt is too long: 200001 tokens > 200000 maximum", false),
        ] {
            let expect = is_of_answer.then_some(Workaround::WindowUnder(9500));
            assert_eq!(overflow_workaround(&words.to_lowercase(), &sent(THINKING_ALLOWANCE)), expect, "{words}");
            assert_eq!(overflow_workaround(&words.to_lowercase(), &sent(None)), None, "{words}");
        }
    }

    #[test]
    fn shape_refused_with_tools_is_tried_again() {
        let bare = ModelRequest { tools: [].into(), ..request(closed()) };
        for (api, words) in [
            (Api::OpenAiChat, "json mode cannot be combined with tool/function calling"),
            (Api::OpenAiChat, "`response_format` json_object cannot be combined with tool/function calling"),
            (
                Api::Gemini,
                "Forced function calling (ANY mode) with a response mime type: 'application/json' is unsupported",
            ),
        ] {
            let said = |request: &ModelRequest| {
                let encoded = encode(api, request, "gemini-3-pro");
                next(&words.to_lowercase(), &SentRequest { api, request, encoded: &encoded, thinking_allowance: None })
            };
            assert_eq!(said(&request(closed())), Some(Workaround::NoShapeBesideTools), "{words}");
            assert_ne!(said(&bare), Some(Workaround::NoShapeBesideTools), "{words}");
        }
    }
}
