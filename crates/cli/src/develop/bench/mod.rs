//! `bench`: how well models do with tools, and what that costs.

mod judge;
mod measure;
mod prepare;
mod price;
mod progress;
mod report_files;
mod results_file;
mod run;
mod usage;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use toolwright::Toolwright;
use toolwright::config::{Config, read_compat};
use toolwright_eval::report::{self, Detail, Report, json};
use toolwright_eval::summarize;

use crate::app::{Global, open};
use crate::exit::{Done, Exit, Failure};
use crate::terminal::screen::{BAD, DIM, WARN, harmless, print_json, print_text, say, say_warning, styled};
use crate::terminal::table::{Cell, Table};

use self::price::Pricing;
use self::results_file::{ResultsFile, ResultsQuery};
use self::run::Ended;

/// What `bench` takes.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// File with cases, YAML or, by its name, `.jsonl` (repeatable). Default: the shipped cases of the shipped tools.
    #[arg(long, value_name = "FILE")]
    cases: Vec<PathBuf>,
    /// The models that are measured. Default: `models.default`, else what the environment offers.
    #[arg(long, value_name = "PROVIDER/MODEL", value_delimiter = ',')]
    models: Vec<String>,
    /// Only cases of these tools, as globs on ids or wire names (repeatable).
    #[arg(long, value_name = "GLOB")]
    tools: Vec<String>,
    /// How often each case is measured. Default: as its file says, else once.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=100))]
    repeat: Option<u32>,
    /// Calls at once. The queues of the models bound their requests besides. Default: 4.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    concurrency: Option<usize>,
    /// The model that judges rubrics. Default: `models.judge`, else the default model; not one that is measured.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    judge: Option<String>,
    /// Lets a model that is measured judge, itself too.
    #[arg(long)]
    self_judge: bool,
    /// US dollars that the whole may cost, judge and what was measured before included. Models whose price is not known
    /// are refused under it, unless --max-requests bounds them. Default: 5, for those whose price is known.
    #[arg(long, value_name = "USD", value_parser = money)]
    max_cost: Option<f64>,
    /// Requests to models that the whole may take, the judge's included.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    max_requests: Option<u64>,
    /// Keeps the measurements in this file. Default: one file of all of them in the state directory. What it has is not
    /// measured again.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measures everything anew.
    #[arg(long)]
    fresh: bool,
    /// The compat file: recommended models by tool. With neither --cases nor --models nothing is measured: it is read
    /// and printed. Default: the file that the configuration reads; with --cases only one that `llm.compat` names.
    #[arg(long, value_name = "FILE", conflicts_with = "no_compat")]
    compat: Option<PathBuf>,
    /// Writes no compat file.
    #[arg(long)]
    no_compat: bool,
    /// Writes the report as one HTML file with a plot of quality against cost.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// With --json, everything that is known of each tool and model.
    #[arg(long)]
    full: bool,
}

fn money(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(money) if money >= 0.0 && money.is_finite() => Ok(money),
        _ => Err("a cost is a number of US dollars, like 2.50".into()),
    }
}

/// The file of measurements in its folder.
const FILE: &str = "measurements.jsonl";
/// Calls at once where nobody says.
const CONCURRENCY: usize = 4;

pub(crate) async fn command(global: &Global, args: &Bench) -> Done {
    apart(args)?;
    if let Some(file) = args.compat.as_ref().filter(|_| args.cases.is_empty() && args.models.is_empty()) {
        only_read(args)?;
        let read = read_compat(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        for unused in &read.unused {
            say_warning(&format!("{}: {}", file.display(), unused.why));
        }
        let report = report_files::without_secrets(Report { rows: report_files::rows(&read), ..Report::default() });
        let page = args.html.as_ref().map(|file| report_files::html(file, &report));
        print(global, args, &report)?;
        return page.unwrap_or(Ok(())).map(|()| Exit::Ok);
    }
    let app = open(global).await?;
    let done = measured(global, args, &app).await;
    app.shut_down().await;
    done
}

/// Whether every file that is named is another.
fn apart(args: &Bench) -> Result<(), Failure> {
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

/// The path of a file that may not be there, without links as far as it is.
fn place(file: &Path) -> PathBuf {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let whole = std::fs::canonicalize(&file);
    whole.unwrap_or_else(|_| match (file.parent().map(std::fs::canonicalize), file.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => file,
    })
}

/// Whether nothing is said of a measurement where none is made.
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
    match said.iter().find(|(_, is_said)| *is_said) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::usage(format!(
            "--compat alone reads its file and measures nothing, so {option} says nothing: name what is measured with \
             --models or --cases, or leave {option} out"
        ))),
    }
}

/// The compat file that the run writes. What own cases find is not what the shipped ones do: it goes where somebody says.
fn compat(args: &Bench, config: &Config) -> Option<PathBuf> {
    if args.no_compat {
        return None;
    }
    let is_named = args.cases.is_empty() || config.written.llm.compat.is_some();
    args.compat.clone().or_else(|| is_named.then(|| config.compat.file.clone()))
}

async fn measured(global: &Global, args: &Bench, app: &Arc<Toolwright>) -> Done {
    let config = app.config();
    let compat = compat(args, &config);
    if let Some(file) = compat.as_ref().filter(|file| file.exists()) {
        // Better now than when all is paid for.
        read_compat(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    }
    let prepared = prepare::prepare(app, args).await?;
    let pricing = Pricing::new(app, args, &prepared)?;
    let keys = prepared.plan.cells.iter().map(|cell| cell.key.clone()).collect();
    let at = match &args.out {
        Some(file) => file.clone(),
        None => report_files::folder(&config.state_dir)?.join(FILE),
    };
    let mut lines = ResultsFile::open(&at, ResultsQuery { keys: &keys, fresh: args.fresh })?;
    let Ended { measured, partial, cancelled } = run::run(app, args, &prepared, &pricing, &mut lines).await;
    let rows = summarize(&prepared.plan, &measured);
    let judge = prepared.plan.judge.clone();
    let report = report_files::without_secrets(Report { rows, partial, judge, at: report_files::now() });
    // Files first: whoever reads standard output may be gone.
    let page = args.html.as_ref().map(|file| report_files::html(file, &report));
    let kept = compat.as_ref().map(|file| tokio::task::block_in_place(|| report_files::compat(file, &report.rows)));
    let printed = print(global, args, &report);
    say(styled(DIM, format_args!("the measurements are in {}", at.display())));
    if compat.is_none() && !args.no_compat {
        say(styled(
            DIM,
            "no compat file is written of own cases; name one with --compat, or llm.compat in the configuration",
        ));
    }
    let mut unkept = false;
    for failure in [page, kept].into_iter().flatten().filter_map(Result::err) {
        say(styled(BAD, harmless(&failure.message)));
        unkept = true;
    }
    if let Some(why) = &report.partial {
        say(styled(WARN, format_args!("partial: {}; the same command goes on from here", harmless(why))));
    }
    printed?;
    Ok(match (cancelled, report.partial.is_some() || unkept) {
        (true, _) => Exit::Cancelled,
        (false, true) => Exit::Failed,
        (false, false) => Exit::Ok,
    })
}

fn print(global: &Global, args: &Bench, report: &Report) -> std::io::Result<()> {
    if global.json {
        print_json(&json(report, if args.full { Detail::Full } else { Detail::Contract }))
    } else {
        let report::Table { head, rows, notes } = report::table(report);
        // Names stand to the left, figures to the right.
        let head =
            head.iter().enumerate().map(|(at, head)| if at < 2 { (*head).to_owned() } else { format!("{head}>") });
        let mut table = Table::new(head);
        rows.into_iter().for_each(|row| table.row(row.into_iter().map(Cell::from).collect::<Vec<_>>()));
        table.print()?;
        notes.iter().try_for_each(|note| print_text(&harmless(note)))
    }
}
