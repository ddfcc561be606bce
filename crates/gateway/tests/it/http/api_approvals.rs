//! The API's approvals and forms, and who may decide.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use toolwright_core::inbox::{FormReply, FormRequest, InboxStore as _, QuestionState, RequestedAction};
use toolwright_core::session::{PeerProcess, Principal, SessionId};
use toolwright_gateway::{ApiStores, Token};
use toolwright_runtime::{FormInbox, FormInboxOptions, SystemClock};

use crate::http::api::{Api, error_kind};
use crate::support::{Fixture, body};

#[tokio::test]
async fn a_waiting_call_runs_after_approval() {
    let (api, store) = Api::asking(Some("s3cret")).await;
    let (list, one) = ("/api/approvals", "/api/approvals/{id}");
    let ask = |text: &'static str| api.call(json!({"tool": "remote__other", "arguments": {"t": text}}));
    for (word, state, ends) in [
        ("deny", "denied", "error"),
        ("approve", "approved", "done"),
        ("always_these", "approved", "done"),
        ("always", "approved", "done"),
    ] {
        let begun = ask(word).await;
        let job = begun["structured"]["job"].as_str().unwrap_or_else(|| panic!("{begun}")).to_owned();
        let question = api.question().await;
        let path = format!("/api/approvals/{}", question["id"].as_str().expect("id"));
        let shown = api.answer(Method::GET, one, &path, None, 200).await;
        assert_eq!((&shown["id"], &shown["tool"]), (&question["id"], &question["tool"]), "{shown}");
        let said = Some(json!({"decision": word}));
        let answered = api.answer(Method::POST, one, &path, said.clone(), 200).await;
        assert_eq!(answered["state"], state);
        let second = api.answer(Method::POST, one, &path, said, 409).await;
        assert_eq!(error_kind(&second), "conflict");
        let ended = body(api.get(&format!("/api/jobs/{job}?wait=10s")), 200).await;
        assert_eq!(ended["state"], ends, "{ended}");
        if word == "always_these" {
            // The same is not asked about again, and another is.
            let again = ask(word).await;
            assert_eq!((&again["status"], again.get("structured")), (&json!("done"), None), "{again}");
        }
    }
    api.answer(Method::GET, one, "/api/approvals/ask_none", None, 404).await;
    let standing = "/api/approvals/standing";
    let rows = api.answer(Method::GET, standing, standing, None, 200).await;
    let path = format!("{standing}/{}", rows[0]["id"].as_str().expect("id"));
    let revoke = "/api/approvals/standing/{id}";
    assert_eq!(api.answer(Method::DELETE, revoke, &path, None, 200).await["state"], "revoked");
    api.answer(Method::DELETE, revoke, &path, None, 404).await;
    let all = api.answer(Method::GET, list, "/api/approvals?all=true", None, 200).await;
    assert_eq!((&all["total"], &all["next"]), (&json!(4), &Value::Null));
    let part = api.answer(Method::GET, list, "/api/approvals?all=true&limit=3", None, 200).await;
    let rest = format!("/api/approvals?all=true&after={}", part["next"].as_str().expect("more"));
    let rest = api.answer(Method::GET, list, &rest, None, 200).await;
    assert_eq!((&rest["questions"][0], &rest["next"]), (&all["questions"][3], &Value::Null));
    assert!(store.questions(Some(QuestionState::Pending), 10).await.expect("read").is_empty());
}

#[tokio::test]
async fn a_form_takes_only_values_that_fit() {
    let (api, store) = Api::asking(Some("s3cret")).await;
    let one = "/api/approvals/{id}";
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 3}}});
    let inbox = FormInbox::new(FormInboxOptions::new(Arc::clone(&store) as _, Arc::new(SystemClock)));
    let ask = |wants: RequestedAction| {
        let inbox = inbox.clone();
        let (session, principal) = (SessionId::new("s"), "owner".to_owned());
        let request = FormRequest { session, principal, source: "fx:ask".into(), message: "How many?".into(), wants };
        tokio::spawn(async move { inbox.ask(request).await.expect("asked") })
    };
    let asked = ask(RequestedAction::Form(schema.clone()));
    let question = api.question().await;
    assert_eq!((&question["kind"], &question["schema"]), (&json!("form"), &schema));
    let path = format!("/api/approvals/{}", question["id"].as_str().expect("id"));
    for (said, why) in [
        (json!({"decision": "accept", "content": {"n": 2}}), "`n`"),
        (json!({"decision": "accept", "content": {"n": 3, "m": 1}}), "`m`"),
        (json!({"decision": "accept"}), "`n` is missing"),
        (json!({"decision": "decline", "content": {"n": 3}}), "`content` goes with"),
        (json!({"decision": "decline", "reason": "no"}), "`reason` goes with"),
        (json!({"decision": "accept", "content": {"n": 3}, "reason": "no"}), "`reason` goes with"),
        (json!({"decision": "approve"}), "no call"),
    ] {
        let refused = api.answer(Method::POST, one, &path, Some(said.clone()), 400).await;
        assert!(refused["error"]["message"].as_str().is_some_and(|message| message.contains(why)), "{said} {refused}");
    }
    let said = json!({"decision": "accept", "content": {"n": 3}});
    assert_eq!(api.answer(Method::POST, one, &path, Some(said.clone()), 200).await["state"], "approved");
    let content = json!({"n": 3}).as_object().cloned().expect("object");
    assert_eq!(asked.await.expect("answered"), Some(FormReply::Accept { content }));
    api.answer(Method::POST, one, &path, Some(said), 409).await;
    let asked = ask(RequestedAction::Page("https://login.example/".into()));
    let question = api.question().await;
    assert_eq!((&question["kind"], &question["address"]), (&json!("page"), &json!("https://login.example/")));
    let path = format!("/api/approvals/{}", question["id"].as_str().expect("id"));
    let declined = api.answer(Method::POST, one, &path, Some(json!({"decision": "decline"})), 200).await;
    assert_eq!(
        (declined["state"].clone(), asked.await.expect("answered")),
        (json!("denied"), Some(FormReply::Decline))
    );
}

#[tokio::test]
async fn nested_processes_cannot_approve_even_with_token() {
    let (api, store) = Api::asking_as(None, |_, _| PeerProcess::Nested).await;
    api.call(json!({"tool": "remote__other", "arguments": {"t": "a"}})).await;
    let path = format!("/api/approvals/{}", api.question().await["id"].as_str().expect("id"));
    for decision in ["approve", "always", "deny"] {
        let decide = json!({"decision": decision});
        let refused = api.answer(Method::POST, "/api/approvals/{id}", &path, Some(decide), 403).await;
        assert!(refused["error"]["message"].as_str().is_some_and(|why| why.contains("cannot approve")), "{refused}");
    }
    let standing = "/api/approvals/standing/{id}";
    api.answer(Method::DELETE, standing, "/api/approvals/standing/a", None, 403).await;
    let send = Some(json!({"input": "x"}));
    api.answer(Method::POST, "/api/jobs/{id}/send", "/api/jobs/job_1/send", send, 403).await;
    assert_eq!(store.questions(Some(QuestionState::Pending), 10).await.expect("read").len(), 1);
}

#[tokio::test]
async fn the_api_needs_a_token_unlike_mcp() {
    let fixture = Fixture::new().await;
    for api_token in [Some("t0"), None] {
        let mut http = fixture.http_with(|options| options.api_token = api_token.and_then(Token::new)).await;
        http.token = None;
        for (method, path) in
            [(Method::GET, "/api/tools"), (Method::POST, "/api/call"), (Method::GET, "/api/openapi.json")]
        {
            let call = json!({"tool": "test__echo", "arguments": {"text": "a"}});
            for token in ["", "wrong"] {
                let request = http.request(method.clone(), path).json(&call);
                let request = if token.is_empty() { request } else { request.bearer_auth(token) };
                assert_eq!(error_kind(&body(request, 401).await), "unauthorized", "{path} {token}");
            }
        }
        body(http.modern("/mcp", json!(1), "tools/list", json!({})), 200).await;
        if let Some(token) = api_token {
            body(http.request(Method::GET, "/api/tools").bearer_auth(token), 200).await;
            body(http.modern("/mcp", json!(1), "tools/list", json!({})).bearer_auth(token), 200).await;
        }
    }
}

#[tokio::test]
async fn without_the_token_nothing_is_decided() {
    let decide = json!({"decision": "approve"});
    // Not without it, and not for a page of somebody else's or under another name.
    let (api, store) = Api::asking(Some("s3cret")).await;
    api.call(json!({"tool": "remote__other", "arguments": {"t": "a"}})).await;
    let path = format!("/api/approvals/{}", api.question().await["id"].as_str().expect("id"));
    let url = format!("http://{}{path}", api.http.addr);
    let bare = reqwest::Client::builder().no_proxy().build().expect("client").post(url).json(&decide);
    body(bare, 401).await;
    for (name, value) in [("origin", "http://evil.example"), ("origin", "null"), ("host", "evil.example")] {
        let request = api.http.request(Method::POST, &path).header(name, value).json(&decide);
        assert_eq!(error_kind(&body(request, 403).await), "forbidden", "{name}: {value}");
    }
    assert_eq!(store.questions(Some(QuestionState::Pending), 10).await.expect("read").len(), 1);
    body(api.http.request(Method::POST, &path).json(&decide), 200).await;
}

#[tokio::test]
async fn only_the_owner_approves_and_sees_all_jobs() {
    let (fixture, store) = Fixture::with_jobs(|_, _| {}).await;
    let stores = ApiStores { inbox: Arc::clone(&store) as _, approvals: Arc::clone(&store) as _ };
    let guest = Principal { id: "guest".into(), roles: vec![], owner: false };
    let owners = fixture.http_with(|options| options.stores = stores.clone()).await;
    let guests = fixture
        .http_with(|options| {
            options.stores = stores;
            options.principal = guest;
        })
        .await;
    let begin = json!({"tool": "test__sleep", "background": true});
    let begun = body(owners.request(Method::POST, "/api/call").json(&begin), 200).await;
    let job = format!("/api/jobs/{}", begun["structured"]["job"].as_str().expect("job"));
    for path in ["/api/approvals", "/api/approvals/standing"] {
        assert_eq!(error_kind(&body(guests.request(Method::GET, path), 403).await), "forbidden");
    }
    let answer = guests.request(Method::POST, "/api/approvals/ask_1").json(&json!({"decision": "approve"}));
    assert_eq!(error_kind(&body(answer, 403).await), "forbidden");
    assert_eq!(body(guests.request(Method::GET, "/api/jobs"), 200).await["total"], 0);
    body(guests.request(Method::GET, &job), 404).await;
    body(owners.request(Method::GET, &job), 200).await;
    // Nor does a tool that needs a role exist for whoever lacks it.
    body(guests.request(Method::GET, "/api/tools/test__limited"), 404).await;
    body(owners.request(Method::GET, "/api/tools/test__limited"), 200).await;
    let begun = body(guests.request(Method::POST, "/api/call").json(&begin), 200).await;
    assert!(begun["structured"]["job"].is_string(), "{begun}");
    assert_eq!(body(guests.request(Method::GET, "/api/jobs"), 200).await["total"], 1);
}
