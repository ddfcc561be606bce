//! `mcp`: logs in to MCP servers, logs out, and shows who is logged in.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use clap::Subcommand;
use serde_json::{Value, json};
use toolwright::app::authorization;
use toolwright::config::{Config, Server};
use toolwright::core::duration;
use toolwright::core::pattern::nearest;
use toolwright::mcp::client::McpTransport;
use toolwright::oauth::{Consent, LoginState, OAuth, OAuthOptions, Revocation};
use toolwright::runtime::SecretRedactor;
use url::Url;

use crate::app::{GlobalOptions, now_ms, usable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::console::Console;
use crate::terminal::screen::{BOLD, DIM, is_interactive, open_page, print_json, redact_with, sanitize, say, styled};
use crate::terminal::table::{Cell, Table, name, print_list};

#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// List the MCP servers, and where you are logged in.
    Ls,
    /// Log in at a server: open its login page in the browser, and keep the tokens.
    #[command(
        after_long_help = "Tokens are kept in the state directory (oauth/), readable by you alone, and refreshed by \
                            themselves.\nOn a machine without a browser open the page elsewhere, and paste the \
                            address that it ends at."
    )]
    Login {
        /// The server's name in the configuration.
        server: String,
        /// Also requests this scope (repeatable).
        #[arg(long = "scope", value_name = "SCOPE")]
        scopes: Vec<String>,
        /// Only prints the address of the login page.
        #[arg(long)]
        no_browser: bool,
    },
    /// Forget the login and the registration at a server, and revoke the token if the server supports that.
    Logout {
        /// The server's name in the configuration.
        server: String,
    },
}

pub(crate) async fn command(global: &GlobalOptions, command: &McpCommand) -> CommandResult {
    let settings = usable(global)?;
    let redactor = Arc::new(SecretRedactor::default());
    redactor.add(settings.secrets.iter().cloned());
    redact_with(&redactor);
    match command {
        McpCommand::Ls => list(global, &settings, &redactor).await,
        McpCommand::Login { server, scopes, no_browser } => {
            let parts = parts(&settings, &redactor, server)?;
            let browser = if *no_browser { Browser::Never } else { Browser::Tried };
            let terminal = TerminalConsent { browser, console: Console::default() };
            let oauth = OAuth::new(OAuthOptions { consent: Some(Arc::new(terminal)), ..parts });
            let state = oauth.login(scopes).await.map_err(Failure::failed)?;
            if global.json {
                print_json(&row(server, &state))?;
            } else {
                say(format_args!("logged in at {}: {}", styled(BOLD, sanitize(server)), sanitize(&described(&state))));
            }
            Ok(Exit::Ok)
        }
        McpCommand::Logout { server } => {
            let done = OAuth::new(parts(&settings, &redactor, server)?).logout().await.map_err(Failure::failed)?;
            let kept_there = token_still_valid_reason(&done.revocation);
            if global.json {
                let revoked = done.revocation == Revocation::Revoked;
                print_json(&json!({
                    "server": server, "removed": done.removed, "revoked": revoked, "reason": kept_there,
                }))?;
            } else if !done.removed {
                say(format_args!("there was no login at {}", sanitize(server)));
            } else if let Some(reason) = kept_there {
                let reason = sanitize(&reason);
                say(format_args!(
                    "the login at {} is forgotten here; its token stays valid until it expires: {reason}",
                    sanitize(server)
                ));
            } else if done.revocation == Revocation::Revoked {
                say(format_args!("the login at {} is forgotten here and revoked there", sanitize(server)));
            } else {
                say(format_args!("the login at {} is forgotten", sanitize(server)));
            }
            Ok(Exit::Ok)
        }
    }
}

/// Returns why a token may still be usable after a logout.
fn token_still_valid_reason(revocation: &Revocation) -> Option<String> {
    match revocation {
        Revocation::NoToken | Revocation::Revoked => None,
        Revocation::NotOffered => Some("its authorization server does not take tokens back".to_owned()),
        Revocation::Failed(reason) => Some(reason.clone()),
    }
}

/// Returns the OAuth options of the server of that name.
fn parts(settings: &Config, redactor: &Arc<SecretRedactor>, name: &str) -> Result<OAuthOptions, Failure> {
    let Some(server) = settings.servers.iter().find(|server| server.entry == name || server.namespace == name) else {
        let near = nearest(name, settings.servers.iter().map(|server| server.entry.as_str()));
        let remedy = near.map_or("`toolwright mcp ls` shows them".into(), |near| format!("did you mean `{near}`?"));
        return Err(Failure::not_found(format!("no MCP server is called {name}; {remedy}")));
    };
    authorization(server, settings, redactor).ok_or_else(|| Failure::usage(no_login_needed(server)))
}

/// Returns why there is nothing to log in to.
fn no_login_needed(server: &Server) -> String {
    let name = &server.entry;
    match server.config.transport.url() {
        None => format!("{name} is a program on this machine: it takes its keys from `env`"),
        Some(_) => {
            format!("{name} has no OAuth: its configuration has `headers.Authorization`, or switches `oauth` off")
        }
    }
}

async fn list(global: &GlobalOptions, settings: &Config, redactor: &Arc<SecretRedactor>) -> CommandResult {
    let (mut rows, mut table) = (Vec::new(), Table::new(["server", "address", "login"]));
    for server in &settings.servers {
        let state = match authorization(server, settings, redactor) {
            Some(parts) => Some(OAuth::new(parts).login_state().await),
            None => None,
        };
        let (mut value, text) = match &state {
            Some(Ok(state)) => (row(&server.entry, state), described(state)),
            Some(Err(error)) => (json!({"server": server.entry, "error": error.to_string()}), error.to_string()),
            None => (json!({"server": server.entry}), "needs no login here".to_owned()),
        };
        let address = match &server.config.transport {
            McpTransport::Stdio { command, .. } => command.clone(),
            other => safe_url(other.url().unwrap_or_default()),
        };
        value["address"] = json!(address);
        table.row([name(&server.entry), (&address).into(), Cell::of(DIM, &text)]);
        rows.push(value);
    }
    print_list(global.json, rows, &table, "the configuration has no MCP servers; `toolwright add` adds one")
}

/// Returns an address without possible secrets.
fn safe_url(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return String::new() };
    url.set_query(None);
    // These fail only for addresses that cannot have credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

fn row(server: &str, state: &LoginState) -> Value {
    json!({
        "server": server,
        "logged_in": state.token.is_some(),
        "authorization_server": state.issuer,
        "client_id": state.client,
        "scopes": state.token.as_ref().map(|token| &token.scopes),
        "expires_at": state.token.as_ref().and_then(|token| token.expires_at),
        "renewable": state.token.as_ref().map(|token| token.renewable),
        "wanted_scopes": state.wanted_scopes,
    })
}

/// Describes the state of a login.
fn described(state: &LoginState) -> String {
    let Some(token) = &state.token else { return "not logged in".to_owned() };
    let mut words = match (token.expires_at.map(remaining), token.renewable) {
        (Some(None), false) => "the login has ended".to_owned(),
        (_, true) => "refreshed by itself".to_owned(),
        (Some(Some(rest)), false) => format!("for {}", duration::format(rest)),
        (None, false) => "until the server ends it".to_owned(),
    };
    if !token.scopes.is_empty() {
        words = format!("{words}; scopes {}", token.scopes.join(" "));
    }
    if !state.wanted_scopes.is_empty() {
        words = format!("{words}; it asked for {} since: log in again", state.wanted_scopes.join(" "));
    }
    words
}

/// Returns the time until a moment in seconds since 1970; `None` if it has passed.
fn remaining(end: u64) -> Option<Duration> {
    end.checked_sub(now_ms() / 1000).filter(|rest| *rest > 0).map(Duration::from_secs)
}

/// How a browser is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Browser {
    Tried,
    Never,
}

/// Asks the person at the terminal.
struct TerminalConsent {
    browser: Browser,
    console: Console,
}

#[async_trait]
impl Consent for TerminalConsent {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        say(format_args!("log in at this page:\n{url}"));
        if self.browser == Browser::Tried && !open_page(url) {
            say("no browser could be opened: open it yourself");
        }
        if !is_interactive() {
            return Ok(None);
        }
        let prompt = "waiting for the page; if it ends at an address that does not open, paste that here: ";
        while let Some(line) = self.console.ask(prompt).await {
            match Url::parse(line.trim()) {
                Ok(url) => return Ok(Some(url)),
                Err(_) => say("that is not an address"),
            }
        }
        Ok(None)
    }
}
