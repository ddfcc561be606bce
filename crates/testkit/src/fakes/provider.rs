//! A tool provider for tests that needs no server.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::Tool;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::{
    CallScope, ChangeNotifier, Health, ListKind, Listing, NoticeSink, Provider, ProviderCall, ProviderError,
    ProviderKind, RegisteredTool, SourceNotice, WithheldTool,
};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::ToolDefinition;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::policy::HintTrust;
use toolwright_core::session::{Principal, Session};
use toolwright_core::store::FileUse;
use toolwright_core::tool_id::ToolId;

/// Returns the definition of a tool that takes any object.
///
/// # Panics
/// If `id` is not a valid id.
#[expect(clippy::expect_used, reason = "a test stops at its first surprise")]
pub fn definition(id: &str) -> ToolDefinition {
    ToolDefinition::new(ToolId::parse(id).expect("id"), "", Some(json!({"type": "object"})))
}

/// Registers a definition as a native tool.
///
/// # Panics
/// If the definition breaks a rule.
#[expect(clippy::expect_used, reason = "a test stops at its first surprise")]
pub fn own(definition: ToolDefinition) -> Arc<RegisteredTool> {
    RegisteredTool::own(definition).expect("registers")
}

/// Returns a listing of a native [`FakeProvider`].
pub fn listing(name: &str, tools: Vec<Arc<RegisteredTool>>) -> Listing {
    Arc::new(FakeProvider::new(name, ProviderKind::Native, tools)).listing()
}

/// The future result of a [`FakeProvider`]'s call.
pub type FakeOutput<'a> = Pin<Box<dyn Future<Output = Result<ToolOutput, ToolError>> + Send + 'a>>;

type Answer = Box<dyn for<'a> Fn(ProviderCall<'a>, &'a ToolContext) -> FakeOutput<'a> + Send + Sync>;

/// A list of prompts, resources or templates of a [`FakeProvider`], when it is there.
pub type FakeItems = Pin<Box<dyn Future<Output = Result<Vec<Value>, ProviderError>> + Send>>;

type ListsOf = Box<dyn Fn(ListKind) -> FakeItems + Send + Sync>;
type MethodsOf = Box<dyn Fn() -> Arc<dyn Provider> + Send + Sync>;
type FilesOf = Box<dyn Fn(&ToolId, &Value, &Session) -> FileUse + Send + Sync>;
type ScopeOf = Box<dyn Fn(&ToolId, &Value, &Session) -> CallScope + Send + Sync>;

/// The reaction of a [`FakeProvider`] to a request for its tools.
#[derive(Debug, Clone)]
pub enum FakeList {
    /// Lists these tools.
    Tools(Vec<Arc<RegisteredTool>>),
    /// Lists these tools after this time.
    After(Duration, Vec<Arc<RegisteredTool>>),
    /// Fails with this message.
    Fails(&'static str),
    /// Never answers.
    Hangs,
}

/// A provider with configured lists and answers. By default it is ready, its calls return an empty output, and its
/// hints are trusted.
pub struct FakeProvider {
    name: String,
    kind: ProviderKind,
    list: Mutex<FakeList>,
    answer: Answer,
    lists: ListsOf,
    methods: Option<MethodsOf>,
    notify: Mutex<Option<ChangeNotifier>>,
    notices: Mutex<Option<NoticeSink>>,
    credentials: Box<dyn Fn() -> Option<ContentHash> + Send + Sync>,
    scope: ScopeOf,
    files: FilesOf,
    /// The configuration file that defines it.
    pub defined_in: &'static str,
    /// Whether its hints may loosen policy.
    pub trust: HintTrust,
    /// Its state.
    pub health: Health,
    /// The capabilities that its source announced.
    pub capabilities: Option<Arc<Map<String, Value>>>,
    /// Its instructions to a model about its tools.
    pub instructions: Option<&'static str>,
    /// The tools that it has but does not offer, each with the reason.
    pub withheld: Vec<WithheldTool>,
    /// The tools that it listed in an earlier run.
    pub cached: Option<Vec<Arc<RegisteredTool>>>,
    /// Whether its tools are methods of the protocol.
    pub lists_methods: bool,
    /// Whether its calls only wait, so that they need no tasks.
    pub is_io_bound: bool,
}

impl std::fmt::Debug for FakeProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeProvider").field("name", &self.name).finish_non_exhaustive()
    }
}

impl FakeProvider {
    /// Creates a provider of these tools.
    pub fn new(name: impl Into<String>, kind: ProviderKind, tools: Vec<Arc<RegisteredTool>>) -> Self {
        Self {
            name: name.into(),
            kind,
            list: Mutex::new(FakeList::Tools(tools)),
            answer: Box::new(|_, _| Box::pin(async { Ok(ToolOutput::default()) })),
            lists: Box::new(|_| Box::pin(async { Ok(Vec::new()) })),
            methods: None,
            notify: Mutex::default(),
            notices: Mutex::default(),
            credentials: Box::new(|| None),
            scope: Box::new(|_, _, _| CallScope::Anywhere),
            files: Box::new(|_, _, _| FileUse::default()),
            defined_in: "",
            trust: HintTrust::Trusted,
            health: Health::Ready,
            capabilities: None,
            instructions: None,
            withheld: Vec::new(),
            cached: None,
            lists_methods: false,
            is_io_bound: false,
        }
    }

    /// Creates a native provider that runs these tools.
    ///
    /// # Panics
    /// If a definition breaks a rule, or a call names none of these tools.
    #[expect(clippy::expect_used, reason = "a test stops at its first surprise")]
    pub fn of_tools(name: &'static str, tools: Vec<Arc<dyn Tool>>) -> Self {
        let registered: Vec<_> = tools.iter().map(|tool| own(tool.definition())).collect();
        let ids = registered.iter().map(|tool| tool.definition().id.clone());
        let by_id: Arc<HashMap<ToolId, Arc<dyn Tool>>> = Arc::new(ids.zip(tools).collect());
        let (at, of) = (Arc::clone(&by_id), Arc::clone(&by_id));
        let fake = Self::new(name, ProviderKind::Native, registered).with_future(move |call, context| {
            let tool = Arc::clone(by_id.get(call.tool).expect("a tool of this provider"));
            Box::pin(async move { tool.run(call.arguments, context).await })
        });
        let scope = move |tool: &ToolId, arguments: &Value, session: &Session| {
            at.get(tool).map_or(CallScope::Anywhere, |tool| tool.scope(arguments, session))
        };
        let files = move |tool: &ToolId, arguments: &Value, session: &Session| {
            of.get(tool).map_or_else(FileUse::default, |tool| tool.files(arguments, session))
        };
        Self { scope: Box::new(scope), files: Box::new(files), ..fake }
    }

    /// Changes the public fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Answers calls at once with the result of `answer`.
    #[must_use]
    pub fn answering(self, answer: impl Fn(ProviderCall<'_>) -> ToolOutput + Send + Sync + 'static) -> Self {
        self.with_future(move |call, _| {
            let output = answer(call);
            Box::pin(async move { Ok(output) })
        })
    }

    /// Answers calls with the result of the future from `answer`.
    #[must_use]
    pub fn with_future(
        mut self,
        answer: impl for<'a> Fn(ProviderCall<'a>, &'a ToolContext) -> FakeOutput<'a> + Send + Sync + 'static,
    ) -> Self {
        self.answer = Box::new(answer);
        self
    }

    /// Lists prompts, resources and templates when the future that `lists` makes is done; it is asked for those that the
    /// source has by its methods.
    #[must_use]
    pub fn with_lists(mut self, lists: impl Fn(ListKind) -> FakeItems + Send + Sync + 'static) -> Self {
        self.lists = Box::new(lists);
        self
    }

    /// What else its source can be asked: another object each time, as a provider may give.
    #[must_use]
    pub fn with_methods(mut self, methods: impl Fn() -> Arc<dyn Provider> + Send + Sync + 'static) -> Self {
        self.methods = Some(Box::new(methods));
        self
    }

    /// Sets the function that returns the fingerprint of its calls' credentials.
    #[must_use]
    pub fn with_credentials(mut self, of: impl Fn() -> Option<ContentHash> + Send + Sync + 'static) -> Self {
        self.credentials = Box::new(of);
        self
    }

    /// Sets the list from now on, without notifying anyone; see [`FakeProvider::notify_change`].
    pub fn lists(&self, list: FakeList) {
        *self.list() = list;
    }

    /// Notifies the catalogue, if the provider is in one, of a change.
    pub fn notify_change(&self) {
        let notify = self.notify.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(notify) = notify {
            notify();
        }
    }

    /// Tells a notice of its source.
    ///
    /// # Panics
    /// If nobody listens.
    #[expect(clippy::expect_used, reason = "a test stops at its first surprise")]
    pub fn send_notice(&self, notice: SourceNotice) {
        let notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone();
        notices.expect("somebody listens")(notice);
    }

    /// Returns a listing of its current tools.
    pub fn listing(self: &Arc<Self>) -> Listing {
        let tools = match &*self.list() {
            FakeList::Tools(tools) | FakeList::After(_, tools) => tools.clone(),
            FakeList::Fails(_) | FakeList::Hangs => Vec::new(),
        };
        Listing { provider: Arc::clone(self) as _, tools, error: None, withheld: Vec::new() }
    }

    fn list(&self) -> MutexGuard<'_, FakeList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Provider for FakeProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn defined_in(&self) -> &str {
        self.defined_in
    }

    fn kind(&self) -> ProviderKind {
        self.kind
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        let list = FakeProvider::list(self).clone();
        match list {
            FakeList::Tools(tools) => Ok(tools),
            FakeList::After(time, tools) => {
                tokio::time::sleep(time).await;
                Ok(tools)
            }
            FakeList::Fails(why) => Err(ProviderError::new(why)),
            FakeList::Hangs => std::future::pending().await,
        }
    }

    async fn list_of(&self, kind: ListKind) -> Result<Arc<[Value]>, ProviderError> {
        (self.lists)(kind).await.map(Into::into)
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        (self.answer)(call, context).await
    }

    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        (self.credentials)()
    }

    fn scope(&self, tool: &ToolId, arguments: &Value, session: &Session) -> CallScope {
        (self.scope)(tool, arguments, session)
    }

    fn files(&self, tool: &ToolId, arguments: &Value, session: &Session) -> FileUse {
        (self.files)(tool, arguments, session)
    }

    fn health(&self) -> Health {
        self.health.clone()
    }

    fn instructions(&self) -> Option<String> {
        self.instructions.map(str::to_owned)
    }

    fn methods(&self) -> Option<Arc<dyn Provider>> {
        self.methods.as_ref().map(|methods| methods())
    }

    fn lists_methods(&self) -> bool {
        self.lists_methods
    }

    fn capabilities(&self) -> Option<Arc<Map<String, Value>>> {
        self.capabilities.clone()
    }

    fn on_notice(&self, notify: NoticeSink) {
        *self.notices.lock().unwrap_or_else(PoisonError::into_inner) = Some(notify);
    }

    fn is_io_bound(&self) -> bool {
        self.is_io_bound
    }

    fn trust(&self) -> HintTrust {
        self.trust
    }

    fn on_change(&self, notify: ChangeNotifier) {
        *self.notify.lock().unwrap_or_else(PoisonError::into_inner) = Some(notify);
    }

    fn withheld(&self) -> Vec<WithheldTool> {
        self.withheld.clone()
    }

    async fn cached(&self) -> Option<Vec<Arc<RegisteredTool>>> {
        self.cached.clone()
    }
}
