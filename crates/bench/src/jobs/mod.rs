//! Background jobs in processes that are killed (SIGKILL) every second. Every reported id must still answer afterwards,
//! and the tools' own counts show which jobs ran twice. Meanwhile this process reads the jobs and stops some of them.

mod worker;

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use toolwright_core::job::{JobFilter, JobScope, JobState, Jobs as _};
use toolwright_runtime::{JobManager, SqliteStore};

use crate::Failure;
use crate::stats::percentile_ms;

pub(crate) use worker::{Worker, run as work};

/// The time between two kills.
const LIFE: Duration = Duration::from_secs(1);
/// The time for the last process to finish the remaining jobs.
const REST: Duration = Duration::from_secs(120);
/// One job out of this many runs until this process stops it.
const STOPPED: u64 = 100;

#[derive(Serialize)]
pub(crate) struct Row {
    jobs: usize,
    kills: usize,
    seconds: u64,
    done: usize,
    unknown: usize,
    stopped: usize,
    /// Reported ids that do not answer, or that remain open for ever.
    lost: usize,
    /// Repeatable jobs that did not end `done` with their result.
    idempotent_not_done: usize,
    /// Other jobs that ran twice.
    ran_twice: usize,
    /// Other jobs that are `done` without a run, or with a wrong result.
    wrong: usize,
    most_attempts: u32,
    /// The median time to list all jobs, and to stop one, from this process.
    list_p50_ms: f64,
    stop_p50_ms: f64,
    holds: bool,
}

/// Returns the tool of job `n` and its time in milliseconds. Jobs with an even number may run again.
pub(crate) fn kind(n: u64) -> (&'static str, u64) {
    match n {
        n if n % STOPPED == STOPPED - 1 => ("once", 600_000),
        n if n % 2 == 0 => ("again", 50 + n * 37 % 700),
        n => ("once", 50 + n * 37 % 700),
    }
}

/// Returns the file in which runs are counted.
pub(crate) fn runs_file(dir: &Path) -> PathBuf {
    dir.join("runs")
}

type ReportedOutputs = Arc<Mutex<HashMap<u64, String>>>;

pub(crate) fn run(jobs: usize, seconds: u64) -> Result<Vec<Row>, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure(jobs, seconds))
}

async fn measure(jobs: usize, seconds: u64) -> Result<Vec<Row>, Failure> {
    let dir = tempfile::tempdir()?;
    let watcher = JobManager::new(SqliteStore::open(dir.path())?, dir.path());
    let reported = ReportedOutputs::default();
    let mut observer = Observer { watcher, stopped: Vec::new(), lists: Vec::new(), stops: Vec::new() };
    let end = Instant::now() + Duration::from_secs(seconds);
    // All jobs are started in the first three quarters of the time.
    let pace = seconds * 750 / u64::try_from(jobs.max(1))?;
    let mut kills = 0;
    loop {
        let (from, left) = (next(dir.path(), &reported)?, jobs.saturating_sub(count(&reported)));
        let mut child = Command::new(std::env::current_exe()?)
            .arg("jobs-worker")
            .arg("--dir")
            .arg(dir.path())
            .args(["--from", &from.to_string(), "--count", &left.to_string(), "--pace", &pace.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let (heard, out) = (Arc::clone(&reported), child.stdout.take());
        let listener = std::thread::spawn(move || listen(out, &heard));
        let last = Instant::now() >= end && left == 0;
        let watched = if last { observer.rest(&reported).await } else { observer.look(&reported).await };
        child.kill()?;
        child.wait()?;
        listener.join().map_err(|_| "the listener broke off")?;
        watched?;
        if last {
            break;
        }
        kills += 1;
    }
    observer.row(dir.path(), &reported, kills, seconds).await.map(|row| vec![row])
}

fn listen(out: Option<std::process::ChildStdout>, reported: &ReportedOutputs) {
    let Some(out) = out else { return };
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if let Some((n, id)) = line.split_once(' ')
            && let Ok(n) = n.parse()
        {
            reported.lock().unwrap_or_else(PoisonError::into_inner).insert(n, id.to_owned());
        }
    }
}

fn count(reported: &ReportedOutputs) -> usize {
    reported.lock().unwrap_or_else(PoisonError::into_inner).len()
}

fn snapshot(reported: &ReportedOutputs) -> HashMap<u64, String> {
    reported.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns how often each job ran.
fn runs(dir: &Path) -> Result<HashMap<u64, u32>, Failure> {
    let mut runs = HashMap::new();
    match std::fs::read_to_string(runs_file(dir)) {
        Ok(text) => {
            for line in text.lines() {
                *runs.entry(line.parse()?).or_default() += 1;
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    Ok(runs)
}

/// Returns a number that no job has. A job that was started but not reported keeps its number.
fn next(dir: &Path, reported: &ReportedOutputs) -> Result<u64, Failure> {
    let runs = runs(dir)?;
    let highest = runs.keys().copied().chain(snapshot(reported).into_keys()).max();
    // One more job may have been started without a run or a report.
    Ok(highest.map_or(0, |highest| highest + 2))
}

/// This process, which observes the jobs of others.
struct Observer {
    watcher: Arc<JobManager>,
    stopped: Vec<u64>,
    lists: Vec<Duration>,
    stops: Vec<Duration>,
}

impl Observer {
    /// Observes the jobs for one life of a worker.
    async fn look(&mut self, reported: &ReportedOutputs) -> Result<(), Failure> {
        let end = Instant::now() + LIFE;
        while Instant::now() < end {
            self.stop_long(reported).await?;
            let before = Instant::now();
            self.watcher.list(JobScope::All, JobFilter::All, 10_000).await?;
            self.lists.push(before.elapsed());
            if let Some(id) = snapshot(reported).values().next() {
                self.watcher.read(JobScope::All, id, 0, 10).await?;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Waits until no job is open.
    async fn rest(&mut self, reported: &ReportedOutputs) -> Result<(), Failure> {
        let end = Instant::now() + REST;
        while Instant::now() < end {
            self.stop_long(reported).await?;
            let open = !self.watcher.list(JobScope::All, JobFilter::Open, 1).await?.is_empty();
            if !open {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Stops the jobs that would run for ever.
    async fn stop_long(&mut self, reported: &ReportedOutputs) -> Result<(), Failure> {
        for (n, id) in snapshot(reported) {
            if n % STOPPED != STOPPED - 1 || self.stopped.contains(&n) {
                continue;
            }
            let before = Instant::now();
            // The job's process may die during the request; then the stop is repeated, or the job counts as lost.
            if self.watcher.stop(JobScope::All, &id).await.is_ok() {
                self.stops.push(before.elapsed());
                self.stopped.push(n);
            }
        }
        Ok(())
    }

    async fn row(mut self, dir: &Path, reported: &ReportedOutputs, kills: usize, seconds: u64) -> Result<Row, Failure> {
        let (reported, runs) = (snapshot(reported), runs(dir)?);
        let mut row = Row {
            jobs: reported.len(),
            kills,
            seconds,
            done: 0,
            unknown: 0,
            stopped: 0,
            lost: 0,
            idempotent_not_done: 0,
            ran_twice: 0,
            wrong: 0,
            most_attempts: 0,
            list_p50_ms: percentile_ms(&mut self.lists, 0.5),
            stop_p50_ms: percentile_ms(&mut self.stops, 0.5),
            holds: false,
        };
        for (n, id) in reported {
            let ran = runs.get(&n).copied().unwrap_or_default();
            let Ok(job) = self.watcher.get(JobScope::All, &id).await else {
                row.lost += 1;
                continue;
            };
            row.most_attempts = row.most_attempts.max(job.attempts);
            let result = job.outcome.as_ref().is_some_and(|outcome| outcome.text() == format!("result {n}"));
            let again = kind(n).0 == "again";
            match job.state {
                JobState::Done => row.done += 1,
                JobState::Unknown => row.unknown += 1,
                JobState::Cancelled => row.stopped += 1,
                _ => row.lost += 1,
            }
            row.idempotent_not_done += usize::from(again && !(job.state == JobState::Done && result));
            row.ran_twice += usize::from(!again && ran > 1);
            row.wrong += usize::from(!again && job.state == JobState::Done && !(result && ran == 1));
            let meant_to_stop = n % STOPPED == STOPPED - 1;
            row.wrong += usize::from(job.state == JobState::Cancelled && !meant_to_stop);
        }
        row.holds = row.lost + row.idempotent_not_done + row.ran_twice + row.wrong == 0;
        Ok(row)
    }
}
