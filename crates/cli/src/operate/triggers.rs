//! `triggers ls | add | rm | fire | next`: manages the triggers of runs.

use clap::Subcommand;
use serde_json::{Map, Value, json};
use toolwright::Toolwright;
use toolwright::core::duration::iso;
use toolwright::core::error::ErrorKind;
use toolwright::core::model::ModelClient as _;
use toolwright::core::pattern::nearest;
use toolwright::core::store::StoreError;
use toolwright::core::trigger::{
    Creator, Firing, Target, Trigger, TriggerConfig, TriggerKind, TriggerRequest, Triggers as _,
};
use toolwright::models::key_variable;

use crate::app::agent::unknown;
use crate::app::{GlobalOptions, not_nested, open};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::screen::{print_json, say, say_warning};
use crate::terminal::table::{Table, name, print_list};

/// Keys whose values are numbers, and those with lists.
const NUMBERS: [&str; 2] = ["every", "hourly_at"];
const LISTS: [&str; 2] = ["globs", "secret_env"];

/// Most similar ids that the error for an unknown id names.
const MAX_SUGGESTIONS: usize = 3;

/// The processes that install the triggers of the configuration.
const INSTALLS: &str = "`toolwright serve` and `toolwright chat` do that when they start";

#[derive(Debug, Subcommand)]
pub(crate) enum TriggersCommand {
    /// List triggers and their latest firings.
    Ls {
        /// Most firings to list for each trigger.
        #[arg(long, default_value_t = 3, value_name = "N")]
        firings: usize,
        /// Lists the triggers of all workspaces.
        #[arg(long)]
        all: bool,
    },
    /// Add a trigger to this workspace.
    Add {
        /// What makes it fire: timer, schedule, channel, file or webhook.
        #[arg(value_name = "TYPE", value_parser = kind)]
        kind: TriggerKind,
        /// The keys of an entry of `triggers`, as in the configuration: `prompt`, `interval`, `daily_at`, `globs`, …
        #[arg(required = true, value_name = "KEY=VALUE")]
        keys: Vec<String>,
    },
    /// Remove triggers. Runs that they have started continue.
    Rm {
        /// The triggers.
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Fire a trigger now. A process that runs triggers starts its run.
    Fire {
        /// The trigger.
        id: String,
    },
    /// Show when triggers fire next.
    Next {
        /// The trigger. Default: all of this workspace.
        id: Option<String>,
        /// Most times to show for each trigger.
        #[arg(long, default_value_t = 5, value_name = "N")]
        count: usize,
    },
}

fn kind(text: &str) -> Result<TriggerKind, String> {
    TriggerKind::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| {
        let all: Vec<_> = TriggerKind::ALL.into_iter().map(TriggerKind::as_str).collect();
        format!("it is one of {}", all.join(", "))
    })
}

pub(crate) async fn command(global: &GlobalOptions, command: &TriggersCommand) -> CommandResult {
    match command {
        TriggersCommand::Ls { .. } | TriggersCommand::Next { .. } => {}
        TriggersCommand::Add { .. } => not_nested("add a trigger")?,
        TriggersCommand::Rm { .. } => not_nested("remove a trigger")?,
        TriggersCommand::Fire { .. } => not_nested("fire a trigger")?,
    }
    let app = open(global).await?;
    let done = answer(global, command, &app).await;
    app.shut_down().await;
    done
}

async fn answer(global: &GlobalOptions, command: &TriggersCommand, app: &Toolwright) -> CommandResult {
    let triggers = app.triggers();
    match command {
        TriggersCommand::Ls { firings, all } => {
            let (list, installed) = listed_triggers(app, *all).await?;
            let mut shown = Vec::with_capacity(list.len());
            for trigger in list {
                let latest = triggers.firings(Some(&trigger.id), *firings).await.map_err(Failure::failed)?;
                shown.push((trigger, latest));
            }
            let documents = shown.iter().enumerate().map(|(index, (trigger, latest))| {
                let mut document = trigger.to_json();
                document["installed"] = (index < installed).into();
                document["firings"] = latest.iter().map(Firing::to_json).collect();
                document["next"] = times(&triggers.next(trigger, 1));
                if let Err(why) = app.principal_now(&trigger.rights.principal) {
                    document["issue"] = why.to_string().into();
                }
                document
            });
            print_list(global.json, documents.collect(), &table(app, &shown), "no triggers")?;
            for (trigger, _) in &shown {
                if let Err(why) = app.principal_now(&trigger.rights.principal) {
                    say_warning(&format!("trigger {} fires nothing: {why}", trigger.id));
                }
            }
            for (trigger, _) in shown.iter().skip(installed) {
                say_warning(&format!("trigger {} is not installed yet: {INSTALLS}", trigger.id));
            }
        }
        TriggersCommand::Add { kind, keys } => {
            let config = config(*kind, keys)?;
            if let Some(agent) = config.agent.as_deref().filter(|agent| app.config().agent(agent).is_none()) {
                return Err(unknown(&app.config(), agent));
            }
            if let Some(model) = &config.model
                && let Err(why) = app.models().ready(model).await
            {
                // The process that runs it may have a key that this one lacks.
                let provider = model.split_once('/').map_or("", |(provider, _)| provider);
                if key_variable(provider).is_none() {
                    return Err(Failure::usage(why));
                }
                say_warning(&format!("its firings fail where this is not set: {why}"));
            }
            let request = TriggerRequest {
                id: None,
                config,
                target: Target::Run,
                rights: app.owners_rights(),
                creator: Creator::Owner,
            };
            let installed = triggers.install(request).await.map_err(|error| match error.kind() {
                ErrorKind::InvalidParameters => Failure::usage(error),
                _ => Failure::failed(error),
            })?;
            if let Some(why) = app.missing_secret(&installed.trigger.config) {
                say_warning(&why);
            }
            let mut document = installed.trigger.to_json();
            document["next"] = times(&installed.next);
            if global.json {
                print_json(&document)?;
            }
            say(installed.trigger.line());
            if !installed.is_run {
                say_warning("no process runs triggers now: `toolwright serve` and `toolwright chat` do");
            }
        }
        TriggersCommand::Rm { ids } => {
            let configured = app.configured_triggers();
            if let Some(id) = ids.iter().find(|id| configured.iter().any(|trigger| trigger.id == **id)) {
                return Err(Failure::usage(format!(
                    "{id} is defined in the configuration, which would install it again: remove it there; nothing was \
                     removed"
                )));
            }
            let mut missing = Vec::new();
            for id in ids {
                if triggers.remove(id, None).await.map_err(Failure::failed)? {
                    say(format_args!("{id} is removed"));
                } else {
                    missing.push(id.as_str());
                }
            }
            if let Some(id) = missing.first() {
                return Err(not_found(app, &missing.join(", "), id).await);
            }
            if global.json {
                print_json(&json!({"removed": ids}))?;
            }
        }
        TriggersCommand::Fire { id } => {
            let (list, installed) = listed_triggers(app, false).await?;
            if list.iter().skip(installed).any(|trigger| trigger.id == *id) {
                return Err(Failure::failed(format!("{id} is not installed yet: {INSTALLS}")));
            }
            let firing = match triggers.fire(id).await {
                Err(StoreError::NotFound(_)) => return Err(not_found(app, id, id).await),
                fired => fired.map_err(Failure::failed)?,
            };
            if global.json {
                print_json(&firing.to_json())?;
            }
            say(format_args!("{id} fires: run {}", firing.run_id()));
            if !triggers.has_runner().await.map_err(Failure::failed)? {
                say_warning("no process runs triggers now: `toolwright serve` and `toolwright chat` do");
            }
        }
        TriggersCommand::Next { id, count } => {
            let (mut list, _) = listed_triggers(app, id.is_some()).await?;
            if let Some(id) = id {
                list.retain(|trigger| trigger.id == *id);
                if list.is_empty() {
                    return Err(not_found(app, id, id).await);
                }
            }
            let next: Vec<_> = list.iter().map(|trigger| (trigger, triggers.next(trigger, *count))).collect();
            let documents = next.iter().map(|(trigger, next)| json!({"trigger": trigger.id, "next": times(next)}));
            let mut table = Table::new(["trigger", "fires", "next"]);
            for (trigger, next) in &next {
                for slot in next {
                    table.row([name(&trigger.id), trigger.config.describe().into(), iso(*slot).into()]);
                }
            }
            return print_list(global.json, documents.collect(), &table, "no trigger here fires by time");
        }
    }
    Ok(Exit::Ok)
}

/// Returns the triggers of this workspace or of all: those of the store, then those of the configuration that are not
/// installed. Also returns the number of the former.
async fn listed_triggers(app: &Toolwright, all: bool) -> Result<(Vec<Trigger>, usize), Failure> {
    let of = app.triggers();
    let list = if all { of.list(None).await } else { of.of_root(&app.config().root).await };
    let mut list = list.map_err(Failure::failed)?;
    let installed = list.len();
    let mut configured = app.configured_triggers();
    configured.retain(|trigger| list.iter().all(|installed| installed.id != trigger.id));
    list.extend(configured);
    Ok((list, installed))
}

fn times(slots: &[u64]) -> Value {
    slots.iter().map(|slot| iso(*slot)).collect()
}

fn table(app: &Toolwright, triggers: &[(Trigger, Vec<Firing>)]) -> Table {
    let mut table = Table::new(["trigger", "fires", "next", "latest", "prompt"]);
    for (trigger, firings) in triggers {
        let next = app.triggers().next(trigger, 1).first().map(|slot| iso(*slot)).unwrap_or_default();
        let latest = firings.first().map(|firing| format!("{} {}", iso(firing.due_ms), firing.state.as_str()));
        table.row([
            name(&trigger.id),
            trigger.config.describe().into(),
            next.into(),
            latest.unwrap_or_default().into(),
            (&trigger.config.prompt).into(),
        ]);
    }
    table
}

/// Parses a trigger from `KEY=VALUE`.
fn config(kind: TriggerKind, keys: &[String]) -> Result<TriggerConfig, Failure> {
    let mut written = Map::new();
    for pair in keys {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("`{pair}` is no KEY=VALUE; write it like interval=10m")))?;
        if NUMBERS.contains(&key) && value.trim().parse::<u32>().is_err() {
            return Err(Failure::usage(format!("`{key}` is a whole number of minutes, not `{value}`")));
        }
        written.insert(key.to_owned(), typed(key, value));
    }
    written.entry("prompt").or_insert_with(|| "".into());
    written.insert("type".into(), kind.as_str().into());
    TriggerConfig::parse(&written).map_err(Failure::usage)
}

/// Parses the value of a key by the key's type.
fn typed(key: &str, text: &str) -> Value {
    let json = || serde_json::from_str::<Value>(text).ok();
    let read = match key {
        _ if NUMBERS.contains(&key) => json(),
        _ if LISTS.contains(&key) => {
            json().filter(Value::is_array).or_else(|| Some(text.split(',').map(str::trim).collect()))
        }
        "immediate" | "catch_up" => json(),
        _ => None,
    };
    read.unwrap_or_else(|| text.into())
}

/// Returns the error for an unknown trigger, with similar ids: those that begin with `id`, else the nearest.
async fn not_found(app: &Toolwright, what: &str, id: &str) -> Failure {
    let list = match listed_triggers(app, true).await {
        Ok((list, _)) => list,
        Err(failure) => return failure,
    };
    let ids = || list.iter().map(|trigger| trigger.id.as_str());
    let mut near: Vec<&str> = ids().filter(|known| !id.is_empty() && known.starts_with(id)).collect();
    if near.is_empty() {
        near.extend(nearest(id, ids()));
    }
    let near: Vec<String> = near.into_iter().take(MAX_SUGGESTIONS).map(|id| format!("`{id}`")).collect();
    let remedy = match near.is_empty() {
        true => "`toolwright triggers ls --all` lists them".to_owned(),
        false => format!("did you mean {}?", near.join(" or ")),
    };
    Failure::not_found(format!("trigger {what} was not found; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_by_what_they_are() {
        let check = |kind, keys: &[&str], expect: Value| {
            let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
            let read = config(kind, &keys).map(|config| serde_json::to_value(config).expect("JSON"));
            assert_eq!(read.map_err(|failure| failure.message), Ok(expect), "{keys:?}");
        };
        check(
            TriggerKind::Timer,
            &["interval=10m", "prompt=5", "immediate=true"],
            json!({"type": "timer", "prompt": "5", "interval": "10m", "immediate": true}),
        );
        check(
            TriggerKind::Schedule,
            &["every=5", "prompt=a=b", "catch_up={\"all\": 3}"],
            json!({"type": "schedule", "prompt": "a=b", "every": 5, "catch_up": {"all": 3}}),
        );
        check(
            TriggerKind::File,
            &["globs=a/*, b/*", "prompt=p"],
            json!({"type": "file", "prompt": "p", "globs": ["a/*", "b/*"]}),
        );
        for (word, expect) in [
            ("interval", "write it like interval=10m"),
            ("intrval=1m", "did you mean `interval`?"),
            ("zzz=1", "the keys are "),
            ("every=-3", "`every` is a whole number of minutes, not `-3`"),
        ] {
            let said = config(TriggerKind::Timer, &[word.to_owned()]).map_err(|failure| failure.message);
            assert!(said.as_ref().is_err_and(|said| said.contains(expect)), "{word}: {said:?}");
        }
    }
}
