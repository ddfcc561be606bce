//! From an MCP server entry to one that can be connected, or to the reason why it cannot.

use std::path::Path;

use toolwright_core::tool_id::{RESERVED_NAMESPACES, server_namespace};
use toolwright_mcp::client::{McpServerConfig, McpTransport};

use super::fill::Scope;
use super::foreign;
use super::node::{Data, Member, Node};
use super::problem::{At, Problem, Severity};
use super::resolved::Server;
use super::schema;

/// One entry under resolution.
pub(super) struct Resolver<'a, 'b> {
    entry: &'a str,
    pub(super) at: &'a At,
    scope: &'a mut Scope<'b>,
    /// Set by the first fault that leaves the entry out.
    broken: bool,
}

/// What became of an entry.
pub(crate) enum Resolved {
    /// It can be used.
    Server(Box<Server>),
    /// It is switched off.
    Off,
    /// It cannot be used; the reason is among the problems.
    Broken,
}

/// Resolves an entry. `taken` are the namespaces of the servers before it.
pub(crate) fn resolve(member: Member, taken: &[String], scope: &mut Scope<'_>) -> Resolved {
    let Member { key: name, at, value: mut node } = member;
    let mut told: Vec<[String; 3]> = Vec::new();
    foreign::in_our_keys(&name, &mut node, &mut |key, message, remedy| {
        told.push([key, message, remedy].map(str::to_owned));
    });
    if node.get("enabled").is_some_and(|enabled| enabled.value.data == Data::Bool(false)) {
        return Resolved::Off;
    }
    let mut resolver = Resolver { entry: &name, at: &at, scope, broken: false };
    for [key, message, remedy] in told {
        resolver.warn(&key, &message, &remedy);
    }
    let namespace = resolver.namespace(taken);
    let config = resolver.config(&mut node);
    let oauth = config.as_ref().and_then(|config| resolver.oauth(config));
    match config {
        Some(config) if !resolver.broken => {
            let defined_in = scope.places.of(&at);
            Resolved::Server(Box::new(Server { entry: name, namespace, at, defined_in, config, oauth }))
        }
        _ => Resolved::Broken,
    }
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

    fn namespace(&mut self, taken: &[String]) -> String {
        let name = self.entry;
        let is_taken = |candidate: &str| taken.iter().any(|have| have == candidate);
        let namespace = server_namespace(name, &is_taken);
        if namespace != name {
            let why = if RESERVED_NAMESPACES.contains(&name) {
                "the name is reserved"
            } else if is_taken(name) {
                "another server has the name"
            } else {
                "the name has characters other than a-z, 0-9, _ and -"
            };
            let message = format!("{why}; its tools are called {namespace}__…");
            self.warn("", &message, "rename the entry to choose another prefix");
        }
        namespace
    }

    /// The entry as its client reads it: variables filled in, `type` said, paths absolute.
    fn config(&mut self, node: &mut Node) -> Option<McpServerConfig> {
        let is_program = self.is_program(node)?;
        let useless: &[&str] = if is_program { &["headers", "oauth"] } else { &["args", "env", "cwd"] };
        for key in useless {
            node.take(key);
        }
        if is_program && node.text_of("command").is_some_and(|command| command.trim().is_empty()) {
            self.fail("command", "it is empty", "add the program that starts the server");
        }
        let before = self.scope.problems.len();
        self.scope.fill_in(node, schema::entry("mcp_servers"), self.at, &format!("mcp_servers.{}", self.entry));
        if let Some(queue) = node.text_of("queue") {
            self.scope.check_queue(self.at, &format!("mcp_servers.{}.queue", self.entry), queue);
        }
        self.broken |= self.scope.problems.len() > before;
        if is_program {
            node.set("type", Data::Text("stdio".to_owned()));
        } else if !self.broken {
            self.settle_address(node);
        }
        if self.broken {
            return None;
        }
        let mut config: McpServerConfig = match serde_json::from_value(node.to_value()) {
            Ok(config) => config,
            Err(error) => {
                self.fail("", &error.to_string(), "compare it with `toolwright config schema`");
                return None;
            }
        };
        if let McpTransport::Stdio { command, cwd, .. } = &mut config.transport {
            if let Some((program, args)) = command_line(command) {
                let message = format!("`{program} {}` is taken for the name of one program", args.join(" "));
                let remedy = format!("write `command: {program}` and `args: [{}]`", args.join(", "));
                self.warn("command", &message, &remedy);
            }
            let folder = self.at.file.parent().unwrap_or_else(|| Path::new(""));
            *cwd = Some(cwd.as_ref().map_or_else(|| self.scope.root.to_owned(), |cwd| folder.join(cwd)));
        }
        for (raw, tool) in &config.tools {
            if tool.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
                self.fail(&format!("tools.{raw}.name"), "it is empty", "give it a name, or remove the key");
            }
        }
        Some(config)
    }

    /// Whether it is a program, and not a server at an address.
    fn is_program(&mut self, node: &Node) -> Option<bool> {
        let problem = match (node.text_of("type"), node.get("command"), node.get("url")) {
            (None | Some("stdio"), Some(_), None) => return Some(true),
            (None, None, Some(_)) => return Some(false),
            (Some(kind), None, Some(_)) if kind != "stdio" => return Some(false),
            (_, Some(_), Some(_)) => ("", "it has both `command` and `url`", "keep the one that is meant"),
            (None, None, None) => {
                ("", "it has neither `command` nor `url`", "add `command` for a program or `url` for an address")
            }
            (Some("stdio"), None, _) => ("command", "a stdio server needs `command`", "add the program that starts it"),
            (Some(_), _, _) => ("url", "a server of this type needs `url`", "add its address"),
        };
        self.fail(problem.0, problem.1, problem.2);
        None
    }

    /// Checks the address, and says by it what is spoken there.
    fn settle_address(&mut self, node: &mut Node) {
        if node.text_of("sandbox").is_some_and(|profile| profile != "full") {
            let remedy = "remove it, or give the server as a `command`";
            self.warn("sandbox", "it has no process of ours: a server at an address cannot be sandboxed", remedy);
        }
        let scheme = match url::Url::parse(node.text_of("url").unwrap_or_default()) {
            Ok(parsed) if parsed.has_host() => parsed.scheme().to_owned(),
            Ok(_) => String::new(),
            Err(error) => {
                self.fail("url", &format!("it is not an address: {error}"), "write it like https://host/mcp");
                return;
            }
        };
        let kind = match (&*scheme, node.text_of("type")) {
            ("http" | "https", Some("ws")) => {
                self.fail("url", "a WebSocket has another kind of address", "write it with ws:// or wss://");
                return;
            }
            ("http" | "https", Some("sse")) => "sse",
            ("http" | "https", _) => "http",
            ("ws" | "wss", None | Some("ws")) => "ws",
            ("ws" | "wss", Some(_)) => {
                self.fail("type", "the address is a WebSocket's", "write `type: ws`, or remove it");
                return;
            }
            _ => {
                let remedy = "use the server's streamable HTTP address";
                self.fail("url", "only http://, https://, ws:// and wss:// addresses are supported", remedy);
                return;
            }
        };
        node.set("type", Data::Text(kind.to_owned()));
    }
}

/// The program and the arguments of what was meant as a whole command line. A path may well have blanks.
fn command_line(command: &str) -> Option<(&str, Vec<&str>)> {
    let mut words = command.split_whitespace();
    let (program, args) = (words.next()?, words.collect::<Vec<_>>());
    let is_line = !program.contains(['/', '\\']) || args.iter().any(|arg| arg.starts_with('-'));
    (!args.is_empty() && is_line && !Path::new(command).exists()).then_some((program, args))
}
