//! Requests that need input of the client before they can be answered. A script is a pure function of the input so far
//! and returns the next questions or the answer. Modern clients are asked by an `input_required` result and call again;
//! legacy clients get requests of the server during their own.

use serde_json::{Map, Value, json};

use super::seal::Seal;
use crate::wire::{Answer, Era, Exchange, Request, RpcError};

/// The most rounds of questions to a legacy client.
const MAX_ROUNDS: usize = 8;

/// The client's input so far.
pub(super) struct Round<'a> {
    pub(super) request: &'a Request,
    pub(super) answers: &'a Map<String, Value>,
    /// The state that the script attached to its last questions.
    pub(super) state: Option<&'a Value>,
}

impl Round<'_> {
    /// Returns a person's answer to a form; a declined or cancelled form counts as an answer.
    pub(super) fn form(&self, key: &str) -> Option<Form<'_>> {
        let answer = self.answers.get(key)?;
        Some(match answer.get("action")?.as_str()? {
            "accept" => Form::Accepted(answer.get("content").unwrap_or(&Value::Null)),
            _ => Form::Refused,
        })
    }
}

pub(super) enum Form<'a> {
    Accepted(&'a Value),
    Refused,
}

pub(super) enum Step {
    Ask {
        /// Requests to the client, under names chosen by the script.
        questions: Map<String, Value>,
        /// The state to return with the answers.
        state: Option<Value>,
    },
    Done(Answer),
}

impl Step {
    pub(super) fn ask<const N: usize>(questions: [(&str, Value); N]) -> Self {
        let questions = questions.into_iter().map(|(key, question)| (key.to_owned(), question)).collect();
        Self::Ask { questions, state: None }
    }

    pub(super) fn with_state(self, state: Value) -> Self {
        match self {
            Self::Ask { questions, .. } => Self::Ask { questions, state: Some(state) },
            done => done,
        }
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Done(Answer::text(text))
    }
}

pub(super) type Script = fn(&Round<'_>) -> Step;

pub(super) async fn hold(seal: &Seal, request: &Request, exchange: &Exchange, script: Script) -> Answer {
    match request.era {
        Era::Modern => match one_round(seal, request, exchange, script) {
            Ok(answer) => answer,
            Err(error) => error.into(),
        },
        Era::Legacy => all_rounds(request, exchange, script).await,
    }
}

/// Asks the questions that the client can answer, or returns the error that names the missing capability.
fn one_round(seal: &Seal, request: &Request, exchange: &Exchange, script: Script) -> Result<Answer, RpcError> {
    let none = Map::new();
    let answers = match request.params.get("inputResponses") {
        None => &none,
        Some(Value::Object(answers)) if answers.values().all(Value::is_object) => answers,
        Some(_) => return Err(RpcError::invalid("inputResponses is an object of objects")),
    };
    let state = match request.params.get("requestState") {
        None => None,
        Some(token) => Some(seal.open(request, token.as_str().unwrap_or_default())?),
    };
    let (questions, state) = match script(&Round { request, answers, state: state.as_ref() }) {
        Step::Done(answer) => return Ok(answer),
        Step::Ask { questions, state } => (questions, state),
    };
    let mut required = json!({});
    for question in questions.values() {
        required[capability(question)] = json!({});
    }
    let able: Map<String, Value> =
        questions.into_iter().filter(|(_, question)| exchange.client_has(capability(question))).collect();
    if able.is_empty() {
        return Err(RpcError::missing_capability(required));
    }
    let mut result = json!({"resultType": "input_required", "inputRequests": able});
    if let Some(state) = state {
        result["requestState"] = json!(seal.close(request, &state));
    }
    Ok(Answer::Result(result))
}

/// Leaves out questions that the client refuses; the script continues with the rest if it can.
async fn all_rounds(request: &Request, exchange: &Exchange, script: Script) -> Answer {
    let (mut answers, mut state, mut refusal) = (Map::new(), None, None);
    for _ in 0..MAX_ROUNDS {
        let questions = match script(&Round { request, answers: &answers, state: state.as_ref() }) {
            Step::Done(answer) => return answer,
            Step::Ask { questions, state: next } => {
                state = next;
                questions
            }
        };
        if let Some(refusal) = refusal {
            return Answer::failure(refusal);
        }
        for (key, question) in questions {
            let capability = capability(&question);
            if !exchange.client_has(capability) {
                refusal = Some(format!("The client does not support {capability}"));
                continue;
            }
            let method = question["method"].as_str().unwrap_or_default();
            match exchange.ask(method, &question["params"]).await {
                Ok(answer) => {
                    answers.insert(key, answer);
                }
                Err(error) => refusal = Some(format!("The client refused: {}", error.message())),
            }
        }
    }
    Answer::failure("The client was asked too often")
}

/// Returns the client capability that this question needs.
fn capability(question: &Value) -> &'static str {
    match question["method"].as_str() {
        Some("elicitation/create") => "elicitation",
        Some("sampling/createMessage") => "sampling",
        _ => "roots",
    }
}
