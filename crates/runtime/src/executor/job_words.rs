//! What a caller reads of a job: that its call goes on as one, and what a step of it came to.

use toolwright_core::catalogue::Entry;
use toolwright_core::content::ContentBlock;
use toolwright_core::definition::ToolDefinition;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::job::{self, Follows, JobRecord, JobState};
use toolwright_core::outcome::{Outcome, STANDS_IN, ToolOutput};

/// The result of a call that goes on as a job.
pub(super) fn started(id: &str, definition: &ToolDefinition, state: JobState, follows: Follows) -> ToolOutput {
    noted(ToolOutput::text(job::started_text(id, &definition.id, state, follows)), id, definition, state)
}

/// The result of a call that has its job already.
pub(super) fn known(job: &JobRecord, entry: &Entry, follows: Follows) -> ToolOutput {
    let (id, definition) = (&job.id, entry.definition());
    let goes_on = || job::started_text(id, &definition.id, job.state, follows);
    let text = if job.state.is_over() { job.line() } else { goes_on() };
    noted(ToolOutput::text(text), id, definition, job.state)
}

/// Notes the job beside a result. A tool's own schema is for its own results: such clients find it in `_meta`.
pub(super) fn noted(mut output: ToolOutput, id: &str, definition: &ToolDefinition, state: JobState) -> ToolOutput {
    let note = job::note(id, &definition.id, state);
    if definition.output_schema.is_none() {
        output.structured = Some(note.clone());
    }
    output.extras.insert(STANDS_IN.into(), "job".into());
    output.meta.insert("toolwright/job".into(), note);
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
        output.content.push(ContentBlock::text(job::started_text(&job.id, &job.tool, job.state, follows)));
        if output.structured.is_none() && definition.output_schema.is_none() {
            output.structured = Some(job.note());
        }
        output.meta.insert("toolwright/job".into(), job.note());
    }
    Ok(output)
}
