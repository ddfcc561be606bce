//! Whose a question or a log message is where the server does not say: nothing of one client reaches another.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::{Provider as _, SourceNotice};
use toolwright_core::context::ToolContext;
use toolwright_core::session::{Principal, Session};

use super::asking::{asker, of_ann, of_one};
use super::stdio::Script;
use super::{Fixture, eventually, run};

#[tokio::test]
async fn ambiguous_questions_are_refused_on_shared_connections() {
    for (shared, expect) in [(true, "shared: false"), (false, "Ann")] {
        let script = asker("legacy");
        let fixture = script.fixture(|options| options.config.shared = shared);
        let (_, first) = of_ann(&fixture, "one");
        let (ann, second) = of_ann(&fixture, "two");
        let hanging = run(&*fixture.provider, "hang", json!({}), &first);
        let asking = async {
            eventually("a call hangs", || script.methods().contains(&"tools/call".to_owned())).await;
            let output = run(&*fixture.provider, "ask", json!({}), &second).await.expect("an answer");
            fixture.cancel.cancel(CancelCause::User);
            output.content[0].as_text().expect("text").to_owned()
        };
        let (hung, said) = tokio::join!(hanging, asking);
        assert!(hung.is_err() && said.contains(expect), "{shared}: {said}");
        assert_eq!(ann.asked().len(), usize::from(!shared));
        fixture.provider.shut_down().await;
        let starts = script.methods().iter().filter(|method| *method == "initialize").count();
        assert_eq!(starts, if shared { 1 } else { 2 });
    }
}

#[tokio::test]
async fn ambiguous_messages_reach_no_client() {
    for (sessions, names) in [(["one", "two"], [None, None]), (["one", "one"], [Some("a"), Some("b")])] {
        let script = asker("legacy");
        let fixture = script.fixture(|_| {});
        let notices: Arc<Mutex<Vec<SourceNotice>>> = Arc::default();
        let sink = Arc::clone(&notices);
        fixture.provider.on_notice(Arc::new(move |notice| sink.lock().expect("notices").push(notice)));
        let named = |at: usize| of_one(&fixture, sessions[at], names[at]);
        let ((other_client, first), (ann, second)) = (named(0), named(1));
        let hanging = run(&*fixture.provider, "hang", json!({}), &first);
        let calling = async {
            eventually("a call hangs", || script.methods().contains(&"tools/call".to_owned())).await;
            run(&*fixture.provider, "tell", json!({}), &second).await.expect("told");
            let output = run(&*fixture.provider, "ask", json!({}), &second).await.expect("an answer");
            fixture.cancel.cancel(CancelCause::User);
            output.content[0].as_text().expect("text").to_owned()
        };
        let (_, said) = tokio::join!(hanging, calling);
        assert!(said.contains("several"), "{said}");
        for client in [other_client, ann] {
            assert!(client.logged().is_empty());
            assert!(client.asked().is_empty());
        }
        assert_eq!(*notices.lock().expect("notices"), []);
    }
}

/// As the requests of one program are that stand alone: each has another one to put the question to.
#[tokio::test]
async fn concurrent_questions_reach_their_own_calls() {
    let script = asker("legacy");
    let fixture = script.fixture(|_| {});
    let named = || of_one(&fixture, "s", Some("one"));
    let all = [named(), named(), named()];
    let calls = all.iter().map(|(_, context)| run(&*fixture.provider, "ask", json!({"apart": true}), context));
    for output in futures_util::future::join_all(calls).await {
        let output = output.expect("an answer");
        assert!(output.content[0].as_text().is_some_and(|text| text.contains("Ann")), "{output:?}");
    }
    let asked: Vec<usize> = all.iter().map(|(ann, _)| ann.asked().len()).collect();
    // A question whose call ends before it is answered goes on to another call, which is then asked twice.
    assert!(asked.iter().all(|count| *count >= 1), "{asked:?}");
}

/// Which of them has asked nobody tells: it is put to the newest, and goes on to the other when that has ended.
#[tokio::test]
async fn questions_outlive_a_wrongly_chosen_call() {
    let script = asker("legacy");
    let fixture = script.fixture(|_| {});
    let named = || of_one(&fixture, "s", Some("one"));
    let ((asked, first), (_, second)) = (named(), named());
    let sending = async {
        eventually("a call is there", || script.methods().contains(&"tools/call".to_owned())).await;
        run(&*fixture.provider, "tell", json!({}), &second).await
    };
    let (output, reported) = tokio::join!(run(&*fixture.provider, "ask", json!({"late": true}), &first), sending);
    let output = output.expect("an answer");
    assert!(reported.is_ok() && output.content[0].as_text().is_some_and(|text| text.contains("Ann")), "{output:?}");
    assert_eq!(asked.asked().len(), 1);
}

/// Has the server ask in the middle of a call that hangs, for a call before it. What it is answered.
async fn question_for_earlier_call(fixture: &Fixture, script: &Script, hanging: &ToolContext) -> Value {
    let answer = || {
        let is_it = |sent: &Value| sent["id"].as_str().is_some_and(|id| id.starts_with("apart-"));
        script.read().into_iter().find(is_it)
    };
    let (hung, answered) = tokio::join!(run(&*fixture.provider, "hang", json!({}), hanging), async {
        eventually("its question is answered", || answer().is_some()).await;
        hanging.cancel.cancel(CancelCause::User);
        answer()
    });
    assert!(hung.is_err());
    answered.expect("an answer")
}

#[tokio::test]
async fn questions_of_abandoned_calls_reach_nobody_else() {
    for (session, is_asked) in [("two", false), ("one", true)] {
        let script = asker("legacy");
        let fixture = script.fixture(|_| {});
        let ((gone, mut first), (there, mut second)) = (of_ann(&fixture, "one"), of_ann(&fixture, session));
        (first.cancel, second.cancel) = (Cancel::new(), Cancel::new());
        let giving_up = async {
            eventually("a call is there", || script.methods().contains(&"tools/call".to_owned())).await;
            first.cancel.cancel(CancelCause::User);
        };
        let (abandoned, ()) = tokio::join!(run(&*fixture.provider, "ask", json!({"late": true}), &first), giving_up);
        assert!(abandoned.is_err());
        // The server does not heed that it was cancelled.
        let answer = question_for_earlier_call(&fixture, &script, &second).await;
        let is_refused = answer["error"]["message"].as_str().is_some_and(|text| text.contains("several"));
        assert_eq!(is_refused, !is_asked, "{session}: {answer}");
        assert_eq!(there.asked().len(), usize::from(is_asked), "{session}");
        assert!(gone.asked().is_empty());
    }
}

#[tokio::test]
async fn questions_of_ended_calls_reach_nobody_else() {
    for (principal, is_asked) in [("bo", false), ("al", true)] {
        let script = asker("legacy");
        let fixture = script.fixture(|_| {});
        let of = |session: &str, principal: &str| {
            let (ann, context) = of_ann(&fixture, session);
            let principal = Principal { id: principal.to_owned(), owner: false, roles: Vec::new() };
            let session = Arc::new(Session { principal, ..(*context.session).clone() });
            (ann, ToolContext { session, cancel: Cancel::new(), ..context })
        };
        let ((_, first), (there, second)) = (of("one", "al"), of("two", principal));
        run(&*fixture.provider, "ask", json!({"after": true}), &first).await.expect("answered");
        let answer = question_for_earlier_call(&fixture, &script, &second).await;
        let is_refused = answer["error"]["message"].as_str().is_some_and(|text| text.contains("several"));
        assert_eq!(is_refused, !is_asked, "{principal}: {answer}");
        assert_eq!(there.asked().len(), usize::from(is_asked), "{principal}");
    }
}
