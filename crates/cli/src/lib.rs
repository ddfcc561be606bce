//! The commands of the program `toolwright`: a folder for each group, and shared parts. They are a library, so that the
//! compiler works on them while it still works on the crates below.

mod app;
mod command_line;
mod develop;
mod exit;
mod input;
mod operate;
mod start;
mod terminal;
mod use_tools;
mod values;

use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use serde_json::json;

use app::trust;
use command_line::{Cli, Command};
use develop::codec::{self, Validate};
use develop::{bench, catalogue, eval};
use exit::{CommandResult, Exit, Failure};
use operate::{approvals, jobs, mcp, pins, policy, state, trace, triggers};
use start::edit::{self, Import};
use start::{demo, doctor, import_openapi};
use terminal::{logging, screen};
use use_tools::{agents, call, chat, pick, plan, prompt, run, serve, tools};
use values::ImportSource;

/// Parses the command line and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match command_line::parse() {
        Ok(cli) => cli,
        Err(error) => return not_a_command(&error),
    };
    let keep = match cli.command {
        Command::Doctor => logging::FailureLog::Warnings,
        // The operator of a server must see failures.
        Command::Serve(_) => logging::FailureLog::Failures,
        _ => logging::FailureLog::Nothing,
    };
    logging::start(cli.global.verbose, cli.global.log_format, keep);
    let done = match &cli.command {
        Command::Init => edit::init(&cli.global),
        Command::Agents(command) => agents::command(&cli.global, command),
        Command::Add(add) => edit::add(&cli.global, add),
        Command::Trust(args) => trust::command(&cli.global, args),
        Command::Remove { name } => edit::remove(&cli.global, name),
        Command::Import(import @ Import { source: ImportSource::Client(source), .. }) => {
            edit::import(&cli.global, import, *source)
        }
        Command::Config(command) => app::config(&cli.global, command),
        Command::Encode(encode) => codec::encode(encode),
        Command::Decode(decode) => codec::decode(decode),
        Command::Validate(validate @ Validate { schema: Some(file), .. }) => codec::validate_by_schema(file, validate),
        Command::Validate(Validate { tool: None, .. }) => codec::validate_configuration(&cli.global),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command_line::command(), "toolwright", &mut script);
            let printed = if cli.global.json {
                let script = String::from_utf8_lossy(&script);
                screen::print_json(&json!({"shell": shell.to_string(), "script": script}))
            } else {
                screen::stdout().write_all(&script)
            };
            printed.map(|()| Exit::Ok).map_err(Failure::from)
        }
        Command::DemoServer { sample } => demo::serve(*sample),
        _ => in_runtime(&cli),
    };
    let exit = done.unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            if cli.global.json
                || matches!(
                    cli.command,
                    Command::Encode(_) | Command::Decode(_) | Command::Validate(_) | Command::Policy(_)
                )
            {
                // If standard output is closed, the exit code still tells the caller.
                let _ = screen::print_json(&failure.to_json());
            }
            screen::say_error(&screen::sanitize(&failure.message));
        }
        failure.exit
    });
    ExitCode::from(exit.code())
}

/// Prints help, the version, or the error of an invalid command line.
fn not_a_command(error: &clap::Error) -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).take_while(|word| word != "--").collect();
    let command = words.iter().find(|word| command_line::command().find_subcommand(word).is_some());
    let json = words.iter().any(|word| word == "--json")
        || command.is_some_and(|name| name == "encode" || name == "decode" || name == "validate" || name == "policy");
    let version = error.kind() == ErrorKind::DisplayVersion;
    let document = match error.exit_code() {
        0 if version => Some(json!({"name": "toolwright", "version": env!("CARGO_PKG_VERSION")})),
        0 => None,
        _ => Some(Failure::usage(error.to_string().trim()).to_json()),
    };
    // A failed write is ignored; the exit code stays.
    match document.filter(|_| json) {
        Some(document) => {
            let _ = screen::print_json(&document);
            if error.use_stderr() {
                let _ = error.print();
            }
        }
        None => {
            let _ = error.print();
        }
    }
    ExitCode::from(if error.exit_code() == 0 { Exit::Ok } else { Exit::Usage }.code())
}

/// Runs the commands that need Toolwright.
fn in_runtime(cli: &Cli) -> CommandResult {
    toolwright::sandbox::harden_self();
    // Without control groups, process trees are counted; `doctor` reports which is in use.
    let _ = toolwright::sandbox::use_control_groups();
    let threads = threads(&cli.command, std::thread::available_parallelism().map_or(2, std::num::NonZero::get));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    let done = runtime.block_on(async {
        match &cli.command {
            Command::Serve(serve) => serve::command(&cli.global, serve).await,
            Command::Console(args) => serve::console(&cli.global, args).await,
            Command::Run(run) => run::run(&cli.global, run).await,
            Command::Chat(chat) => chat::chat(&cli.global, chat).await,
            Command::Demo(args) => demo::command(&cli.global, args).await,
            Command::Call(call) => call::command(&cli.global, call).await,
            Command::Tools(tools) => tools::command(&cli.global, tools).await,
            Command::Prompt(command) => prompt::command(&cli.global, command).await,
            Command::Pick(args) => pick::command(&cli.global, args).await,
            Command::Plan(command) => plan::command(&cli.global, command).await,
            Command::Eval(command) => eval::command(&cli.global, command).await,
            Command::Bench(args) => bench::command(&cli.global, args).await,
            Command::State(command) => state::command(&cli.global, command).await,
            Command::Policy(command) => policy::command(&cli.global, command).await,
            Command::Approvals(command) => approvals::command(&cli.global, command).await,
            Command::Catalogue(command) => catalogue::command(&cli.global, command).await,
            Command::Pins(command) => pins::command(&cli.global, command).await,
            Command::Jobs(command) => jobs::command(&cli.global, command).await,
            Command::Triggers(command) => triggers::command(&cli.global, command).await,
            Command::Trace(args) => trace::command(&cli.global, args).await,
            Command::Mcp(command) => mcp::command(&cli.global, command).await,
            Command::Doctor => doctor::command(&cli.global).await,
            Command::Import(import @ Import { source: ImportSource::OpenApi, .. }) => {
                import_openapi::command(&cli.global, import).await
            }
            Command::Validate(validate @ Validate { tool: Some(tool), .. }) => {
                codec::validate_by_tool(&cli.global, tool, validate).await
            }
            Command::Init
            | Command::Agents(_)
            | Command::Add(_)
            | Command::Remove { .. }
            | Command::Trust(_)
            | Command::Import(_)
            | Command::Config(_)
            | Command::Encode(_)
            | Command::Decode(_)
            | Command::Validate(_)
            | Command::DemoServer { .. }
            | Command::Completions { .. } => Ok(Exit::Ok),
        }
    });
    // A blocked system call, such as a read of the terminal, must not delay the exit.
    runtime.shutdown_background();
    done
}

/// Returns the number of runtime threads for a command. A server leaves half of the cores to its clients and sources,
/// which are mostly on the same machine. A server for a single client has one thread, because a call that moves between
/// threads loses its caches. Long computations have their own threads in any case.
fn threads(command: &Command, cores: usize) -> usize {
    match command {
        Command::Serve(serve) if serve.stdio => 1,
        Command::Serve(_) => (cores / 2).clamp(1, 8),
        _ => cores.clamp(2, 8),
    }
}
