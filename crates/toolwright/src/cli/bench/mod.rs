//! `bench`: how well models do with tools, and what that costs.

mod judge;
mod keep;
mod lines;
mod measure;
mod prepare;
mod progress;
mod run;
mod spent;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use toolwright::House;
use toolwright::config::read_compat;
use toolwright::core::bench::report::{Detail, Report, json, table};
use toolwright::core::bench::summarize;

use super::args::Global;
use super::exit::{Done, Exit, Failure};
use super::screen::{BAD, DIM, WARN, harmless, print_json, print_written, say, styled};
use super::{config, open};

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
    /// Calls at once. The queues of the models bound their requests besides.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    concurrency: usize,
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
    /// Keeps the measurements in this file. Default: a file of these cases in the state directory. What it has is not
    /// measured again.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measures everything anew.
    #[arg(long)]
    fresh: bool,
    /// The compat file: recommended models by tool. With neither --cases nor --models nothing is measured: it is read
    /// and printed. Default: the file that the configuration reads.
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

pub(crate) async fn command(global: &Global, args: &Bench) -> Done {
    if let Some(file) = args.compat.as_ref().filter(|_| args.cases.is_empty() && args.models.is_empty()) {
        let read = read_compat(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        let report = Report { rows: keep::rows(&read), ..Report::default() };
        print(global, args, &report)?;
        return args.html.as_ref().map_or(Ok(Exit::Ok), |file| keep::html(file, &report).map(|()| Exit::Ok));
    }
    let house = open(global, config::usable(global)?).await?;
    let done = measured(global, args, &house).await;
    house.shut_down().await;
    done
}

async fn measured(global: &Global, args: &Bench, house: &Arc<House>) -> Done {
    let config = house.config();
    let compat = (!args.no_compat).then(|| args.compat.clone().unwrap_or_else(|| config.compat.file.clone()));
    if let Some(file) = compat.as_ref().filter(|file| file.exists()) {
        // Better now than when all is paid for.
        read_compat(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    }
    let prepared = prepare::prepare(house, args).await?;
    let folder = config.state_dir.join("bench");
    let at = args.out.clone().unwrap_or_else(|| folder.join(format!("{}.jsonl", prepared.plan.name())));
    let mut lines = lines::Lines::open(&at, args.fresh)?;
    let Ended { measured, partial, cancelled } = run::run(house, args, &prepared, &mut lines).await?;
    let rows = summarize(&prepared.plan, &measured);
    let judge = prepared.plan.judge.clone();
    let report = Report { rows, partial, judge, at: keep::now() };
    print(global, args, &report)?;
    say(styled(DIM, format_args!("the measurements are in {}", at.display())));
    // What was printed stands, whatever becomes of the files.
    let page = args.html.as_ref().map(|file| keep::html(file, &report));
    let kept = compat.map(|file| keep::compat(&file, &folder, &report.rows));
    let mut unkept = false;
    for failure in [page, kept].into_iter().flatten().filter_map(Result::err) {
        say(styled(BAD, harmless(&failure.message)));
        unkept = true;
    }
    if let Some(why) = &report.partial {
        say(styled(WARN, format_args!("partial: {}; the same command goes on from here", harmless(why))));
    }
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
        let text = table(report);
        print_written(text.trim_end())
    }
}
