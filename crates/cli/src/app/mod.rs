//! The shared parts of commands: the global options, the configuration and its approval, the instance, and an agent on
//! it.

pub(crate) mod agent;
pub(crate) mod lists;
pub(crate) mod trust;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use toolwright::Error;
use toolwright::Toolwright;
use toolwright::app::VariableSource;
pub(crate) use toolwright::config::variable;
use toolwright::config::{Config, LoadOptions, Severity, json_schema, load};
use toolwright::sandbox::is_nested;

use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::logging;
use crate::terminal::screen::{WARN, print_json, redact_with, sanitize, say, say_warning, styled};

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalOptions {
    /// Configuration file that is read instead of all others; it needs no approval. Default: $TOOLWRIGHT_CONFIG.
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
    pub(crate) log_format: logging::LogFormat,
    /// Prints help. `toolwright help COMMAND` prints all of it.
    #[arg(short, long, global = true, action = clap::ArgAction::HelpShort)]
    help: Option<bool>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the JSON Schema of toolwright.yaml.
    Schema,
    /// Print the merged configuration of all files, with secrets masked.
    Show,
}

/// Returns the location of the configuration by the command line.
pub(crate) fn options(global: &GlobalOptions) -> Result<LoadOptions, Failure> {
    Ok(LoadOptions {
        config: global.config.clone(),
        root: global.root.clone(),
        state_dir: global.state_dir.clone(),
        cwd: cwd()?,
        ..LoadOptions::default()
    })
}

/// Returns the current folder.
pub(crate) fn cwd() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| Failure::usage(format!("the current folder cannot be used: {error}")))
}

/// Loads the configuration of the options.
pub(crate) fn read(global: &GlobalOptions) -> Result<Config, Failure> {
    Ok(load(&options(global)?, &variable))
}

/// Like [`read`], for commands that need a usable configuration: reports problems, and fails if it is unusable.
pub(crate) fn usable(global: &GlobalOptions) -> Result<Config, Failure> {
    let mut config = read(global)?;
    if trust::ask_first(global, &config)? {
        config = read(global)?;
    }
    let (errors, others): (Vec<_>, Vec<_>) =
        config.problems.iter().partition(|problem| problem.severity == Severity::Error);
    for problem in others {
        say_warning(&sanitize(&problem.to_string()));
    }
    if errors.is_empty() {
        return Ok(config);
    }
    Err(Failure::usage(errors.iter().map(|problem| sanitize(&problem.to_string())).collect::<Vec<_>>().join("\n")))
}

/// Returns a line with the files in force.
pub(crate) fn files_in_force(config: &Config) -> String {
    let files: Vec<String> = config.files.iter().map(|file| sanitize(&file.display().to_string())).collect();
    if files.is_empty() { "no configuration file, the built-in tools only".to_owned() } else { files.join(", ") }
}

/// Opens Toolwright on the configuration of the options.
pub(crate) async fn open(global: &GlobalOptions) -> Result<Arc<Toolwright>, Failure> {
    open_config(global, usable(global)?).await
}

/// Like [`open`], on a configuration that a command has changed after [`usable`].
pub(crate) async fn open_config(global: &GlobalOptions, config: Config) -> Result<Arc<Toolwright>, Failure> {
    open_with(options(global)?, config, Box::new(variable)).await
}

/// Opens Toolwright on a configuration loaded with these options and variables.
pub(crate) async fn open_with(
    options: LoadOptions,
    config: Config,
    variables: VariableSource,
) -> Result<Arc<Toolwright>, Failure> {
    let app = Toolwright::open(options, config, variables).await.map_err(|error| match error {
        Error::Config(_) | Error::StateDir(_) => Failure::usage(error),
        _ => Failure::failed(error),
    })?;
    redact_with(app.redactor());
    app.models().on_replay(|replayed| {
        let file = sanitize(&replayed.file);
        say(styled(WARN, format_args!("[replayed from {file}]")));
        if replayed.is_torn {
            say_warning(&format!("{file}: its last line is not whole and left out"));
        }
    });
    if let Some(observation) = logging::observe(app.events()) {
        app.observed_by(observation).await;
    }
    Ok(app)
}

/// Returns the milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Fails in a process that Toolwright started. `what` completes "a process that Toolwright started cannot …".
///
/// # Errors
/// This process was started by a model's shell or a server, directly or indirectly.
pub(crate) fn not_nested(what: &str) -> Result<(), Failure> {
    if is_nested() {
        let message =
            format!("a process that Toolwright started cannot {what}: the owner does, in a terminal of their own");
        return Err(Failure { exit: Exit::Denied, message });
    }
    Ok(())
}

/// Runs `config schema` and `config show`.
pub(crate) fn config(global: &GlobalOptions, command: &ConfigCommand) -> CommandResult {
    match command {
        ConfigCommand::Schema => print_json(&json_schema())?,
        ConfigCommand::Show => {
            let config = usable(global)?;
            for file in &config.files {
                say(format_args!("read {}", file.display()));
            }
            print_json(&config.to_redacted_json())?;
        }
    }
    Ok(Exit::Ok)
}
