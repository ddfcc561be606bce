//! `plan`: checks, shows and runs plans, which are arrays of calls that refer to each other's results.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use toolwright::agent::Status;
use toolwright::app::{PlanOptions, PlanRefused, PlanWriter, PlannedOutcome};
use toolwright::core::approval::NoApprover;
use toolwright::core::plan::{CheckedPlanCall, DependencyKind, PlanCheck, PlanDocument, PlanIssue, unreadable};
use toolwright::core::policy::Effect;
use toolwright::core::{Cancel, Profile, RunInput};
use toolwright::{Error, Toolwright};

use super::call::LIST_WAIT;
use super::report::exit;
use super::run::read_task;
use crate::app::agent::{approver, can_be_asked, chosen_model, question_recipient};
use crate::app::lists::{WaitFor, wait_for};
use crate::app::{GlobalOptions, open};
use crate::exit::{CommandResult, Exit, Failure};
use crate::input;
use crate::terminal::console::{OnSignal, watch};
use crate::terminal::person::Terminal;
use crate::terminal::screen::{BAD, DIM, WARN, one_line, print_json, print_text, sanitize, say, say_error, styled};
use crate::values::{AskName, ask, profile_name, usd};

/// The most columns of a line of a shown plan.
const WIDTH: usize = 80;

#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Check a plan before anything runs. Tools, arguments, references and their types, order and policy; exit code 1 if
    /// something is wrong. With --json: {valid, calls, edges, errors}.
    Check(PlanFile),
    /// Show a plan: which calls run in parallel, and which wait for which.
    Show {
        #[command(flatten)]
        plan: PlanFile,
        /// Prints a Mermaid flowchart.
        #[arg(long)]
        mermaid: bool,
    },
    /// Run a plan. It is checked first, and nothing runs if something is wrong. With --json: {plan, status, calls, state}.
    ///
    /// Running it approves the calls as they are written, whatever values replace their references. If the policy asks
    /// about a call for a new reason, you are asked about that call. With --policy, nothing is approved beforehand. To
    /// continue a plan that was interrupted, run it again by its name.
    Run {
        #[command(flatten)]
        plan: PlanFile,
        /// Who is asked about calls that are not approved. Default: `terminal` if there is one, else `nobody`.
        #[arg(long, value_name = "WHOM", value_parser = ask())]
        ask: Option<AskName>,
        /// Has a model write a new plan for what failed, once, and runs it. The new calls are not approved beforehand.
        #[arg(long)]
        repair: bool,
        #[command(flatten)]
        writer: Writer,
    },
    /// Check and save a plan, and print the name to run it by.
    Save {
        #[command(flatten)]
        plan: PlanFile,
        /// Approves its calls as they are written, whatever values replace their references.
        #[arg(long)]
        approve: bool,
    },
    /// Have a model write a plan for a request. The plan is printed and does not run. The model gets one chance to
    /// correct errors; exit code 1 if some are left.
    Make {
        /// The request; `-` reads it from standard input.
        request: String,
        /// What references like †input.x stand for: a JSON object, an array of them, or a file of one.
        #[arg(long, value_name = "FILE|JSON")]
        input: Option<String>,
        /// The profile that the plan is checked under. Default: `policy.profile`, else `ask`.
        #[arg(long, value_name = "PROFILE", value_parser = profile_name())]
        policy: Option<Profile>,
        /// Most US dollars for the plan, by the cost hints of its tools. Default: no limit.
        #[arg(long, value_name = "USD", value_parser = usd)]
        max_cost: Option<f64>,
        #[command(flatten)]
        writer: Writer,
    },
}

/// The model that writes plans.
#[derive(Debug, Args)]
pub(crate) struct Writer {
    /// The model that writes the plan. Default: `models.default`, else a model that the environment offers.
    #[arg(short, long, value_name = "PROVIDER/MODEL")]
    model: Option<String>,
    /// Tools that it may plan with, as globs on ids or wire names (repeatable). Default: all.
    #[arg(long, value_name = "GLOB")]
    tools: Vec<String>,
}

impl Writer {
    async fn of(
        &self,
        app: &Toolwright,
        (profile, max_cost): (Option<Profile>, Option<f64>),
        input: RunInput,
    ) -> Result<PlanWriter, Failure> {
        let model = chosen_model(self.model.clone(), app).await?;
        Ok(PlanWriter { model, tools: self.tools.clone(), profile, input, max_cost })
    }
}

/// A plan in a file.
#[derive(Debug, Args)]
pub(crate) struct PlanFile {
    /// The file: a JSON array of calls `{"_tool": name, "_outputPath"?: path, ...arguments}`; `-` is standard input. Or
    /// the name of a saved plan.
    file: PathBuf,
    /// What references like †input.x stand for: a JSON object, or a file of one. With an array the plan runs once for
    /// each item, unless its calls name instances (①, ②, …).
    #[arg(long, value_name = "FILE|JSON")]
    input: Option<String>,
    /// The profile that decides calls that no rule matches. Default: `policy.profile`, else `ask`.
    #[arg(long, value_name = "PROFILE", value_parser = profile_name())]
    policy: Option<Profile>,
    /// Most US dollars for the plan, by the cost hints of its tools. Default: no limit.
    #[arg(long, value_name = "USD", value_parser = usd)]
    max_cost: Option<f64>,
}

fn input(written: Option<&String>) -> Result<RunInput, Failure> {
    match written {
        Some(written) => input::run_input(written),
        None => Ok(RunInput { input: json!({}), ..RunInput::default() }),
    }
}

impl PlanFile {
    fn input(&self) -> Result<RunInput, Failure> {
        input(self.input.as_ref())
    }

    /// Returns the name of a stored plan.
    fn name(&self) -> Option<&str> {
        self.file.to_str().filter(|name| name.starts_with("plan-") && !self.file.exists())
    }

    fn read(&self) -> Result<Result<PlanDocument, Vec<PlanIssue>>, Failure> {
        Ok(PlanDocument::parse(&input::read(Path::new(&self.file))?))
    }
}

pub(crate) async fn command(global: &GlobalOptions, command: &PlanCommand) -> CommandResult {
    let file = match command {
        PlanCommand::Check(file)
        | PlanCommand::Show { plan: file, .. }
        | PlanCommand::Save { plan: file, .. }
        | PlanCommand::Run { plan: file, .. } => file,
        PlanCommand::Make { request, input: given, policy, max_cost, writer } => {
            let (request, input) = (read_task(request)?, input(given.as_ref())?);
            let app = opened(global).await?;
            let done = make(global, &app, &request, writer.of(&app, (*policy, *max_cost), input).await?).await;
            app.shut_down().await;
            return done;
        }
    };
    let mut input = file.input()?;
    let read = match file.name() {
        Some(_) => None,
        None => match file.read()? {
            Ok(plan) => Some(plan),
            Err(issues) => {
                let found = unreadable(&issues);
                let is_run = matches!(command, PlanCommand::Run { .. });
                return refused(global, &if is_run { plan_not_started(found) } else { found }, &issues);
            }
        },
    };
    if let PlanCommand::Run { ask, .. } = command {
        can_be_asked(question_recipient(*ask))?;
    }
    if file.input.is_some() && file.name().is_some() && !matches!(command, PlanCommand::Save { .. }) {
        let message = "a plan that is kept has its input: `plan save NAME --input …` keeps it with another";
        return Err(Failure::usage(message));
    }
    let app = opened(global).await?;
    let plan = match (read, file.name()) {
        (Some(plan), _) => plan,
        (None, name) => {
            let (plan, kept) = app.saved_plan(name.unwrap_or_default()).await.map_err(not_run)?;
            if file.input.is_none() {
                input = kept;
            }
            plan
        }
    };
    let done = match command {
        PlanCommand::Check(_) => {
            let check = app.check_plan(&plan, file.policy, &input, file.max_cost);
            check_only(global, &check, repeated(&plan, &input))
        }
        PlanCommand::Show { mermaid, .. } => {
            let check = app.check_plan(&plan, file.policy, &input, file.max_cost);
            show(global, (&plan, &check), repeated(&plan, &input), *mermaid)
        }
        PlanCommand::Save { approve, .. } => save(global, &app, &plan, (file, input, *approve)).await,
        PlanCommand::Run { ask, repair, writer, .. } => {
            let writer =
                if *repair { Some(writer.of(&app, (file.policy, file.max_cost), input.clone()).await?) } else { None };
            run(global, &app, &plan, (file, input, *ask), writer).await
        }
        PlanCommand::Make { .. } => Ok(Exit::Ok),
    };
    app.shut_down().await;
    done
}

async fn opened(global: &GlobalOptions) -> Result<Arc<Toolwright>, Failure> {
    let app = open(global).await?;
    app.offer_llm_tools().await;
    wait_for(&app, WaitFor::All, LIST_WAIT).await;
    Ok(app)
}

fn not_run(error: Error) -> Failure {
    match error {
        Error::Plan(PlanRefused::NotFound(_)) => Failure::not_found(error),
        Error::Plan(PlanRefused::Store(error)) => error.into(),
        Error::Plan(PlanRefused::Model(_)) => Failure::usage(error),
        _ => error.into(),
    }
}

async fn make(global: &GlobalOptions, app: &Arc<Toolwright>, request: &str, writer: PlanWriter) -> CommandResult {
    let made = app.write_plan(request, &writer).await.map_err(not_run)?;
    let document = made.document.to_value();
    if global.json {
        let mut check = made.check.to_json();
        check["plan"] = document;
        print_json(&check)?;
    } else {
        print_json(&document)?;
    }
    let issues = made.check.errors.iter().chain(&made.check.warnings);
    issues.for_each(|issue| say(styled(WARN, sanitize(&issue.to_string()))));
    Ok(if made.check.is_valid() { Exit::Ok } else { Exit::Failed })
}

async fn save(
    global: &GlobalOptions,
    app: &Arc<Toolwright>,
    plan: &PlanDocument,
    (file, input, approved): (&PlanFile, RunInput, bool),
) -> CommandResult {
    let approver = Arc::new(NoApprover { remedy: String::new() });
    let (profile, max_cost) = (file.policy, file.max_cost);
    let options = PlanOptions { profile, input, approver, approved, max_cost, cancel: Cancel::new() };
    match app.save_plan(plan, &options).await {
        Ok(id) if global.json => print_json(&json!({"plan": id, "digest": plan.digest().to_string()}))?,
        Ok(id) => print_text(&id)?,
        Err(Error::Plan(PlanRefused::Check(check))) => return refused(global, &check.to_json(), &check.errors),
        Err(error) => return Err(not_run(error)),
    }
    Ok(Exit::Ok)
}

/// Returns the report of a plan that cannot run, with its faults in `errors`.
fn plan_not_started(mut found: Value) -> Value {
    (found["status"], found["calls"], found["state"]) = (json!("refused"), json!([]), json!({}));
    found
}

/// Prints the faults.
fn refused(global: &GlobalOptions, document: &Value, issues: &[PlanIssue]) -> CommandResult {
    if global.json {
        print_json(document)?;
    }
    for issue in issues {
        say_error(&sanitize(&issue.to_string()));
    }
    Ok(Exit::Failed)
}

/// Returns for how many inputs the plan is repeated.
fn repeated(plan: &PlanDocument, input: &RunInput) -> Option<usize> {
    plan.repeats(input).then_some(input.instances.len())
}

/// Returns the check as JSON, with the number of inputs that the plan is repeated for.
fn as_json(check: &PlanCheck, inputs: Option<usize>) -> Value {
    let mut value = check.to_json();
    if let Some(inputs) = inputs {
        value["inputs"] = inputs.into();
    }
    value
}

fn check_only(global: &GlobalOptions, check: &PlanCheck, inputs: Option<usize>) -> CommandResult {
    check.warnings.iter().for_each(|issue| say(styled(WARN, sanitize(&issue.to_string()))));
    if !check.is_valid() {
        return refused(global, &as_json(check, inputs), &check.errors);
    }
    if global.json {
        print_json(&as_json(check, inputs))?;
    } else {
        let (calls, steps) = (counted(check.calls.len(), "call"), counted(check.graph.levels().len(), "step"));
        let references = counted(check.value_edges().len(), "reference");
        let inputs = inputs.map(|inputs| format!(", for each of {inputs} inputs")).unwrap_or_default();
        print_text(&format!("{calls} in {steps}, {references}{inputs}"))?;
    }
    Ok(Exit::Ok)
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn show(
    global: &GlobalOptions,
    (plan, check): (&PlanDocument, &PlanCheck),
    inputs: Option<usize>,
    mermaid: bool,
) -> CommandResult {
    if global.json {
        print_json(&as_json(check, inputs))?;
    } else if mermaid {
        print_text(flowchart(plan, check).trim_end())?;
    } else {
        let each = inputs.map(|inputs| format!("for each of {inputs} inputs\n")).unwrap_or_default();
        print_text(format!("{each}{}", drawn(plan, check)).trim_end())?;
    }
    check.errors.iter().for_each(|issue| say(styled(BAD, sanitize(&issue.to_string()))));
    Ok(if check.is_valid() { Exit::Ok } else { Exit::Failed })
}

/// Draws the plan in steps; the calls of a step run in parallel.
pub(crate) fn drawn(plan: &PlanDocument, check: &PlanCheck) -> String {
    let mut text = String::new();
    for (step, calls) in check.graph.levels().into_iter().enumerate() {
        let _ = writeln!(text, "step {}", step + 1);
        for index in calls {
            let Some(call) = plan.calls.get(index) else { continue };
            let checked = check.calls.get(index);
            let effect = checked.and_then(CheckedPlanCall::effect);
            let verdict = match effect {
                None | Some(Effect::Allow) => "",
                Some(Effect::Ask) => " (asks)",
                Some(Effect::Deny) => " (denied)",
            };
            let activity = checked.and_then(|checked| checked.activity.as_ref());
            let by = activity.map(|activity| format!(" by {}", activity.call.entry.wire_name)).unwrap_or_default();
            let path = call.meta.output_path.as_ref().map(|path| format!(" -> {path}")).unwrap_or_default();
            let after: Vec<String> =
                check.graph.edges().iter().filter(|edge| edge.to == index).map(|edge| edge.from.to_string()).collect();
            let after = if after.is_empty() { String::new() } else { format!(" after {}", after.join(", ")) };
            let line = format!("  {index} {}{by}{path}{after}{verdict}", call.tool);
            let _ = writeln!(text, "{}", one_line(&sanitize(&line), WIDTH - 2));
            let arguments = Value::Object(call.arguments.clone()).to_string();
            // A call that needs approval is shown whole.
            let width = if effect == Some(Effect::Ask) { usize::MAX } else { WIDTH - 6 };
            let _ = writeln!(text, "    {}", one_line(&sanitize(&arguments), width));
        }
    }
    text
}

/// Returns the plan as a Mermaid flowchart. A dotted arrow only means an order.
fn flowchart(plan: &PlanDocument, check: &PlanCheck) -> String {
    let mut text = "flowchart TD\n".to_owned();
    for (index, call) in plan.calls.iter().enumerate() {
        let name = sanitize(&call.tool).replace('"', "'");
        let _ = writeln!(text, "  c{index}[\"{index}: {name}\"]");
    }
    for edge in check.graph.edges() {
        let path = plan.calls.get(edge.from).and_then(|call| call.meta.output_path.as_deref()).unwrap_or_default();
        let _ = match edge.wait {
            DependencyKind::Value => writeln!(text, "  c{} -->|\"{}\"| c{}", edge.from, sanitize(path), edge.to),
            DependencyKind::Order => writeln!(text, "  c{} -.-> c{}", edge.from, edge.to),
        };
    }
    text
}

async fn run(
    global: &GlobalOptions,
    app: &Arc<Toolwright>,
    plan: &PlanDocument,
    (file, input, ask): (&PlanFile, RunInput, Option<AskName>),
    writer: Option<PlanWriter>,
) -> CommandResult {
    let cancel = Cancel::new();
    watch(cancel.clone(), OnSignal::Cancel);
    let terminal = Terminal::new(app);
    let remedy = || "use a terminal, --ask inbox, a wider --policy, or a rule under policy.rules".to_owned();
    let approver = match question_recipient(ask) {
        AskName::Nobody => Arc::new(NoApprover { remedy: remedy() }) as _,
        recipient => approver(&terminal, recipient, app, remedy),
    };
    let (profile, max_cost, approved) = (file.policy, file.max_cost, file.policy.is_none());
    let options = PlanOptions { profile, input, approver, approved, max_cost, cancel };
    let id = match file.name() {
        Some(id) => Ok(id.to_owned()),
        None => app.save_plan(plan, &options).await,
    };
    let ran = match id {
        Ok(id) => {
            say(styled(DIM, format_args!("after an interruption: toolwright plan run {id}")));
            app.resume_plan(&id, options.clone()).await
        }
        Err(error) => Err(error),
    };
    let mut report = match ran {
        Ok(report) => report,
        Err(Error::Plan(PlanRefused::Check(check))) => {
            return refused(global, &plan_not_started(check.to_json()), &check.errors);
        }
        Err(error) => return Err(not_run(error)),
    };
    if let Some(writer) = writer.filter(|_| matches!(report.status, Status::Partial | Status::Failure)) {
        // Calls have run, so their report is printed even if the repair fails.
        match app.repair_plan(&report, &writer, options).await {
            Ok(repaired) => report = repaired,
            Err(Error::Plan(PlanRefused::Check(check))) => {
                say_error("the model planned nothing that can run in place of what failed:");
                check.errors.iter().for_each(|issue| say_error(&sanitize(&issue.to_string())));
            }
            Err(error) => say_error(&sanitize(&format!("there is no new plan for what failed: {error}"))),
        }
    }
    if global.json {
        print_json(&report.to_json())?;
    } else {
        for (index, PlannedOutcome { call, outcome }) in report.calls.iter().enumerate() {
            let of = call.meta.instance.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
            let line = |end: String, width| one_line(&sanitize(&format!("{of}{index} {}{end}", call.tool)), width);
            let line = match outcome.as_ref().map(|outcome| (outcome, &outcome.error)) {
                None => line(" has not run".to_owned(), WIDTH),
                Some((outcome, None)) => line(format!(": {}", outcome.text()), WIDTH),
                Some((_, Some(error))) => line(format!(" failed: {}", error.message()), 5 * WIDTH),
            };
            print_text(&line)?;
        }
        say(styled(DIM, report.status.as_str()));
    }
    Ok(exit(report.status))
}
