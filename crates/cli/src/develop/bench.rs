//! `bench`: measures how well models use tools, and the cost.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toolwright::Toolwright;
use toolwright::config::{Config, read_compat};
use toolwright::core::{Cancel, Profile, duration};
use toolwright::import::edit::write_atomically;
use toolwright::search::CompatFile;
use toolwright_eval::bench::report::{self, Detail, Report, json};
use toolwright_eval::bench::{
    BenchOutcome, Bencher, PreparedBench, Progress, ResultsFile, Row, RunOptions, page, recommend, rows_of, run,
};

use super::bench_plan::{self, Bench};
use crate::app::{GlobalOptions, now_ms, open};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::console::{OnSignal, watch};
use crate::terminal::screen::{
    BAD, DIM, StatusLine, WARN, one_line, print_json, print_text, redacted, sanitize, say, say_warning, styled,
};
use crate::terminal::table::{Cell, Table};

/// The file of measurements in its folder.
const FILE: &str = "measurements.jsonl";
/// The default number of concurrent calls.
const CONCURRENCY: usize = 4;
/// How long to wait for other processes that write the compat file; each needs only a moment.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// How often to check whether they are done.
const LOCK_POLL: Duration = Duration::from_millis(20);
/// Characters of the bar.
const WIDTH: usize = 24;
/// The most characters of the last result.
const LAST: usize = 40;
/// The least time between two drawings of the bar.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) async fn command(global: &GlobalOptions, args: &Bench) -> CommandResult {
    require_distinct_files(args)?;
    if let Some(file) = args.compat.as_ref().filter(|_| args.cases.is_empty() && args.models.is_empty()) {
        only_read(args)?;
        let read = read_compat(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        for unused in &read.unused {
            say_warning(&format!("{}: {}", file.display(), unused.why));
        }
        let report = Report { rows: rows_of(&read), ..Report::default() };
        let page = args.html.as_ref().map(|file| write_page(file, &report));
        print(global, args, &report)?;
        return page.unwrap_or(Ok(())).map(|()| Exit::Ok);
    }
    let app = open(global).await?;
    let done = measured(global, args, &app).await;
    app.shut_down().await;
    done
}

/// Checks that all named files are different.
fn require_distinct_files(args: &Bench) -> Result<(), Failure> {
    let written = [("--out", &args.out), ("--html", &args.html), ("--compat", &args.compat)];
    let mut known: Vec<(&str, PathBuf)> = args.cases.iter().map(|file| ("--cases", place(file))).collect();
    for (option, file) in written {
        let Some(file) = file else { continue };
        let at = place(file);
        if let Some((other, _)) = known.iter().find(|(_, known)| *known == at) {
            let file = file.display();
            return Err(Failure::usage(format!(
                "{other} and {option} are both {file}: name another file for one of them"
            )));
        }
        known.push((option, at));
    }
    Ok(())
}

/// Returns the path of a file that may not exist, with links resolved as far as possible.
fn place(file: &Path) -> PathBuf {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let whole = std::fs::canonicalize(&file);
    whole.unwrap_or_else(|_| match (file.parent().map(std::fs::canonicalize), file.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => file,
    })
}

/// Checks that no measurement options are given if nothing is measured.
fn only_read(args: &Bench) -> Result<(), Failure> {
    let said = [
        ("--tools", !args.tools.is_empty()),
        ("--repeat", args.repeat.is_some()),
        ("--concurrency", args.concurrency.is_some()),
        ("--judge", args.judge.is_some()),
        ("--self-judge", args.self_judge),
        ("--max-cost", args.max_cost.is_some()),
        ("--max-requests", args.max_requests.is_some()),
        ("--out", args.out.is_some()),
        ("--fresh", args.fresh),
    ];
    match said.iter().find(|(_, is_marked)| *is_marked) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::usage(format!(
            "--compat alone reads its file and measures nothing, so {option} has no effect: name what is measured with \
             --models or --cases, or leave {option} out"
        ))),
    }
}

/// Returns the compat file to write. Results of the user's own cases are not comparable with those of the shipped ones,
/// so they are only written to a named file.
fn compat(args: &Bench, config: &Config) -> Option<PathBuf> {
    if args.no_compat {
        return None;
    }
    let is_named = args.cases.is_empty() || config.sections.llm.compat.is_some();
    args.compat.clone().or_else(|| is_named.then(|| config.compat.file.clone()))
}

async fn measured(global: &GlobalOptions, args: &Bench, app: &Arc<Toolwright>) -> CommandResult {
    let config = app.config();
    let compat = compat(args, &config);
    if let Some(file) = compat.as_ref().filter(|file| file.exists()) {
        // Checked now, before any cost arises.
        read_compat(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    }
    let prepared = bench_plan::prepare(app, args).await?;
    let services = app.executor().services();
    let pricing = bench_plan::pricing(app, services, args, &prepared)?;
    let keys = prepared.plan.cells.iter().map(|cell| cell.key.clone()).collect();
    let at = match &args.out {
        Some(file) => file.clone(),
        None => private_folder(&config.state_dir)?.join(FILE),
    };
    let mut lines = ResultsFile::open(&at, &keys, args.fresh).map_err(Failure::usage)?;
    if lines.unknown_lines > 0 {
        let (file, count) = (at.display(), lines.unknown_lines);
        say(styled(WARN, format_args!("{file}: {count} lines are no measurements, and do not count")));
    }
    let bencher = bencher(app, &prepared);
    let options = RunOptions {
        max_cost: args.max_cost,
        max_requests: args.max_requests,
        concurrency: args.concurrency.unwrap_or(CONCURRENCY),
        stop: Cancel::new(),
    };
    let signals = watch(options.stop.clone(), OnSignal::Finish);
    let mut bar = ProgressBar::default();
    let events = app.events().subscribe();
    let ended = run(&bencher, &pricing, &mut lines, events, &options, &mut |progress| bar.show(progress)).await;
    bar.status.clear();
    signals.abort();
    let BenchOutcome { rows, partial, cancelled, .. } = ended;
    let judge = prepared.plan.judge.clone();
    let report = Report { rows, partial, judge, at: duration::iso(now_ms()) }.redacted(&*services.redactor);
    // Files first, because standard output may be closed.
    let page = args.html.as_ref().map(|file| write_page(file, &report));
    let kept = compat.as_ref().map(|file| tokio::task::block_in_place(|| write_compat(file, &report.rows)));
    let printed = print(global, args, &report);
    say(styled(DIM, format_args!("the measurements are in {}", at.display())));
    if compat.is_none() && !args.no_compat {
        say(styled(DIM, "results of your own cases go into no compat file, unless --compat or llm.compat names one"));
    }
    let mut unkept = false;
    for failure in [page, kept].into_iter().flatten().filter_map(Result::err) {
        say(styled(BAD, sanitize(&failure.message)));
        unkept = true;
    }
    if let Some(why) = &report.partial {
        say(styled(WARN, format_args!("partial: {}; the same command goes on from here", sanitize(why))));
    }
    printed?;
    Ok(match (cancelled, report.partial.is_some() || unkept) {
        (true, _) => Exit::Cancelled,
        (false, true) => Exit::Failed,
        (false, false) => Exit::Ok,
    })
}

fn print(global: &GlobalOptions, args: &Bench, report: &Report) -> std::io::Result<()> {
    if global.json {
        print_json(&json(report, if args.full { Detail::Full } else { Detail::Contract }))
    } else {
        let report::Table { head, rows, notes } = report::table(report);
        // Names are left-aligned, figures right-aligned.
        let head =
            head.iter().enumerate().map(|(at, head)| if at < 2 { (*head).to_owned() } else { format!("{head}>") });
        let mut table = Table::new(head);
        rows.into_iter().for_each(|row| table.row(row.into_iter().map(Cell::from).collect::<Vec<_>>()));
        table.print()?;
        notes.iter().try_for_each(|note| print_text(&sanitize(note)))
    }
}

/// Returns the bencher, in its own session and traces.
fn bencher<'a>(app: &Toolwright, prepared: &'a PreparedBench) -> Bencher<'a> {
    let name = format!("bench-{}", uuid::Uuid::new_v4().simple());
    Bencher {
        prepared,
        executor: Arc::clone(app.executor()),
        session: app.session(&*name),
        policy: Arc::new(app.config().policy(Some(Profile::Owner), Profile::Owner)),
        name,
    }
}

/// Returns the folder of measurements in the state directory, readable by the user alone.
fn private_folder(state_dir: &Path) -> Result<PathBuf, Failure> {
    let folder = state_dir.join("bench");
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&folder).map_err(|error| Failure::failed(format!("{}: {error}", folder.display())))?;
    Ok(folder)
}

/// Adds complete measurements to the compat file. Concurrent writers of the file wait for each other, at most ten
/// seconds.
fn write_compat(file: &Path, rows: &[Row]) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("{} is not written: {error}", file.display()));
    let lock = lock(file, LOCK_WAIT).map_err(|error| failed(&error))?;
    let mut compat =
        if file.exists() { read_compat(file).map_err(|error| failed(&error))? } else { CompatFile::default() };
    let taken = recommend(&mut compat, rows);
    if taken == 0 {
        return Ok(());
    }
    write_atomically(file, &compat.write()).map_err(|error| failed(&error))?;
    drop(lock);
    say(styled(DIM, format_args!("{}: recommendations from {taken} measurements", file.display())));
    Ok(())
}

/// Locks a file beside `file`, which itself is replaced. All links to the file share the lock. Blocks the thread while
/// another process holds it.
fn lock(file: &Path, timeout: Duration) -> std::io::Result<File> {
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(".lock");
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(name))?;
    let began = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if began.elapsed() >= timeout => {
                return Err(std::io::Error::other(format!(
                    "another process has been writing it for {} seconds; the measurements are kept: the same command \
                     writes it once that one is done",
                    timeout.as_secs()
                )));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
        }
    }
}

/// Writes the page.
fn write_page(file: &Path, report: &Report) -> Result<(), Failure> {
    let page = page(report);
    write_atomically(file, &redacted(&page))
        .map_err(|error| Failure::failed(format!("{} is not written: {error}", file.display())))?;
    say(styled(DIM, format_args!("the page is {}", file.display())));
    Ok(())
}

/// The progress of a run, at a terminal.
#[derive(Default)]
struct ProgressBar {
    total: usize,
    /// The number of calls that were measured before this run.
    before: usize,
    ended: usize,
    unmeasured: usize,
    started: Option<Instant>,
    drawn: Option<Instant>,
    status: StatusLine,
    last: String,
}

impl ProgressBar {
    fn show(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Begun { total, before, spent } => {
                if before > 0 {
                    let said =
                        format_args!("{before} of {total} calls were measured before; --fresh measures all again");
                    say(styled(DIM, said));
                }
                (self.total, self.before, self.started) = (total, before, Some(Instant::now()));
                self.draw(spent);
            }
            Progress::Ended { measured, spent } => {
                self.ended += 1;
                self.unmeasured += usize::from(!measured.done);
                self.last = format!("{} {} {}", measured.model, measured.tool, measured.case);
                self.draw(spent);
            }
            Progress::GivenUp(why) => {
                self.status.clear();
                say(styled(WARN, sanitize(why)));
                self.drawn = None;
            }
        }
    }

    /// Draws the progress, if it is due.
    fn draw(&mut self, spent: f64) {
        let done = self.before + self.ended;
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= PAUSE) || done >= self.total {
            self.drawn = Some(Instant::now());
            let full = (WIDTH * done / self.total.max(1)).min(WIDTH);
            let bar = format!("{}{}", "━".repeat(full), "─".repeat(WIDTH - full));
            let (figures, last) = (self.figures(done, spent), one_line(&self.last, LAST));
            self.status.show(&format!("{bar} {figures} {last}"));
        }
    }

    fn figures(&self, done: usize, spent: f64) -> String {
        let mut figures = format!("{done} of {} calls", self.total);
        if spent > 0.0 {
            figures.push_str(&format!(", ${spent:.4}"));
        }
        if self.unmeasured > 0 {
            figures.push_str(&format!(", {} came to nothing", self.unmeasured));
        }
        if let Some(left) = self.time_left(done) {
            figures.push_str(&format!(", {} to go", duration::format(left)));
        }
        figures
    }

    /// Estimates the remaining time.
    fn time_left(&self, done: usize) -> Option<Duration> {
        let rest = self.total.checked_sub(done).filter(|rest| *rest > 0)?;
        let each = self.started?.elapsed().checked_div(u32::try_from(self.ended).ok().filter(|ended| *ended > 0)?)?;
        let left = each.saturating_mul(u32::try_from(rest).unwrap_or(u32::MAX)).as_secs();
        (left > 0).then(|| Duration::from_secs(left))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use toolwright::config::{LoadOptions, load};
    use toolwright::core::Event;
    use toolwright::core::event::EventSink as _;
    use toolwright_eval::bench::Measurement;
    use toolwright_testkit::model_server::{Reply, Script, ScriptedModel, Turn, WireApi};

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    const CASES: &str =
        "tool: llm:classify\ncases:\n  - id: c\n    input: {request: r, suggestions: [a, b]}\n    checks: []\n";
    const PRICED: &str = "models: {openai: {prices: {input: 100000, output: 0}}}\n";

    /// Returns the result of one call during this many other concurrent events.
    async fn measured(others: usize) -> Measurement {
        let answer = || Reply::text(r#"{"reasoning": "r", "selected_index": 0, "confidence": 1}"#);
        let turn = Turn::computed(move |_| answer()).with_delay(Duration::from_millis(100));
        let server = ScriptedModel::start(Script::from(vec![turn])).await.expect("a port");
        let folder = tempfile::tempdir().expect("folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let (cases, written) = (file("cases.yaml", CASES), file("toolwright.yaml", PRICED));
        let (home, url) = (folder.path().display().to_string(), server.base_url(WireApi::OpenAi));
        let variable = move |name: &str| match name {
            "HOME" => Some(home.clone()),
            "OPENAI_BASE_URL" => Some(url.clone()),
            "OPENAI_API_KEY" => Some("sk-test-0123456789".to_owned()),
            _ => None,
        };
        let cwd = folder.path().to_owned();
        let options = LoadOptions { cwd, config: Some(written.into()), ..LoadOptions::default() };
        let config = load(&options, &variable);
        let app = Toolwright::open(options, config, Box::new(variable)).await.expect("opens");
        let line = ["bench", "--cases", &cases, "--models", "openai/good", "--max-cost", "1000"];
        let args = Line::parse_from(line).bench;
        let prepared = bench_plan::prepare(&app, &args).await.expect("prepared");
        let services = app.executor().services();
        let pricing = bench_plan::pricing(&app, services, &args, &prepared).expect("priced");
        let keys = prepared.plan.cells.iter().map(|cell| cell.key.clone()).collect();
        let mut lines = ResultsFile::open(&folder.path().join("m.jsonl"), &keys, false).expect("opens");
        let bencher = bencher(&app, &prepared);
        let stop = Cancel::new();
        let options = RunOptions { max_cost: args.max_cost, max_requests: None, concurrency: 1, stop };
        let events = app.events().subscribe();
        let flood = async {
            while server.requests().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Within the task of the run, which gets none of them before the last.
            for number in 0..others {
                app.events().emit(Event::Warning { code: "other".to_owned(), message: number.to_string() });
            }
        };
        let mut ignore = |_: Progress<'_>| {};
        let running = run(&bencher, &pricing, &mut lines, events, &options, &mut ignore);
        let (ended, ()) = tokio::join!(running, flood);
        app.shut_down().await;
        ended.measured.into_iter().next().expect("measured")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_with_lost_events_costs_its_estimate() {
        let known = measured(100).await;
        let cost = known.cost_usd.expect("a cost");
        assert_eq!((known.charged_usd, known.requests, known.done), (Some(cost), 1, true));
        let lost = measured(20_000).await;
        assert_eq!((lost.cost_usd, lost.done, lost.score.to_bits()), (None, true, known.score.to_bits()));
        assert!(lost.charged_usd > Some(cost) && lost.requests >= 4, "{lost:?}");
    }

    #[test]
    fn a_held_compat_file_is_awaited_with_limit() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("compat.json");
        let held = lock(&file, Duration::ZERO).expect("free");
        let failure = lock(&file, Duration::from_millis(50)).expect_err("held").to_string();
        assert!(
            failure.contains("another process has been writing it") && failure.contains("the same command"),
            "{failure}"
        );
        let waits = std::thread::spawn(move || lock(&file, Duration::from_secs(60)).map(drop));
        std::thread::sleep(LOCK_POLL * 3);
        drop(held);
        waits.join().expect("ends").expect("it is its turn");
    }

    #[test]
    fn concurrent_runs_all_write_the_compat_file() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("compat.json");
        let row = |model: &str| Row {
            score: Some(95.0),
            calls: 1,
            done: 1,
            threshold: Some(90),
            ..Row::new("llm:score@1.0.0".to_owned(), model.to_owned())
        };
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let (file, row) = (&file, &row);
                scope.spawn(move || {
                    for run in 0..5 {
                        write_compat(file, &[row(&format!("p/{writer}-{run}"))]).expect("written");
                    }
                });
            }
        });
        let found = read_compat(&file).expect("read");
        assert_eq!(found.tools["llm:score@1.0.0"].scores.len(), 40, "nothing is lost");
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).expect("folder").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left.len(), 2, "the file and its lock: {left:?}");
    }
}
