//! The builder: the same settings as `toolwright.yaml`, given in code and loaded the same way.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use toolwright_core::catalogue::ProviderKind;
use toolwright_core::model::ModelClient;
use toolwright_core::policy::Rule;
use toolwright_core::tool::StaticProvider;
use toolwright_core::{Approver, Profile, Tool};
use toolwright_models::Api;

use crate::app::{HostOptions, Toolwright, VariableSource};
use crate::config::{LoadOptions, Severity, code_settings_path, load, variable};
use crate::error::Error;

/// Prefixes of variables for the command `toolwright` and for the telemetry of this process. An embedded Toolwright
/// ignores them.
const IGNORED_PREFIXES: [&str; 2] = ["TOOLWRIGHT_", "OTEL_"];

/// Selects the built-in tools. Converts from `bool` (all or none) or from globs on their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Builtins {
    /// No calls.
    None,
    /// All: files, shell, web, stored outputs, and tools that a model answers.
    All,
    /// The tools whose names match one of these globs, like `fs__read` or `web__*`.
    Some(Vec<String>),
}

impl From<bool> for Builtins {
    fn from(all: bool) -> Self {
        if all { Self::All } else { Self::None }
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for Builtins {
    fn from(globs: [S; N]) -> Self {
        Self::Some(globs.into_iter().map(Into::into).collect())
    }
}

impl From<Vec<String>> for Builtins {
    fn from(globs: Vec<String>) -> Self {
        Self::Some(globs)
    }
}

/// Builds a [`Toolwright`]. Without [`state_dir`](Self::state_dir) and [`config`](Self::config) it keeps
/// everything in memory and touches neither the user's configuration nor the user's state.
///
/// In texts that become settings, like arguments of a server, headers and addresses, `${NAME}` stands for a variable of
/// the environment; write `$${` for a plain `${`.
#[derive(Default)]
#[must_use = "nothing is there before `build`"]
pub struct Builder {
    settings: Map<String, Value>,
    rules: Vec<Rule>,
    tools: Vec<Arc<dyn Tool>>,
    options: LoadOptions,
    builtins: Option<Builtins>,
    variables: Option<VariableSource>,
    host: HostOptions,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Toolwright {
    /// Creates a builder for settings in code.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Adds a tool that is written in Rust: what [`#[tool]`](macro@crate::tool) makes, or any [`Tool`].
    pub fn tool(mut self, tool: impl Tool + 'static) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// Adds several tools.
    pub fn tools(mut self, tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Self {
        self.tools.extend(tools);
        self
    }

    /// Adds an MCP server that runs as a child process. Its tools are called `name__tool`.
    pub fn mcp_stdio<A: Into<String>>(
        self,
        name: impl Into<String>,
        command: impl Into<String>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        let args: Vec<String> = args.into_iter().map(Into::into).collect();
        self.entry("mcp_servers", name.into(), json!({"command": command.into(), "args": args}))
    }

    /// Adds an MCP server at an address, over HTTP, or over WebSocket for `ws:` and `wss:`.
    pub fn mcp_url(self, name: impl Into<String>, url: impl Into<String>) -> Self {
        self.entry("mcp_servers", name.into(), json!({"url": url.into()}))
    }

    /// Adds an HTTP endpoint as the tool `rest__name`. `tool` has the fields of an entry of `rest_tools`: `url`, `method`,
    /// `parameters`, …
    pub fn rest(self, name: impl Into<String>, tool: Value) -> Self {
        self.entry("rest_tools", name.into(), tool)
    }

    /// Adds the operations of an OpenAPI document, each as a tool `name__operation`. `document` is an address or a
    /// path; a relative path is taken from the current folder.
    pub fn openapi(self, name: impl Into<String>, document: impl Into<String>) -> Self {
        self.entry("openapi", name.into(), json!({"document": document.into()}))
    }

    /// Adds any settings of `toolwright.yaml` for which there is no method here, like headers of a server, queues,
    /// views and limits. Mappings are merged; later values override earlier ones.
    ///
    /// ```
    /// # use toolwright::Toolwright;
    /// # use serde_json::json;
    /// let builder = Toolwright::builder()
    ///     .mcp_url("github", "https://api.githubcopilot.com/mcp/")
    ///     .settings(json!({"mcp_servers": {"github": {"headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"}}}}));
    /// ```
    pub fn settings(mut self, settings: impl Serialize) -> Self {
        // Any other value than a mapping fails the build, with its place and the expected type.
        let settings = serde_json::to_value(settings).unwrap_or_default();
        match settings {
            Value::Object(settings) => {
                settings.into_iter().for_each(|(key, value)| merge_setting(&mut self.settings, key, value))
            }
            other => merge_setting(&mut self.settings, "settings".to_owned(), other),
        }
        self
    }

    /// Sets the profile that decides if no rule matches, for calls of this program, of agents and of served clients.
    /// Default: this program's own calls run; agents ask about calls that do more than read; for clients see
    /// [`Serve::policy`](crate::Serve::policy).
    pub fn policy(self, profile: Profile) -> Self {
        self.settings(json!({"policy": {"profile": profile}}))
    }

    /// Adds a rule. The first rule that matches a call decides.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets who answers if policy asks: a function of the request, or any [`Approver`]. Default: nobody, and such calls
    /// are denied.
    pub fn approver(mut self, approver: impl Approver + 'static) -> Self {
        self.host.approver = Some(Arc::new(approver));
        self
    }

    /// Keeps state in this folder: runs that can be resumed, approvals, pins, jobs, the ledger, stored outputs. Default: in
    /// memory, and outputs in a folder that is removed at the end.
    pub fn state_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.state_dir = Some(folder.into());
        self
    }

    /// Sets the workspace root, where file tools and servers work. Default: the folder of [`config`](Self::config), else the
    /// current folder.
    pub fn root(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.root = Some(folder.into());
        self
    }

    /// Reads this `toolwright.yaml`; settings in code override it. State is stored where the command `toolwright`
    /// stores it, unless [`state_dir`](Self::state_dir) is set.
    pub fn config(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.config = Some(file.into());
        self
    }

    /// Sets the endpoint for the models of `provider`, whose ids are `provider/model`. The public APIs of OpenAI
    /// (`openai`), Anthropic (`anthropic`) and Gemini (`gemini`) are known if the environment has their keys, and
    /// Ollama on this machine always.
    pub fn model_endpoint(self, provider: impl Into<String>, api: Api, base_url: impl Into<String>) -> Self {
        let endpoint = json!({"api": api, "base_url": base_url.into()});
        self.settings(json!({"models": {"endpoints": {provider.into(): endpoint}}}))
    }

    /// Sets the key of a [`model_endpoint`](Self::model_endpoint).
    pub fn model_key(self, provider: impl Into<String>, key: impl Into<String>) -> Self {
        self.settings(json!({"models": {"endpoints": {provider.into(): {"api_key": key.into()}}}}))
    }

    /// Lets `client` answer for the models of `provider`: the program's own model, or a scripted one for tests. For
    /// tests, the model `replay:FILE` answers from a recording by `toolwright run --record`.
    pub fn model_client(mut self, provider: impl Into<String>, client: impl ModelClient + 'static) -> Self {
        self.host.models.push((provider.into(), Arc::new(client)));
        self
    }

    /// Sets the model for requests that name none, such as those of LLM-backed tools and of servers.
    pub fn default_model(self, model: impl Into<String>) -> Self {
        self.settings(json!({"models": {"default": model.into()}}))
    }

    /// Selects the built-in tools. Default: none, or those of [`config`](Self::config).
    pub fn builtins(mut self, builtins: impl Into<Builtins>) -> Self {
        self.builtins = Some(builtins.into());
        self
    }

    /// Looks variables up in this function instead of the environment: `${NAME}` in settings, and the keys of models.
    pub fn variables(mut self, variables: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        self.variables = Some(Box::new(variables));
        self
    }

    /// Builds it. Servers are not connected yet: that happens when their tools are first needed, or by
    /// [`Toolwright::connect`].
    ///
    /// # Errors
    /// [`Error::Config`] for unusable settings; the file may lose single entries, which
    /// [`Config::problems`](crate::config::Config::problems) reports. [`Error::Tool`] and [`Error::Duplicate`] for
    /// tools; [`Error::StateDir`] and [`Error::Io`] for the state directory and the current folder.
    pub async fn build(mut self) -> Result<Arc<Toolwright>, Error> {
        let mut options = std::mem::take(&mut self.options);
        options.cwd = std::env::current_dir().map_err(Error::io("the current folder cannot be used"))?;
        if options.config.is_none() && options.state_dir.is_none() {
            let temporary = tempfile::Builder::new().prefix("toolwright-").tempdir();
            let temporary = temporary.map_err(Error::io("a folder for stored outputs cannot be made"))?;
            options.state_dir = Some(temporary.path().to_owned());
            self.host.temporary = Some(temporary);
        }
        let named = options.config.is_none();
        self.host.names_its_models = named;
        let variables = self.variables.take().unwrap_or_else(|| match named {
            true => Box::new(embedded_variable),
            false => Box::new(variable),
        });
        options.settings = Some(Value::Object(self.document(named)));
        let mut config = load(&options, &*variables);
        let code = code_settings_path(&options.cwd);
        let ours = |problem: &crate::config::Problem| problem.file.as_deref() == Some(&code);
        // An error in code fails the build, even if it would only remove an entry in a file.
        if config.problems.iter().any(|problem| ours(problem) && problem.severity != Severity::Warning) {
            config.problems.retain(|problem| problem.severity != Severity::Warning);
            return Err(Error::Config(config.problems));
        }
        let app = Toolwright::open_within(options, config, variables, self.host).await?;
        add(&app, self.tools).await?;
        app.offer_jobs_after_first();
        Ok(app)
    }

    /// Returns the settings as one document. `alone`: there is no file below it.
    fn document(&mut self, alone: bool) -> Map<String, Value> {
        let mut document = std::mem::take(&mut self.settings);
        let builtins = self.builtins.take().or(alone.then_some(Builtins::None));
        let defaults = builtins.map(|builtins| match builtins {
            Builtins::None => json!({"builtins": false}),
            Builtins::All => json!({"builtins": true}),
            Builtins::Some(globs) => json!({"builtins": !globs.is_empty(), "builtins_allowed": globs}),
        });
        if let Some(defaults) = defaults {
            merge_setting(&mut document, "defaults".to_owned(), defaults);
        }
        if !self.rules.is_empty() {
            let rules = serde_json::to_value(std::mem::take(&mut self.rules)).unwrap_or_default();
            merge_setting(&mut document, "policy".to_owned(), json!({"rules": rules}));
        }
        document
    }

    fn entry(self, section: &str, name: String, entry: Value) -> Self {
        self.settings(json!({section: {name: entry}}))
    }
}

/// Returns a variable of the environment, except those with a prefix in [`IGNORED_PREFIXES`].
fn embedded_variable(name: &str) -> Option<String> {
    let is_other = IGNORED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if is_other { None } else { crate::config::environment(name) }
}

/// Adds a setting over earlier ones: mappings are merged, other values are replaced.
fn merge_setting(settings: &mut Map<String, Value>, key: String, value: Value) {
    match (settings.get_mut(&key), value) {
        (Some(Value::Object(have)), Value::Object(more)) => {
            more.into_iter().for_each(|(key, value)| merge_setting(have, key, value))
        }
        (_, value) => {
            settings.insert(key, value);
        }
    }
}

/// Adds the program's own tools, one provider per namespace.
async fn add(app: &Toolwright, tools: Vec<Arc<dyn Tool>>) -> Result<(), Error> {
    let mut by_namespace: BTreeMap<String, Vec<Arc<dyn Tool>>> = BTreeMap::new();
    for tool in tools {
        by_namespace.entry(tool.definition().id.namespace().to_owned()).or_default().push(tool);
    }
    for (namespace, tools) in by_namespace {
        let provider = StaticProvider::new(&*namespace, ProviderKind::Native, tools).map_err(Error::Tool)?;
        app.catalogue().add_provider(Arc::new(provider)).await?;
        app.catalogue().refresh(&namespace).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_settings_override_earlier_ones() {
        let mut builder = Toolwright::builder()
            .mcp_url("a", "http://a/")
            .settings(json!({"mcp_servers": {"a": {"headers": {"X": "1"}}}, "web": {"max_bytes": 1}}))
            .settings(json!({"web": {"max_bytes": 2}}))
            .policy(Profile::Ask)
            .rule(Rule::deny("a__*").because("no"))
            .builtins(["fs__read"]);
        let expect = json!({
            "mcp_servers": {"a": {"url": "http://a/", "headers": {"X": "1"}}},
            "web": {"max_bytes": 2},
            "policy": {"profile": "ask", "rules": [{"effect": "deny", "tool": "a__*", "reason": "no"}]},
            "defaults": {"builtins": true, "builtins_allowed": ["fs__read"]},
        });
        assert_eq!(Value::Object(builder.document(true)), expect);
    }

    #[test]
    fn variables_of_command_and_telemetry_are_not_read() {
        assert_eq!(embedded_variable("TOOLWRIGHT_STATE_DIR"), None);
        assert_eq!(embedded_variable("OTEL_EXPORTER_OTLP_ENDPOINT"), None);
        assert!(embedded_variable("PATH").is_some());
    }
}
