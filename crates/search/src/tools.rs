//! `tools__search`, `tools__describe` and `tools__call`: tools that find and call other tools.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toolwright_core::catalogue::{CallScope, ProviderError, namespaces};
use toolwright_core::context::NestedCalls;
use toolwright_core::exposure::{CALL_ID, DESCRIBE_ID, SEARCH_ID};
use toolwright_core::name_table::Resolution;
use toolwright_core::output::head_and_tail;
use toolwright_core::schema::argument_list;
use toolwright_core::{
    Effects, Entry, ErrorKind, Health, Principal, Provider, ProviderCall, ProviderKind, RegisteredTool, Session,
    Snapshot, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};

use super::Selector;
use crate::{Method, Pick, PickConfig, PickInput, PickOptions};

/// Maximal number of results.
const MAX_HITS: usize = 20;
/// Tools that are described at once.
const MAX_DESCRIBED: usize = 10;
/// Maximal bytes of a described tool's text, and of its schema.
const MAX_DESCRIPTION: usize = 4096;
const MAX_SCHEMA: usize = 16 << 10;
/// Bytes of a name or a query that is repeated in an answer.
const MAX_ECHO: usize = 100;
/// Number of excluded tools that are explained.
const MAX_EXCLUDED: usize = 5;

/// Finds tools for models as [`Selector::pick`] does for everybody. Cheap to clone.
#[derive(Clone, Default)]
pub struct ToolFinder {
    selector: Arc<Selector>,
    options: Arc<PickOptions>,
}

/// The tools found, and how.
#[derive(Debug, Clone, Default)]
pub struct FoundTools {
    /// The tools, best first.
    pub entries: Vec<Arc<Entry>>,
    /// Score and reason of each, then reasons for some exclusions.
    pub reasons: Vec<String>,
    /// Scorers that failed, each with the reason.
    pub failed: Vec<(String, String)>,
}

impl ToolFinder {
    /// A finder with `selector` and `options`, except number, namespace and roles. The default uses words
    /// only.
    #[must_use]
    pub fn new(selector: Arc<Selector>, options: PickOptions) -> Self {
        Self { selector, options: Arc::new(options) }
    }

    /// Returns the tools that fit `query` best and are open to `principal`, at most `limit`, optionally of one
    /// namespace. Registration order alone does not qualify: without time to score, words decide.
    pub async fn find(
        &self,
        query: impl Into<PickInput<'_>>,
        tools: &Arc<Snapshot>,
        limit: usize,
        principal: &Principal,
        namespace: Option<&str>,
    ) -> Vec<Arc<Entry>> {
        self.find_with_reasons(query, tools, limit, principal, namespace).await.entries
    }

    /// Like [`ToolFinder::find`], with remarks.
    pub async fn find_with_reasons(
        &self,
        query: impl Into<PickInput<'_>>,
        tools: &Arc<Snapshot>,
        limit: usize,
        principal: &Principal,
        namespace: Option<&str>,
    ) -> FoundTools {
        let options = PickOptions {
            config: PickConfig { max_candidates: limit, ..self.options.config.clone() },
            namespace: namespace.map(str::to_owned),
            roles: (!principal.owner).then(|| principal.roles.clone()),
            ..(*self.options).clone()
        };
        let query = query.into();
        let mut picked = self.selector.pick(query.clone(), tools, &options).await;
        if picked.provenance.is_in_order() {
            let by_words = PickOptions { scorer: Method::Bm25, timeout: None, ..options };
            picked = self.selector.pick(query, tools, &by_words).await;
        }
        let hits = picked.picks.iter().filter_map(|pick| Some((tools.list().get(pick.position)?, pick)));
        let hits: Vec<_> = hits.filter(|(entry, _)| self.is_open(entry, principal)).collect();
        let reason =
            |(entry, pick): &(&Arc<Entry>, &Pick)| format!("{} {:.2}: {}", entry.wire_name, pick.score, pick.reason);
        let excluded = picked.provenance.excluded.iter().take(MAX_EXCLUDED);
        let excluded = excluded
            .filter_map(|(position, why)| Some(format!("without {}: {why}", tools.list().get(*position)?.wire_name)));
        FoundTools {
            reasons: hits.iter().map(reason).chain(excluded).collect(),
            entries: hits.into_iter().map(|(entry, _)| Arc::clone(entry)).collect(),
            failed: picked.provenance.fell_back,
        }
    }

    /// Whether tools marked unsafe are found.
    #[must_use]
    pub fn allows_unsafe(&self) -> bool {
        self.options.config.allow_unsafe
    }

    /// Whether it may ask a model about tools.
    #[must_use]
    pub fn asks_model(&self) -> bool {
        self.options.scorer.asks_model()
    }

    /// Whether a search by a model that works for `principal` may show a tool. Hidden tools may still be
    /// called by name, as policy allows.
    fn is_open(&self, entry: &Entry, principal: &Principal) -> bool {
        let definition = entry.definition();
        let is_usable = principal.may_use(&definition.allowed_roles)
            && definition.provider_native.is_none()
            && !entry.is_activity();
        is_usable && (definition.safe || self.options.config.allow_unsafe)
    }
}

/// Appends the three tools that find, describe and call other tools to `tools`. They know only
/// `tools`, and of these only the ones open to their caller.
#[must_use]
pub fn searchable(tools: &Arc<Snapshot>, finder: ToolFinder) -> Arc<Snapshot> {
    let provider: Arc<dyn Provider> = Arc::new(SearchProvider { tools: Arc::clone(tools), finder });
    Arc::new(tools.with(&provider, &*REGISTERED))
}

/// Their provider.
struct SearchProvider {
    tools: Arc<Snapshot>,
    finder: ToolFinder,
}

static REGISTERED: LazyLock<[Arc<RegisteredTool>; 3]> = LazyLock::new(|| {
    // Every request pays for each word here.
    let search = define(
        SEARCH_ID,
        "Finds tools for a step of the task. Each line of the result is name(arguments, ? if optional) — purpose.",
        json!({
            "query": {"type": "string", "description": "What is to be done"},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_HITS, "default": 5},
            "namespace": {"type": "string"},
        }),
        &["query"],
    );
    let mut describe = define(
        DESCRIBE_ID,
        "Gives whole descriptions and schemas, for tools whose line leaves a question.",
        json!({
            "names": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_DESCRIBED},
        }),
        &["names"],
    );
    describe.max_output = Some(MAX_DESCRIBED * (MAX_DESCRIPTION + MAX_SCHEMA + 1024));
    let mut call = define(
        CALL_ID,
        "Runs a tool that was found.",
        json!({"name": {"type": "string"}, "arguments": {"type": "object"}}),
        &["name", "arguments"],
    );
    // Its effects are those of the inner call.
    (call.effects, call.strict) = (Effects::UNKNOWN, Some(false));
    [search, describe, call].map(register)
});

#[expect(clippy::expect_used, reason = "the definitions are constants of this module, and every test registers them")]
fn register(definition: ToolDefinition) -> Arc<RegisteredTool> {
    RegisteredTool::own(definition).expect("a legal definition")
}

#[expect(clippy::expect_used, reason = "the ids are constants, and every test parses them")]
fn define(id: &str, description: &str, properties: Value, required: &[&str]) -> ToolDefinition {
    let schema =
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let mut definition = ToolDefinition::new(ToolId::parse(id).expect("a legal id"), description, Some(schema));
    definition.effects = Effects::READ;
    definition
}

#[derive(Deserialize)]
struct Search {
    query: String,
    limit: usize,
    namespace: Option<String>,
}

#[derive(Deserialize)]
struct Describe {
    names: Vec<String>,
}

#[async_trait]
impl Provider for SearchProvider {
    fn name(&self) -> &str {
        "tools"
    }

    fn kind(&self) -> ProviderKind {
        ProviderKind::Builtin
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(REGISTERED.to_vec())
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let principal = &context.session.principal;
        match call.tool.as_str() {
            SEARCH_ID => Ok(self.search(read(call.arguments)?, principal, &*context.calls).await),
            DESCRIBE_ID => Ok(self.describe(&read(call.arguments)?, principal)),
            other => Err(ToolError::new(
                ErrorKind::InternalError,
                format!("{other} does not run: the call that it carries is what is checked"),
            )),
        }
    }

    fn scope(&self, _tool: &ToolId, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }

    fn awaits_others(&self, tool: &ToolId) -> bool {
        tool.as_str() == SEARCH_ID && self.finder.asks_model()
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}

impl SearchProvider {
    async fn search(&self, asked: Search, principal: &Principal, calls: &dyn NestedCalls) -> ToolOutput {
        let namespace = asked.namespace.as_deref().map(str::trim).filter(|namespace| !namespace.is_empty());
        let (query, limit) = (asked.query.trim(), asked.limit.min(MAX_HITS));
        let hits = match namespace {
            Some(namespace) if query.is_empty() => {
                let of =
                    |entry: &&Arc<Entry>| entry.id().namespace() == namespace && self.finder.is_open(entry, principal);
                self.tools.list().iter().filter(of).take(limit).cloned().collect()
            }
            _ => {
                let calls = self.finder.asks_model().then_some(calls);
                let input = PickInput::from(query).on_behalf_of(calls);
                self.finder.find(input, &self.tools, limit, principal, namespace).await
            }
        };
        let names: Vec<&str> = hits.iter().map(|entry| entry.wire_name.as_str()).collect();
        let structured = Some(json!({ "tools": names }));
        let text = if hits.is_empty() { self.no_match_text(query, namespace, principal) } else { lines(&hits) };
        ToolOutput { structured, ..ToolOutput::text(text) }
    }

    /// The message when nothing is found: describes what can be searched.
    fn no_match_text(&self, query: &str, namespace: Option<&str>, principal: &Principal) -> String {
        let open =
            || self.tools.list().iter().filter(|entry| self.finder.is_open(entry, principal)).map(|entry| &**entry);
        let all = namespaces(open());
        match namespace.filter(|&namespace| !open().any(|entry| entry.id().namespace() == namespace)) {
            Some(namespace) => format!("There is no namespace {:?}. There are: {all}", echo(namespace)),
            None => format!("No tool fits {:?}. Try other words, or look in: {all}", echo(query)),
        }
    }

    fn describe(&self, asked: &Describe, principal: &Principal) -> ToolOutput {
        let described: Vec<String> = asked.names.iter().map(|name| self.described(name, principal)).collect();
        ToolOutput::text(described.join("\n\n"))
    }

    fn described(&self, name: &str, principal: &Principal) -> String {
        let list = self.tools.list();
        let near = match self.tools.resolve(name) {
            Resolution::Found(index, _) if self.finder.is_open(&list[index], principal) => {
                return description(&list[index]);
            }
            Resolution::Found(..) => Vec::new(),
            Resolution::Unknown(near) => near,
        };
        let open = |wire: &String| match self.tools.resolve(wire) {
            Resolution::Found(index, _) => self.finder.is_open(&list[index], principal),
            Resolution::Unknown(_) => false,
        };
        let near: Vec<String> = near.into_iter().filter(open).collect();
        let remedy = match near.as_slice() {
            [] => "look for it with tools__search".to_owned(),
            near => format!("did you mean {}?", near.join(" or ")),
        };
        format!("{}: there is no such tool; {remedy}", echo(name))
    }
}

fn lines(hits: &[Arc<Entry>]) -> String {
    let line = |entry: &Arc<Entry>| {
        let definition = entry.definition();
        summary(&entry.wire_name, &definition.description, definition.parameters.as_ref())
    };
    hits.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn description(entry: &Entry) -> String {
    let definition = entry.definition();
    let text = head_and_tail(definition.description.trim(), MAX_DESCRIPTION);
    let schema = head_and_tail(&entry.shown_schema().to_string(), MAX_SCHEMA);
    format!("{}: {text}\n{schema}", entry.wire_name)
}

/// Shortens a model's text for repetition in a message.
fn echo(text: &str) -> &str {
    let end = (0..=MAX_ECHO.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text[..end].trim()
}

/// Arguments as their type. They are validated already.
fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments)
        .map_err(|error| ToolError::new(ErrorKind::InvalidParameters, format!("the arguments do not fit: {error}")))
}

/// Bytes of a tool's arguments in its line.
const MAX_ARGUMENTS: usize = 240;
/// Bytes of a tool's purpose in its line.
const MAX_PURPOSE: usize = 160;

/// Describes a tool in one line, usually enough to call it: `name(path: string, limit?: integer) — What it does.`
/// Without a schema the arguments are `…`.
#[must_use]
pub fn summary(name: &str, description: &str, parameters: Option<&Value>) -> String {
    let arguments = parameters.map_or_else(|| "…".into(), |schema| argument_list(schema, MAX_ARGUMENTS));
    let mut line = format!("{name}({})", one_line(&arguments));
    let purpose = first_sentence(description);
    if !purpose.is_empty() {
        let _ = write!(line, " — {purpose}");
    }
    line
}

/// Returns the first sentence of a text, on one line and bounded.
#[must_use]
pub fn first_sentence(text: &str) -> String {
    let paragraph = text.trim().split("\n\n").next().unwrap_or_default();
    // Foreign descriptions may have any length, so only the part that can be shown is read.
    let near: String = paragraph.chars().take(2 * MAX_PURPOSE).collect();
    let line = one_line(&near);
    let line = match sentence_end(&line) {
        Some(end) => &line[..end],
        None => line.trim_end(),
    };
    if line.len() <= MAX_PURPOSE {
        return line.to_owned();
    }
    let room = (0..=MAX_PURPOSE).rev().find(|&end| line.is_char_boundary(end)).unwrap_or(0);
    let words = line[..room].rfind(' ').filter(|&end| end * 2 > room).unwrap_or(room);
    format!("{}…", line[..words].trim_end())
}

/// Returns the end of the first sentence: punctuation followed by a space and a possible start of another.
fn sentence_end(line: &str) -> Option<usize> {
    line.char_indices().find_map(|(at, c)| {
        let end = at + c.len_utf8();
        let mut rest = line[end..].chars();
        let begins = |c: char| !c.is_lowercase() && !c.is_numeric();
        match c {
            '。' | '！' | '？' => Some(end),
            '.' | '!' | '?' if rest.next() == Some(' ') && rest.next().is_some_and(begins) => Some(end),
            _ => None,
        }
    })
}

/// The text with each run of white space and control characters as one space.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_whitespace() || c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            if !line.is_empty() && !line.ends_with(' ') {
                line.push(' ');
            }
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod summary_tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tool_fits_in_a_line() {
        let schema =
            json!({"properties": {"limit": {"type": "integer"}, "path": {"type": "string"}}, "required": ["path"]});
        let line = summary("fs__read", "Reads a file.\nUTF-8 only.", Some(&schema));
        assert_eq!(line, "fs__read(path: string, limit?: integer) — Reads a file.");
        assert_eq!(summary("x", "", Some(&json!({"type": "object"}))), "x()");
        assert_eq!(summary("x", " Any\tthing ", None), "x(…) — Any thing");
        let forged = summary("x", "Reads.", Some(&json!({"properties": {"a)\nfs__rm(": {"type": "b\nc"}}})));
        assert_eq!(forged, r#"x("a)\nfs__rm("?: b c) — Reads."#);
    }

    #[test]
    fn the_first_sentence_is_found_and_cut() {
        for (text, expect) in [
            ("", ""),
            ("One. Two.", "One."),
            ("Lists e.g. files of v1.2 here. Then more.", "Lists e.g. files of v1.2 here."),
            ("No end", "No end"),
            ("Title\n\nBody.", "Title"),
            ("読む。書く。", "読む。"),
            ("Really? Yes.", "Really?"),
        ] {
            assert_eq!(first_sentence(text), expect, "{text}");
        }
        let long = first_sentence(&"words and ".repeat(100));
        assert!(long.len() <= MAX_PURPOSE + 3 && long.ends_with("words…") || long.ends_with("and…"), "{long}");
    }

    proptest! {
        #[test]
        fn a_tool_summary_is_one_short_line(name in "\\PC{0,20}", text in "[\\s\\S]{0,600}", key in "[\\s\\S]{0,30}") {
            let line = summary("x", &text, Some(&json!({"properties": {key: {"type": name}}})));
            prop_assert!(!line.contains(['\n', '\r']) && line.len() < 600, "{}", line);
        }
    }
}
