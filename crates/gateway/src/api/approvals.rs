//! Serves the inbox of approvals and forms to the owner. A program that Toolwright started can decide nothing, whatever
//! token it has.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::inbox::{
    AnswerStatus, AnyQuestion, FormQuestion, FormReply, InboxItem, QuestionState, RequestedAction,
};
use toolwright_core::session::PeerProcess;
use toolwright_mcp::elicitation::Form;

use super::{Api, ApiResult, JsonBody, PathParam, QueryParams, bounded};
use crate::http::{ApiError, Connection};

/// The most rows that are listed.
const LISTED: usize = 1000;
/// The default reason of a denial.
const DENIED: &str = "the user said no";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    #[serde(default)]
    all: bool,
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecideRequest {
    decision: Decision,
    reason: Option<String>,
    content: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Approve,
    Always,
    AlwaysThese,
    Deny,
    Skip,
    Accept,
    Decline,
}

impl Api {
    async fn require_decider(&self, connection: &Connection) -> Result<(), ApiError> {
        self.owner_only()?;
        self.not_nested(connection).await
    }

    /// Refuses programs that Toolwright started.
    pub(super) async fn not_nested(&self, connection: &Connection) -> Result<(), ApiError> {
        match connection.process().await {
            PeerProcess::Owners | PeerProcess::Unknown => Ok(()),
            PeerProcess::Nested => Err(ApiError::forbidden(
                "a process that Toolwright started, or that hides itself, cannot approve: the owner does, with `toolwright approvals` in a \
                 terminal of their own",
            )),
        }
    }

    fn owner_only(&self) -> Result<(), ApiError> {
        if self.principal.owner {
            Ok(())
        } else {
            Err(ApiError::forbidden("approvals are for the owner of this server, and this token is another's"))
        }
    }
}

/// Handles `GET /api/approvals`.
pub(super) async fn list(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<List>) -> ApiResult {
    api.owner_only()?;
    let state = (!asked.all).then_some(QuestionState::Pending);
    let limit = bounded("limit", asked.limit, LISTED, LISTED)?;
    let page = api.stores.inbox.inbox(state, asked.after.as_deref(), limit).await?;
    let questions: Value = page.questions.iter().map(AnyQuestion::to_json).collect();
    api.ok(&json!({"questions": questions, "total": page.total, "next": page.next}))
}

/// Handles `GET /api/approvals/{id}`.
pub(super) async fn show(State(api): State<Arc<Api>>, PathParam(id): PathParam) -> ApiResult {
    api.owner_only()?;
    let inbox = &api.stores.inbox;
    let (mut item_json, call) = match (inbox.question(&id).await?, inbox.form(&id).await?) {
        (Some(question), _) => (question.to_json(), Some(question)),
        (None, Some(form)) => (form.to_json(), None),
        (None, None) => return Err(ApiError::not_found(format!("no question has the id {id}"))),
    };
    let pending = call.filter(|question| question.state == QuestionState::Pending);
    if let (Some(question), Some(operator)) = (pending, &api.operator) {
        item_json["prospect"] = operator.decision_preview(&question.request).await?;
    }
    api.ok(&item_json)
}

/// Handles `POST /api/approvals/{id}`.
pub(super) async fn answer(
    State(api): State<Arc<Api>>,
    Extension(connection): Extension<Connection>,
    PathParam(id): PathParam,
    JsonBody(asked): JsonBody<DecideRequest>,
) -> ApiResult {
    api.require_decider(&connection).await?;
    if asked.content.is_some() && !matches!(asked.decision, Decision::Accept) {
        return Err(ApiError::bad_request("`content` goes with the decision `accept`"));
    }
    if asked.reason.is_some() && !matches!(asked.decision, Decision::Deny) {
        return Err(ApiError::bad_request("`reason` goes with the decision `deny`"));
    }
    let (decision, state) = match asked.decision {
        Decision::Approve => (ApprovalDecision::Approve, QuestionState::Approved),
        Decision::Always => (ApprovalDecision::Always, QuestionState::Approved),
        Decision::AlwaysThese => (ApprovalDecision::AlwaysThese, QuestionState::Approved),
        Decision::Deny => {
            let reason = asked.reason.unwrap_or_else(|| DENIED.to_owned());
            (ApprovalDecision::Deny { reason }, QuestionState::Denied)
        }
        Decision::Skip => (ApprovalDecision::Skip, QuestionState::Denied),
        Decision::Accept | Decision::Decline => return answer_form(&api, &id, asked).await,
    };
    let answered = api.stores.inbox.answer(&id, &decision, &api.principal.id).await?;
    if answered == AnswerStatus::Unknown && api.stores.inbox.form(&id).await?.is_some() {
        return Err(ApiError::bad_request(format!("{id} is no call: answer it with `accept` or `decline`")));
    }
    settled(&api, &id, answered, state)
}

/// Answers a form that a tool's source sent.
async fn answer_form(api: &Api, id: &str, request: DecideRequest) -> ApiResult {
    let inbox = &api.stores.inbox;
    let Some(form) = inbox.form(id).await? else {
        return Err(match inbox.question(id).await? {
            Some(_) => ApiError::bad_request(format!("{id} is a call: answer it with approve, always, deny or skip")),
            None => ApiError::not_found(format!("no question has the id {id}")),
        });
    };
    let (reply, state) = match request.decision {
        // The schema of a settled form is not stored, so the content of a late answer is not checked.
        Decision::Accept if form.state != QuestionState::Pending => {
            (FormReply::Accept { content: Map::new() }, QuestionState::Approved)
        }
        Decision::Accept => {
            let content = filled_in(&form, request.content.unwrap_or_default())?;
            (FormReply::Accept { content }, QuestionState::Approved)
        }
        _ => (FormReply::Decline, QuestionState::Denied),
    };
    settled(api, id, inbox.answer_form(id, &reply, &api.principal.id).await?, state)
}

/// Returns the content, if it is valid for the form.
fn filled_in(form: &FormQuestion, content: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let checked = match &form.request.wants {
        RequestedAction::Form(schema) => Form::new(form.request.message.clone(), schema)
            .map_err(|why| vec![why])
            .and_then(|form| form.check(content)),
        RequestedAction::Page(_) if content.is_empty() => Ok(content),
        RequestedAction::Page(_) => {
            Err(vec!["it asks for a page to be opened; there is nothing to fill in".to_owned()])
        }
    };
    checked.map_err(|wrong| ApiError::bad_request(format!("`content`: {}", wrong.join("; "))))
}

fn settled<Q, A>(api: &Api, id: &str, answered: AnswerStatus<InboxItem<Q, A>>, state: QuestionState) -> ApiResult {
    match answered {
        AnswerStatus::Accepted => api.ok(&json!({"id": id, "state": state})),
        AnswerStatus::AlreadySettled(question) => {
            let by = question.settled_by().map(|by| format!(" by {by}")).unwrap_or_default();
            let state = question.state.as_str();
            Err(ApiError::conflict(format!("{id} is {state}{by} already: this answer came too late")))
        }
        AnswerStatus::Unknown => Err(ApiError::not_found(format!("no question has the id {id}"))),
    }
}

/// Handles `GET /api/approvals/standing`.
pub(super) async fn list_standing(State(api): State<Arc<Api>>) -> ApiResult {
    api.owner_only()?;
    let standing = api.stores.approvals.list_standing(LISTED).await?;
    api.ok(&standing.iter().map(|row| json!(row)).collect::<Value>())
}

/// Handles `DELETE /api/approvals/standing/{id}`.
pub(super) async fn revoke(
    State(api): State<Arc<Api>>,
    Extension(connection): Extension<Connection>,
    PathParam(id): PathParam,
) -> ApiResult {
    api.require_decider(&connection).await?;
    if api.stores.approvals.revoke(&id).await? {
        return api.ok(&json!({"id": id, "state": "revoked"}));
    }
    Err(ApiError::not_found(format!("nothing that was approved for always has the id {id}")))
}
