//! Defines the store of objects that clients of model APIs refer to by id: responses, conversations, and runs that wait
//! for the client.

use async_trait::async_trait;
use serde_json::Value;

use super::StoreError;
use crate::error::Unsupported;

/// An object to store.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptObject {
    /// Its kind.
    pub kind: &'static str,
    /// Its id, unique for its kind and owner.
    pub id: String,
    /// The object.
    pub object: Value,
    /// Whether it only replaces a stored object, so that a removed one stays removed.
    pub only_if_there: bool,
}

/// Stores objects, each visible only to its owner.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Stores these objects in one transaction, and replaces those of the same kind and id.
    async fn put_objects(&self, _owner: &str, _objects: &[KeptObject]) -> Result<(), StoreError> {
        Err(Unsupported("the store of objects").into())
    }

    /// Stores one object, like [`ObjectStore::put_objects`].
    async fn put_object(&self, owner: &str, kind: &'static str, id: &str, object: Value) -> Result<(), StoreError> {
        self.put_objects(owner, &[KeptObject { kind, id: id.to_owned(), object, only_if_there: false }]).await
    }

    /// Replaces an object of this kind and id. Returns whether it existed; otherwise stores nothing.
    async fn replace_object(&self, _owner: &str, _kind: &str, _id: &str, _object: &Value) -> Result<bool, StoreError> {
        Err(Unsupported("the store of objects").into())
    }

    /// Returns the object, if it exists.
    async fn object(&self, _owner: &str, _kind: &str, _id: &str) -> Result<Option<Value>, StoreError> {
        Err(Unsupported("the store of objects").into())
    }

    /// Removes it; returns whether it existed.
    async fn remove_object(&self, _owner: &str, _kind: &str, _id: &str) -> Result<bool, StoreError> {
        Err(Unsupported("the store of objects").into())
    }
}

impl ObjectStore for super::NoStore {}
