//! `approvals`: the questions that wait for a person, and the answers that stand.

use std::time::{Duration, SystemTime};

use clap::Subcommand;
use serde_json::{Value, json};
use toolwright::core::approval::{Answered, Question, QuestionState, Standing};
use toolwright::core::store::StoreError;
use toolwright::core::{ApprovalDecision, duration};

use super::args::Global;
use super::exit::{Done, Exit, Failure};
use super::screen::{BOLD, DIM, WARN, one_line, print_json, print_text, say, styled};
use super::{config, open};

/// Rows that are listed.
const LISTED: usize = 1000;
/// Characters of arguments in a list for people.
const SHOWN: usize = 200;
/// Who answers here.
const OWNER: &str = "owner";

#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// Lists what waits for an answer.
    Ls {
        /// Those that were answered, expired or withdrawn, too.
        #[arg(long, conflicts_with = "standing")]
        all: bool,
        /// Lists instead what was approved for always, and still stands.
        #[arg(long)]
        standing: bool,
    },
    /// Lets a call run.
    Approve {
        /// The question's id.
        id: String,
        /// Does not ask again in its session: for this tool as it is now, and where a call may do anything, for
        /// exactly these arguments.
        #[arg(long)]
        always: bool,
    },
    /// Refuses a call.
    Deny {
        /// The question's id.
        id: String,
        /// Why; the model reads it.
        #[arg(long, value_name = "TEXT", default_value = "the user said no")]
        reason: String,
    },
    /// Takes back what was approved for always.
    Revoke {
        /// Its id, of `approvals ls --standing`.
        id: String,
    },
}

pub(crate) async fn command(global: &Global, command: &ApprovalsCommand) -> Done {
    let house = open(global, config::usable(global)?).await?;
    let (inbox, approvals) = (house.inbox(), house.approvals());
    let done = match command {
        ApprovalsCommand::Ls { standing: true, .. } => {
            approvals.standing(LISTED).await.map_err(unreadable).and_then(|standing| {
                list(global, &standing, &|row| json!(row), &standing_line, "nothing was approved for always")
            })
        }
        ApprovalsCommand::Ls { all, .. } => {
            if let Some(waiting) = super::pins::waiting(&*house.pins()).await {
                say(styled(WARN, waiting));
            }
            let state = (!all).then_some(QuestionState::Pending);
            inbox.questions(state, LISTED).await.map_err(unreadable).and_then(|questions| {
                list(global, &questions, &Question::to_json, &question_line, "nothing waits for an answer")
            })
        }
        ApprovalsCommand::Approve { id, always } => {
            let decision = if *always { ApprovalDecision::Always } else { ApprovalDecision::Approve };
            answered(global, id, inbox.answer(id, &decision, OWNER).await, QuestionState::Approved)
        }
        ApprovalsCommand::Deny { id, reason } => {
            let decision = ApprovalDecision::Deny { reason: reason.clone() };
            answered(global, id, inbox.answer(id, &decision, OWNER).await, QuestionState::Denied)
        }
        ApprovalsCommand::Revoke { id } => match approvals.revoke(id).await {
            Ok(true) => told(global, id, "revoked"),
            Ok(false) => Err(Failure::usage(format!("nothing that was approved for always has the id {id}"))),
            Err(error) => Err(unreadable(error)),
        },
    };
    house.shut_down().await;
    done
}

fn unreadable(error: StoreError) -> Failure {
    Failure::failed(error)
}

fn answered(global: &Global, id: &str, answer: Result<Answered, StoreError>, state: QuestionState) -> Done {
    match answer.map_err(unreadable)? {
        Answered::Counts => told(global, id, state.as_str()),
        Answered::TooLate(question) => {
            let by = question.decided_by.map(|by| format!(" by {by}")).unwrap_or_default();
            Err(Failure::failed(format!("{id} is {}{by} already: this answer came too late", question.state.as_str())))
        }
        Answered::Unknown => Err(Failure::usage(format!("no question has the id {id}; `approvals ls` shows them"))),
    }
}

fn told(global: &Global, id: &str, state: &str) -> Done {
    if global.json {
        print_json(&json!({"id": id, "state": state}))?;
    } else {
        say(format_args!("{id} is {state}"));
    }
    Ok(Exit::Ok)
}

fn list<T>(
    global: &Global,
    rows: &[T],
    to_json: &dyn Fn(&T) -> Value,
    line: &dyn Fn(&T) -> String,
    none: &str,
) -> Done {
    if global.json {
        print_json(&rows.iter().map(to_json).collect())?;
    } else if rows.is_empty() {
        say(none);
    }
    for row in rows.iter().filter(|_| !global.json) {
        print_text(&line(row))?;
    }
    Ok(Exit::Ok)
}

fn question_line(question: &Question) -> String {
    let request = &question.request;
    let when = match question.state {
        QuestionState::Pending => format!("expires in {}", span(question.expires_ms, now_ms())),
        state => format!("{}, asked {} ago", state.as_str(), span(now_ms(), question.created_ms)),
    };
    format!(
        "{}  {}  {}\n    {}\n    {}",
        question.id,
        styled(BOLD, request.tool.without_version()),
        styled(DIM, when),
        one_line(&request.arguments.to_string(), SHOWN),
        styled(DIM, one_line(&request.reason, SHOWN)),
    )
}

fn standing_line(standing: &Standing) -> String {
    let covers = match &standing.arguments {
        Some(arguments) => one_line(&arguments.to_string(), SHOWN),
        None => "any arguments".to_owned(),
    };
    let tool = styled(BOLD, standing.tool.without_version());
    format!("{}  {tool}  {}\n    {covers}", standing.id, styled(DIM, format_args!("in {}", standing.scope)))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// From one moment to the other, in whole seconds.
fn span(later: u64, earlier: u64) -> String {
    duration::format(Duration::from_secs(later.saturating_sub(earlier) / 1000))
}
