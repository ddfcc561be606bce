//! Which source's result linked to which resource last: a link leads to the source that gave it, even where no list has
//! the address or another source has something at it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};
use toolwright_core::catalogue::{Provider, Snapshot};
use toolwright_core::content::ContentBlock;
use toolwright_core::outcome::Outcome;

use super::call::{Caller, Work};
use super::view::Scope;

/// Places for which it is remembered.
const MAX_PLACES: usize = 128;
/// Bytes of what was named to one of them last; what was named before that is kept until there are as many again.
const MAX_BYTES: usize = 128 << 10;
/// What an entry takes beside its texts.
const ENTRY: usize = 64;

/// What was named to callers, by the caller's place.
#[derive(Default)]
pub(crate) struct ResourceLinks(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    places: HashMap<String, Named>,
    /// Results that named something.
    count: u64,
}

/// The sources of what was named to one place, by address.
#[derive(Default)]
struct Named {
    newer: HashMap<String, String>,
    /// Bytes of the newer ones.
    bytes: usize,
    older: HashMap<String, String>,
    /// Which of all results was the last.
    last: u64,
}

impl ResourceLinks {
    /// Notes that a result of this source named these resources to this place: of two sources, the last one counts.
    fn note<'a>(&self, place: &str, server: &str, uris: impl Iterator<Item = &'a str>) {
        let mut memory = self.lock();
        memory.count += 1;
        let count = memory.count;
        if memory.places.len() >= MAX_PLACES && !memory.places.contains_key(place) {
            let oldest = memory.places.iter().min_by_key(|(_, named)| named.last).map(|(place, _)| place.clone());
            if let Some(oldest) = oldest {
                memory.places.remove(&oldest);
            }
        }
        let named = memory.places.entry(place.to_owned()).or_default();
        named.last = count;
        for uri in uris {
            named.note(server, uri);
        }
    }

    /// Which source named this resource to this place last.
    fn of(&self, place: &str, uri: &str) -> Option<String> {
        let memory = self.lock();
        let named = memory.places.get(place)?;
        named.newer.get(uri).or_else(|| named.older.get(uri)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Named {
    fn note(&mut self, server: &str, uri: &str) {
        let size = ENTRY + server.len() + uri.len();
        if size > MAX_BYTES {
            return;
        }
        if self.bytes + size > MAX_BYTES {
            (self.older, self.bytes) = (std::mem::take(&mut self.newer), 0);
        }
        // One that is named again counts again: a bound, not a sum.
        self.bytes += size;
        self.newer.insert(uri.to_owned(), server.to_owned());
    }
}

impl Caller {
    /// For whom links are remembered: the principal, at this address.
    fn place(&self) -> String {
        format!("{} at {}", self.session.principal.id, self.view.scope.path())
    }
}

impl Work {
    /// Notes which resources a result of this source links to.
    pub(crate) fn note_links<'a>(&self, server: &str, uris: impl Iterator<Item = &'a str>) {
        let mut uris = uris.peekable();
        // Where there is one source, everything is its own.
        if uris.peek().is_some() && !matches!(self.caller.view.scope, Scope::Provider(_)) {
            self.gateway.resource_links.note(&self.caller.place(), server, uris);
        }
    }

    /// The same of a call of a tool in this snapshot.
    pub(crate) fn note_links_of_call(&self, snapshot: &Snapshot, outcome: &Outcome) {
        let mut named = in_content(&outcome.content).peekable();
        if named.peek().is_none() {
            return;
        }
        let mut entries = snapshot.list().iter();
        if let Some(entry) = entries.find(|entry| Some(entry.id()) == outcome.tool.as_ref()) {
            self.note_links(entry.provider.name(), named);
        }
    }

    /// Which of these sources gave the caller a link to this resource last.
    pub(crate) fn linked_by(&self, uri: &str, sources: &[Arc<dyn Provider>]) -> Option<String> {
        let server = self.gateway.resource_links.of(&self.caller.place(), uri)?;
        sources.iter().any(|provider| provider.name() == server).then_some(server)
    }
}

/// The resources that content links to or holds.
fn in_content(blocks: &[ContentBlock]) -> impl Iterator<Item = &str> {
    blocks.iter().filter_map(|block| match block {
        ContentBlock::Link { uri, .. } => Some(uri.as_str()),
        ContentBlock::Resource { resource, .. } => uri_of(resource),
        ContentBlock::Text { .. } | ContentBlock::Image { .. } | ContentBlock::Audio { .. } => None,
    })
}

/// The same of the messages of a result of `prompts/get`.
pub(crate) fn in_prompt(result: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let messages = result.get("messages").and_then(Value::as_array).into_iter().flatten();
    messages.filter_map(|message| {
        let block = message.get("content")?;
        match block.get("type")?.as_str()? {
            "resource_link" => uri_of(block),
            "resource" => uri_of(block.get("resource")?),
            _ => None,
        }
    })
}

/// What a result of `resources/read` holds of other resources than the one that was read.
pub(crate) fn beside<'a>(result: &'a Map<String, Value>, read: &'a str) -> impl Iterator<Item = &'a str> {
    let contents = result.get("contents").and_then(Value::as_array).into_iter().flatten();
    contents.filter_map(uri_of).filter(move |uri| *uri != read)
}

fn uri_of(of: &Value) -> Option<&str> {
    of.get("uri")?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn note(links: &ResourceLinks, place: &str, server: &str, uri: &str) {
        links.note(place, server, std::iter::once(uri));
    }

    #[test]
    fn who_named_a_resource_last_counts_at_the_place_that_it_was_named_to() {
        let links = ResourceLinks::default();
        note(&links, "p", "a", "x://1");
        note(&links, "p", "b", "x://1");
        note(&links, "q", "c", "x://1");
        let of = |place, uri| links.of(place, uri);
        assert_eq!((of("p", "x://1").as_deref(), of("q", "x://1").as_deref()), (Some("b"), Some("c")));
        assert_eq!((of("p", "x://2"), of("r", "x://1")), (None, None));
    }

    #[test]
    fn what_was_named_is_remembered_within_bounds_and_the_newest_longest() {
        let links = ResourceLinks::default();
        let large = "x".repeat(MAX_BYTES);
        note(&links, "p", "a", &large);
        assert_eq!(links.of("p", &large), None);
        let uri = |at: usize| format!("x://{at:01000}");
        for at in 0..1000 {
            note(&links, "p", "a", &uri(at));
            assert_eq!(links.of("p", &uri(at)).as_deref(), Some("a"));
        }
        let kept = (0..1000).filter(|at| links.of("p", &uri(*at)).is_some()).count();
        assert!((100..=2 * MAX_BYTES / 1000).contains(&kept), "{kept}");
        assert_eq!(links.of("p", &uri(0)), None);
        for at in 0..MAX_PLACES {
            note(&links, &at.to_string(), "a", "x://1");
            assert!(links.lock().places.len() <= MAX_PLACES);
        }
        assert_eq!(links.of("p", &uri(999)), None, "the place that was named something the longest time ago");
        assert!(links.of("0", "x://1").is_some());
    }

    #[test]
    fn links_and_what_is_embedded_name_resources() {
        let blocks = json!([
            {"type": "text", "text": "x://text"},
            {"type": "resource_link", "uri": "x://link", "name": "n"},
            {"type": "resource", "resource": {"uri": "x://held", "text": "t"}},
            {"type": "resource", "resource": {"text": "t"}},
        ]);
        let content: Vec<ContentBlock> = serde_json::from_value(blocks.clone()).expect("blocks");
        assert_eq!(in_content(&content).collect::<Vec<_>>(), ["x://link", "x://held"]);
        let messages = blocks.as_array().expect("a list").iter().map(|block| json!({"role": "user", "content": block}));
        let prompt = json!({"messages": messages.collect::<Vec<_>>()});
        let prompt = prompt.as_object().expect("object");
        assert_eq!(in_prompt(prompt).collect::<Vec<_>>(), ["x://link", "x://held"]);
        let read = json!({"contents": [{"uri": "x://dir"}, {"uri": "x://dir/a"}, {}, 5]});
        let read = read.as_object().expect("object");
        assert_eq!(beside(read, "x://dir").collect::<Vec<_>>(), ["x://dir/a"]);
    }
}
