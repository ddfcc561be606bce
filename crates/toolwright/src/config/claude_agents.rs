//! Translates front matter of Claude Code: names of its tools, models and settings. Its fields are documented at
//! code.claude.com/docs/en/sub-agents.

use serde_json::json;
use toolwright_core::pattern::nearest;
use toolwright_core::tool_id::server_namespace;

use crate::config::files::node::{Data, Member, Node, Problem, Severity, SourceLocation};

/// Its tools, with our replacements.
const TOOLS: [(&str, &[&str]); 23] = [
    ("Read", &["fs__read"]),
    ("NotebookRead", &["fs__notebook_read"]),
    ("NotebookEdit", &["fs__notebook_edit"]),
    ("Write", &["fs__write"]),
    ("Edit", &["fs__edit"]),
    ("MultiEdit", &["fs__multi_edit"]),
    ("Bash", &["shell__bash"]),
    ("BashOutput", &["job__read", "job__status"]),
    ("TaskOutput", &["job__read", "job__status"]),
    ("KillShell", &["job__stop"]),
    ("KillBash", &["job__stop"]),
    ("TaskStop", &["job__stop"]),
    ("Glob", &["fs__glob"]),
    ("Grep", &["fs__grep"]),
    ("LS", &["fs__tree"]),
    ("WebFetch", &["web__fetch"]),
    ("WebSearch", &["web__search"]),
    ("Task", &["agent__*"]),
    ("Agent", &["agent__*"]),
    ("Skill", &["agent__skill"]),
    ("TodoWrite", &["agent__todo"]),
    ("TodoRead", &["agent__todo"]),
    ("AskUserQuestion", &["agent__ask_user"]),
];
/// Our built-in tools that write files.
const WRITERS: &[&str] = &["fs__write", "fs__edit", "fs__multi_edit", "fs__json_write", "fs__notebook_edit"];
/// What a denial of its tools takes: all of our tools that could do the same.
const DENIALS: [(&str, &[&str]); 5] =
    [("Write", WRITERS), ("Edit", WRITERS), ("MultiEdit", WRITERS), ("NotebookEdit", WRITERS), ("Bash", &["shell__*"])];
/// Its tools without a counterpart.
const NO_TOOLS: [&str; 10] = [
    "SlashCommand",
    "EnterPlanMode",
    "ExitPlanMode",
    "EnterWorktree",
    "ExitWorktree",
    "ToolSearch",
    "ListMcpResourcesTool",
    "ReadMcpResourceTool",
    "SendMessage",
    "Monitor",
];
/// Its names for models, which `models.aliases` may also define.
const MODELS: [&str; 3] = ["sonnet", "opus", "haiku"];
/// Text of one command: excludes characters with which the shell begins another command, or runs one inside a command.
const SHELL_OPERATORS: &str = r"[^;&|<>`$()\n\r]*";
/// Separator between the words of a denied command. The shell removes quotes and backslashes.
const BETWEEN_WORDS: &str = r#"[\s"'\\]+"#;
/// Replacement of `*` in a denied command.
const IN_ONE_COMMAND: &str = r"[^;&|\n\r]*";
/// End of a command that is denied with any arguments.
const END_OF_WORD: &str = r"($|[^\w-])";
/// End of a command that is denied only without further arguments.
const END_OF_COMMAND: &str = r#"[\s"']*($|[\n;&|<>(){}`#]|\d+[<>])"#;

/// Replaces Claude Code's fields and names by ours. Reports those without a counterpart as warnings.
pub(super) fn translate(front: &mut Node, problems: &mut Vec<Problem>) {
    let mut rules: Vec<Node> = Vec::new();
    let mut allowed: Vec<String> = Vec::new();
    for key in ["tools", "disallowed_tools"] {
        if let Some(member) = member(front, key) {
            let is_denial = key == "disallowed_tools";
            let mut list = ToolList { key, is_denial, allowed: &allowed, rules: &mut rules, problems };
            list.translate(member);
            if let Data::List(globs) = &member.value.data {
                allowed = globs.iter().filter_map(Node::text).map(str::to_owned).collect();
            }
        }
    }
    if let Some(written) = front.text_of("model").map(|name| name.trim().to_owned()) {
        match model(&written) {
            Some(name) => front.set("model", Data::Text(name)),
            None => drop(front.take("model")),
        }
    }
    if let Some(skills) = member(front, "skills")
        && let Data::Text(text) = &skills.value.data
    {
        let names = split(text).into_iter().map(|name| Node { at: skills.at.clone(), data: Data::Text(name) });
        skills.value.data = Data::List(names.collect());
    }
    if let Some(turns) = front.take("max_turns") {
        put_into(front, "limits", Member { key: "turns".to_owned(), ..turns });
    }
    if let Some(effort) = front.take("effort") {
        put_into(front, "settings", effort);
    }
    if let Some(mode) = front.take("permission_mode") {
        rules.extend(permission_mode(&mode, problems));
    }
    let mut ignored = |member: &Member, message: &str, remedy: &str| {
        problems.push(Problem::new(Severity::Warning, &member.at, &member.key, message, remedy));
    };
    // The display colour.
    front.take("color");
    for (key, message, remedy) in [
        ("hooks", "hooks do not run", "write rules under `policy.rules`, or guards under `policy.guards`"),
        ("memory", "it has no folder for what it remembers", "remove it, or give the agent a file to keep notes in"),
        ("isolation", "it works in the workspace itself", "run it in a worktree of your own"),
        ("initial_prompt", "its first message is the task", "put it into the text of the agent"),
    ] {
        if let Some(member) = front.take(key) {
            ignored(&member, message, remedy);
        }
    }
    if let Some(servers) = front.take("mcp_servers") {
        servers_of(&servers, &mut ignored);
    }
    if !rules.is_empty() {
        match member(front, "rules").map(|member| &mut member.value.data) {
            Some(Data::List(own)) => own.splice(0..0, rules).for_each(drop),
            _ => front.set("rules", Data::List(rules)),
        }
    }
}

/// Handles the servers of an agent: configured servers are available to all agents.
fn servers_of(servers: &Member, ignored: &mut dyn FnMut(&Member, &str, &str)) {
    let is_name = |node: &Node| node.text().is_some();
    let all_names = match &servers.value.data {
        Data::List(items) => items.iter().all(is_name),
        Data::Text(_) => true,
        _ => false,
    };
    if all_names {
        let message = "the servers of the configuration are there for every agent";
        ignored(servers, message, "narrow them with `tools`, like `github__*`");
    } else {
        ignored(
            servers,
            "servers inside an agent are not started",
            "define them under `mcpServers` of the configuration",
        );
    }
}

/// Returns the rules of a permission mode. Modes that allow more are reported, and not applied.
fn permission_mode(mode: &Member, problems: &mut Vec<Problem>) -> Option<Node> {
    let written = mode.value.text().unwrap_or_default();
    let (message, remedy) = match written {
        "default" | "manual" => return None,
        "plan" => {
            let rule = json!({
                "effect": "deny",
                "effects": {"read_only": false},
                "reason": "this agent plans: it may only read",
            });
            return Some(Node::of_value(&rule, &mode.at));
        }
        "acceptEdits" => ("a file does not decide what runs unasked", "write `policy: workspace` to let it edit"),
        "bypassPermissions" | "auto" => {
            ("a file of another program does not decide what runs unasked", "write `policy: trusted` to let it do all")
        }
        "dontAsk" => ("its calls are asked about as others are", "deny what it may not do with `disallowed_tools`"),
        _ => ("there is no such mode", "write `policy`: ask, client, workspace or trusted"),
    };
    let message = format!("`{written}` is not applied: {message}");
    problems.push(Problem::new(Severity::Warning, &mode.at, &mode.key, message, remedy));
    None
}

/// A list of tools in Claude Code's format.
struct ToolList<'a> {
    key: &'a str,
    is_denial: bool,
    /// For a denial, the tools that the agent lists.
    allowed: &'a [String],
    rules: &'a mut Vec<Node>,
    problems: &'a mut Vec<Problem>,
}

impl ToolList<'_> {
    fn translate(&mut self, member: &mut Member) {
        let at = member.at.clone();
        let items: Vec<(String, SourceLocation)> = match &member.value.data {
            Data::Text(text) => split(text).into_iter().map(|item| (item, at.clone())).collect(),
            Data::List(items) if items.iter().all(|item| item.text().is_some()) => {
                items.iter().map(|item| (item.text().unwrap_or_default().trim().to_owned(), item.at.clone())).collect()
            }
            // Empty, or invalid.
            _ => return,
        };
        let mut globs: Vec<Node> = Vec::new();
        let mut commands: Vec<String> = Vec::new();
        let mut whole_shell = false;
        for (item, at) in &items {
            let (name, part) = match item.split_once('(') {
                Some((name, part)) => (name.trim_end(), Some(part.trim_end_matches(')').trim())),
                None => (item.as_str(), None),
            };
            // The whole tool. A denial of `:*` means this too.
            let part = part.filter(|part| !part.is_empty() && *part != "*" && !(self.is_denial && *part == ":*"));
            whole_shell |= name == "Bash" && part.is_none();
            let ours = match (name, part) {
                ("Bash", Some(part)) => {
                    commands.push(part.to_owned());
                    // Other tools of the shell could run a denied command.
                    vec![if self.is_denial { "shell__python" } else { "shell__bash" }.to_owned()]
                }
                ("Task" | "Agent", Some(part)) => split(part)
                    .iter()
                    .map(|agent| format!("agent__{}", toolwright_core::agents::legal_name(agent)))
                    .collect(),
                (_, Some(_)) if !self.is_denial => {
                    self.warn(at, item, "only `Bash` and `Agent` can be given in part", "name the tool alone");
                    Vec::new()
                }
                // For a partial denial the whole tool is denied, which is safe.
                _ => match self.toolwright_names(name, at) {
                    Some(ours) => ours,
                    None => continue,
                },
            };
            for glob in ours {
                if !globs.iter().any(|known| known.text() == Some(&glob)) {
                    globs.push(Node { at: at.clone(), data: Data::Text(glob) });
                }
            }
        }
        if !commands.is_empty() && (!whole_shell || self.is_denial) {
            self.rules.push(Node::of_value(&shell_rule(&commands, self.is_denial), &at));
        }
        member.value = Node { at, data: Data::List(globs) };
    }

    /// Returns the tools for a name without a part.
    fn toolwright_names(&mut self, name: &str, at: &SourceLocation) -> Option<Vec<String>> {
        if name == "*" {
            return Some(vec!["*".to_owned()]);
        }
        if let Some(globs) = tools_of_name(&TOOLS, name) {
            let more = tools_of_name(&DENIALS, name).filter(|_| self.is_denial).unwrap_or_default();
            // A tool that the agent lists itself is denied only by its own name.
            let more = more.iter().filter(|glob| !self.allowed.iter().any(|tool| tool == *glob));
            return Some(globs.iter().chain(more).map(|&glob| glob.to_owned()).collect());
        }
        if let Some(rest) = name.strip_prefix("mcp__") {
            let (server, tool) = rest.split_once("__").unwrap_or((rest, "*"));
            return Some(vec![format!(
                "{}__{}",
                server_namespace(server, &|_| false),
                if tool.is_empty() { "*" } else { tool }
            )]);
        }
        // One of our names.
        if name.contains("__") || name.contains(':') || name.contains('*') {
            return Some(vec![name.to_owned()]);
        }
        if self.is_denial && NO_TOOLS.contains(&name) {
            return None;
        }
        let is_known = NO_TOOLS.contains(&name);
        let near = nearest(name, TOOLS.iter().map(|(name, _)| *name)).filter(|_| !is_known);
        let remedy = near.map_or_else(
            || "`toolwright tools ls` lists the tools".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        let why = if is_known { "Toolwright has no such tool" } else { "there is no tool of this name" };
        self.warn(at, name, why, &remedy);
        None
    }

    fn warn(&mut self, at: &SourceLocation, item: &str, why: &str, remedy: &str) {
        let message = format!("`{item}` is left out: {why}");
        self.problems.push(Problem::new(Severity::Warning, at, self.key, message, remedy));
    }
}

fn tools_of_name(table: &[(&str, &'static [&'static str])], name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(known, _)| *known == name).map(|(_, ours)| *ours)
}

/// Splits at commas outside of brackets.
fn split(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut depth = 0_u32;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(item) = items.last_mut() {
            item.push(c);
        }
    }
    items.into_iter().map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
}

/// Returns the rule that limits the shell to these commands, or denies them: `git:*`, `npm run *`, `npm test`.
fn shell_rule(commands: &[String], is_denial: bool) -> serde_json::Value {
    let (not, regex) = if is_denial { ("", denied(commands)) } else { ("!", allowed(commands)) };
    let names = commands.join(", ");
    let reason = match is_denial {
        false => format!("this agent runs one command at a time, without redirection or substitution: {names}"),
        true => format!("this agent does not run these commands: {names}"),
    };
    // A JSON string is also a CEL string.
    let when = format!("{not}args.command.matches({})", json!(regex));
    json!({"effect": "deny", "tool": "shell__bash", "when": when, "reason": reason})
}

/// Returns the beginning of a command, and whether more may follow.
fn beginning(command: &str) -> (&str, bool) {
    let prefix = command.strip_suffix(":*").or_else(|| command.strip_suffix(" *"));
    (prefix.unwrap_or(command), prefix.is_some())
}

/// Returns a regular expression that matches exactly these commands.
fn allowed(commands: &[String]) -> String {
    let pattern = |command: &String| {
        let (text, continues) = beginning(command);
        let text = escape(text).replace(r"\*", SHELL_OPERATORS);
        if continues { format!("{text}( {SHELL_OPERATORS})?") } else { text }
    };
    format!("^({})$", commands.iter().map(pattern).collect::<Vec<_>>().join("|"))
}

/// Returns a regular expression that matches the words of one of these commands anywhere in a text, because the shell
/// has too many ways to begin a command.
fn denied(commands: &[String]) -> String {
    let ending_so = |continues_so: bool, end: &str| {
        let these =
            commands.iter().map(|command| beginning(command)).filter(|(_, continues)| *continues == continues_so);
        let pattern = |(text, _): (&str, bool)| {
            let words = escape(text).split_whitespace().collect::<Vec<_>>().join(BETWEEN_WORDS);
            words.replace(r"\*", IN_ONE_COMMAND)
        };
        let any: Vec<String> = these.map(pattern).collect();
        (!any.is_empty()).then(|| format!("({}){end}", any.join("|")))
    };
    let any = [ending_so(true, END_OF_WORD), ending_so(false, END_OF_COMMAND)];
    format!(r"(^|[^\w.-])({})", any.into_iter().flatten().collect::<Vec<_>>().join("|"))
}

/// Escapes a text for a regular expression.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Returns the model of front matter: `inherit` means that of the agent's starter, and an id without a provider is
/// Anthropic's.
fn model(name: &str) -> Option<String> {
    match name {
        "inherit" | "default" => None,
        name if name.starts_with("claude-") => Some(format!("anthropic/{name}")),
        name => Some(name.to_owned()),
    }
}

/// Returns whether this is one of its names for models.
pub(super) fn is_model_alias(name: &str) -> bool {
    MODELS.contains(&name)
}

fn member<'n>(node: &'n mut Node, key: &str) -> Option<&'n mut Member> {
    match &mut node.data {
        Data::Map(members) => members.iter_mut().find(|member| member.key == key),
        _ => None,
    }
}

/// Adds a member to a mapping, unless it exists.
fn put_into(front: &mut Node, section: &str, put: Member) {
    if front.get(section).is_none() {
        front.set(section, Data::Map(Vec::new()));
    }
    let Some(section) = member(front, section) else { return };
    if section.value.get(&put.key).is_none()
        && let Data::Map(members) = &mut section.value.data
    {
        members.push(put);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toolwright_core::catalogue::CallScope;
    use toolwright_core::policy::{Effect, HintTrust, PolicyQuery};
    use toolwright_core::{Effects, Policy, Principal, Profile, ToolDefinition, ToolId};

    use super::*;

    #[test]
    fn denying_edits_removes_every_writing_tool() {
        use toolwright_providers::builtin::{self, BuiltinOptions};
        let tools = builtin::tools(&BuiltinOptions::default());
        let definitions = tools.iter().map(|tool| tool.definition()).filter(|tool| tool.id.namespace() == "fs");
        let writers = definitions.filter(|tool| !tool.effects.read_only);
        let mut writers: Vec<String> = writers.map(|tool| format!("fs__{}", tool.id.name())).collect();
        let mut denied = WRITERS.to_vec();
        writers.sort();
        denied.sort_unstable();
        assert_eq!(writers, denied);
    }

    #[test]
    fn denied_commands_are_found_anywhere_in_a_text() {
        let commands = ["rm:*", "git push *", "npm publish", "kubectl * prod"].map(str::to_owned);
        let rule = serde_json::from_value(shell_rule(&commands, true)).expect("a rule");
        let policy = Policy { profile: Profile::Trusted, rules: vec![rule], ..Policy::default() };
        let id = ToolId::format("shell", "bash", "1.0.0").expect("an id");
        let definition = ToolDefinition { effects: Effects::UNKNOWN, ..ToolDefinition::new(id, "", None) };
        for (command, runs) in [
            ("rm", false),
            ("rm f1", false),
            ("{ rm f2; }", false),
            ("if true; then rm f3; fi", false),
            (r"\rm f4", false),
            ("command rm f5", false),
            ("echo $(rm x)", false),
            ("echo `rm x`", false),
            ("ls && rm x", false),
            ("ls\nrm x", false),
            ("A=1 /bin/rm x", false),
            ("'rm' x", false),
            ("find . -exec rm {} +", false),
            ("rmdir x", true),
            ("farm x", true),
            ("docker run --rm x", true),
            ("git push", false),
            ("git  \"push\" origin", false),
            ("git pull", true),
            ("git push-to x", true),
            ("npm publish", false),
            ("{ npm publish 2>&1; }", false),
            ("bash -c 'npm publish'", false),
            ("npm publish --dry-run", true),
            ("(kubectl delete $(cat x) prod)", false),
            ("kubectl get pods; echo prod", true),
        ] {
            let arguments = json!({"command": command});
            let query = PolicyQuery {
                definition: &definition,
                trust: HintTrust::Foreign,
                principal: &Principal::owner(),
                root: Path::new("/w"),
                scope: CallScope::Anywhere,
                unvalidated: None,
                arguments: &arguments,
                request: None,
                tainted: &[],
            };
            assert_eq!(policy.decide(&query).effect != Effect::Deny, runs, "{command}");
        }
    }
}
