//! Finds patterns and names in the configuration that match no tool. Most are misspelled, and none has an effect.

use std::collections::BTreeSet;
use std::sync::Arc;

use toolwright_core::catalogue::{Entry, ProviderStatus, WithheldTool};
use toolwright_core::pattern::{glob_match, nearest};
use toolwright_core::policy::Selector;
use toolwright_core::tool_id::{ToolId, wire_candidate};
use toolwright_core::{Snapshot, ToolDefinition};
use toolwright_providers::builtin::{self, BuiltinOptions, web};

use super::Toolwright;
use super::parts::build::missing_tools;
use crate::config::{AgentEntry, Config};

/// The most names of a source in a hint.
const MAX_NAMES: usize = 8;
/// Namespaces of calls that no catalogue lists, or not always, so their names are not checked.
const UNLISTED: [&str; 11] =
    ["agent", "channel", "client", "code", "group", "llm", "media", "memory", "router", "tools", "trigger"];

impl Toolwright {
    /// Returns a sentence for each name or pattern of the configuration that matches no tool: its place, and a
    /// suggestion. Skips those that may be for a source that is down, left out or disabled. List the catalogue before.
    pub fn unmatched(&self) -> Vec<String> {
        let builtins =
            builtin::tools(&BuiltinOptions::default()).into_iter().chain(web::tools(&web::WebConfig::default()));
        let mut builtins: Vec<ToolDefinition> = builtins.map(|tool| tool.definition()).collect();
        // Listed only if there are search engines.
        builtins.extend(ToolId::parse("web:search@1.0.0").map(|id| ToolDefinition::new(id, "", None)));
        let mut methods = Vec::new();
        for source in self.catalogue().lists().iter() {
            let method = |entry: &Arc<Entry>| (entry.tool.raw_name().to_owned(), entry.tool.definition().clone());
            methods.extend(source.methods().list().iter().map(method));
        }
        unmatched(&self.config(), &self.catalogue().snapshot(), &builtins, &methods)
    }
}

fn unmatched(
    config: &Config,
    snapshot: &Snapshot,
    builtins: &[ToolDefinition],
    methods: &[(String, ToolDefinition)],
) -> Vec<String> {
    let others = builtins.iter().map(|tool| (tool.id.name(), tool));
    let callable =
        CallableTools::of(config, snapshot, others.chain(methods.iter().map(|(name, method)| (name.as_str(), method))));
    let mut all = of_sources(config, snapshot);
    let own =
        SourceToolNames(builtins.iter().map(|tool| wire_candidate(tool.id.namespace(), tool.id.name())).collect());
    own.patterns("defaults.builtins_allowed", &config.sections.defaults.builtins_allowed, &mut all);
    own.patterns("defaults.builtins_denied", &config.sections.defaults.builtins_denied, &mut all);
    let settled: Vec<String> = config.sections.defaults.builtin_tools.keys().cloned().collect();
    callable.tools("defaults.builtin_tools", &settled, &mut all);
    callable.tools("selection.pinned", &config.sections.selection.pinned, &mut all);
    for (name, view) in &config.sections.views {
        callable.check_wire_names(&format!("views.{name}.allow"), &view.allowed, &mut all);
        callable.check_wire_names(&format!("views.{name}.deny"), &view.denied, &mut all);
    }
    // Names that were checked when the file was read are reported with their line.
    let is_reported =
        |glob: &String| config.problems.iter().any(|problem| problem.message.contains(&format!("`{glob}`")));
    for AgentEntry { config: agent_config, .. } in &config.agents {
        for (key, globs) in
            [("tools", agent_config.tools.as_ref()), ("disallowed_tools", Some(&agent_config.disallowed_tools))]
        {
            let globs: Vec<String> = globs.into_iter().flatten().filter(|glob| !is_reported(glob)).cloned().collect();
            callable.tools(&format!("agents.{}.{key}", agent_config.name), &globs, &mut all);
        }
    }
    let policy = &config.sections.policy;
    for (number, note) in policy.tools.iter().enumerate() {
        if !callable.tools.iter().any(|tool| note.covers(&tool.id)) && !callable.is_open(&note.tool) {
            let hint = callable.hint(&note.tool);
            all.push(format!("policy.tools: entry {}: `tool: {}` is no tool{hint}", number + 1, note.tool));
        }
    }
    let rules = policy.rules.iter().enumerate();
    let rules = rules.map(|(n, rule)| (format!("policy.rules: rule {}", n + 1), &rule.selector));
    let guards = policy.guards.iter().map(|guard| (format!("policy.guards: `{}`", guard.name), &guard.selector));
    for (which, selector) in rules.chain(guards) {
        let is_open =
            [&selector.tool, &selector.namespace].into_iter().flatten().any(|pattern| callable.is_open(pattern));
        if !is_open && !callable.tools.iter().any(|tool| selector.concerns(tool, &policy.tools)) {
            all.push(format!("{which} ({}) matches no tool{}", in_words(selector), callable.rule_hint(selector)));
        }
    }
    all
}

fn in_words(selector: &Selector) -> String {
    let parts = [("tool", &selector.tool), ("namespace", &selector.namespace), ("tag", &selector.tag)];
    let words = parts.iter().filter_map(|(key, value)| value.as_ref().map(|value| format!("`{key}: {value}`")));
    words.collect::<Vec<_>>().join(" with ")
}

/// Checks the tool names in the entries of servers and catalogues.
fn of_sources(config: &Config, snapshot: &Snapshot) -> Vec<String> {
    let mut all = Vec::new();
    let listed = |namespace: &str| snapshot.providers().iter().find(|p| p.name == namespace && p.error.is_none());
    for server in &config.servers {
        let Some(status) = listed(&server.namespace) else { continue };
        let (own, entry) = (SourceToolNames::of(status, snapshot), &server.config);
        let field = |key: &str| format!("mcp_servers.{}.{key}", server.entry);
        own.patterns(&field("tools_allowed"), &entry.tools_allowed, &mut all);
        own.patterns(&field("tools_denied"), &entry.tools_denied, &mut all);
        own.patterns(&field("background"), &entry.background, &mut all);
        own.names(&field("tools"), entry.tools.keys(), &mut all);
        own.names(&field("tools_cache"), entry.tools_cache.keys(), &mut all);
    }
    for catalogue in &config.catalogues {
        let Some(status) = listed(&catalogue.namespace) else { continue };
        let own = SourceToolNames::of(status, snapshot);
        let field = |key: &str| format!("catalogues.{}.{key}", catalogue.namespace);
        own.patterns(&field("tools_allowed"), &catalogue.tools_allowed, &mut all);
        own.patterns(&field("tools_denied"), &catalogue.tools_denied, &mut all);
        own.names(&field("tools"), catalogue.tools.keys(), &mut all);
    }
    all
}

/// The names of a source's tools, including those that are not offered.
struct SourceToolNames(BTreeSet<String>);

impl SourceToolNames {
    fn of(status: &ProviderStatus, snapshot: &Snapshot) -> Self {
        let entries = snapshot.list().iter().filter(|entry| entry.provider.name() == status.name);
        let offered = entries.map(|entry| entry.tool.raw_name().to_owned());
        Self(offered.chain(status.withheld().iter().map(|one| one.name.clone())).collect())
    }

    fn patterns(&self, field: &str, patterns: &[String], all: &mut Vec<String>) {
        for pattern in patterns.iter().filter(|pattern| !self.0.iter().any(|name| glob_match(pattern, name))) {
            all.push(format!("{field}: `{pattern}` matches none of its tools{}", self.hint(pattern)));
        }
    }

    fn names<'a>(&self, field: &str, names: impl Iterator<Item = &'a String>, all: &mut Vec<String>) {
        for name in names.filter(|name| !self.0.contains(*name)) {
            all.push(format!("{field}.{name}: it has no tool of that name{}", self.hint(name)));
        }
    }

    fn hint(&self, written: &str) -> String {
        if let Some(near) = nearest(written, self.0.iter().map(String::as_str)) {
            return format!("; did you mean `{near}`?");
        }
        let names = self.0.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
        match self.0.len() {
            0 => "; it has none".to_owned(),
            all if all > MAX_NAMES => format!("; it has {names} and {} more", all - MAX_NAMES),
            _ => format!("; it has {names}"),
        }
    }
}

/// All callable tools with known names.
struct CallableTools {
    tools: Vec<ToolDefinition>,
    /// The names that clients see.
    wires: Vec<String>,
    /// Namespaces whose tools are unknown at present.
    open: Vec<String>,
}

impl CallableTools {
    fn of<'o>(
        config: &Config,
        snapshot: &Snapshot,
        others: impl Iterator<Item = (&'o str, &'o ToolDefinition)>,
    ) -> Self {
        let mut callable = Self { tools: Vec::new(), wires: Vec::new(), open: Vec::new() };
        for entry in snapshot.list() {
            callable.tools.push(entry.definition().clone());
            callable.wires.push(entry.wire_name.clone());
        }
        for status in snapshot.providers() {
            for WithheldTool { name, .. } in status.withheld() {
                let id = ToolId::foreign(&status.name, name).ok();
                callable.tools.extend(id.map(|id| ToolDefinition::new(id, "", None)));
                callable.wires.push(wire_candidate(&status.name, name));
            }
        }
        for (name, tool) in others {
            callable.wires.push(wire_candidate(tool.id.namespace(), name));
            callable.tools.push(tool.clone());
        }
        let down = snapshot.providers().iter().filter(|status| status.error.is_some());
        callable.open.extend(down.map(|status| status.name.clone()));
        let unknown = missing_tools(config).into_iter().filter(|(name, _)| !callable.wires.contains(name));
        callable.open.extend(unknown.map(|(name, _)| match name.split_once("__") {
            Some((namespace, _)) => namespace.to_owned(),
            None => name,
        }));
        callable
    }

    /// Checks patterns on ids and on the names that clients see.
    fn tools(&self, field: &str, patterns: &[String], all: &mut Vec<String>) {
        let ids = |pattern: &str| {
            let ids = self.tools.iter().map(|tool| &tool.id);
            ids.into_iter().any(|id| glob_match(pattern, id.as_str()) || glob_match(pattern, id.without_version()))
        };
        self.report(field, patterns, &ids, all);
    }

    /// Checks patterns on the names that clients see.
    fn check_wire_names(&self, field: &str, patterns: &[String], all: &mut Vec<String>) {
        self.report(field, patterns, &|_| false, all);
    }

    fn report(&self, field: &str, patterns: &[String], or: &dyn Fn(&str) -> bool, all: &mut Vec<String>) {
        let is_known = |pattern: &str| self.wires.iter().any(|wire| glob_match(pattern, wire)) || or(pattern);
        for pattern in patterns.iter().filter(|pattern| !is_known(pattern) && !self.is_open(pattern)) {
            all.push(format!("{field}: `{pattern}` matches no tool{}", self.hint(pattern)));
        }
    }

    /// Returns whether a pattern may be for unknown tools.
    fn is_open(&self, pattern: &str) -> bool {
        let literal = pattern.split(['*', '?']).next().unwrap_or_default().to_ascii_lowercase();
        let is_of = |namespace: &str| {
            let rest = literal.strip_prefix(namespace);
            rest.is_some_and(|rest| rest.starts_with("__") || rest.starts_with(':')) || pattern == namespace
        };
        let may_be_of = |namespace: &String| {
            is_of(namespace) || (literal.len() < pattern.len() && namespace.starts_with(&literal)) || {
                // Namespaces of a document may be grouped: `{name}-{tag}`.
                literal.strip_prefix(&**namespace).is_some_and(|rest| rest.starts_with('-'))
            }
        };
        UNLISTED.iter().any(|namespace| is_of(namespace)) || self.open.iter().any(may_be_of)
    }

    /// Returns a similar name, or the same pattern in a similar namespace.
    fn hint(&self, pattern: &str) -> String {
        let separator = if pattern.contains("__") { "__" } else { ":" };
        let near = match pattern.split_once(separator) {
            _ if !pattern.contains(['*', '?']) => self.near_name(pattern).map(str::to_owned),
            Some((namespace, rest)) if !self.has_namespace(namespace) => {
                self.near_namespace(namespace).map(|near| format!("{near}{separator}{rest}"))
            }
            _ => None,
        };
        match near {
            Some(near) => format!("; did you mean `{near}`?"),
            None => "; `toolwright tools ls` lists all".to_owned(),
        }
    }

    fn rule_hint(&self, selector: &Selector) -> String {
        match (&selector.tool, &selector.namespace) {
            (Some(tool), _) => self.hint(tool),
            (None, Some(namespace)) if !self.has_namespace(namespace) => match self.near_namespace(namespace) {
                Some(near) => format!("; did you mean `{near}`?"),
                None => "; `toolwright tools ls` lists all".to_owned(),
            },
            _ => match &selector.tag {
                Some(tag) => {
                    let tags = self.tools.iter().flat_map(|tool| tool.tags.iter().map(String::as_str));
                    let near = nearest(tag, tags).map(|near| format!("; did you mean `{near}`?"));
                    near.unwrap_or_else(|| "; no tool has this tag".to_owned())
                }
                None => String::new(),
            },
        }
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        self.tools.iter().any(|tool| tool.id.namespace().eq_ignore_ascii_case(namespace))
    }

    fn near_namespace(&self, namespace: &str) -> Option<&str> {
        nearest(namespace, self.tools.iter().map(|tool| tool.id.namespace()))
    }

    fn near_name(&self, name: &str) -> Option<&str> {
        let ids = self.tools.iter().map(|tool| tool.id.without_version());
        if name.contains(':') { nearest(name, ids) } else { nearest(name, self.wires.iter().map(String::as_str)) }
    }
}
