//! Questions in the inbox: asked by one store, answered by another on the same file, as another process would.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolwright_core::approval::AnswerSource;
use toolwright_core::call::ValidCall;
use toolwright_core::context::Clock as _;
use toolwright_core::inbox::{
    AnswerStatus, FormQuestion, FormReply, FormRequest, InboxStore, Question, QuestionState, RequestedAction,
};
use toolwright_core::job::{JobFilter, JobScope, JobState, Jobs as _};
use toolwright_core::policy::{Selector, UserRequest};
use toolwright_core::session::SessionId;
use toolwright_core::store::{ApprovalStore as _, StoreError};
use toolwright_core::{ApprovalDecision, Outcome, Policy, Profile};
use toolwright_runtime::executor::{GuardBinding, GuardVerdict};
use toolwright_runtime::{FormInbox, FormInboxOptions, Inbox, InboxOptions, JobManager, SqliteStore, SystemClock};
use toolwright_testkit::FakeRedactor;

use crate::fixture::{Fixture, call, fixture};

/// No answer in a test takes longer.
const SOON: Duration = Duration::from_secs(10);

/// A fixture whose policy asks, and asks there; and the store of somebody else.
async fn asking(expiry: Duration) -> (Fixture, Arc<SqliteStore>) {
    let mut fixture =
        fixture(|options| Arc::make_mut(&mut options.services).redactor = Arc::new(FakeRedactor("hunter2"))).await;
    let parts = InboxOptions::new(Arc::clone(&fixture.store) as _, Arc::new(SystemClock));
    fixture.run.policy = Arc::new(Policy::of(Profile::Ask));
    fixture.run.approver = Arc::new(Inbox::new(InboxOptions { expiry, ..parts }));
    let other = SqliteStore::open(fixture.store.path().parent().expect("a folder")).expect("store");
    (fixture, other)
}

async fn asked(store: &SqliteStore, count: usize) -> Vec<Question> {
    let looking = async {
        loop {
            let questions = store.questions(Some(QuestionState::Pending), 10).await.expect("questions");
            if questions.len() == count {
                return questions;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, looking).await.expect("asked in time")
}

async fn answer(store: &SqliteStore, decision: ApprovalDecision) -> Question {
    let question = asked(store, 1).await.remove(0);
    assert_eq!(store.answer(&question.id, &decision, "ann").await.expect("answer"), AnswerStatus::Accepted);
    question
}

fn error(outcome: &Outcome) -> String {
    outcome.error.as_ref().expect("failed").to_string()
}

#[tokio::test]
async fn an_answer_of_another_process_reaches_the_call() {
    let deny = ApprovalDecision::Deny { reason: "not on a Friday".into() };
    for (decision, ok, state) in
        [(ApprovalDecision::Approve, true, QuestionState::Approved), (deny, false, QuestionState::Denied)]
    {
        let (fixture, other) = asking(SOON).await;
        assert_eq!(fixture.run.approver.answers(), AnswerSource::Elsewhere);
        let asking = fixture.one("write", json!({"n": 1}));
        let answering = answer(&other, decision.clone());
        let both = async { tokio::join!(asking, answering) };
        let (outcome, question) = tokio::time::timeout(SOON, both).await.expect("in time");
        assert_eq!(outcome.ok, ok, "{decision:?}");
        assert_eq!(fixture.counts.ran.load(Ordering::SeqCst), usize::from(ok));
        if !ok {
            assert!(error(&outcome).contains("not on a Friday"), "{}", error(&outcome));
        }
        let kept = other.question(&question.id).await.expect("read").expect("kept");
        assert_eq!((kept.state, kept.decision, kept.decided_by.as_deref()), (state, Some(decision), Some("ann")));
        assert_eq!(question.request.arguments, json!({"n": 1}));
        assert_eq!(question.expires_ms - question.created_ms, u64::try_from(SOON.as_millis()).expect("small"));
    }
}

#[tokio::test]
async fn the_first_of_two_answers_counts() {
    let (fixture, other) = asking(SOON).await;
    let third = SqliteStore::open(fixture.store.path().parent().expect("a folder")).expect("store");
    let deciding = async {
        let id = asked(&other, 1).await.remove(0).id;
        let deny = ApprovalDecision::Deny { reason: "no".into() };
        tokio::join!(other.answer(&id, &ApprovalDecision::Approve, "ann"), third.answer(&id, &deny, "bob"))
    };
    let (outcome, (yes, no)) = tokio::join!(fixture.one("write", json!({})), deciding);
    let (yes, no) = (yes.expect("answer"), no.expect("answer"));
    let counted = [&yes, &no].iter().filter(|answered| ***answered == AnswerStatus::Accepted).count();
    assert_eq!(counted, 1, "{yes:?} {no:?}");
    assert_eq!(outcome.ok, yes == AnswerStatus::Accepted, "the call goes by the answer that counts");
    let second = if yes == AnswerStatus::Accepted { no } else { yes };
    let AnswerStatus::AlreadySettled(question) = second else { panic!("{second:?}") };
    assert!(question.decided_by.is_some());
    assert_eq!(other.answer("ask_0", &ApprovalDecision::Approve, "ann").await.expect("answer"), AnswerStatus::Unknown);
}

#[tokio::test]
async fn an_unanswered_question_expires_and_denies() {
    let (fixture, other) = asking(Duration::from_millis(50)).await;
    let outcome = tokio::time::timeout(SOON, fixture.one("write", json!({}))).await.expect("in time");
    assert!(outcome.text().contains("denied: expired"), "{}", outcome.text());
    let question = other.questions(None, 10).await.expect("questions").remove(0);
    assert_eq!(question.state, QuestionState::Expired);
    let second = other.answer(&question.id, &ApprovalDecision::Approve, "ann").await.expect("answer");
    assert!(matches!(second, AnswerStatus::AlreadySettled(_)), "{second:?}");
    assert_eq!(fixture.counts.ran.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_question_is_withdrawn_with_its_call() {
    let (fixture, other) = asking(SOON).await;
    let calls = vec![call("a", "write", json!({})), call("b", "echo", json!({})), call("c", "write", json!({"n": 1}))];
    let both = tokio::time::timeout(SOON, async {
        let waiting = fixture.all(calls);
        let looking = async {
            let questions = asked(&other, 2).await;
            while fixture.counts.ran.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            questions
        };
        tokio::select! {
            _ = waiting => panic!("nobody has answered"),
            questions = looking => questions,
        }
    });
    let questions = both.await.expect("the sibling ran while both waited");
    let gone = async {
        while !other.questions(Some(QuestionState::Pending), 10).await.expect("questions").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.expect("withdrawn in time");
    for question in questions {
        let kept = other.question(&question.id).await.expect("read").expect("kept");
        assert_eq!(kept.state, QuestionState::Withdrawn);
    }
}

#[tokio::test]
async fn an_answer_is_for_one_call() {
    let (fixture, other) = asking(SOON).await;
    let arguments = |n: i64| json!({"n": n, "key": "hunter2"});
    let (first, question) = tokio::join!(fixture.one("shell", arguments(1)), answer(&other, ApprovalDecision::Approve));
    assert!(first.ok);
    assert_eq!(question.request.arguments, json!({"n": 1, "key": "[secret]"}), "secrets are not shown");
    assert_eq!(question.request.binds_to, None, "nor what they could be guessed from");
    let (again, _) = tokio::join!(fixture.one("shell", arguments(1)), answer(&other, ApprovalDecision::Always));
    assert!(again.ok, "the same call is asked about again");
    let standing = other.list_standing(10).await.expect("standing");
    assert_eq!((standing.len(), standing[0].tool.name(), standing[0].scope.as_str()), (1, "shell", "test"));
    assert!(fixture.one("shell", arguments(1)).await.ok, "nobody is asked");
    let (other_arguments, _) = tokio::join!(
        fixture.one("shell", arguments(2)),
        answer(&other, ApprovalDecision::Deny { reason: "no".into() }),
    );
    assert!(!other_arguments.ok, "a shell's other arguments inherit nothing");
    assert!(other.revoke(&standing[0].id).await.expect("revoke"));
    let (revoked, _) = tokio::join!(
        fixture.one("shell", arguments(1)),
        answer(&other, ApprovalDecision::Deny { reason: "no".into() }),
    );
    assert!(!revoked.ok, "it is asked about again");
}

#[tokio::test]
async fn conditions_see_call_and_users_words() {
    let mut fixture = fixture(|_| ()).await;
    let rules =
        json!([{"effect": "allow", "tool": "t:write", "when": "request.mentions(args.n) && !workspace.inside"}]);
    fixture.run.policy = Arc::new(serde_json::from_value(json!({"rules": rules})).expect("a policy"));
    for (request, n, ok) in [(None, 9, false), (Some("write 9"), 9, true), (Some("write 8"), 9, false)] {
        fixture.run.request = request.map(|text| Arc::new(UserRequest::new([text])));
        assert_eq!(fixture.one("write", json!({"n": n})).await.ok, ok, "{request:?}");
    }
}

#[tokio::test]
async fn a_guard_is_bound_by_its_selector() {
    let selector = json!({"tool": "t:*", "effects": {"read_only": false}, "when": "args.n > 5"});
    let fixture = fixture(|options| {
        let no = |_: &ValidCall| GuardVerdict::Deny("guarded".into());
        let selector: Selector = serde_json::from_value(selector).expect("a selector");
        options.guards.push(GuardBinding::new("big", Arc::new(no)).on(selector));
    })
    .await;
    // Where it cannot be told whether a call is meant, it is.
    for (name, arguments, ok) in [
        ("write", json!({"n": 9}), false),
        ("write", json!({"n": 1}), true),
        ("write", json!({}), false),
        ("echo", json!({"n": 9}), true),
    ] {
        assert_eq!(fixture.one(name, arguments.clone()).await.ok, ok, "{name} {arguments}");
    }
}

#[tokio::test]
async fn with_jobs_no_call_awaits_its_answer() {
    for (decision, state) in
        [(ApprovalDecision::Approve, JobState::Done), (ApprovalDecision::Deny { reason: "no".into() }, JobState::Error)]
    {
        let jobs = Arc::new(OnceLock::new());
        let made = Arc::clone(&jobs);
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("store");
        let (kept, path) = (Arc::clone(&store), dir.path().to_owned());
        let mut fixture = fixture(move |options| {
            let manager = JobManager::new(kept, &path);
            options.jobs = Some(Arc::clone(&manager));
            let _ = made.set(manager);
        })
        .await;
        fixture.run.policy = Arc::new(Policy::of(Profile::Ask));
        let parts = InboxOptions::new(Arc::clone(&store) as _, Arc::new(SystemClock));
        fixture.run.approver = Arc::new(Inbox::new(parts));
        let outcome = tokio::time::timeout(SOON, fixture.one("write", json!({"n": 1}))).await.expect("at once");
        assert!(outcome.ok && outcome.text().contains("needs a person's approval"), "{}", outcome.text());
        answer(&store, decision).await;
        let jobs = jobs.get().expect("jobs");
        let id = jobs.list(JobScope::All, JobFilter::All, 1).await.expect("jobs").remove(0).id;
        assert_eq!(jobs.wait(JobScope::All, &id, SOON).await.expect("the job").state, state);
        assert_eq!(fixture.counts.ran.load(Ordering::SeqCst), usize::from(state == JobState::Done));
    }
}

fn wanted(name: &str) -> FormRequest {
    FormRequest {
        session: SessionId::new("s"),
        principal: "owner".into(),
        source: "fx:ask".into(),
        message: format!("Who is {name}?"),
        wants: RequestedAction::Form(json!({"type": "object", "properties": {"name": {"type": "string"}}})),
    }
}

/// Two stores on one file, as two processes have them.
fn two_stores() -> (tempfile::TempDir, [Arc<SqliteStore>; 2]) {
    let dir = tempfile::tempdir().expect("dir");
    let open = || SqliteStore::open(dir.path()).expect("store");
    let stores = [open(), open()];
    (dir, stores)
}

async fn asked_forms(store: &SqliteStore, count: usize) -> Vec<FormQuestion> {
    let looking = async {
        loop {
            let forms = store.forms(Some(QuestionState::Pending), 10).await.expect("forms");
            if forms.len() == count {
                return forms;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, looking).await.expect("asked in time")
}

#[tokio::test]
async fn a_form_answer_of_another_process_is_erased() {
    let content = json!({"name": "Ann"}).as_object().cloned().expect("object");
    let accept = FormReply::Accept { content };
    for (reply, state, left) in [
        (accept, QuestionState::Approved, FormReply::Accept { content: serde_json::Map::new() }),
        (FormReply::Decline, QuestionState::Denied, FormReply::Decline),
    ] {
        let (_dir, [ours, other]) = two_stores();
        let inbox = FormInbox::new(FormInboxOptions::new(Arc::clone(&ours) as _, Arc::new(SystemClock)));
        let answering = async {
            let form = asked_forms(&other, 1).await.remove(0);
            assert_eq!(form.request, wanted("it"));
            assert!(other.questions(None, 10).await.expect("questions").is_empty(), "it is no call");
            let as_call = other.answer(&form.id, &ApprovalDecision::Approve, "ann").await.expect("answer");
            assert_eq!(as_call, AnswerStatus::Unknown, "nor let through like one");
            assert_eq!(other.answer_form(&form.id, &reply, "ann").await.expect("answer"), AnswerStatus::Accepted);
            form.id
        };
        let both = async { tokio::join!(inbox.ask(wanted("it")), answering) };
        let (answer, id) = tokio::time::timeout(SOON, both).await.expect("in time");
        assert_eq!(answer.expect("asked"), Some(reply.clone()));
        let kept = other.form(&id).await.expect("read").expect("kept");
        assert_eq!((kept.state, kept.decision.clone(), kept.decided_by.as_deref()), (state, Some(left), Some("ann")));
        assert!(!kept.to_json().to_string().contains("Ann"), "{}", kept.to_json());
        let second = other.answer_form(&id, &FormReply::Decline, "bob").await.expect("answer");
        assert!(matches!(second, AnswerStatus::AlreadySettled(_)), "{second:?}");
    }
}

#[tokio::test]
async fn a_form_expires_or_ends_with_its_call() {
    let (_dir, [ours, other]) = two_stores();
    let parts = FormInboxOptions::new(Arc::clone(&ours) as _, Arc::new(SystemClock));
    let short = FormInbox::new(FormInboxOptions { expiry: Duration::from_millis(50), ..parts.clone() });
    let answer = tokio::time::timeout(SOON, short.ask(wanted("early"))).await.expect("in time");
    assert_eq!(answer.expect("asked"), None);
    assert_eq!(other.forms(None, 10).await.expect("forms")[0].state, QuestionState::Expired);
    let inbox = FormInbox::new(parts);
    let asking = tokio::spawn(async move { inbox.ask(wanted("it")).await });
    let id = asked_forms(&other, 1).await.remove(0).id;
    asking.abort();
    let gone = async {
        while other.form(&id).await.expect("read").expect("kept").state != QuestionState::Withdrawn {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.expect("withdrawn in time");
}

/// A store that keeps what it is given, and does not come to say so.
struct Silent(Arc<SqliteStore>);

#[async_trait]
impl InboxStore for Silent {
    async fn put_question(&self, question: &Question) -> Result<Option<ApprovalDecision>, StoreError> {
        self.0.put_question(question).await?;
        std::future::pending().await
    }

    async fn put_form(&self, form: &FormQuestion) -> Result<(), StoreError> {
        self.0.put_form(form).await?;
        std::future::pending().await
    }

    async fn close_question(&self, id: &str, state: QuestionState) -> Result<(), StoreError> {
        self.0.close_question(id, state).await
    }
}

#[tokio::test]
async fn a_question_of_a_gone_caller_is_withdrawn() {
    let (_dir, [ours, other]) = two_stores();
    let silent: Arc<dyn InboxStore> = Arc::new(Silent(ours));
    let inbox = FormInbox::new(FormInboxOptions::new(Arc::clone(&silent), Arc::new(SystemClock)));
    let form = tokio::spawn(async move { inbox.ask(wanted("it")).await });
    let mut fixture = fixture(|_| ()).await;
    fixture.run.policy = Arc::new(Policy::of(Profile::Ask));
    fixture.run.approver = Arc::new(Inbox::new(InboxOptions::new(silent, Arc::new(SystemClock))));
    let call = tokio::spawn(async move { fixture.one("write", json!({})).await });
    let ids = [asked_forms(&other, 1).await.remove(0).id, asked(&other, 1).await.remove(0).id];
    form.abort();
    call.abort();
    let gone = async {
        while other.form(&ids[0]).await.expect("read").expect("kept").state != QuestionState::Withdrawn
            || other.question(&ids[1]).await.expect("read").expect("kept").state != QuestionState::Withdrawn
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.expect("withdrawn in time");
}

#[tokio::test]
async fn an_untaken_form_answer_is_erased() {
    let (dir, [ours, other]) = two_stores();
    let inbox = FormInbox::new(FormInboxOptions::new(Arc::clone(&ours) as _, Arc::new(SystemClock)));
    let asking = tokio::spawn(async move { inbox.ask(wanted("it")).await });
    let id = asked_forms(&other, 1).await.remove(0).id;
    let content = json!({"name": "Ann Lee-Hunter"}).as_object().cloned().expect("object");
    let accept = FormReply::Accept { content };
    assert_eq!(other.answer_form(&id, &accept, "ann").await.expect("answer"), AnswerStatus::Accepted);
    let holding = || {
        let mut files = std::fs::read_dir(dir.path()).expect("a folder").map(|file| file.expect("a file").path());
        let holds = |path: &PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            bytes.windows(14).any(|bytes| bytes == b"Ann Lee-Hunter")
        };
        files.find(holds)
    };
    assert!(holding().is_some(), "it is written down until somebody takes it");
    // Before it looks.
    asking.abort();
    // Nobody reads the store meanwhile: that would keep its log of writes as it is.
    let gone = async {
        while holding().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.unwrap_or_else(|_| panic!("it stands in {:?}", holding()));
    let kept = other.form(&id).await.expect("read").expect("kept");
    assert_eq!((kept.state, &kept.request.wants), (QuestionState::Withdrawn, &RequestedAction::Form(json!(null))));
    assert_eq!((kept.decided_by.as_deref(), kept.settled_by()), (Some("ann"), None), "it was answered in vain");
    assert_ne!(kept.decision, Some(accept));
}

#[tokio::test]
async fn forms_in_the_inbox_are_bounded() {
    let (_dir, [ours, _other]) = two_stores();
    // What is old goes by itself.
    let created_ms = SystemClock.wall_ms();
    let question = |number: u64, session: &str| FormQuestion {
        id: format!("form_{number}"),
        request: FormRequest {
            session: SessionId::new(session),
            wants: RequestedAction::Page(format!("https://h/?{}", "x".repeat(3000))),
            message: "m".repeat(60_000),
            ..wanted("it")
        },
        created_ms,
        expires_ms: u64::MAX >> 1,
        state: QuestionState::Pending,
        decision: None,
        decided_by: None,
    };
    for number in 0..16 {
        ours.put_form(&question(number, "s")).await.expect("kept");
    }
    let refused = ours.put_form(&question(16, "s")).await.expect_err("too many");
    assert!(refused.to_string().contains("16 forms"), "{refused}");
    ours.put_form(&question(17, "another")).await.expect("kept");
    // One that asks, takes it back and asks again.
    for number in 100..400 {
        ours.close_question(&format!("form_{}", number - 100), QuestionState::Withdrawn).await.expect("closed");
        ours.close_question(&format!("form_{}", number - 1), QuestionState::Withdrawn).await.expect("closed");
        ours.put_form(&question(number, "s")).await.expect("kept");
    }
    let all = ours.forms(None, 1000).await.expect("forms");
    assert!(all.len() <= 260, "{}", all.len());
    for form in all.iter().filter(|form| form.state == QuestionState::Withdrawn) {
        assert!(
            form.request.message.len() <= 1000 && form.request.wants == RequestedAction::Page(String::new()),
            "{form:?}"
        );
    }
}
