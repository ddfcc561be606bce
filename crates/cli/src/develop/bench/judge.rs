//! Rubrics, judged by `llm:score`.

use serde_json::{Value, json};
use toolwright::core::TraceId;
use toolwright::core::model::RequestAllowance;
use toolwright_eval::{Check, Kind, Verdict, judged};

use super::measure::{Bencher, Fault};

/// What a judge says of a check.
pub(super) enum Judged {
    /// This.
    Verdict(Verdict),
    /// Nothing: it could not be asked, or answered nothing that can be used.
    Failed(Fault),
}

impl Bencher<'_> {
    /// Has a rubric judged, as a call with a trace of its own.
    pub(super) async fn judged(
        &self,
        check: &Check,
        output: &Value,
        requests: &RequestAllowance,
        trace: &str,
    ) -> (Judged, Option<TraceId>) {
        let nothing = |note: &str| Judged::Verdict(Verdict { value: 0.0, note: Some(note.to_owned()) });
        let (Kind::Rubric { task, criteria, min, .. }, Some(tool), Some(judge)) =
            (&check.kind, &self.prepared.judge, &self.prepared.plan.judge)
        else {
            return (nothing("there is no judge"), None);
        };
        let Some(answer) = check.kind.judged_text(output) else { return (nothing("there is no text to judge"), None) };
        let mut input = json!({"task": task, "answer": answer});
        if !criteria.is_empty() {
            input["criteria"] = json!(criteria);
        }
        let (outcome, id) = self.call(tool, input, judge, None, requests, trace).await;
        if let Some(error) = &outcome.error {
            let mut fault = Fault::of(error);
            fault.what = format!("the judge {judge} gave no score: {}", fault.what);
            return (Judged::Failed(fault), Some(id));
        }
        let score = outcome.structured.as_ref().and_then(|value| value["score"].as_f64()).unwrap_or(f64::NAN);
        (Judged::Verdict(judged(score, *min)), Some(id))
    }
}
