//! `jobs ls | show | read | send | stop`: the background jobs of all of this user's processes.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::core::JobState;
use toolwright::core::duration::iso;
use toolwright::core::job::{JobFilter, JobRecord, JobScope, Jobs};
use toolwright::core::store::StoreError;

use crate::app::{GlobalOptions, not_nested, open};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::screen::{BAD, BOLD, DIM, GOOD, print_json, print_written, sanitize, say, styled};
use crate::terminal::table::{Cell, Table, print_list};
use crate::values::duration;

/// How long a stopped job may take to end.
const STOP_WAIT: Duration = Duration::from_secs(15);

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// List jobs, newest first.
    Ls {
        /// Most jobs to list.
        #[arg(long, default_value_t = 10_000, value_name = "N")]
        limit: usize,
        /// Lists only jobs that have not ended.
        #[arg(long)]
        open: bool,
    },
    /// Show one job and its outcome.
    Show {
        /// The job.
        id: String,
        /// Waits up to this time for the job to end, like 30s.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
    },
    /// Print a job's output and its result.
    Read {
        /// The job.
        id: String,
        /// First line, from 0; negative counts from the end.
        #[arg(long, default_value_t = 0, value_name = "LINE", allow_negative_numbers = true)]
        offset: i64,
        /// Most lines to print.
        #[arg(long, default_value_t = 1000, value_name = "N")]
        lines: usize,
    },
    /// Send input to a job that waits for it, and wait for the job's next answer.
    Send {
        /// The job.
        id: String,
        /// The input: JSON, or else a text.
        input: String,
        /// How long to wait for the answer, like 30s.
        #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = duration)]
        wait: Duration,
    },
    /// Stop jobs.
    Stop {
        /// The jobs.
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

pub(crate) async fn command(global: &GlobalOptions, command: &JobsCommand) -> CommandResult {
    if matches!(command, JobsCommand::Send { .. }) {
        not_nested("answer for a job")?;
    }
    let app = open(global).await?;
    app.jobs().settle().await.map_err(Failure::failed)?;
    let done = answer(global, command, &app).await;
    app.shut_down().await;
    done
}

async fn answer(global: &GlobalOptions, command: &JobsCommand, app: &Toolwright) -> CommandResult {
    let jobs: &dyn Jobs = &**app.jobs();
    match command {
        JobsCommand::Ls { limit, open } => {
            let listed = if *open { JobFilter::Open } else { JobFilter::All };
            let list = jobs.list(JobScope::All, listed, *limit).await.map_err(failure)?;
            return print_list(global.json, list.iter().map(JobRecord::to_json).collect(), &table(&list), "no jobs");
        }
        JobsCommand::Show { id, wait } => {
            let job = jobs.wait(JobScope::All, id, wait.unwrap_or_default()).await.map_err(failure)?;
            show(global, &job)?;
        }
        JobsCommand::Read { id, offset, lines } => {
            let read = jobs.read(JobScope::All, id, *offset, *lines).await.map_err(failure)?;
            if global.json {
                let job = jobs.get(JobScope::All, id).await.map_err(failure)?;
                print_json(&read.to_json(&job))?;
            } else {
                print_written(read.text.trim_end_matches('\n'))?;
            }
        }
        JobsCommand::Send { id, input, wait } => {
            let input = serde_json::from_str(input).unwrap_or_else(|_| Value::String(input.clone()));
            jobs.send(JobScope::All, id, input).await.map_err(failure)?;
            show(global, &jobs.wait(JobScope::All, id, *wait).await.map_err(failure)?)?;
        }
        JobsCommand::Stop { ids } => {
            let mut exit = Exit::Ok;
            let mut answers = Vec::with_capacity(ids.len());
            for id in ids {
                // A job that cannot be stopped does not prevent stopping the others.
                match stop(jobs, id).await {
                    Ok(job) => {
                        answers.push(job.to_json());
                        say(job.line());
                    }
                    Err(error) => {
                        let failure = failure(error);
                        say(styled(BAD, sanitize(&failure.message)));
                        answers.push(json!({"id": id, "error": failure.to_json()["error"]}));
                        exit = failure.exit;
                    }
                }
            }
            if global.json {
                print_json(&answers.into())?;
            }
            return Ok(exit);
        }
    }
    Ok(Exit::Ok)
}

/// Stops a job and waits a while for its end.
async fn stop(jobs: &dyn Jobs, id: &str) -> Result<JobRecord, StoreError> {
    jobs.stop(JobScope::All, id).await?;
    jobs.wait(JobScope::All, id, STOP_WAIT).await
}

fn failure(error: StoreError) -> Failure {
    match error {
        StoreError::NotFound(what) => {
            Failure::not_found(format!("{what} was not found; `toolwright jobs ls` lists them"))
        }
        other => Failure::failed(other),
    }
}

fn show(global: &GlobalOptions, job: &JobRecord) -> Result<(), Failure> {
    if global.json {
        return Ok(print_json(&job.to_whole_json())?);
    }
    say(job.line());
    if let Some(outcome) = &job.outcome {
        print_written(&outcome.model_text())?;
    }
    Ok(())
}

fn table(jobs: &[JobRecord]) -> Table {
    let mut table = Table::new(["job", "state", "tool", "started", "process", "arguments"]);
    for job in jobs {
        let style = match job.state {
            JobState::Done => GOOD,
            JobState::Error | JobState::Unknown => BAD,
            _ => BOLD,
        };
        let owner = job.owner.map(|owner| format!("{}{}", owner.pid, if owner.alive { "" } else { " (gone)" }));
        table.row([
            (&job.id).into(),
            Cell::of(style, job.state),
            (&job.tool).into(),
            iso(job.created_ms).into(),
            owner.unwrap_or_default().into(),
            Cell::of(DIM, &job.arguments),
        ]);
    }
    table
}
