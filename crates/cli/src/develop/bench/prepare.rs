//! What is to be measured: cases, tools and models, all checked before anything is asked.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toolwright::Toolwright;
use toolwright::core::llm::llm_definition;
use toolwright::core::name_table::Resolution;
use toolwright::core::schema::Violation;
use toolwright::core::{Entry, Snapshot};
use toolwright::models::default_model;
use toolwright_eval::{Case, CaseError, Kind, MAX_FILE_BYTES, Plan, Planned, Spot, Suite, Terms, parse, shipped_cases};

use super::Bench;
use crate::app::agent::can_answer;
use crate::app::variable;
use crate::exit::{Exit, Failure};
use crate::input;
use crate::terminal::screen::say_warning;

/// How long the provider of a tool may take to list.
const LIST_WAIT: Duration = Duration::from_secs(60);
/// The tool that judges.
pub(super) const JUDGE: &str = "llm:score";
/// Violations that are told of one input.
const TOLD: usize = 3;

/// What is measured, with what.
pub(super) struct Prepared {
    /// The calls.
    pub(super) plan: Plan,
    /// What names mean.
    pub(super) snapshot: Arc<Snapshot>,
    /// The tools of the plan, in its order.
    pub(super) entries: Vec<Arc<Entry>>,
    /// The tool that judges, where one is asked.
    pub(super) judge: Option<Arc<Entry>>,
}

pub(super) async fn prepare(app: &Arc<Toolwright>, args: &Bench) -> Result<Prepared, Failure> {
    let suites = suites(args)?;
    let models = models(app, args).await?;
    app.offer_llm_tools().await;
    for suite in &suites {
        app.list_for(&suite.tool, LIST_WAIT).await;
    }
    let snapshot = app.catalogue().snapshot();
    let mut tools: Vec<(Planned, Arc<Entry>)> = Vec::new();
    for suite in suites {
        let Some(entry) = entry(&snapshot, &suite, args)? else { continue };
        if !args.tools.is_empty() && !entry.is_named_by(&args.tools) {
            continue;
        }
        check(&suite, &entry)?;
        let planned = Planned {
            tool: entry.id().clone(),
            contract: entry.tool.hash(),
            threshold: entry.definition().recommended_threshold,
            mode: suite.mode,
            repeat: args.repeat.or(suite.repeat).unwrap_or(1),
            cases: suite.cases,
        };
        tools.push((planned, entry));
    }
    let judge = judge(app, args, &models, &mut tools).await?;
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
    let asked = |model: &String| (model.clone(), app.models().endpoints().asked_as(model));
    let terms = Terms {
        of_models: models.iter().chain(&judge).map(asked).collect(),
        judge_contract: judge_entry.as_ref().map(|entry| entry.tool.hash()),
    };
    let plan = Plan::new(tools, models, judge, &terms).map_err(Failure::usage)?;
    Ok(Prepared { plan, snapshot, entries, judge: judge_entry })
}

fn suites(args: &Bench) -> Result<Vec<Suite>, Failure> {
    let failure =
        |faults: Vec<CaseError>| Failure::usage(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    if args.cases.is_empty() {
        return shipped_cases().map_err(failure);
    }
    let (mut suites, mut faults) = (Vec::new(), Vec::new());
    for file in &args.cases {
        let text = input::read_up_to(file, MAX_FILE_BYTES as u64)?;
        match parse(&text, &name(file)) {
            Ok(read) => suites.extend(read),
            Err(found) => faults.extend(found),
        }
    }
    if faults.is_empty() { Ok(suites) } else { Err(failure(faults)) }
}

fn name(file: &Path) -> String {
    file.display().to_string()
}

/// The models, each once, all of which can be asked.
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

/// Whether all of these can be asked; names those that cannot.
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

/// The tool of a suite. A shipped one that is switched off is left out.
fn entry(snapshot: &Snapshot, suite: &Suite, args: &Bench) -> Result<Option<Arc<Entry>>, Failure> {
    match snapshot.resolve(&suite.tool) {
        Resolution::Found(index, _) => Ok(snapshot.list().get(index).cloned()),
        Resolution::Unknown(_) if args.cases.is_empty() => {
            say_warning(&format!("{} is switched off, and is not measured", suite.tool));
            Ok(None)
        }
        Resolution::Unknown(near) => {
            let message = snapshot.unknown_message(&suite.tool, &near);
            let message = fault(suite, &suite.tool_at, message, "`toolwright tools ls` lists the tools").to_string();
            Err(Failure { exit: Exit::NoTool, message })
        }
    }
}

/// What is wrong with what a file says of its tool.
fn fault(suite: &Suite, at: &Spot, message: String, remedy: &'static str) -> CaseError {
    let Spot { line, key } = at.clone();
    CaseError { file: suite.file.clone(), line, key, message, remedy }
}

/// Whether the tool asks models, in this mode, and takes the inputs.
fn check(suite: &Suite, entry: &Entry) -> Result<(), Failure> {
    let refused =
        |at: &Spot, message: String, remedy| Err(Failure::usage(fault(suite, at, message, remedy).to_string()));
    let (id, definition) = (entry.id(), llm_definition(entry));
    if definition.is_none() && entry.definition().model_preference.is_none() {
        let remedy = "only tools that a model answers are measured";
        return refused(&suite.tool_at, format!("{id} asks no model"), remedy);
    }
    if let Some(mode) = &suite.mode {
        let modes = definition.as_ref().map(|definition| definition.modes()).unwrap_or_default();
        if modes.is_empty() {
            return refused(&suite.mode_at, format!("{id} has no modes"), "leave it out");
        }
        if !modes.contains(&mode.as_str()) {
            let message = format!("{id} has no mode `{mode}`; its modes: {}", modes.join(", "));
            return refused(&suite.mode_at, message, "write one of them, or leave it out");
        }
    }
    let schema = match entry.tool.schema() {
        Ok(schema) => schema,
        Err(error) => return refused(&suite.tool_at, format!("{id}: {error}"), "tell its author"),
    };
    let Some(schema) = schema else { return Ok(()) };
    let mut faults = Vec::new();
    for Case { id, input, line, key, .. } in &suite.cases {
        for Violation { path, message, .. } in schema.violations(input).into_iter().take(TOLD) {
            let key = if key.is_empty() { "input".to_owned() } else { format!("{key}.input") };
            let message =
                format!("the input of case `{id}`: {path}{}{message}", if path.is_empty() { "" } else { ": " });
            let remedy = "write what the parameters of the tool take";
            faults.push(CaseError { file: suite.file.clone(), line: *line, key, message, remedy }.to_string());
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(Failure::usage(faults.join("\n"))) }
}

/// Who judges. Where nobody may, rubrics are left out, for all models alike.
async fn judge(
    app: &Toolwright,
    args: &Bench,
    models: &[String],
    tools: &mut [(Planned, Arc<Entry>)],
) -> Result<Option<String>, Failure> {
    if !tools.iter().flat_map(|(planned, _)| &planned.cases).any(Case::is_judged) {
        return Ok(None);
    }
    let config = app.config();
    let configured = config.written.models.judge.clone();
    let is_measured = |model: &String| models.contains(model);
    let named = args.judge.clone().or(configured);
    if let Some(judge) = named.as_ref().filter(|judge| is_measured(judge) && !args.self_judge) {
        return Err(Failure::usage(format!(
            "{judge} would judge itself: name another with --judge, or let it with --self-judge"
        )));
    }
    let default = || app.default_model().map(str::to_owned).filter(|model| args.self_judge || !is_measured(model));
    let own = || models.first().filter(|_| args.self_judge).cloned();
    let judge = named.or_else(default).or_else(own);
    if let Some(judge) = &judge {
        usable(app, std::slice::from_ref(judge)).await?;
        return Ok(Some(judge.clone()));
    }
    let (mut rubrics, mut cases) = (0, 0);
    for (planned, _) in tools {
        let before = planned.cases.len();
        // A case of rubrics alone would be right whatever is answered.
        planned.cases.retain_mut(|case| {
            let had = case.checks.len();
            case.checks.retain(|check| !matches!(check.kind, Kind::Rubric { .. }));
            rubrics += had - case.checks.len();
            had == 0 || !case.checks.is_empty()
        });
        cases += before - planned.cases.len();
    }
    let cases = if cases == 0 { String::new() } else { format!(", and {cases} cases with them") };
    say_warning(&format!(
        "{rubrics} rubrics are left out{cases}: nobody judges them; name a model with --judge or models.judge, or let \
         the measured one with --self-judge"
    ));
    Ok(None)
}
