//! Input guards: functions and models that check a call before policy does.

mod model_guard;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::call::ValidCall;
use toolwright_core::error::ToolError;
use toolwright_core::operation::Op;
use toolwright_core::policy::Selector;

use super::admission::{denied, query};
use super::call_record::CallRecord;
use super::rewrite::rewrite;
use super::{Executor, RunContext};

pub use model_guard::ModelGuard;

/// How long a guard may take unless configured otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What an input guard says of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Go on to policy.
    Allow,
    /// Stop, with the reason.
    Deny(String),
    /// Let a person decide, with the reason; policy may still deny.
    Ask(String),
    /// Go on with these arguments, an object, which are validated again and get the tool's defaults; the
    /// provenance says so.
    Rewrite(Value),
}

impl Verdict {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny(_) => "deny",
            Self::Ask(_) => "ask",
            Self::Rewrite(_) => "rewrite",
        }
    }
}

/// A function or agent that looks at a call before policy does.
#[async_trait]
pub trait InputGuard: Send + Sync {
    /// Judges one call. What it does itself, it does within `context`, where nothing guards it.
    ///
    /// # Errors
    /// Why it cannot judge: the call is denied.
    async fn judge(&self, call: &ValidCall, context: &GuardContext<'_>) -> Result<Verdict, String>;
}

#[async_trait]
impl<F: Fn(&ValidCall) -> Verdict + Send + Sync> InputGuard for F {
    async fn judge(&self, call: &ValidCall, _context: &GuardContext<'_>) -> Result<Verdict, String> {
        Ok(self(call))
    }
}

/// Where a guard judges.
pub struct GuardContext<'a> {
    /// The executor of the call, for what the guard itself does.
    pub executor: &'a Arc<Executor>,
    /// The call's terms, as operations inside the judgement, without guards.
    pub run: RunContext,
}

/// A guard, and which calls it is asked about.
#[derive(Clone)]
pub struct GuardBinding {
    name: String,
    guard: Arc<dyn InputGuard>,
    selector: Selector,
    timeout: Duration,
}

impl fmt::Debug for GuardBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardBinding").field("name", &self.name).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl GuardBinding {
    /// A guard that is asked about every call, for half a minute at most.
    pub fn new(name: impl Into<String>, guard: Arc<dyn InputGuard>) -> Self {
        Self { name: name.into(), guard, selector: Selector::default(), timeout: TIMEOUT }
    }

    /// Asks it only about the calls that are selected, and about those of which that cannot be told. It tightens:
    /// what a foreign tool says of itself does not keep its calls from the guard.
    #[must_use]
    pub fn on(self, selector: Selector) -> Self {
        Self { selector, ..self }
    }

    /// Limits each judgement.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn is_asked(&self, call: &ValidCall, run: &RunContext) -> bool {
        if self.selector == Selector::default() {
            return true;
        }
        let scope = call.entry.provider.scope(call.entry.id(), &call.arguments, &run.session);
        self.selector.selects(&query(call, scope, run), &run.policy.tools).unwrap_or_else(|why| {
            tracing::warn!(guard = self.name, "it cannot be told whether the call is to be guarded: {why}");
            true
        })
    }
}

/// Whether the calls of a run are guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Guarded {
    /// As configured.
    #[default]
    Yes,
    /// A guard makes them.
    No,
}

impl Executor {
    /// Hears every guard that is bound to the call, in order. The first denial ends the call; else the first
    /// reason to ask is returned. A guard that cannot judge, or not in time, denies.
    pub(super) async fn guards(
        self: &Arc<Self>,
        call: &mut ValidCall,
        run: &RunContext,
        record: &CallRecord,
    ) -> Result<Option<String>, ToolError> {
        let mut ask = None;
        if run.guarded == Guarded::No {
            return Ok(ask);
        }
        for binding in &self.options.guards {
            if !binding.is_asked(call, run) {
                continue;
            }
            match self.judgement(binding, call, run, &record.op).await? {
                Verdict::Allow => {}
                Verdict::Deny(reason) => return Err(denied(&call.entry, &reason)),
                Verdict::Ask(reason) => ask = ask.or(Some(reason)),
                Verdict::Rewrite(arguments) => rewrite(call, arguments, &format!("guard {}", binding.name))?,
            }
        }
        Ok(ask)
    }

    /// One guard's word, which enters the ledger as an operation inside the call.
    async fn judgement(
        self: &Arc<Self>,
        binding: &GuardBinding,
        call: &ValidCall,
        run: &RunContext,
        parent: &Op,
    ) -> Result<Verdict, ToolError> {
        let op = self.begin(&parent.inside());
        let started = self.options.services.clock.now();
        let terms = RunContext {
            lineage: op.inside(),
            guarded: Guarded::No,
            journal: None,
            timeout: None,
            partials: None,
            budget: None,
            ..run.clone()
        };
        let context = GuardContext { executor: self, run: terms };
        let judged = tokio::select! {
            biased;
            judged = binding.guard.judge(call, &context) => judged,
            cause = run.cancel.cancelled() => return Err(ToolError::canceled(cause)),
            () = tokio::time::sleep(binding.timeout) => {
                Err(format!("no answer within {}", toolwright_core::duration::format(binding.timeout)))
            }
        };
        let status = judged.as_ref().map_or("error", Verdict::as_str);
        self.record_guard(op, &binding.name, status, started, run);
        judged.map_err(|why| denied(&call.entry, &format!("guard {} could not judge it: {why}", binding.name)))
    }
}
