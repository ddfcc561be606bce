use std::sync::Arc;

use serde_json::{Value, json};
use toolwright::core::catalogue::{Provider as _, ProviderKind, Snapshot};
use toolwright::core::{
    CallId, Outcome, Policy, Principal, Profile, RawArguments, Services, Session, SessionId, StaticProvider, Tool,
    ToolCall, ToolContext, ToolError, approval::NoApprover, catalogue::Listing, error::ErrorKind,
};
use toolwright::runtime::{Executor, ExecutorOptions, RunContext, SqliteStore, SystemClock};
use toolwright::schemars::JsonSchema;
use toolwright::serde::{Deserialize, Serialize};
use toolwright::tool;

/// Adds two numbers.
#[tool(namespace = "t")]
async fn add(
    /// First number.
    a: i64,
    /// Second number.
    #[serde(default = "ten")]
    b: i64,
) -> Result<String, ToolError> {
    a.checked_add(b).map(|sum| sum.to_string()).ok_or_else(|| ToolError::new(ErrorKind::ExecutionError, "too large"))
}

fn ten() -> i64 {
    10
}

#[derive(Deserialize, JsonSchema)]
#[serde(crate = "toolwright::serde", deny_unknown_fields, rename_all = "camelCase")]
#[schemars(crate = "toolwright::schemars")]
struct Search {
    /// What to look for.
    search_text: String,
    #[serde(default)]
    limit: Option<u8>,
}

#[derive(Serialize, JsonSchema)]
#[serde(crate = "toolwright::serde")]
#[schemars(crate = "toolwright::schemars")]
struct Found {
    session: String,
    text: String,
    limit: Option<u8>,
}

/// Looks for a text.
#[tool(namespace = "t", type_name = SearchTool)]
async fn search(context: &ToolContext, search: Search) -> Result<Found, ToolError> {
    let session = context.session.id.to_string();
    Ok(Found { session, text: search.search_text, limit: search.limit })
}

/// Words that a shadowing or reordering macro would trip over.
#[tool(namespace = "t")]
async fn odd(
    arguments: String,
    /// Also a keyword.
    r#type: Option<String>,
    own: ToolContext,
    mut context: u32,
) -> Vec<String> {
    context += 1;
    vec![arguments, format!("{type:?}"), own.call_id.to_string(), context.to_string()]
}

/// Does nothing at all.
#[tool(namespace = "t")]
async fn nothing() {}

struct Broken;

impl From<Broken> for ToolError {
    fn from(_: Broken) -> Self {
        ToolError::new(ErrorKind::TransportError, "broken")
    }
}

/// Fails in its own words.
#[tool(namespace = "t")]
async fn fails() -> Result<(), Broken> {
    Err(Broken)
}

/// A single value, which is no struct.
#[tool(namespace = "t")]
async fn shout(text: String) -> String {
    text.to_uppercase()
}

async fn run(name: &str, arguments: Value) -> Outcome {
    let tools: Vec<Arc<dyn Tool>> =
        vec![Arc::new(Add), Arc::new(SearchTool), Arc::new(Odd), Arc::new(Nothing), Arc::new(Fails), Arc::new(Shout)];
    let provider = Arc::new(StaticProvider::new("tests", ProviderKind::Native, tools).expect("registers"));
    let tools = provider.list().await.expect("list");
    let snapshot = Snapshot::build(&[Listing { provider, tools, error: None, withheld: vec![] }]);
    let dir = tempfile::tempdir().expect("dir");
    let store = SqliteStore::open(dir.path()).expect("store");
    let services = Services::none(Arc::new(SystemClock));
    let options = ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, store as _);
    let session =
        Session { id: SessionId::new("s"), principal: Principal::owner(), root: dir.path().into(), agent: None };
    let context = RunContext::new(
        Arc::new(session),
        Arc::new(snapshot),
        Arc::new(Policy::of(Profile::Trusted)),
        Arc::new(NoApprover { remedy: String::new() }),
    );
    let call = ToolCall::new(CallId::new("c"), format!("t__{name}"), RawArguments::Value(arguments));
    Executor::new(options).run_calls(vec![call], &context).await.pop().expect("one outcome")
}

/// The text of a success, or the kind of a failure.
async fn check(name: &str, arguments: Value, expect: Result<&str, ErrorKind>) {
    let outcome = run(name, arguments.clone()).await;
    let found = outcome.error.as_ref().map_or_else(|| Ok(outcome.text()), |error| Err(error.kind()));
    assert_eq!(found, expect.map(str::to_owned), "{name} {arguments}: {}", outcome.text());
}

#[tokio::test]
async fn tools_get_their_arguments_and_give_their_results() {
    let invalid = Err(ErrorKind::InvalidParameters);
    check("add", json!({"a": 2, "b": 3}), Ok("5")).await;
    check("add", json!({"a": 2}), Ok("12")).await;
    check("add", json!({"a": "2"}), Ok("12")).await;
    check("add", json!({}), invalid).await;
    check("add", json!({"a": 1, "c": 1}), invalid).await;
    check("add", json!({"a": i64::MAX}), Err(ErrorKind::ExecutionError)).await;
    check("odd", json!({"arguments": "x", "type": "y", "context": 1}), Ok(r#"["x","Some(\"y\")","c","2"]"#)).await;
    check("odd", json!({"arguments": "x", "context": 9_999_999_999_u64}), invalid).await;
    check("nothing", json!({}), Ok("")).await;
    check("nothing", json!({"a": 1}), invalid).await;
    check("fails", json!({}), Err(ErrorKind::TransportError)).await;
    check("shout", json!({"text": "a"}), Ok("A")).await;
    check("search", json!({"limit": 1}), invalid).await;
}

#[tokio::test]
async fn a_result_struct_is_structured_and_text() {
    let outcome = run("search", json!({"searchText": "a"})).await;
    let expect = json!({"session": "s", "text": "a", "limit": null});
    assert_eq!(outcome.structured, Some(expect.clone()));
    assert_eq!(serde_json::from_str::<Value>(&outcome.text()).expect("json"), expect);
}

#[tokio::test]
async fn the_function_stays_a_function() {
    assert_eq!(add(1, 2).await.ok().as_deref(), Some("3"));
}
