//! The session log in the store: values, mailboxes, cursors and quotas.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::agents::{AgentLimits, AgentTree as _, NewAgent, Spending};
use toolwright_core::store::channel::Delivery;
use toolwright_core::store::group::Groups as _;
use toolwright_core::store::{
    Author, LogEntry, LogMessage, MAX_HOPS, MAX_ROW_BYTES, MAX_SESSION_BYTES, MAX_WAITING, MessageKind, Method, NewRow,
    SessionLog as _, StoreError, VersionedValue, WrittenValue,
};
use toolwright_core::{CallId, SessionId};
use toolwright_runtime::store::SqliteStore;

const LONG: Duration = Duration::from_secs(20);

fn mailbox() -> SessionId {
    SessionId::new("s")
}

fn message(text: &str) -> NewRow {
    let author = Author { session: Some(SessionId::new("t")), agent: Some("scout".into()), call: None };
    let message =
        LogMessage { kind: MessageKind::Channel, subject: "news".into(), text: text.into(), data: Value::Null };
    NewRow::message(&mailbox(), "owner", author, message)
}

fn value(written: WrittenValue) -> NewRow {
    let (session, principal) = (mailbox(), "owner".to_owned());
    NewRow { session, principal, author: Author::default(), entry: LogEntry::Value(written), once: None }
}

async fn read(store: &SqliteStore, path: &str) -> Option<Value> {
    VersionedValue::of(store.values(&mailbox(), path).await.expect("values"), path).value
}

/// The numbers of the messages that a call of `reader` gets.
async fn take(store: &SqliteStore, delivery: Delivery, (reader, call): (&str, &str), limit: usize) -> Vec<u64> {
    let (reader, call) = (SessionId::new(reader), CallId::new(call));
    let rows = store.take(&mailbox(), delivery, &reader, &call, limit).await.expect("taken");
    rows.into_iter().map(|row| row.seq).collect()
}

async fn begin(store: &SqliteStore, id: &str) {
    let limits = AgentLimits::default();
    let new = NewAgent { id: id.into(), parent: None, name: id.into(), limits, starts_task: true, time_left: None };
    store.begin_agent(new).await.expect("begun");
}

async fn fill(store: &SqliteStore, count: u64) {
    for _ in 0..count {
        store.append(message("x")).await.expect("there is room");
    }
}

async fn texts(store: &SqliteStore, after: u64) -> Vec<String> {
    let rows = store.messages(&mailbox(), after, 100).await.expect("messages");
    rows.iter().filter_map(|row| row.message()).map(|message| message.text.clone()).collect()
}

#[tokio::test]
async fn values_are_written_together_unless_others_wrote() {
    let dir = tempfile::tempdir().expect("dir");
    let store = SqliteStore::open(dir.path()).expect("open");
    let set = |path: &str, data: Value| value(WrittenValue::set(path, data));
    let pair = vec![set("a.x", json!(1)), set("a.y", json!(2))];
    assert!(store.append_values(pair.clone(), "a", 0).await.expect("written"));
    assert!(!store.append_values(pair, "a", 0).await.expect("looked"), "a.y came after 0");
    let seq = VersionedValue::of(store.values(&mailbox(), "a").await.expect("values"), "a").seq;
    store.append(set("b", json!(1))).await.expect("elsewhere");
    let long = json!("x".repeat(MAX_ROW_BYTES));
    let too_long = vec![set("a.x", json!(3)), set("a.y", long)];
    assert!(matches!(store.append_values(too_long, "a", seq).await, Err(StoreError::Quota(_))));
    assert_eq!(read(&store, "a").await, Some(json!({"x": 1, "y": 2})));
    assert!(store.append_values(vec![value(WrittenValue::delete("a.x"))], "a", seq).await.expect("written"));
    assert_eq!(read(&store, "a").await, Some(json!({"y": 2})));
}

#[tokio::test]
async fn values_and_messages_survive_a_reopen() {
    let dir = tempfile::tempdir().expect("dir");
    {
        let store = SqliteStore::open(dir.path()).expect("open");
        store.append(value(WrittenValue::set("a.b", json!({"c": [1]})))).await.expect("set");
        store.append(message("hello")).await.expect("sent");
        let push = WrittenValue { method: Method::Push, ..WrittenValue::set("a.b.c", json!(2)) };
        store.append(value(push)).await.expect("pushed");
    }
    let store = SqliteStore::open(dir.path()).expect("open");
    for (path, expect) in [
        ("a.b.c", Some(json!([1, 2]))),
        ("a", Some(json!({"b": {"c": [1, 2]}}))),
        ("", Some(json!({"a": {"b": {"c": [1, 2]}}}))),
        ("a.b.d", None),
    ] {
        assert_eq!(read(&store, path).await, expect, "{path}");
    }
    let rows = store.messages(&mailbox(), 0, 9).await.expect("messages");
    assert_eq!((rows.len(), rows[0].author.name(), &*rows[0].principal), (1, "scout", "owner"));
    assert_eq!(texts(&store, rows[0].seq).await, [""; 0]);
}

#[tokio::test]
async fn a_message_wakes_its_mailbox_only() {
    let store = SqliteStore::in_memory().expect("store");
    let sender = Arc::clone(&store);
    let sent = tokio::spawn(async move {
        let other = NewRow { session: SessionId::new("other"), ..message("not here") };
        sender.append(other).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(30)).await;
        sender.append(message("here")).await.expect("sent");
    });
    assert!(store.wait(&mailbox(), 0, LONG).await.expect("waited"));
    sent.await.expect("sent");
    assert_eq!(texts(&store, 0).await, ["here"]);
    assert!(!store.wait(&mailbox(), 99, Duration::ZERO).await.expect("waited"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_queue_share_its_messages() {
    let dir = tempfile::tempdir().expect("dir");
    let stores: Vec<_> = (0..2).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
    for n in 0..40 {
        stores[0].append(message(&n.to_string())).await.expect("sent");
    }
    assert!(take(&stores[0], Delivery::Queue, ("t", "1"), 3).await.is_empty(), "its own messages");
    let taking = stores.iter().zip(["a", "b"]).map(|(store, reader)| async move {
        let mut taken = Vec::new();
        for call in 0.. {
            let more = take(store, Delivery::Queue, (reader, &call.to_string()), 3).await;
            if more.is_empty() {
                break;
            }
            taken.extend(more);
        }
        taken
    });
    let mut taken: Vec<u64> = futures_util::future::join_all(taking).await.concat();
    taken.sort_unstable();
    assert_eq!(taken, (1..=40).collect::<Vec<u64>>());
}

#[tokio::test]
async fn cursors_are_separate_and_only_advance() {
    let store = SqliteStore::in_memory().expect("store");
    store.set_cursor(&mailbox(), 7, 0).await.expect("moved");
    store.set_cursor(&mailbox(), 3, 0).await.expect("not moved");
    for (reader, expect) in [("s", 7), ("b", 0)] {
        assert_eq!(store.cursor(&mailbox(), reader).await.expect("read"), expect, "{reader}");
    }
}

#[tokio::test]
async fn a_repeated_read_gives_the_same_messages() {
    for delivery in [Delivery::Queue, Delivery::Broadcast] {
        let store = SqliteStore::in_memory().expect("store");
        fill(&store, 2).await;
        let own = Author { session: Some(SessionId::new("a")), ..Author::default() };
        store.append(NewRow { author: own, ..message("own") }).await.expect("sent");
        fill(&store, 3).await;
        // The first calls are made again after those that followed them.
        for (call, expect) in
            [("1", &[1, 2][..]), ("2", &[4, 5]), ("1", &[1, 2]), ("2", &[4, 5]), ("3", &[6]), ("4", &[]), ("3", &[6])]
        {
            assert_eq!(take(&store, delivery, ("a", call), 2).await, expect, "{delivery:?}, call {call}");
        }
        let others = if delivery == Delivery::Queue { vec![3] } else { vec![1, 2, 3, 4, 5, 6] };
        assert_eq!(take(&store, delivery, ("b", "1"), 9).await, others, "{delivery:?}");
    }
}

#[tokio::test]
async fn channels_are_full_for_living_readers_only() {
    let store = SqliteStore::in_memory().expect("store");
    let read = async |reader, call, limit| take(&store, Delivery::Broadcast, (reader, call), limit).await.len();
    for reader in ["gone", "slow", "quick"] {
        begin(&store, reader).await;
    }
    fill(&store, 1).await;
    for reader in ["gone", "slow", "quick"] {
        assert_eq!(read(reader, "1", 9).await, 1, "{reader}");
    }
    fill(&store, MAX_WAITING).await;
    assert_eq!(read("quick", "2", 1_000).await, 1_000);
    assert!(store.append(message("x")).await.is_err(), "two have not read");
    assert_eq!(read("slow", "2", 1_000).await, 1_000);
    assert!(store.append(message("x")).await.is_err(), "one of them may read yet");
    store.end_agent("gone", Spending::default()).await.expect("ended");
    fill(&store, MAX_WAITING).await;
    assert!(store.append(message("x")).await.is_err(), "the others have not read");
    for reader in ["slow", "quick"] {
        store.end_agent(reader, Spending::default()).await.expect("ended");
    }
    assert!(store.append(message("x")).await.is_err(), "nobody has read these");
    store.wire(&mailbox(), &SessionId::new("member"), true).await.expect("wired");
    fill(&store, 1).await;
}

/// Sends messages as these sessions, one after the other, each woken by the one before. Returns how many arrive.
async fn bounce(store: &SqliteStore, between: [&str; 2]) -> u32 {
    let mut since = [0; 2];
    for n in 0.. {
        let (from, to) = (between[n % 2], SessionId::new(between[(n + 1) % 2]));
        let author = Author { session: Some(SessionId::new(from)), ..Author::default() };
        match store.append(NewRow { session: to.clone(), author, ..message("you") }).await {
            Ok(sent) => {
                let since = &mut since[(n + 1) % 2];
                store.set_cursor(&to, sent.seq, *since).await.expect("read");
                *since = sent.seq;
            }
            Err(StoreError::Quota(why)) => {
                assert!(why.contains("woken each other"), "{why}");
                return u32::try_from(n).expect("small");
            }
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

#[tokio::test]
async fn sessions_that_wake_each_other_stop() {
    let store = SqliteStore::in_memory().expect("store");
    assert_eq!(bounce(&store, ["a", "b"]).await, MAX_HOPS);
    assert_eq!(bounce(&store, ["a", "c"]).await, 0, "the last message of the loop woke it");
    // A person begins a task: nothing in the mailbox led to it.
    let last = store.cursor(&SessionId::new("a"), "a").await.expect("read");
    store.set_cursor(&SessionId::new("a"), last, last).await.expect("noted");
    assert_eq!(bounce(&store, ["a", "c"]).await, MAX_HOPS);
}

#[tokio::test]
async fn a_full_mailbox_refuses_until_it_is_read() {
    let store = SqliteStore::in_memory().expect("store");
    let mut last = 0;
    for _ in 0..MAX_WAITING {
        last = store.append(message("x")).await.expect("sent").seq;
    }
    let refused = store.append(message("x")).await.expect_err("it is full");
    assert!(matches!(&refused, StoreError::Quota(why) if why.contains("1000 messages wait")), "{refused}");
    store.append(value(WrittenValue::set("a", json!(1)))).await.expect("values have room");
    store.set_cursor(&mailbox(), last, 0).await.expect("read");
    store.append(message("x")).await.expect("there is room again");
}

#[tokio::test]
async fn senders_get_the_full_subscribed_mailboxes() {
    let store = SqliteStore::in_memory().expect("store");
    let [full, free] = ["full", "free"].map(SessionId::new);
    let to = |session: &SessionId| NewRow { session: session.clone(), ..message("x") };
    for _ in 0..MAX_WAITING {
        store.append(to(&full)).await.expect("sent");
    }
    for reader in [&full, &free] {
        store.wire(&mailbox(), reader, true).await.expect("wired");
    }
    let sent = store.append(message("news")).await.expect("sent");
    assert_eq!(sent.missed, [full]);
    assert_eq!(store.messages(&free, 0, 9).await.expect("read").len(), 1);
}

#[tokio::test]
async fn sessions_keep_a_bounded_number_of_bytes() {
    let store = SqliteStore::in_memory().expect("store");
    let long = "x".repeat(MAX_ROW_BYTES - 1000);
    let fits = usize::try_from(MAX_SESSION_BYTES).expect("small") / MAX_ROW_BYTES;
    let too_long = value(WrittenValue::set("a", json!("x".repeat(MAX_ROW_BYTES))));
    assert!(matches!(store.append(too_long).await, Err(StoreError::Quota(_))));
    for _ in 0..2 * fits {
        store.append(value(WrittenValue::set("a", json!(long)))).await.expect("what was replaced makes room");
    }
    for n in 0..fits - 1 {
        store.append(value(WrittenValue::set(format!("b.{n}"), json!(long)))).await.expect("it fits");
    }
    for n in 0..2 {
        let _ = store.append(value(WrittenValue::set(format!("c.{n}"), json!(long)))).await;
    }
    let refused = store.append(value(WrittenValue::set("d", json!(long)))).await.expect_err("it is full");
    assert!(refused.to_string().contains("keeps 16 MiB already"), "{refused}");
    store.append(value(WrittenValue::delete("b"))).await.expect("what deletes is short");
    store.append(value(WrittenValue::set("d", json!(long)))).await.expect("there is room again");
    assert_eq!(read(&store, "b").await, None);
}

#[tokio::test]
async fn mailboxes_and_trees_are_listed_newest_first() {
    let dir = tempfile::tempdir().expect("dir");
    let store = SqliteStore::open(dir.path()).expect("open");
    store.append(NewRow { session: SessionId::new("old"), ..message("one") }).await.expect("sent");
    store.append(message("two")).await.expect("sent");
    store.append(value(WrittenValue::set("a", json!(1)))).await.expect("written");
    let (shown, total) = store.mailboxes(1).await.expect("mailboxes");
    let counts: Vec<_> = shown.iter().map(|one| (&*one.session, one.messages, one.values)).collect();
    assert_eq!((counts, total), (vec![("s", 1, 1)], 2));
    for (id, parent) in [("a", None), ("b", None), ("b1", Some("b")), ("c", None)] {
        let (limits, parent) = (AgentLimits::default(), parent.map(Into::into));
        let new = NewAgent { id: id.into(), parent, name: id.into(), limits, starts_task: true, time_left: None };
        store.begin_agent(new).await.expect("begun");
    }
    let first = store.agent_roots(None, 2).await.expect("roots");
    assert_eq!((&*first.ids.join(" "), first.total, first.next.as_deref()), ("c b", 3, Some("b")));
    let rest = store.agent_roots(Some("b"), 2).await.expect("roots");
    assert_eq!((&*rest.ids.join(" "), rest.total, rest.next), ("a", 3, None));
}
