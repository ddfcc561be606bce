//! Background jobs in processes that are killed (SIGKILL) every second. Every reported id must still answer afterwards,
//! and the tools' own counts show which jobs ran twice. Meanwhile this process reads the jobs and stops some of them. The
//! killed process starts jobs, reports the id of each, and takes over the jobs of the process before it.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::{Value, json};
use toolwright_core::approval::NoApprover;
use toolwright_core::catalogue::ProviderKind;
use toolwright_core::definition::Mode;
use toolwright_core::job::{JobFilter, JobScope, JobState, Jobs as _};
use toolwright_core::{
    CallId, Effects, Policy, Principal, Profile, RawArguments, Services, Session, SessionId, Snapshot, StaticProvider,
    Tool, ToolCall, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::{
    Catalogue, EventHub, Executor, ExecutorOptions, JobManager, QueueConfig, Queues, RecoveryOptions, RunContext,
    SqliteStore, SystemClock,
};

use crate::Failure;
use crate::stats::percentile_ms;

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
fn kind(n: u64) -> (&'static str, u64) {
    match n {
        n if n % STOPPED == STOPPED - 1 => ("once", 600_000),
        n if n % 2 == 0 => ("again", 50 + n * 37 % 700),
        n => ("once", 50 + n * 37 % 700),
    }
}

/// Returns the file in which runs are counted.
fn runs_file(dir: &Path) -> PathBuf {
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

/// What one worker, the process that is killed, is to do.
#[derive(clap::Args)]
pub(crate) struct Worker {
    /// Where state and counters are.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Number of its first job.
    #[arg(long)]
    pub(crate) from: u64,
    /// How many it starts.
    #[arg(long)]
    pub(crate) count: u64,
    /// Milliseconds between two.
    #[arg(long)]
    pub(crate) pace: u64,
}

/// A tool that first writes its job's number to a file, then takes its time.
struct CountingTool {
    name: &'static str,
    effects: Effects,
    runs: PathBuf,
}

#[async_trait]
impl Tool for CountingTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::format("bench", self.name, "1.0.0").unwrap_or_else(|error| unreachable!("{error}"));
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "ms": {"type": "integer"}}});
        let mut definition = ToolDefinition::new(id, "Counts its runs.", Some(schema));
        definition.mode = Mode::Background;
        definition.effects = self.effects;
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let number = |name: &str| arguments.get(name).and_then(Value::as_u64).unwrap_or_default();
        let noted = std::fs::OpenOptions::new().create(true).append(true).open(&self.runs);
        // A single write, so that lines of two processes never mix.
        noted
            .and_then(|mut runs| runs.write_all(format!("{}\n", number("n")).as_bytes()))
            .map_err(|error| ToolError::new(toolwright_core::ErrorKind::ExecutionError, error.to_string()))?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(number("ms"))) => {
                Ok(ToolOutput::text(format!("result {}", number("n"))))
            }
            cause = context.cancel.cancelled() => Err(ToolError::canceled(cause)),
        }
    }
}

pub(crate) fn work(worker: &Worker) -> Result<(), Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run_worker(worker))
}

async fn run_worker(worker: &Worker) -> Result<(), Failure> {
    let dir = &worker.dir;
    let tool = |name, effects| Arc::new(CountingTool { name, effects, runs: runs_file(dir) }) as Arc<dyn Tool>;
    let tools = vec![tool("again", Effects::WRITE), tool("once", Effects::UNKNOWN)];
    let catalogue = Catalogue::from_snapshot(Arc::default());
    catalogue.add_provider(Arc::new(StaticProvider::new("bench", ProviderKind::Native, tools)?)).await?;
    catalogue.refresh("bench").await;
    let store = SqliteStore::open(dir)?;
    let jobs = JobManager::new(Arc::clone(&store), dir);
    let services = Services {
        jobs: Arc::clone(&jobs) as _,
        events: Arc::new(EventHub::default()),
        ..Services::none(Arc::new(SystemClock))
    };
    let mut options = ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, store as _);
    options.jobs = Some(jobs);
    let config = QueueConfig { concurrent: 32, ..QueueConfig::default() };
    options.queues = Queues::new([("default".to_owned(), config)].into());
    let executor = Executor::new(options);
    let context = Arc::new(terms);
    let run = terms(session(dir), catalogue.snapshot());
    let root = run.session.root.clone();
    executor.recover_jobs(RecoveryOptions { catalogue: Arc::clone(&catalogue), root, session: None, context });
    for n in worker.from..worker.from + worker.count {
        let (name, ms) = kind(n);
        let arguments = RawArguments::Value(json!({"n": n, "ms": ms}));
        let call = ToolCall::new(CallId::new(format!("call-{n}")), format!("bench__{name}"), arguments);
        let outcomes = executor.run_calls(vec![call], &run).await;
        let reported = outcomes.iter().find_map(|outcome| outcome.structured.as_ref()?.get("job")?.as_str());
        let id = reported.ok_or_else(|| format!("job {n} did not begin: {outcomes:?}"))?;
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{n} {id}\n").as_bytes())?;
        out.flush()?;
        drop(out);
        tokio::time::sleep(Duration::from_millis(worker.pace)).await;
    }
    // Waits until the process is killed.
    std::future::pending().await
}

fn session(dir: &Path) -> Session {
    Session { id: SessionId::new("bench"), principal: Principal::owner(), root: dir.to_owned(), agent: None }
}

fn terms(session: Session, snapshot: Arc<Snapshot>) -> RunContext {
    let approver = Arc::new(NoApprover { remedy: String::new() });
    RunContext::new(Arc::new(session), snapshot, Arc::new(Policy::of(Profile::Trusted)), approver)
}
