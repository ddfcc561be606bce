//! `agents ls | show | new`: shows the defined agents, and creates a file for a new one.

use std::fmt::Write as _;

use clap::Subcommand;
use serde_json::{Value, json};
use toolwright::config::{AgentEntry, Config};
use toolwright::core::agents::{AgentConfig, check_name};
use toolwright::core::duration;
use toolwright::core::trigger::TriggerConfig;

use crate::app::agent::unknown;
use crate::app::trust::{target, write_agent};
use crate::app::{GlobalOptions, usable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::screen::{BOLD, DIM, print_json, print_text, sanitize, say, styled};
use crate::terminal::table::{Table, name, print_list};

#[derive(Debug, Subcommand)]
pub(crate) enum AgentsCommand {
    /// List the agents of the configuration and of agent files. `toolwright run --agent NAME TASK` runs one.
    Ls,
    /// Show one agent with its instructions.
    Show {
        /// Its name.
        name: String,
    },
    /// Write a file for a new agent, in the folder `agents` beside the configuration.
    New {
        /// Its name: lower-case letters, digits, `_` and `-`.
        name: String,
        /// When to use it, in a sentence.
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Its model. Default: the model of whoever starts it.
        #[arg(long, value_name = "PROVIDER/MODEL")]
        model: Option<String>,
        /// Tools that it may use, as globs on ids or wire names (repeatable). Default: all.
        #[arg(long, value_name = "GLOB")]
        tools: Vec<String>,
        /// Writes it to your own configuration's folder, for all projects.
        #[arg(long)]
        user: bool,
    },
}

pub(crate) fn command(global: &GlobalOptions, command: &AgentsCommand) -> CommandResult {
    match command {
        AgentsCommand::Ls => list(global, &usable(global)?),
        AgentsCommand::Show { name } => show(global, &usable(global)?, name),
        AgentsCommand::New { name, description, model, tools, user } => {
            let front = AgentFrontMatter { name, description: description.as_deref(), model: model.as_deref(), tools };
            new(global, &front, *user)
        }
    }
}

fn list(global: &GlobalOptions, config: &Config) -> CommandResult {
    let mut table = Table::new(["agent", "model", "tools", "description"]);
    for AgentEntry { config: agent_config, .. } in &config.agents {
        let tools = agent_config.tools.as_ref().map_or_else(|| "all".to_owned(), |tools| tools.join(", "));
        let model = agent_config.model.as_deref().unwrap_or("default");
        table.row([name(&agent_config.name), model.into(), tools.into(), (&agent_config.description).into()]);
    }
    let values = config.agents.iter().map(|agent| {
        let agent_config = &agent.config;
        let mut value = json!({"name": agent_config.name, "description": agent_config.description});
        value["model"] = json!(agent_config.model);
        value["tools"] = json!(agent_config.tools);
        place(agent, &mut value);
        value
    });
    print_list(global.json, values.collect(), &table, "no agent is defined; `toolwright agents new NAME` writes one")
}

fn place(agent: &AgentEntry, value: &mut Value) {
    value["file"] = json!(agent.at.file);
    value["line"] = json!(agent.at.line);
}

fn show(global: &GlobalOptions, config: &Config, name: &str) -> CommandResult {
    let Some(agent) = config.agent(name) else { return Err(unknown(config, name)) };
    let agent_config = &agent.config;
    if global.json {
        let mut value = json!(agent_config);
        place(agent, &mut value);
        print_json(&value)?;
        return Ok(Exit::Ok);
    }
    let at = format!("{}:{}", agent.at.file.display(), agent.at.line);
    let mut text = format!("{}  {}\n", styled(BOLD, &agent_config.name), styled(DIM, sanitize(&at)));
    if !agent_config.description.is_empty() {
        let _ = writeln!(text, "{}", sanitize(agent_config.description.trim()));
    }
    let mut line = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            let _ = writeln!(text, "{key}: {}", sanitize(&value));
        }
    };
    line("model", agent_config.model.clone().or_else(|| Some("default".to_owned())));
    line("tools", Some(agent_config.tools.as_ref().map_or_else(|| "all".to_owned(), |tools| tools.join(", "))));
    line("not", Some(agent_config.disallowed_tools.join(", ")));
    let limits = &agent_config.limits;
    let limits = [
        limits.turns.map(|n| format!("{n} turns")),
        limits.calls.map(|n| format!("{n} calls")),
        limits.tokens.map(|n| format!("{n} tokens")),
        limits.cost.map(|cost| format!("${cost}")),
        limits.time.map(duration::format),
        limits.depth.map(|n| format!("{n} levels of agents")),
        limits.live.map(|n| format!("{n} agents at once")),
        limits.agents.map(|n| format!("{n} agents")),
    ];
    line("limits", Some(limits.into_iter().flatten().collect::<Vec<_>>().join(", ")));
    line("policy", agent_config.policy.map(|profile| profile.as_str().to_owned()));
    line(
        "never",
        Some(agent_config.rules.iter().filter_map(|rule| rule.reason.clone()).collect::<Vec<_>>().join("; ")),
    );
    let destinations = agent_config.router.destinations.iter().map(|to| to.agent.as_str());
    line("hands over to", Some(destinations.collect::<Vec<_>>().join(", ")));
    line("started by", Some(triggers(agent_config).join("; ")));
    line("in the background", agent_config.background.then(|| "always".to_owned()));
    line(
        "references",
        agent_config.foreign_references.then(|| "also in arguments for tools of other servers".to_owned()),
    );
    line("report", agent_config.output_schema.as_ref().map(|schema| Value::Object(schema.clone()).to_string()));
    print_text(text.trim_end())?;
    if !agent_config.prompt.is_empty() {
        print_text(&format!("\n{}", sanitize(&agent_config.prompt)))?;
    }
    Ok(Exit::Ok)
}

/// Returns the triggers that start an agent.
fn triggers(agent_config: &AgentConfig) -> Vec<String> {
    let read = |written: &serde_json::Map<String, Value>| serde_json::from_value(written.clone().into()).ok();
    agent_config.triggers.iter().filter_map(read).map(|trigger: TriggerConfig| trigger.describe()).collect()
}

/// The front matter of a new agent's file.
struct AgentFrontMatter<'a> {
    name: &'a str,
    description: Option<&'a str>,
    model: Option<&'a str>,
    tools: &'a [String],
}

impl AgentFrontMatter<'_> {
    fn text(&self) -> String {
        // A JSON string is also YAML.
        let description = self.description.unwrap_or("Say in a sentence when to use this agent.");
        let mut text = format!("---\nname: {}\ndescription: {}\n", self.name, json!(description));
        let _ = match self.model {
            Some(model) => writeln!(text, "model: {}", json!(model)),
            None => writeln!(text, "# model: provider/model    default: that of whoever starts it"),
        };
        let _ = match self.tools {
            [] => writeln!(text, "# tools: [fs__read, fs__grep]    default: all"),
            tools => writeln!(text, "tools: {}", json!(tools)),
        };
        text.push_str("# limits: {turns: 20, time: 10m}\n---\n\nSay here what the agent does, and how.\n");
        text
    }
}

fn new(global: &GlobalOptions, front: &AgentFrontMatter<'_>, user: bool) -> CommandResult {
    check_name(front.name).map_err(Failure::usage)?;
    let beside = target(global, user)?;
    if !user && !beside.exists() {
        return Err(Failure::usage(
            "there is no toolwright.yaml here: `toolwright init` writes one, and --user writes the agent for all projects",
        ));
    }
    let folder = beside.with_file_name("agents");
    let path = folder.join(format!("{}.md", front.name));
    if path.exists() {
        return Err(Failure::usage(format!("{} exists already and was not changed", path.display())));
    }
    write_agent(global, &folder, &path, &front.text(), user)?;
    if global.json {
        print_json(&json!({"name": front.name, "file": path}))?;
    } else {
        let file = sanitize(&path.display().to_string());
        say(format_args!("wrote {file}; next: edit it, then toolwright run --agent {} TASK", front.name));
    }
    Ok(Exit::Ok)
}
