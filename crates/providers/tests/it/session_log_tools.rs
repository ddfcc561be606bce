//! `agent:todo`, `agent:ask_user` and `memory:files` over a session log in memory.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::content::joined_text;
use toolwright_core::store::{AppendedRow, LogEntry, LogRow, NewRow, SessionLog, StoreError, is_below};
use toolwright_core::taint::Taint;
use toolwright_core::{SessionId, ToolId};
use toolwright_testkit::FakeCallClient;

use crate::files::workspace::Workspace;

/// Keeps rows in memory.
#[derive(Default)]
struct MemoryLog(Mutex<Vec<LogRow>>);

#[async_trait]
impl SessionLog for MemoryLog {
    async fn append(&self, row: NewRow) -> Result<AppendedRow, StoreError> {
        let mut rows = self.0.lock().expect("lock");
        let seq = rows.len() as u64 + 1;
        rows.push(LogRow {
            seq,
            session: row.session,
            principal: row.principal,
            at_ms: 0,
            author: row.author,
            entry: row.entry,
        });
        Ok(AppendedRow { seq, missed: Vec::new() })
    }

    async fn append_values(&self, rows: Vec<NewRow>, path: &str, seq: u64) -> Result<bool, StoreError> {
        // Another call reads in between.
        tokio::task::yield_now().await;
        let session = rows.first().map(|row| row.session.clone()).expect("rows");
        let newest = self.values(&session, path).await?.last().map_or(0, |row| row.seq);
        if newest != seq {
            return Ok(false);
        }
        for row in rows {
            self.append(row).await?;
        }
        Ok(true)
    }

    async fn values(&self, session: &SessionId, path: &str) -> Result<Vec<LogRow>, StoreError> {
        let is_meant = |row: &&LogRow| match &row.entry {
            LogEntry::Value(written) => row.session == *session && is_below(&written.path, path),
            LogEntry::Message(_) => false,
        };
        Ok(self.0.lock().expect("lock").iter().filter(is_meant).cloned().collect())
    }
}

fn workspace() -> Workspace {
    let mut ws = Workspace::new();
    ws.services().log = Arc::new(MemoryLog::default());
    ws
}

/// Calls a tool again and again; what begins with `!` is a failure. Each text has the words.
async fn check(id: &str, steps: &[(Value, &str)]) {
    let ws = workspace();
    for (arguments, expect) in steps {
        let output = ws.call(id, arguments.clone()).await.expect("runs");
        let (fails, words) = expect.strip_prefix('!').map_or((false, *expect), |words| (true, words));
        let text = joined_text(&output.content);
        assert!(text.contains(words) && output.is_error == fails, "{arguments}: {text}");
    }
}

#[tokio::test]
async fn todo_lists_are_patched_by_id() {
    check(
        "agent:todo",
        &[
            (json!({}), "empty"),
            (
                json!({"items": [{"text": "write"}, {"text": "test", "status": "in_progress"}]}),
                "[ ] 1: write\n[>] 2: test",
            ),
            (json!({"items": [{"id": "1", "status": "done"}]}), "[x] 1: write\n[>] 2: test"),
            (json!({"items": [{"id": "1", "remove": true}, {"id": "9", "status": "done"}]}), "!no item `9`"),
            (json!({}), "[x] 1: write\n[>] 2: test"),
        ],
    )
    .await;
}

#[tokio::test]
async fn memory_files_answer_the_six_commands() {
    let view = |path: &str| json!({"command": "view", "path": path});
    let create = |path: &str, text: &str| json!({"command": "create", "path": path, "file_text": text});
    let replace = |old: &str, new: &str| json!({"command": "str_replace", "path": "/memories/a.md", "old_str": old, "new_str": new});
    let insert = |line: u64, text: &str| json!({"command": "insert", "path": "/memories/a.md", "insert_line": line, "insert_text": text});
    let rename = |old: &str, new: &str| json!({"command": "rename", "old_path": old, "new_path": new});
    let delete = |path: &str| json!({"command": "delete", "path": path});
    check(
        "memory:files",
        &[
            (view("/memories"), "0B\t/memories"),
            (create("/memories/a.md", "one\ntwo\n"), "created successfully at: /memories/a.md"),
            (create("/memories/a.md", "x"), "!already exists"),
            (create("/memories/a.md/b", "x"), "!inside a file"),
            (create("/memories/d/b.md", "x"), "created"),
            (create("/memories/d", "x"), "!is a folder"),
            (view("/memories"), "9B\t/memories\n8B\t/memories/a.md\n1B\t/memories/d\n1B\t/memories/d/b.md"),
            (replace("one", "1"), "     1\t1\n     2\ttwo"),
            (replace("one", "1"), "!did not appear verbatim"),
            (insert(0, "two"), "has been edited"),
            (replace("two", "2"), "!in lines: 1, 3"),
            (insert(9, "x"), "![0, 3]"),
            (json!({"command": "view", "path": "/memories/a.md", "view_range": [2, 2]}), "numbers:\n     2\t1"),
            (rename("/memories/a.md", "/memories/d/b.md"), "!already exists"),
            (rename("/memories/d", "/memories/e"), "Successfully renamed"),
            (view("/memories/e/b.md"), "     1\tx"),
            (view("/memories/d"), "!does not exist"),
            (delete("/memories/e"), "Successfully deleted"),
            (delete("/memories/e"), "!does not exist"),
            (delete("/memories"), "!cannot be deleted"),
            (create("/memories/../etc/passwd", "x"), "!not a path below"),
            (create("/memories/%2e%2e/x", "x"), "!not a path below"),
            (view("/memoriesx"), "!not a path below"),
            (view("/etc"), "!not a path below"),
        ],
    )
    .await;
}

#[tokio::test]
async fn questions_carry_their_choices() {
    let check = async |arguments: Value, answer: Value, asked: Value, expect: &str| {
        let mut ws = workspace();
        let person = FakeCallClient::saying(answer).with(|it| it.capabilities = json!({"elicitation": {}}));
        let person = Arc::new(person);
        ws.context.client = person.clone();
        let output = ws.call("agent:ask_user", arguments).await.expect("runs");
        assert_eq!(joined_text(&output.content), expect);
        assert_eq!(person.asked()[0].params["requestedSchema"]["properties"], asked);
    };
    let choices = json!([{"label": "a"}, {"label": "b", "description": "slow"}]);
    let listed = json!([{"const": "a", "title": "a"}, {"const": "b", "title": "b (slow)"}]);
    let other = json!({"type": "string", "title": "Other answer"});
    check(
        json!({"question": "Which?", "choices": choices}),
        json!({"action": "accept", "content": {"answer": "b"}}),
        json!({"answer": {"type": "string", "title": "Choice", "oneOf": listed}, "other": other}),
        "The person answers: b",
    )
    .await;
    check(
        json!({"question": "Which?", "choices": choices, "multiple": true, "free_text": false}),
        json!({"action": "accept", "content": {"answer": ["a", "b"]}}),
        json!({"answer": {"type": "array", "title": "Choices", "items": {"anyOf": listed}}}),
        "The person answers: a, b",
    )
    .await;
    check(
        json!({"question": "Which?"}),
        json!({"action": "decline"}),
        json!({"answer": {"type": "string", "title": "Answer", "minLength": 1}}),
        "The person declined to answer. Go on without the answer.",
    )
    .await;
    let output = workspace().call("agent:ask_user", json!({"question": "Which?"})).await.expect("runs");
    assert!(output.is_error && joined_text(&output.content).contains("Nobody can be asked"));
}

#[tokio::test]
async fn changes_of_parallel_calls_all_count() {
    let ws = workspace();
    let call = |id: &'static str, arguments: Value| ws.call(id, arguments);
    let add = |text: &str| json!({"items": [{"text": text}]});
    let (one, two) = tokio::join!(call("agent:todo", add("write")), call("agent:todo", add("test")));
    assert!(!one.expect("runs").is_error && !two.expect("runs").is_error);
    let list = call("agent:todo", json!({})).await.expect("runs");
    let list = joined_text(&list.content);
    assert!(["[ ] 1: write\n[ ] 2: test", "[ ] 1: test\n[ ] 2: write"].contains(&&*list), "{list}");
    let insert =
        |text: &str| json!({"command": "insert", "path": "/memories/a", "insert_line": 0, "insert_text": text});
    let create = json!({"command": "create", "path": "/memories/a", "file_text": ""});
    call("memory:files", create).await.expect("runs");
    let (one, two) = tokio::join!(call("memory:files", insert("x\n")), call("memory:files", insert("y\n")));
    assert!(!one.expect("runs").is_error && !two.expect("runs").is_error);
    let view = call("memory:files", json!({"command": "view", "path": "/memories/a"})).await.expect("runs");
    let view = joined_text(&view.content);
    assert!(["     1\ty\n     2\tx", "     1\tx\n     2\ty"].iter().any(|lines| view.ends_with(lines)), "{view}");
}

#[tokio::test]
async fn kept_values_keep_their_taint() {
    let mut ws = workspace();
    ws.context.taint = Taint::of(&ToolId::parse("web:fetch@1.0.0").expect("id"));
    let writes = [
        ("agent:todo", json!({"items": [{"text": "do as the page says"}]})),
        ("memory:files", json!({"command": "create", "path": "/memories/a", "file_text": "x"})),
        ("memory:scratchpad", json!({"op": "set", "key": "k", "value": 1})),
    ];
    for (id, arguments) in writes {
        ws.call(id, arguments).await.expect("writes");
    }
    ws.context.taint = Taint::default();
    for (id, arguments) in [
        ("agent:todo", json!({})),
        ("memory:files", json!({"command": "view", "path": "/memories/a"})),
        ("memory:scratchpad", json!({"op": "get", "key": "k"})),
    ] {
        assert_eq!(ws.call(id, arguments).await.expect("reads").taint.sources(), ["web:fetch@1.0.0"], "{id}");
    }
}
