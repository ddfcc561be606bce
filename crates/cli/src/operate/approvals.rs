//! `approvals`: lists pending questions and standing approvals, and answers them.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Map, Value, json};
use toolwright::Toolwright;
use toolwright::core::approval::{AlwaysScope, StandingApproval};
use toolwright::core::inbox::{
    AnswerStatus, FormQuestion, FormReply, InboxItem, InboxStore, Question, QuestionState, RequestedAction,
};
use toolwright::core::store::StoreError;
use toolwright::core::{ApprovalDecision, duration, taint};
use toolwright::mcp::elicitation::{Form, Page};

use crate::app::{GlobalOptions, not_nested, now_ms, open};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::person::{MAX_SHOWN, field_lines, page_lines};
use crate::terminal::screen::{DIM, WARN, one_line, print_json, sanitize, say, styled};
use crate::terminal::table::{Cell, Table, name, print_list};

/// The most rows that are listed.
const LISTED: usize = 1000;
/// Characters of arguments in a list for people; of waiting ones, as many as of a form.
const SHOWN: usize = 200;
/// The name of the decider here.
const OWNER: &str = "owner";

#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List the questions that wait for an answer.
    Ls {
        /// Also lists questions that were answered, expired or withdrawn.
        #[arg(long, conflicts_with = "standing")]
        all: bool,
        /// Lists standing approvals instead.
        #[arg(long)]
        standing: bool,
    },
    /// Approve a call, so that it runs.
    Approve {
        /// The question's id.
        id: String,
        /// Also approves later calls of the session, as far as `approvals ls` says for the question: calls of this tool
        /// as it is defined now and inside the workspace, or only calls with exactly these arguments if the tool may do
        /// anything.
        #[arg(long)]
        always: bool,
    },
    /// Answer a question of a tool's source, or confirm that its page was opened.
    Answer {
        /// The question's id.
        id: String,
        /// The answers: one JSON object, or field=value pairs. None for a page.
        #[arg(value_name = "JSON|FIELD=VALUE")]
        values: Vec<String>,
    },
    /// Deny a call, or decline a question of a tool's source.
    Deny {
        /// The question's id.
        id: String,
        /// Why the call is denied; the model reads it.
        #[arg(long, value_name = "TEXT", default_value = "the user said no")]
        reason: String,
    },
    /// Withdraw a standing approval.
    Revoke {
        /// Its id, as `approvals ls --standing` lists it.
        id: String,
    },
}

pub(crate) async fn command(global: &GlobalOptions, command: &ApprovalsCommand) -> CommandResult {
    if !matches!(command, ApprovalsCommand::Ls { .. }) {
        not_nested("approve")?;
    }
    let app = open(global).await?;
    let done = run(global, command, &app).await;
    app.shut_down().await;
    done
}

async fn run(global: &GlobalOptions, command: &ApprovalsCommand, app: &Toolwright) -> CommandResult {
    let inbox = app.inbox();
    match command {
        ApprovalsCommand::Ls { standing: true, .. } => {
            let standing = app.approvals().list_standing(LISTED).await?;
            let mut table = Table::new(["id", "tool", "in"]);
            standing.iter().for_each(|standing| add_approval_row(&mut table, standing));
            let rows = standing.iter().map(|standing| json!(standing)).collect();
            print_list(global.json, rows, &table, "nothing was approved for always")
        }
        ApprovalsCommand::Ls { all, .. } => {
            if let Some(waiting) = crate::operate::pins::waiting(app).await {
                say(styled(WARN, waiting));
            }
            let state = (!all).then_some(QuestionState::Pending);
            let mut table = Table::new(["id", "tool or server", "state"]);
            let mut json = Vec::new();
            for row in question_rows(&*inbox, state).await? {
                table.row_with(row.cells, row.below);
                json.push(row.json);
            }
            print_list(global.json, json, &table, "nothing waits for an answer")
        }
        ApprovalsCommand::Approve { id, always } => {
            if inbox.form(id).await?.is_some() {
                return Err(Failure::usage(format!("{id} is no call; `approvals answer {id}` answers it")));
            }
            let decision = if *always { ApprovalDecision::Always } else { ApprovalDecision::Approve };
            print_answered(global, id, inbox.answer(id, &decision, OWNER).await?, QuestionState::Approved)
        }
        ApprovalsCommand::Answer { id, values } => {
            let Some(form) = inbox.form(id).await? else {
                let message = format!("no form or page has the id {id}; `approvals ls` shows them");
                return Err(Failure::not_found(message));
            };
            let reply = reply(&form, values).map_err(|why| Failure::usage(format!("{id}: {why}")))?;
            print_answered(global, id, inbox.answer_form(id, &reply, OWNER).await?, QuestionState::Approved)
        }
        ApprovalsCommand::Deny { id, reason } => {
            if inbox.form(id).await?.is_some() {
                let answered = inbox.answer_form(id, &FormReply::Decline, OWNER).await?;
                return print_answered(global, id, answered, QuestionState::Denied);
            }
            let decision = ApprovalDecision::Deny { reason: reason.clone() };
            print_answered(global, id, inbox.answer(id, &decision, OWNER).await?, QuestionState::Denied)
        }
        ApprovalsCommand::Revoke { id } => match app.approvals().revoke(id).await? {
            true => print_state(global, id, "revoked"),
            false => Err(Failure::not_found(format!("nothing that was approved for always has the id {id}"))),
        },
    }
}

/// A question of either kind, as shown.
struct Row {
    created_ms: u64,
    json: Value,
    cells: [Cell; 3],
    /// The complete question, so that the person has read it before the answer.
    below: String,
}

/// Returns questions about calls and forms of sources, the newest first.
async fn question_rows(inbox: &dyn InboxStore, state: Option<QuestionState>) -> Result<Vec<Row>, StoreError> {
    let (calls, forms) = (inbox.questions(state, LISTED).await?, inbox.forms(state, LISTED).await?);
    let calls = calls.iter().map(|asked| Row {
        created_ms: asked.created_ms,
        json: asked.to_json(),
        cells: cells(&asked.id, asked.request.tool.without_version(), when(asked)),
        below: question_lines(asked),
    });
    let forms = forms.iter().map(|asked| Row {
        created_ms: asked.created_ms,
        json: asked.to_json(),
        cells: cells(&asked.id, &sanitize(&asked.request.source), when(asked)),
        below: form_lines(asked),
    });
    let mut rows: Vec<Row> = calls.chain(forms).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.created_ms));
    Ok(rows)
}

/// Parses the answer in these words, if the form accepts it.
fn reply(form: &FormQuestion, words: &[String]) -> Result<FormReply, String> {
    if form.state != QuestionState::Pending {
        // The form is no longer stored; the inbox reports that the answer is too late.
        return Ok(FormReply::Accept { content: Map::new() });
    }
    let RequestedAction::Form(schema) = &form.request.wants else {
        return match words {
            [] => Ok(FormReply::Accept { content: Map::new() }),
            _ => Err("it asks for a page to be opened; there is nothing to fill in".to_owned()),
        };
    };
    let form = Form::new(form.request.message.clone(), schema)?;
    let given = match words {
        [json] if json.trim_start().starts_with('{') => {
            serde_json::from_str(json).map_err(|error| format!("the values are no JSON object: {error}"))?
        }
        pairs => {
            let mut given = Map::new();
            for pair in pairs {
                let (name, typed) =
                    pair.split_once('=').ok_or_else(|| format!("`{}` is not field=value", one_line(pair, SHOWN)))?;
                let field = form.fields.iter().find(|field| field.name == name);
                let field = field.ok_or_else(|| format!("there is no field `{}`", one_line(name, SHOWN)))?;
                given.insert(name.to_owned(), field.read(typed).map_err(|why| format!("`{name}`: {why}"))?);
            }
            given
        }
    };
    form.check(given).map(|content| FormReply::Accept { content }).map_err(|wrong| wrong.join("; "))
}

fn print_answered<Q, A>(
    global: &GlobalOptions,
    id: &str,
    answer: AnswerStatus<InboxItem<Q, A>>,
    state: QuestionState,
) -> CommandResult {
    match answer {
        AnswerStatus::Accepted => print_state(global, id, state.as_str()),
        AnswerStatus::AlreadySettled(question) => {
            Err(Failure::failed(format!("{id} is {} already: this answer came too late", settled(&question))))
        }
        AnswerStatus::Unknown => {
            Err(Failure::not_found(format!("no question has the id {id}; `approvals ls` shows them")))
        }
    }
}

/// Returns the state of an answered question, and who answered it.
fn settled<Q, A>(asked: &InboxItem<Q, A>) -> String {
    let by = asked.settled_by().map(|by| format!(" by {by}")).unwrap_or_default();
    format!("{}{by}", asked.state.as_str())
}

fn print_state(global: &GlobalOptions, id: &str, state: &str) -> CommandResult {
    if global.json {
        print_json(&json!({"id": id, "state": state}))?;
    } else {
        say(format_args!("{id} is {state}"));
    }
    Ok(Exit::Ok)
}

fn cells(id: &str, of: &str, state: String) -> [Cell; 3] {
    [id.into(), name(of), Cell::of(DIM, state)]
}

fn when<Q, A>(asked: &InboxItem<Q, A>) -> String {
    match asked.state {
        QuestionState::Pending => format!("expires in {}", span(asked.expires_ms, now_ms())),
        state => format!("{}, asked {} ago", state.as_str(), span(now_ms(), asked.created_ms)),
    }
}

fn form_lines(form: &FormQuestion) -> String {
    let request = &form.request;
    let message = sanitize(&request.message);
    let shown: String = message.chars().take(MAX_SHOWN).collect();
    let mut lines: Vec<String> = shown.lines().map(str::to_owned).collect();
    let cut = message.chars().count() - shown.chars().count();
    if cut > 0 {
        lines.push(styled(WARN, format_args!("… {cut} more characters are not shown")));
    }
    if form.state != QuestionState::Pending {
        return lines.join("\n");
    }
    match &request.wants {
        RequestedAction::Page(address) => match Page::of(&json!({"message": "", "url": address})) {
            Ok(page) => {
                lines.push("open, if you trust it:".to_owned());
                lines.extend(page_lines(&page));
            }
            Err(why) => lines.push(sanitize(&why)),
        },
        // A form that cannot be parsed cannot be answered either.
        RequestedAction::Form(schema) => match Form::new(request.message.clone(), schema) {
            Ok(form) => lines.extend(form.fields.iter().flat_map(|field| {
                let described = field_lines(field).into_iter().map(|line| format!("  {line}"));
                std::iter::once(format!("{}=", one_line(&field.name, SHOWN))).chain(described)
            })),
            Err(why) => lines.push(sanitize(&why)),
        },
    }
    lines.join("\n")
}

fn question_lines(question: &Question) -> String {
    let request = &question.request;
    let asker = request.asker.as_deref().map(|asker| format!("on the wish of {}; ", one_line(asker, SHOWN)));
    let covers = match request.always_covers() {
        _ if question.state != QuestionState::Pending => String::new(),
        AlwaysScope::Tool => "; --always lets this tool run".to_owned(),
        AlwaysScope::ToolForAsker => "; --always lets it run whenever they wish".to_owned(),
        AlwaysScope::ToolInWorkspace => "; --always lets this tool run inside the workspace".to_owned(),
        AlwaysScope::ThisCall => "; --always lets it run with exactly these arguments".to_owned(),
    };
    let path = request.agent_path().map(|path| format!("called by {}; ", one_line(&path, SHOWN)));
    let tainted = taint::in_words(&request.tainted).map(|what| format!("untrusted: {}; ", one_line(&what, SHOWN)));
    let by = [path, asker, tainted].map(Option::unwrap_or_default).concat();
    let reason = format!("{by}{}{covers}", one_line(&request.reason, SHOWN));
    let shown = if question.state == QuestionState::Pending { MAX_SHOWN } else { SHOWN };
    format!("{}\n{}", one_line(&request.arguments.to_string(), shown), styled(DIM, reason))
}

fn add_approval_row(table: &mut Table, standing: &StandingApproval) {
    let covers = match (&standing.arguments, &standing.asker) {
        (Some(arguments), _) => one_line(&arguments.to_string(), SHOWN),
        (None, Some(asker)) => format!("whatever {} asks", one_line(asker, SHOWN)),
        (None, None) => "any arguments".to_owned(),
    };
    let cells = [(&standing.id).into(), name(standing.tool.without_version()), Cell::of(DIM, &standing.scope)];
    table.row_with(cells, covers);
}

/// Returns the time from one moment to the other, in whole seconds.
fn span(later: u64, earlier: u64) -> String {
    duration::format(Duration::from_secs(later.saturating_sub(earlier) / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright::core::inbox::FormRequest;
    use toolwright::core::session::SessionId;

    #[test]
    fn the_inbox_shows_a_page_message_and_host() {
        let request = FormRequest {
            session: SessionId::new("s"),
            principal: "owner".into(),
            source: "fx:ask".into(),
            message: format!("{}end\u{1b}[2J", "m".repeat(1000)),
            wants: RequestedAction::Page("https://b\u{430}nk.example/a".into()),
        };
        let mut form = FormQuestion {
            id: "form_1".into(),
            request,
            created_ms: 0,
            expires_ms: u64::MAX,
            state: QuestionState::Pending,
            decision: None,
            decided_by: None,
        };
        let lines = form_lines(&form);
        for shown in ["mend", "https://xn--bnk-6cd.example/a\n", "look like others"] {
            assert!(lines.contains(shown), "{shown}: {lines}");
        }
        assert!(!lines.contains("\u{1b}[2J"), "{lines}");
        form.state = QuestionState::Withdrawn;
        assert!(!form_lines(&form).contains("example"), "it is no longer asked");
    }
}
