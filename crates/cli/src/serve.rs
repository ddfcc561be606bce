//! `serve`: the gateway on standard streams or HTTP.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use toolwright::House;
use toolwright::agent::tools::{NAMESPACE, batch_provider};
use toolwright::config::typed::{ClientToken, SchemaForm, View, ViewExposure};
use toolwright::config::{Config, profile_of};
use toolwright::core::approval::{Answers, NoApprover};
use toolwright::core::session::Principal;
use toolwright::core::{Approver, Cancel, Event, Policy, Profile};
use toolwright::house::{GatewayHouse, HouseError, Reloaded, api_token, api_token_file, watch as watch_files};
use toolwright::providers::process::peer_process;
use toolwright::runtime::ToolFinder;
use toolwright::server::{
    ApiStores, Client, Elicitation, Expose, Gateway, GatewayOptions, HttpError, HttpOptions, ListedSchemas, Token,
    ViewOptions, serve_http, serve_stdio,
};

use super::approvals::asked_for;
use super::args::{Global, Serve, ServeAskName};
use super::exit::{Done, Exit, Failure};
use super::screen::{DIM, harmless, one_line, print_json, say, say_error, say_warning, styled};
use super::signals::{First, watch};
use super::{config, open, paste, record};

/// How long slow providers are waited for before what is odd about the whole is told.
const LIST_WAIT: Duration = Duration::from_secs(120);
/// Characters of a warning that are said.
const MAX_WARNING: usize = 1000;

pub(crate) async fn command(global: &Global, serve: &Serve) -> Done {
    let settings = config::usable(global)?;
    let house = open(global, settings).await?;
    record(&house, &serve.record)?;
    let settings = house.config();
    if settings.written.server.batch {
        let batch = batch_provider().map_err(Failure::failed)?;
        house.catalogue().add_provider(batch).await.map_err(Failure::failed)?;
        house.catalogue().refresh(NAMESPACE).await;
    }
    let terms = Terms::of(serve);
    if serve.stdio {
        house.roots().expect_client();
    }
    let gateway = gateway(&house, &settings, serve);
    if let Some(name) = gateway.clash() {
        let message = format!("views.{name}: a provider has this name, and both are at /mcp/{name}; rename the view");
        return Err(Failure::usage(message));
    }
    if serve.ask != ServeAskName::Nobody {
        as_served(&house).await;
    }
    house.recover_jobs();
    house.follow_pins();
    let shutdown = Cancel::new();
    watch(shutdown.clone(), First::ShutsDown);
    say_terms(&settings, &terms.policy(&settings));
    say(format_args!("toolwright: configuration: {}", config::files_in_force(&settings)));
    if serve.stdio {
        let announced = ready(&house, "stdio");
        background(&house, &gateway, terms, announced);
        // On a worker of the runtime: what runs on the main thread has to be woken across threads for each message.
        tokio::spawn(serve_stdio(gateway, shutdown))
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| Failure::failed(format!("the client's streams failed: {error}")))?;
    } else {
        let mut options = http_options(serve, &settings)?;
        let with_token = options.token.is_some() || !options.clients.is_empty();
        if options.token.is_none() {
            let token = api_token(&settings.state_dir)
                .map_err(|error| Failure::failed(format!("the token of the HTTP API: {error}")))?;
            house.redactor().add([token.clone()]);
            options.api_token = Token::new(token);
            let file = api_token_file(&settings.state_dir);
            say(format_args!("toolwright: the HTTP API (/api) needs the token in {}", file.display()));
        }
        options.look_up_peer = peer_process;
        options.metrics = Some(house.metrics_source());
        options.stores = ApiStores { inbox: house.inbox(), approvals: house.approvals() };
        let server = serve_http(Arc::clone(&gateway), options, shutdown).await.map_err(refused)?;
        let url = format!("http://{}/mcp", server.addr);
        let announced = ready(&house, &url);
        if global.json {
            print_json(&json!({"ready": url, "tools": announced}))?;
        }
        for (client, line) in paste::lines(&url, with_token) {
            say(format_args!("{} {line}", styled(DIM, format_args!("{client:>12}:"))));
        }
        background(&house, &gateway, terms, announced);
        let serving = tokio::spawn(server.serving).await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        serving.map_err(|error| Failure::failed(format!("the server stopped: {error}")))?;
    }
    house.shut_down().await;
    Ok(Exit::Ok)
}

/// What the command line says about policy.
#[derive(Debug, Clone, Copy)]
struct Terms {
    given: Option<Profile>,
    /// Where neither it nor the configuration says a profile.
    usual: Profile,
}

impl Terms {
    /// Over HTTP anybody on this machine may be the client; the one at standard input was started by its user, and has
    /// an approval screen of its own.
    fn of(serve: &Serve) -> Self {
        let usual = if serve.stdio { Profile::Client } else { Profile::Ask };
        Self { given: serve.policy.map(Profile::from), usual }
    }

    fn policy(self, config: &Config) -> Policy {
        config.policy(self.given, self.usual)
    }
}

/// Which profiles hold, and what runs unasked under each.
fn say_terms(config: &Config, policy: &Policy) {
    say(format_args!("toolwright: {}", unasked(policy.profile)));
    for (name, view) in &config.written.views {
        if let Some(profile) = view.profile.map(profile_of).filter(|profile| *profile != policy.profile) {
            say(format_args!("toolwright: at /mcp/{name}: {}", unasked(profile)));
        }
    }
}

/// What runs under a profile without a question, where no rule says otherwise.
fn unasked(profile: Profile) -> &'static str {
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

/// Offers what `serve` lists beyond what a run has: a question may have to wait for its answer as a job, under any profile,
/// and many clients list tools once.
pub(crate) async fn as_served(house: &House) {
    house.catalogue().offer_jobs().await;
}

/// The one line that programs wait for. Returns the number of tools it gives.
fn ready(house: &House, address: &str) -> usize {
    let tools = tool_count(house);
    say(format_args!("toolwright: ready {address} {tools} tools"));
    tools
}

fn tool_count(house: &House) -> usize {
    house.catalogue().snapshot().list().len()
}

/// Who answers where policy asks and the client is not asked.
fn approver(house: &House, ask: ServeAskName, answers: Answers) -> Arc<dyn Approver> {
    match ask {
        ServeAskName::Client | ServeAskName::Inbox => Arc::new(house.ask_inbox(answers, |question| {
            let (tool, id) = (&question.request.tool, &question.id);
            say(format_args!("{tool} waits for your word: toolwright approvals approve {id}, or deny {id}"));
        })),
        ServeAskName::Nobody => Arc::new(NoApprover {
            remedy:
                "this server asks nobody: start it without --ask nobody, or allow the tool by a rule under policy.rules"
                    .into(),
        }),
    }
}

fn gateway(house: &Arc<House>, settings: &Config, serve: &Serve) -> Arc<Gateway> {
    let terms = Terms::of(serve);
    let later = approver(house, serve.ask, Answers::Elsewhere);
    // A source waits for the answer of a model within its call: there is nothing that a job could go on with.
    let mut stand_in = GatewayHouse::new(Arc::clone(house), terms.given, approver(house, serve.ask, Answers::Here));
    if serve.ask == ServeAskName::Inbox {
        stand_in = stand_in.with_forms(house.ask_forms(|form| say(asked_for(form))));
    }
    let policy = Arc::new(terms.policy(settings));
    let selection = &settings.written.selection;
    let parts = GatewayOptions::new(
        Arc::clone(house.catalogue()),
        Arc::clone(house.executor()),
        policy,
        later,
        settings.root.clone(),
    );
    Gateway::new(GatewayOptions {
        elicitation: match serve.ask {
            ServeAskName::Client => parts.elicitation,
            ServeAskName::Inbox | ServeAskName::Nobody => Elicitation::Never,
        },
        stand_in: Some(Arc::new(stand_in)),
        roots: serve.stdio.then(|| Arc::clone(house.roots())),
        max_tool_name: settings.written.server.max_tool_name,
        expose: serve.expose,
        schemas: listed(settings.written.server.schemas),
        views: views(settings),
        pinned: selection.pinned.clone(),
        grace: settings.written.server.shutdown_grace.0,
        finder: ToolFinder::new(Arc::clone(house.selector()), selection.pick_options()),
        ..parts
    })
}

fn views(settings: &Config) -> Vec<ViewOptions> {
    let view = |(name, view): (&String, &View)| ViewOptions {
        name: name.clone(),
        allowed: view.allow.clone(),
        denied: view.deny.clone(),
        expose: view.expose.map(|expose| match expose {
            ViewExposure::Direct => Expose::Direct,
            ViewExposure::Search => Expose::Search,
        }),
        schemas: view.schemas.map(listed),
        profile: view.profile.map(profile_of),
        roles: view.roles.clone(),
    };
    settings.written.views.iter().map(view).collect()
}

fn listed(form: SchemaForm) -> ListedSchemas {
    match form {
        SchemaForm::Portable => ListedSchemas::Portable,
        SchemaForm::Raw => ListedSchemas::Raw,
    }
}

/// The clients that have tokens of their own.
fn clients(settings: &Config) -> Vec<Client> {
    let client = |(name, client): (&String, &ClientToken)| {
        let principal = Principal { id: name.clone(), roles: client.roles.clone(), owner: false };
        Some(Client { token: Token::new(&*client.token)?, principal, views: client.views.clone() })
    };
    settings.written.server.tokens.iter().filter_map(client).collect()
}

fn http_options(serve: &Serve, settings: &Config) -> Result<HttpOptions, Failure> {
    let section = &settings.written.server;
    let addr = match serve.http {
        Some(addr) => addr,
        None => section.http.parse::<SocketAddr>().map_err(|error| {
            Failure::usage(format!(
                "server.http: `{}` is not an address and port: {error}; write it like 127.0.0.1:7117",
                section.http
            ))
        })?,
    };
    let token = serve.token.clone().or_else(|| section.token.clone()).filter(|token| !token.is_empty());
    let mut options = HttpOptions::new(addr);
    options.token = token.and_then(Token::new);
    options.clients = clients(settings);
    options.allowed_hosts.clone_from(&section.allowed_hosts);
    options.allowed_origins.clone_from(&section.allowed_origins);
    Ok(options)
}

fn refused(error: HttpError) -> Failure {
    match &error {
        HttpError::Exposed(_) => Failure::usage(format!("{error} (--token, TOOLWRIGHT_TOKEN or server.token)")),
        HttpError::Bind { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => Failure::usage(format!(
            "{error}; another program, perhaps another toolwright, listens there: choose another with --http 127.0.0.1:PORT"
        )),
        HttpError::Bind { .. } => Failure::usage(error),
    }
}

/// Lists fill and configuration changes are followed while clients are served already, who were told of
/// `announced` tools.
fn background(house: &Arc<House>, gateway: &Arc<Gateway>, terms: Terms, announced: usize) {
    tokio::spawn(tell_providers(house.events().subscribe_providers()));
    let listing = Arc::clone(house);
    tokio::spawn(async move {
        listing.list_all(LIST_WAIT).await;
        let tools = tool_count(&listing);
        if tools != announced {
            say(format_args!("toolwright: {tools} tools"));
        }
        for issue in listing.catalogue().snapshot().issues() {
            say_warning(&harmless(&format!("{}: {}", issue.provider, issue.message)));
        }
    });
    let (watched, gateway) = (Arc::clone(house), Arc::clone(gateway));
    tokio::spawn(async move {
        let house = Arc::clone(&watched);
        let watching = watch_files(watched, move |reloaded| {
            let mut views_changed = false;
            if reloaded.is_ok() {
                let config = house.config();
                gateway.set_policy(Arc::new(terms.policy(&config)));
                views_changed = gateway.set_views(&views(&config));
            }
            say_reload(&reloaded);
            if views_changed {
                say("toolwright: the views are others; clients whose lists change are told");
            }
        });
        if let Err(error) = watching.await {
            say_warning(&format!("the configuration is not watched for changes: {error}"));
        }
    });
}

/// Says when a provider fails, when it is there again, and when it goes on with what it had.
async fn tell_providers(mut events: Receiver<Arc<Event>>) {
    let mut failed: HashMap<String, String> = HashMap::new();
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => break,
        };
        match &*event {
            Event::ProviderChanged { provider, error: Some(error), .. } if failed.get(provider) != Some(error) => {
                say_warning(&harmless(&format!("{provider}: {error}")));
                failed.insert(provider.clone(), error.clone());
            }
            Event::ProviderChanged { provider, tools, error: None } if failed.remove(provider).is_some() => {
                say(format_args!("{provider}: up again, {tools} tools"));
            }
            Event::PinNotice { provider, raw_name, message, .. } => {
                say_warning(&harmless(&format!("{provider}: {} is {message}", one_line(raw_name, 100))));
            }
            Event::Warning { message, .. } => say_warning(&one_line(message, MAX_WARNING)),
            _ => {}
        }
    }
}

/// What a reload did to the providers, in words.
fn changes(reloaded: &Reloaded) -> String {
    let verbs = [("added", &reloaded.added), ("replaced", &reloaded.changed), ("removed", &reloaded.removed)];
    let mut changes = Vec::new();
    for (verb, names) in verbs.into_iter().filter(|(_, names)| !names.is_empty()) {
        let mut names = names.clone();
        names.sort();
        changes.push(format!("{verb} {}", names.join(", ")));
    }
    if changes.is_empty() { "the providers stay as they are".to_owned() } else { changes.join("; ") }
}

fn say_reload(reloaded: &Result<Reloaded, HouseError>) {
    match reloaded {
        Ok(reloaded) => {
            for problem in &reloaded.problems {
                say_warning(&harmless(&problem.to_string()));
            }
            say(format_args!("toolwright: configuration reloaded: {}", changes(reloaded)));
            if !reloaded.needs_restart.is_empty() {
                say_warning(&format!("a restart is needed for: {}", reloaded.needs_restart.join(", ")));
            }
        }
        Err(error) => say_error(&harmless(&format!("the running configuration is kept: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_is_told_in_order_and_in_whole_sentences() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (added, changed, removed, expect) in [
            (&["rest"][..], &["b", "a"][..], &[][..], "added rest; replaced a, b"),
            (&[], &[], &["c", "b", "a"], "removed a, b, c"),
            (&[], &[], &[], "the providers stay as they are"),
        ] {
            let reloaded = Reloaded {
                added: names(added),
                changed: names(changed),
                removed: names(removed),
                ..Reloaded::default()
            };
            assert_eq!(changes(&reloaded), expect);
        }
    }
}
