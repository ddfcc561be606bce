//! `/mcp/{view}`: a part of everything, under a policy and for roles of its own.

use serde_json::json;
use toolwright_core::policy::Profile;
use toolwright_core::session::Principal;
use toolwright_server::ViewOptions;

use crate::sources::Source;
use crate::support::{House, body};

fn view(name: &str, allowed: &[&str], denied: &[&str]) -> ViewOptions {
    let owned = |globs: &[&str]| globs.iter().map(ToString::to_string).collect();
    ViewOptions {
        name: name.into(),
        allowed: owned(allowed),
        denied: owned(denied),
        expose: None,
        profile: None,
        roles: Vec::new(),
    }
}

async fn house() -> House {
    let house = House::with(|options| {
        options.views = vec![
            view("small", &["test__echo", "alpha__*"], &["alpha__ask", "alpha__prompts_*"]),
            ViewOptions { profile: Some(Profile::Ask), ..view("asks", &[], &[]) },
            ViewOptions { roles: vec!["ops".into()], ..view("ops", &[], &[]) },
        ];
    })
    .await;
    house.add(Source::new("alpha")).await;
    house.add(Source::new("beta")).await;
    house
}

#[tokio::test]
async fn a_view_has_what_it_lets_through_and_nothing_else_runs_there() {
    let house = house().await;
    let http = house.http().await;
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
async fn a_view_has_its_own_policy_and_roles() {
    let house = house().await;
    assert_eq!(house.gateway.clash(), None);
    let http = house.http().await;
    let call = json!({"name": "remote__other", "arguments": {}});
    for (path, fails) in [("/mcp", json!(null)), ("/mcp/asks", json!(true))] {
        let answer = body(http.modern(path, json!(1), "tools/call", call.clone()), 200).await;
        assert_eq!(answer["result"]["isError"], fails, "{path}: {answer}");
    }
    body(http.modern("/mcp/ops", json!(1), "tools/list", json!({})), 200).await;
    let guest = house.http_with(|options| {
        options.principal = Principal { id: "guest".into(), roles: Vec::new(), owner: false };
    });
    let guest = guest.await;
    let refused = guest.modern("/mcp/ops", json!(1), "tools/list", json!({})).send().await.expect("response");
    assert_eq!(refused.status(), 403);
    let clashing = House::with(|options| options.views = vec![view("remote", &[], &[])]).await;
    assert_eq!(clashing.gateway.clash().as_deref(), Some("remote"));
}
