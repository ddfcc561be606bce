//! The demo's model: a script that reads the results of its calls and contacts no API.

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright::core::Cancel;
use toolwright::core::model::{
    CallResult, Message, ModelClient, ModelError, ModelEvent, ModelEvents, ModelRequest, ModelResponse, StopReason,
    Usage, WrittenCall,
};

/// Whose models the script answers for.
pub(super) const PROVIDER: &str = "demo";
/// The id of the model.
pub(super) const MODEL: &str = "demo/scripted";
/// The task that the script solves.
pub(super) const TASK: &str =
    "Plan our picnic on Saturday in Oslo: look at the weather\nforecast, and order the lemonade that my notes ask for.";

/// The scripted model.
pub(super) struct ScriptedModel;

#[async_trait]
impl ModelClient for ScriptedModel {
    async fn complete(
        &self,
        _model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        _cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let turn = request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
        let (text, calls) = answer(turn, request);
        events.on_event(ModelEvent::Text(text.clone()));
        let call = |(index, (name, arguments)): (usize, (&str, Value))| WrittenCall {
            id: format!("call_{}_{}", turn + 1, index + 1),
            name: name.to_owned(),
            arguments: arguments.to_string(),
        };
        let calls: Vec<WrittenCall> = calls.into_iter().enumerate().map(call).collect();
        // Four characters a token, so that there is something to account for.
        let tokens = |characters: usize| u64::try_from(characters.div_ceil(4)).unwrap_or(u64::MAX);
        let sent = serde_json::to_string(request).map_or(0, |sent| sent.len());
        let written = text.len() + calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
        let usage = Usage { input_tokens: tokens(sent), output_tokens: tokens(written), ..Usage::default() };
        let stop = if calls.is_empty() { StopReason::End } else { StopReason::ToolCalls };
        Ok(ModelResponse { text, calls, usage, stop, ..ModelResponse::default() })
    }
}

type Answer = (String, Vec<(&'static str, Value)>);

fn answer(turn: usize, request: &ModelRequest) -> Answer {
    match turn {
        // A number as text, as models write it.
        0 => (
            "I look at the forecast and your notes, both at once.".into(),
            vec![
                ("weather__forecast", json!({"city": "Oslo", "days": "7"})),
                ("notes__search", json!({"query": "picnic"})),
            ],
        ),
        1 => {
            let forecast = result(request, "weather__forecast").map(text).unwrap_or_default();
            let Some(handle) = after(&forecast, "Handle: ") else {
                return ("The forecast came back without a handle; I stop here.".into(), Vec::new());
            };
            let bytes = after(&forecast, "because of its size: ").unwrap_or("many");
            (
                format!(
                    "The forecast has {bytes} bytes. I was shown its beginning and a handle\nto the rest, and search that for Saturday."
                ),
                vec![
                    ("output__grep", json!({"handle": handle, "pattern": "^Sat 1[2-6]"})),
                    ("shop__find", json!({"query": "lemonade"})),
                ],
            )
        }
        2 => (
            "The notes say one bottle for each of six.".into(),
            vec![("shop__order", json!({"article": "lemonade", "quantity": 6}))],
        ),
        _ => {
            let hours = result(request, "output__grep").map(text).unwrap_or_default();
            let noon = after(&hours, "Sat 14:00").map_or("unknown", str::trim);
            let order = match result(request, "shop__order") {
                Some(order) if !order.is_error => format!("Ordered: {}.", text(order)),
                _ => "Nothing was ordered, as you did not allow it.".to_owned(),
            };
            (format!("Saturday at 14:00 in Oslo: {noon}.\nHave your picnic then. {order}"), Vec::new())
        }
    }
}

/// The last result of a tool.
fn result<'r>(request: &'r ModelRequest, tool: &str) -> Option<&'r CallResult> {
    let results = request.messages.iter().rev().filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        _ => None,
    });
    results.flatten().find(|result| result.name == tool)
}

fn text(result: &CallResult) -> String {
    result.content.iter().filter_map(|block| block.as_text()).collect::<Vec<_>>().join("\n")
}

/// What follows `mark` in its line, up to ` bytes` if that is there.
fn after<'t>(text: &'t str, mark: &str) -> Option<&'t str> {
    let rest = text.split_once(mark)?.1;
    let line = rest.lines().next().unwrap_or_default();
    Some(line.split_once(" bytes").map_or(line, |(number, _)| number))
}
