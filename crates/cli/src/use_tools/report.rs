//! The report of a run or of an answer in a chat, for people and as JSON.

use serde_json::Value;
use toolwright::agent::{ChildEnd, Format, RunReport, Status, UnfinishedChild};

use crate::app::GlobalOptions;
use crate::exit::{Exit, Failure};
use crate::terminal::markdown::render;
use crate::terminal::progress::{TaskCost, TextOutput, TextShown};
use crate::terminal::screen::{
    BAD, DIM, WARN, columns, print_json, print_unwrapped, prose, sanitize, say, size, styled,
};

/// Prints the report of the run `id`.
pub(super) fn print_report(
    global: &GlobalOptions,
    id: &str,
    report: &RunReport,
    text: TextOutput,
    (shown, cost): (TextShown, TaskCost),
) -> Result<(), Failure> {
    if global.json {
        print_json(&with_id(report, id))?;
        if report.status != Status::Success {
            summary(report, cost, WITH_SERVE);
        }
        return Ok(());
    }
    print_answer(report, text, shown)?;
    for call in &report.held {
        say(format_args!("{} {} {}", call.id, call.tool, sanitize(&call.arguments.to_string())));
        if let Some(verdict) = &call.verdict {
            say(styled(DIM, format_args!("  {}: {}", verdict.effect, sanitize(&verdict.reason))));
        }
    }
    if !report.held.is_empty() {
        say(styled(DIM, format_args!("toolwright run --resume {id} runs them; with --call CALL only that one")));
    }
    summary(report, cost, WITH_SERVE);
    Ok(())
}

/// Prints the answer unless it is on the screen already: a streamed answer is, an answer by a call is not. If there is
/// none, the summary has the reason.
pub(super) fn print_answer(report: &RunReport, text: TextOutput, shown: TextShown) -> std::io::Result<()> {
    if report.has_answer() && (report.is_delivered() || text == TextOutput::Held || shown == TextShown::Gaps) {
        let answer = prose(&report.answer);
        let is_markdown = report.final_report.as_ref().is_none_or(|report| report.format == Format::Markdown);
        match columns().filter(|_| is_markdown) {
            Some(width) => print_unwrapped(&render(&answer, width))?,
            None => print_unwrapped(&answer)?,
        }
    }
    Ok(())
}

/// Returns the report of the run `id`, with the id for `run --resume`.
pub(crate) fn with_id(report: &RunReport, id: &str) -> Value {
    let mut value = report.to_json();
    value["run"] = id.into();
    value
}

/// What a detached agent does when this process ends.
const WITH_SERVE: &str = "goes on when `toolwright serve` runs";

/// Describes what happened to an agent that was still working when the run ended; a detached one `goes_on` so.
fn ended(child: &UnfinishedChild, resume_hint: &str) -> String {
    let end = match child.end {
        ChildEnd::Cancelled => "was cancelled",
        ChildEnd::Detached => resume_hint,
    };
    format!("agent {} (job {}) had not ended: it {end}", sanitize(&child.agent), sanitize(&child.job))
}

/// Prints a line about a finished task, after lines about its sources, files and unfinished agents; a detached agent
/// `goes_on` so.
pub(super) fn summary(report: &RunReport, cost: TaskCost, resume_hint: &str) {
    for source in &report.sources {
        let url = source.url.as_deref().filter(|url| *url != source.title).map(|url| format!(" {url}"));
        say(format_args!("source: {}{}", sanitize(&source.title), sanitize(&url.unwrap_or_default())));
    }
    for file in &report.files {
        let at = match (&file.handle, file.bytes) {
            (Some(handle), Some(bytes)) => {
                format!("{} as {handle}", size(usize::try_from(bytes).unwrap_or(usize::MAX)))
            }
            _ => format!("{} at the model's provider", file.name),
        };
        say(format_args!("file: {}, {}", sanitize(&file.media_type), sanitize(&at)));
    }
    for child in &report.children {
        say(styled(WARN, ended(child, resume_hint)));
    }
    let usage = report.usage;
    let figures = format!(
        "{} turns, {} calls, {} tokens in, {} out{cost}",
        report.turns,
        report.calls.len(),
        usage.input_tokens,
        usage.output_tokens
    );
    match &report.reason {
        Some(reason) if report.status != Status::Success => {
            say(styled(BAD, format_args!("{}: {} ({figures})", report.status.as_str(), sanitize(reason))))
        }
        _ => say(styled(DIM, format_args!("{}: {figures}", report.status.as_str()))),
    }
}

/// Returns the exit code of a run.
pub(crate) fn exit(status: Status) -> Exit {
    match status {
        Status::Success => Exit::Ok,
        Status::Failure | Status::Partial => Exit::Failed,
        Status::Cancelled => Exit::Cancelled,
        Status::Suspended => Exit::Denied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_had_not_ended_are_named() {
        for (end, expect) in [
            (ChildEnd::Cancelled, "agent slow (job 7) had not ended: it was cancelled"),
            (ChildEnd::Detached, "agent slow (job 7) had not ended: it goes on when `toolwright serve` runs"),
        ] {
            assert_eq!(ended(&UnfinishedChild { agent: "slow".into(), job: "7".into(), end }, WITH_SERVE), expect);
        }
    }
}
