//! What commands share: the configuration and its approval, the instance, and an agent on it.

pub(crate) mod agent;
pub(crate) mod config;
pub(crate) mod list_wait;
pub(crate) mod owner;
pub(crate) mod transcript;
pub(crate) mod trust;

use std::sync::Arc;

use toolwright::Toolwright;
use toolwright::app::{Error, VariableSource};
use toolwright::config::{Config, LoadOptions};

use crate::args::{Global, Record};
use crate::exit::Failure;
use crate::terminal::logging;
use crate::terminal::screen::{WARN, harmless, redact_with, say, say_warning, styled};

/// Records requests to models, if that is wanted.
pub(crate) fn record(app: &Toolwright, record: &Record) -> Result<(), Failure> {
    let Some(file) = &record.to else { return Ok(()) };
    let refused = |error| Failure::usage(format!("--record {}: {error}", file.display()));
    app.record_models(file).map_err(refused)
}

/// Opens Toolwright on a configuration that [`config::usable`] gave.
pub(crate) async fn open(global: &Global, config: Config) -> Result<Arc<Toolwright>, Failure> {
    open_with(config::options(global)?, config, Box::new(config::variable)).await
}

/// Opens Toolwright on a configuration that was loaded with these options and variables.
pub(crate) async fn open_with(
    options: LoadOptions,
    config: Config,
    variables: VariableSource,
) -> Result<Arc<Toolwright>, Failure> {
    let app = Toolwright::open(options, config, variables).await.map_err(|error| match error {
        Error::Config(_) | Error::Store(_) => Failure::usage(error),
        _ => Failure::failed(error),
    })?;
    redact_with(app.redactor());
    app.models().on_replay(|replayed| {
        let file = harmless(&replayed.file);
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
