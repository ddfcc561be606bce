//! Documents of an address: had again when they could not be, kept for the next start, and followed to where they are.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::content::joined_text;
use toolwright_core::session::Principal;
use toolwright_core::{Health, Provider, ProviderCall, RegisteredTool, ToolError, ToolOutput};
use toolwright_net::AddressPolicy;
use toolwright_providers::openapi::{Auth, CallConfig, OpenApiConfig, OpenApiProvider, Operation, Origin};
use toolwright_providers::rest::ResponseFormat;
use url::Url;

use crate::files::workspace::Workspace;
use crate::openapi::document;
use crate::published::Site;
use crate::wire::{Reply, Server};

/// A site: `/api.json` is what was published last, all else answers `yes`.
async fn api() -> Site {
    Site::start("/api.json", ("text/plain", "yes")).await
}

fn config_of(site: &Site) -> OpenApiConfig {
    let address = AddressPolicy { allow_private: false, allowed_hosts: vec!["127.0.0.1".into()] };
    let url = Url::parse(&site.server.url("/api.json")).expect("url");
    OpenApiConfig { address, ..OpenApiConfig::new("api", Origin::Url(url)) }
}

fn provider_of(site: &Site, config: OpenApiConfig) -> Arc<OpenApiProvider> {
    OpenApiProvider::with(config, site.deps())
}

fn publish(site: &Site, document: Option<&Value>) {
    site.put(document.map(Value::to_string));
}

/// A document of its own server with one operation.
fn one(summary: &str) -> Value {
    document(json!({"/p": {"get": {"operationId": "op", "summary": summary}}}), json!({"servers": [{"url": "/"}]}))
}

#[expect(clippy::disallowed_methods, reason = "this is the provider's own test; there is no executor in this crate")]
async fn call(provider: &OpenApiProvider, tool: &RegisteredTool) -> Result<ToolOutput, ToolError> {
    let (id, source_hash) = (&tool.definition().id, tool.source_hash());
    let arguments = json!({});
    let call = ProviderCall { tool: id, raw_name: tool.raw_name(), source_hash, arguments, idempotency_key: "key" };
    provider.call(call, &Workspace::new().context).await
}

#[tokio::test]
async fn unreachable_documents_are_retried_and_served_cached() {
    let site = api().await;
    let provider = provider_of(&site, config_of(&site));
    let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
    provider.on_change(Arc::new(move || {
        let _ = asked.send(());
    }));
    let error = provider.list().await.expect_err("503").to_string();
    assert!(error.contains("HTTP 503"), "{error}");
    tokio::time::timeout(Duration::from_secs(10), asks.recv()).await.expect("in time").expect("asked");
    publish(&site, Some(&one("Reads.")));
    let tools = provider.list().await.expect("listed");
    assert_eq!((tools.len(), provider.health()), (1, Health::Ready));

    for (published, why) in [(None, "HTTP 503"), (Some(json!("not one")), "no OpenAPI document")] {
        publish(&site, published.as_ref());
        let again = provider.list().await.expect("the one before");
        assert_eq!(again[0].source_hash(), tools[0].source_hash());
        let Health::Failed { reason } = provider.health() else { panic!("{why}") };
        assert!(reason.contains(why), "{reason}");
        assert_eq!(joined_text(&call(&provider, &again[0]).await.expect("called").content), "yes");
        tokio::time::timeout(Duration::from_secs(10), asks.recv()).await.expect("in time").expect("asked");
    }
    // It serves at the next start too, but for what is under the same name somewhere else.
    let next = provider_of(&site, config_of(&site));
    let kept = next.list().await.expect("kept");
    assert_eq!(kept[0].source_hash(), tools[0].source_hash());
    assert!(matches!(next.health(), Health::Failed { .. }));
    call(&next, &kept[0]).await.expect("called");
    let elsewhere = Origin::Url(Url::parse(&site.server.url("/other/api.json")).expect("url"));
    provider_of(&site, OpenApiConfig { document: elsewhere, ..config_of(&site) }).list().await.expect_err("another's");
    // What is mended is listed as it is now, and is not asked for any more.
    publish(&site, Some(&one("Reads all.")));
    assert_ne!(provider.list().await.expect("listed")[0].source_hash(), tools[0].source_hash());
    assert_eq!(provider.health(), Health::Ready);
    provider.shut_down().await;
}

#[tokio::test]
async fn the_last_document_serves_without_its_row() {
    let site = api().await;
    publish(&site, Some(&one("Reads.")));
    let provider = provider_of(&site, config_of(&site));
    let tools = provider.list().await.expect("listed");
    // The row aged out of the store: what is in memory is there still.
    site.kept.0.lock().expect("lock").clear();
    publish(&site, None);
    let again = provider.list().await.expect("the one before");
    assert_eq!(again[0].source_hash(), tools[0].source_hash());
    assert!(matches!(provider.health(), Health::Failed { .. }));
    assert_eq!(joined_text(&call(&provider, &again[0]).await.expect("called").content), "yes");
    // What is had again is kept again, changed or not, so that it is young.
    publish(&site, Some(&one("Reads.")));
    provider.list().await.expect("listed");
    assert_eq!(site.kept.0.lock().expect("lock").len(), 1);
    // One under the same name somewhere else is kept beside it.
    let elsewhere = Origin::Url(Url::parse(&site.server.url("/other/api.json")).expect("url"));
    provider_of(&site, OpenApiConfig { document: elsewhere, ..config_of(&site) }).list().await.expect("listed");
    publish(&site, None);
    assert_eq!(provider_of(&site, config_of(&site)).list().await.expect("kept").len(), 1);
    // Of one that is too large to be kept no older version is either.
    let mut large = one("Reads all.");
    large["info"]["description"] = json!("x".repeat(17 << 20));
    publish(&site, Some(&large));
    let tools = provider.list().await.expect("listed");
    publish(&site, None);
    assert_eq!(provider.list().await.expect("the one before")[0].source_hash(), tools[0].source_hash());
    provider_of(&site, config_of(&site)).list().await.expect_err("not the older one");
}

#[tokio::test]
async fn documents_are_read_only_when_listed() {
    let site = api().await;
    publish(&site, Some(&one("Reads.")));
    provider_of(&site, config_of(&site)).list().await.expect("listed");
    let asked = site.server.received().len();
    let next = provider_of(&site, config_of(&site));
    assert!(next.cached().await.is_none(), "a start waits for no import");
    assert_eq!((site.server.received().len(), next.health()), (asked, Health::Starting));
}

#[tokio::test]
async fn calls_before_the_first_list_run() {
    let site = api().await;
    publish(&site, Some(&one("Reads.")));
    let before = provider_of(&site, config_of(&site)).list().await.expect("listed");
    site.kept.0.lock().expect("lock").clear();
    // Its settings changed: what the provider before it listed stands in the catalogue until this one has.
    let changed = OpenApiConfig { headers: [("X-Team".into(), "a".into())].into(), ..config_of(&site) };
    let after = provider_of(&site, changed);
    assert_eq!(joined_text(&call(&after, &before[0]).await.expect("called").content), "yes");
    publish(&site, Some(&one("Reads all.")));
    site.kept.0.lock().expect("lock").clear();
    let refused = call(&provider_of(&site, config_of(&site)), &before[0]).await.expect_err("another operation");
    assert!(refused.message().contains("has changed its operation"), "{refused}");
    publish(&site, None);
    site.kept.0.lock().expect("lock").clear();
    let refused = call(&provider_of(&site, config_of(&site)), &before[0]).await.expect_err("not to be had");
    assert!(refused.message().contains("HTTP 503"), "{refused}");
}

#[tokio::test]
async fn servers_are_relative_to_their_document() {
    let site = api().await;
    publish(&site, Some(&document(json!({"/p": {"get": {"operationId": "op"}}}), json!({"servers": [{"url": "v2"}]}))));
    let straight = provider_of(&site, config_of(&site)).list().await.expect("listed");
    let found = site.server.url("/deep/api.json");
    let leads = Server::start(move |_| Reply::redirect(302, &found)).await;
    let named = Origin::Url(Url::parse(&leads.url("/openapi")).expect("url"));
    let config = OpenApiConfig { document: named, ..config_of(&site) };
    let provider = provider_of(&site, config.clone());
    let tools = provider.list().await.expect("listed");
    assert_eq!(joined_text(&call(&provider, &tools[0]).await.expect("called").content), "yes");
    let line = site.server.received().pop().expect("a request").line;
    assert_eq!(line, "GET /deep/v2/p HTTP/1.1");
    assert_ne!(tools[0].source_hash(), straight[0].source_hash(), "where calls go is what is pinned");
    let mut with_key =
        provider_of(&site, OpenApiConfig { headers: [("X-Key".into(), "k".into())].into(), ..config.clone() });
    assert!(with_key.list().await.expect("listed").is_empty());
    assert!(with_key.withheld()[0].why.contains("set base_url"), "{:?}", with_key.withheld());
    with_key = provider_of(&site, OpenApiConfig { base_url: Some(site.server.url("/v2")), ..config });
    assert_eq!(with_key.list().await.expect("listed").len(), 1);
}

#[tokio::test]
async fn changed_requests_have_own_cached_results() {
    let site = api().await;
    let variables = |default: &str| {
        let host = json!({"url": "https://{host}.example/", "variables": {"host": {"default": default}}});
        document(json!({"/p": {"get": {"operationId": "op"}}}), json!({"servers": [host]}))
    };
    let listed = async |change: &dyn Fn(&mut OpenApiConfig), default: &str| {
        publish(&site, Some(&variables(default)));
        let mut config = config_of(&site);
        change(&mut config);
        let provider = provider_of(&site, config);
        let hash = provider.list().await.expect("listed")[0].source_hash();
        (hash, provider.credential_scope(&Principal::owner()).expect("a scope"))
    };
    let (hash, scope) = listed(&|_| {}, "a").await;
    assert_eq!(listed(&|_| {}, "a").await, (hash, scope));
    assert_ne!(listed(&|_| {}, "b").await.0, hash, "the document says another server");
    let of = |set: Operation| [("op".to_owned(), set)].into();
    let changes: [&dyn Fn(&mut OpenApiConfig); 8] = [
        &|config| drop(config.server_variables.insert("host".into(), "tenant".into())),
        &|config| config.base_url = Some("https://other.example".into()),
        &|config| config.operations = of(Operation { select: Some("/a".into()), ..Operation::default() }),
        &|config| {
            config.operations = of(Operation {
                calls: CallConfig { response: Some(ResponseFormat::Text), ..CallConfig::default() },
                ..Operation::default()
            })
        },
        &|config| config.operations = of(Operation { content_type: Some("text/plain".into()), ..Operation::default() }),
        &|config| config.calls.response = Some(ResponseFormat::Text),
        &|config| config.max_bytes = Some(300),
        &|config| drop(config.auth.insert("k".into(), Auth::Token("t".into()))),
    ];
    let mut scopes = vec![scope];
    for change in changes {
        let (_, scope) = listed(change, "a").await;
        assert!(!scopes.contains(&scope));
        scopes.push(scope);
    }
    let tenant = |tenant: &'static str| {
        move |config: &mut OpenApiConfig| drop(config.server_variables.insert("host".into(), tenant.into()))
    };
    let (one, two) = (listed(&tenant("one"), "a").await, listed(&tenant("two"), "b").await);
    assert!(one.0 == two.0 && one.1 != two.1, "the operator's own values are no drift");
}
