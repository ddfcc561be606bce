//! Calls the tools of a program and finds the right ones.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolwright_core::approval::{Approver, NoApprover};
use toolwright_core::name_table::Resolution;
use toolwright_core::select::{Pick, SearchFilter, SearchHit, search_or_similar};
use toolwright_core::session::CallId;
use toolwright_core::{Entry, Outcome, Profile, RawArguments, ToolCall};
use toolwright_runtime::RunContext;

use crate::app::{ClientOptions, Error, Toolwright};

/// How long sources that have not listed their tools yet are waited for. What takes longer goes on by itself.
pub(crate) const LIST_WAIT: Duration = Duration::from_secs(30);

/// What is said where policy asks and nobody answers.
const REMEDY: &str = "nobody is there to ask: give `.approver(..)`, allow the tool by `.rule(..)`, or choose a wider profile \
                      by `.policy(..)`";

/// A tool that was picked for a task.
#[derive(Debug, Clone)]
pub struct PickedTool {
    /// The tool.
    pub tool: Arc<Entry>,
    /// From 0 to 1.
    pub score: f32,
    /// Why, in words.
    pub reason: String,
}

impl Toolwright {
    /// Calls a tool by the name that models use (`math__add`) or its id, as the program that owns this. Where its source
    /// has not listed its tools yet, it is connected first.
    ///
    /// Arguments are checked against the tool's schema, and policy decides. Unless
    /// [`Builder::policy`](crate::Builder::policy) names a profile, the call is the owner's own act: only a rule that
    /// denies holds it back, and nobody is asked.
    ///
    /// # Errors
    /// [`Error::Call`] when the tool is unknown, refused or fails; its outcome is there, too. For outcomes as values
    /// and more control, see [`Toolwright::call_on`].
    pub async fn call(self: &Arc<Self>, tool: &str, arguments: Value) -> Result<Outcome, Error> {
        if !matches!(self.catalogue().snapshot().resolve(tool), Resolution::Found(..)) {
            self.list_for(tool, LIST_WAIT).await;
        }
        let policy = Arc::new(self.config().policy(None, Profile::Owner));
        let (session, approver) = (self.call_session(), self.approver());
        let client = self.client(ClientOptions {
            session: Arc::clone(&session),
            // That the program calls the tool is no word for what its source asks of a model.
            policy: Arc::new(self.config().policy(None, Profile::Ask)),
            approver: Arc::clone(&approver),
            person: None,
            model: None,
        });
        let run = RunContext { client, ..RunContext::new(session, self.catalogue().snapshot(), policy, approver) };
        let call =
            ToolCall { id: CallId::new("call"), name: tool.to_owned(), arguments: RawArguments::Value(arguments) };
        let outcome = self.run_call(call, run).await;
        if outcome.ok { Ok(outcome) } else { Err(Error::Call(Box::new(outcome))) }
    }

    /// Connects every source and lists its tools. Nobody needs to call this: it is for programs that want to know at the
    /// start whether all is there.
    ///
    /// # Errors
    /// [`Error::Sources`] with those that cannot be listed. The others are there all the same.
    pub async fn connect(self: &Arc<Self>) -> Result<(), Error> {
        self.list_all(LIST_WAIT).await;
        let snapshot = self.catalogue().snapshot();
        let failed =
            snapshot.providers().iter().filter_map(|status| Some((status.name.clone(), status.error.clone()?)));
        let late = self.catalogue().unlisted();
        let late = late.iter().map(|provider| (provider.name().to_owned(), "it has not answered yet".to_owned()));
        let missing: Vec<_> = failed.chain(late).collect();
        if missing.is_empty() { Ok(()) } else { Err(Error::Sources(missing)) }
    }

    /// All tools, in a fixed order. Sources that have not listed theirs are waited for, up to half a minute.
    pub async fn tools(self: &Arc<Self>) -> Vec<Arc<Entry>> {
        self.list_unknown(LIST_WAIT).await;
        self.catalogue().snapshot().list().to_vec()
    }

    /// The tools that these words find, best first, `limit` at most: by name, tag and description.
    pub async fn search(self: &Arc<Self>, words: &str, limit: usize) -> Vec<SearchHit> {
        self.list_unknown(LIST_WAIT).await;
        search_or_similar(&self.catalogue().snapshot(), words, limit, &SearchFilter::default())
    }

    /// The tools that fit a task, best first, `limit` at most: scored as `selection` configures it, by words unless there are
    /// embeddings.
    pub async fn pick(self: &Arc<Self>, task: &str, limit: usize) -> Vec<PickedTool> {
        self.list_unknown(LIST_WAIT).await;
        let snapshot = self.catalogue().snapshot();
        let mut options = self.config().written.selection.pick_options();
        options.max_candidates = limit;
        let picked = self.selector().pick(task, &snapshot, &options).await;
        let tool = |Pick { position, score, reason, .. }: Pick| {
            Some(PickedTool { tool: Arc::clone(snapshot.list().get(position)?), score, reason })
        };
        picked.picks.into_iter().filter_map(tool).collect()
    }

    /// Lists all sources if there is one of which nobody knows what it has, and waits for those.
    pub(crate) async fn list_unknown(self: &Arc<Self>, wait: Duration) {
        if self.catalogue().unlisted().is_empty() {
            return;
        }
        tokio::select! {
            // First, so that the lists are begun.
            biased;
            () = self.list_all(wait) => {}
            () = self.catalogue().listed(|_| true) => {}
        }
    }

    /// Who answers where policy asks and nobody else is named.
    pub(crate) fn approver(&self) -> Arc<dyn Approver> {
        let own = self.own_approver();
        own.unwrap_or_else(|| Arc::new(NoApprover { remedy: REMEDY.into() }))
    }
}
