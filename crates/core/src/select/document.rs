//! What of a tool is searched.

use std::borrow::Cow;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use serde_json::Value;

use crate::catalogue::{Entry, Provider};

/// Bytes of what a server says about itself that are searched: every tool of it has them.
const MAX_ABOUT: usize = 512;

/// The parts of a tool that a search looks at, as its author wrote them: data, never trusted.
#[derive(Debug, Clone, Default)]
pub struct Document<'a> {
    /// Its name at its source.
    pub name: &'a str,
    /// Its title; empty for none.
    pub title: &'a str,
    /// Its description.
    pub description: &'a str,
    /// Its tags.
    pub tags: Vec<&'a str>,
    /// JSON Schema of its arguments. It is only read, never compiled: any JSON will do.
    pub parameters: Option<&'a Value>,
    /// Example arguments.
    pub examples: &'a [Value],
    /// The server it comes from; empty for none.
    pub server: &'a str,
    /// What the server says about itself; empty for nothing. Of a catalogue's tools it is the first 512 bytes.
    pub server_description: Cow<'a, str>,
}

/// What tells two documents apart. Equal keys promise equal documents for as long as the process lives, so
/// an index takes over what it knows of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DocumentKey(pub u64, pub u64);

/// Something that can be searched for.
pub trait Searchable {
    /// See [`DocumentKey`].
    fn key(&self) -> DocumentKey;
    /// Its parts. Asked for only if the key is new to the index.
    fn document(&self) -> Document<'_>;
}

/// What is searched of a provider, read once for all its tools.
#[derive(PartialEq, Eq)]
pub(crate) struct Source {
    /// The provider's.
    pub(crate) name: Arc<str>,
    hash: u64,
    about: Box<str>,
}

impl Source {
    pub(crate) fn of(provider: &dyn Provider) -> Self {
        let mut about = provider.instructions().unwrap_or_default();
        about.truncate(about.floor_char_boundary(MAX_ABOUT));
        let mut hasher = DefaultHasher::new();
        (provider.name(), &about).hash(&mut hasher);
        Self { name: provider.name().into(), hash: hasher.finish(), about: about.into() }
    }
}

impl Searchable for Entry {
    fn key(&self) -> DocumentKey {
        DocumentKey(self.tool.serial(), self.source.hash)
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
            server_description: (&*self.source.about).into(),
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

#[cfg(test)]
mod tests {

    use async_trait::async_trait;

    use super::*;
    use crate::catalogue::{Health, Listing, ProviderCall, ProviderError, ProviderKind, RegisteredTool, Snapshot};
    use crate::context::ToolContext;
    use crate::error::ToolError;
    use crate::outcome::ToolOutput;
    use crate::testing::{definition, own};

    /// A server that says so about itself.
    struct Server(String);

    #[async_trait]
    impl Provider for Server {
        fn name(&self) -> &str {
            "post"
        }
        fn kind(&self) -> ProviderKind {
            ProviderKind::Mcp
        }
        async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
            Ok(Vec::new())
        }
        async fn call(&self, _call: ProviderCall<'_>, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
            Ok(ToolOutput::text(""))
        }
        fn health(&self) -> Health {
            Health::Ready
        }
        fn instructions(&self) -> Option<String> {
            Some(self.0.clone())
        }
    }

    #[test]
    fn what_a_server_says_is_cut_and_told_apart_by_what_is_searched() {
        let tools = vec![own(definition("post:weigh@1.0.0"))];
        let snapshot = |said: String| {
            let provider = Arc::new(Server(said));
            Snapshot::build(&[Listing { provider, tools: tools.clone(), error: None, withheld: Vec::new() }])
        };
        let long = snapshot("é".repeat(9000) + "x");
        let document = long.list()[0].document();
        assert_eq!(document.server_description, "é".repeat(MAX_ABOUT / 2));
        for (said, is_same) in [("é".repeat(8000), true), ("é".repeat(10), false), (String::new(), false)] {
            let other = snapshot(said);
            assert_eq!(other.list()[0].key() == long.list()[0].key(), is_same);
            assert_eq!(other.list()[0].document().server_description == document.server_description, is_same);
        }
        let odd = snapshot("x".to_owned() + &"é".repeat(9000));
        assert_eq!(odd.list()[0].document().server_description.len(), MAX_ABOUT - 1);
    }
}
