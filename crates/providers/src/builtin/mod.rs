//! Tools that come with Toolwright: files, shell and Python, stored outputs.
//!
//! Tools that need more than a file system and processes (`web:fetch`) are created elsewhere and passed to
//! [`provider`], so that all are in one provider called `builtin`.

mod agents;
mod fs;
mod job;
mod manuals;
pub mod native;
mod output;
mod shell;
pub mod web;

use std::path::PathBuf;
use std::sync::Arc;

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toolwright_core::ToolId;
use toolwright_core::catalogue::{ProviderKind, RegistrationError};
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::store::channel::Channels;
use toolwright_core::tool::{StaticProvider, Tool};
use toolwright_core::trigger::TriggerKind;

use toolwright_sandbox::withheld_by_default;

pub use agents::{SkillTool, TriggerTool};
pub use fs::PathGuard;
pub use shell::ShellConfig;

/// Settings of the built-in tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltinOptions {
    /// How the `fs` tools treat paths outside the workspace root.
    pub path_guard: PathGuard,
    /// Absolute paths of Toolwright's configuration files and folders, including those that do not exist yet. Writing
    /// them needs approval, wherever they are. Files from which other programs run commands, like `.git`, need it
    /// without being listed here.
    pub protected: Vec<PathBuf>,
    /// Absolute paths of files and folders that the `fs` tools neither read, list nor write, unless the workspace root
    /// is inside. Commands can access them.
    pub withheld: Vec<PathBuf>,
    /// The absolute folder of the journals of multi-file edits, by which edits are completed after their process was
    /// killed; `None`: no journals.
    pub edit_journals: Option<PathBuf>,
    /// Environment variables that commands do not inherit, as `*` and `?` patterns.
    pub withheld_env: Vec<String>,
    /// Settings of the tools that run code.
    pub shell: ShellConfig,
    /// The configured channels.
    pub channels: Channels,
    /// Whether there are groups of permanent agents.
    pub groups: bool,
    /// The names of the agents.
    pub agents: Vec<String>,
    /// The agents that may change groups.
    pub privileged: Vec<String>,
    /// The kinds of triggers with tools.
    pub triggers: Vec<TriggerKind>,
    /// The optional tools to list.
    pub optional: Vec<OptionalTool>,
}

/// A built-in tool that is listed only on request, because it costs tokens and few users need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OptionalTool {
    /// `agent__todo`
    Todo,
    /// `agent__ask_user`
    AskUser,
    /// `memory__files`
    MemoryFiles,
}

impl OptionalTool {
    /// All optional tools, in the order of the list.
    pub const ALL: [Self; 3] = [Self::Todo, Self::AskUser, Self::MemoryFiles];

    /// Returns its namespace and name.
    #[must_use]
    pub fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Todo => ("agent", "todo"),
            Self::AskUser => ("agent", "ask_user"),
            Self::MemoryFiles => ("memory", "files"),
        }
    }
}

impl Default for BuiltinOptions {
    /// Paths outside are blocked; commands inherit the environment except [`withheld_by_default`].
    fn default() -> Self {
        Self {
            path_guard: PathGuard::default(),
            protected: Vec::new(),
            withheld: Vec::new(),
            edit_journals: None,
            withheld_env: withheld_by_default(),
            shell: ShellConfig::default(),
            channels: Channels::default(),
            groups: false,
            agents: Vec::new(),
            privileged: Vec::new(),
            triggers: TriggerKind::ALL.to_vec(),
            optional: OptionalTool::ALL.to_vec(),
        }
    }
}

/// Returns the built-in tools except those of `web`, in a fixed order. Those of `channel` and `group` are included only
/// if there are channels and groups.
#[must_use]
pub fn tools(options: &BuiltinOptions) -> Vec<Arc<dyn Tool>> {
    let mut tools = fs::tools(options);
    tools.extend(shell::tools(options));
    tools.extend(job::tools());
    tools.extend(output::tools());
    tools.extend(agents::tools(options));
    tools.extend(OptionalTool::ALL.into_iter().filter(|tool| options.optional.contains(tool)).map(agents::optional));
    tools
}

/// Creates the provider `builtin`: [`tools`], followed by `more`.
///
/// # Errors
/// A definition of `more` breaks the registration rules.
pub fn provider(
    options: &BuiltinOptions,
    more: impl IntoIterator<Item = Arc<dyn Tool>>,
) -> Result<StaticProvider, RegistrationError> {
    let mut all = tools(options);
    all.extend(more);
    StaticProvider::new("builtin", ProviderKind::Builtin, all)
}

/// Returns a definition; `properties` becomes a closed object schema.
fn define(
    id: &str,
    title: &str,
    description: &str,
    effects: Effects,
    properties: Value,
    required: &[&str],
) -> ToolDefinition {
    #[expect(clippy::expect_used, reason = "the ids are constants of this module, and a test registers them all")]
    let id = ToolId::parse(id).expect("a legal id");
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    let mut definition = ToolDefinition::new(id, description, Some(schema));
    definition.title = Some(title.to_owned());
    definition.tags = vec![definition.id.namespace().to_owned()];
    definition.effects = effects;
    let manual = manuals::of(definition.id.without_version());
    definition.documentation = manual.text.map(str::to_owned);
    definition.timeout = manual.timeout;
    definition
}

/// Converts arguments to their type. They are already validated, so only a number out of range can fail.
fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments)
        .map_err(|error| ToolError::new(ErrorKind::InvalidParameters, format!("the arguments do not fit: {error}")))
}

/// Runs file operations on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ToolError::new(ErrorKind::InternalError, format!("a file operation broke off: {error}"))),
    }
}

/// Returns a failure that the caller can act on.
fn failed(message: impl Into<String>) -> ToolError {
    ToolError::new(ErrorKind::ExecutionError, message)
}

/// Memory limit of a compiled expression, in bytes.
const MAX_REGEX: usize = 10 * 1024 * 1024;

/// Whether case matters to a regular expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Sensitive,
    Insensitive,
}

impl Case {
    /// From an argument `case_insensitive`.
    fn insensitive(insensitive: bool) -> Self {
        if insensitive { Self::Insensitive } else { Self::Sensitive }
    }
}

/// Compiles a caller's pattern for matches within lines.
///
/// # Errors
/// `invalid_parameters` for an invalid or too large regular expression.
fn line_matcher(pattern: &str, case: Case) -> Result<RegexMatcher, ToolError> {
    build_matcher(RegexMatcherBuilder::new().line_terminator(Some(b'\n')), pattern, case)
}

/// Compiles a caller's pattern for matches over several lines.
///
/// # Errors
/// As [`line_matcher`].
fn block_matcher(pattern: &str, case: Case) -> Result<RegexMatcher, ToolError> {
    build_matcher(RegexMatcherBuilder::new().multi_line(true).dot_matches_new_line(true), pattern, case)
}

fn build_matcher(builder: &mut RegexMatcherBuilder, pattern: &str, case: Case) -> Result<RegexMatcher, ToolError> {
    builder.case_insensitive(case == Case::Insensitive).size_limit(MAX_REGEX).build(pattern).map_err(|error| {
        let message = format!("the pattern is not a regular expression that can be searched for: {error}");
        ToolError::new(ErrorKind::InvalidParameters, message)
    })
}
