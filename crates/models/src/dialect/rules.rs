//! Lists the schema keywords that each API accepts, as tables, and the limits of strict tools. Sources other than the
//! API's reference are named.

use serde_json::{Map, Value};

use super::Dialect;
use super::keyword_values::is_regular;

/// How a translation writes a `$ref`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum References {
    /// As a `$ref` into `$defs`, with any keywords beside it.
    Shared,
    /// As a `$ref` into `$defs`, with nothing beside it.
    Alone,
    /// Likewise, but a recursive one is written out a few times.
    AloneUnrolled,
    /// Written out.
    Inline,
}

/// Legal names of properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    Any,
    /// All names are [`is_legal_property`].
    Keys,
}

/// Purpose of a strict translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The arguments of a call, which are converted back.
    Call,
    /// A response, which is not converted back and is checked against its own schema. The translation may omit bounds
    /// of values, but may neither require another shape nor allow less than the schema.
    Answer,
}

/// The rules for strict translations that differ between APIs.
#[derive(Debug)]
pub(super) struct Strict {
    pub(super) purpose: Purpose,
    /// Whether every property must be required.
    pub(super) all_required: bool,
    /// Whether a schema may refer back to itself.
    pub(super) recursion: bool,
    pub(super) formats: &'static [&'static str],
}

/// The rules of one API.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) api: &'static str,
    pub(super) keeps: fn(&str) -> bool,
    pub(super) references: References,
    pub(super) names: Names,
    /// Characters of a tool's description.
    pub(super) max_description: usize,
    /// Whether a pattern is supported, if the API supports patterns.
    pub(super) takes_pattern: fn(&str) -> bool,
    pub(super) strict: Option<&'static Strict>,
    /// Whether the translation is for MCP clients, which pass it on to an unknown API: combining keywords at the root
    /// are merged into one object, lists of items by position become unions, and unknown keywords stay, because clients
    /// read some of them (`x-mcp-header`).
    pub(super) for_clients: bool,
}

/// Azure's page on function calling and OpenAI's own error name 1,024 characters; OpenAI has dropped the
/// limit since, compatible servers have not.
const OPENAI_DESCRIPTION: usize = 1024;

/// The strict rules for a response schema, if the API has any.
pub(super) fn rules_of_answers(dialect: Dialect) -> Option<&'static Rules> {
    match dialect {
        Dialect::OpenAi => Some(&OPENAI_ANSWER),
        Dialect::Anthropic => Some(&ANTHROPIC_ANSWER),
        Dialect::GeminiJsonSchema | Dialect::Ollama | Dialect::Portable => None,
    }
}

pub(super) fn rules(dialect: Dialect, strict: bool) -> &'static Rules {
    match (dialect, strict) {
        (Dialect::OpenAi, false) => &OPENAI,
        (Dialect::OpenAi, true) => &OPENAI_STRICT,
        (Dialect::Anthropic, false) => &ANTHROPIC,
        (Dialect::Anthropic, true) => &ANTHROPIC_STRICT,
        (Dialect::GeminiJsonSchema, _) => &GEMINI_JSON_SCHEMA,
        (Dialect::Ollama, _) => &OLLAMA,
        (Dialect::Portable, _) => &PORTABLE,
    }
}

static OPENAI: Rules = Rules {
    api: "OpenAI",
    keeps: |keyword| !is_metadata(keyword),
    references: References::Shared,
    names: Names::Any,
    max_description: OPENAI_DESCRIPTION,
    takes_pattern: is_regular,
    strict: None,
    for_clients: false,
};

/// "Structured model outputs", sections "Supported schemas" and "Some type-specific keywords".
const OPENAI_STRICT: Rules = Rules {
    api: "OpenAI",
    keeps: |keyword| {
        matches!(
            keyword,
            "title"
                | "pattern"
                | "format"
                | "multipleOf"
                | "minimum"
                | "maximum"
                | "exclusiveMinimum"
                | "exclusiveMaximum"
                | "minItems"
                | "maxItems"
                | "const"
        )
    },
    references: References::Alone,
    names: Names::Any,
    max_description: OPENAI_DESCRIPTION,
    takes_pattern: is_regular,
    strict: Some(&OPENAI_HELD),
    for_clients: false,
};

const OPENAI_HELD: Strict = Strict {
    purpose: Purpose::Call,
    all_required: true,
    recursion: true,
    formats: &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"],
};

static OPENAI_ANSWER: Rules =
    Rules { strict: Some(&Strict { purpose: Purpose::Answer, ..OPENAI_HELD }), ..OPENAI_STRICT };

/// Tools accept JSON Schema 2020-12; properties match `^[a-zA-Z0-9_.-]{1,64}$`.
static ANTHROPIC: Rules = Rules {
    api: "Anthropic",
    keeps: |keyword| !is_metadata(keyword),
    references: References::Shared,
    names: Names::Keys,
    max_description: usize::MAX,
    takes_pattern: |_| true,
    strict: None,
    for_clients: false,
};

/// "Structured outputs", section "JSON Schema limitations".
const ANTHROPIC_STRICT: Rules = Rules {
    api: "Anthropic",
    keeps: |keyword| matches!(keyword, "title" | "default" | "format" | "pattern" | "minItems" | "const"),
    references: References::Alone,
    names: Names::Keys,
    max_description: usize::MAX,
    takes_pattern: is_plain_pattern,
    strict: Some(&ANTHROPIC_HELD),
    for_clients: false,
};

const ANTHROPIC_HELD: Strict = Strict {
    purpose: Purpose::Call,
    all_required: false,
    recursion: false,
    formats: &["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"],
};

static ANTHROPIC_ANSWER: Rules =
    Rules { strict: Some(&Strict { purpose: Purpose::Answer, ..ANTHROPIC_HELD }), ..ANTHROPIC_STRICT };

/// The keywords that the reference of `GenerationConfig.responseJsonSchema` names.
static GEMINI_JSON_SCHEMA: Rules = Rules {
    api: "Gemini",
    keeps: |keyword| {
        matches!(
            keyword,
            "title"
                | "format"
                | "prefixItems"
                | "minItems"
                | "maxItems"
                | "minimum"
                | "maximum"
                | "oneOf"
                | "additionalProperties"
        )
    },
    references: References::AloneUnrolled,
    names: Names::Any,
    max_description: usize::MAX,
    takes_pattern: |_| true,
    strict: None,
    for_clients: false,
};

/// `ToolFunctionParameters` and `ToolProperty` in Ollama's `api/types.go`: other keywords are dropped, so that the
/// model would not see them.
static OLLAMA: Rules = Rules {
    api: "Ollama",
    keeps: |_| false,
    references: References::Inline,
    names: Names::Any,
    max_description: usize::MAX,
    takes_pattern: |_| true,
    strict: None,
    for_clients: false,
};

/// Rules that every MCP client in use can pass on to its model. An API that refuses one schema refuses the whole
/// request:
///
/// - no `oneOf`, `anyOf`, `allOf`, `enum` or `not` at the root: Anthropic behind Claude Code (anthropics/claude-code#4886,
///   #5973) and opencode (anomalyco/opencode#35516), OpenAI behind codex ("schema must have type 'object' and not have
///   'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level");
/// - properties match `^[a-zA-Z0-9_.-]{1,64}$`: Anthropic behind Claude Code (anthropics/claude-code#34771);
/// - every array has a schema in `items`: VS Code ("tool parameters array type must have items",
///   microsoft/vscode#246119), opencode with OpenAI (anomalyco/opencode#32488); codex does not support `prefixItems`;
/// - no `true` or `false` for a schema: codex reads either as a string (`sanitize_json_schema` of its `json_schema.rs`);
/// - `anyOf` in place of `oneOf` and `allOf`, which codex leaves out (openai/codex#18159), and no `not`
///   (moltis-org/moltis#698);
/// - nothing beside a `$ref`, which drafts before 2019-09 ignore; codex keeps references since openai/codex#23357;
/// - only `#/$defs`, no `$schema`: an unknown draft fails the request;
/// - patterns that OpenAI supports, see [`is_regular`].
static PORTABLE: Rules = Rules {
    api: "the portable form",
    keeps: |keyword| !is_metadata(keyword) && !matches!(keyword, "prefixItems" | "oneOf" | "allOf" | "not"),
    references: References::Alone,
    names: Names::Keys,
    max_description: usize::MAX,
    takes_pattern: is_regular,
    strict: None,
    for_clients: true,
};

/// Keywords about a schema document, which a translation is not.
fn is_metadata(keyword: &str) -> bool {
    matches!(keyword, "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$vocabulary" | "$recursiveAnchor")
}

impl Rules {
    pub(super) fn keeps(&self, keyword: &str) -> bool {
        (self.keeps)(keyword)
    }

    /// Whether these are the rules for a response schema.
    pub(super) fn are_of_answers(&self) -> bool {
        self.strict.is_some_and(|strict| strict.purpose == Purpose::Answer)
    }

    /// Whether an `enum` may have these values. Gemini: "for strings and numbers".
    pub(super) fn takes_values(&self, values: &[Value]) -> bool {
        let plain = |value: &Value| value.is_string() || value.is_number();
        !values.is_empty() && (self.api != "Gemini" || values.iter().all(plain))
    }

    /// Whether `name` is a legal property name.
    pub(super) fn takes_name(&self, name: &str) -> bool {
        match self.names {
            Names::Any => true,
            Names::Keys => is_legal_property(name),
        }
    }

    /// Whether the API supports this value of a supported keyword.
    pub(super) fn keeps_value(&self, keyword: &str, value: &Value) -> bool {
        match (keyword, self.strict) {
            ("pattern", _) => value.as_str().is_some_and(self.takes_pattern),
            ("patternProperties", _) => {
                value.as_object().is_some_and(|map| map.keys().all(|pattern| (self.takes_pattern)(pattern)))
            }
            ("format", Some(strict)) => value.as_str().is_some_and(|format| strict.formats.contains(&format)),
            ("minItems", Some(strict)) if !strict.all_required => value.as_u64().is_some_and(|least| least <= 1),
            _ => true,
        }
    }
}

/// Letters, digits, `_`, `.` and `-`.
fn is_legal_property(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// Whether a pattern avoids features that Anthropic's grammars lack: look-around, back-references, word
/// boundaries, large counted repetitions.
fn is_plain_pattern(pattern: &str) -> bool {
    const MAX_REPEATS: u32 = 100;
    let bytes = pattern.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let next = bytes.get(at + 1).copied();
        match bytes[at] {
            b'\\' if next.is_some_and(|b| b.is_ascii_digit() || matches!(b, b'b' | b'B' | b'k' | b'p' | b'P')) => {
                return false;
            }
            b'\\' => at += 1,
            b'(' if next == Some(b'?') && bytes.get(at + 2) != Some(&b':') => return false,
            b'{' => {
                let counts = pattern[at + 1..].split('}').next().unwrap_or_default();
                if counts.split(',').any(|count| !count.is_empty() && count.parse().is_ok_and(|n: u32| n > MAX_REPEATS))
                {
                    return false;
                }
            }
            _ => {}
        }
        at += 1;
    }
    true
}

/// The size of a translation.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Size {
    properties: usize,
    optional: usize,
    unions: usize,
    depth: usize,
    values: usize,
    text: usize,
    /// The text of the longest enumeration of more than [`MANY_VALUES`].
    longest: usize,
}

const MANY_VALUES: usize = 250;

pub(super) fn size(view: &Value) -> Size {
    let mut size = Size::default();
    if let Some(map) = view.as_object() {
        count(map, 1, &mut size);
    }
    size
}

fn count(map: &Map<String, Value>, depth: usize, size: &mut Size) {
    size.depth = size.depth.max(depth);
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                let required = map.get("required").and_then(Value::as_array).map_or(0, Vec::len);
                size.properties += properties.len();
                size.optional += properties.len().saturating_sub(required);
                for (name, inner) in properties {
                    size.text += name.chars().count();
                    inner.as_object().into_iter().for_each(|inner| count(inner, depth + 1, size));
                }
            }
            ("$defs", Value::Object(definitions)) => {
                for (name, inner) in definitions {
                    size.text += name.chars().count();
                    inner.as_object().into_iter().for_each(|inner| count(inner, depth + 1, size));
                }
            }
            ("items", Value::Object(inner)) => count(inner, depth + 1, size),
            ("anyOf", Value::Array(branches)) => {
                size.unions += 1;
                branches.iter().filter_map(Value::as_object).for_each(|branch| count(branch, depth + 1, size));
            }
            ("type", Value::Array(_)) => size.unions += 1,
            ("enum", Value::Array(values)) => {
                let text: usize = values.iter().map(length).sum();
                size.values += values.len();
                size.text += text;
                if values.len() > MANY_VALUES {
                    size.longest = size.longest.max(text);
                }
            }
            ("const", value) => size.text += length(value),
            _ => {}
        }
    }
}

fn length(value: &Value) -> usize {
    value.as_str().map_or(0, |text| text.chars().count())
}

/// The limit of OpenAI that a size exceeds ("Structured model outputs", sections on limits of nesting, string size and
/// enumerations). Every nested schema counts as a level, which is stricter than OpenAI.
pub(super) fn over_openai(size: &Size) -> Option<String> {
    let limits = [
        (size.properties, 5_000, "properties"),
        (size.depth.saturating_sub(1), 10, "levels of nesting"),
        (size.values, 1_000, "values of enumerations"),
        (size.text, 120_000, "characters of names and values"),
        (size.longest, 15_000, "characters in one large enumeration"),
    ];
    let over = limits.into_iter().find(|(has, most, _)| has > most)?;
    Some(format!("{} {}, of which a strict tool may have {}", over.0, over.2, over.1))
}

/// The remaining budget for strict tools in a request to Anthropic ("Structured outputs", section "Schema complexity
/// limits").
#[derive(Debug, Clone)]
pub(super) struct Budget {
    tools: usize,
    optional: usize,
    unions: usize,
}

impl Budget {
    pub(super) const ANTHROPIC: Self = Self { tools: 20, optional: 24, unions: 16 };

    /// Whether a tool with at least so many optional parameters fits, before translating it.
    pub(super) fn admits(&self, optional: usize) -> Result<(), String> {
        self.clone().take(&Size { optional, ..Size::default() })
    }

    /// Subtracts a tool from the budget, or returns the exceeded limit.
    pub(super) fn take(&mut self, size: &Size) -> Result<(), String> {
        let wants = [
            (1, self.tools, "strict tools", 20),
            (size.optional, self.optional, "optional parameters of strict tools", 24),
            (size.unions, self.unions, "parameters of union types of strict tools", 16),
        ];
        if let Some((wants, has, what, most)) = wants.into_iter().find(|(wants, has, ..)| wants > has) {
            return Err(format!("the request may have {most} {what}; {has} are left and this tool has {wants}"));
        }
        (self.tools, self.optional, self.unions) =
            (self.tools - 1, self.optional - size.optional, self.unions - size.unions);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_for_a_grammar_are_plain() {
        for (pattern, plain) in [
            ("^[a-z]{2,8}(-\\d+)*$", true),
            ("^(?:a|b)$", true),
            ("^(?=a)", false),
            ("(?<name>a)", false),
            ("\\bword\\b", false),
            ("(a)\\1", false),
            ("a{1,5000}", false),
            ("\\\\b", true),
        ] {
            assert_eq!(is_plain_pattern(pattern), plain, "{pattern}");
        }
    }

    #[test]
    fn sizes_are_counted() {
        let size = size(&json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": ["string", "null"], "enum": ["xy", "z", null]},
            "b": {"anyOf": [{"type": "object", "properties": {"cc": {"const": "abc"}}}, {"type": "null"}]},
        }}));
        let counted = [size.properties, size.optional, size.unions, size.depth, size.values, size.text];
        assert_eq!(counted, [3, 2, 2, 4, 3, 1 + 1 + 2 + 3 + 3]);
        assert_eq!(over_openai(&size), None);
        assert!(over_openai(&Size { properties: 5_001, ..size }).is_some_and(|why| why.contains("5000")));
        let mut budget = Budget::ANTHROPIC;
        let fits = (0..30).filter(|_| budget.take(&size).is_ok()).count();
        assert_eq!(fits, 8, "16 unions");
    }
}
