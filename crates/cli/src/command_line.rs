//! Defines the command line and its help. `--help` has one line per option, `toolwright help COMMAND` the full text.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::builder::styling::Styles;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::app::trust::Trust;
use crate::app::{ConfigCommand, GlobalOptions};
use crate::develop::bench_plan::Bench;
use crate::develop::catalogue::CatalogueCommand;
use crate::develop::codec::{Decode, Encode, Validate};
use crate::develop::eval::Eval;
use crate::operate::approvals::ApprovalsCommand;
use crate::operate::jobs::JobsCommand;
use crate::operate::mcp::McpCommand;
use crate::operate::pins::PinsCommand;
use crate::operate::policy::PolicyCommand;
use crate::operate::state::StateCommand;
use crate::operate::trace::{JSON_FORM, TraceArgs};
use crate::operate::triggers::TriggersCommand;
use crate::start::demo::{DemoArgs, SampleServer};
use crate::start::edit::{Add, Import};
use crate::terminal::screen::{BOLD, columns, styled};
use crate::use_tools::agents::AgentsCommand;
use crate::use_tools::call::Call;
use crate::use_tools::chat::Chat;
use crate::use_tools::pick::PickArgs;
use crate::use_tools::plan::PlanCommand;
use crate::use_tools::prompt::PromptCommand;
use crate::use_tools::run::Run;
use crate::use_tools::serve::{ConsoleArgs, Serve};
use crate::use_tools::tools::Tools;

/// The text of `--help` about exit codes.
const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    invalid arguments, a timeout, or the tool or run failed
  2    bad usage or configuration
  3    no such tool, job, question, run, definition or server
  4    denied or not permitted
  130  cancelled";

/// The tool system of an LLM agent: many sources, one catalogue, one executor.
///
/// It gathers the tools of MCP servers, REST endpoints and built-ins, checks and bounds every call, and serves them
/// to MCP clients or lets an agent work with them.
#[derive(Debug, Parser)]
#[command(
    name = "toolwright",
    version,
    after_long_help = EXIT_CODES,
    max_term_width = 100,
    disable_help_flag = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the catalogue over MCP (stdio or HTTP). With --http and --json it prints {ready, tools} when it is ready.
    Serve(Serve),
    /// Open the web console of a running server. Prints its address, which works once. With --json: {url}.
    Console(ConsoleArgs),
    /// Run an agent on a task.
    Run(Run),
    /// Talk with an agent.
    Chat(Chat),
    /// List, show and write agents. Agents are defined under `agents` of the configuration, and in files in `agents`
    /// beside the configuration and in `.claude/agents` of the project and of your home folder.
    #[command(subcommand)]
    Agents(AgentsCommand),
    /// Show a run that needs no key and no network. It has a scripted model, three sample servers and one question to
    /// you.
    Demo(DemoArgs),
    /// A sample server of the demo.
    #[command(hide = true)]
    DemoServer {
        /// Which.
        sample: SampleServer,
    },
    /// Call one tool. It counts as approved by you: only a deny rule stops it, if it is the first rule that matches.
    ///
    /// The whole result is printed. With --max-output it is cut and the rest is stored. The output names a handle of
    /// the rest; calls of output__read in the same workspace root can read it until it expires (outputs.max_age).
    #[command(after_long_help = EXIT_CODES)]
    Call(Call),
    /// Check, show and run plans. A plan is an array of calls that refer to each other's results.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Check the configuration and its agent files; with --tool or --schema, arguments. Arguments are repaired if their
    /// meaning is clear. Prints JSON; exit code 1 if they are invalid.
    Validate(Validate),
    /// Write tools in the form of a model API. Prints JSON that also lists what the form loses and which tools it
    /// leaves out.
    Encode(Encode),
    /// Read what a model wrote: text, reasoning and calls. Prints JSON; exit code 1 if the input cannot be read, is an
    /// error, or is incomplete.
    Decode(Decode),
    /// Show the state of runs and plans. Calls store their results in it under their `_outputPath`.
    #[command(subcommand)]
    State(StateCommand),
    /// List, show and search tools.
    #[command(subcommand)]
    Tools(Tools),
    /// Pick the few tools that fit a task.
    Pick(PickArgs),
    /// Show the system prompts of runs.
    #[command(subcommand)]
    Prompt(PromptCommand),
    /// List, read, continue and stop background jobs. They include the jobs of all your processes.
    #[command(subcommand)]
    Jobs(JobsCommand),
    /// List, add, remove and fire triggers. They start runs by themselves: `toolwright serve` and `toolwright chat` run them.
    #[command(subcommand)]
    Triggers(TriggersCommand),
    /// Measure how well tools are found, and at what cost.
    #[command(subcommand)]
    Eval(Eval),
    /// Measure how well models answer LLM tools, with cost and time.
    Bench(Bench),
    /// Write a first toolwright.yaml.
    Init,
    /// Show and approve a project's configuration. It shows what the project's toolwright.yaml, .mcp.json and agent
    /// files would start and change. The files take effect only after you approve them with their present content. A
    /// later change needs approval again, unless it only removes something.
    Trust(Trust),
    /// Add an MCP server to the configuration.
    Add(Add),
    /// Remove an entry from the configuration. The entry is an MCP server, an OpenAPI document, a catalogue, a REST
    /// tool or an LLM tool.
    Remove {
        /// Its name, or SECTION.NAME (`restTools.issue`) if several sections have it.
        name: String,
    },
    /// Add the servers of another client, or an OpenAPI document.
    Import(Import),
    /// Show what a run or session did. It prints a tree with times, sizes, tokens, costs, outcomes, and who decided.
    #[command(after_long_help = JSON_FORM)]
    Trace(TraceArgs),
    /// Try out policy rules.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show and answer what waits for your approval.
    #[command(subcommand)]
    Approvals(ApprovalsCommand),
    /// Log in and out at MCP servers.
    #[command(subcommand)]
    Mcp(McpCommand),
    /// Show, approve and revoke pinned tool definitions. Shows what has changed in the definitions of other sources.
    #[command(subcommand)]
    Pins(PinsCommand),
    /// Sign catalogues of tools, and check signed ones.
    #[command(subcommand)]
    Catalogue(CatalogueCommand),
    /// Check configuration, providers and models, with remedies.
    Doctor,
    /// Print the configuration, or its JSON Schema.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// The groups of commands by purpose. A command in no group is listed in the last one.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Start", &["demo", "init", "add", "import", "remove", "trust", "config", "doctor"]),
    ("Use", &["serve", "run", "chat", "agents", "call", "plan", "tools", "pick", "prompt"]),
    ("Operate", &["approvals", "jobs", "triggers", "state", "trace", "policy", "pins", "mcp"]),
    ("Develop", &["validate", "encode", "decode", "eval", "bench", "catalogue", "completions", "help"]),
];

/// Examples of commands, by their path.
const EXAMPLES: [(&str, &[&str]); 22] = [
    (
        "add",
        &[
            "toolwright add git -- uvx mcp-server-git",
            "toolwright add tickets --url https://host/mcp --header 'Authorization: Bearer ${TOKEN}'",
        ],
    ),
    (
        "import",
        &[
            "toolwright import cursor --dry-run",
            "toolwright import openapi ./api.yaml --prefix shop --tag orders --method get",
        ],
    ),
    (
        "serve",
        &[
            "toolwright serve --stdio                       # started by an MCP client",
            "toolwright serve --http 127.0.0.1:7117         # one server for several clients",
        ],
    ),
    (
        "run",
        &[
            "toolwright run --policy workspace \"List every TODO in todo.md\"",
            "git diff | toolwright run --policy ask - --format markdown > review.md",
        ],
    ),
    (
        "agents",
        &[
            "toolwright agents new reviewer --tools fs__read --tools fs__grep",
            "toolwright agents show reviewer",
            "toolwright run --agent reviewer --policy ask \"Review the last commit\"",
        ],
    ),
    ("chat", &["toolwright chat --model openai/gpt-5-mini --policy workspace"]),
    (
        "call",
        &[
            "toolwright call fs__grep pattern=TODO path=src",
            "toolwright call fs__read '{\"path\": \"Cargo.toml\"}' --json",
            "toolwright call shell__bash command=\"make -j2 all\" --background",
        ],
    ),
    (
        "plan",
        &["toolwright plan check plan.json --json", "toolwright plan show plan.json", "toolwright plan run plan.json"],
    ),
    ("state", &["toolwright state ls", "toolwright state get user.name --json"]),
    ("tools", &["toolwright tools ls", "toolwright tools search \"read a file\"", "toolwright tools show fs__read"]),
    ("tools ls", &["toolwright tools ls --namespace fs", "toolwright tools ls --tokens"]),
    ("pick", &["toolwright pick \"tell me when it rains in Oslo\" --max 5 --json"]),
    ("approvals", &["toolwright approvals ls", "toolwright approvals approve ID"]),
    ("jobs", &["toolwright jobs ls --open", "toolwright jobs show ID --wait 30s", "toolwright jobs stop ID"]),
    (
        "triggers",
        &[
            "toolwright triggers add schedule daily_at=07:30 prompt=\"Summarise the new issues\"",
            "toolwright triggers next --count 3",
        ],
    ),
    ("trace", &["toolwright trace", "toolwright trace last"]),
    ("policy", &["toolwright policy test fs:write '{\"path\": \"a.txt\"}'"]),
    ("pins", &["toolwright pins ls --waiting", "toolwright pins diff", "toolwright pins approve github/search"]),
    ("mcp", &["toolwright mcp ls", "toolwright mcp login tickets"]),
    ("validate", &["toolwright validate --tool fs__read \"{path: 'Cargo.toml', limit: '5',}\""]),
    ("encode", &["toolwright encode --api openai-chat --tools tools.json --strict"]),
    ("decode", &["toolwright decode --format anthropic --tools tools.json answer.txt"]),
];

const LAYOUT: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}\
    \u{1b}[1mOptions:\u{1b}[0m\n{options}{after-help}";

/// The most columns of help.
const WIDEST: usize = 100;
/// Note on where the full help is.
const MORE: &str = "`toolwright COMMAND --help` is short; `toolwright help COMMAND` says everything.";

/// Returns the definition of the command line, with its help.
pub(crate) fn command() -> clap::Command {
    let mut command = shortened(Cli::command(), "");
    let groups = groups(&command);
    // The groups have their own text, so the list that clap would write is left out.
    command = command.help_template(LAYOUT).before_help(StyledStr::from(groups.clone())).before_long_help(groups);
    command = command.styles(Styles::styled().header(BOLD).usage(BOLD));
    let exit_codes = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    command.after_help(MORE).after_long_help(format!("{exit_codes}\n\n{MORE}"))
}

/// Parses the command line of this process.
///
/// # Errors
/// Help, the version, or an invalid command line.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let mut command = command().term_width(columns().map_or(WIDEST, |columns| columns.min(WIDEST)));
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Sets help texts of a command and its subcommands: the short one is the first sentence, the long one the whole.
fn shortened(command: clap::Command, path: &str) -> clap::Command {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    let mut command = command;
    if let Some(about) = about {
        command = command.about(first_sentence(&about).to_owned()).long_about(about);
    }
    if let Some((_, examples)) = EXAMPLES.iter().find(|(of, _)| *of == path) {
        let mut text = styled(BOLD, "Examples:");
        for example in *examples {
            let _ = write!(text, "\n  {example}");
        }
        if let Some(more) = command.get_after_long_help().or(command.get_after_help()).cloned() {
            command = command.after_long_help(format!("{text}\n\n{more}"));
        }
        command = command.after_help(text);
    }
    command = command.mut_args(|arg| match arg.get_long_help().or(arg.get_help()).map(ToString::to_string) {
        Some(help) => arg.help(first_sentence(&help).to_owned()).long_help(help),
        None => arg,
    });
    command.mut_subcommands(|sub| {
        let path = if path.is_empty() { sub.get_name().to_owned() } else { format!("{path} {}", sub.get_name()) };
        shortened(sub, &path)
    })
}

/// Returns the text before the first full stop that precedes a capital letter, or the whole paragraph.
fn first_sentence(text: &str) -> &str {
    let paragraph = text.split("\n\n").next().unwrap_or(text);
    let ends = paragraph.match_indices(". ").map(|(at, _)| at);
    let is_end = |at: &usize| paragraph[at + 2..].starts_with(|c: char| c.is_uppercase() || c == '`');
    ends.into_iter().find(is_end).map_or(paragraph.trim_end_matches('.'), |at| &paragraph[..at])
}

/// Returns the groups, each with its commands and their purposes.
fn groups(command: &clap::Command) -> String {
    let known = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let visible = || command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let mut text = String::new();
    for (number, (group, names)) in GROUPS.iter().enumerate() {
        let _ = writeln!(text, "{}", styled(BOLD, format_args!("{group}:")));
        let mut line = |name: &str, about: &str| {
            let _ = writeln!(text, "  {}  {about}", styled(BOLD, format_args!("{name:<11}")));
        };
        let listed = names.iter().filter_map(|name| visible().find(|sub| sub.get_name() == *name));
        let others = visible().filter(|sub| number + 1 == GROUPS.len() && !known(sub.get_name()));
        for sub in listed.chain(others) {
            line(sub.get_name(), &sub.get_about().map(ToString::to_string).unwrap_or_default());
        }
        if names.contains(&"help") {
            line("help", "Print everything about a command");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_help_is_the_first_sentence() {
        for (text, expect) in [
            ("Lists tools.", "Lists tools"),
            ("Listens here. Default: `x`.", "Listens here"),
            ("As e.g. this one. `a` is b", "As e.g. this one"),
            ("One paragraph\n\nAnother. Third", "One paragraph"),
        ] {
            assert_eq!(first_sentence(text), expect);
        }
    }

    /// Returns the words of an example, up to shell operators.
    fn words(example: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for c in example.chars() {
            match (c, quote) {
                ('#' | '>', None) => break,
                (' ', None) => words.extend(word.take()),
                ('"' | '\'', None) => (quote, word) = (Some(c), Some(word.unwrap_or_default())),
                (c, Some(open)) if c == open => quote = None,
                (c, _) => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        words
    }

    #[test]
    fn every_example_is_a_command_line() {
        for example in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let ours = example.split_once("| ").map_or(*example, |(_, ours)| ours);
            let parsed = command().try_get_matches_from(words(ours));
            assert!(parsed.is_ok(), "{example}: {}", parsed.err().map(|error| error.to_string()).unwrap_or_default());
        }
    }

    #[test]
    fn help_of_every_command_fits_eighty_columns() {
        fn check(mut command: clap::Command, path: &str) {
            let help = command.clone().term_width(80).render_help().to_string();
            for line in help.lines().filter(|line| !line.starts_with("  toolwright ") && !line.starts_with("Usage:")) {
                assert!(line.chars().count() <= 80, "{path}: {line}");
            }
            command.build();
            for sub in command.get_subcommands() {
                check(sub.clone(), &format!("{path} {}", sub.get_name()));
            }
        }
        check(command(), "toolwright");
    }
}
