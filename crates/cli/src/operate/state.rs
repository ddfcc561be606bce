//! `state ls | get`: shows the values that calls of a run stored under their `_outputPath`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::core::RunInput;
use toolwright::core::duration::iso;
use toolwright::core::session::SessionId;
use toolwright::core::store::{LogEntry, STATE, state_path};
use toolwright::core::variables::{KnownValue, VariableKind, Variables as _};
use toolwright::runtime::RunVariables;

use crate::app::{GlobalOptions, open};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::screen::{print_json, print_unwrapped, sanitize};
use crate::terminal::table::{Table, name, print_list};

#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// List what was written, oldest first: path, method, call, date.
    Ls {
        #[command(flatten)]
        of: RunSelection,
    },
    /// Print the value at a path, as `†state.PATH` reads it. A text is printed as it is; with --json all values are
    /// JSON.
    Get {
        /// The path: names joined by dots. Numbers select items of an array: `found.0`.
        path: String,
        /// The instance of a run over many inputs. Default: values that all instances share.
        #[arg(long, value_name = "NAME")]
        instance: Option<String>,
        #[command(flatten)]
        of: RunSelection,
    },
}

/// Whose state.
#[derive(Debug, Args)]
pub(crate) struct RunSelection {
    /// The run or plan. Default: the one that wrote last.
    #[arg(long, value_name = "ID")]
    run: Option<String>,
}

pub(crate) async fn command(global: &GlobalOptions, command: &StateCommand) -> CommandResult {
    let app = open(global).await?;
    let done = answer(global, command, &app).await;
    app.shut_down().await;
    done
}

async fn answer(global: &GlobalOptions, command: &StateCommand, app: &Toolwright) -> CommandResult {
    let (StateCommand::Ls { of } | StateCommand::Get { of, .. }) = command;
    let services = app.executor().services();
    let session = match &of.run {
        Some(run) => SessionId::new(run.as_str()),
        None => services.log.last_writer(STATE).await?.ok_or_else(|| {
            Failure::not_found("no run has kept anything: a call does where its schema or its plan has `_outputPath`")
        })?,
    };
    match command {
        StateCommand::Ls { .. } => {
            let mut table = Table::new(["path", "method", "instance", "call", "date", "untrusted"]);
            let mut rows = Vec::new();
            for row in services.log.values(&session, STATE).await? {
                let LogEntry::Value(value) = row.entry else { continue };
                let path = value.path.strip_prefix(STATE).unwrap_or(&value.path).trim_start_matches('.');
                let call = row.author.call.as_ref().map(|call| call.as_str());
                let date = iso(row.at_ms);
                table.row([
                    name(path),
                    value.method.as_str().into(),
                    value.instance.as_deref().unwrap_or_default().into(),
                    call.unwrap_or_default().into(),
                    date.get(..19).unwrap_or(&date).replace('T', " ").into(),
                    value.taint.sources().join(", ").into(),
                ]);
                rows.push(json!({
                    "run": session.as_str(), "path": path, "method": value.method, "instance": value.instance, "call": call,
                    "date": date, "data": value.data, "tainted": value.taint,
                }));
            }
            print_list(global.json, rows, &table, &format!("{} has kept nothing", session.as_str()))
        }
        StateCommand::Get { path, instance, .. } => {
            let written = path.replace('[', ".").replace(']', "");
            let wanted = state_path(&written).ok_or_else(|| {
                Failure::usage(format!("`{path}` is not a path; write names joined by dots, like user.address"))
            })?;
            let steps: Vec<&str> = wanted.split('.').collect();
            let opened = RunVariables::open(&*services.log, &*services.outputs, &session, RunInput::default()).await?;
            let Some(KnownValue { value, .. }) = opened.get(VariableKind::State, &steps, instance.as_deref()) else {
                return Err(Failure::not_found(format!("{} keeps nothing at {wanted}", session.as_str())));
            };
            match value {
                Value::String(text) if !global.json => print_unwrapped(&sanitize(&text))?,
                value => print_json(&value)?,
            }
            Ok(Exit::Ok)
        }
    }
}
