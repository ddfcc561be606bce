//! Waits for the tool lists of providers and reports which of them are still starting.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use toolwright::Toolwright;
use toolwright::core::{Event, Health};

use crate::terminal::screen::{StatusLine, is_interactive, sanitize, say_warning};

/// How long to wait before a person is told which providers are awaited.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// The providers to wait for. All are listed in any case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// The providers without known tools, not even from a cached list.
    Unlisted,
    /// All calls.
    All,
}

/// Lists every provider, waits at most `bound` for the wanted ones, and reports those that are still starting or down,
/// with reasons.
pub(crate) async fn wait_for(app: &Arc<Toolwright>, wanted: WaitFor, bound: Duration) {
    let mut events = app.events().subscribe();
    let mut pending = starting(app, wanted);
    let mut listing = std::pin::pin!(app.list_all(bound));
    let mut notice = std::pin::pin!(tokio::time::sleep(NOTICE_AFTER));
    let (mut is_shown, mut status) = (!is_interactive(), StatusLine::default());
    loop {
        tokio::select! {
            // First, so that the lists are begun even if nothing is awaited.
            biased;
            () = &mut listing => break,
            () = std::future::ready(()), if pending.is_empty() => break,
            event = events.recv() => match event {
                Ok(event) => {
                    if let Event::ProviderChanged { provider, .. } = &*event {
                        pending.remove(provider);
                        if is_shown && is_interactive() {
                            say_waiting(&mut status, &pending);
                        }
                    }
                }
                // The end of the lists makes up for missed events.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            },
            () = &mut notice, if !is_shown => {
                is_shown = true;
                say_waiting(&mut status, &pending);
            }
        }
    }
    status.clear();
    say_failures(app);
    let (slow, unknown) = (starting(app, wanted), starting(app, WaitFor::Unlisted));
    let bound = toolwright::core::duration::format(bound);
    for name in slow.intersection(&pending) {
        let tools = if unknown.contains(name) { "missing until it is there" } else { "those of its last list" };
        say_warning(&format!("{}: still starting after {bound}; its tools are {tools}", sanitize(name)));
    }
}

/// Runs `work`. If it takes long, a person is told which providers are awaited.
pub(crate) async fn wait_with_notice<T>(
    waits_for: impl FnOnce() -> BTreeSet<String>,
    work: impl Future<Output = T>,
) -> T {
    let (mut work, mut status) = (std::pin::pin!(work), StatusLine::default());
    if is_interactive() {
        if let Ok(done) = tokio::time::timeout(NOTICE_AFTER, work.as_mut()).await {
            return done;
        }
        say_waiting(&mut status, &waits_for());
    }
    work.await
}

fn say_waiting(status: &mut StatusLine, providers: &BTreeSet<String>) {
    match providers.iter().map(String::as_str).collect::<Vec<_>>().join(", ") {
        names if names.is_empty() => status.clear(),
        names => status.show(&format!("waiting for {names}")),
    }
}

/// Returns the providers that have not listed yet.
pub(crate) fn starting(app: &Toolwright, wanted: WaitFor) -> BTreeSet<String> {
    let providers = match wanted {
        WaitFor::Unlisted => app.catalogue().unlisted(),
        WaitFor::All => app.catalogue().sources(),
    };
    let starting = providers.iter().filter(|provider| provider.health() == Health::Starting);
    starting.map(|provider| provider.name().to_owned()).collect()
}

/// Returns the providers that may have the tool of that name and have not listed yet: the one in the name, or all if it
/// names none.
pub(crate) fn starting_for(app: &Toolwright, wanted: WaitFor, tool: &str) -> BTreeSet<String> {
    let separator = if tool.contains("__") { "__" } else { ":" };
    let namespace = tool.split_once(separator).map(|(namespace, _)| namespace);
    let providers = app.catalogue().sources();
    let may_have = |name: &String| {
        let provider = providers.iter().find(|provider| provider.name() == name);
        namespace.is_none_or(|namespace| provider.is_some_and(|provider| provider.may_fill(namespace)))
    };
    starting(app, wanted).into_iter().filter(may_have).collect()
}

/// Reports which providers may have the tool of that name and have not listed yet.
pub(crate) fn say_starting(app: &Toolwright, tool: &str) {
    for name in starting_for(app, WaitFor::Unlisted, tool) {
        say_warning(&format!("{}: still starting; its tools are missing until it is there", sanitize(&name)));
    }
}

/// Reports which providers are down, and why.
pub(crate) fn say_failures(app: &Toolwright) {
    let snapshot = app.catalogue().snapshot();
    for provider in snapshot.providers() {
        if let Some(error) = &provider.error {
            say_warning(&sanitize(&format!("{}: {error}", provider.name)));
        }
    }
    for issue in snapshot.issues() {
        say_warning(&sanitize(&format!("{}: {}", issue.provider, issue.message)));
    }
}
