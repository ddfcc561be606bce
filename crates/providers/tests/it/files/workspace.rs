//! A workspace folder and what the executor gives a tool, for calls of built-in tools.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use toolwright_core::catalogue::{CallScope, RegisteredTool};
use toolwright_core::content::joined_text;
use toolwright_core::context::{FileState, PartialSink, SeenFile, Services, ToolContext};
use toolwright_core::error::Unsupported;
use toolwright_core::event::Partial;
use toolwright_core::schema::fill_defaults;
use toolwright_core::{CallId, ErrorKind, Principal, Session, SessionId, Tool, ToolDefinition, ToolError, ToolOutput};
use toolwright_providers::builtin::{BuiltinOptions, PathGuard, tools};
use toolwright_testkit::FakeClock;

#[derive(Default)]
struct Seen(Mutex<HashMap<(SessionId, PathBuf), SeenFile>>);

impl FileState for Seen {
    fn record_seen(&self, session: &SessionId, path: &Path, seen: SeenFile) {
        self.0.lock().expect("lock").insert((session.clone(), path.to_owned()), seen);
    }
    fn seen(&self, session: &SessionId, path: &Path) -> Result<Option<SeenFile>, Unsupported> {
        Ok(self.0.lock().expect("lock").get(&(session.clone(), path.to_owned())).copied())
    }
}

/// Keeps what a tool reports while it runs.
#[derive(Default)]
pub(crate) struct Reports(pub(crate) Mutex<Vec<Partial>>);

impl PartialSink for Reports {
    fn send(&self, partial: Partial) {
        self.0.lock().expect("lock").push(partial);
    }
}

/// A folder with a workspace `ws` in it, so that there is an outside.
pub(crate) struct Workspace {
    pub(crate) outer: tempfile::TempDir,
    pub(crate) context: ToolContext,
    pub(crate) reports: Arc<Reports>,
    tools: Vec<Arc<dyn Tool>>,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self::with_guard(PathGuard::Block)
    }

    pub(crate) fn with_guard(path_guard: PathGuard) -> Self {
        Self::with(|_| BuiltinOptions { path_guard, ..BuiltinOptions::default() })
    }

    /// Options may name paths in the workspace, whose root they are given.
    pub(crate) fn with(options: impl FnOnce(&Path) -> BuiltinOptions) -> Self {
        let outer = tempfile::tempdir().expect("folder");
        let root = outer.path().join("ws");
        std::fs::create_dir(&root).expect("root");
        Self { outer, ..Self::at(root, options) }
    }

    /// In a folder that is there and stays.
    pub(crate) fn at(root: PathBuf, options: impl FnOnce(&Path) -> BuiltinOptions) -> Self {
        let outer = tempfile::tempdir().expect("folder");
        let mut services = Services::none(Arc::new(FakeClock::real()));
        services.files = Arc::new(Seen::default());
        let reports = Arc::new(Reports::default());
        let session = Session { id: SessionId::new("s"), principal: Principal::owner(), root, agent: None };
        let detached = ToolContext::detached(CallId::new("c"), Arc::new(session), Arc::new(services));
        let context = ToolContext { partials: reports.clone(), ..detached };
        let tools = tools(&options(&context.session.root));
        Self { outer, context, reports, tools }
    }

    pub(crate) fn services(&mut self) -> &mut Services {
        Arc::get_mut(&mut self.context.services).expect("not shared yet")
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.context.session.root.join(relative)
    }

    pub(crate) fn put(&self, relative: &str, content: impl AsRef<[u8]>) {
        let path = self.path(relative);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
        std::fs::write(path, content).expect("file");
    }

    pub(crate) fn get(&self, relative: &str) -> String {
        std::fs::read_to_string(self.path(relative)).expect("file")
    }

    fn tool(&self, id: &str) -> &Arc<dyn Tool> {
        self.tools.iter().find(|tool| tool.definition().id.as_str() == format!("{id}@1.0.0")).expect("tool")
    }

    pub(crate) fn definition(&self, id: &str) -> ToolDefinition {
        self.tool(id).definition()
    }

    pub(crate) fn scope(&self, id: &str, arguments: &Value) -> CallScope {
        self.tool(id).scope(arguments, &self.context.session)
    }

    pub(crate) fn changes(&self, id: &str, arguments: &Value) -> Option<String> {
        self.tool(id).changes(arguments, &self.context.session)
    }

    /// Fills defaults, validates and runs, as a call through the executor would.
    pub(crate) async fn call(&self, id: &str, mut arguments: Value) -> Result<ToolOutput, ToolError> {
        let tool = self.tool(id);
        let registered = RegisteredTool::own(tool.definition()).expect("registers");
        fill_defaults(registered.definition().parameters.as_ref().expect("schema"), &mut arguments);
        let violations = registered.schema().expect("compiles").expect("schema").violations(&arguments);
        assert_eq!(violations, [], "{id} {arguments}");
        tokio::time::timeout(Duration::from_secs(30), tool.run(arguments, &self.context)).await.expect("ends")
    }

    /// The text of a call that succeeds.
    pub(crate) async fn ok(&self, id: &str, arguments: Value) -> String {
        let output = self.call(id, arguments).await.expect("succeeds");
        assert!(!output.is_error, "{output:?}");
        joined_text(&output.content)
    }

    /// A call that fails with this kind and a message with these words in it.
    pub(crate) async fn fails(&self, id: &str, arguments: Value, kind: ErrorKind, words: &[&str]) {
        let shown = arguments.to_string();
        let error = self.call(id, arguments).await.expect_err(&shown);
        assert_eq!(error.kind(), kind, "{shown}: {error}");
        for word in words {
            assert!(error.message().contains(word), "{shown}: `{word}` is not in: {error}");
        }
    }
}
