//! The tools that find, describe and call others, through the executor.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::catalogue::Listing;
use toolwright_core::context::NestedCalls;
use toolwright_core::{
    CallId, Effects, Entry, ErrorKind, Outcome, Policy, Principal, Profile, Provider as _, ProviderKind, RawArguments,
    Session, Snapshot, StaticProvider, Tool, ToolCall, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_runtime::RunContext;
use toolwright_search::{Method, PickOptions, Score, Scorer, ScorerError};
use toolwright_search::{ToolFinder, searchable};

use crate::fixture::{Fixture, fixture};

/// `id`, what it does, for whom.
struct DescribedTool(&'static str, &'static str, &'static [&'static str]);

#[async_trait]
impl Tool for DescribedTool {
    fn definition(&self) -> ToolDefinition {
        let schema = json!({"type": "object", "properties": {"limit": {"type": "integer"}, "path": {"type": "string"}}, "required": ["path"]});
        let mut definition = ToolDefinition::new(ToolId::parse(self.0).expect("id"), self.1, Some(schema));
        definition.effects = if self.0.contains("delete") { Effects::UNKNOWN } else { Effects::READ };
        definition.safe = !self.0.contains("format");
        definition.allowed_roles = self.2.iter().map(|role| (*role).to_owned()).collect();
        definition
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::text(format!("{} {}", self.0, arguments["path"])))
    }
}

struct SelectFixture {
    fixture: Fixture,
    run: RunContext,
}

impl SelectFixture {
    async fn new(profile: Profile, principal: Principal) -> Self {
        let tools = [
            DescribedTool("fs:read@1.0.0", "Reads a text file.\n\nIn UTF-8. The whole manual.", &[]),
            DescribedTool("fs:delete@1.0.0", "Deletes a file.", &[]),
            DescribedTool("gh:issue@1.0.0", "Opens an issue in a repository.", &[]),
            DescribedTool("ops:restart@1.0.0", "Restarts the file server.", &["ops"]),
            DescribedTool("raw:format@1.0.0", "Formats a disk with every file.", &[]),
        ];
        let tools = tools.map(|tool| Arc::new(tool) as Arc<dyn Tool>).to_vec();
        let provider = Arc::new(StaticProvider::new("p", ProviderKind::Native, tools).expect("tools"));
        let listed = provider.list().await.expect("lists");
        let listing = Listing { provider, tools: listed, error: None, withheld: Vec::new() };
        let fixture = fixture(|_| {}).await;
        let mut run = fixture.run.clone();
        run.policy = Arc::new(Policy::of(profile));
        run.session = Arc::new(Session { principal, ..(*run.session).clone() });
        run.snapshot = searchable(&Arc::new(Snapshot::build(&[listing])), ToolFinder::default());
        Self { fixture, run }
    }

    async fn call(&self, name: &str, arguments: Value) -> Outcome {
        let call = ToolCall::new(CallId::new("c"), name, RawArguments::Value(arguments));
        let mut outcomes = self.fixture.executor.run_calls(vec![call], &self.run).await;
        outcomes.pop().expect("one outcome a call")
    }

    async fn finds(&self, arguments: Value) -> (Vec<String>, String) {
        let outcome = self.call("tools__search", arguments).await;
        assert!(outcome.ok, "{outcome:?}");
        let names = outcome.structured.as_ref().map(|found| found["tools"].clone()).expect("structured");
        (serde_json::from_value(names).expect("names"), outcome.text())
    }
}

fn guest() -> Principal {
    Principal { id: "g".into(), roles: Vec::new(), owner: false }
}

#[tokio::test]
async fn a_search_lists_what_the_caller_may_use() {
    let setup = SelectFixture::new(Profile::Ask, guest()).await;
    let (names, text) = setup.finds(json!({"query": "read a text file"})).await;
    assert_eq!(names[0], "fs__read");
    assert_eq!(text.lines().next(), Some("fs__read(path: string, limit?: integer) — Reads a text file."));
    assert!(!names.contains(&"ops__restart".to_owned()), "{names:?}");
    assert_eq!(setup.finds(json!({"query": "read a text file", "limit": 1})).await.0, ["fs__read"]);
    assert_eq!(setup.finds(json!({"query": "gh__issue"})).await.0[0], "gh__issue");
    assert_eq!(setup.finds(json!({"query": "file", "namespace": "gh"})).await.0, [""; 0]);
    assert_eq!(setup.finds(json!({"query": "", "namespace": "fs"})).await.0, ["fs__read", "fs__delete"]);
    let owner = SelectFixture::new(Profile::Ask, Principal::owner()).await;
    assert_eq!(owner.finds(json!({"query": "restart the server"})).await.0[0], "ops__restart");
}

#[tokio::test]
async fn empty_searches_name_the_namespaces() {
    let setup = SelectFixture::new(Profile::Ask, guest()).await;
    let (names, text) = setup.finds(json!({"query": "zzzz"})).await;
    assert_eq!((names.len(), text.as_str()), (0, "No tool fits \"zzzz\". Try other words, or look in: fs (2), gh (1)"));
    let (_, text) = setup.finds(json!({"query": "x", "namespace": "ops"})).await;
    assert_eq!(text, "There is no namespace \"ops\". There are: fs (2), gh (1)");
}

#[tokio::test]
async fn unsafe_tools_run_but_are_not_found() {
    let setup = SelectFixture::new(Profile::Trusted, Principal::owner()).await;
    assert!(!setup.finds(json!({"query": "raw__format a disk"})).await.0.contains(&"raw__format".to_owned()));
    let (_, text) = setup.finds(json!({"query": "", "namespace": "raw"})).await;
    assert!(text.starts_with("There is no namespace \"raw\"."), "{text}");
    let described = setup.call("tools__describe", json!({"names": ["raw__format"]})).await.text();
    assert!(described.contains("there is no such tool"), "{described}");
    let ran = setup.call("tools__call", json!({"name": "raw__format", "arguments": {"path": "a"}})).await;
    assert!(ran.ok, "{ran:?}");
}

/// Never done.
struct SlowScorer;

#[async_trait]
impl Scorer for SlowScorer {
    fn name(&self) -> &str {
        "dawdles"
    }
    async fn score(
        &self,
        _query: &str,
        _tools: &[&Entry],
        _calls: Option<&dyn NestedCalls>,
    ) -> Result<Vec<Score>, ScorerError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_gets_no_unrelated_tools() {
    let setup = SelectFixture::new(Profile::Ask, guest()).await;
    let options = PickOptions {
        scorer: Method::Custom(Arc::new(SlowScorer)),
        timeout: Some(Duration::from_secs(1)),
        ..PickOptions::default()
    };
    let finder = ToolFinder::new(Arc::default(), options);
    for (query, expect) in [("a repository", &["gh__issue"][..]), ("zzzz", &[])] {
        let found = finder.find(query, &setup.run.snapshot, 5, &guest(), None).await;
        assert_eq!(found.iter().map(|entry| entry.wire_name.as_str()).collect::<Vec<_>>(), expect);
    }
}

#[tokio::test]
async fn descriptions_are_whole_and_unknown_names_get_help() {
    let setup = SelectFixture::new(Profile::Ask, guest()).await;
    let outcome =
        setup.call("tools__describe", json!({"names": ["fs:read@1.0.0", "fs__dellete", "ops__restart", "q"]})).await;
    let text = outcome.text();
    assert!(
        text.starts_with("fs__read: Reads a text file.\n\nIn UTF-8. The whole manual.\n{\"type\":\"object\","),
        "{text}"
    );
    for line in [
        "fs__dellete: there is no such tool; did you mean fs__delete?",
        "ops__restart: there is no such tool; look for it with tools__search",
        "q: there is no such tool; look for it with tools__search",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[tokio::test]
async fn an_indirect_call_follows_its_tools_policy() {
    let setup = SelectFixture::new(Profile::Ask, guest()).await;
    let carry = |name: &str| json!({"name": name, "arguments": {"path": "a"}});
    let ran = setup.call("tools__call", carry("fs__read")).await;
    assert_eq!((ran.text().as_str(), ran.namespace.as_str()), ("fs:read@1.0.0 \"a\"", "fs"));
    assert_eq!((ran.tool.expect("tool").as_str(), ran.provenance.carried), ("fs:read@1.0.0", true));
    assert_eq!(ran.ran_with, Some(json!({"path": "a"})));
    for (name, kind, tool) in [
        ("fs__delete", ErrorKind::Denied, Some("fs:delete@1.0.0")),
        ("ops__restart", ErrorKind::NotPermitted, Some("ops:restart@1.0.0")),
        ("tools__call", ErrorKind::InvalidParameters, Some("tools:call@1.0.0")),
        ("zzzz", ErrorKind::UnknownTool, None),
    ] {
        let refused = setup.call("tools__call", carry(name)).await;
        assert_eq!(refused.error.as_ref().map(ToolError::kind), Some(kind), "{name}");
        assert_eq!(refused.tool.as_ref().map(ToolId::as_str), tool, "{name}");
    }
    assert!(setup.call("tools__call", carry("tools__search")).await.error.is_some(), "its arguments are checked too");
}
