//! Calls that are refused until their user has opened a page (-32042).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::catalogue::{Provider as _, SourceNotice};
use toolwright_core::client::{AskStyle, CallClient, ClientRequest};
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};

use super::run;
use super::stdio::scripted;

/// Somebody who opens pages, and says when they are done if they are asked.
struct PageClient {
    offers: Value,
    ask_style: AskStyle,
    /// Whether she is shown to follow pages by herself.
    follows: bool,
    opens: bool,
    /// Whether she says when she is done; else the question stands.
    says: bool,
    asked: Mutex<Vec<String>>,
}

#[async_trait]
impl CallClient for PageClient {
    fn capabilities(&self) -> Map<String, Value> {
        Map::from_iter([("elicitation".to_owned(), self.offers.clone())])
    }

    fn ask_style(&self) -> AskStyle {
        self.ask_style
    }

    fn follows_pages(&self) -> bool {
        self.follows
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        let params = &requests[0].params;
        let is_page = params["mode"] == "url";
        let shown = if is_page { &params["url"] } else { &params["message"] };
        self.asked.lock().expect("asked").push(shown.as_str().unwrap_or_default().to_owned());
        if !is_page && !self.says {
            std::future::pending::<()>().await;
        }
        Ok(vec![Ok(json!({"action": if self.opens { "accept" } else { "decline" }}))])
    }
}

const PAGE: &str = "https://login.example/?for=1";
const DONE: &str = "Accept this once you are done at login.example: the call of page is then made again.";

#[tokio::test]
async fn calls_needing_pages_repeat_once_done() {
    let both = || json!({"form": {}, "url": {}});
    let ann = |offers| PageClient {
        offers,
        ask_style: AskStyle::Either,
        follows: false,
        opens: true,
        says: true,
        asked: Mutex::default(),
    };
    // Who is asked what; the result, or what the operator reads; calls made; whether the refusal is passed on.
    for (who, arguments, asked, expect, calls, is_passed_on) in [
        (ann(both()), json!({}), &[PAGE, DONE][..], Ok("welcome"), 2, false),
        (PageClient { says: false, ..ann(both()) }, json!({"tells": true}), &[PAGE, DONE], Ok("welcome"), 2, false),
        (ann(json!({"url": {}})), json!({"tells": true}), &[PAGE], Ok("welcome"), 2, false),
        (PageClient { opens: false, ..ann(both()) }, json!({}), &[PAGE], Err("login.example"), 1, false),
        (ann(both()), json!({"refusals": 9}), &[PAGE, DONE], Err(PAGE), 2, false),
        // Nobody is there to see it, or follows it by themselves.
        (ann(json!({"form": {}})), json!({}), &[], Err(PAGE), 1, true),
        (
            PageClient { ask_style: AskStyle::Requests, follows: true, ..ann(both()) },
            json!({}),
            &[],
            Err(PAGE),
            1,
            true,
        ),
        // Asked by requests, and Toolwright shows pages for her client.
        (
            PageClient { ask_style: AskStyle::Requests, ..ann(both()) },
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
        let seen: Vec<String> = who.asked.lock().expect("asked").clone();
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
    let ann = Arc::new(PageClient {
        offers: both,
        ask_style: AskStyle::Either,
        follows: false,
        opens: true,
        says: true,
        asked: Mutex::default(),
    });
    let context = ToolContext { client: Arc::clone(&ann) as _, ..fixture.context("s") };
    // The server says that `e1` is done, and asks for it again with the third request.
    for (arguments, asked) in [(json!({"tells": true}), None), (json!({"refusals": 3}), Some(&[PAGE, DONE]))] {
        ann.asked.lock().expect("asked").clear();
        let made =
            tokio::time::timeout(Duration::from_secs(20), run(&*fixture.provider, "page", arguments, &context)).await;
        assert_eq!(made.expect("in time").expect("made").content[0].as_text(), Some("welcome"));
        if let Some(asked) = asked {
            assert_eq!(*ann.asked.lock().expect("asked"), *asked, "she was not done yet");
        }
    }
}

/// Ann, who opens no page before she is told to.
struct WaitingPageClient {
    ann: PageClient,
    may_open: tokio::sync::Notify,
}

#[async_trait]
impl CallClient for WaitingPageClient {
    fn capabilities(&self) -> Map<String, Value> {
        self.ann.capabilities()
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        if requests[0].params["mode"] == "url" {
            self.may_open.notified().await;
        }
        self.ann.ask(requests).await
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
            let ann = PageClient {
                offers: json!({"form": {}, "url": {}}),
                ask_style: AskStyle::Either,
                follows: false,
                opens: true,
                says,
                asked: Mutex::default(),
            };
            Arc::new(WaitingPageClient { ann, may_open: tokio::sync::Notify::new() })
        };
        let (ann, bea) = (waiting(says[0]), waiting(says[1]));
        let call = async |who: &Arc<WaitingPageClient>, announces: bool| {
            let context = ToolContext { client: Arc::clone(who) as _, ..fixture.context("s") };
            let arguments = json!({"refusals": 2, "tells": announces});
            let made = run(&*fixture.provider, "page", arguments, &context);
            let made = tokio::time::timeout(Duration::from_secs(10), made).await.expect("the page is done");
            assert_eq!(made.expect("made").content[0].as_text(), Some("welcome"), "{announces}");
        };
        let first = async {
            call(&ann, announces[0]).await;
            bea.may_open.notify_one();
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
            ann.may_open.notify_one();
        };
        tokio::join!(first, second, both_refused);
    }
}
