//! Calls that are refused until their user has opened a page (-32042).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use toolwright_core::catalogue::{Provider as _, SourceNotice};
use toolwright_core::client::{AskStyle, ClientRequest};
use toolwright_core::context::ToolContext;
use toolwright_core::error::ErrorKind;
use toolwright_testkit::FakeCallClient;

use super::run;
use super::stdio::scripted;

/// Somebody who opens a page for each permit, or declines it, and says when it is done; else that question
/// stands.
fn page_client(offers: Value, opens: bool, says: bool, permits: &Arc<Semaphore>) -> FakeCallClient {
    let permits = Arc::clone(permits);
    let client = FakeCallClient::with_future(move |request| {
        let (is_page, permits) = (request.params["mode"] == "url", Arc::clone(&permits));
        Box::pin(async move {
            if is_page {
                permits.acquire().await.expect("open").forget();
            } else if !says {
                std::future::pending::<()>().await;
            }
            json!({"action": if opens { "accept" } else { "decline" }})
        })
    });
    client.with(|client| client.capabilities = json!({"elicitation": offers}))
}

/// What a client was shown: the pages, and the messages of the other questions.
fn shown(client: &FakeCallClient) -> Vec<String> {
    let shown = |request: &ClientRequest| {
        let key = if request.params["mode"] == "url" { "url" } else { "message" };
        request.params[key].as_str().unwrap_or_default().to_owned()
    };
    client.asked().iter().map(shown).collect()
}

const PAGE: &str = "https://login.example/?for=1";
const DONE: &str = "Accept this once you are done at login.example: the call of page is then made again.";

#[tokio::test]
async fn calls_needing_pages_repeat_once_done() {
    let both = || json!({"form": {}, "url": {}});
    let at_once = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
    let who = |offers, opens, says| page_client(offers, opens, says, &at_once);
    let ann = |offers| who(offers, true, true);
    // Who is asked what; the result, or what the operator reads; calls made; whether the refusal is passed on.
    for (who, arguments, asked, expect, calls, is_passed_on) in [
        (ann(both()), json!({}), &[PAGE, DONE][..], Ok("welcome"), 2, false),
        (who(both(), true, false), json!({"tells": true}), &[PAGE, DONE], Ok("welcome"), 2, false),
        (ann(json!({"url": {}})), json!({"tells": true}), &[PAGE], Ok("welcome"), 2, false),
        (who(both(), false, true), json!({}), &[PAGE], Err("login.example"), 1, false),
        (ann(both()), json!({"refusals": 9}), &[PAGE, DONE], Err(PAGE), 2, false),
        // Nobody is there to see it, or follows it by themselves.
        (ann(json!({"form": {}})), json!({}), &[], Err(PAGE), 1, true),
        (ann(both()).with(|ann| ann.ask_style = AskStyle::Requests), json!({}), &[], Err(PAGE), 1, true),
        // Asked by requests, and Toolwright shows pages for her client.
        (
            ann(both()).with(|ann| (ann.ask_style, ann.follows_pages) = (AskStyle::Requests, Some(false))),
            json!({}),
            &[PAGE, DONE],
            Ok("welcome"),
            2,
            false,
        ),
    ] {
        let script = scripted("asker::serve_when_asked", "MCP_ASKER", "legacy");
        let fixture = script.fixture(|_| {});
        let notices: Arc<Mutex<Vec<SourceNotice>>> = Arc::default();
        let sink = Arc::clone(&notices);
        fixture.provider.on_notice(Arc::new(move |notice| sink.lock().expect("notices").push(notice)));
        let who = Arc::new(who);
        let context = ToolContext { client: Arc::clone(&who) as _, ..fixture.context("s") };
        let made =
            tokio::time::timeout(Duration::from_secs(20), run(&*fixture.provider, "page", arguments.clone(), &context));
        let made = made.await.expect("nobody waits for what does not come");
        let seen = shown(&who);
        assert!(seen.iter().zip(asked).all(|(seen, asked)| seen == asked), "{arguments}: {seen:?}");
        // What is done at once may be known before there is anything to ask.
        let may_be_known = arguments["tells"] == true;
        assert!(seen.len() == asked.len() || (may_be_known && seen.len() == 1), "{arguments}: {seen:?}");
        let sent: Vec<Value> = script.read().into_iter().filter(|message| message["method"] == "tools/call").collect();
        assert_eq!(sent.len(), calls, "{arguments}");
        if let [first, second] = &sent[..] {
            assert_ne!(first["id"], second["id"]);
            assert_eq!(first["params"]["arguments"], second["params"]["arguments"]);
        }
        match (made, expect) {
            (Ok(output), Ok(text)) => assert_eq!(output.content[0].as_text(), Some(text)),
            (Err(error), Err(says)) => {
                assert!(error.message().contains(says), "{}", error.message());
                assert!(!error.for_model().contains(PAGE), "{}", error.for_model());
                assert_eq!(error.protocol().is_some_and(|own| own.code == -32042), is_passed_on, "{arguments}");
                assert_eq!(error.kind() == ErrorKind::Denied, seen.len() == 1, "{arguments}");
            }
            (made, _) => panic!("{arguments}: {made:?}"),
        }
        if arguments["tells"] == true {
            let reported = SourceNotice::ElicitationComplete { id: "e1".into() };
            assert_eq!(*notices.lock().expect("notices"), [reported], "clients of sessions may wait for it too");
        }
    }
}

#[tokio::test]
async fn done_pages_do_not_serve_later_calls() {
    let script = scripted("asker::serve_when_asked", "MCP_ASKER", "legacy");
    let fixture = script.fixture(|_| {});
    let both = json!({"form": {}, "url": {}});
    let at_once = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
    let ann = Arc::new(page_client(both, true, true, &at_once));
    let context = ToolContext { client: Arc::clone(&ann) as _, ..fixture.context("s") };
    // The server says that `e1` is done, and asks for it again with the third request.
    for (arguments, asked) in [(json!({"tells": true}), None), (json!({"refusals": 3}), Some(&[PAGE, DONE]))] {
        ann.asked().clear();
        let made =
            tokio::time::timeout(Duration::from_secs(20), run(&*fixture.provider, "page", arguments, &context)).await;
        assert_eq!(made.expect("in time").expect("made").content[0].as_text(), Some("welcome"));
        if let Some(asked) = asked {
            assert_eq!(shown(&ann), *asked, "she was not done yet");
        }
    }
}

#[tokio::test]
async fn one_done_page_releases_both_calls() {
    let refused = |script: &super::stdio::Script| {
        script.read().iter().filter(|message| message["method"] == "tools/call").count()
    };
    // With whose refusal the server says that the page is done, and whether each of the two says so herself.
    for (announces, says) in [([false, true], [false, false]), ([true, false], [false, true])] {
        let script = scripted("asker::serve_when_asked", "MCP_ASKER", "legacy");
        let fixture = script.fixture(|_| {});
        let notices: Arc<Mutex<Vec<SourceNotice>>> = Arc::default();
        let sink = Arc::clone(&notices);
        fixture.provider.on_notice(Arc::new(move |notice| sink.lock().expect("notices").push(notice)));
        let waiting = |says: bool| {
            let may_open = Arc::new(Semaphore::new(0));
            (Arc::new(page_client(json!({"form": {}, "url": {}}), true, says, &may_open)), may_open)
        };
        let ((ann, ann_may_open), (bea, bea_may_open)) = (waiting(says[0]), waiting(says[1]));
        let call = async |who: &Arc<FakeCallClient>, announces: bool| {
            let context = ToolContext { client: Arc::clone(who) as _, ..fixture.context("s") };
            let arguments = json!({"refusals": 2, "tells": announces});
            let made = run(&*fixture.provider, "page", arguments, &context);
            let made = tokio::time::timeout(Duration::from_secs(10), made).await.expect("the page is done");
            assert_eq!(made.expect("made").content[0].as_text(), Some("welcome"), "{announces}");
        };
        let first = async {
            call(&ann, announces[0]).await;
            bea_may_open.add_permits(1);
        };
        let second = async {
            super::eventually("the first is refused", || refused(&script) == 1).await;
            call(&bea, announces[1]).await;
        };
        let both_refused = async {
            let reported = || !notices.lock().expect("notices").is_empty() && refused(&script) == 2;
            super::eventually("both are refused, and the page is done", reported).await;
            // What the server has read it answers at once.
            tokio::time::sleep(Duration::from_millis(200)).await;
            ann_may_open.add_permits(1);
        };
        tokio::join!(first, second, both_refused);
    }
}
