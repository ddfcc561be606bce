//! Stores the objects that clients of model APIs refer to by id.

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, TransactionBehavior, params};
use serde_json::Value;
use toolwright_core::store::{ObjectStore, StoreError, StoredObject};

use super::SqliteStore;
use super::{from_json, now_ms, to_json};

const PUT: &str = "INSERT OR REPLACE INTO objects (owner, kind, id, object, saved_ms) VALUES (?1, ?2, ?3, ?4, ?5)";
const REPLACE: &str = "UPDATE objects SET object = ?4, saved_ms = ?5 WHERE owner = ?1 AND kind = ?2 AND id = ?3";

#[async_trait]
impl ObjectStore for SqliteStore {
    async fn put_objects(&self, owner: &str, objects: &[StoredObject]) -> Result<(), StoreError> {
        let owner = owner.to_owned();
        let row = |it: &StoredObject| Ok((it.kind, it.id.clone(), to_json(&it.object)?, it.only_if_there));
        let rows = objects.iter().map(row).collect::<Result<Vec<_>, StoreError>>()?;
        self.thread
            .run("keep objects", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                for (kind, id, object, only_if_there) in &rows {
                    let sql = if *only_if_there { REPLACE } else { PUT };
                    transaction.prepare_cached(sql)?.execute(params![owner, kind, id, object, now_ms()])?;
                }
                transaction.commit()
            })
            .await
    }

    async fn replace_object(&self, owner: &str, kind: &str, id: &str, object: &Value) -> Result<bool, StoreError> {
        let key = (owner.to_owned(), kind.to_owned(), id.to_owned());
        let text = to_json(object)?;
        self.thread
            .run("replace an object", move |db| {
                let (owner, kind, id) = key;
                let mut statement = db.prepare_cached(REPLACE)?;
                statement.execute(params![owner, kind, id, text, now_ms()]).map(|replaced| replaced > 0)
            })
            .await
    }

    async fn object(&self, owner: &str, kind: &str, id: &str) -> Result<Option<Value>, StoreError> {
        let key = (owner.to_owned(), kind.to_owned(), id.to_owned());
        let found: Option<String> = self
            .thread
            .run("read an object", move |db| {
                let sql = "SELECT object FROM objects WHERE owner = ?1 AND kind = ?2 AND id = ?3";
                db.prepare_cached(sql)?.query_row(key, |row| row.get(0)).optional()
            })
            .await?;
        found.map(|text| from_json(&text)).transpose()
    }

    async fn remove_object(&self, owner: &str, kind: &str, id: &str) -> Result<bool, StoreError> {
        let key = (owner.to_owned(), kind.to_owned(), id.to_owned());
        self.thread
            .run("remove an object", move |db| {
                let sql = "DELETE FROM objects WHERE owner = ?1 AND kind = ?2 AND id = ?3";
                db.prepare_cached(sql)?.execute(key).map(|gone| gone > 0)
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn objects_are_their_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path()).expect("a store");
        store.put_object("a", "response", "r", json!(1)).await.expect("kept");
        store.put_object("a", "response", "r", json!(2)).await.expect("replaced");
        for (owner, kind, expect) in
            [("a", "response", Some(json!(2))), ("b", "response", None), ("a", "conversation", None)]
        {
            assert_eq!(store.object(owner, kind, "r").await.expect("read"), expect, "{owner} {kind}");
        }
        assert!(!store.remove_object("b", "response", "r").await.expect("nothing there"));
        assert!(store.replace_object("a", "response", "r", &json!(3)).await.expect("replaced"));
        assert_eq!(store.object("a", "response", "r").await.expect("read"), Some(json!(3)));
        assert!(store.remove_object("a", "response", "r").await.expect("removed"));
        assert!(!store.replace_object("a", "response", "r", &json!(4)).await.expect("nothing there"));
        assert_eq!(store.object("a", "response", "r").await.expect("read"), None);
    }
    #[tokio::test]
    async fn objects_are_kept_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let one =
            |id: &str, only_if_there| StoredObject { kind: "turn", id: id.into(), object: json!(1), only_if_there };
        let store = SqliteStore::open(folder.path()).expect("a store");
        store.put_objects("a", &[one("x", false), one("y", true)]).await.expect("kept");
        assert_eq!(store.object("a", "turn", "x").await.expect("read"), Some(json!(1)));
        assert_eq!(store.object("a", "turn", "y").await.expect("read"), None, "there was none");
        let db = rusqlite::Connection::open(store.path()).expect("open");
        db.execute_batch(
            "CREATE TRIGGER full BEFORE INSERT ON objects WHEN new.id = 'z' BEGIN SELECT RAISE(ABORT, 'full'); END",
        )
        .expect("a store that fails");
        store.put_objects("a", &[one("w", false), one("z", false)]).await.expect_err("one is not kept");
        let store = SqliteStore::open(folder.path()).expect("the store, reopened");
        assert_eq!(store.object("a", "turn", "w").await.expect("read"), None, "none is kept without the other");
    }
}
