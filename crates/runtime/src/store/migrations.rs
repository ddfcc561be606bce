//! The schema, as steps that are only ever appended.

use rusqlite::{Connection, TransactionBehavior};

const STEPS: &[&str] = &[
    include_str!("schema/01_first.sql"),
    include_str!("schema/02_saved.sql"),
    include_str!("schema/03_provenance.sql"),
    include_str!("schema/04_tools.sql"),
    include_str!("schema/05_operations.sql"),
    include_str!("schema/06_jobs.sql"),
    include_str!("schema/07_inbox.sql"),
    include_str!("schema/08_cache.sql"),
    include_str!("schema/09_pins.sql"),
    include_str!("schema/10_cache_writes.sql"),
    include_str!("schema/11_forms.sql"),
    include_str!("schema/12_open_costs.sql"),
    include_str!("schema/13_askers.sql"),
    include_str!("schema/14_pin_sources.sql"),
    include_str!("schema/15_entries.sql"),
    include_str!("schema/16_renamed_pins.sql"),
    include_str!("schema/17_begun.sql"),
];

/// Brings the file to the newest schema, whole or not at all, while other processes wait.
pub(super) fn migrate(db: &mut Connection) -> rusqlite::Result<()> {
    let version = |db: &Connection| db.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0));
    let newest = u32::try_from(STEPS.len()).unwrap_or(u32::MAX);
    if version(db)? >= newest {
        return Ok(());
    }
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = version(&transaction)?;
    for step in STEPS.iter().skip(done as usize) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", newest)?;
    transaction.commit()
}

/// Brings a new file to the schema of an earlier program.
#[cfg(test)]
pub(super) fn migrate_to(db: &Connection, version: u16) -> rusqlite::Result<()> {
    for step in &STEPS[..usize::from(version)] {
        db.execute_batch(step)?;
    }
    db.pragma_update(None, "user_version", version)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;
    use toolwright_core::canonical::ContentHash;
    use toolwright_core::name::ToolId;
    use toolwright_core::pins::{Note, PinSource};
    use toolwright_core::store::{PinDecision, PinNote, PinStore as _};

    use super::super::{FILE, SqliteStore};
    use super::*;

    fn hash(text: &str) -> ContentHash {
        ContentHash::of_bytes(text.as_bytes())
    }

    /// A file as it was when pins were kept by the name alone, with two tools of `p`: one pinned, one revoked.
    fn old_file(dir: &Path) {
        let db = Connection::open(dir.join(FILE)).expect("open");
        migrate_to(&db, 13).expect("schema");
        let (approved, revoked) = (hash("a").to_hex(), hash("r").to_hex());
        db.execute(
            "INSERT INTO pins VALUES ('p', 'pinned', 'p:pinned@0.0.0', ?1, '\"a\"', 1, 'first use', NULL, NULL, NULL), \
             ('p', 'revoked', 'p:revoked@0.0.0', NULL, NULL, NULL, NULL, ?2, '\"r\"', 2)",
            [approved, revoked],
        )
        .expect("rows");
    }

    /// Tool, what is approved and what waits, of the pins that count.
    async fn pinned(
        store: &SqliteStore,
        source: &PinSource,
    ) -> Vec<(String, Option<ContentHash>, Option<ContentHash>)> {
        let pins = store.pins(Some(source)).await.expect("pins");
        let hash = |mark: &Option<toolwright_core::pins::PinMark>| mark.as_ref().map(|mark| mark.hash);
        pins.iter().map(|pin| (pin.tool.clone(), hash(&pin.approved), hash(&pin.waiting))).collect()
    }

    fn waits(text: &str) -> PinNote {
        let id = ToolId::parse("p:pinned@0.0.0").expect("id");
        let contract = json!(text);
        PinNote { tool: "pinned".into(), renamed: None, id, note: Note::Wait, hash: hash(text), contract }
    }

    #[tokio::test]
    async fn what_was_pinned_by_name_alone_counts_for_each_source_of_the_name_until_it_has_its_own() {
        let dir = tempfile::tempdir().expect("dir");
        old_file(dir.path());
        let store = SqliteStore::open(dir.path()).expect("open");
        let source = |scope: &str| PinSource { provider: "p".into(), scope: scope.into() };
        let (a, b, later) = (source("/a.yaml"), source("/b.yaml"), source("/later.yaml"));
        let old = vec![("pinned".to_owned(), Some(hash("a")), None), ("revoked".to_owned(), None, Some(hash("r")))];
        for of in [&a, &b, &later] {
            assert_eq!(pinned(&store, of).await, old);
            assert!(of.takes_over(&store.pins(Some(of)).await.expect("pins")));
        }
        let contracts = store.pin_contracts(&a, &["pinned".into(), "revoked".into()]).await.expect("contracts");
        assert_eq!((&contracts[0].approved, &contracts[1].waiting), (&Some(json!("a")), &Some(json!("r"))));

        store.note_pins(&a, Vec::new()).await.expect("taken over");
        assert!(!a.takes_over(&store.pins(Some(&a)).await.expect("pins")));
        store.note_pins(&b, vec![waits("b")]).await.expect("noted");
        assert!(store.decide_pin(&b, "pinned", PinDecision::Approve(None), "me").await.expect("approved"));
        assert!(store.decide_pin(&a, "revoked", PinDecision::Approve(None), "me").await.expect("approved"));
        assert_eq!(pinned(&store, &a).await[1], ("revoked".to_owned(), Some(hash("r")), None));
        let of_b = [("pinned".to_owned(), Some(hash("b")), None), ("revoked".to_owned(), None, Some(hash("r")))];
        assert_eq!(pinned(&store, &b).await, of_b, "one's decision is not the other's");

        // What is forgotten is not taken over again, and who has met nothing yet has lost nothing.
        for tool in ["pinned", "revoked"] {
            assert!(store.decide_pin(&a, tool, PinDecision::Forget, "me").await.expect("forgotten"));
        }
        store.note_pins(&a, Vec::new()).await.expect("noted");
        assert!(pinned(&store, &a).await.is_empty());
        assert_eq!(pinned(&store, &later).await, old);
        let scopes: Vec<String> =
            store.pins(None).await.expect("pins").into_iter().map(|pin| pin.source.scope).collect();
        assert_eq!(scopes, ["", "", "/b.yaml", "/b.yaml"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn processes_that_take_pins_over_at_once_come_to_the_same() {
        for _ in 0..10 {
            let dir = tempfile::tempdir().expect("dir");
            old_file(dir.path());
            let stores: Vec<_> = (0..4).map(|_| SqliteStore::open(dir.path()).expect("open")).collect();
            let source = PinSource { provider: "p".into(), scope: "/a.yaml".into() };
            let work = stores.iter().enumerate().map(|(n, store)| {
                let source = &source;
                async move {
                    match n {
                        0 => store
                            .decide_pin(source, "pinned", PinDecision::Revoke, "me")
                            .await
                            .map(|done| assert!(done)),
                        _ => store.note_pins(source, vec![PinNote { note: Note::Pin, ..waits("other") }]).await,
                    }
                }
            });
            for done in futures_util::future::join_all(work).await {
                done.expect("written");
            }
            let have = pinned(&stores[1], &source).await;
            assert_eq!(have[0], ("pinned".to_owned(), None, Some(hash("a"))), "nothing lets a revoked tool in");
            assert_eq!(have[1], ("revoked".to_owned(), None, Some(hash("r"))));
        }
    }
}
