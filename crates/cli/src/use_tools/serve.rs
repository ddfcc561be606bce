//! `serve`: runs the gateway on standard streams or HTTP, and says how clients connect. `console`: opens its web console.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use toolwright::app::ReloadChanges;
use toolwright::config::Config;
use toolwright::core::{Cancel, Event, Profile};
use toolwright::gateway::{Expose, HttpError};
use toolwright::{Ask, Error, Toolwright, Transport};

use crate::app::agent::{Record, record};
use crate::app::{GlobalOptions, files_in_force, open, usable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::console::{OnSignal, watch};
use crate::terminal::person::asked_for;
use crate::terminal::screen::{
    DIM, one_line, open_page, print_json, print_text, sanitize, say, say_error, say_warning, styled,
};
use crate::use_tools::tools::MAX_UNREADABLE;
use crate::values::{address, profile_name, serve_ask};

/// How long slow providers are awaited before warnings about the whole catalogue are printed.
const LIST_WAIT: Duration = Duration::from_secs(120);
/// The most characters of a warning.
const MAX_WARNING: usize = 1000;

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Speaks on standard input and output, for clients that start the server.
    #[arg(long, conflicts_with_all = ["http", "token"])]
    pub(crate) stdio: bool,
    /// Listens on this address. Default: `server.http` of the configuration, 127.0.0.1:7117. Port 0 selects a free
    /// port.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) http: Option<SocketAddr>,
    /// Bearer token that clients must send; needed beyond loopback. Without it clients at /mcp need no token, and the
    /// API uses the one in the file `api-token` of the state directory.
    #[arg(long, env = "TOOLWRIGHT_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// The profile that decides calls that no rule matches. Default: `ask`; with --stdio `client`.
    #[arg(long, value_name = "PROFILE", value_parser = profile_name())]
    pub(crate) policy: Option<Profile>,
    /// Who answers when the policy asks. Default: `client` if it can be asked, else `inbox`. With `inbox`, questions of
    /// tools' sources go there too if the owner's client has no forms.
    #[arg(long, value_name = "WHOM", default_value = "client", value_parser = serve_ask())]
    pub(crate) ask: Ask,
    /// How tools are shown to clients that do not choose with `?expose=…`. `direct` lists all tools. `search` lists the
    /// tools of `selection.pinned` and three that find, describe and call the others.
    #[arg(long, value_name = "HOW", default_value = "direct", value_parser = PossibleValuesParser::new(["direct", "search"]).try_map(|how| how.parse::<Expose>()))]
    pub(crate) expose: Expose,
    #[command(flatten)]
    pub(crate) record: Record,
}

pub(crate) async fn command(global: &GlobalOptions, args: &Serve) -> CommandResult {
    let app = open(global).await?;
    record(&app, &args.record)?;
    let config = app.config();
    let shutdown = Cancel::new();
    let serve = serve(&app, args);
    let transport = if args.stdio { Transport::Stdio } else { Transport::Http };
    say_profiles(&config, serve.profile(transport));
    say(format_args!("toolwright: configuration: {}", files_in_force(&config)));
    watch(shutdown.clone(), OnSignal::ShutDown);
    if args.stdio {
        let started = || background(&app, ready(&app, "stdio"));
        serve.until(shutdown).stdio(started).await.map_err(refused)?;
    } else {
        let address = match args.http {
            Some(address) => address.to_string(),
            None => config.sections.server.http.clone(),
        };
        let server = serve.until(shutdown).http(&address).await.map_err(refused)?;
        for webhook in app.unsigned_webhooks().await {
            say_warning(&sanitize(&webhook));
        }
        if let Some(file) = server.token_file() {
            say(format_args!("toolwright: the HTTP API (/api) needs the token in {}", file.display()));
        }
        say(format_args!("toolwright: console: {} (opens once; `toolwright console` makes another)", server.console()));
        let url = server.url();
        let announced = ready(&app, &url);
        if global.json {
            print_json(&json!({"ready": url, "tools": announced}))?;
        }
        for (client, line) in client_lines(&url, server.needs_token()) {
            say(format_args!("{} {line}", styled(DIM, format_args!("{client:>12}:"))));
        }
        background(&app, announced);
        server.wait().await.map_err(refused)?;
    }
    app.shut_down().await;
    Ok(Exit::Ok)
}

/// Returns the gateway configured by the command line and the configuration.
fn serve(app: &Arc<Toolwright>, args: &Serve) -> toolwright::Serve {
    let mut serve = app
        .serve()
        .ask(args.ask)
        .expose(args.expose)
        .on_question(|question| {
            let (tool, id) = (&question.request.tool, &question.id);
            say(format_args!("{tool} waits for your approval: toolwright approvals approve {id}, or deny {id}"));
        })
        .on_form(|form| say(asked_for(form)))
        .on_reload(|reloaded, views| {
            say_reload(reloaded);
            if views.0 {
                say("toolwright: the views changed; clients whose lists change are notified");
            }
        });
    if let Some(profile) = args.policy {
        serve = serve.policy(profile);
    }
    if let Some(token) = &args.token {
        serve = serve.token(token.as_str());
    }
    serve
}

/// Prints the profiles in force, and what runs under each without approval.
fn say_profiles(config: &Config, profile: Profile) {
    say(format_args!("toolwright: {}", unattended_scope(profile)));
    for (name, view) in &config.sections.views {
        if let Some(profile) = view.profile.filter(|own| *own != profile) {
            say(format_args!("toolwright: at /mcp/{name}: {}", unattended_scope(profile)));
        }
    }
}

/// Returns what runs under a profile without approval if no rule matches.
fn unattended_scope(profile: Profile) -> &'static str {
    match profile {
        Profile::Ask => "profile ask: tools that only read run unasked, all others wait for your approval",
        Profile::Workspace => {
            "profile workspace: tools that only read, and writes inside the workspace, run unasked; all others wait for \
             your approval"
        }
        Profile::Client => "profile client: every tool runs unasked, shells too; approving is left to the client",
        Profile::Trusted => "profile trusted: every tool runs unasked, shells too",
        Profile::Owner => "profile owner: every tool runs unasked, shells too",
    }
}

/// Offers the tools that `serve` lists in addition to those of a run: under any profile a question may have to wait as
/// a job, and many clients list tools only once.
pub(crate) async fn as_served(app: &Toolwright) {
    app.catalogue().offer_jobs().await;
}

/// Prints the line that programs wait for. Returns the number of tools in it.
fn ready(app: &Toolwright, address: &str) -> usize {
    let tools = tool_count(app);
    say(format_args!("toolwright: ready {address} {tools} tools"));
    tools
}

fn tool_count(app: &Toolwright) -> usize {
    app.catalogue().snapshot().list().len()
}

fn refused(error: Error) -> Failure {
    match &error {
        Error::Http(HttpError::Exposed(_)) => {
            Failure::usage(format!("{error} (--token, TOOLWRIGHT_TOKEN or server.token)"))
        }
        Error::Http(HttpError::Bind { source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse => {
            Failure::usage(format!(
                "{error}; another program, perhaps another toolwright, listens there: choose another with --http \
                 127.0.0.1:PORT"
            ))
        }
        Error::Http(_) | Error::Usage(_) => Failure::usage(error),
        _ => Failure::failed(error),
    }
}

/// Completes the lists while clients are already served, who were told of `announced` tools.
fn background(app: &Arc<Toolwright>, announced: usize) {
    let listed = Arc::new(AtomicBool::new(false));
    tokio::spawn(report_providers(app.events().subscribe_providers(), Arc::clone(&listed)));
    let listing = Arc::clone(app);
    tokio::spawn(async move {
        listing.list_all(LIST_WAIT).await;
        let tools = tool_count(&listing);
        if tools != announced {
            say(format_args!("toolwright: {tools} tools"));
        }
        // Before the snapshot is taken, so that a change in between is reported twice rather than never.
        listed.store(true, Ordering::Release);
        let snapshot = listing.catalogue().snapshot();
        for issue in snapshot.issues() {
            say_warning(&sanitize(&format!("{}: {}", issue.provider, issue.message)));
        }
        for line in snapshot.providers().iter().flat_map(|provider| provider.unreadable(MAX_UNREADABLE)) {
            say_warning(&sanitize(&line));
        }
    });
}

/// Reports when a provider fails, recovers, or continues with its cached tools. Definitions that pins withhold in first
/// lists are among the issues, which are reported once all are `listed`.
async fn report_providers(mut events: Receiver<Arc<Event>>, listed: Arc<AtomicBool>) {
    let mut failed: HashMap<String, String> = HashMap::new();
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => break,
        };
        match &*event {
            Event::ProviderChanged { provider, error: Some(error), .. } if failed.get(provider) != Some(error) => {
                say_warning(&sanitize(&format!("{provider}: {error}")));
                failed.insert(provider.clone(), error.clone());
            }
            Event::ProviderChanged { provider, tools, error: None } if failed.remove(provider).is_some() => {
                say(format_args!("{provider}: up again, {tools} tools"));
            }
            Event::PinNotice { provider, raw_name, message, .. } if listed.load(Ordering::Acquire) => {
                say_warning(&sanitize(&format!("{provider}: {} is {message}", one_line(raw_name, 100))));
            }
            Event::Warning { message, .. } => say_warning(&one_line(message, MAX_WARNING)),
            _ => {}
        }
    }
}

/// Describes a reload's changes of providers.
fn changes(reloaded: &ReloadChanges) -> String {
    let verbs = [("added", &reloaded.added), ("replaced", &reloaded.changed), ("removed", &reloaded.removed)];
    let mut changes = Vec::new();
    for (verb, names) in verbs.into_iter().filter(|(_, names)| !names.is_empty()) {
        let mut names = names.clone();
        names.sort();
        changes.push(format!("{verb} {}", names.join(", ")));
    }
    if changes.is_empty() { "the providers stay as they are".to_owned() } else { changes.join("; ") }
}

pub(super) fn say_reload(reloaded: &Result<ReloadChanges, Error>) {
    match reloaded {
        Ok(reloaded) => {
            for problem in &reloaded.problems {
                say_warning(&sanitize(&problem.to_string()));
            }
            say(format_args!("toolwright: configuration reloaded: {}", changes(reloaded)));
            if !reloaded.needs_restart.is_empty() {
                say_warning(&format!("a restart is needed for: {}", reloaded.needs_restart.join(", ")));
            }
        }
        Err(error) => say_error(&sanitize(&format!("the running configuration is kept: {error}"))),
    }
}

/// Returns how each known client connects to this server; `token` is whether one is needed.
fn client_lines(url: &str, token: bool) -> Vec<(&'static str, String)> {
    let header = if token { " --header \"Authorization: Bearer $TOOLWRIGHT_TOKEN\"" } else { "" };
    let headers = if token { ", \"headers\": {\"Authorization\": \"Bearer ${env:TOOLWRIGHT_TOKEN}\"}" } else { "" };
    vec![
        ("Claude Code", format!("claude mcp add --transport http toolwright {url}{header}")),
        (
            "Cursor",
            format!("~/.cursor/mcp.json: {{\"mcpServers\": {{\"toolwright\": {{\"url\": \"{url}\"{headers}}}}}}}"),
        ),
        (
            "VS Code",
            format!(
                ".vscode/mcp.json: {{\"servers\": {{\"toolwright\": {{\"type\": \"http\", \"url\": \"{url}\"{headers}}}}}}}"
            ),
        ),
    ]
}

#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// Where the server listens. Default: `server.http` of the configuration, 127.0.0.1:7117.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    http: Option<SocketAddr>,
    /// The server's token, if it was started with one.
    #[arg(long, env = "TOOLWRIGHT_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Only prints the address.
    #[arg(long)]
    print: bool,
}

/// Opens the web console of a running server, or prints its address.
pub(crate) async fn console(global: &GlobalOptions, args: &ConsoleArgs) -> CommandResult {
    let config = usable(global)?;
    let address = match args.http {
        Some(address) => address,
        None => {
            let written = &config.sections.server.http;
            written.parse().map_err(|error| Failure::usage(format!("server.http: `{written}`: {error}")))?
        }
    };
    let link = toolwright::console_link(&config, address, args.token.as_deref()).await.map_err(Failure::usage)?;
    if global.json {
        print_json(&json!({"url": link}))?;
    } else {
        print_text(&link)?;
    }
    if !args.print && !global.json {
        match link.parse() {
            Ok(url) if open_page(&url) => say("toolwright: opened in your browser; the address works once"),
            _ => say("toolwright: no browser could be opened; open the address yourself, it works once"),
        }
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_reload_lists_changes_in_order() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (added, changed, removed, expect) in [
            (&["rest"][..], &["b", "a"][..], &[][..], "added rest; replaced a, b"),
            (&[], &[], &["c", "b", "a"], "removed a, b, c"),
            (&[], &[], &[], "the providers stay as they are"),
        ] {
            let reloaded = ReloadChanges {
                added: names(added),
                changed: names(changed),
                removed: names(removed),
                ..ReloadChanges::default()
            };
            assert_eq!(changes(&reloaded), expect);
        }
    }

    #[test]
    fn client_lines_hold_valid_json_without_secrets() {
        for token in [false, true] {
            for (client, line) in client_lines("http://127.0.0.1:7117/mcp", token) {
                assert_eq!(line.contains("TOOLWRIGHT_TOKEN"), token, "{client}");
                if let Some((_, json)) = line.split_once(": {") {
                    serde_json::from_str::<serde_json::Value>(&format!("{{{json}")).expect(client);
                }
            }
        }
    }
}
