//! OpenAPI documents as tools: what is imported and refused, and the bytes that are sent.

mod bodies;
mod documents;
mod names;
mod refused;
mod schemas;
mod sending;
mod swagger;
mod tools;
mod wild;

use std::path::Path;

use serde_json::{Value, json};
use toolwright_core::{Provider as _, ProviderCall, RegisteredTool, ToolError, ToolId, ToolOutput};
use toolwright_net::AddressPolicy;
use toolwright_providers::openapi::{Import, OpenApiConfig, OpenApiProvider, Origin, import};

use crate::files::workspace::Workspace;
use crate::wire::{Names, Received, Reply, Server, options};

/// A folder with these files.
fn folder_of(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        std::fs::write(&path, text).expect("file");
    }
    folder
}

fn file_config(path: &Path) -> OpenApiConfig {
    let address = AddressPolicy { allow_private: false, allowed_hosts: vec!["127.0.0.1".into()] };
    OpenApiConfig { address, ..OpenApiConfig::new("api", Origin::File(path.to_owned())) }
}

/// A document with these paths, of version 3.0 unless `more` says otherwise.
pub(crate) fn document(paths: Value, more: Value) -> Value {
    let mut document = json!({"openapi": "3.0.3", "info": {"title": "T", "version": "1"},
        "servers": [{"url": "https://api.example/v1/"}], "paths": paths});
    for (key, value) in more.as_object().expect("object") {
        document[key] = value.clone();
    }
    document
}

pub(crate) fn import_of(document: &Value, change: impl FnOnce(&mut OpenApiConfig)) -> Import {
    let mut config = OpenApiConfig::new("api", Origin::File("api.json".into()));
    change(&mut config);
    let origin = config.document.clone();
    import(&config, &document.to_string(), origin).expect("a document")
}

fn schema(tool: &toolwright_providers::openapi::Imported) -> &Value {
    tool.definition.parameters.as_ref().expect("parameters")
}

#[expect(clippy::disallowed_methods, reason = "this is the provider's own test; there is no executor in this crate")]
async fn call(config: OpenApiConfig, name: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
    let provider = OpenApiProvider::new(config, options(&Names::new(&[])));
    let tools = provider.list().await.expect("listed");
    let tool: &RegisteredTool = tools.iter().find(|tool| tool.raw_name() == name).expect("tool");
    let id: &ToolId = &tool.definition().id;
    let source_hash = tool.source_hash();
    let call = ProviderCall { tool: id, raw_name: name, source_hash, arguments, idempotency_key: "key-1" };
    provider.call(call, &Workspace::new().context).await
}

/// What one call of the only operation sends.
pub(crate) async fn sent(
    paths: Value,
    more: Value,
    arguments: Value,
    change: impl FnOnce(&mut OpenApiConfig),
) -> Received {
    let server = Server::start(|_| Reply::ok("application/json", "{}")).await;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("api.json");
    std::fs::write(&path, document(paths, more).to_string()).expect("file");
    let mut config = file_config(&path);
    config.base_url = Some(server.url("/base"));
    change(&mut config);
    call(config, "op", arguments).await.expect("called");
    server.only()
}
