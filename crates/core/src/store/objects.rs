//! Defines the store of objects that clients of model APIs refer to by id: responses, conversations, and runs that wait
//! for the client.

use async_trait::async_trait;
use serde_json::Value;

use super::StoreError;
use crate::error::Unsupported;

/// Stores objects, each visible only to its owner.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Stores an object, replacing one of this kind and id.
    async fn put_object(&self, _owner: &str, _kind: &str, _id: &str, _object: &Value) -> Result<(), StoreError> {
        Err(Unsupported("the store of objects").into())
    }

    /// Replaces an object of this kind and id. Returns whether there was one; otherwise stores nothing.
    async fn replace_object(&self, _owner: &str, _kind: &str, _id: &str, _object: &Value) -> Result<bool, StoreError> {
        Err(Unsupported("the store of objects").into())
    }

    /// Returns the object, if there is one.
    async fn object(&self, _owner: &str, _kind: &str, _id: &str) -> Result<Option<Value>, StoreError> {
        Err(Unsupported("the store of objects").into())
    }

    /// Removes it; returns whether there was one.
    async fn remove_object(&self, _owner: &str, _kind: &str, _id: &str) -> Result<bool, StoreError> {
        Err(Unsupported("the store of objects").into())
    }
}

impl ObjectStore for super::NoStore {}
