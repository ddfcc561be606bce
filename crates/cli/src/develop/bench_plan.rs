//! Plans a run of `bench`: checks cases, tools, models, prices and the spending limit before any model is asked.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use toolwright::Toolwright;
use toolwright::core::name_table::Resolution;
use toolwright::core::{Entry, Services, Snapshot};
use toolwright::models::{Endpoint, default_model};
use toolwright::runtime::TrafficConfig;
use toolwright_eval::bench::{
    Case, CaseError, MAX_FILE_BYTES, ModelPrice, Plan, PlanOptions, PlannedCases, PreparedBench, Price, Pricing, Suite,
    drop_rubrics, parse, shipped_cases,
};
use url::{Host, Url};

use crate::app::agent::can_answer;
use crate::app::variable;
use crate::exit::{Exit, Failure};
use crate::input;
use crate::terminal::screen::{WARN, say, say_warning, styled};

/// Time limit of a tool's provider to list.
const LIST_WAIT: Duration = Duration::from_secs(60);
/// The judging tool.
const JUDGE: &str = "llm:score";

/// What `bench` takes.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// File with cases, YAML or, by its name, `.jsonl` (repeatable). Default: the shipped cases of the shipped tools.
    #[arg(long, value_name = "FILE")]
    pub(super) cases: Vec<PathBuf>,
    /// The models that are measured. Default: `models.default`, else a model that the environment offers.
    #[arg(long, value_name = "PROVIDER/MODEL", value_delimiter = ',')]
    pub(super) models: Vec<String>,
    /// Only cases of these tools, as globs on ids or wire names (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub(super) tools: Vec<String>,
    /// How often each case is measured. Default: as its file says, else once.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=100))]
    pub(super) repeat: Option<u32>,
    /// How many calls run at once. The models' queues limit their requests as well. Default: 4.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub(super) concurrency: Option<usize>,
    /// The model that judges rubrics. Default: `models.judge`, else the default model; not one that is measured.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    pub(super) judge: Option<String>,
    /// Lets a measured model judge, even its own answers.
    #[arg(long)]
    pub(super) self_judge: bool,
    /// Most US dollars for the whole benchmark, including the judge and earlier measurements. Models without known
    /// prices are refused under it, unless --max-requests bounds them. Default: 5, for models with known prices.
    #[arg(long, value_name = "USD", value_parser = money)]
    pub(super) max_cost: Option<f64>,
    /// Most requests to models for the whole benchmark, including the judge's.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub(super) max_requests: Option<u64>,
    /// Keeps the measurements in this file. Default: one file for all measurements in the state directory. Results that
    /// it already holds are not measured again.
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Measures everything again.
    #[arg(long)]
    pub(super) fresh: bool,
    /// The compat file: recommended models by tool. Without --cases and --models nothing is measured: the file is only
    /// printed. Default: the file that the configuration reads; with --cases, only a file that `llm.compat` names.
    #[arg(long, value_name = "FILE", conflicts_with = "no_compat")]
    pub(super) compat: Option<PathBuf>,
    /// Writes no compat file.
    #[arg(long)]
    pub(super) no_compat: bool,
    /// Writes the report as one HTML file with a plot of quality against cost.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// With --json, prints all details of each tool and model.
    #[arg(long)]
    pub(super) full: bool,
}

fn money(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(money) if money >= 0.0 && money.is_finite() => Ok(money),
        _ => Err("a cost is a number of US dollars, like 2.50".into()),
    }
}

/// Looks up everything that is measured.
pub(super) async fn prepare(app: &Arc<Toolwright>, args: &Bench) -> Result<PreparedBench, Failure> {
    let suites = suites(args)?;
    let models = models(app, args).await?;
    app.offer_llm_tools().await;
    for suite in &suites {
        app.list_for(&suite.tool, LIST_WAIT).await;
    }
    let snapshot = app.catalogue().snapshot();
    let mut tools: Vec<(PlannedCases, Arc<Entry>)> = Vec::new();
    for suite in suites {
        let Some(entry) = entry(&snapshot, &suite, args)? else { continue };
        if !args.tools.is_empty() && !entry.is_named_by(&args.tools) {
            continue;
        }
        suite.check(&entry).map_err(failure)?;
        let planned = PlannedCases {
            tool: entry.id().clone(),
            contract: entry.tool.hash(),
            threshold: entry.definition().recommended_threshold,
            mode: suite.mode,
            repeat: args.repeat.or(suite.repeat).unwrap_or(1),
            cases: suite.cases,
        };
        tools.push((planned, entry));
    }
    let judge = judge(app, args, &models, &tools).await?;
    if judge.is_none() {
        leave_out(&mut tools);
    }
    tools.retain(|(planned, _)| !planned.cases.is_empty());
    if tools.is_empty() {
        return Err(Failure::usage("there is nothing to measure: no case is left; see --cases and --tools"));
    }
    let (tools, entries): (Vec<_>, Vec<_>) = tools.into_iter().unzip();
    let judge_entry = match &judge {
        Some(_) => Some(found(&snapshot, JUDGE).ok_or_else(|| {
            Failure::usage(format!("{JUDGE}, which judges rubrics, is switched off in the configuration"))
        })?),
        None => None,
    };
    let asked = |model: &String| (model.clone(), app.models().endpoints().fingerprint(model));
    let options = PlanOptions {
        of_models: models.iter().chain(&judge).map(asked).collect(),
        judge_contract: judge_entry.as_ref().map(|entry| entry.tool.hash()),
    };
    let plan = Plan::new(tools, models, judge, &options).map_err(Failure::usage)?;
    Ok(PreparedBench { plan, snapshot, entries, judge: judge_entry })
}

fn suites(args: &Bench) -> Result<Vec<Suite>, Failure> {
    if args.cases.is_empty() {
        return shipped_cases().map_err(failure);
    }
    let (mut suites, mut faults) = (Vec::new(), Vec::new());
    for file in &args.cases {
        let text = input::read_up_to(file, MAX_FILE_BYTES as u64)?;
        match parse(&text, &file.display().to_string()) {
            Ok(read) => suites.extend(read),
            Err(found) => faults.extend(found),
        }
    }
    if faults.is_empty() { Ok(suites) } else { Err(failure(faults)) }
}

/// Returns the models, each once, and checks that all can be asked.
async fn models(app: &Arc<Toolwright>, args: &Bench) -> Result<Vec<String>, Failure> {
    let mut models: Vec<String> = Vec::new();
    for model in args.models.iter().map(|model| model.trim()).filter(|model| !model.is_empty()) {
        if !models.iter().any(|known| known == model) {
            models.push(model.to_owned());
        }
    }
    if models.is_empty() {
        models.push(match app.default_model() {
            Some(model) => model.to_owned(),
            None => default_model(&variable, app.models().http()).await.map_err(Failure::usage)?,
        });
    }
    usable(app, &models).await?;
    Ok(models)
}

/// Checks that all of these can be asked; names those that cannot.
async fn usable(app: &Toolwright, models: &[String]) -> Result<(), Failure> {
    let mut faults = Vec::new();
    for model in models {
        if let Err(why) = can_answer(app, model).await {
            faults.push(why);
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(Failure::usage(faults.join("\n"))) }
}

fn found(snapshot: &Snapshot, tool: &str) -> Option<Arc<Entry>> {
    match snapshot.resolve(tool) {
        Resolution::Found(index, _) => snapshot.list().get(index).cloned(),
        Resolution::Unknown(_) => None,
    }
}

/// Returns the tool of a suite. A disabled shipped tool is left out.
fn entry(snapshot: &Snapshot, suite: &Suite, args: &Bench) -> Result<Option<Arc<Entry>>, Failure> {
    match snapshot.resolve(&suite.tool) {
        Resolution::Found(index, _) => Ok(snapshot.list().get(index).cloned()),
        Resolution::Unknown(_) if args.cases.is_empty() => {
            say_warning(&format!("{} is switched off, and is not measured", suite.tool));
            Ok(None)
        }
        Resolution::Unknown(near) => {
            let message = snapshot.unknown_message(&suite.tool, &near);
            let message = suite.fault(&suite.tool_at, message, "`toolwright tools ls` lists the tools").to_string();
            Err(Failure { exit: Exit::NoTool, message })
        }
    }
}

fn failure(faults: Vec<CaseError>) -> Failure {
    Failure::usage(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

/// Returns the judge; `None` if none is needed or allowed.
async fn judge(
    app: &Toolwright,
    args: &Bench,
    models: &[String],
    tools: &[(PlannedCases, Arc<Entry>)],
) -> Result<Option<String>, Failure> {
    if !tools.iter().flat_map(|(planned, _)| &planned.cases).any(Case::is_judged) {
        return Ok(None);
    }
    let config = app.config();
    let configured = config.sections.models.judge.clone();
    let is_measured = |model: &String| models.contains(model);
    let named = args.judge.clone().or(configured);
    if let Some(judge) = named.as_ref().filter(|judge| is_measured(judge) && !args.self_judge) {
        return Err(Failure::usage(format!(
            "{judge} would judge itself: name another with --judge, or allow it with --self-judge"
        )));
    }
    let default = || app.default_model().map(str::to_owned).filter(|model| args.self_judge || !is_measured(model));
    let own = || models.first().filter(|_| args.self_judge).cloned();
    let judge = named.or_else(default).or_else(own);
    if let Some(judge) = &judge {
        usable(app, std::slice::from_ref(judge)).await?;
    }
    Ok(judge)
}

/// Removes rubrics if there is no judge, and says so.
fn leave_out(tools: &mut [(PlannedCases, Arc<Entry>)]) {
    let (rubrics, cases) = drop_rubrics(tools.iter_mut().map(|(planned, _)| planned));
    if rubrics == 0 {
        return;
    }
    let cases = if cases == 0 { String::new() } else { format!(", and {cases} cases with them") };
    say_warning(&format!(
        "{rubrics} rubrics are left out{cases}: nobody judges them; name a model with --judge or models.judge, or \
         allow a measured one with --self-judge"
    ));
}

/// Returns the prices of all models that are asked.
///
/// # Errors
/// The requested limit cannot be enforced.
pub(super) fn pricing<'a>(
    app: &'a Toolwright,
    services: &'a Services,
    args: &Bench,
    prepared: &'a PreparedBench,
) -> Result<Pricing<'a>, Failure> {
    let (config, table) = (app.config(), app.config().prices());
    let models = prepared.plan.models.iter().chain(&prepared.plan.judge).map(|model| {
        let price = match table.of(model) {
            Some(prices) => Price::Known(prices),
            None if is_free(app, model) => Price::Free,
            None => Price::Unknown,
        };
        let attempts = TrafficConfig::retry_of(&config.model_traffic(), model).most_requests();
        (model.clone(), ModelPrice { price, attempts })
    });
    let pricing = Pricing::new(prepared, services, models.collect::<HashMap<_, _>>());
    let names = pricing.unknown().join(", ");
    match (names.is_empty(), args.max_cost, args.max_requests) {
        (true, ..) | (false, _, Some(_)) => {}
        (false, Some(_), None) => {
            return Err(Failure::usage(format!(
                "--max-cost cannot be held: the price of {names} is not known; write models.\"<model>\".prices, or \
                 bound the requests with --max-requests"
            )));
        }
        (false, None, None) => {
            say(styled(
                WARN,
                format_args!("the price of {names} is not known: no cost is counted, and none is bounded"),
            ));
        }
    }
    Ok(pricing)
}

/// Returns whether a model's server is on this machine and needs no key.
fn is_free(app: &Toolwright, model: &str) -> bool {
    let provider = model.split_once('/').map(|(provider, _)| provider).unwrap_or_default();
    // Headers may contain a key.
    let keyless = |endpoint: &&Endpoint| endpoint.key.is_none() && endpoint.headers.is_empty();
    let Some(endpoint) = app.models().endpoints().get(provider).filter(keyless) else { return false };
    match Url::parse(&endpoint.base_url).ok().as_ref().and_then(Url::host) {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
