//! `pins`: shows which third-party definitions are trusted, and what has changed in the others.

use std::io::Write as _;
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};
use toolwright::config::Config;
use toolwright::core::canonical::ContentHash;
use toolwright::core::duration;
use toolwright::core::pattern::nearest;
use toolwright::core::pins::{Change, ChangeSeverity, Pin, PinMark, PinSource, diff, renamed};
use toolwright::core::store::{PinContracts, PinDecision, PinStore};
use toolwright::core::tool_id::wire_candidate;
use toolwright::{Error, Toolwright};

use crate::app::{GlobalOptions, not_nested, now_ms, open_config, usable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::screen::{
    BAD, BOLD, DIM, WARN, one_line, print_json, print_text, sanitize, say, say_warning, stdout, styled,
};
use crate::terminal::table::{Cell, Table, name, print_list};

/// The name of the decider here.
const OWNER: &str = "owner";
/// Digits of a hash that are shown, which are enough to identify it.
const SHOWN_DIGITS: usize = 12;
/// The most characters of a difference, which core has already cut.
const MAX_LINE: usize = 40_000;

#[derive(Debug, Subcommand)]
pub(crate) enum PinsCommand {
    /// List the pinned tools of all sources or one.
    Ls {
        /// Provider (as `tools show` names it), or a tool: `provider/tool`, id or wire name.
        of: Option<String>,
        /// Lists only tools that have changed or were never approved.
        #[arg(long)]
        waiting: bool,
        /// Lists the sources of all configurations, even removed ones.
        #[arg(long)]
        all_projects: bool,
    },
    /// Show the pinned definition of a tool, and the one that waits for approval.
    Show {
        /// `provider/tool`, id or wire name.
        tool: String,
    },
    /// Show what has changed, dangerous changes first. Exit code 1 if anything has.
    Diff {
        /// A provider or a tool. Default: all.
        of: Option<String>,
    },
    /// Approve and pin the definitions that wait.
    Approve {
        /// A provider or a tool.
        of: String,
        /// Approves only if the definition that waits has this hash. The first 12 digits or more are enough.
        #[arg(long, value_name = "HASH")]
        hash: Option<String>,
    },
    /// Withhold a tool, or all tools of a provider, until they are approved again.
    Revoke {
        /// A provider or a tool.
        of: String,
        /// Applies to the sources of this name in all configurations.
        #[arg(long)]
        all_projects: bool,
    },
    /// Forget a tool, or all tools of a provider, as if they had never been seen.
    Forget {
        /// A provider or a tool.
        of: String,
        /// Applies to the sources of this name in all configurations, even removed ones.
        #[arg(long)]
        all_projects: bool,
    },
}

pub(crate) async fn command(global: &GlobalOptions, command: &PinsCommand) -> CommandResult {
    // A forgotten definition is admitted as if it were new.
    if matches!(command, PinsCommand::Approve { .. } | PinsCommand::Forget { .. }) {
        not_nested("approve definitions")?;
    }
    let mut config = usable(global)?;
    // Without the sources themselves, because Toolwright would otherwise pin new definitions of their cached lists.
    let mut in_force = ConfiguredPins {
        files: std::mem::take(&mut config.pin_scopes),
        sources: take_sources(&mut config),
        pins: Vec::new(),
    };
    let app = open_config(global, config).await?;
    let done = match in_force.read(&app).await {
        Ok(()) => run(global, command, &app, &in_force).await,
        Err(error) => Err(error.into()),
    };
    app.shut_down().await;
    done
}

/// The part of the configuration in force that concerns pins.
struct ConfiguredPins {
    /// Its files.
    files: Vec<String>,
    /// Its sources that can be used at present.
    sources: Vec<PinSource>,
    /// Its pins, by provider and tool.
    pins: Vec<Pin>,
}

impl ConfiguredPins {
    /// Reads the pins of its sources, and of entries in its files that are not sources at present: they may be
    /// disabled, or lack a variable that is set where the gateway runs.
    async fn read(&mut self, app: &Toolwright) -> Result<(), Error> {
        self.pins = app.pins_of(self.sources.clone()).await?;
        let mut others = app.pins().pins(None).await?;
        others.retain(|pin| self.files.contains(&pin.source.scope) && !self.has(&pin.source.provider));
        self.pins.append(&mut others);
        self.pins.sort_by(|a, b| (&a.source, &a.tool).cmp(&(&b.source, &b.tool)));
        Ok(())
    }

    fn has(&self, provider: &str) -> bool {
        self.sources.iter().any(|source| source.provider == provider)
    }
}

/// Removes the sources with pinned definitions from a configuration, and returns them.
fn take_sources(config: &mut Config) -> Vec<PinSource> {
    let servers = config.servers.drain(..).map(|server| (server.namespace, server.defined_in));
    let documents = config.openapi.drain(..).map(|entry| (entry.name, entry.defined_in));
    let catalogues = config.catalogues.drain(..).map(|entry| (entry.namespace, entry.defined_in));
    let sources = servers.chain(documents).chain(catalogues);
    sources.map(|(provider, scope)| PinSource { provider, scope }).collect()
}

async fn run(
    global: &GlobalOptions,
    command: &PinsCommand,
    app: &Toolwright,
    in_force: &ConfiguredPins,
) -> CommandResult {
    let store = &*app.pins();
    match command {
        PinsCommand::Ls { of, waiting, all_projects } => {
            let mut pins = named(app, in_force, of.as_deref(), *all_projects).await?;
            pins.retain(|pin| !waiting || pin.state() != "pinned");
            list(global, &pins, *all_projects)
        }
        PinsCommand::Show { tool } => {
            let pins = named(app, in_force, Some(tool), false).await?;
            let [pin] = &pins[..] else {
                return Err(Failure::usage(format!("{tool} names {} tools; `pins ls {tool}` lists them", pins.len())));
            };
            show(global, pin, &contracts(store, pin).await?)
        }
        PinsCommand::Diff { of } => {
            let mut differing = Vec::new();
            for pin in named(app, in_force, of.as_deref(), false).await?.into_iter().filter(|pin| pin.waiting.is_some())
            {
                let contracts = contracts(store, &pin).await?;
                let changes = changes(&pin, &contracts);
                differing.push((pin, contracts, changes));
            }
            differences(global, &differing)
        }
        PinsCommand::Approve { of, hash } => {
            let pins = named(app, in_force, Some(of), false).await?;
            let waiting: Vec<&Pin> = pins.iter().filter(|pin| pin.waiting.is_some()).collect();
            if waiting.is_empty() {
                return Err(Failure::failed(format!("nothing of {of} waits for approval")));
            }
            let mut decided = Vec::new();
            for pin in waiting {
                let Some(mark) = &pin.waiting else { continue };
                check_hash(pin, mark, hash.as_deref(), of)?;
                // Approves the definition that was just read, not one that a list brings meanwhile.
                let decision = PinDecision::Approve(Some(mark.hash));
                decided.push((pin, decide(store, pin, decision).await?));
            }
            print_decided(global, &decided, "approved")
        }
        PinsCommand::Revoke { of, all_projects } => {
            let pins = named(app, in_force, Some(of), *all_projects).await?;
            decide_all(global, store, &pins, PinDecision::Revoke, "revoked").await
        }
        PinsCommand::Forget { of, all_projects } => {
            let pins = named(app, in_force, Some(of), *all_projects).await?;
            decide_all(global, store, &pins, PinDecision::Forget, "forgotten").await
        }
    }
}

async fn decide_all(
    global: &GlobalOptions,
    store: &dyn PinStore,
    pins: &[Pin],
    decision: PinDecision,
    state: &str,
) -> CommandResult {
    let mut decided = Vec::with_capacity(pins.len());
    for pin in pins {
        decided.push((pin, decide(store, pin, decision).await?));
    }
    print_decided(global, &decided, state)
}

async fn decide(store: &dyn PinStore, pin: &Pin, decision: PinDecision) -> Result<bool, Failure> {
    Ok(store.decide_pin(&pin.source, &pin.tool, decision, OWNER).await?)
}

/// Returns the pins for a name: those of a provider, or of one tool; all without a name. Of the configuration in force,
/// or of all that are stored.
async fn named(
    app: &Toolwright,
    in_force: &ConfiguredPins,
    name: Option<&str>,
    all_projects: bool,
) -> Result<Vec<Pin>, Failure> {
    let every = || async move { app.pins().pins(None).await };
    let pins = match all_projects {
        true => every().await?,
        false => in_force.pins.clone(),
    };
    let Some(name) = name else { return Ok(pins) };
    let found = pins_named(&pins, name);
    if !found.is_empty() {
        return Ok(found);
    }
    let elsewhere = if all_projects { Vec::new() } else { pins_named(&every().await?, name) };
    if let Some(pin) = elsewhere.first() {
        if in_force.has(&pin.source.provider) {
            return Err(Failure::not_found(format!(
                "nothing of `{name}` is pinned here; `toolwright pins ls --all-projects` lists the pins of other \
                 projects"
            )));
        }
        let of =
            scope(pin).map_or_else(|| "another configuration".to_owned(), |file| format!("`{}`", one_line(file, 300)));
        return Err(Failure::not_found(format!(
            "`{name}` is pinned of {of}, and is no source of the configuration in force: decide about it in that project's \
             folder, or with --config; `toolwright pins ls --all-projects` lists all"
        )));
    }
    let names =
        pins.iter().flat_map(|pin| [pin.source.provider.clone(), pin.name(), pin.id.without_version().to_owned()]);
    let names: Vec<String> = names.collect();
    let near = nearest(name, names.iter().map(String::as_str));
    let remedy = near.map_or("`toolwright pins ls` lists all pins".into(), |near| format!("did you mean `{near}`?"));
    Err(Failure::not_found(format!("there is no pin of `{name}`; {remedy}")))
}

fn pins_named(pins: &[Pin], name: &str) -> Vec<Pin> {
    let of_provider: Vec<Pin> = pins.iter().filter(|pin| pin.source.provider == name).cloned().collect();
    match of_provider.is_empty() {
        true => pins.iter().filter(|pin| is_called(pin, name)).cloned().collect(),
        false => of_provider,
    }
}

/// Returns the file that defines its source, if known.
fn scope(pin: &Pin) -> Option<&str> {
    Some(pin.source.scope.as_str()).filter(|scope| !scope.is_empty())
}

fn is_called(pin: &Pin, name: &str) -> bool {
    name == pin.name()
        || name.strip_prefix(&*pin.source.provider).is_some_and(|rest| rest == format!("/{}", pin.waiting_name()))
        || name == pin.id.as_str()
        || name == pin.id.without_version()
        || name == wire_candidate(pin.id.namespace(), &pin.tool)
        || name == wire_candidate(pin.id.namespace(), pin.id.name())
}

async fn contracts(store: &dyn PinStore, pin: &Pin) -> Result<PinContracts, Failure> {
    let contracts = store.pin_contracts(&pin.source, std::slice::from_ref(&pin.tool)).await?;
    Ok(contracts.into_iter().next().unwrap_or_default())
}

/// Returns the changes: of the name, and of the definition if one was approved before.
fn changes(pin: &Pin, contracts: &PinContracts) -> Vec<Change> {
    let name = pin.renamed.as_deref().map(|name| renamed(&pin.tool, name));
    let contract = contracts.approved.as_ref().zip(contracts.waiting.as_ref());
    name.into_iter().chain(contract.into_iter().flat_map(|(approved, waiting)| diff(approved, waiting))).collect()
}

fn check_hash(pin: &Pin, mark: &PinMark, given: Option<&str>, of: &str) -> Result<(), Failure> {
    let Some(given) = given else { return Ok(()) };
    // The hash does not include the name.
    let name = format!("{}/{}", pin.source.provider, pin.waiting_name());
    if pin.renamed.is_some() && of != name {
        let message = format!(
            "{} now waits under the name {}: run `toolwright pins diff`, and give that name",
            pin.name(),
            one_line(&name, 200)
        );
        return Err(Failure::failed(message));
    }
    if given.len() < SHOWN_DIGITS {
        return Err(Failure::usage(format!("give at least {SHOWN_DIGITS} digits of the hash")));
    }
    if mark.hash.to_hex().starts_with(&given.to_ascii_lowercase()) {
        return Ok(());
    }
    let message = format!(
        "{} now waits with another definition, {}: run `toolwright pins diff` again",
        pin.name(),
        short(mark.hash)
    );
    Err(Failure::failed(message))
}

fn list(global: &GlobalOptions, pins: &[Pin], with_scope: bool) -> CommandResult {
    let mut table = Table::new(["definition", "state", "pin"]);
    for pin in pins {
        let style = if pin.state() == "pinned" { DIM } else { WARN };
        let mark = pin.waiting.as_ref().or(pin.approved.as_ref());
        let about = mark.map(|mark| format!("{} {} ago", short(mark.hash), age(mark.at_ms))).unwrap_or_default();
        let by = pin.approved.as_ref().map(|mark| format!(", by {}", mark.by)).unwrap_or_default();
        let of = match (with_scope, scope(pin)) {
            (false, _) => String::new(),
            (true, Some(file)) => format!(", of {}", one_line(file, 300)),
            (true, None) => ", of all that are new".to_owned(),
        };
        let now = pin.renamed.as_deref().map(|name| format!(", at its source now {}", one_line(name, 100)));
        let called = format!("{}{}", one_line(&pin.name(), 100), now.unwrap_or_default());
        table.row([name(called), Cell::of(style, pin.state()), Cell::of(DIM, format_args!("{about}{by}{of}"))]);
    }
    print_list(global.json, pins.iter().map(to_json).collect(), &table, "nothing is pinned")
}

/// Returns an element of `pins ls --json`.
fn to_json(pin: &Pin) -> Value {
    let mut value = pin.to_json();
    value["scope"] = json!(scope(pin));
    value
}

fn show(global: &GlobalOptions, pin: &Pin, contracts: &PinContracts) -> CommandResult {
    if global.json {
        let mut value = to_json(pin);
        value["definition"] = json!(contracts.approved);
        value["waiting_definition"] = json!(contracts.waiting);
        print_json(&value)?;
        return Ok(Exit::Ok);
    }
    list(global, std::slice::from_ref(pin), false)?;
    for (what, definition) in [("pinned", &contracts.approved), ("waits for approval", &contracts.waiting)] {
        if let Some(definition) = definition {
            writeln!(stdout(), "\n{}\n{}", styled(BOLD, what), sanitize(&format!("{definition:#}")))?;
        }
    }
    Ok(Exit::Ok)
}

fn differences(global: &GlobalOptions, differing: &[(Pin, PinContracts, Vec<Change>)]) -> CommandResult {
    let exit = if differing.is_empty() { Exit::Ok } else { Exit::Failed };
    if global.json {
        let row = |(pin, contracts, changes): &(Pin, PinContracts, Vec<Change>)| {
            let mut value = to_json(pin);
            value["changes"] = json!(changes);
            value["old"] = json!(contracts.approved);
            value["new"] = json!(contracts.waiting);
            value
        };
        print_json(&differing.iter().map(row).collect())?;
        return Ok(exit);
    }
    if differing.is_empty() {
        say("every definition is as it was pinned");
    }
    for (pin, contracts, changes) in differing {
        let hash = pin.waiting.as_ref().map(|mark| short(mark.hash)).unwrap_or_default();
        print_text(&format!("{}  {}", styled(BOLD, one_line(&pin.name(), 100)), styled(DIM, hash)))?;
        if contracts.approved.is_none() {
            let name = pin.id.without_version();
            print_text(&format!("  was never approved: `toolwright pins show {name}` shows it"))?;
        }
        for change in changes {
            let mark = match change.weight {
                ChangeSeverity::Danger => styled(BAD, "!"),
                ChangeSeverity::Notable => styled(WARN, "~"),
                ChangeSeverity::Minor => styled(DIM, "·"),
            };
            print_text(&format!("  {mark} {}", one_line(&change.to_string(), MAX_LINE)))?;
        }
        if !changes.is_empty() {
            let hint = format!("  `toolwright pins show {}` shows both as a whole", pin.id.without_version());
            print_text(&styled(DIM, hint))?;
        }
    }
    Ok(exit)
}

fn print_decided(global: &GlobalOptions, decided: &[(&Pin, bool)], state: &str) -> CommandResult {
    let done: Vec<&Pin> = decided.iter().filter(|(_, counts)| *counts).map(|(pin, _)| *pin).collect();
    if global.json {
        let row = |pin: &&Pin| {
            let provider = &pin.source.provider;
            json!({"provider": provider, "scope": scope(pin), "tool": pin.tool, "id": pin.id, "state": state})
        };
        print_json(&done.iter().map(row).collect())?;
    } else {
        done.iter().for_each(|pin| {
            let as_now = pin.renamed.as_deref().filter(|_| state == "approved");
            let name = as_now.map_or_else(|| pin.name(), |name| format!("{}/{name}", pin.source.provider));
            say(format_args!("{} is {state}", one_line(&name, 100)));
        });
    }
    let missed = decided.len() - done.len();
    match missed {
        0 => Ok(Exit::Ok),
        _ if done.is_empty() => {
            Err(Failure::failed(format!("nothing was {state}: it has changed meanwhile, or was {state} already")))
        }
        _ => {
            say_warning(&format!("{missed} were {state} already, or have changed meanwhile"));
            Ok(Exit::Ok)
        }
    }
}

/// Returns a line about definitions that wait for `pins approve`; `None` if there are none.
pub(crate) async fn waiting(app: &Toolwright) -> Option<String> {
    let pins = app.pins_in_force().await.ok()?;
    let waiting: Vec<&Pin> = pins.iter().filter(|pin| pin.waiting.is_some()).collect();
    let named: Vec<String> = waiting.iter().take(3).map(|pin| one_line(&pin.name(), 60)).collect();
    let more = match waiting.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match waiting.len() {
        0 => None,
        1 => Some(format!("1 definition waits for `toolwright pins approve`: {}", named.join(", "))),
        many => Some(format!("{many} definitions wait for `toolwright pins approve`: {}{more}", named.join(", "))),
    }
}

fn short(hash: ContentHash) -> String {
    hash.to_hex().chars().take(SHOWN_DIGITS).collect()
}

fn age(at_ms: u64) -> String {
    duration::format(Duration::from_secs(now_ms().saturating_sub(at_ms) / 1000))
}
