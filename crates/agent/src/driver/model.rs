//! One request to the model, seen and accounted for.

use serde_json::json;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Snapshot;
use toolwright_core::event::Event;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use toolwright_core::store::LedgerEntry;

use super::text::TextEvents;
use super::{Driver, DriverError, RunOptions, view};
use crate::run::RunState;

impl Driver {
    /// Asks the model and tells the state what came of it.
    pub(super) async fn ask_model(
        &self,
        state: &mut RunState,
        mut request: ModelRequest,
        snapshot: &Snapshot,
        options: &RunOptions,
        cancel: &Cancel,
    ) -> Result<(), DriverError> {
        request.tools =
            view::shown(snapshot, &options.session.principal).map(|entry| view::shown_tool(entry)).collect();
        let (model, turn) = (state.spec().model.clone(), state.turns() + 1);
        let answer = self.complete(&model, turn, &request, options, cancel).await;
        match answer {
            Ok(response) => state.on_model(response, &|name| view::resolve(snapshot, name))?,
            Err(error) => match (cancel.cause(), error.kind) {
                (Some(cause), _) => state.cancel(cause),
                (None, ModelErrorKind::Canceled) => state.cancel(CancelCause::User),
                // The window is smaller than was known. Each round removes something, so they end.
                (None, ModelErrorKind::ContextOverflow) if self.trim(state, state.context_tokens() / 4 * 3) > 0 => {}
                _ => state.on_model_error(&error)?,
            },
        }
        Ok(())
    }

    async fn complete(
        &self,
        model: &str,
        turn: u32,
        request: &ModelRequest,
        options: &RunOptions,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let services = self.executor.services();
        let session = &options.session.id;
        let shown = request.tools.iter().map(|tool| tool.name.clone()).collect();
        services.events.emit(Event::ModelStarted { session: session.clone(), model: model.to_owned(), turn, shown });
        self.record(options, || json!({"type": "request", "turn": turn, "model": model, "request": request}));
        let started = services.clock.now();
        let text = TextEvents::new(services.events.clone(), services.redactor.clone());
        let answer = tokio::select! {
            biased;
            cause = cancel.cancelled() => Err(ModelError::new(ModelErrorKind::Canceled, format!("cancelled {}", cause.describe()))),
            answer = self.model.complete(model, request, &text, cancel) => answer,
        };
        text.finish();
        let latency = services.clock.now().saturating_duration_since(started);
        let latency_ms = u64::try_from(latency.as_millis()).unwrap_or(u64::MAX);
        let (usage, characters_out, status, message) = match &answer {
            Ok(response) => (response.usage, answer_characters(response), "ok".to_owned(), None),
            Err(error) => (
                Default::default(),
                0,
                kind_name(error.kind),
                Some(services.redactor.redact(&error.message).into_owned()),
            ),
        };
        self.record(options, || match &answer {
            Ok(response) => json!({"type": "response", "turn": turn, "response": response}),
            Err(error) => json!({"type": "model_error", "turn": turn, "kind": error.kind, "message": error.message}),
        });
        services.events.emit(Event::ModelFinished {
            session: session.clone(),
            model: model.to_owned(),
            ok: answer.is_ok(),
            message,
            latency_ms,
            usage,
        });
        self.executor.ledger().append(LedgerEntry {
            at_ms: services.clock.wall_ms(),
            session: session.clone(),
            principal: options.session.principal.id.clone(),
            kind: "model".into(),
            call: None,
            name: model.to_owned(),
            status,
            latency_ms,
            characters_in: request_characters(request),
            characters_out,
            usage,
            validated: false,
            decided_by: String::new(),
        });
        answer
    }
}

fn kind_name(kind: ModelErrorKind) -> String {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{kind:?}"),
    }
}

fn request_characters(request: &ModelRequest) -> u64 {
    use toolwright_core::content::joined_text;
    use toolwright_core::model::Message;
    let count = |text: &str| text.chars().count() as u64;
    let message = |message: &Message| match message {
        Message::User { content } => count(&joined_text(content)),
        Message::Assistant { text, calls, .. } => {
            count(text) + calls.iter().map(|call| count(&call.name) + count(&call.arguments)).sum::<u64>()
        }
        Message::Tool { results } => results.iter().map(|result| count(&joined_text(&result.content))).sum(),
    };
    count(&request.system) + request.messages.iter().map(message).sum::<u64>()
}

fn answer_characters(response: &ModelResponse) -> u64 {
    let calls: usize =
        response.calls.iter().map(|call| call.name.chars().count() + call.arguments.chars().count()).sum();
    (response.text.chars().count() + calls) as u64
}
