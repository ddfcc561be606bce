//! Lists the runs that this process drives, with the rights of their calls. A job that such a run left behind when its
//! process died resumes with these rights.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use toolwright_core::session::SessionId;

use crate::executor::RunContext;

#[derive(Default)]
pub(in crate::executor) struct DrivenRuns {
    terms: Mutex<HashMap<Arc<str>, RunContext>>,
    /// Notified when a run is added.
    pub(in crate::executor) changed: Notify,
}

/// The terms of a driven run, for a job of its session.
pub(in crate::executor) enum DrivenContext {
    /// The run began the job.
    Own(RunContext),
    /// Another run of the session began the job.
    Other(RunContext),
}

impl DrivenRuns {
    fn terms(&self) -> MutexGuard<'_, HashMap<Arc<str>, RunContext>> {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the terms for a job that `run` began in `session`.
    pub(in crate::executor) fn get(&self, session: &SessionId, run: Option<&str>) -> Option<DrivenContext> {
        let terms = self.terms();
        let is_of = |terms: &&RunContext| terms.session.id == *session;
        if let Some(own) = run.and_then(|run| terms.get(run)).filter(is_of) {
            return Some(DrivenContext::Own(own.clone()));
        }
        terms.values().find(is_of).cloned().map(DrivenContext::Other)
    }

    pub(in crate::executor) fn sessions(&self) -> Vec<SessionId> {
        self.terms().values().map(|terms| terms.session.id.clone()).collect()
    }

    pub(in crate::executor) fn enter(self: &Arc<Self>, id: Arc<str>, terms: RunContext) -> DrivenRun {
        self.terms().insert(Arc::clone(&id), terms);
        self.changed.notify_one();
        DrivenRun { of: Arc::clone(self), id }
    }
}

/// Until this is dropped, jobs of its session whose process died resume under the terms of its run.
#[must_use = "dropped, the run is driven no more"]
pub struct DrivenRun {
    of: Arc<DrivenRuns>,
    id: Arc<str>,
}

impl fmt::Debug for DrivenRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrivenRun").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for DrivenRun {
    fn drop(&mut self) {
        self.of.terms().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toolwright_core::approval::NoApprover;
    use toolwright_core::catalogue::Snapshot;
    use toolwright_core::policy::{Policy, Profile};
    use toolwright_core::session::{Principal, Session};

    use super::*;

    fn terms(session: &str, profile: Profile) -> RunContext {
        let (id, root) = (SessionId::new(session), Path::new("/").to_owned());
        let session = Session { id, principal: Principal::owner(), root, agent: None };
        let (policy, approver) = (Policy::of(profile), NoApprover { remedy: String::new() });
        RunContext::new(Arc::new(session), Arc::new(Snapshot::build(&[])), Arc::new(policy), Arc::new(approver))
    }

    #[test]
    fn runs_of_one_session_displace_no_other() {
        let runs = Arc::new(DrivenRuns::default());
        let check = |run: Option<&str>, expect: Option<(bool, Profile)>| {
            let found = runs.get(&SessionId::new("s"), run).map(|found| match found {
                DrivenContext::Own(terms) => (true, terms.policy.profile),
                DrivenContext::Other(terms) => (false, terms.policy.profile),
            });
            assert_eq!(found, expect, "{run:?}");
        };
        let elsewhere = runs.enter("c".into(), terms("other", Profile::Ask));
        let a = runs.enter("a".into(), terms("s", Profile::Trusted));
        let b = runs.enter("b".into(), terms("s", Profile::Workspace));
        check(Some("a"), Some((true, Profile::Trusted)));
        check(Some("b"), Some((true, Profile::Workspace)));
        drop(b);
        for run in [Some("b"), Some("c"), None] {
            check(run, Some((false, Profile::Trusted)));
        }
        drop((a, elsewhere));
        check(Some("a"), None);
    }
}
