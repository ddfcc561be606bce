//! What clients ask of servers besides calls: methods, subscriptions and lists, in both generations.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::catalogue::{ListKind, Provider as _, SourceNotice};
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_mcp::client::{AsTools, McpServerOptions, McpTransport};

use super::asking::{GENERATIONS, asker};
use super::{Fixture, eventually, run};

#[tokio::test]
async fn methods_pass_unchanged_and_subscriptions_are_notified() {
    for mode in GENERATIONS {
        let script = asker(mode);
        let fixture = script.fixture(|_| {});
        let notices: Arc<Mutex<Vec<SourceNotice>>> = Arc::default();
        let sink = Arc::clone(&notices);
        fixture.provider.on_notice(Arc::new(move |notice| sink.lock().expect("notices").push(notice)));
        assert_eq!(fixture.provider.capabilities(), None);
        fixture.provider.warm_up().await.expect("connected");
        let capabilities = fixture.provider.capabilities().expect("announced");
        assert_eq!(capabilities["resources"], json!({"subscribe": true}));
        let methods = fixture.provider.methods().expect("methods");
        let listed = methods.list().await.expect("listed");
        let read = listed.iter().find(|tool| tool.raw_name() == "resources/read").expect("read");
        assert_eq!(read.definition().id.as_str(), "srv:resources-read@0.0.0");
        let context = fixture.context("s");
        let ask = |method: &'static str, params: Value| {
            let (methods, context) = (Arc::clone(&methods), context.clone());
            async move { run(&*methods, method, params, &context).await.map(|output| output.extras[METHOD_RESULT].clone()) }
        };
        let first = json!({"contents": [{"uri": "a://1", "text": "first", "later": 1}], "later": 2});
        assert_eq!(ask("resources/read", json!({"uri": "a://1"})).await.expect("read"), first, "{mode}");
        let error = ask("resources/read", json!({"uri": "a://2"})).await.expect_err("not there");
        let own = error.protocol().expect("the server's own");
        assert_eq!((own.code, own.data.clone()), (-32002, Some(json!({"uri": "a://2"}))), "{mode}");
        ask("resources/subscribe", json!({"uri": "a://1"})).await.expect("followed");
        let updated = SourceNotice::ResourceUpdated { uri: "a://1".into() };
        eventually("it is told", || notices.lock().expect("notices").contains(&updated)).await;
        assert_eq!(ask("logging/setLevel", json!({"level": "info"})).await.expect("taken"), json!({}), "{mode}");
    }
}

#[tokio::test]
async fn entries_can_list_resources_and_prompts_as_tools() {
    for mode in GENERATIONS {
        let script = asker(mode);
        let fixture =
            script.fixture(|options| (options.config.resources, options.config.prompts) = (AsTools::Yes, AsTools::Yes));
        let names = fixture.names().await;
        assert_eq!(names[4..], ["list_resources", "read_resource", "prompt_greet"], "{mode}");
        let texts = async |tool: &str, arguments: Value| {
            let output = fixture.call(tool, arguments).await.expect(tool);
            serde_json::to_value(&output.content).expect("JSON")
        };
        let listed = texts("list_resources", json!({})).await;
        assert_eq!(
            (&listed[0]["type"], &listed[0]["uri"], &listed[0]["later"]),
            (&json!("resource_link"), &json!("a://1"), &json!(1))
        );
        assert!(listed[1]["text"].as_str().expect("template").contains("a://{n}"));
        assert!(listed[2]["text"].as_str().expect("more").contains("cursor next"));
        let read = texts("read_resource", json!({"uri": "a://1"})).await;
        assert_eq!(read[0]["resource"]["text"], "first");
        let greeting = texts("prompt_greet", json!({"who": "Ann"})).await;
        assert_eq!(greeting, json!([{"type": "text", "text": "Hello \"Ann\""}]));
        let again = Fixture::within(Arc::clone(&fixture.world), script.transport.clone(), |options| {
            (options.config.resources, options.config.prompts) = (AsTools::Yes, AsTools::Yes);
        });
        assert_eq!(again.provider.cached().await.expect("cached").len(), 7, "{mode}");
    }
}

#[tokio::test]
async fn subscriptions_are_replaced_before_they_end() {
    let script = asker("modern");
    let fixture = script.fixture(|_| {});
    let (methods, context) = (fixture.provider.methods().expect("methods"), fixture.context("s"));
    for uri in ["a://1", "a://2"] {
        run(&*methods, "resources/subscribe", json!({"uri": uri}), &context).await.expect("followed");
    }
    let sent =
        |method: &str| script.read().into_iter().filter(|message| message["method"] == method).collect::<Vec<_>>();
    eventually("the first is given up", || !sent("notifications/cancelled").is_empty()).await;
    let listens = sent("subscriptions/listen");
    assert_eq!(listens.len(), 2);
    assert_eq!(listens[1]["params"]["notifications"]["resourceSubscriptions"], json!(["a://1", "a://2"]));
    assert_eq!(sent("notifications/cancelled")[0]["params"]["requestId"], listens[0]["id"]);
    for uri in ["a://1", "a://2"] {
        run(&*methods, "resources/unsubscribe", json!({"uri": uri}), &context).await.expect("not followed");
    }
    eventually("there is nothing to listen for", || sent("notifications/cancelled").len() >= 2).await;
}

#[tokio::test]
async fn expired_lists_are_requested_again() {
    let fixture = asker("modern").fixture(|_| {});
    let due = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&due);
    fixture.provider.on_change(Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    fixture.names().await;
    eventually("a list is due", || due.load(Ordering::Relaxed) == 1).await;
}

#[tokio::test]
async fn a_lazy_server_starts_at_its_first_call() {
    let script = asker("legacy");
    let first = script.fixture(|options| options.config.lazy = true);
    assert_eq!(first.names().await.len(), 4, "there is nothing to go by yet");
    first.provider.shut_down().await;
    let before = script.methods().len();
    let fixture =
        Fixture::within(Arc::clone(&first.world), script.transport.clone(), |options| options.config.lazy = true);
    fixture.provider.warm_up().await.expect("nothing to warm up");
    assert_eq!(fixture.names().await.len(), 4);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(script.methods().len(), before, "nothing was started");
    fixture.call("tell", json!({})).await.expect("started");
    assert_eq!(script.methods()[before..before + 3], ["initialize", "notifications/initialized", "tools/call"]);
    fixture.names().await;
    assert!(script.methods()[before..].contains(&"tools/list".to_owned()), "what runs is asked");
}

#[tokio::test]
async fn lazy_servers_do_not_start_for_known_lists() {
    for shared in [true, false] {
        let script = asker("legacy");
        let lazy = |options: &mut McpServerOptions| (options.config.lazy, options.config.shared) = (true, shared);
        let first = script.fixture(lazy);
        first.names().await;
        let all = async |fixture: &Fixture| {
            let mut all = Vec::new();
            for kind in ListKind::ALL {
                all.push(fixture.provider.list_of(kind).await.expect("listed"));
            }
            all
        };
        let before = all(&first).await;
        assert!(before.iter().all(|list| !list.is_empty()), "{before:?}");
        first.provider.shut_down().await;
        let starts = || script.methods().iter().filter(|method| *method == "initialize").count();
        let started = starts();
        let fixture = Fixture::within(Arc::clone(&first.world), script.transport.clone(), lazy);
        fixture.names().await;
        let (methods, context) = (fixture.provider.methods().expect("methods"), fixture.context("s"));
        run(&*methods, "logging/setLevel", json!({"level": "error"}), &context).await.expect("kept");
        assert_eq!(all(&fixture).await, before);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(starts(), started, "nothing was started");
        // How much to log is told when it starts.
        fixture.call("tell", json!({})).await.expect("started");
        let reported = || script.read().iter().any(|sent| sent["params"]["level"] == "error");
        eventually("it is told", reported).await;
        fixture.provider.shut_down().await;
    }
}

#[tokio::test]
async fn lazy_lists_are_kept_by_credentials() {
    let script = asker("legacy");
    let asked = |method: &str| script.methods().iter().filter(|asked| *asked == method).count();
    let first = script.fixture(|options| options.config.lazy = true);
    let (templates, method) = (ListKind::Templates, ListKind::Templates.method());
    first.provider.list_of(templates).await.expect("listed");
    first.provider.shut_down().await;
    // The same server with another secret is another's.
    let McpTransport::Stdio { command, args, mut env, cwd } = script.transport.clone() else { panic!("a process") };
    env.insert("API_KEY".into(), "one".into());
    let with = |key: &str| {
        let mut env = env.clone();
        env.insert("API_KEY".into(), key.into());
        let (command, args, cwd) = (command.clone(), args.clone(), cwd.clone());
        let transport = McpTransport::Stdio { command, args, env, cwd };
        Fixture::within(Arc::clone(&first.world), transport, |options| options.config.lazy = true)
    };
    for (key, expect) in [("one", 2), ("two", 3), ("one", 3)] {
        let fixture = with(key);
        fixture.provider.list_of(templates).await.expect("listed");
        assert_eq!(asked(method), expect, "{key}");
        fixture.provider.shut_down().await;
    }
    let keys: Vec<_> = first.world.manifests.lock().expect("manifests").keys().cloned().collect();
    assert!(keys.iter().all(|key| !key.contains("API_KEY") && !key.contains("two")), "{keys:?}");
}

#[tokio::test]
async fn lists_are_repaired_and_empty_when_unannounced() {
    for shared in [true, false] {
        let script = asker("malformed");
        let fixture = script.fixture(|options| options.config.shared = shared);
        let list = async |kind| json!(&*fixture.provider.list_of(kind).await.expect("listed"));
        let greet = json!({"name": "greet", "arguments": [{"name": "who"}]});
        let more = json!({"name": "more", "description": "d"});
        assert_eq!(list(ListKind::Prompts).await, json!([greet, more]), "both pages, mended");
        assert_eq!(list(ListKind::Resources).await, json!([]));
        assert!(!script.methods().iter().any(|method| method == "resources/list"), "it does not announce any");
        fixture.provider.shut_down().await;
    }
}
