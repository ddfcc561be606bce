//! Extracts the searched text of a tool.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use toolwright_core::catalogue::Entry;

/// The parts of a tool that a search looks at, as its author wrote them: data, never trusted.
#[derive(Debug, Clone, Default)]
pub struct Document<'a> {
    /// Its name at its source.
    pub name: &'a str,
    /// Its title; may be empty.
    pub title: &'a str,
    /// Its description.
    pub description: &'a str,
    /// Its tags.
    pub tags: Vec<&'a str>,
    /// JSON Schema of its arguments. It is read as data, never compiled.
    pub parameters: Option<&'a Value>,
    /// Example arguments.
    pub examples: &'a [Value],
    /// The server it comes from; may be empty.
    pub server: &'a str,
    /// The server's self-description; may be empty. For tools of a catalogue, its first 512 bytes.
    pub server_description: Cow<'a, str>,
}

/// Identifies a document's content. Equal keys mean equal documents for the life of the process, so
/// an index reuses its data for a known key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DocumentKey(pub u64, pub u64);

/// Something that can be searched for.
pub trait Searchable {
    /// See [`DocumentKey`].
    fn key(&self) -> DocumentKey;
    /// Its parts. Called only if the key is new to the index.
    fn document(&self) -> Document<'_>;
}

impl Searchable for Entry {
    fn key(&self) -> DocumentKey {
        DocumentKey(self.tool.serial(), self.about_hash())
    }

    fn document(&self) -> Document<'_> {
        let definition = self.definition();
        let tags = definition.tags.iter().chain(&definition.aliases);
        Document {
            name: self.tool.raw_name(),
            title: definition.title.as_deref().unwrap_or_default(),
            description: &definition.description,
            tags: tags.map(String::as_str).collect(),
            parameters: definition.parameters.as_ref(),
            examples: &definition.examples,
            server: self.provider.name(),
            server_description: self.about().into(),
        }
    }
}

impl<T: Searchable + ?Sized> Searchable for Arc<T> {
    fn key(&self) -> DocumentKey {
        T::key(self)
    }

    fn document(&self) -> Document<'_> {
        T::document(self)
    }
}
