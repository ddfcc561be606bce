//! Runs one call of the owner.

use std::sync::Arc;
use std::time::Duration;

use toolwright_core::approval::NoApprover;
use toolwright_core::client::{CallClient, NoClient};
use toolwright_core::context::NoUsage;
use toolwright_core::session::{CallId, Principal, Session, SessionId};
use toolwright_core::tool_id::short_hash;
use toolwright_core::{Cancel, ErrorKind, Lineage, Outcome, Profile, ToolCall, ToolError};
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::LlmTerms;

use super::Toolwright;

/// The times of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// Its limit. Default: that of the tool or its server.
    pub limit: Option<Duration>,
    /// How long the caller waits before the call continues as a job; zero starts it as a job.
    /// Default: that of the tool, its server or `defaults`.
    pub background_after: Option<Duration>,
}

/// Options of one call of the owner.
#[derive(Clone)]
pub struct CallOptions {
    /// The policy profile for calls that no rule matches.
    pub profile: Profile,
    /// Cancels the call.
    pub cancel: Cancel,
    /// Its timeouts.
    pub times: CallTimes,
    /// Maximum bytes of the result's text; overrides the tool's own limit and `defaults.tool_response_max_bytes`.
    pub max_output: Option<usize>,
    /// Answers requests of the tool's source.
    pub client: Arc<dyn CallClient>,
    /// The model and the mode of an LLM-backed tool.
    pub llm: LlmTerms,
}

impl std::fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallOptions").field("times", &self.times).field("llm", &self.llm).finish_non_exhaustive()
    }
}

impl Toolwright {
    /// A session of the owner on the workspace root.
    #[must_use]
    pub fn session(&self, id: impl Into<Arc<str>>) -> Arc<Session> {
        Arc::new(Session {
            id: SessionId::new(id),
            principal: Principal::owner(),
            root: self.config().root.clone(),
            agent: None,
        })
    }

    /// Runs one call of the owner on the catalogue as it is now. Where policy asks, it is denied: nobody is
    /// there to answer. All such calls on one workspace root share a session, so that a later one, of
    /// another process too, can read the outputs that this one stores.
    pub async fn call_as(&self, call: ToolCall, profile: Profile) -> Outcome {
        self.call_within(call, profile, Cancel::new(), CallTimes::default(), Arc::new(NoClient)).await
    }

    /// The session of [`Toolwright::call_as`].
    #[must_use]
    pub fn call_session(&self) -> Arc<Session> {
        self.session(format!("call-{}", short_hash(&self.config().root.to_string_lossy(), 32)))
    }

    /// As [`Toolwright::call_as`], until `cancel` and within these times. The tool's source may ask `client` back.
    pub async fn call_within(
        &self,
        call: ToolCall,
        profile: Profile,
        cancel: Cancel,
        times: CallTimes,
        client: Arc<dyn CallClient>,
    ) -> Outcome {
        self.call_on(call, CallOptions { profile, cancel, times, max_output: None, client, llm: LlmTerms::default() })
            .await
    }

    /// As [`Toolwright::call_within`], with a model and a mode of the caller's choice for an LLM-backed tool.
    pub async fn call_on(&self, call: ToolCall, terms: CallOptions) -> Outcome {
        let CallOptions { profile, cancel, times, max_output, client, llm } = terms;
        let policy = Arc::new(self.config().policy(Some(profile), profile));
        let approver = Arc::new(NoApprover { remedy: "nobody is there to ask".into() });
        let run = RunContext {
            cancel,
            client,
            timeout: times.limit,
            max_output,
            background_after: times.background_after,
            llm,
            ..RunContext::new(self.call_session(), self.catalogue.snapshot(), policy, approver)
        };
        self.run_call(call, run).await
    }

    /// Runs one call by itself.
    pub(crate) async fn run_call(&self, mut call: ToolCall, run: RunContext) -> Outcome {
        // Idempotency keys are made of session and call: in a shared session each call is named apart.
        let id = std::mem::replace(&mut call.id, CallId::new(format!("call-{}", uuid::Uuid::new_v4())));
        let run = RunContext {
            lineage: Lineage::named(call.id.as_str()),
            // The outcome says what its requests to models used, and those of its source.
            usage: Some(Arc::new(NoUsage)),
            ..run
        };
        match self.executor.run_calls(vec![call], &run).await.pop() {
            Some(outcome) => Outcome { call_id: id, ..outcome },
            None => Outcome::failed(id, ToolError::new(ErrorKind::InternalError, "the executor gave no outcome")),
        }
    }
}
