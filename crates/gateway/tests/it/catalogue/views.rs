//! `/mcp/{view}`: a part of everything, under a policy and for roles of its own.

use serde_json::json;
use toolwright_core::policy::Profile;
use toolwright_core::session::Principal;
use toolwright_gateway::{Expose, ViewConfig};

use crate::sources::Source;
use crate::support::{Events, Fixture, body, rpc};

fn view(name: &str, allowed: &[&str], denied: &[&str]) -> ViewConfig {
    let owned = |globs: &[&str]| globs.iter().map(ToString::to_string).collect();
    ViewConfig {
        name: name.into(),
        allowed: owned(allowed),
        denied: owned(denied),
        expose: None,
        profile: None,
        schemas: None,
        roles: Vec::new(),
    }
}

async fn fixture() -> Fixture {
    let fixture = fixture_with(Source::new("alpha")).await;
    fixture.add_listed(Source::new("beta").provider()).await;
    fixture
}

async fn fixture_with(source: Source) -> Fixture {
    let fixture = Fixture::with(|options| {
        options.views = vec![
            view("small", &["test__echo", "alpha__*"], &["alpha__ask", "alpha__prompts_*"]),
            ViewConfig { profile: Some(Profile::Ask), ..view("asks", &[], &[]) },
            ViewConfig { roles: vec!["ops".into()], ..view("ops", &[], &[]) },
            view("lists", &[], &["alpha__prompts_get", "alpha__resources_read", "alpha__resources_subscribe"]),
            view("reads", &["alpha__get_*", "alpha__resources_read", "alpha__prompts_get", "output__*"], &[]),
            view("unlisted", &["alpha__resources_read"], &["alpha__resources_list", "alpha__resources_subscribe"]),
        ];
    })
    .await;
    fixture.add_listed(source.provider()).await;
    fixture
}

#[tokio::test]
async fn a_view_runs_only_allowed_tools() {
    let fixture = fixture().await;
    let http = fixture.http().await;
    let listed = body(http.modern("/mcp/small", json!(1), "tools/list", json!({})), 200).await;
    let names: Vec<_> =
        listed["result"]["tools"].as_array().expect("a list").iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["test__echo", "alpha__log", "alpha__meta"].map(|name| json!(name)));
    let discovered = body(http.modern("/mcp/small", json!(1), "server/discover", json!({})), 200).await;
    let parts: Vec<_> = discovered["result"]["capabilities"].as_object().expect("object").keys().cloned().collect();
    assert_eq!(parts, ["tools", "resources", "completions", "logging", "extensions"]);
    for (name, status) in [("test__echo", 200), ("test__fail", 400), ("alpha__ask", 400), ("test:fail@1.0.0", 400)] {
        let call = json!({"name": name, "arguments": {"text": "a"}});
        body(http.modern("/mcp/small", json!(1), "tools/call", call), status).await;
    }
    let resources = body(http.modern("/mcp/small", json!(1), "resources/list", json!({})), 200).await;
    assert_eq!(resources["result"]["resources"].as_array().map(Vec::len), Some(3), "alpha's");
    body(http.modern("/mcp/small", json!(1), "prompts/list", json!({})), 404).await;
    body(http.modern("/mcp/small", json!(1), "resources/read", json!({"uri": "toolwright-resource://beta/x:y"})), 200)
        .await;
    let beta = body(http.modern("/mcp/small", json!(1), "resources/read", json!({"uri": "beta://one"})), 200).await;
    assert_eq!(beta["result"]["contents"][0]["text"], "alpha", "the only one with resources here");
}

#[tokio::test]
async fn reading_resources_allows_listing_and_subscribing() {
    let fixture = fixture().await;
    let http = fixture.http().await;
    for (path, refused) in [
        ("/mcp/reads", &["completion/complete"][..]),
        (
            "/mcp/unlisted",
            &["resources/list", "resources/subscribe", "prompts/list", "prompts/get", "completion/complete"],
        ),
    ] {
        let (session, initialized) = http.initialize(path).await;
        let announced = &initialized["capabilities"]["resources"];
        assert!(announced.is_object(), "{path}: {initialized}");
        assert_eq!(announced["subscribe"] == true, !refused.contains(&"resources/subscribe"), "{path}");
        for (method, params) in [
            ("resources/list", json!({})),
            ("resources/templates/list", json!({})),
            ("resources/read", json!({"uri": "alpha://one"})),
            ("resources/subscribe", json!({"uri": "alpha://one"})),
            ("resources/unsubscribe", json!({"uri": "alpha://one"})),
            ("prompts/list", json!({})),
            ("prompts/get", json!({"name": "alpha__hello"})),
            ("completion/complete", json!({"ref": {"type": "ref/prompt", "name": "alpha__hello"}, "argument": {}})),
        ] {
            let answer = body(http.in_session(&session, path, &rpc(1, method, params)), 200).await;
            match refused.contains(&method) {
                true => assert_eq!(answer["error"]["code"], -32601, "{path} {method}"),
                false => assert!(answer["result"].is_object(), "{path} {method}: {answer}"),
            }
        }
    }
}

#[tokio::test]
async fn a_view_hides_denied_methods() {
    let (alpha, fixture) = (Source::new("alpha"), fixture_with(Source::new("beta")).await);
    fixture.add_listed(alpha.provider()).await;
    fixture.add_listed(Source::new("gamma").provider()).await;
    let http = fixture.http().await;
    for (method, params) in
        [("prompts/get", json!({"name": "alpha__hello"})), ("resources/read", json!({"uri": "alpha://one"}))]
    {
        let refused = http.modern("/mcp/lists", json!(1), method, params).send().await.expect("response");
        assert_ne!(refused.status(), 200, "{method}");
    }
    let (session, _) = http.initialize("/mcp/lists").await;
    for (uri, fails) in [("alpha://one", true), ("beta://one", false)] {
        let subscribe = rpc(1, "resources/subscribe", json!({"uri": uri}));
        let answer = body(http.in_session(&session, "/mcp/lists", &subscribe), 200).await;
        assert_eq!(answer.get("error").is_some(), fails, "{uri}: {answer}");
    }
    assert_eq!(alpha.taken(), vec![]);
}

#[tokio::test]
async fn a_view_has_its_own_policy_and_roles() {
    let fixture = fixture().await;
    assert_eq!(fixture.gateway.name_conflict(), None);
    let http = fixture.http().await;
    let call = json!({"name": "remote__other", "arguments": {}});
    for (path, fails) in [("/mcp", json!(null)), ("/mcp/asks", json!(true))] {
        let answer = body(http.modern(path, json!(1), "tools/call", call.clone()), 200).await;
        assert_eq!(answer["result"]["isError"], fails, "{path}: {answer}");
    }
    body(http.modern("/mcp/ops", json!(1), "tools/list", json!({})), 200).await;
    let guest = fixture.http_with(|options| {
        options.principal = Principal { id: "guest".into(), roles: Vec::new(), owner: false };
    });
    let guest = guest.await;
    let refused = guest.modern("/mcp/ops", json!(1), "tools/list", json!({})).send().await.expect("response");
    assert_eq!(refused.status(), 403);
    let clashing = Fixture::with(|options| options.views = vec![view("remote", &[], &[])]).await;
    assert_eq!(clashing.gateway.name_conflict().as_deref(), Some("remote"));
}

#[tokio::test]
async fn replaced_views_notify_their_clients() {
    let fixture = fixture().await;
    let http = fixture.http().await;
    let (session, _) = http.initialize("/mcp/small").await;
    let list = || async { body(http.in_session(&session, "/mcp/small", &rpc(1, "tools/list", json!({}))), 200).await };
    let names = |listed: &serde_json::Value| {
        let tools = listed["result"]["tools"].as_array().expect("a list").clone();
        tools.iter().map(|tool| tool["name"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&list().await), ["test__echo", "alpha__log", "alpha__meta"]);
    let stream = || http.request(reqwest::Method::GET, "/mcp/small").header("mcp-session-id", &session);
    let mut events = Events::of(stream()).await;

    let fewer = vec![ViewConfig { profile: Some(Profile::Ask), ..view("small", &["test__echo"], &[]) }];
    assert!(fixture.gateway.set_views(&fewer) && !fixture.gateway.set_views(&fewer), "once");
    assert_eq!(events.next().await.expect("told")["method"], "notifications/tools/list_changed");
    assert_eq!(names(&list().await), ["test__echo"]);
    let gone = http.modern("/mcp/asks", json!(1), "tools/list", json!({})).send().await.expect("response");
    assert_eq!(gone.status(), 404, "a view that is no more");
    let refused = http.modern("/mcp/small", json!(1), "tools/call", json!({"name": "alpha__log", "arguments": {}}));
    assert_eq!(refused.send().await.expect("response").status(), 400, "what it does not show any more");

    // Who may not use it any more hears nothing more of it.
    let guest = fixture.http_with(|options| {
        options.principal = Principal { id: "guest".into(), roles: Vec::new(), owner: false };
    });
    let guest = guest.await;
    let (session, _) = guest.initialize("/mcp/small").await;
    let stream = guest.request(reqwest::Method::GET, "/mcp/small").header("mcp-session-id", &session);
    let events = Events::of(stream).await;
    fixture.gateway.set_views(&[ViewConfig { roles: vec!["ops".into()], ..view("small", &["test__echo"], &[]) }]);
    assert!(events.rest().await.iter().all(|reported| reported["method"] == "notifications/tools/list_changed"));
    let refused = guest.in_session(&session, "/mcp/small", &rpc(2, "tools/list", json!({}))).send().await;
    assert_eq!(refused.expect("response").status(), 403);
    assert_eq!(fixture.gateway.name_conflict(), None);
    fixture.gateway.set_views(&[view("beta", &[], &[])]);
    assert_eq!(fixture.gateway.name_conflict().as_deref(), Some("beta"));
}

#[tokio::test]
async fn a_session_keeps_its_exposure() {
    let fixture = fixture().await;
    let http = fixture.http().await;
    let path = "/mcp/small";
    let (session, _) = http.initialize(path).await;
    let count = |listed: serde_json::Value| listed["result"]["tools"].as_array().map(Vec::len);
    let list = rpc(1, "tools/list", json!({}));
    let direct = count(body(http.in_session(&session, path, &list), 200).await);
    assert_eq!(direct, Some(3));
    let stream = http.request(reqwest::Method::GET, path).header("mcp-session-id", &session);
    let mut events = Events::of(stream).await;
    let listen = json!({"notifications": {"toolsListChanged": true}});
    let listening = |path: &str| http.modern(path, json!("s"), "subscriptions/listen", listen.clone());
    let mut usual = Events::of(listening(path)).await;
    let mut asked = Events::of(listening("/mcp/small?expose=direct")).await;
    for events in [&mut usual, &mut asked] {
        assert_eq!(events.next().await.expect("granted")["method"], "notifications/subscriptions/acknowledged");
    }

    let searching = ViewConfig {
        expose: Some(Expose::Search),
        ..view("small", &["test__echo", "alpha__*"], &["alpha__ask", "alpha__prompts_*"])
    };
    assert!(fixture.gateway.set_views(std::slice::from_ref(&searching)));
    assert_eq!(usual.next().await.expect("told")["method"], "notifications/tools/list_changed");
    // With and without what its address said; nobody has told it that it has ended.
    for path in [path, "/mcp/small?expose=direct"] {
        assert_eq!(count(body(http.in_session(&session, path, &list), 200).await), direct, "{path}");
    }
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    assert_eq!(http.in_session(&session, path, &cancelled).send().await.expect("response").status(), 202);
    let other = http.in_session(&session, "/mcp/small?expose=search", &list).send().await.expect("response");
    assert_eq!(other.status(), 404, "another address");
    let (new, _) = http.initialize(path).await;
    let names = body(http.in_session(&new, path, &list), 200).await["result"]["tools"].take();
    assert!(names.to_string().contains("tools__search"), "{names}");
    let modern = body(http.modern(path, json!(1), "tools/list", json!({})), 200).await["result"]["tools"].take();
    assert_eq!(modern.as_array().map(Vec::len), names.as_array().map(Vec::len));

    // Streams of those whose list is the same are open, and were not told of this.
    fixture.gateway.set_views(&[ViewConfig { allowed: vec!["test__echo".into()], ..searching }]);
    for events in [&mut events, &mut asked] {
        assert_eq!(events.next().await.expect("told")["method"], "notifications/tools/list_changed");
        let more = tokio::time::timeout(std::time::Duration::from_millis(200), events.next()).await;
        assert!(
            more.is_err() || more.expect("more").expect("told")["method"] == "notifications/resources/list_changed"
        );
    }
}
