use serde_json::json;
use toolwright_core::approval::ApprovalRequest;
use toolwright_core::catalogue::CallScope;
use toolwright_core::definition::Effects;
use toolwright_core::session::{CallId, SessionId};

use super::super::database::create_or_check;
use super::*;

fn question(id: &str, run: &str, to: &str) -> Question {
    let created_ms = now_ms().cast_unsigned();
    InboxItem {
        id: id.into(),
        request: ApprovalRequest {
            call_id: CallId::new("call_0"),
            run: Some(run.into()),
            session: SessionId::new("s"),
            principal: "owner".into(),
            tool: ToolId::parse("mail:send@1.0.0").expect("id"),
            definition: ContentHash::of_bytes(b"d"),
            arguments: json!({"to": to}),
            binds_to: None,
            effects: Effects::WRITE,
            scope: CallScope::Anywhere,
            reason: "profile ask".into(),
            tainted: Vec::new(),
            named: Vec::new(),
            asker: None,
            agents: Vec::new(),
        },
        created_ms,
        expires_ms: created_ms + 60_000,
        state: QuestionState::Pending,
        decision: None,
        decided_by: None,
    }
}

#[tokio::test]
async fn a_repeated_question_replaces_the_earlier_one() {
    for (answered, is_over, run, to, is_given, left) in [
        (false, false, "r", "me", false, vec!["new"]),
        (true, false, "r", "me", true, vec![]),
        (true, true, "r", "me", true, vec![]),
        (true, false, "r", "you", false, vec!["new"]),
        (false, false, "other", "me", false, vec!["new", "old"]),
    ] {
        let case = format!("{answered} {is_over} {run} {to}");
        let dir = tempfile::tempdir().expect("dir");
        let store = SqliteStore::open(dir.path()).expect("store");
        assert_eq!(store.put_question(&question("old", "r", "me")).await.expect("kept"), None);
        if answered {
            store.answer("old", &ApprovalDecision::Approve, "ann").await.expect("answered");
        }
        let db = Connection::open(store.path()).expect("open");
        let owner = "INSERT INTO job_owners (id, pid, boot, started, lease_ms) VALUES (7, 1, 'earlier', 1, ?1)";
        db.execute(owner, [now_ms() + if is_over { -1 } else { 60_000 }]).expect("a process that was killed");
        db.execute("UPDATE inbox SET asker = 7", []).expect("it asked");
        store.questions(None, 9).await.expect("listed");
        let given = store.put_question(&question("new", run, to)).await.expect("asked anew");
        assert_eq!(given, is_given.then_some(ApprovalDecision::Approve), "{case}");
        let pending = store.questions(Some(QuestionState::Pending), 9).await.expect("questions");
        assert_eq!(pending.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), left, "{case}");
        if is_given {
            let old = store.question("old").await.expect("read").expect("kept");
            assert_eq!(old.settled_by(), Some("ann"), "{case}");
            let again = store.put_question(&question("third", run, to)).await.expect("asked");
            assert_eq!(again, None, "an answer is given once: {case}");
        }
    }
}

#[test]
fn questions_of_a_dead_process_are_withdrawn() {
    let dir = tempfile::tempdir().expect("dir");
    let mut db = Connection::open(dir.path().join("x.sqlite3")).expect("open");
    create_or_check(&mut db).expect("schema");
    let owner = "INSERT INTO job_owners (id, pid, boot, started, lease_ms) VALUES (?1, 1, 'earlier', 1, ?2)";
    db.execute(owner, [7, now_ms() - 1]).expect("one that is gone");
    let job = "INSERT INTO jobs (id, tool, arguments, state, session, principal, call, created_ms, resumable) \
               VALUES ('job_1', 'x:t@1.0.0', '{}', 'pending', 's', 'owner', 'c1', 1, 1)";
    db.execute(job, []).expect("a job");
    let this = owner::number(&db).expect("this process");
    let call = |id: &str| format!(r#"{{"call_id":"{id}","tool":"x:t@1.0.0"}}"#);
    let form = r#"{"message":"m","wants":{"page":"https://h/?token=hunter2"}}"#.to_owned();
    let filled = r#"{"action":"accept","content":{"name":"hunter2"}}"#;
    // No process has the number 99.
    for (id, kind, request, state, decision, asker, expect) in [
        ("ask_1", CALL, call("c1"), "pending", None, Some(7), "pending"),
        ("ask_2", CALL, call("c2"), "pending", None, Some(7), "withdrawn"),
        ("ask_3", CALL, call("c3"), "pending", None, Some(this), "pending"),
        ("form_1", FORM, form.clone(), "pending", None, Some(7), "withdrawn"),
        ("form_2", FORM, form.clone(), "approved", Some(filled), Some(99), "withdrawn"),
        ("form_3", FORM, form.clone(), "denied", Some(r#"{"action":"decline"}"#), Some(99), "withdrawn"),
        ("form_4", FORM, r#"{"message":"m","wants":{"page":""}}"#.into(), "approved", Some(EMPTY), None, "approved"),
    ] {
        db.execute(
            "INSERT INTO inbox (id, session, principal, request, created_ms, expires_ms, state, decision, kind, asker) \
             VALUES (?1, 's', 'owner', ?2, 1, ?3, ?4, ?5, ?6, ?7)",
            params![id, request, i64::MAX, state, decision, kind, asker],
        )
        .expect("kept");
        withdraw_orphaned(&db).expect("looked over");
        let row = one(&db, kind, id).expect("read").expect("kept");
        assert_eq!(row.state, expect, "{id}");
        let left = format!("{} {}", row.request, row.decision.unwrap_or_default());
        assert!(!left.contains("hunter2"), "{left}");
    }
}

#[test]
fn untaken_form_answers_are_erased() {
    let dir = tempfile::tempdir().expect("dir");
    let mut db = Connection::open(dir.path().join("x.sqlite3")).expect("open");
    create_or_check(&mut db).expect("schema");
    let request = r#"{"message":"m","wants":{"form":{"title":"hunter2"}}}"#;
    let page = r#"{"message":"m","wants":{"page":"https://h/?token=hunter2"}}"#;
    let filled = r#"{"action":"accept","content":{"name":"hunter2"}}"#;
    for (id, state, request, decision) in [
        ("form_1", "approved", request, Some(filled)),
        ("form_2", "pending", request, None),
        ("form_3", "pending", page, None),
    ] {
        db.execute(
            "INSERT INTO inbox (id, session, principal, request, created_ms, expires_ms, state, decision, kind) \
             VALUES (?1, 's', 'owner', ?2, 0, 1000, ?3, ?4, 'form')",
            params![id, request, state, decision],
        )
        .expect("kept");
    }
    let left = |db: &Connection| -> i64 {
        let sql = "SELECT count(*) FROM inbox WHERE request LIKE '%hunter2%' OR decision LIKE '%hunter2%'";
        db.query_row(sql, [], |row| row.get(0)).expect("count")
    };
    clear_expired(&db, 1000).expect("cleared");
    assert_eq!(left(&db), 3, "an answer may be on its way");
    clear_expired(&db, 1000 + SLACK_MS).expect("cleared");
    assert_eq!(left(&db), 0);
    let row = one(&db, FORM, "form_1").expect("read").expect("kept");
    assert_eq!((&*row.state, row.decision.as_deref()), ("approved", Some(EMPTY)));
    let row = one(&db, FORM, "form_2").expect("read").expect("kept");
    assert_eq!((&*row.state, row.request.as_str()), ("expired", r#"{"message":"m","wants":{"form":null}}"#));
}
