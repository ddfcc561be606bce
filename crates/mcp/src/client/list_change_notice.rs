//! What a server announced, as far as it can be had over its connections.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

/// What a server announced.
type Said = Arc<Map<String, Value>>;

/// What is told of a server's announcement: one object for each, since connections are known by it.
#[derive(Default)]
pub(crate) struct Announced(Mutex<Option<(Said, Said)>>);

impl Announced {
    /// It without subscriptions to resources, for a server of which each session has a connection of its own: what one
    /// of them tells is of that session, and may end while others follow the same.
    pub(crate) fn without_subscriptions(&self, said: Said) -> Said {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, told)) = last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &said)) {
            return Arc::clone(told);
        }
        let mut told = Map::clone(&said);
        if let Some(resources) = told.get_mut("resources").and_then(Value::as_object_mut) {
            resources.shift_remove("subscribe");
        }
        let told = Arc::new(told);
        *last = Some((said, Arc::clone(&told)));
        told
    }
}
