//! From a written MCP server entry to one that can be connected, or to the reason why it cannot.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use serde_json::Value;
use toolwright_core::SandboxProfile;
use toolwright_core::catalogue::ToolOverride;
use toolwright_core::tool_id::{RESERVED_NAMESPACES, server_namespace};
use toolwright_runtime::queue::DEFAULT_QUEUE;

use super::expand::{ExpandError, Variables, expand};
use super::foreign;
use super::places::Places;
use super::problem::{At, Problem, Severity};
use super::resolved::{HttpWay, Server, ServerLink, ServerSettings};
use super::secrets::{in_address, in_arguments, is_surroundings, looks_secret, without_scheme};
use super::typed::{McpServer, OfferedAs, ServerTools, ShownTool, Transport, Written};

/// What resolving an entry needs to know and to add to.
pub(crate) struct Scope<'a> {
    /// What the files are called in the names of sources.
    pub(crate) places: &'a Places,
    pub(crate) variables: Variables<'a>,
    pub(crate) queues: &'a [String],
    /// Where servers run that say nothing else.
    pub(crate) root: &'a Path,
    pub(crate) secrets: &'a mut Vec<String>,
    /// Variables that hold keys of ours.
    pub(crate) key_variables: &'a mut Vec<String>,
    pub(crate) problems: &'a mut Vec<Problem>,
}

/// One entry under resolution.
pub(super) struct Resolver<'a, 'b> {
    entry: &'a str,
    pub(super) at: &'a At,
    scope: &'a mut Scope<'b>,
    /// Set by the first fault that leaves the entry out.
    broken: bool,
}

/// Resolves the entry `name`; `None` when it is switched off or cannot be used. `taken` are the
/// namespaces of the servers before it.
pub(crate) fn resolve(
    name: &str,
    at: &At,
    written: &McpServer,
    taken: &[String],
    scope: &mut Scope<'_>,
) -> Option<Server> {
    if written.enabled == Some(false) || written.disabled == Some(true) {
        return None;
    }
    let mut resolver = Resolver { entry: name, at, scope, broken: false };
    resolver.foreign_keys(written);
    let link = resolver.link(written);
    let oauth = match &link {
        Some(ServerLink::Http { .. }) => resolver.oauth(written),
        _ => None,
    };
    let queue = resolver.queue(written.queue.as_deref());
    let namespace = server_namespace(name, &|candidate| taken.iter().any(|have| have == candidate));
    if namespace != name {
        let why = if RESERVED_NAMESPACES.contains(&name) {
            "the name is reserved"
        } else if taken.iter().any(|have| have == name) {
            "another server has the name"
        } else {
            "the name has characters other than a-z, 0-9, _ and -"
        };
        let message = format!("{why}; its tools are called {namespace}__…");
        resolver.warn("", &message, "rename the entry to choose another prefix");
    }
    let tools_allowed = resolver.allowed(written);
    let shown = resolver.shown(written);
    let request_timeout =
        written.request_timeout.map(|span| span.0).or_else(|| resolver.foreign_timeout(written.timeout));
    if resolver.broken {
        return None;
    }
    Some(Server {
        entry: name.to_owned(),
        namespace,
        at: at.clone(),
        settings: ServerSettings {
            defined_in: scope.places.of(at),
            link: link?,
            oauth,
            tools_allowed,
            tools_denied: Resolver::denied(written),
            shown,
            queue,
            request_timeout,
            connect_timeout: written.connect_timeout.map(|span| span.0),
            max_message_bytes: written.max_message_bytes,
            background: written.background.clone(),
            auto_background_after: written.auto_background_after.map(|span| span.0),
            idle_timeout: written.idle_timeout.map(|span| span.0),
            retries: written.retries,
            cache: written.cache.and_then(|ttl| ttl.0),
            tools_cache: written.tools_cache.iter().map(|(tool, ttl)| (tool.clone(), ttl.0)).collect(),
            trusted: written.trusted.unwrap_or(false),
            shared: written.shared.unwrap_or(true),
            lazy: written.lazy.unwrap_or(false),
            resources_as_tools: written.resources == Some(OfferedAs::Tools),
            prompts_as_tools: written.prompts == Some(OfferedAs::Tools),
        },
    })
}

impl Resolver<'_, '_> {
    fn problem(&mut self, severity: Severity, key: &str, message: &str, remedy: &str) {
        let dot = if key.is_empty() { "" } else { "." };
        let field = format!("mcp_servers.{}{dot}{key}", self.entry);
        self.scope.problems.push(Problem::new(severity, self.at, field, message, remedy));
    }

    pub(super) fn warn(&mut self, key: &str, message: &str, remedy: &str) {
        self.problem(Severity::Warning, key, message, remedy);
    }

    pub(super) fn fail(&mut self, key: &str, message: &str, remedy: &str) {
        self.broken = true;
        self.problem(Severity::EntryDisabled, key, message, remedy);
    }

    fn foreign_keys(&mut self, written: &McpServer) {
        for (key, value) in [("always_allow", &written.always_allow), ("auto_approve", &written.auto_approve)] {
            let listed = match value {
                None => continue,
                Some(Value::Array(items)) if items.is_empty() => continue,
                Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
                Some(other) => other.to_string(),
            };
            let remedy = format!("to allow tools, add a rule under `policy.rules` with `namespace: {}`", self.entry);
            self.warn(
                key,
                &format!("another client approves these by itself: {listed}; that is not applied here"),
                &remedy,
            );
        }
    }

    /// The allow list, under our own word for it or another client's.
    fn allowed(&mut self, written: &McpServer) -> Vec<String> {
        let tools = match &written.tools {
            Some(ServerTools::Allowed(listed)) => Some(listed),
            _ => None,
        };
        let theirs = [
            ("tools", tools),
            ("include_tools", written.include_tools.as_ref()),
            ("enabled_tools", written.enabled_tools.as_ref()),
        ];
        let mut allowed = written.tools_allowed.clone();
        for (key, listed) in theirs.into_iter().filter_map(|(key, listed)| Some((key, listed?))) {
            if allowed.is_empty() {
                allowed.clone_from(listed);
            } else {
                self.warn(key, "this list is another client's key; the one before it counts", "remove one of them");
            }
        }
        allowed
    }

    /// What is not offered, under our own word for it and other clients', which allow nothing by an empty list.
    fn denied(written: &McpServer) -> Vec<String> {
        let is_empty = |listed: &Option<Vec<String>>| listed.as_ref().is_some_and(Vec::is_empty);
        let all = is_empty(&written.include_tools) || is_empty(&written.enabled_tools);
        let lists = [&written.tools_denied, &written.exclude_tools, &written.disabled_tools];
        lists.into_iter().flatten().cloned().chain(all.then(|| "*".to_owned())).collect()
    }

    fn shown(&mut self, written: &McpServer) -> BTreeMap<String, ToolOverride> {
        let Some(ServerTools::Shown(tools)) = &written.tools else { return BTreeMap::new() };
        for (raw, tool) in tools {
            if tool.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
                self.fail(&format!("tools.{raw}.name"), "it is empty", "give it a name, or remove the key");
            }
        }
        shown_as(tools)
    }

    fn foreign_timeout(&mut self, timeout: Option<u64>) -> Option<Duration> {
        let timeout = timeout?;
        let Some(read) = foreign::timeout(timeout) else {
            self.warn("timeout", "0 is no limit that a call can keep; it is ignored", "remove it");
            return None;
        };
        let text = toolwright_core::duration::format(read);
        self.warn(
            "timeout",
            &format!("{timeout} is another client's key; it is read as {text}"),
            &format!("write `request_timeout: {text}`"),
        );
        Some(read)
    }

    fn queue(&mut self, queue: Option<&str>) -> Option<String> {
        let queue = queue?;
        let before = self.scope.problems.len();
        self.scope.check_queue(self.at, &format!("mcp_servers.{}.queue", self.entry), queue);
        self.broken |= self.scope.problems.len() > before;
        Some(queue.to_owned())
    }

    fn link(&mut self, written: &McpServer) -> Option<ServerLink> {
        let url = written.url.as_deref().or(written.server_url.as_deref()).or(written.http_url.as_deref());
        let kind = written.kind.or(written.transport);
        let problem = match (kind, written.command.as_deref(), url) {
            (None | Some(Transport::Stdio), Some(command), None) => return self.stdio(command, written),
            (None, None, Some(url)) => return self.http(None, url, written),
            (Some(kind), None, Some(url)) if kind != Transport::Stdio => return self.http(Some(kind), url, written),
            (_, Some(_), Some(_)) => ("", "it has both `command` and `url`", "keep the one that is meant"),
            (None, None, None) => {
                ("", "it has neither `command` nor `url`", "add `command` for a program or `url` for an address")
            }
            (Some(Transport::Stdio), None, _) => {
                ("command", "a stdio server needs `command`", "add the program that starts it")
            }
            (Some(_), _, _) => ("url", "a server of this type needs `url`", "add its address"),
        };
        self.fail(problem.0, problem.1, problem.2);
        None
    }

    fn stdio(&mut self, command: &str, written: &McpServer) -> Option<ServerLink> {
        if command.trim().is_empty() {
            self.fail("command", "it is empty", "add the program that starts the server");
        }
        let command = self.text("command", command, Holds::Setting);
        if let Some((program, args)) = command.as_deref().and_then(command_line) {
            let message = format!("`{program} {}` is taken for the name of one program", args.join(" "));
            let remedy = format!("write `command: {program}` and `args: [{}]`", args.join(", "));
            self.warn("command", &message, &remedy);
        }
        let args = written.args.iter().map(|arg| self.text("args", &arg.0, Holds::Argument)).collect::<Vec<_>>();
        let args: Option<Vec<String>> = args.into_iter().collect();
        if let Some(args) = &args {
            let texts: Vec<&str> = args.iter().map(String::as_str).collect();
            for (part, text) in in_arguments(&texts).into_iter().zip(texts) {
                if let Some(part) = part.filter(|part| part.is_sure) {
                    note(without_scheme(&text[part.range]), self.scope.secrets);
                }
            }
        }
        let env = self.pairs("env", &written.env);
        let folder = self.at.file.parent().map(Path::to_path_buf).unwrap_or_default();
        let cwd: Option<PathBuf> = match &written.cwd {
            None => Some(self.scope.root.to_owned()),
            Some(cwd) => self.text("cwd", cwd, Holds::Setting).map(|cwd| folder.join(cwd)),
        };
        let sandbox = written.sandbox.unwrap_or(SandboxProfile::Full);
        Some(ServerLink::Stdio { command: command?, args: args?, env: env?, cwd: cwd?, sandbox })
    }

    fn http(&mut self, kind: Option<Transport>, url: &str, written: &McpServer) -> Option<ServerLink> {
        if written.sandbox.is_some_and(|profile| profile != SandboxProfile::Full) {
            let remedy = "remove it, or give the server as a `command`";
            self.warn("sandbox", "it has no process of ours: a server at an address cannot be sandboxed", remedy);
        }
        let url = self.text("url", url, Holds::Setting);
        let headers = self.pairs("headers", &written.headers);
        let url = url?;
        let scheme = match url::Url::parse(&url) {
            Ok(parsed) if parsed.has_host() => parsed.scheme().to_owned(),
            Ok(_) => String::new(),
            Err(error) => {
                self.fail("url", &format!("it is not an address: {error}"), "write it like https://host/mcp");
                return None;
            }
        };
        let way = match (&*scheme, kind) {
            ("http" | "https", Some(Transport::Sse)) => HttpWay::Sse,
            ("http" | "https", Some(Transport::Ws | Transport::WebSocket)) => {
                self.fail("url", "a WebSocket has another kind of address", "write it with ws:// or wss://");
                return None;
            }
            ("http" | "https", _) => HttpWay::Streamable,
            ("ws" | "wss", None | Some(Transport::Ws | Transport::WebSocket)) => HttpWay::WebSocket,
            ("ws" | "wss", Some(_)) => {
                self.fail("type", "the address is a WebSocket's", "write `type: ws`, or remove it");
                return None;
            }
            _ => {
                let remedy = "use the server's streamable HTTP address";
                self.fail("url", "only http://, https://, ws:// and wss:// addresses are supported", remedy);
                return None;
            }
        };
        Some(ServerLink::Http { way, url, headers: headers? })
    }

    fn pairs(&mut self, key: &str, pairs: &IndexMap<String, Written>) -> Option<Vec<(String, String)>> {
        let mut all = Vec::with_capacity(pairs.len());
        let mut complete = true;
        for (name, value) in pairs {
            match self.text(&format!("{key}.{name}"), &value.0, Holds::Pair(name)) {
                Some(text) => all.push((name.clone(), text)),
                None => complete = false,
            }
        }
        complete.then_some(all)
    }

    pub(super) fn text(&mut self, key: &str, text: &str, holds: Holds<'_>) -> Option<String> {
        match expand(text, self.scope.variables) {
            Ok(expanded) => {
                note_secrets(&expanded, holds, self.scope.secrets);
                if let Holds::OwnKey(_) = holds {
                    self.scope.key_variables.extend(key_variables(&expanded));
                }
                Some(expanded.text)
            }
            Err(error) => {
                self.fail_expansion(key, &error);
                None
            }
        }
    }

    fn fail_expansion(&mut self, key: &str, error: &ExpandError) {
        self.fail(key, &error.to_string(), &error.remedy());
    }
}

/// The program and the arguments of what was meant as a whole command line. A path may well have blanks.
fn command_line(command: &str) -> Option<(&str, Vec<&str>)> {
    let mut words = command.split_whitespace();
    let (program, args) = (words.next()?, words.collect::<Vec<_>>());
    let is_line = !program.contains(['/', '\\']) || args.iter().any(|arg| arg.starts_with('-'));
    (!args.is_empty() && is_line && !Path::new(command).exists()).then_some((program, args))
}

/// How single tools are shown.
pub(crate) fn shown_as(tools: &IndexMap<String, ShownTool>) -> BTreeMap<String, ToolOverride> {
    let shown = |tool: &ShownTool| {
        let ShownTool { name, title, description, tags, aliases } = tool.clone();
        ToolOverride { name, title, description, effects: None, tags, aliases }
    };
    tools.iter().map(|(raw, tool)| (raw.clone(), shown(tool))).collect()
}

/// What a string is for, which tells whether it may be secret.
#[derive(Clone, Copy)]
pub(crate) enum Holds<'a> {
    /// A plain setting.
    Setting,
    /// A command-line argument.
    Argument,
    /// The value of this header or environment variable.
    Pair(&'a str),
    /// As a pair of this name, and for us alone: children do not inherit the variables that went into it.
    OwnKey(&'a str),
}

impl Scope<'_> {
    /// Expands a string of an entry in place. A fault leaves the entry out.
    pub(crate) fn fill(&mut self, at: &At, field: &str, text: &mut String, holds: Holds<'_>) {
        match expand(text, self.variables) {
            Ok(expanded) => {
                note_secrets(&expanded, holds, self.secrets);
                if let Holds::OwnKey(_) = holds {
                    self.key_variables.extend(key_variables(&expanded));
                }
                *text = expanded.text;
            }
            Err(error) => self.leave_out(at, field, error.to_string(), error.remedy()),
        }
    }

    /// Notes a fault that leaves the entry out.
    pub(crate) fn leave_out(&mut self, at: &At, field: &str, message: String, remedy: impl Into<String>) {
        self.problems.push(Problem::new(Severity::EntryDisabled, at, field, message, remedy));
    }

    /// Checks that a queue is defined; without one, what was meant to bound the calls would not.
    pub(crate) fn check_queue(&mut self, at: &At, field: &str, queue: &str) {
        if queue == DEFAULT_QUEUE || self.queues.iter().any(|known| known == queue) {
            return;
        }
        let near = toolwright_core::pattern::nearest(queue, self.queues.iter().map(String::as_str));
        let remedy = near.map_or_else(|| format!("define `queues.{queue}`"), |near| format!("did you mean `{near}`?"));
        let message = format!("there is no queue called `{queue}`");
        self.problems.push(Problem::new(Severity::Error, at, field, message, remedy));
    }
}

/// Collects what must not be printed: what variables brought into headers and environment, values whose
/// key says that they are secret, and passwords in addresses.
pub(crate) fn note_secrets(expanded: &super::expand::Expanded, holds: Holds<'_>, secrets: &mut Vec<String>) {
    for (name, value) in &expanded.used {
        let secret = match holds {
            Holds::Pair(_) | Holds::OwnKey(_) => !is_surroundings(name),
            Holds::Setting | Holds::Argument => looks_secret(name),
        };
        if secret {
            note(value, secrets);
        }
    }
    // What is still a placeholder is filled in by a call.
    if expanded.text.contains("${") {
        return;
    }
    if let Holds::Pair(key) | Holds::OwnKey(key) = holds
        && looks_secret(key)
    {
        note(without_scheme(&expanded.text), secrets);
    }
    for part in in_address(&expanded.text).into_iter().filter(|part| part.is_sure) {
        note(&expanded.text[part.range], secrets);
    }
}

/// The variables of a key of ours that hold it, or a part of it.
pub(crate) fn key_variables(expanded: &super::expand::Expanded) -> impl Iterator<Item = String> {
    expanded.used.iter().filter(|(name, _)| !is_surroundings(name)).map(|(name, _)| name.clone())
}

/// Adds a secret that is not there yet.
fn note(value: &str, secrets: &mut Vec<String>) {
    if !value.is_empty() && !secrets.iter().any(|have| have == value) {
        secrets.push(value.to_owned());
    }
}
