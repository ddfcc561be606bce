//! The command line: one definition for parser, help and completions.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use toolwright::core::model::Effort;
use toolwright::server::Expose;

pub(crate) use crate::names::{
    ApiName, AskName, DispatchName, DraftName, ExposureName, PolicyName, ReasoningName, ReportFormat, ServeAskName,
    SourceName, address, duration, effort,
};

/// What `--help` says about exit codes.
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
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Configuration file, in place of all others; it needs no approval. Default: $TOOLWRIGHT_CONFIG.
    #[arg(long, global = true, value_name = "FILE", env = "TOOLWRIGHT_CONFIG", hide_env = true)]
    pub(crate) config: Option<PathBuf>,
    /// Workspace root. Default: the configuration's folder, else the current one.
    #[arg(long, global = true, value_name = "DIR", hide_short_help = true)]
    pub(crate) root: Option<PathBuf>,
    /// Where state is kept. Default: $TOOLWRIGHT_STATE_DIR, else $XDG_STATE_HOME/toolwright.
    #[arg(long, global = true, value_name = "DIR", hide_short_help = true)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Prints JSON on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Logs more on standard error; -vv logs still more. RUST_LOG gives exact control.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Format of log lines.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_short_help = true)]
    pub(crate) log_format: crate::terminal::logging::LogFormat,
    /// Prints help. `toolwright help COMMAND` prints all of it.
    #[arg(short, long, global = true, action = clap::ArgAction::HelpShort)]
    help: Option<bool>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the catalogue over MCP (stdio or HTTP). With --json it says over HTTP that it is ready: {ready, tools}.
    Serve(Serve),
    /// Run an agent on a task.
    Run(Run),
    /// Talk with an agent.
    Chat(Chat),
    /// Show a run that needs no key and no network. It has a scripted model, three sample servers, one question to you.
    Demo,
    /// A sample server of the demo.
    #[command(hide = true)]
    DemoServer {
        /// Which.
        sample: crate::start::demo::Sample,
    },
    /// Call one tool. It is your own act: only a deny rule holds it back, where no rule before it matches.
    ///
    /// The whole result is printed. With --max-output the rest is stored: what is printed names its handle, which later
    /// calls in the same workspace root can read with output__read until it expires (outputs.max_age).
    #[command(after_long_help = EXIT_CODES)]
    Call(Call),
    /// Check arguments against a tool or a JSON Schema. Arguments are mended where their meaning is plain. Answers as
    /// JSON; exit code 1 if they do not fit.
    Validate(Validate),
    /// Write tools in the form of a model API. Says what that form loses and what it leaves out. Answers as JSON.
    Encode(Encode),
    /// Read what a model wrote: text, reasoning and calls. Answers as JSON; exit code 1 if it cannot be read,
    /// is an error, or breaks off.
    Decode(Decode),
    /// List, show and search tools.
    #[command(subcommand)]
    Tools(crate::use_tools::tools::Tools),
    /// Pick the few tools that fit a task.
    Pick(crate::use_tools::pick::PickArgs),
    /// List, read, continue and stop background jobs. It finds those of every process of yours.
    #[command(subcommand)]
    Jobs(crate::operate::jobs::JobsCommand),
    /// Measure how well tools are found, and what that costs.
    #[command(subcommand)]
    Eval(crate::develop::eval::Eval),
    /// Measure how well models answer LLM tools. Says what that costs and how long it takes.
    Bench(crate::develop::bench::Bench),
    /// Write a first toolwright.yaml.
    Init,
    /// Show and approve a project's configuration. Says what its toolwright.yaml and .mcp.json would start and change.
    /// Nothing in them counts before they are approved, as they are; a change counts once it is approved too, unless it
    /// only takes something away.
    Trust(crate::app::trust::Trust),
    /// Add an MCP server to the configuration.
    Add(Add),
    /// Remove an entry from the configuration. It is an MCP server, an OpenAPI document, a catalogue, a REST or an LLM
    /// tool.
    Remove {
        /// Its name, or SECTION.NAME (`restTools.issue`) where several sections have it.
        name: String,
    },
    /// Add the servers of another client, or an OpenAPI document.
    Import(Import),
    /// Show what a run or session did. It is a tree with times, sizes, tokens, costs, outcomes, and who decided.
    #[command(after_long_help = crate::operate::trace::JSON_FORM)]
    Trace(crate::operate::trace::TraceArgs),
    /// Try policy rules out.
    #[command(subcommand)]
    Policy(crate::operate::policy::PolicyCommand),
    /// Show and answer what waits for your approval.
    #[command(subcommand)]
    Approvals(crate::operate::approvals::ApprovalsCommand),
    /// Log in and out at MCP servers.
    #[command(subcommand)]
    Mcp(crate::operate::mcp::McpCommand),
    /// Show, approve and revoke pinned tool definitions. Says what has changed in the definitions of others.
    #[command(subcommand)]
    Pins(crate::operate::pins::PinsCommand),
    /// Sign catalogues of tools, and check signed ones.
    #[command(subcommand)]
    Catalogue(crate::develop::catalogue::CatalogueCommand),
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

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Speaks on standard input and output, for clients that start the server.
    #[arg(long, conflicts_with_all = ["http", "token"])]
    pub(crate) stdio: bool,
    /// Listens here. Default: `server.http` of the configuration, 127.0.0.1:7117. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) http: Option<SocketAddr>,
    /// Bearer token that clients must send; needed beyond loopback. Without it clients at /mcp need none, and the API has
    /// the one in the file `api-token` of the state directory.
    #[arg(long, env = "TOOLWRIGHT_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// What may run where no rule matches. Default: `ask`; with --stdio `client`.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) policy: Option<PolicyName>,
    /// Who is asked where the policy asks. Default: `client` where it can be asked, else `inbox`. With `inbox`, what
    /// tools' sources want to know of a person goes there too, where the owner's client has no forms.
    #[arg(long, value_name = "WHOM", default_value = "client")]
    pub(crate) ask: ServeAskName,
    /// How tools are put before clients that do not say it with `?expose=…`: `direct` lists all of them, `search`
    /// three that find, describe and call the others, and those of `selection.pinned`.
    #[arg(long, value_name = "HOW", default_value = "direct", value_parser = PossibleValuesParser::new(["direct", "search"]).try_map(|how| how.parse::<Expose>()))]
    pub(crate) expose: Expose,
    #[command(flatten)]
    pub(crate) record: Record,
}

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// The model, or replay:FILE for a recording of one. Default: `models.default`, else what the environment offers.
    #[arg(short, long, value_name = "PROVIDER/MODEL")]
    pub(crate) model: Option<String>,
    /// How much the model thinks before it answers. Default: as configured for the model, else as its provider has it.
    #[arg(long, value_name = "HOW_MUCH", value_parser = effort())]
    pub(crate) effort: Option<Effort>,
    /// What may run where no rule matches. Default in a terminal: `ask`; elsewhere one must be given.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) policy: Option<PolicyName>,
    /// Who is asked where the policy asks, and for what tools' sources want to know. Default: `terminal` in one, else
    /// `nobody`.
    #[arg(long, value_name = "WHOM")]
    pub(crate) ask: Option<AskName>,
    /// When the calls of an answer start. Default: `defaults.dispatch`, else `turn-end`.
    #[arg(long, value_name = "WHEN")]
    pub(crate) dispatch: Option<DispatchName>,
    /// Tools that the agent gets, as globs on ids or wire names (repeatable). Default: all.
    #[arg(long, value_name = "GLOB")]
    pub(crate) tools: Vec<String>,
    /// How the tools are put before the model. Default: as configured for the model, else `selection.exposure`,
    /// else `auto`.
    #[arg(long, value_name = "HOW")]
    pub(crate) exposure: Option<ExposureName>,
    /// Model answers in one task.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_turns: Option<u32>,
    /// Tool calls in one task.
    #[arg(long, value_name = "N")]
    pub(crate) max_calls: Option<u32>,
    /// Time for one task, like 10m.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_time: Option<std::time::Duration>,
    /// Input and output tokens of one task together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tokens: Option<u64>,
    /// Tokens the model takes in; older results give way to what is new. Default: as configured for the model.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) window: Option<usize>,
    /// Replaces the opening of the system prompt.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Writes the whole exchange to this file as JSON lines.
    #[arg(long, value_name = "FILE")]
    pub(crate) transcript: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) record: Record,
}

#[derive(Debug, Args)]
pub(crate) struct Record {
    /// Writes every request to a model with its answer to this file, a line each, without secrets. The model
    /// replay:FILE gives these answers again, and asks nobody.
    #[arg(long = "record", value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The task; `-` reads it from standard input.
    #[arg(required_unless_present = "resume")]
    pub(crate) task: Option<String>,
    /// Goes on with a run that was interrupted, with its model, tools, system prompt and limits; its id
    /// was printed when it began.
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = [
            "task", "model", "effort", "dispatch", "tools", "exposure", "window", "system", "max_turns", "max_calls", "max_time", "max_tokens",
            "format", "output_schema",
        ]
    )]
    pub(crate) resume: Option<String>,
    /// Has the run end with a final report in this format.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<ReportFormat>,
    /// File with the JSON Schema of the answer, which is JSON then.
    #[arg(long, value_name = "FILE")]
    pub(crate) output_schema: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) agent: Agent,
}

#[derive(Debug, Args)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) agent: Agent,
}

#[derive(Debug, Args)]
pub(crate) struct Call {
    /// Wire name, id, alias, or a bare name that only one tool has.
    pub(crate) tool: String,
    /// Arguments: one JSON object, `-` for JSON on standard input, or key=value pairs.
    #[arg(value_name = "JSON|-|KEY=VALUE")]
    pub(crate) arguments: Vec<String>,
    /// Limit of the call, like 30s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<std::time::Duration>,
    /// Cuts the text of the result to this many bytes. Default: `defaults.whole_result_max_bytes`, 16 MiB.
    ///
    /// The rest is stored for output__read, and the result says so.
    #[arg(long, value_name = "BYTES", value_parser = RangedU64ValueParser::<usize>::new())]
    pub(crate) max_output: Option<usize>,
    /// Makes the call a job: its id is printed at once, and the program stays until the job is over.
    #[arg(long)]
    pub(crate) background: bool,
    /// Who answers what the tool's source asks in the middle of the call: forms, pages, and whether it may ask a model.
    /// Default: `terminal` in one, else `nobody`.
    #[arg(long, value_name = "WHOM")]
    pub(crate) ask: Option<AskName>,
    /// The one model that an LLM-backed tool asks, provider/model. Default: those of the tool, else `models.default`,
    /// else what the environment offers.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    pub(crate) model: Option<String>,
    /// How much the model of an LLM-backed tool thinks before it answers. Default: as the tool says, else as configured for
    /// the model.
    #[arg(long, value_name = "HOW_MUCH", value_parser = effort())]
    pub(crate) effort: Option<Effort>,
    /// The mode in which an LLM-backed tool asks, where it has several.
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    #[command(flatten)]
    pub(crate) record: Record,
}

#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// Tool of the catalogue: wire name, id, alias or bare name.
    #[arg(long, value_name = "TOOL", required_unless_present = "schema", conflicts_with = "schema")]
    pub(crate) tool: Option<String>,
    /// File with a JSON Schema; no configuration is read, and any JSON value may be checked.
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,
    /// Draft of a schema that names none. Default: the newest in which it compiles.
    #[arg(long, value_name = "DRAFT", conflicts_with = "tool")]
    pub(crate) draft: Option<DraftName>,
    /// With a schema, too, mends values of the wrong type, as for a tool.
    #[arg(long, conflicts_with = "tool")]
    pub(crate) coerce: bool,
    /// Leaves values of the wrong type as they are. Default with a schema.
    #[arg(long, conflicts_with = "coerce")]
    pub(crate) no_coerce: bool,
    /// Arguments as JSON, broken as it may be; `-` reads them from standard input. Default: `{}`.
    #[arg(value_name = "ARGS|-", allow_negative_numbers = true)]
    pub(crate) arguments: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Encode {
    /// The model API.
    #[arg(long, value_name = "API")]
    pub(crate) api: ApiName,
    /// File with the tools, `-` for standard input: JSON or JSON lines of {name, description, parameters}.
    #[arg(long, value_name = "FILE|-")]
    pub(crate) tools: PathBuf,
    /// Asks for strict decoding of the tools that do not say: where the API has it, and the strict schema
    /// says the same.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Decode {
    /// What the input is: an answer of a model API (a JSON body, server-sent events, or one event a line),
    /// a text in a format for tool calls, `auto` for whichever it is in, or `arguments`, one JSON text that
    /// may be broken.
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(crate::develop::decode::formats()))]
    pub(crate) format: String,
    /// The model that wrote it; with `auto`, its format where that is known.
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// File with the tools that were shown, as for `encode`: they type values and give back changed names.
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// The tools were encoded with --strict.
    #[arg(long, requires = "tools")]
    pub(crate) strict: bool,
    /// Feeds this many bytes at a time. Default: all at once.
    #[arg(long, value_name = "BYTES", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) chunk: Option<usize>,
    /// What the prompt already opened in the model's turn, like `<think>`.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prefix: Option<String>,
    /// What becomes of reasoning in a text.
    #[arg(long, value_name = "split|keep", default_value = "split")]
    pub(crate) reasoning: ReasoningName,
    /// The input has one JSON string a line; each gets its own line of answer.
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// File with the input. Default: standard input.
    #[arg(value_name = "FILE|-")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Name; it becomes the prefix of the server's tools.
    pub(crate) name: String,
    /// Address of a server that speaks streamable HTTP.
    #[arg(long, conflicts_with = "command")]
    pub(crate) url: Option<String>,
    /// Header of every request (repeatable).
    #[arg(long, value_name = "NAME: VALUE", requires = "url")]
    pub(crate) header: Vec<String>,
    /// Environment of the process (repeatable).
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "url")]
    pub(crate) env: Vec<String>,
    /// Folder the process runs in.
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub(crate) cwd: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Program and arguments of a server that speaks on its standard streams.
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

/// Where entries are written, and what becomes of secrets in them.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Writes your own configuration, which holds in every folder: toolwright/toolwright.yaml in $XDG_CONFIG_HOME, else in
    /// ~/.config. Default: the file of --config, else toolwright.yaml in the current folder.
    #[arg(long)]
    pub(crate) user: bool,
    /// Leaves tokens and passwords in the configuration. Default: the entry names a variable, and its value goes to
    /// secrets.env beside your own configuration, which only you can read.
    #[arg(long)]
    pub(crate) inline_secrets: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The client, or `openapi`.
    pub(crate) source: SourceName,
    /// Its file. Default: where the client keeps it. Of `openapi` the document: a file, or an http(s) address.
    #[arg(value_name = "FILE|URL")]
    pub(crate) file: Option<PathBuf>,
    /// Only shows what would be added.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) document: DocumentOptions,
}

/// What only `openapi` has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of `openapi`")]
pub(crate) struct DocumentOptions {
    /// Namespace of the tools. Default: the document's file name or host.
    #[arg(long, value_name = "NAME")]
    pub(crate) prefix: Option<String>,
    /// Only operations with this tag, as a glob (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub(crate) tag: Vec<String>,
    /// Only operations of this method (repeatable).
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Vec<String>,
    /// Address of the API, instead of the document's servers.
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,
    /// Groups the tools by their first tag.
    #[arg(long)]
    pub(crate) group_by_tag: bool,
}

impl DocumentOptions {
    /// The first of them that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--prefix", self.prefix.is_some()),
            ("--tag", !self.tag.is_empty()),
            ("--method", !self.method.is_empty()),
            ("--base-url", self.base_url.is_some()),
            ("--group-by-tag", self.group_by_tag),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Prints the JSON Schema of toolwright.yaml.
    Schema,
    /// Prints the configuration with all layers laid together, secrets masked.
    Show,
}
