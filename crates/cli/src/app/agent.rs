//! Provides the parts that `run`, `chat` and `call` share: the model, the person who answers questions, and the options
//! of a run.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::Value;
use toolwright::agent::{Dispatch, DriverError, ReportConfig, Transcript};
use toolwright::app::{InboxPerson, Person};
use toolwright::config::{Config, Problem};
use toolwright::core::agents::AgentConfig;
use toolwright::core::approval::{AnswerSource, NoApprover};
use toolwright::core::exposure::ExposureSetting;
use toolwright::core::model::{Effort, ModelClient as _, ModelSettings, Usability, is_replay};
use toolwright::core::pattern::nearest;
use toolwright::core::{Approver, Profile, Session};
use toolwright::models::default_model;
use toolwright::{Error, Limits, Toolwright};

use crate::app::variable;
use crate::exit::Failure;
use crate::terminal::person::{Terminal, asked_for};
use crate::terminal::screen::{is_interactive, say};
use crate::values::{AskName, ask, dispatch, duration, effort, exposure, profile_name};

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// The agent to run, one of `toolwright agents ls`. Other options override its settings. Default: an agent without
    /// instructions.
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// The model, or replay:FILE for a recording. Default: `models.default`, else a model that the environment offers.
    #[arg(short, long, value_name = "PROVIDER/MODEL")]
    pub(crate) model: Option<String>,
    /// How much the model thinks before it answers. Default: as configured for the model, else the provider's.
    #[arg(long, value_name = "HOW_MUCH", value_parser = effort())]
    pub(crate) effort: Option<Effort>,
    /// The profile that decides calls that no rule matches. Default in a terminal: `ask`; elsewhere it is required.
    #[arg(long, value_name = "PROFILE", value_parser = profile_name())]
    pub(crate) policy: Option<Profile>,
    /// Who answers when the policy asks, and when a tool's source has a question. Default: `terminal` if there is one,
    /// else `nobody`.
    #[arg(long, value_name = "WHOM", value_parser = ask())]
    pub(crate) ask: Option<AskName>,
    /// When the calls of an answer start. Default: `defaults.dispatch`, else `turn-end`.
    #[arg(long, value_name = "WHEN", value_parser = dispatch())]
    pub(crate) dispatch: Option<Dispatch>,
    /// Tools that the agent gets, as globs on ids or wire names (repeatable). Default: all.
    #[arg(long, value_name = "GLOB")]
    pub(crate) tools: Vec<String>,
    /// How tools are shown to the model. Default: as configured for the model, else `selection.exposure`, else `auto`.
    #[arg(long, value_name = "HOW", value_parser = exposure())]
    pub(crate) exposure: Option<ExposureSetting>,
    /// Most answers of the model in one task.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_turns: Option<u32>,
    /// Most tool calls in one task.
    #[arg(long, value_name = "N")]
    pub(crate) max_calls: Option<u32>,
    /// Most time for one task, like 10m.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_time: Option<Duration>,
    /// Most tokens for one task, input and output together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tokens: Option<u64>,
    /// Size of the model's context window, in tokens. When it fills up, older results are dropped. Default: as
    /// configured for the model.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) window: Option<usize>,
    /// Replaces the first part of the system prompt.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Writes the whole conversation to this file as JSON lines.
    #[arg(long, value_name = "FILE")]
    pub(crate) transcript: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) record: Record,
}

#[derive(Debug, Args)]
pub(crate) struct Record {
    /// Records every request to a model with its answer in this file, one a line, without secrets. The model
    /// replay:FILE replays these answers and calls no API.
    #[arg(long = "record", value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
}

/// Starts recording requests to models, if requested.
pub(crate) fn record(app: &Toolwright, record: &Record) -> Result<(), Failure> {
    let Some(file) = &record.to else { return Ok(()) };
    app.record_models(file).map_err(|error| Failure::usage(format!("--record {error}")))
}

/// Returns the approver. `remedy` is the advice if nobody can answer.
pub(crate) fn approver(
    terminal: &Terminal,
    ask: AskName,
    app: &Toolwright,
    remedy: impl FnOnce() -> String,
) -> Arc<dyn Approver> {
    match ask {
        AskName::Terminal => Arc::new(terminal.clone()),
        AskName::Inbox => {
            let screen = Arc::clone(&terminal.screen);
            Arc::new(app.ask_inbox(AnswerSource::Here, move |question| {
                let tool = screen.name(&question.request.tool);
                let id = &question.id;
                say(format_args!("{tool} waits for your approval: toolwright approvals approve {id}, or deny {id}"));
            }))
        }
        AskName::Nobody => Arc::new(NoApprover { remedy: remedy() }),
    }
}

/// Returns the person who fills in forms and opens pages for the sources of tools, in calls of this session, as `ask`
/// selects.
pub(crate) fn person(
    terminal: &Terminal,
    ask: AskName,
    app: &Toolwright,
    session: &Arc<Session>,
) -> Option<Arc<dyn Person>> {
    match ask {
        AskName::Terminal => Some(Arc::new(terminal.clone())),
        AskName::Inbox => {
            let forms = app.ask_forms(|form| say(asked_for(form)));
            let redactor = Arc::clone(&app.executor().services().redactor);
            Some(Arc::new(InboxPerson::new(forms, Arc::clone(session), redactor)))
        }
        AskName::Nobody => None,
    }
}

/// Returns who is asked: as given, else the terminal if there is one.
pub(crate) fn question_recipient(given: Option<AskName>) -> AskName {
    given.unwrap_or(if is_interactive() { AskName::Terminal } else { AskName::Nobody })
}

/// Checks that a terminal to be asked exists.
///
/// # Errors
/// It does not; with a remedy.
pub(crate) fn can_be_asked(ask: AskName) -> Result<(), Failure> {
    if ask == AskName::Terminal && !is_interactive() {
        return Err(Failure::usage("--ask terminal needs a terminal; --ask inbox asks without one"));
    }
    Ok(())
}

/// Returns the advice if a policy of `profile` asks and nobody can answer. A wider profile is mentioned only if there
/// is one, with what no profile permits.
fn remedy(profile: Profile) -> String {
    let wider = match profile {
        Profile::Ask => " --policy workspace or trusted,",
        Profile::Workspace => " --policy trusted,",
        Profile::Client | Profile::Trusted | Profile::Owner => "",
    };
    format!("use a terminal, --ask inbox,{wider} or a rule under policy.rules")
}

/// Returns the definition of the named agent.
///
/// # Errors
/// No agent has this name.
pub(crate) fn named(agent: &Agent, app: &Arc<Toolwright>) -> Result<Option<AgentConfig>, Failure> {
    let Some(name) = &agent.agent else { return Ok(None) };
    let config = app.config();
    let found = config.agent(name).map(|agent| agent.config.clone());
    found.map(Some).ok_or_else(|| unknown(&config, name))
}

/// Returns the profile of an agent's policy, which must be chosen if there is no terminal.
pub(crate) fn profile(
    agent: &Agent,
    config: Option<&AgentConfig>,
    app: &Toolwright,
) -> Result<Option<Profile>, Failure> {
    let own = config.and_then(|config| config.policy);
    if agent.policy.or(own).is_none()
        && app.config().sections.policy.profile.is_none()
        && question_recipient(agent.ask) == AskName::Nobody
    {
        return Err(Failure::usage(
            "there is no terminal to ask at: choose what may run with --policy ask (read-only tools only), workspace (writes inside the workspace root too) or trusted (everything), or set policy.profile, or let --ask inbox ask",
        ));
    }
    can_be_asked(question_recipient(agent.ask))?;
    Ok(agent.policy.or(own))
}

/// Returns the model: given, configured, or found.
pub(crate) async fn model(agent: &Agent, config: Option<&AgentConfig>, app: &Toolwright) -> Result<String, Failure> {
    chosen_model(agent.model.clone().or_else(|| config.and_then(|config| config.model.clone())), app).await
}

/// Returns the `given` model, or the configured one, or one that the environment offers.
pub(crate) async fn chosen_model(given: Option<String>, app: &Toolwright) -> Result<String, Failure> {
    let models = app.models();
    match given.or_else(|| app.config().sections.models.default.clone()) {
        Some(model) => {
            models.ready(&model).await.map_err(Failure::usage)?;
            Ok(model)
        }
        None => default_model(&variable, models.http()).await.map_err(Failure::usage),
    }
}

/// Checks that this model can be asked, as far as that is known in advance.
///
/// # Errors
/// The reason why not.
pub(crate) async fn can_answer(app: &Toolwright, model: &str) -> Result<(), String> {
    // The model's card has the error.
    let _ = app.models().ready(model).await;
    let is_id = || model.split_once('/').is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty());
    let why = match app.executor().services().model.card(model).usability {
        Usability::Usable if is_replay(model) || is_id() => return Ok(()),
        Usability::Usable => "it is not provider/model".to_owned(),
        Usability::NoKey => "there is no key for it".to_owned(),
        Usability::Unknown(why) => why,
    };
    Err(format!("{model} cannot be asked: {why}"))
}

/// Returns the agent with these options, as the run `id`. Its session has the run's name, so that a resumed run finds
/// its stored outputs. Waits for its tools.
pub(crate) fn agent(
    given: &Agent,
    app: &Arc<Toolwright>,
    terminal: &Terminal,
    (id, model): (&str, &str),
    profile: Option<Profile>,
    report: Option<ReportConfig>,
) -> Result<toolwright::Agent, Failure> {
    let ask = question_recipient(given.ask);
    let in_force = app.config().policy(profile, Profile::Ask).profile;
    let mut agent = match &given.agent {
        Some(name) => app.agent_named(name).map_err(failed)?.model(model),
        None => app.agent(model),
    };
    let (limits, settings) = (agent.limits_in_force().clone(), agent.settings_in_force().clone());
    agent = agent
        .id(id)
        .limits(Limits {
            turns: given.max_turns.unwrap_or(limits.turns),
            calls: given.max_calls.or(limits.calls),
            time: given.max_time.or(limits.time),
            tokens: given.max_tokens.or(limits.tokens),
        })
        .settings(ModelSettings { effort: given.effort, ..ModelSettings::default() }.or(&settings))
        .shared_approver(approver(terminal, ask, app, || remedy(in_force)))
        .list_wait(Duration::ZERO);
    if !given.tools.is_empty() {
        agent = agent.tools(given.tools.clone());
    }
    if let Some(person) = person(terminal, ask, app, &app.session(id)) {
        agent = agent.person(person);
    }
    if let Some(profile) = profile {
        agent = agent.policy(profile);
    }
    if let Some(prompt) = &given.system {
        agent = agent.system(prompt.as_str());
    }
    if let Some(exposure) = given.exposure {
        agent = agent.exposure(exposure.exposure());
    }
    if let Some(dispatch) = given.dispatch {
        agent = agent.dispatch(dispatch);
    }
    if let Some(tokens) = given.window {
        agent = agent.window(tokens);
    }
    if let Some(report) = report {
        agent = agent.report(report);
    }
    if let Some(path) = &given.transcript {
        agent = agent.transcript(Arc::new(TranscriptFile::open(path)?));
    }
    Ok(agent)
}

/// Returns the failure for an agent that could not begin or continue.
pub(crate) fn failed(error: Error) -> Failure {
    match error {
        Error::Agent(DriverError::NotFound(_)) => Failure::not_found(error),
        Error::Model(_) | Error::Usage(_) => Failure::usage(error),
        _ => Failure::failed(error),
    }
}

/// A transcript file, private to the user.
struct TranscriptFile(Mutex<Option<File>>);

impl TranscriptFile {
    /// Creates the file, or appends to it, because a resumed run continues the same one.
    fn open(path: &Path) -> Result<Self, Failure> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options
            .open(path)
            .map_err(|error| Failure::usage(format!("{}: cannot be written: {error}", path.display())))?;
        Ok(Self(Mutex::new(Some(file))))
    }
}

impl Transcript for TranscriptFile {
    fn record(&self, record: Value) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = file.as_mut()
            && let Err(error) = writeln!(open, "{record}")
        {
            tracing::error!("the transcript ends here: {error}");
            *file = None;
        }
    }
}

/// Returns the failure for an unknown agent: similar names, or why it is left out.
pub(crate) fn unknown(config: &Config, name: &str) -> Failure {
    let names = config.agents.iter().map(|agent| agent.config.name.as_str());
    let is_of = |problem: &&Problem| {
        let file = problem.file.as_ref().and_then(|file| file.file_stem());
        file.is_some_and(|stem| stem == name) || problem.field.starts_with(&format!("agents.{name}"))
    };
    let hint = match (config.problems.iter().find(is_of), nearest(name, names)) {
        (Some(problem), _) => problem.to_string(),
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) => "`toolwright agents ls` lists the agents".to_owned(),
    };
    Failure::not_found(format!("there is no agent `{name}`; {hint}"))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_denial_names_no_profile_that_cannot_help() {
        for (profile, wider) in [(Profile::Ask, true), (Profile::Workspace, true), (Profile::Trusted, false)] {
            let remedy = remedy(profile);
            assert!(remedy.ends_with("or a rule under policy.rules"), "{remedy}");
            assert_eq!(remedy.contains("--policy"), wider, "{remedy}");
        }
    }
}
