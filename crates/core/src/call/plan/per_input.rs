//! Plans over many inputs: a plan without instances is repeated for each input.

use indexmap::IndexMap;

use super::check::{PlanCheck, PlanContext, check_plan};
use super::document::{IssueKind, PlanDocument, PlanIssue, issue};
use crate::call::run_input::{MAX_INSTANCES, RunInput};

impl PlanDocument {
    /// Whether the plan is repeated for each input: there are many, and no call names its instance.
    #[must_use]
    pub fn repeats(&self, input: &RunInput) -> bool {
        !input.instances.is_empty() && self.calls.iter().all(|call| call.meta.instance.is_none())
    }

    /// Repeats the plan for each of these instances: all calls for the first one, then those for the next.
    #[must_use]
    pub fn for_each<'a>(&self, instances: impl IntoIterator<Item = &'a str>) -> Self {
        let for_one = |instance: &'a str| {
            self.calls.iter().map(move |call| {
                let mut call = call.clone();
                call.meta.instance = Some(instance.to_owned());
                call
            })
        };
        Self { calls: instances.into_iter().flat_map(for_one).collect(), faults: self.faults.clone() }
    }

    /// Returns the plan to run with this input: repeated for each of many inputs.
    #[must_use]
    pub fn over(&self, input: &RunInput) -> Self {
        if self.repeats(input) { self.for_each(input.instances.keys().map(String::as_str)) } else { self.clone() }
    }

    /// The plan that was repeated to make this one.
    #[must_use]
    pub fn repeated(&self) -> Option<Self> {
        let first = self.calls.first()?.meta.instance.as_deref()?;
        let count = self.calls.iter().take_while(|call| call.meta.instance.as_deref() == Some(first)).count();
        let mut once = Self { calls: self.calls[..count].to_vec(), faults: self.faults.clone() };
        once.calls.iter_mut().for_each(|call| call.meta.instance = None);
        let instances = self.calls.iter().step_by(count).filter_map(|call| call.meta.instance.as_deref());
        let is_repeated = self.calls.len().is_multiple_of(count) && once.for_each(instances) == *self;
        is_repeated.then_some(once)
    }
}

/// Checks a plan with the inputs of the context's variables, and passes the check of each batch of a hundred inputs to
/// `see`. A finding that holds for all inputs is reported once, else for each input concerned. The inputs follow the
/// first `before` ones of the whole array, which are done.
#[must_use]
pub fn check_per_input(
    plan: &PlanDocument,
    (input, before): (&RunInput, usize),
    context: &PlanContext<'_>,
    mut see: impl FnMut(&PlanDocument, &PlanCheck),
) -> PlanCheck {
    if !plan.repeats(input) {
        let check = check_plan(plan, context);
        see(plan, &check);
        return check;
    }
    let (count, names) = (plan.calls.len(), input.instances.keys().map(String::as_str).collect::<Vec<_>>());
    let mut whole: Option<PlanCheck> = None;
    let (mut errors, mut warnings) = (IssuesByInput::default(), IssuesByInput::default());
    for (batch, names) in names.chunks(MAX_INSTANCES).enumerate() {
        let batch_plan = plan.for_each(names.iter().copied());
        let mut check = check_plan(&batch_plan, &PlanContext { max_cost: None, ..*context });
        see(&batch_plan, &check);
        let first = before + batch * MAX_INSTANCES;
        errors.take(std::mem::take(&mut check.errors), count, first);
        warnings.take(std::mem::take(&mut check.warnings), count, first);
        match &mut whole {
            Some(whole) => whole.cost.add(check.cost),
            None => {
                check.calls.truncate(count);
                check.graph = check.graph.of_first(count);
                whole = Some(check);
            }
        }
    }
    let Some(mut whole) = whole else { return check_plan(plan, context) };
    let all = before + names.len();
    (whole.errors, whole.warnings) = (errors.issues(all), warnings.issues(all));
    whole.errors.extend(whole.cost.over(context.max_cost));
    whole
}

/// Inputs that one fault names.
const MAX_ITEMS: usize = 20;

/// Findings in a repeated plan, with the inputs concerned.
#[derive(Default)]
struct IssuesByInput(IndexMap<(String, IssueKind, String), Vec<usize>>);

impl IssuesByInput {
    /// Adds findings in a plan of `count` calls, repeated from the input `first` on.
    fn take(&mut self, issues: Vec<PlanIssue>, count: usize, first: usize) {
        for PlanIssue { path, kind, message, .. } in issues {
            let rest = path.strip_prefix('/').unwrap_or_default();
            let (index, inside) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let place = index.parse::<usize>().ok();
            let path = place.map_or_else(|| path.clone(), |place| format!("/{}{inside}", place % count));
            let items = self.0.entry((path, kind, message)).or_default();
            let item = first + place.unwrap_or_default() / count;
            if items.last() != Some(&item) {
                items.push(item);
            }
        }
    }

    fn issues(self, inputs: usize) -> Vec<PlanIssue> {
        let mut issues = Vec::new();
        for ((path, kind, message), items) in self.0 {
            // The check finds only the first cycle, so a cycle counts for all inputs.
            if items.len() == inputs || kind == IssueKind::Cycle {
                issues.push(issue(path, kind, message));
                continue;
            }
            let more = items.len().saturating_sub(MAX_ITEMS);
            for (position, item) in items.into_iter().take(MAX_ITEMS).enumerate() {
                let is_last = more > 0 && position + 1 == MAX_ITEMS;
                let message =
                    if is_last { format!("{message} (and so for {more} more inputs)") } else { message.clone() };
                issues.push(PlanIssue { item: Some(format!("/{item}")), ..issue(&*path, kind, message) });
            }
        }
        issues
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::run_input::instance_name;

    #[test]
    fn a_plan_is_repeated_and_recognised() {
        let plan = PlanDocument::of_value(json!([
            {"_tool": "a", "_outputPath": "x", "q": "†input.q"},
            {"_tool": "b", "q": "†state.x"},
        ]))
        .expect("a plan");
        let input = |count: usize| RunInput {
            instances: (0..count).map(|at| (instance_name(at), json!({"q": at}))).collect(),
            ..RunInput::default()
        };
        for count in [1, 3] {
            let whole = plan.over(&input(count));
            let of: Vec<_> = whole.calls.iter().map(|call| call.meta.instance.as_deref().unwrap_or("-")).collect();
            assert_eq!(of, ["①", "①", "②", "②", "③", "③"][..2 * count]);
            assert_eq!(whole.repeated().as_ref(), Some(&plan));
            assert!(!whole.repeats(&input(count)));
        }
        assert_eq!((plan.over(&RunInput::default()), plan.repeated()), (plan.clone(), None));
        let mut odd = plan.over(&input(3));
        odd.calls[3].arguments.insert("q".into(), json!(1));
        assert_eq!(odd.repeated(), None);
    }

    #[test]
    fn a_fault_of_all_inputs_is_reported_once() {
        let mut found = IssuesByInput::default();
        let at = |path: &str, message: &str| issue(path, IssueKind::Schema, message);
        let of_batch = vec![at("/0/a", "all"), at("/1/b", "some"), at("/2/a", "all"), at("/3/b", "other")];
        found.take(of_batch, 2, 0);
        found.take(vec![at("/0/a", "all"), at("/1/b", "some")], 2, 100);
        let said: Vec<_> = found
            .issues(3)
            .into_iter()
            .map(|issue| (issue.path, issue.item.unwrap_or_default(), issue.message))
            .collect();
        let expect = [("/0/a", "", "all"), ("/1/b", "/0", "some"), ("/1/b", "/100", "some"), ("/1/b", "/1", "other")];
        assert_eq!(said, expect.map(|(path, item, message)| (path.into(), item.into(), message.into())));
    }
}
