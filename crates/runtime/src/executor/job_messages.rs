//! Messages to the caller about a job: that a call continues as one, and how a step ended.

use serde_json::Value;
use toolwright_core::approval::EXPIRY;
use toolwright_core::content::ContentBlock;
use toolwright_core::definition::ToolDefinition;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::job::{Follows, JobNotice, JobRecord, JobState, note};
use toolwright_core::outcome::{JOB_META, Outcome, STANDS_IN, ToolOutput};

/// Where a structured result that is the tool's own has what is said beside it.
const BESIDE: &str = "toolwright";

/// The result of a call that goes on as a job.
pub(super) fn started(id: &str, definition: &ToolDefinition, state: JobState, follows: Follows) -> ToolOutput {
    noted(JobNotice::started(id, &definition.id, state, follows), id, definition, state)
}

/// The result of a call that waits for a person's word as a job. Nothing has run: that is another thing than a job that
/// was begun.
pub(super) fn awaited(id: &str, definition: &ToolDefinition, follows: Follows) -> ToolOutput {
    let told = JobNotice::awaited(id, &definition.id, EXPIRY, follows);
    noted(told, id, definition, JobState::Pending).with_extra(STANDS_IN, "approval")
}

/// The result of a call that has its job already.
pub(super) fn known(job: &JobRecord, definition: &ToolDefinition, follows: Follows) -> ToolOutput {
    if job.state.is_over() {
        return left(job, definition);
    }
    started(&job.id, definition, job.state, follows)
}

/// The result of a call whose job has left it, as it is now.
pub(super) fn left(job: &JobRecord, definition: &ToolDefinition) -> ToolOutput {
    let next = "job__wait gives its result, if it has one.".to_owned();
    noted(JobNotice { status: "job", message: job.line(), next }, &job.id, definition, job.state)
}

/// The notice as a result. A tool's own schema is for its own results: such clients find it in `_meta`.
fn noted(told: JobNotice, id: &str, definition: &ToolDefinition, state: JobState) -> ToolOutput {
    let note = told.beside(note(id, &definition.id, state));
    let mut output = ToolOutput::text(told.text());
    if definition.output_schema.is_none() {
        output.structured = Some(note.clone());
    }
    output.extras.insert(STANDS_IN.into(), "job".into());
    output.meta.insert(JOB_META.into(), note);
    output
}

/// A step of a job as the result of the call that waited for it.
pub(super) fn step_output(
    job: &JobRecord,
    definition: &ToolDefinition,
    follows: Follows,
) -> Result<ToolOutput, ToolError> {
    let Some(outcome) = job.outcome.clone() else {
        return Err(ToolError::new(ErrorKind::InternalError, job.line()));
    };
    if let Some(error) = outcome.error {
        return Err(error);
    }
    let Outcome { content, structured, meta, extras, .. } = outcome;
    let mut output = ToolOutput { content, structured, is_error: false, meta, extras };
    if job.state == JobState::WaitingInput {
        let told = JobNotice::started(&job.id, &job.tool, job.state, follows);
        output.content.push(ContentBlock::text(told.text()));
        let note = told.beside(job.note());
        match &mut output.structured {
            _ if definition.output_schema.is_some() => {}
            Some(Value::Object(own)) => drop(own.insert(BESIDE.into(), note.clone())),
            Some(_) => {}
            none => *none = Some(note.clone()),
        }
        output.meta.insert(JOB_META.into(), note);
    }
    Ok(output)
}
