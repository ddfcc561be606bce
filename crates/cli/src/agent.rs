//! What `run` and `chat` share: the model, the policy, the options of a run.

use std::sync::Arc;

use toolwright::House;
use toolwright::agent::{
    AgentTools, BASE_PROMPT, ContextTerms, Dispatch, Driver, Limits, ReportSpec, RunOptions, RunSpec, Transcript,
};
use toolwright::config::typed::{AgentToolSetting, DispatchSetting, ExposureSetting};
use toolwright::core::approval::{Answers, NoApprover};
use toolwright::core::client::CallClient;
use toolwright::core::model::{ModelClient as _, ModelSettings, Usability, is_replay};
use toolwright::core::{Approver, Cancel, Policy, Profile, Session};
use toolwright::house::{ClientTerms, InboxPerson, Person};
use toolwright::models::default_model;
use toolwright::runtime::ToolFinder;

use super::approvals::asked_for;
use super::approver::TerminalApprover;
use super::args::{Agent, AskName};
use super::config::variable;
use super::console::Console;
use super::exit::Failure;
use super::form::TerminalPerson;
use super::screen::{Screen, is_interactive, say};
use super::transcript::TranscriptFile;

/// A person who can be asked, or the lack of one.
pub(crate) struct Desk {
    pub(crate) console: Arc<Console>,
    pub(crate) screen: Arc<Screen>,
}

impl Desk {
    pub(crate) fn new(house: &House) -> Self {
        Self { console: Arc::default(), screen: Arc::new(Screen::new(Arc::clone(house.catalogue()))) }
    }

    /// Who answers where policy asks. `remedy` says what helps where nobody does.
    pub(crate) fn approver(&self, ask: AskName, house: &House, remedy: impl FnOnce() -> String) -> Arc<dyn Approver> {
        match ask {
            AskName::Terminal => Arc::new(TerminalApprover::new(Arc::clone(&self.console), Arc::clone(&self.screen))),
            AskName::Inbox => {
                let screen = Arc::clone(&self.screen);
                Arc::new(house.ask_inbox(Answers::Here, move |question| {
                    let tool = screen.name(&question.request.tool);
                    let id = &question.id;
                    say(format_args!("{tool} waits for your word: toolwright approvals approve {id}, or deny {id}"));
                }))
            }
            AskName::Nobody => Arc::new(NoApprover { remedy: remedy() }),
        }
    }

    /// Whom the source of a tool may ask back, in calls of this session: forms and pages go to whoever `ask` says.
    pub(crate) fn client(
        &self,
        house: &House,
        session: &Arc<Session>,
        policy: Arc<Policy>,
        approver: Arc<dyn Approver>,
        (ask, model): (AskName, Option<String>),
    ) -> Arc<dyn CallClient> {
        let person = match ask {
            AskName::Terminal => {
                let person = TerminalPerson::new(Arc::clone(&self.console), Arc::clone(&self.screen));
                Some(Arc::new(person) as Arc<dyn Person>)
            }
            AskName::Inbox => {
                let forms = house.ask_forms(|form| say(asked_for(form)));
                let redactor = Arc::clone(&house.executor().services().redactor);
                Some(Arc::new(InboxPerson::new(forms, Arc::clone(session), redactor)) as Arc<dyn Person>)
            }
            AskName::Nobody => None,
        };
        house.client(ClientTerms { session: Arc::clone(session), policy, approver, person, model })
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
pub(crate) fn profile(agent: &Agent, house: &House) -> Result<Option<Profile>, Failure> {
    let given = agent.policy.map(Profile::from);
    if given.is_none() && house.config().policy.profile.is_none() && asked(agent) == AskName::Nobody {
        return Err(Failure::usage(
            "there is no terminal to ask at: choose what may run with --policy ask (read-only tools only), workspace (writes inside the workspace root too) or trusted (everything), or set policy.profile, or let --ask inbox ask",
        ));
    }
    can_be_asked(asked(agent))?;
    Ok(given)
}

/// The model: given, configured, or found.
pub(crate) async fn model(agent: &Agent, house: &House) -> Result<String, Failure> {
    let models = house.models();
    let chosen = agent.model.clone().or_else(|| house.config().written.models.default.clone());
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
pub(crate) async fn can_answer(house: &House, model: &str) -> Result<(), String> {
    // What is wrong the card says.
    let _ = house.models().ready(model).await;
    let is_id = || model.split_once('/').is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty());
    let why = match house.executor().services().model.card(model).usability {
        Usability::Usable if is_replay(model) || is_id() => return Ok(()),
        Usability::Usable => "it is not provider/model".to_owned(),
        Usability::NoKey => "there is no key for it".to_owned(),
        Usability::Unknown(why) => why,
    };
    Err(format!("{model} cannot be asked: {why}"))
}

pub(crate) fn driver(house: &Arc<House>) -> Driver {
    Driver::new(
        Arc::clone(house.executor()),
        Arc::clone(house.catalogue()),
        Arc::clone(&house.executor().services().model),
        Some(house.runs()),
    )
    .with_finder(ToolFinder::new(Arc::clone(house.selector()), house.config().written.selection.pick_options()))
}

/// The options of the run `id`. Its session has the run's name, so that a resumed run finds its
/// stored outputs.
pub(crate) fn options(
    agent: &Agent,
    house: &House,
    desk: &Desk,
    id: &str,
    profile: Option<Profile>,
    cancel: Cancel,
) -> Result<RunOptions, Failure> {
    let transcript = match &agent.transcript {
        Some(path) => Some(Arc::new(TranscriptFile::open(path)?) as Arc<dyn Transcript>),
        None => None,
    };
    let policy = Arc::new(house.config().policy(profile, Profile::Ask));
    let (session, approver) = (house.session(id), desk.approver(asked(agent), house, || remedy(policy.profile)));
    let terms = (asked(agent), agent.model.clone());
    let client = desk.client(house, &session, Arc::clone(&policy), Arc::clone(&approver), terms);
    Ok(RunOptions { run_id: Arc::from(id), session, approver, client, policy, cancel, variables: None, transcript })
}

/// When calls start: given, else configured.
pub(crate) fn dispatch(agent: &Agent, house: &House) -> Dispatch {
    match (agent.dispatch, house.config().written.defaults.dispatch) {
        (Some(given), _) => given.into(),
        (None, DispatchSetting::Manual) => Dispatch::Manual,
        (None, DispatchSetting::TurnEnd) => Dispatch::TurnEnd,
        (None, DispatchSetting::Streaming) => Dispatch::Streaming,
    }
}

/// Which tools of the agent itself are shown: those that are configured, and the final report where there is to
/// be one.
pub(crate) fn agent_tools(house: &House, report: Option<ReportSpec>) -> AgentTools {
    let config = house.config();
    let shows = |tool| config.written.defaults.agent_tools.contains(&tool);
    AgentTools { report, task_status: shows(AgentToolSetting::TaskStatus), batch: shows(AgentToolSetting::Batch) }
}

pub(crate) fn spec(
    agent: &Agent,
    agent_tools: AgentTools,
    model: String,
    dispatch: Dispatch,
    house: &House,
    driver: &Driver,
    options: &RunOptions,
) -> RunSpec {
    let (standard, config) = (Limits::default(), house.config());
    let exposure = agent.exposure.map(|given| ExposureSetting::from(given).exposure());
    let selection = &config.written.selection;
    let card = house.models().card(&model);
    let known_as = card.stands_for.as_deref().unwrap_or(&model);
    let mut spec = RunSpec {
        system: String::new(),
        max_tokens: None,
        temperature: None,
        settings: ModelSettings { effort: agent.effort, ..ModelSettings::default() },
        limits: Limits {
            turns: agent.max_turns.unwrap_or(standard.turns),
            calls: agent.max_calls,
            time: agent.max_time,
            tokens: agent.max_tokens,
        },
        dispatch,
        tools: agent.tools.clone(),
        window: agent.window.or_else(|| config.window(known_as)),
        exposure: exposure.unwrap_or_else(|| config.exposure(known_as)),
        pinned: selection.pinned.clone(),
        pick_size: selection.pick_size,
        agent_tools,
        context: ContextTerms {
            summarize: config.written.context.summarize,
            model: config.written.context.model.clone(),
            target: config.written.context.target,
        },
        model,
    };
    spec.system = driver.system_prompt(agent.system.as_deref().unwrap_or(BASE_PROMPT), &spec, options);
    spec
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
