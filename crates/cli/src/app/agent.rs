//! What `run` and `chat` share: the model, the policy and the options of a run.

use std::sync::Arc;
use std::time::Duration;

use toolwright::agent::{DriverError, ReportSpec};
use toolwright::app::{InboxPerson, Person};
use toolwright::config::typed::ExposureSetting;
use toolwright::core::approval::{Answers, NoApprover};
use toolwright::core::model::{ModelClient as _, ModelSettings, Usability, is_replay};
use toolwright::core::{Approver, Profile, Session};
use toolwright::models::default_model;
use toolwright::{Error, Limits, Toolwright};

use crate::app::config::variable;
use crate::app::transcript::TranscriptFile;
use crate::args::{Agent, AskName};
use crate::exit::Failure;
use crate::operate::approvals::asked_for;
use crate::terminal::approver::TerminalApprover;
use crate::terminal::console::Console;
use crate::terminal::form::TerminalPerson;
use crate::terminal::screen::{Screen, is_interactive, say};

/// The terminal of the user, for output and questions.
pub(crate) struct Terminal {
    pub(crate) console: Arc<Console>,
    pub(crate) screen: Arc<Screen>,
}

impl Terminal {
    pub(crate) fn new(app: &Toolwright) -> Self {
        Self { console: Arc::default(), screen: Arc::new(Screen::new(Arc::clone(app.catalogue()))) }
    }

    /// Who answers where policy asks. `remedy` says what helps where nobody does.
    pub(crate) fn approver(
        &self,
        ask: AskName,
        app: &Toolwright,
        remedy: impl FnOnce() -> String,
    ) -> Arc<dyn Approver> {
        match ask {
            AskName::Terminal => Arc::new(TerminalApprover::new(Arc::clone(&self.console), Arc::clone(&self.screen))),
            AskName::Inbox => {
                let screen = Arc::clone(&self.screen);
                Arc::new(app.ask_inbox(Answers::Here, move |question| {
                    let tool = screen.name(&question.request.tool);
                    let id = &question.id;
                    say(format_args!("{tool} waits for your word: toolwright approvals approve {id}, or deny {id}"));
                }))
            }
            AskName::Nobody => Arc::new(NoApprover { remedy: remedy() }),
        }
    }

    /// Who fills in forms and opens pages for the sources of tools, in calls of this session: whoever `ask` says.
    pub(crate) fn person(&self, app: &Toolwright, session: &Arc<Session>, ask: AskName) -> Option<Arc<dyn Person>> {
        match ask {
            AskName::Terminal => {
                Some(Arc::new(TerminalPerson::new(Arc::clone(&self.console), Arc::clone(&self.screen))))
            }
            AskName::Inbox => {
                let forms = app.ask_forms(|form| say(asked_for(form)));
                let redactor = Arc::clone(&app.executor().services().redactor);
                Some(Arc::new(InboxPerson::new(forms, Arc::clone(session), redactor)))
            }
            AskName::Nobody => None,
        }
    }
}

fn asked(agent: &Agent) -> AskName {
    who(agent.ask)
}

/// Who is asked: as given, else the terminal if there is one.
pub(crate) fn who(given: Option<AskName>) -> AskName {
    given.unwrap_or(if is_interactive() { AskName::Terminal } else { AskName::Nobody })
}

/// Whether the terminal that is to be asked is there.
///
/// # Errors
/// It is not; what to do.
pub(crate) fn can_be_asked(ask: AskName) -> Result<(), Failure> {
    if ask == AskName::Terminal && !is_interactive() {
        return Err(Failure::usage("--ask terminal needs a terminal; --ask inbox asks without one"));
    }
    Ok(())
}

/// What helps where a policy of `profile` asks and nobody is there. A wider profile is named only where there
/// is one, and with what no profile lifts.
fn remedy(profile: Profile) -> String {
    let wider = match profile {
        Profile::Ask => " --policy workspace or trusted,",
        Profile::Workspace => " --policy trusted,",
        Profile::Client | Profile::Trusted | Profile::Owner => "",
    };
    format!("use a terminal, --ask inbox,{wider} or a rule under policy.rules")
}

/// The profile of an agent's policy: without a terminal it must be chosen.
pub(crate) fn profile(agent: &Agent, app: &Toolwright) -> Result<Option<Profile>, Failure> {
    let given = agent.policy.map(Profile::from);
    if given.is_none() && app.config().policy.profile.is_none() && asked(agent) == AskName::Nobody {
        return Err(Failure::usage(
            "there is no terminal to ask at: choose what may run with --policy ask (read-only tools only), workspace (writes inside the workspace root too) or trusted (everything), or set policy.profile, or let --ask inbox ask",
        ));
    }
    can_be_asked(asked(agent))?;
    Ok(given)
}

/// The model: given, configured, or found.
pub(crate) async fn model(agent: &Agent, app: &Toolwright) -> Result<String, Failure> {
    let models = app.models();
    let chosen = agent.model.clone().or_else(|| app.config().written.models.default.clone());
    match chosen {
        Some(model) => {
            models.ready(&model).await.map_err(Failure::usage)?;
            Ok(model)
        }
        None => default_model(&variable, models.http()).await.map_err(Failure::usage),
    }
}

/// Whether this model can be asked, as far as that is known before it is.
///
/// # Errors
/// Why it cannot.
pub(crate) async fn can_answer(app: &Toolwright, model: &str) -> Result<(), String> {
    // What is wrong the card says.
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

/// The agent that the options describe, as the run `id`. Its session has the run's name, so that a resumed run finds its
/// stored outputs. Its tools have been waited for.
pub(crate) fn agent(
    given: &Agent,
    app: &Arc<Toolwright>,
    terminal: &Terminal,
    (id, model): (&str, &str),
    profile: Option<Profile>,
    report: Option<ReportSpec>,
) -> Result<toolwright::Agent, Failure> {
    let ask = asked(given);
    let in_force = app.config().policy(profile, Profile::Ask).profile;
    let standard = Limits::default();
    let mut agent = app
        .agent(model)
        .id(id)
        .tools(given.tools.clone())
        .limits(Limits {
            turns: given.max_turns.unwrap_or(standard.turns),
            calls: given.max_calls,
            time: given.max_time,
            tokens: given.max_tokens,
        })
        .settings(ModelSettings { effort: given.effort, ..ModelSettings::default() })
        .shared_approver(terminal.approver(ask, app, || remedy(in_force)))
        .list_wait(Duration::ZERO);
    if let Some(person) = terminal.person(app, &app.session(id), ask) {
        agent = agent.person(person);
    }
    if let Some(profile) = profile {
        agent = agent.policy(profile);
    }
    if let Some(prompt) = &given.system {
        agent = agent.system(prompt.as_str());
    }
    if let Some(exposure) = given.exposure {
        agent = agent.exposure(ExposureSetting::from(exposure).exposure());
    }
    if let Some(dispatch) = given.dispatch {
        agent = agent.dispatch(dispatch.into());
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

/// Why an agent could not begin or go on.
pub(crate) fn failed(error: Error) -> Failure {
    match error {
        Error::Agent(DriverError::NotFound(_)) => Failure::not_found(error),
        Error::Model(_) | Error::Usage(_) => Failure::usage(error),
        _ => Failure::failed(error),
    }
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
