//! `config schema`, `config show`, and the configuration messages of every command.

use std::path::PathBuf;

pub(crate) use toolwright::config::variable;
use toolwright::config::{Config, LoadOptions, Severity, json_schema, load};

use crate::app::trust;
use crate::args::{ConfigCommand, Global};
use crate::exit::{Done, Exit, Failure};
use crate::terminal::screen::{harmless, print_json, say, say_warning};

/// Where the command line says that the configuration is.
pub(crate) fn options(global: &Global) -> Result<LoadOptions, Failure> {
    Ok(LoadOptions {
        config: global.config.clone(),
        root: global.root.clone(),
        state_dir: global.state_dir.clone(),
        cwd: cwd()?,
        ..LoadOptions::default()
    })
}

/// The current folder.
pub(crate) fn cwd() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| Failure::usage(format!("the current folder cannot be used: {error}")))
}

/// Loads the configuration that the options name.
pub(crate) fn read(global: &Global) -> Result<Config, Failure> {
    Ok(load(&options(global)?, &variable))
}

/// As [`read`], for commands that work with it: problems are said, and one that cannot be used ends
/// the command.
pub(crate) fn usable(global: &Global) -> Result<Config, Failure> {
    let mut config = read(global)?;
    if trust::ask_first(global, &config)? {
        config = read(global)?;
    }
    let (errors, others): (Vec<_>, Vec<_>) =
        config.problems.iter().partition(|problem| problem.severity == Severity::Error);
    for problem in others {
        say_warning(&harmless(&problem.to_string()));
    }
    if errors.is_empty() {
        return Ok(config);
    }
    Err(Failure::usage(errors.iter().map(|problem| harmless(&problem.to_string())).collect::<Vec<_>>().join("\n")))
}

/// Which files hold, in a line.
pub(crate) fn files_in_force(config: &Config) -> String {
    let files: Vec<String> = config.files.iter().map(|file| harmless(&file.display().to_string())).collect();
    if files.is_empty() { "no configuration file, the built-in tools only".to_owned() } else { files.join(", ") }
}

pub(crate) fn command(global: &Global, command: &ConfigCommand) -> Done {
    match command {
        ConfigCommand::Schema => print_json(&json_schema())?,
        ConfigCommand::Show => {
            let config = usable(global)?;
            for file in &config.files {
                say(format_args!("read {}", file.display()));
            }
            print_json(&config.shown())?;
        }
    }
    Ok(Exit::Ok)
}
