//! Resolves an MCP server entry to a server that can be connected, or reports why it cannot be. Also translates other
//! clients' keys, in pasted and in imported files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::tool_id::{RESERVED_NAMESPACES, server_namespace};
use toolwright_mcp::client::{McpServerConfig, McpTransport};
use toolwright_oauth::{ClientProof, Grant, OAuthConfig, SigningKey};

use super::check::{check, entry_schema, schema};
use super::variables::ResolveScope;
use crate::config::Server;
use crate::config::files::node::{Data, Member, Node, Problem, Severity, SourceLocation};

/// The default signature algorithm of private keys.
const DEFAULT_ALGORITHM: &str = "ES256";

/// An entry that is being resolved.
struct Resolver<'a, 'b> {
    entry: &'a str,
    at: &'a SourceLocation,
    scope: &'a mut ResolveScope<'b>,
    /// Set by the first fault that leaves the entry out.
    broken: bool,
}

/// The result of an entry.
pub(crate) enum ResolvedServer {
    /// It can be used.
    Server(Box<Server>),
    /// It is switched off.
    Off,
    /// It cannot be used; the reason is among the problems.
    Broken,
}

/// Resolves an entry. `taken` has the namespaces of earlier servers.
pub(crate) fn resolve(member: Member, taken: &[String], scope: &mut ResolveScope<'_>) -> ResolvedServer {
    let Member { key: name, at, value: mut node } = member;
    let mut notes: Vec<[String; 3]> = Vec::new();
    normalise_keys(&name, &mut node, &mut |key, message, remedy| {
        notes.push([key, message, remedy].map(str::to_owned));
    });
    if node.get("enabled").is_some_and(|enabled| enabled.value.data == Data::Bool(false)) {
        return ResolvedServer::Off;
    }
    let mut resolver = Resolver { entry: &name, at: &at, scope, broken: false };
    for [key, message, remedy] in notes {
        resolver.warn(&key, &message, &remedy);
    }
    let namespace = resolver.namespace(taken);
    let mut config = resolver.config(&mut node);
    if let Some(config) = &mut config {
        resolver.resolve_oauth(config);
    }
    match config {
        Some(config) if !resolver.broken => {
            let defined_in = scope.places.of(&at);
            ResolvedServer::Server(Box::new(Server { entry: name, namespace, at, defined_in, config }))
        }
        _ => ResolvedServer::Broken,
    }
}

impl Resolver<'_, '_> {
    fn problem(&mut self, severity: Severity, key: &str, message: &str, remedy: &str) {
        let dot = if key.is_empty() { "" } else { "." };
        let field = format!("mcp_servers.{}{dot}{key}", self.entry);
        self.scope.problems.push(Problem::new(severity, self.at, field, message, remedy));
    }

    fn warn(&mut self, key: &str, message: &str, remedy: &str) {
        self.problem(Severity::Warning, key, message, remedy);
    }

    fn fail(&mut self, key: &str, message: &str, remedy: &str) {
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

    /// Returns the entry as its client reads it: with variables expanded, `type` set and paths absolute.
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
        self.scope.fill_in(node, entry_schema("mcp_servers"), self.at, &format!("mcp_servers.{}", self.entry));
        if let Some(queue) = node.text_of("queue") {
            self.scope.check_queue(self.at, &format!("mcp_servers.{}.queue", self.entry), queue);
        }
        self.broken |= self.scope.problems.len() > before;
        if is_program {
            node.set("type", Data::Text("stdio".to_owned()));
        } else if !self.broken {
            self.resolve_address(node);
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
            if let Some(queue) = &tool.limits.queue {
                let field = format!("mcp_servers.{}.tools.{raw}.queue", self.entry);
                let before = self.scope.problems.len();
                self.scope.check_queue(self.at, &field, queue);
                self.broken |= self.scope.problems.len() > before;
            }
            if tool.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
                self.fail(&format!("tools.{raw}.name"), "it is empty", "give it a name, or remove the key");
            }
        }
        Some(config)
    }

    /// Returns whether it is a program, and not a server at an address.
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

    /// Checks the address, and determines the transport from it.
    fn resolve_address(&mut self, node: &mut Node) {
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

    /// Decides whether tokens are obtained for a server at an address: not if OAuth is disabled, or a header has the
    /// key.
    fn resolve_oauth(&mut self, config: &mut McpServerConfig) {
        let headers = match &config.transport {
            McpTransport::Stdio { .. } => return,
            McpTransport::Http { headers, .. }
            | McpTransport::Sse { headers, .. }
            | McpTransport::WebSocket { headers, .. } => headers,
        };
        let keyed = headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        let section = match config.oauth.take() {
            None => (!keyed).then(OAuthConfig::default),
            Some(section) => Some(section).filter(|section| section.enabled),
        };
        let Some(mut section) = section else { return };
        if keyed {
            let message = "it has both `oauth` and `headers.Authorization`";
            self.fail("oauth", message, "keep the one that is meant");
            return;
        }
        self.resolve_proof(&mut section);
        let id_by_url = section.client_metadata_url.as_deref();
        if id_by_url.is_some_and(|url| !url.starts_with("https://")) {
            self.fail("oauth.client_metadata_url", "it is no https:// address", "publish the document with TLS");
        }
        let is_unnamed = section.client_id.is_none() && id_by_url.is_none();
        if is_unnamed && section.proof != ClientProof::None {
            self.fail("oauth.client_id", "a secret or key needs its client", "add the client's identifier");
        }
        self.resolve_grant(&mut section);
        if is_unnamed && section.grant != Grant::AuthorizationCode {
            let message = "this grant needs a client that the authorization server knows";
            self.fail("oauth.client_id", message, "register one there and add its identifier");
        }
        if section.authorization_server.is_none() && matches!(section.proof, ClientProof::Secret(_)) {
            self.warn(
                "oauth.authorization_server",
                "the server chooses to which authorization server the client's secret goes",
                "set it to the issuer that the client was registered with",
            );
        }
        config.oauth = Some(section);
    }

    fn resolve_proof(&mut self, section: &mut OAuthConfig) {
        section.proof = match (section.client_secret.take(), &section.private_key_file) {
            (None, None) => ClientProof::None,
            (Some(secret), None) => ClientProof::Secret(secret),
            (Some(_), Some(_)) => {
                let message = "it has both `client_secret` and `private_key_file`";
                self.fail("oauth", message, "keep the one that the client is registered with");
                ClientProof::None
            }
            (None, Some(file)) => {
                let path = self.beside_entry(file);
                let algorithm = section.signing_algorithm.as_deref().unwrap_or(DEFAULT_ALGORITHM);
                let read = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()));
                let key = read.and_then(|pem| {
                    let key = SigningKey::from_pem(&pem, algorithm, section.private_key_id.clone());
                    key.map_err(|error| error.to_string())
                });
                match key {
                    Ok(key) => ClientProof::Key(key),
                    Err(reason) => {
                        let remedy = "write a PKCS#8 key there, and its `signing_algorithm`";
                        self.fail("oauth.private_key_file", &reason, remedy);
                        ClientProof::None
                    }
                }
            }
        };
    }

    fn resolve_grant(&mut self, section: &mut OAuthConfig) {
        match section.grant {
            Grant::JwtBearer if section.assertion.is_some() == section.assertion_file.is_some() => {
                let message = "`jwt_bearer` needs either `assertion` or `assertion_file`";
                self.fail("oauth.assertion_file", message, "name the file that holds the assertion");
            }
            Grant::IdentityAssertion if section.identity_provider.is_none() => {
                let message = "`identity_assertion` needs `identity_provider`";
                self.fail("oauth.identity_provider", message, "name the identity provider that issues the assertion");
            }
            _ => {}
        }
        let of_provider = section.identity_provider.as_mut().map(|provider| &mut provider.identity_token_file);
        for file in section.assertion_file.as_mut().into_iter().chain(of_provider) {
            *file = self.beside_entry(file);
        }
    }

    /// Returns a path relative to the configuration's folder.
    fn beside_entry(&self, path: &Path) -> PathBuf {
        self.at.file.parent().map_or_else(|| path.to_owned(), |folder| folder.join(path))
    }
}

/// Splits a command that looks like a whole command line into program and arguments. A path may contain spaces.
fn command_line(command: &str) -> Option<(&str, Vec<&str>)> {
    let mut words = command.split_whitespace();
    let (program, args) = (words.next()?, words.collect::<Vec<_>>());
    let is_line = !program.contains(['/', '\\']) || args.iter().any(|arg| arg.starts_with('-'));
    (!args.is_empty() && is_line && !Path::new(command).exists()).then_some((program, args))
}

/// Reports a key: its name, the message and the remedy.
type ReportProblem<'a> = &'a mut dyn FnMut(&str, &str, &str);

/// Alternative values of `type`, ours, and their meaning.
const TYPES: [(&str, &str, &str); 3] = [
    ("streamable-http", "http", "Streamable HTTP, as other clients call it."),
    ("streamableHttp", "http", "Streamable HTTP, as other clients call it."),
    ("websocket", "ws", "WebSocket, as other clients call it."),
];
/// Alternative names of keys, and ours.
const NAMES: [(&str, &str); 3] = [("transport", "type"), ("server_url", "url"), ("http_url", "url")];
/// Alternative names of `tools_allowed`. An empty list of the last two allows nothing.
const ALLOWED: [&str; 3] = ["tools", "include_tools", "enabled_tools"];
/// Alternative names of `tools_denied`.
const DENIED: [&str; 2] = ["exclude_tools", "disabled_tools"];
/// Lists of tools that another client approves automatically.
const APPROVED: [&str; 2] = ["always_allow", "auto_approve"];

/// Adds the keys of other clients to the schema of an entry.
pub(in crate::config) fn add_keys(entry: &mut Value) {
    let of = |kind: &str, description: &str| json!({"description": description, "type": [kind, "null"]});
    let texts = |description: &str| json!({"description": description, "type": "array", "items": {"type": "string"}});
    let Some(Value::Object(keys)) = entry.get_mut("properties") else { return };
    if let Some(Value::Array(kinds)) = keys.get_mut("type").and_then(|kind| kind.get_mut("oneOf")) {
        kinds.extend(TYPES.map(|(name, _, said)| json!({"description": said, "type": "string", "const": name})));
    }
    let mut kind = keys.get("type").cloned().unwrap_or_default();
    kind["description"] = "Other clients' name for `type`.".into();
    if let Some(tools) = keys.get_mut("tools") {
        let description = tools["description"].take();
        let mut by_tool = tools.take();
        by_tool["description"] = "Settings of single tools.".into();
        *tools =
            json!({"description": description, "anyOf": [by_tool, texts("Other clients' name for `tools_allowed`.")]});
    }
    keys.insert("disabled".into(), of("boolean", "Other clients' name for `enabled: false`."));
    keys.insert("transport".into(), kind);
    for key in ["server_url", "http_url"] {
        keys.insert(key.into(), of("string", "Other clients' name for `url`."));
    }
    for key in &ALLOWED[1..] {
        let description = "Another client's name for `tools_allowed`; an empty list allows nothing.";
        keys.insert((*key).into(), texts(description));
    }
    for key in DENIED {
        keys.insert(key.into(), texts("Another client's name for `tools_denied`."));
    }
    let description = "Other clients' name for `request_timeout`: numbers under 1000 are seconds, others milliseconds.";
    let mut timeout = of("integer", description);
    timeout["minimum"] = 0.into();
    keys.insert("timeout".into(), timeout);
    for key in APPROVED {
        let description = "Tools that another client approves by itself. Shown, never applied.";
        keys.insert(key.into(), json!({"description": description}));
    }
    // A note comes last.
    if let Some((key, note)) = keys.shift_remove_entry("description") {
        keys.insert(key, note);
    }
}

/// Rewrites `node`, the entry `name`, with our keys only.
fn normalise_keys(name: &str, node: &mut Node, report: ReportProblem<'_>) {
    if let Data::Map(members) = &mut node.data {
        members.retain(|member| member.value.data != Data::Null);
    }
    if node.take("disabled").is_some_and(|member| member.value.data == Data::Bool(true)) {
        node.set("enabled", Data::Bool(false));
    }
    for (theirs, ours) in NAMES {
        if let Some(member) = node.take(theirs)
            && node.get(ours).is_none()
        {
            node.set(ours, member.value.data);
        }
    }
    if let Some((_, ours, _)) = TYPES.iter().find(|(theirs, ..)| node.text_of("type") == Some(theirs)) {
        node.set("type", Data::Text((*ours).to_owned()));
    }
    tool_lists(node, report);
    if let Some(Member { value: Node { data: Data::Number(number, _), .. }, .. }) = node.take("timeout")
        && node.get("request_timeout").is_none()
    {
        call_limit(number.as_u64().unwrap_or_default(), node, report);
    }
    for key in APPROVED {
        let listed = match node.take(key).map(|member| member.value.to_value()) {
            None => continue,
            Some(Value::Array(items)) if items.is_empty() => continue,
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            Some(other) => other.to_string(),
        };
        let message = format!("another client approves these by itself: {listed}; that is not applied here");
        report(key, &message, &format!("to allow tools, add a rule under `policy.rules` with `namespace: {name}`"));
    }
}

fn tool_lists(node: &mut Node, report: ReportProblem<'_>) {
    let mut allowed = list(node, "tools_allowed").unwrap_or_default();
    let mut denied = list(node, "tools_denied").unwrap_or_default();
    for key in DENIED {
        denied.extend(list(node, key).unwrap_or_default());
    }
    for key in ALLOWED {
        let Some(listed) = list(node, key) else { continue };
        if listed.is_empty() && key != "tools" {
            denied.push(Node { at: node.at.clone(), data: Data::Text("*".to_owned()) });
        }
        if allowed.is_empty() {
            allowed = listed;
        } else {
            report(key, "this list is another client's key; the one before it counts", "remove one of them");
        }
    }
    for (key, listed) in [("tools_allowed", allowed), ("tools_denied", denied)] {
        if !listed.is_empty() {
            node.set(key, Data::List(listed));
        }
    }
}

/// Removes and returns a list.
fn list(node: &mut Node, key: &str) -> Option<Vec<Node>> {
    if !matches!(node.get(key)?.value.data, Data::List(_)) {
        return None;
    }
    match node.take(key)?.value.data {
        Data::List(items) => Some(items),
        _ => None,
    }
}

fn call_limit(written: u64, node: &mut Node, report: ReportProblem<'_>) {
    let Some(read) = timeout(written) else {
        report("timeout", "0 is no limit that a call can keep; it is ignored", "remove it");
        return;
    };
    let text = toolwright_core::duration::format(read);
    let message = format!("{written} is another client's key; it is read as {text}");
    report("timeout", &message, &format!("write `request_timeout: {text}`"));
    node.set("request_timeout", Data::Text(text));
}

/// Converts another client's `timeout` of one call: numbers below 1000 are seconds, others milliseconds. `None` for 0,
/// which is not a usable limit.
pub(crate) fn timeout(written: u64) -> Option<Duration> {
    match written {
        0 => None,
        1..1000 => Some(Duration::from_secs(written)),
        _ => Some(Duration::from_millis(written)),
    }
}

/// Returns whether an entry of `mcpServers` with this key, in snake case, and this value is accepted without a note.
pub(crate) fn is_understood(key: &str, value: &Value) -> bool {
    let file: Arc<Path> = Arc::from(Path::new(""));
    let text = json!({"mcp_servers": {"entry": {key: value}}}).to_string();
    let Ok(mut node) = Node::parse(&text, &file) else { return false };
    let mut problems = Vec::new();
    check(&mut node, schema(), &mut problems);
    problems.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_entry_keys_and_values_are_accepted() {
        for (key, value, expect) in [
            ("lazy", json!(true), true),
            ("request_timeout", json!("5s"), true),
            ("tools", json!(["search"]), true),
            ("lazy", json!("perhaps"), false),
            ("request_timeout", json!("soon"), false),
            ("settings", json!({"a": 1}), false),
        ] {
            assert_eq!(is_understood(key, &value), expect, "{key}: {value}");
        }
    }
}
