//! Names of imported operations: whatever a document calls them, each has its own and can be called by it.

use std::collections::HashSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};
use toolwright_core::{Provider as _, ProviderCall};
use toolwright_net::AddressPolicy;
use toolwright_providers::openapi::{GroupBy, OpenApiConfig, OpenApiProvider, Origin};

use crate::files::workspace::Workspace;
use crate::openapi::document;
use crate::wire::{Names, Reply, Server, options};

/// Lists the document and calls each operation once; returns the path that each name led to.
#[expect(clippy::disallowed_methods, reason = "this is the provider's own test; there is no executor in this crate")]
async fn called(document: &Value, group_by: GroupBy) -> Vec<(String, String)> {
    let server = Server::start(|_| Reply::ok("application/json", "{}")).await;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("api.json");
    std::fs::write(&path, document.to_string()).expect("file");
    let mut config = OpenApiConfig::new("api", Origin::File(path));
    config.address = AddressPolicy { allow_private: false, allowed_hosts: vec!["127.0.0.1".into()] };
    config.base_url = Some(server.url(""));
    config.group_by = group_by;
    let provider = OpenApiProvider::new(config, options(&Names::new(&[])));
    let tools = provider.list().await.expect("listed");
    let names: HashSet<&str> = tools.iter().map(|tool| tool.raw_name()).collect();
    let ids: HashSet<&str> = tools.iter().map(|tool| tool.definition().id.as_str()).collect();
    assert_eq!((names.len(), ids.len()), (tools.len(), tools.len()), "{tools:?}");
    let mut led = Vec::new();
    for tool in &tools {
        let wanted = tool.definition().parameters.as_ref().and_then(|schema| schema["properties"].as_object());
        let arguments: Map<String, Value> =
            wanted.into_iter().flatten().map(|(name, _)| (name.clone(), json!("1"))).collect();
        let call = ProviderCall {
            tool: &tool.definition().id,
            raw_name: tool.raw_name(),
            source_hash: tool.source_hash(),
            arguments: arguments.into(),
            idempotency_key: "key",
        };
        provider.call(call, &Workspace::new().context).await.expect("called");
        let line = server.received().pop().expect("a request").line;
        led.push((tool.raw_name().to_owned(), line));
    }
    led
}

#[tokio::test]
async fn operations_sharing_names_get_their_own() {
    let operation = |path: &str| (path.to_owned(), json!({"get": {}}));
    let paths = ["/users", "/users/", "/a.json", "/a/json", "/a/{b}", "/a/b"].map(operation);
    let mut paths: Map<String, Value> = paths.into_iter().collect();
    for (path, id) in [("/x", "x"), ("/y", "x"), ("/z", "x_get_x")] {
        paths.insert(path.into(), json!({"get": {"operationId": id}}));
    }
    let led = called(&document(paths.into(), json!({})), GroupBy::None).await;
    let lines: HashSet<&str> = led.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!(lines.len(), 9, "{led:?}");
    let of = |name: &str| led.iter().find(|(found, _)| found == name).map(|(_, line)| line.as_str());
    assert_eq!((of("x_get_x"), of("x_get_y")), (Some("GET /z HTTP/1.1"), Some("GET /y HTTP/1.1")));
}

#[test]
fn each_operation_is_called_by_its_name() {
    let segment = prop::sample::select(vec!["a", "A", "b", "{a}", "{b}", "a.b", "a_b", "", "é"]);
    let path = prop::collection::vec(segment, 1..4).prop_map(|segments| format!("/{}", segments.join("/")));
    let id = prop::sample::select(vec!["", "get_a", "get_a_b", "get_a_get_a", "A", "a", "get_A", "x y"]);
    let method = prop::sample::select(vec!["get", "put", "delete"]);
    let tag = prop::sample::select(vec!["", "One", "one", "two"]);
    let documents = prop::collection::vec((path, method, id, tag), 1..24);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    TestRunner::new(Config { cases: 16, failure_persistence: None, ..Config::default() })
        .run(&documents, |operations| {
            let mut paths = Map::new();
            for (path, method, id, tag) in &operations {
                let mut operation = json!({"tags": [tag]});
                if !id.is_empty() {
                    operation["operationId"] = (*id).into();
                }
                let item = paths.entry(path.clone()).or_insert_with(|| json!({}));
                item[*method] = operation;
            }
            let count: usize = paths.values().filter_map(Value::as_object).map(Map::len).sum();
            for group_by in [GroupBy::None, GroupBy::Tag] {
                let led = runtime.block_on(called(&document(paths.clone().into(), json!({})), group_by));
                prop_assert_eq!(led.len(), count);
            }
            Ok(())
        })
        .expect("each by its own name");
}
