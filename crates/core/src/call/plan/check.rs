//! Checks a plan before anything runs: tools, arguments, references, order, policy and cost, all in one list.

use std::sync::Arc;

use hashbrown::HashMap;
use serde::Serialize;
use serde_json::{Value, json};

use super::document::{IssueKind, PlanCall, PlanDocument, PlanIssue, at, issue};
use super::graph::{DependencyKind, Edge, Graph, Node};
use super::types::{PathSchema, Types, place};
use super::written;
use crate::base::pattern::nearest;
use crate::call::meta::extract_meta;
use crate::call::variables::{
    KnownValue, MARK, MAX_QUOTE, NamedReference, NamedVariable, VariableKind, Variables, is_malformed,
    named_references, overlap,
};
use crate::call::{CallMeta, Caller, Rejection, ToolCall, ValidCall, check};
use crate::catalogue::{DefinitionOrigin, Entry, Snapshot};
use crate::definition::CallScope;
use crate::error::ErrorKind;
use crate::identity::name_table::Resolution;
use crate::identity::session::Session;
use crate::json::pointer::{self, is_within};
use crate::model::call_meta::{Method, OUTPUT_METHOD, OUTPUT_PATH, TOOL};
use crate::policy::{Decision, Effect, Policy, PolicyQuery, UserRequest};
use crate::schema::{Violation, schema_at};

/// The context of a plan check.
#[derive(Clone, Copy)]
pub struct PlanContext<'a> {
    /// The catalogue.
    pub snapshot: &'a Snapshot,
    /// The caller's session.
    pub session: &'a Session,
    /// The policy that decides about the calls.
    pub policy: Option<&'a Policy>,
    /// The user's own words, for conditions of the policy.
    pub request: Option<&'a Arc<UserRequest>>,
    /// Values of references that no call of the plan writes.
    pub variables: Option<&'a dyn Variables>,
    /// Maximal cost of the plan in US dollars, by the hints of its tools.
    pub max_cost: Option<f64>,
}

/// A plan after its check.
#[derive(Debug, Clone)]
pub struct PlanCheck {
    /// Its calls, in written order.
    pub calls: Vec<CheckedPlanCall>,
    /// Dependencies between the calls.
    pub graph: Graph,
    /// The faults. A plan without faults may run.
    pub errors: Vec<PlanIssue>,
    /// The possible faults.
    pub warnings: Vec<PlanIssue>,
    /// Total cost.
    pub cost: PlanCost,
}

/// A call of a plan after its check.
#[derive(Debug, Clone)]
pub struct CheckedPlanCall {
    /// The call, valid except for references, or the reason why not.
    pub call: Result<ValidCall, Box<Rejection>>,
    /// The policy's decision before references are replaced.
    pub verdict: Option<Decision>,
    /// The resources it would touch, as far as known.
    pub scope: CallScope,
    /// The call inside it that its activity runs.
    pub activity: Option<CheckedActivity>,
}

impl CheckedPlanCall {
    /// Returns the policy's effect: the stricter of the call and its activity's call.
    #[must_use]
    pub fn effect(&self) -> Option<Effect> {
        let within = self.activity.as_ref().and_then(|activity| activity.verdict.as_ref());
        let effects = self.verdict.iter().chain(within).map(|decision| decision.effect);
        effects.max_by_key(|effect| effect.strictness())
    }
}

/// The call that an activity runs.
#[derive(Debug, Clone)]
pub struct CheckedActivity {
    /// The call, with the defaults of the activity.
    pub call: ValidCall,
    /// The policy's decision before references are replaced.
    pub verdict: Option<Decision>,
    /// The resources it would touch, as far as known.
    pub scope: CallScope,
}

/// Maximal cost of a plan, by the hints of its tools.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct PlanCost {
    /// US dollars of the calls with a known cost.
    pub usd: f64,
    /// Number of calls with unknown cost.
    pub unknown: usize,
}

impl PlanCost {
    pub(super) fn add(&mut self, other: Self) {
        self.usd += other.usd;
        self.unknown += other.unknown;
    }

    /// The fault of a plan that costs more than `max`.
    pub(super) fn over(self, max: Option<f64>) -> Option<PlanIssue> {
        let max = max.filter(|max| self.usd > *max)?;
        let message = format!("the plan may cost {:.4} USD, over the limit of {max} USD; leave calls out", self.usd);
        Some(issue("", IssueKind::Cost, message))
    }
}

impl PlanCheck {
    /// Whether the plan may run.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns `[from, to]` for each call that reads another's output.
    #[must_use]
    pub fn value_edges(&self) -> Vec<[usize; 2]> {
        pairs(self.graph.edges(), DependencyKind::Value)
    }

    /// Returns `{valid, calls, edges: [[from, to]], errors: [{path, kind, message}]}`, plus `order` for calls that only
    /// keep written order, `warnings` if there are any, and `cost` if known.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "valid": self.is_valid(),
            "calls": self.calls.len(),
            "edges": self.value_edges(),
            "errors": self.errors,
        });
        let order = pairs(self.graph.edges(), DependencyKind::Order);
        if !order.is_empty() {
            value["order"] = json!(order);
        }
        if !self.warnings.is_empty() {
            value["warnings"] = json!(self.warnings);
        }
        if self.cost.unknown < self.calls.len() {
            value["cost"] = json!(self.cost);
        }
        value
    }
}

fn pairs(edges: &[Edge], wait: DependencyKind) -> Vec<[usize; 2]> {
    edges.iter().filter(|edge| edge.wait == wait).map(|edge| [edge.from, edge.to]).collect()
}

/// The report on a document that is no plan.
#[must_use]
pub fn unreadable(errors: &[PlanIssue]) -> Value {
    json!({"valid": false, "calls": 0, "edges": [], "errors": errors})
}

/// A path, step by step.
fn split(path: &str) -> Vec<&str> {
    path.split('.').collect()
}

/// Reads and writes of a call.
struct CallAccess {
    references: Vec<NamedReference>,
    /// Meta fields, including those fixed by the tool.
    meta: CallMeta,
}

impl CallAccess {
    /// Computes it for a call as written. Only the tool's parameters count as arguments.
    fn of(call: &PlanCall, entry: Option<&Entry>) -> Self {
        let (mut arguments, mut meta) = (Value::Object(call.arguments.clone()), call.meta.clone());
        if let Some(entry) = entry {
            // The check reports faults of meta fields later.
            let _ = extract_meta(entry, &mut arguments, &mut meta, false);
        }
        Self { references: named_references(&arguments), meta }
    }

    fn writes(&self) -> Option<&str> {
        Some(self.meta.writes()?.0)
    }

    fn node(&self) -> Node<'_> {
        let named = self.references.iter().flat_map(|reference| reference.alternatives.iter().flatten());
        let state = named.filter(|named| named.kind == VariableKind::State);
        Node {
            reads: state.map(|named| named.path.iter().map(String::as_str).collect()).collect(),
            sees: self.meta.seen_state().collect(),
            writes: written(&self.meta),
            instance: self.meta.instance.as_deref(),
            reads_elsewhere: false,
        }
    }
}

/// Checks a plan. Pure: nothing runs, nobody is asked.
///
/// References are replaced for tools of every origin. A call named by a reference must be in the plan, unless the
/// context has a value for it. A field that an output schema does not name is an error if the schema is closed, else a
/// warning.
#[must_use]
pub fn check_plan(plan: &PlanDocument, context: &PlanContext<'_>) -> PlanCheck {
    let reaches: Vec<CallAccess> =
        plan.calls.iter().map(|call| CallAccess::of(call, entry(context.snapshot, &call.tool))).collect();
    let graph = Graph::of(&reaches.iter().map(CallAccess::node).collect::<Vec<_>>());
    let writes = reaches.iter().filter_map(|reach| reach.meta.writes());
    let mut initial_values = InitialValues { context, written: HashMap::new() };
    writes.for_each(|(path, instance)| initial_values.written.entry(instance).or_default().push(split(path)));
    let (mut errors, mut warnings, mut cost) = (Vec::new(), Vec::new(), PlanCost::default());
    let calls: Vec<CheckedPlanCall> = plan
        .calls
        .iter()
        .enumerate()
        .map(|(index, call)| {
            let checked = check_one(index, call, &initial_values, &mut errors);
            let own = checked.call.as_ref().ok().and_then(|call| call.entry.definition().cost_usd());
            // The activity's cost is added to the call's own.
            let usd = match &checked.activity {
                Some(activity) => activity.call.entry.definition().cost_usd().map(|usd| usd + own.unwrap_or(0.0)),
                None => own,
            };
            match usd {
                Some(usd) => cost.usd += usd,
                None => cost.unknown += 1,
            }
            checked
        })
        .collect();
    for (index, reach) in reaches.iter().enumerate() {
        for reference in &reach.references {
            let reader = ReferenceCheck {
                index,
                reference,
                reaches: &reaches,
                calls: &calls,
                graph: &graph,
                initial_values: &initial_values,
            };
            reader.check(&mut errors, &mut warnings);
        }
    }
    warnings.extend(unread_writes(&reaches, &graph));
    for (index, call) in plan.calls.iter().enumerate() {
        for (member, value) in &call.arguments {
            no_references(&at(index, member), value, &mut errors, &mut warnings);
        }
    }
    // A fault of form hides further faults at the same place.
    errors.retain(|found| !plan.faults.iter().any(|fault| is_within(&found.path, &fault.path)));
    errors.extend(plan.faults.iter().cloned());
    if let Some(circle) = graph.cycle() {
        errors.push(circular(&circle));
    }
    errors.extend(cost.over(context.max_cost));
    errors.sort_by_cached_key(|issue| place_of(&issue.path));
    PlanCheck { calls, graph, errors, warnings, cost }
}

/// Reports texts that look like references but are none.
fn no_references(path: &str, value: &Value, errors: &mut Vec<PlanIssue>, warnings: &mut Vec<PlanIssue>) {
    match value {
        Value::String(text) if is_malformed(text) => {
            let quoted_text: String = text.chars().take(MAX_QUOTE).collect();
            let message = format!(
                "`{quoted_text}` is no reference: write {MARK}KIND.PATH, with other such terms or JSON literals behind `||` or `&&`, \
                 or begin with {MARK}{MARK} for a text"
            );
            errors.push(issue(path.to_owned(), IssueKind::Reference, message));
        }
        Value::String(text) => {
            let Some((kind, _)) = text.strip_prefix(MARK).and_then(|rest| rest.split_once('.')) else { return };
            let is_word = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphabetic());
            if is_word && VariableKind::parse(kind).is_none() {
                let message = format!(
                    "`{MARK}{kind}` is no kind of reference, and stays text: write {MARK}state, {MARK}input or {MARK}scratch"
                );
                warnings.push(issue(path.to_owned(), IssueKind::Reference, message));
            }
        }
        Value::Array(items) => {
            let mut item = |(at, item)| no_references(&format!("{path}/{at}"), item, errors, warnings);
            items.iter().enumerate().for_each(&mut item);
        }
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            let mut path = path.to_owned();
            pointer::push(&mut path, name);
            no_references(&path, value, errors, warnings);
        }),
        _ => {}
    }
}

/// Reports results that another call replaces before any call reads them.
fn unread_writes(reaches: &[CallAccess], graph: &Graph) -> Vec<PlanIssue> {
    let mut is_read = vec![false; reaches.len()];
    let edges = || graph.edges().iter();
    edges().filter(|edge| edge.wait == DependencyKind::Value).for_each(|edge| is_read[edge.from] = true);
    let mut lost: Vec<(usize, PlanIssue)> = edges()
        .filter(|edge| edge.wait == DependencyKind::Order && !is_read[edge.from])
        .filter_map(|edge| {
            let (first, next) = (&reaches[edge.from], &reaches[edge.to]);
            let (path, instance) = first.meta.writes()?;
            let (over, of) = next.meta.writes().filter(|_| next.meta.output_method.replaces())?;
            (instance == of && split(path).starts_with(&split(over))).then(|| {
                let message = format!(
                    "its result overwrites that of /{}, which no call reads; write to another path, or join \
                     them with `{OUTPUT_METHOD}`",
                    edge.from
                );
                (edge.from, issue(at(edge.to, OUTPUT_PATH), IssueKind::Path, message))
            })
        })
        .collect();
    lost.dedup_by_key(|(from, _)| *from);
    lost.into_iter().map(|(_, issue)| issue).collect()
}

/// Sort key of an issue: calls in order.
fn place_of(path: &str) -> (usize, String) {
    let index = path.split('/').nth(1).and_then(|index| index.parse().ok()).unwrap_or(usize::MAX);
    (index, path.to_owned())
}

fn circular(circle: &[usize]) -> PlanIssue {
    let first = circle.iter().min().copied().unwrap_or_default();
    let start = circle.iter().position(|index| *index == first).unwrap_or_default();
    let mut names: Vec<String> =
        circle[start..].iter().chain(&circle[..start]).map(|index| format!("/{index}")).collect();
    names.push(format!("/{first}"));
    let message = format!(
        "these calls wait for each other: {}; take out one of the references between them",
        names.join(" waits for ")
    );
    issue(format!("/{first}"), IssueKind::Cycle, message)
}

/// The tool that a name means.
fn entry<'s>(snapshot: &'s Snapshot, name: &str) -> Option<&'s Entry> {
    match snapshot.resolve(name) {
        Resolution::Found(place, _) => snapshot.list().get(place).map(|entry| &**entry),
        Resolution::Unknown(_) => None,
    }
}

/// State paths that have a value before the plan runs.
struct InitialValues<'a> {
    context: &'a PlanContext<'a>,
    /// Paths, by the instance that they are written for.
    written: HashMap<Option<&'a str>, Vec<Vec<&'a str>>>,
}

impl InitialValues<'_> {
    /// Whether a call writes the value that a call for `instance` reads at `path`.
    fn is_written(&self, path: &[&str], instance: Option<&str>) -> bool {
        let is_in =
            |whose| self.written.get(&whose).is_some_and(|paths| paths.iter().any(|written| overlap(written, path)));
        is_in(None) || (instance.is_some() && is_in(instance))
    }
}

impl Variables for InitialValues<'_> {
    fn get(&self, kind: VariableKind, path: &[&str], instance: Option<&str>) -> Option<KnownValue> {
        if kind == VariableKind::State && self.is_written(path, instance) {
            return None;
        }
        self.context.variables?.get(kind, path, instance)
    }

    fn instances(&self) -> &[String] {
        self.context.variables.map(Variables::instances).unwrap_or_default()
    }

    fn serve(&self, _origin: DefinitionOrigin) -> bool {
        true
    }
}

fn check_one(
    index: usize,
    written: &PlanCall,
    initial_values: &InitialValues<'_>,
    errors: &mut Vec<PlanIssue>,
) -> CheckedPlanCall {
    let context = initial_values.context;
    let caller = Caller { principal: &context.session.principal, variables: Some(initial_values) };
    let call = checked(written.tool_call(index), context.snapshot, caller);
    let mut ended = CheckedPlanCall { call, verdict: None, scope: CallScope::Anywhere, activity: None };
    match &ended.call {
        Ok(valid) => {
            (ended.scope, ended.verdict) = judged(index, valid, context, errors);
            match valid.check_activity(context.snapshot, caller) {
                None => {}
                Some(Ok(call)) => {
                    let (scope, verdict) = judged(index, &call, context, errors);
                    ended.activity = Some(CheckedActivity { call, verdict, scope });
                }
                Some(Err(rejection)) => {
                    let whole = format!("/{index}");
                    let found = issues_of(&rejection, &whole, &at(index, TOOL), &whole);
                    let name = rejection.entry.as_ref().map_or(&rejection.name, |entry| &entry.wire_name);
                    let within = |found: PlanIssue| {
                        let message = format!("{name} runs it: {}", found.message);
                        PlanIssue { message, ..found }
                    };
                    errors.extend(found.into_iter().map(within));
                }
            }
        }
        Err(rejection) => {
            let whole = format!("/{index}");
            errors.extend(issues_of(rejection, &whole, &at(index, TOOL), &whole));
        }
    }
    ended
}

/// Checks the call. An unambiguous bare name is accepted, so that faults of the arguments are reported.
fn checked(call: ToolCall, snapshot: &Snapshot, caller: Caller<'_>) -> Result<ValidCall, Box<Rejection>> {
    match snapshot.resolve(&call.name) {
        Resolution::Found(place, matched) if matched.is_guess() => {
            let name = snapshot.list().get(place).map_or(call.name, |entry| entry.id().to_string());
            check(ToolCall { name, ..call }, snapshot, caller)
        }
        _ => check(call, snapshot, caller),
    }
}

/// Returns the resources that a call touches, and the policy's decision.
fn judged(
    index: usize,
    call: &ValidCall,
    context: &PlanContext<'_>,
    errors: &mut Vec<PlanIssue>,
) -> (CallScope, Option<Decision>) {
    let entry = &call.entry;
    let scope = entry.provider.scope(entry.id(), &call.arguments, context.session);
    let Some(policy) = context.policy else { return (scope, None) };
    let query = PolicyQuery {
        definition: entry.definition(),
        trust: entry.provider.trust(),
        principal: &context.session.principal,
        root: &context.session.root,
        scope,
        unvalidated: call.unvalidated,
        arguments: &call.arguments,
        request: context.request,
        tainted: &call.provenance.tainted,
    };
    let decision = policy.decide(&query);
    if decision.effect == Effect::Deny {
        // A condition on a missing value may change the decision once the value is there.
        let prospects = policy.possible_decisions(&query);
        if call.pending.is_empty() || !(prospects.allows || prospects.asks) {
            let message = format!("{} is denied: {}", entry.wire_name, decision.reason);
            errors.push(issue(at(index, TOOL), IssueKind::Policy, message));
        }
    }
    (scope, Some(decision))
}

/// Returns the faults of a rejected call, with pointers to the call (`whole`), its tool's name and its arguments.
#[must_use]
pub fn issues_of(rejection: &Rejection, whole: &str, tool: &str, arguments: &str) -> Vec<PlanIssue> {
    let error = &rejection.error;
    match error.kind() {
        ErrorKind::UnknownTool => vec![issue(tool, IssueKind::UnknownTool, error.model_message())],
        ErrorKind::NotPermitted => vec![issue(tool, IssueKind::Policy, error.model_message())],
        _ if rejection.violations.is_empty() => vec![issue(whole, IssueKind::Schema, error.model_message())],
        _ => {
            let of = |violation: &Violation| {
                let kind = if violation.keyword == "reference" { IssueKind::Reference } else { IssueKind::Schema };
                issue(format!("{arguments}{}", violation.path), kind, violation.message.as_str())
            };
            rejection.violations.iter().map(of).collect()
        }
    }
}

/// A reference in a call.
struct ReferenceCheck<'a> {
    index: usize,
    reference: &'a NamedReference,
    reaches: &'a [CallAccess],
    calls: &'a [CheckedPlanCall],
    graph: &'a Graph,
    initial_values: &'a InitialValues<'a>,
}

impl ReferenceCheck<'_> {
    fn path(&self) -> String {
        format!("/{}{}", self.index, self.reference.path)
    }

    fn check(&self, errors: &mut Vec<PlanIssue>, warnings: &mut Vec<PlanIssue>) {
        let lost = |named: &&NamedVariable| named.kind == VariableKind::State && !self.is_known(named);
        let nothing: Vec<&NamedVariable> = self.reference.alternatives.iter().flatten().filter(lost).collect();
        let none_is_there = self.reference.alternatives.iter().all(|terms| terms.iter().any(|named| lost(&named)));
        if let Some(named) = nothing.first() {
            let reference = format!("†state.{}", named.path.join("."));
            let mut paths: Vec<&str> = self.reaches.iter().filter_map(CallAccess::writes).collect();
            paths.dedup();
            let hint = match nearest(&named.path.join("."), paths.iter().copied())
                .or(nearest(&named.path[0], paths.iter().copied()))
            {
                Some(near) => format!("; did you mean †state.{near}?"),
                None if paths.is_empty() => format!("; give the call that it means an `{OUTPUT_PATH}`"),
                None => format!("; calls write {}", paths.iter().take(12).copied().collect::<Vec<_>>().join(", ")),
            };
            let message = format!("no call of the plan writes what {reference} refers to{hint}");
            let found = issue(self.path(), IssueKind::Reference, message);
            if none_is_there { errors.push(found) } else { warnings.push(found) }
        }
        for named in self.reference.alternatives.iter().flatten().filter(|named| named.kind == VariableKind::State) {
            self.check_type(named, errors, warnings);
        }
    }

    fn is_known(&self, named: &NamedVariable) -> bool {
        let path: Vec<&str> = named.path.iter().map(String::as_str).collect();
        let instance = self.reaches[self.index].meta.instance.as_deref();
        let variables = self.initial_values.context.variables;
        let value = || variables.and_then(|variables| variables.get(named.kind, &path, instance));
        self.initial_values.is_written(&path, instance) || value().is_some()
    }

    /// The type of a value that one call writes whole.
    fn check_type(&self, named: &NamedVariable, errors: &mut Vec<PlanIssue>, warnings: &mut Vec<PlanIssue>) {
        let path: Vec<&str> = named.path.iter().map(String::as_str).collect();
        let mut producers = self
            .graph
            .producers(self.index)
            .filter(|producer| self.reaches[*producer].writes().is_some_and(|written| overlap(&split(written), &path)));
        let (Some(producer), None) = (producers.next(), producers.next()) else { return };
        let written = &self.reaches[producer];
        let Some(base) = written.writes().map(|written| split(written).len()) else { return };
        let Ok(call) = &self.calls[producer].call else { return };
        if written.meta.output_method != Method::Set || base > path.len() {
            return;
        }
        let Some(schema) = call.entry.definition().output_schema.as_ref() else { return };
        let name = &call.entry.wire_name;
        let reference = format!("†state.{}", named.path.join("."));
        let found = match place(schema, &named.path[base..]) {
            PathSchema::Unknown => return,
            PathSchema::Closed(why) => {
                let message = format!("the output of {name} has no value for {reference}: {why}");
                errors.push(issue(self.path(), IssueKind::Reference, message));
                return;
            }
            PathSchema::Unnamed(step, near) => {
                let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                let message = format!("the output schema of {name} names no `{step}` for {reference}{hint}");
                warnings.push(issue(self.path(), IssueKind::Reference, message));
                return;
            }
            PathSchema::Known(found) => found,
        };
        if !self.reference.is_plain {
            return;
        }
        let Ok(reader) = &self.calls[self.index].call else { return };
        if let Some((has, wants)) = Types::of(schema, found).zip(expected_types(&reader.entry, &self.reference.path))
            && !has.fit(wants)
        {
            let message = format!("{reference} is of type {}, and {} is wanted here", has.names(), wants.names());
            errors.push(issue(self.path(), IssueKind::Type, message));
        }
    }
}

/// Returns the types that a tool accepts at a place of its arguments.
fn expected_types(entry: &Entry, path: &str) -> Option<Types> {
    let schema = entry.definition().parameters.as_ref()?;
    Types::of(schema, schema_at(schema, path)?)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
