//! Stops the program right before a write to its store, so that it is killed at exactly that point.

use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use toolwright::core::store::RunStore as _;
use toolwright::runtime::SqliteStore;

use crate::support::Fixture;

/// How often in a row the store must be found locked. Other writes are over much sooner.
const LOCKED: usize = 6;

/// A stop in the store of a fixture.
pub(crate) struct Stop {
    db: Connection,
}

impl Stop {
    /// From now on, whoever makes the `nth` write to one of `tables` gets no further: nothing of its transaction is kept.
    pub(crate) async fn before(fixture: &Fixture, nth: u32, tables: &[&str]) -> Self {
        let store = SqliteStore::open(&fixture.state_dir()).expect("the store");
        // It makes its tables when it is first used.
        store.run("none").await.expect("used");
        let db = Connection::open(store.path()).expect("the database");
        db.busy_timeout(Duration::from_secs(20)).expect("set");
        let mut sql = format!(
            "CREATE TABLE stop (n INTEGER NOT NULL);
             INSERT INTO stop VALUES ({nth});
             CREATE VIEW forever AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n;
             CREATE TRIGGER stop_here AFTER UPDATE ON stop WHEN new.n = 0 BEGIN SELECT count(*) FROM forever; END;"
        );
        for table in tables {
            for write in ["INSERT", "UPDATE"] {
                sql += &format!(
                    "CREATE TRIGGER stop_{table}_{write} BEFORE {write} ON {table} BEGIN UPDATE stop SET n = n - 1; END;"
                );
            }
        }
        db.execute_batch(&sql).expect("the stop");
        db.busy_timeout(Duration::ZERO).expect("set");
        Self { db }
    }

    /// Waits until it is reached. Returns whether it is: `is_over` tells that nothing will reach it.
    pub(crate) async fn reached(&self, mut is_over: impl FnMut() -> bool) -> bool {
        let mut locked = 0;
        while locked < LOCKED {
            if is_over() {
                return false;
            }
            match self.db.execute_batch("BEGIN IMMEDIATE; ROLLBACK") {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => locked += 1,
                other => {
                    other.expect("looked");
                    locked = 0;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    /// Takes the stop away, once the process that it stopped is dead. What is dead is taken for dead at once.
    pub(crate) fn clear(&self) {
        self.db.busy_timeout(Duration::from_secs(20)).expect("set");
        let triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'stop%'";
        let mut sql = "DROP VIEW forever; UPDATE job_owners SET lease_ms = 0;".to_owned();
        let mut found = self.db.prepare(triggers).expect("a query");
        for name in found.query_map([], |row| row.get::<_, String>(0)).expect("triggers") {
            sql += &format!("DROP TRIGGER {};", name.expect("a name"));
        }
        self.db.execute_batch(&format!("{sql} DROP TABLE stop;")).expect("cleared");
    }

    /// How many rows this finds.
    pub(crate) fn count(&self, table: &str, condition: &str) -> u32 {
        let sql = format!("SELECT count(*) FROM {table} WHERE {condition}");
        self.db.query_row(&sql, [], |row| row.get(0)).expect("counted")
    }
}
