//! Agents: what files and entries say, what is wrong with them, and how they run.

use std::path::Path;

use serde_json::{Value, json};
use toolwright::config::{Config, Severity};
use toolwright::core::catalogue::CallScope;
use toolwright::core::policy::{Effect, HintTrust, PolicyQuery};
use toolwright::core::{Effects, Policy, Principal, Profile, ToolDefinition, ToolId};
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agents::agent::{ended, report, start, with_model};
use crate::command_line::cli::{fails, json_of, ok, run, stderr};
use crate::serving::gateway::Gateway;
use crate::support::{Fixture, data_file};

const FILE: &str = "project/.claude/agents/a.md";

/// What is wrong: line, severity, words.
type Problem<'a> = (u32, Severity, &'a str);

fn problems(config: &Config) -> Vec<String> {
    config.problems.iter().map(ToString::to_string).collect()
}

/// Loads one agent file; `expect` is a part of what it comes to, nothing where it is left out.
fn check(front: &str, expect: Option<Value>, reported: &[Problem<'_>]) {
    let fixture = Fixture::new();
    fixture.write(FILE, &format!("---\n{front}---\n\nDo it.\n"));
    let config = fixture.load();
    let all = problems(&config);
    assert_eq!(config.problems.len(), reported.len(), "{front}: {all:#?}");
    for ((line, severity, words), problem) in reported.iter().zip(&config.problems) {
        let at = (problem.line.unwrap_or(0), problem.severity);
        assert!(at == (*line, *severity) && problem.to_string().contains(words), "{front}: {words}: {problem}");
        assert!(problem.file.as_deref() == Some(&*fixture.path(FILE)) && !problem.remedy.is_empty(), "{problem}");
    }
    let agent_config = config.agents.first().map(|agent| json!(agent.config));
    assert_eq!(agent_config.is_some(), expect.is_some(), "{front}: {all:#?}");
    for (key, value) in expect.iter().flat_map(|expect| expect.as_object().into_iter().flatten()) {
        assert_eq!(agent_config.as_ref().map(|agent_config| &agent_config[key]), Some(value), "{front}");
    }
}

const HEAD: &str = "name: a\ndescription: d\n";

#[test]
fn front_matter_becomes_an_agent() {
    for (front, expect) in [
        ("", json!({"name": "a", "description": "d", "prompt": "Do it.", "tools": null, "model": null})),
        ("tools: Read, Bash\n", json!({"tools": ["fs__read", "shell__bash"]})),
        ("tools: [Read, fs__grep, 'github__*']\n", json!({"tools": ["fs__read", "fs__grep", "github__*"]})),
        ("tools: []\n", json!({"tools": []})),
        ("tools: mcp__github__search, mcp__memory\n", json!({"tools": ["github__search", "mcp-memory__*"]})),
        ("tools: Task(tester, Code Reviewer)\n", json!({"tools": ["agent__tester", "agent__code-reviewer"]})),
        (
            "disallowed-tools: Write, Monitor\n",
            json!({"disallowed_tools": ["fs__write", "fs__edit", "fs__multi_edit", "fs__json_write", "fs__notebook_edit"]}),
        ),
        ("disallowedTools: Bash\n", json!({"disallowed_tools": ["shell__bash", "shell__*"]})),
        ("disallowedTools: 'Bash(rm:*)'\n", json!({"disallowed_tools": ["shell__python"]})),
        (
            "tools: Edit, MultiEdit\ndisallowedTools: Write, MultiEdit\n",
            json!({"disallowed_tools": ["fs__write", "fs__json_write", "fs__notebook_edit", "fs__multi_edit"]}),
        ),
        ("disallowedTools: 'Read(secret/**)'\n", json!({"disallowed_tools": ["fs__read"]})),
        ("model: inherit\n", json!({"model": null})),
        ("model: claude-opus-4-8\n", json!({"model": "anthropic/claude-opus-4-8"})),
        ("max_turns: 3\nlimits: {tokens: 9, time: 5m}\n", json!({"limits": {"turns": 3, "tokens": 9, "time": "5m"}})),
        ("maxTurns: 3\neffort: high\n", json!({"limits": {"turns": 3}, "settings": {"effort": "high"}})),
        ("color: red\npermissionMode: default\n", json!({"policy": null})),
        (
            "policy: workspace\nbackground: true\nonChildren: detach\n",
            json!({"policy": "workspace", "background": true}),
        ),
        ("outputSchema: {type: object}\n", json!({"output_schema": {"type": "object"}})),
    ] {
        let sources = "mcpServers: {github: {command: x}, mcp-memory: {command: x}}\n\
            agents: {tester: {description: d}, code-reviewer: {description: d}}\n";
        let fixture = Fixture::with(sources);
        fixture.write(FILE, &format!("---\n{HEAD}{front}---\n\nDo it.\n"));
        let config = fixture.load();
        assert!(problems(&config).is_empty(), "{front}: {:#?}", problems(&config));
        let agent_config = json!(config.agents.last().unwrap_or_else(|| panic!("{front}")).config);
        for (key, value) in expect.as_object().expect("an object") {
            assert_eq!(agent_config.get(key).unwrap_or(&Value::Null), value, "{front}");
        }
    }
}

#[test]
fn bad_front_matter_errors_name_the_line() {
    use Severity::{EntryDisabled, Warning};
    let check = |front: &str, is_there: bool, reported: &[Problem<'_>]| {
        check(&format!("{HEAD}{front}"), is_there.then(|| json!({"name": "a"})), reported);
    };
    check("toolz: Read\n", true, &[(4, Warning, "did you mean `tools`?")]);
    check("tools: Reed\n", true, &[(4, Warning, "did you mean `Read`?")]);
    check("tools: [Read, fs__raed]\n", true, &[(4, Warning, "did you mean `fs__read`?")]);
    check("tools: nowhere__x\n", true, &[(4, Warning, "no tool `nowhere__x`")]);
    check("tools: Read, Write(src/**)\n", true, &[(4, Warning, "`Write(src/**)` is left out")]);
    check("tools: Monitor\n", true, &[(4, Warning, "no such tool")]);
    check("tools: NotebookEdit, TodoWrite, AskUserQuestion\n", true, &[]);
    check("model: opus\n", true, &[(4, Warning, "models.aliases")]);
    check("model: gpt-5\n", true, &[(4, Warning, "provider/model")]);
    check("model: opanai/gpt-5\n", true, &[(4, Warning, "did you mean `openai`?")]);
    check("permissionMode: bypassPermissions\n", true, &[(4, Warning, "`policy: trusted`")]);
    check("hooks: {PreToolUse: []}\n", true, &[(4, Warning, "policy.guards")]);
    check("mcpServers: [{x: {command: y}}]\n", true, &[(4, Warning, "`mcpServers` of the configuration")]);
    check("initialPrompt: go\nmemory: user\n", true, &[(4, Warning, "first message"), (5, Warning, "no folder")]);
    check("maxTurns: none\n", false, &[(4, EntryDisabled, "a whole number")]);
    check("limits: {time: 5 parsecs}\n", false, &[(4, EntryDisabled, "duration")]);
    check("policy: yolo\n", false, &[(4, EntryDisabled, "not one of")]);
    check("output_schema: {type: 7}\n", false, &[(4, EntryDisabled, "JSON Schema")]);
    check("rules: [{effect: allow, tool: '*'}]\n", false, &[(4, EntryDisabled, "may only deny")]);
    check("router: {destinations: [b]}\n", false, &[(4, EntryDisabled, "no agent `b`")]);
    check("prompt: twice\n", false, &[(4, EntryDisabled, "keep one")]);
    let never = "triggers: [{type: schedule, cron: '0 0 30 2 *', prompt: p}]\n";
    check(never, true, &[(4, EntryDisabled, "trigger 1 is left out: `0 0 30 2 *` never fires")]);
    check("triggers: [{type: timer, intervall: 1m}]\n", true, &[(4, EntryDisabled, "did you mean `interval`?")]);
    let second =
        "triggers:\n  - {type: timer, interval: 1h, prompt: p}\n  - type: timer\n    interval: 1h\n    overlap: zz\n";
    check(second, true, &[(6, EntryDisabled, "trigger 2 is left out: `overlap`: unknown variant `zz`")]);
    check("x: [\n", false, &[(4, EntryDisabled, "not valid YAML")]);
}

#[test]
fn a_mistyped_model_gets_a_suggestion() {
    let models = "models: {default: openai/gpt-5, anthropic/claude-sonnet-4-5: {window: 200000}, aliases: {fast: anthropic/claude-haiku}}\n";
    for (model, near) in [
        ("anthropic/claude-sonet-4-5", Some("anthropic/claude-sonnet-4-5")),
        ("openai/gtp-5", Some("openai/gpt-5")),
        ("anthropic/claude-haku", Some("anthropic/claude-haiku")),
        // Others that may well exist.
        ("openai/gpt-5-mini", None),
        ("anthropic/claude-sonnet-4-6", None),
        ("anthropic/claude-sonnet-4-5", None),
        ("fast", None),
    ] {
        let fixture = Fixture::with(models);
        fixture.write(FILE, &format!("---\nname: a\ndescription: d\nmodel: {model}\n---\nText"));
        let found = problems(&fixture.load());
        match near {
            Some(near) => assert!(
                found.len() == 1
                    && found[0].contains("a.md:4")
                    && found[0].contains(&format!("did you mean `{near}`?")),
                "{model}: {found:?}"
            ),
            None => assert!(found.is_empty(), "{model}: {found:?}"),
        }
    }
}

#[test]
fn a_bad_file_removes_only_itself() {
    let fixture = Fixture::with("agents:\n  own: {description: d, prompt: p}\n  bad: {promt: p}\n");
    fixture.write("project/agents/good.md", "---\ndescription: d\n---\nText");
    fixture.write("project/agents/deep/er.md", "---\nname: deeper\ndescription: d\n---\nText");
    fixture.write("project/agents/none.md", "no front matter");
    fixture.write("project/agents/README.md", "what these are");
    fixture.write("project/agents/batch.md", "---\ndescription: d\n---\nText");
    fixture.write("project/.claude/agents/again.md", "---\nname: own\ndescription: d\n---\nText");
    fixture.write_as_stranger("home/.claude/agents/mine.md", "---\nname: mine\ndescription: d\n---\nText");
    fixture.write_as_stranger("home/.config/toolwright/agents/good.md", "---\ndescription: d\n---\nText");
    let config = fixture.load();
    let names: Vec<&str> = config.agents.iter().map(|agent| &*agent.config.name).collect();
    assert_eq!(names, ["own", "deeper", "good", "mine"]);
    let all = problems(&config).join("\n");
    for words in [
        "toolwright.yaml:3: entry left out: agents.bad.promt: unknown key `promt`; did you mean `prompt`?",
        "none.md: entry left out: it does not begin with a line `---`",
        "the tool agent__batch has this name",
        "again.md:2: warning: name: the agent `own` of",
        "good.md:2: warning: name: the agent `good` of",
    ] {
        assert!(all.contains(words), "{words} is not in:\n{all}");
    }
    assert_eq!(config.problems.len(), 5, "{all}");
}

#[test]
fn disabled_agents_and_unusable_triggers_are_left_out() {
    let fixture = Fixture::with(
        "agents:
  a: {description: d, enabled: false}
  b: {description: d, router: {destinations: [a]}}
channels: {shared: {reach: shared}}
triggers:
  good: {type: channel, channel: shared, prompt: p, agent: bb}
  private: {type: channel, channel: mine, prompt: p}
  hook: {type: webhook, prompt: p}
  files: {type: file, globs: ['['], prompt: p}
  other: {type: timer, interval: 1h, prompt: p, model: opnai/m}
tools:
  hourly: {type: trigger, class: timer, set: {interval: 1h, agent: bb, model: opnai/m, deliver: run}}
  zoned: {type: trigger, class: schedule, set: {daily_at: '03:00', time_zone: Europe/Olso}}
  keyed: {type: trigger, class: timer, set: {intervall: 1h}}
",
    );
    fixture.write(FILE, "---\nname: a\ndescription: d\n---\nText");
    let config = fixture.load();
    let names: Vec<&str> = config.agents.iter().map(|agent| &*agent.config.name).collect();
    let triggers: Vec<&str> = config.sections.triggers.keys().map(String::as_str).collect();
    assert_eq!((&names[..], &triggers[..]), (&["b"][..], &["good", "other"][..]));
    let tools: Vec<_> =
        config.sections.tools.iter().map(|(name, tool)| (&**name, tool.set.contains_key("model"))).collect();
    assert_eq!(tools, [("hourly", true)]);
    let all = problems(&config).join("\n");
    for words in [
        "toolwright.yaml:3: warning: agents.b.router: the agent `a` was left out",
        "toolwright.yaml:6: warning: triggers.good.agent: there is no agent `bb`: its firings fail; did you mean `b`?",
        "toolwright.yaml:7: entry left out: triggers.private: channel mine is private",
        "toolwright.yaml:8: entry left out: triggers.hook: a trigger of type webhook needs a secret",
        "toolwright.yaml:9: entry left out: triggers.files: `[` is no glob",
        "toolwright.yaml:10: warning: triggers.other.model: the model `opnai/m` is of a provider that is not known: \
         `opnai`; did you mean `openai`?",
        "toolwright.yaml:12: warning: tools.hourly.set.agent: there is no agent `bb`: its calls fail; did you mean `b`?",
        "toolwright.yaml:12: warning: tools.hourly.set.model: the model `opnai/m` is of a provider that is not known: \
         `opnai`; did you mean `openai`?",
        "toolwright.yaml:13: entry left out: tools.zoned.set: `Europe/Olso` is no time zone",
        "toolwright.yaml:14: entry left out: tools.keyed.set: a trigger has no key `intervall`; did you mean `interval`?",
    ] {
        assert!(all.contains(words), "{words} is not in:\n{all}");
    }
    assert_eq!(config.problems.len(), 10, "{all}");
    let found = json_of(&run(&fixture, &["validate"]));
    assert_eq!((&found["valid"], &found["agents"]), (&json!(false), &json!(["b"])), "{found}");
}

#[test]
fn unknown_agents_among_tools_are_reported() {
    let others = "reviewer: {description: d}\n  off: {description: d, enabled: false}\n";
    for (key, expect) in [
        ("tools: ['agent__*', agent__lead, agent__reviewer, 'agent:Reviewer@1.0.0', agent__todo, agent__off]", None),
        ("disallowed_tools: ['agent__*', agent__reviewer, agent__todo]", None),
        ("tools: [agent__revewer]", Some("tools: there is no agent `revewer`; did you mean `reviewer`?")),
        (
            "disallowed_tools: [agent__revewer]",
            Some("disallowed_tools: there is no agent `revewer`; did you mean `reviewer`?"),
        ),
        ("tools: [agent__zzzzzz]", Some("tools: there is no agent `zzzzzz`; `toolwright agents ls` lists the agents")),
        (
            "disallowed_tools: [memory__serach]",
            Some("disallowed_tools: there is no tool `memory__serach`; did you mean `memory__search`?"),
        ),
        ("tools: [web__search, trigger__timer, trigger__hourly, group__send, memory__files, code__run]", None),
        ("tools: [trigger__timr]", Some("tools: there is no tool `trigger__timr`; did you mean `trigger__timer`?")),
        (
            "triggers: [{type: timer, interval: 1h, prompt: p, agent: reviewr}]",
            Some("triggers: trigger 1: there is no agent `reviewr`; did you mean `reviewer`?"),
        ),
        (
            "triggers: [{type: timer, interval: 1h, prompt: p, agent: reviewer}]",
            Some("triggers: trigger 1: it starts `lead`, not `reviewer`; leave `agent` out"),
        ),
        ("triggers: [{type: timer, interval: 1h, prompt: p, agent: lead}]", None),
    ] {
        let fixture = Fixture::with(&format!(
            "agents:\n  lead: {{description: d, {key}}}\n  {others}web: {{search: [{{engine: searxng, url: 'http://127.0.0.1:1'}}]}}\n\
             tools: {{hourly: {{type: trigger, class: timer, set: {{interval: 1h}}}}}}\n"
        ));
        let all = problems(&fixture.load());
        let found: Vec<_> =
            all.iter().map(|problem| problem.rsplit_once("toolwright.yaml:").map(|(_, said)| said)).collect();
        let expect = expect.map(|expect| format!("2: warning: agents.lead.{expect}"));
        let has_message =
            |said: &Option<&str>| said.is_some_and(|said| said.starts_with(expect.as_deref().unwrap_or("-")));
        assert!(found.len() == expect.iter().len() && found.iter().all(has_message), "{key}: {all:?}");
    }
}

#[test]
fn trigger_tools_are_listed_where_they_are_wanted() {
    let agent = "agents: {a: {description: d, tools: ['trigger__ti*', fs__read]}}\n";
    for (config, expect) in [("", 0), (agent, 1), ("defaults: {triggers: true}\n", 5)] {
        let fixture = Fixture::with(config);
        let tools = ok(&fixture, &["tools", "ls", "--json"]);
        assert_eq!(tools.matches("\"trigger:").count(), expect, "{config}: {tools}");
    }
    let fixture = Fixture::new();
    fails(&fixture, &["call", "trigger__timer", "interval=1m", "prompt=p"], 3, &["defaults.triggers: true"]);
}

#[test]
fn a_cycle_of_destinations_is_refused() {
    let agent = |to: &str| format!("{{description: d, router: {{destinations: [{to}]}}}}");
    let (a, b, c) = (agent("b, c"), agent("a"), agent(""));
    let fixture = Fixture::with(&format!("agents:\n  a: {a}\n  b: {b}\n  c: {c}\n  d: {}\n", agent("c, b")));
    let config = fixture.load();
    let names: Vec<&str> = config.agents.iter().map(|agent| &*agent.config.name).collect();
    assert_eq!(names, ["c", "d"]);
    let all = problems(&config).join("\n");
    assert!(
        all.contains(
            "toolwright.yaml:2: entry left out: agents.a.router: its destinations lead back to it: a -> b -> a"
        ),
        "{all}"
    );
    assert!(all.contains("toolwright.yaml:5: warning: agents.d.router: the agent `b` was left out"), "{all}");
}

/// What a policy says of a command.
fn decides(policy: &Policy, command: &str) -> Effect {
    let id = ToolId::format("shell", "bash", "1.0.0").expect("an id");
    let definition = ToolDefinition { effects: Effects::UNKNOWN, ..ToolDefinition::new(id, "", None) };
    let arguments = json!({"command": command});
    policy
        .decide(&PolicyQuery {
            definition: &definition,
            trust: HintTrust::Foreign,
            principal: &Principal::owner(),
            root: Path::new("/w"),
            scope: CallScope::Anywhere,
            unvalidated: None,
            arguments: &arguments,
            request: None,
            tainted: &[],
        })
        .effect
}

#[test]
fn agent_files_of_claude_code_load_unchanged() {
    let fixture = Fixture::with(
        "mcpServers: {postgres: {command: x}, linear: {command: x}}\nmodels: {aliases: {sonnet: openai/gpt-5}}\n",
    );
    let text = std::fs::read_to_string(data_file("claude_agent.md")).expect("the file");
    fixture.write(FILE, &text);
    let config = fixture.load();
    let [agent] = &config.agents[..] else { panic!("{:#?}", problems(&config)) };
    let agent_config = &agent.config;
    assert_eq!((&*agent_config.name, agent_config.model.as_deref()), ("migration-reviewer", Some("openai/gpt-5")));
    assert!(agent_config.description.ends_with("</commentary></example>"), "{}", agent_config.description);
    let tools = agent_config.tools.clone().unwrap_or_default();
    assert_eq!(
        tools,
        [
            "fs__read",
            "fs__grep",
            "fs__glob",
            "fs__tree",
            "shell__bash",
            "agent__todo",
            "web__search",
            "postgres__explain",
            "linear__*"
        ]
    );
    assert_eq!((agent_config.disallowed_tools.len(), agent_config.limits.turns), (5, Some(12)));
    assert!(agent_config.prompt.starts_with("You review database migrations."), "{}", agent_config.prompt);
    let policy = agent_config.with_agent_rules(&Policy {
        profile: Profile::Trusted,
        rules: Vec::new(),
        tools: Vec::new(),
        within: None,
    });
    for (command, runs) in [
        ("git diff HEAD~1", true),
        ("git diff", true),
        ("git log --oneline", true),
        ("git push", false),
        ("git difftool", false),
        ("git diff; rm -rf /", false),
        ("git log $(rm x)", false),
        ("git diff > out", false),
    ] {
        // It plans, so that even these are denied by their effects; what is looked at are the commands.
        let denied = decides(&Policy { rules: policy.rules[..1].to_vec(), ..policy.clone() }, command) == Effect::Deny;
        assert_eq!(!denied, runs, "{command}");
    }
    let lines: Vec<(u32, String)> =
        config.problems.iter().map(|problem| (problem.line.unwrap_or(0), problem.field.clone())).collect();
    let expect = [
        (2, "name"),
        (4, "tools"),
        (4, "tools"),
        (10, "memory"),
        (11, "skills"),
        (13, "mcp_servers"),
        (16, "isolation"),
    ];
    assert_eq!(lines, expect.map(|(line, field)| (line, field.to_owned())), "{:#?}", problems(&config));
}

fn reviewer() -> Fixture {
    let fixture = Fixture::with("agents:\n  helper: {description: Helps., prompt: Help., tools: ['fs__*']}\n");
    let front =
        "description: Reviews.\ntools: [fs__read, fs__grep]\ndisallowedTools: fs__grep\nmaxTurns: 3\npolicy: ask\n";
    fixture.write("project/agents/reviewer.md", &format!("---\n{front}---\nYou review.\n"));
    fixture
}

#[test]
fn agents_are_listed_and_shown() {
    let fixture = reviewer();
    let file = fixture.path("project/agents/reviewer.md");
    let listed = json_of(&run(&fixture, &["agents", "ls", "--json"]));
    let config = fixture.path("project/toolwright.yaml");
    assert_eq!(
        listed,
        json!([
            {"name": "helper", "description": "Helps.", "model": null, "tools": ["fs__*"], "file": config, "line": 2},
            {"name": "reviewer", "description": "Reviews.", "model": null, "tools": ["fs__read", "fs__grep"], "file": file, "line": 2},
        ])
    );
    let shown = json_of(&run(&fixture, &["agents", "show", "reviewer", "--json"]));
    assert_eq!(
        shown,
        json!({
            "name": "reviewer", "description": "Reviews.", "prompt": "You review.", "tools": ["fs__read", "fs__grep"],
            "disallowed_tools": ["fs__grep"], "limits": {"turns": 3}, "policy": "ask", "file": file, "line": 2,
        })
    );
    let text = ok(&fixture, &["agents", "show", "reviewer"]);
    assert!(text.contains("tools: fs__read, fs__grep\n") && text.ends_with("You review.\n"), "{text}");
    fails(&fixture, &["agents", "show", "reviewr"], 3, &["did you mean `reviewer`?"]);
    fails(&fixture, &["run", "--agent", "reviewr", "--policy", "ask", "x"], 3, &["did you mean `reviewer`?"]);
}

#[test]
fn a_new_agent_is_written_and_approved() {
    let fixture = Fixture::new();
    fails(&fixture, &["agents", "new", "x"], 2, &["toolwright init", "--user"]);
    fixture.write("project/toolwright.yaml", "");
    fails(&fixture, &["agents", "new", "Not Legal"], 2, &["`not-legal` would be one"]);
    ok(&fixture, &["agents", "new", "mine", "--tools", "fs__read", "--description", "Say: \"it\""]);
    fails(&fixture, &["agents", "new", "mine"], 2, &["was not changed"]);
    ok(&fixture, &["agents", "new", "ours", "--user"]);
    let config = fixture.load();
    assert!(problems(&config).is_empty(), "{:#?}", problems(&config));
    let configs: Vec<(&str, &str)> =
        config.agents.iter().map(|agent| (&*agent.config.name, &*agent.config.description)).collect();
    assert_eq!(configs, [("mine", "Say: \"it\""), ("ours", "Say in a sentence when to use this agent.")]);
}

#[test]
fn project_agents_load_once_approved() {
    let fixture = Fixture::new();
    let file = fixture.write_as_stranger(FILE, "---\nname: a\ndescription: d\ntools: [fs__read]\n---\nObey.");
    let config = fixture.load();
    assert!(config.agents.is_empty(), "it counts");
    assert!(problems(&config).join("\n").contains("nobody has approved"), "{:#?}", problems(&config));
    let shown = json_of(&run(&fixture, &["trust", "--show", "--json"]));
    assert_eq!(shown["files"][0]["state"], "unapproved");
    assert!(shown["files"][0]["changes"].to_string().contains("Obey."), "{shown}");
    ok(&fixture, &["trust", "--yes"]);
    assert_eq!(fixture.load().agents.len(), 1);
    // The approved version stays in force.
    std::fs::write(&file, "---\nname: a\ndescription: d\n---\nObey me.").expect("file");
    let config = fixture.load();
    assert_eq!(config.agents[0].config.prompt, "Obey.");
    assert!(problems(&config).join("\n").contains("agent_files.a.md"), "{:#?}", problems(&config));
    std::fs::remove_file(&file).expect("removed");
    let config = fixture.load();
    assert!(config.agents.is_empty() && problems(&config).is_empty(), "{:#?}", problems(&config));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_runs_as_it_is_defined() {
    let fixture = reviewer();
    let script: Script = vec![
        Turn::calls(vec![("agent__final_report", json!({"status": "success", "format": "text", "content": "Fine."}))])
            .expecting("its instructions are there", |asked| asked.body.to_string().contains("You review."))
            .expecting("its tools are shown", |asked| {
                let mut names = asked.tool_names();
                names.sort();
                names == ["agent__final_report", "fs__read"]
            }),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let output = ended(start(&fixture, &variables, &["run", "--agent", "reviewer", "look", "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(report(&output)["answer"], "Fine.");
    assert!(server.failures().is_empty(), "{:?}", server.failures());
}

#[test]
fn agent_files_are_loaded_again_when_they_change() {
    let fixture = reviewer();
    let gateway = Gateway::start(&fixture, &["--stdio"]);
    // A change of a project's folder waits for approval.
    fixture.write_as_stranger("project/agents/other.md", "---\ndescription: d\n---\nText");
    gateway.says("agent_files.other.md");
    // The folder was not there.
    fixture.write_as_stranger("home/.claude/agents/mine.md", "---\ndescription: d\ntoolz: Read\n---\nText");
    gateway.says("did you mean `tools`?");
    fixture.write_as_stranger("home/.claude/agents/mine.md", "---\ndescription: d\nmodle: inherit\n---\nText");
    gateway.says("did you mean `model`?");
}
