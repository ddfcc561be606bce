//! What was listed for callers last: whose each name and address is, and what each source listed, for when it does not
//! answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::Provider;
use toolwright_mcp::merge::{Kind, Owned};

use super::call::Caller;
use super::message::to_json;

/// Lists that are remembered, over all callers.
const MAX_REMEMBERED: usize = 256;
/// Bytes of JSON of what the sources of one of them listed.
const MAX_LISTED: usize = 1 << 20;
/// Bytes of all that is remembered.
const MAX_BYTES: usize = 32 << 20;
/// How long a list stands that lacks what some source has.
const LACKING: Duration = Duration::from_secs(30);
/// What an entry takes beside its texts.
const ENTRY: usize = 128;

/// Whose each name or address of a merged list is.
pub(crate) type Owns = Arc<HashMap<String, Owned>>;

/// A list that sources need not be asked for again.
pub(crate) enum Standing {
    /// It has what all sources have.
    Whole(Owns),
    /// Some source did not bring anything to it, and would hardly now.
    Lacking(Owns),
}

/// What was listed for callers last.
#[derive(Default)]
pub(crate) struct Owners(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    all: HashMap<Key, Known>,
    bytes: usize,
}

/// A place, and what is listed there.
type Key = (String, Kind);

#[derive(Default)]
struct Known {
    owners: Owns,
    /// Whether no source is missing.
    is_whole: bool,
    /// When it was made, unless what has come since is not in it.
    made: Option<Instant>,
    /// The sources that there were then, at all addresses.
    sources: Vec<Weak<dyn Provider>>,
    /// By source.
    last: HashMap<String, Last>,
}

/// What a source listed last.
struct Last {
    hash: ContentHash,
    /// As JSON, if there was room for it.
    text: Option<Arc<[u8]>>,
    /// Whether it came late, and clients know of it.
    is_told: bool,
}

/// What became of asking a source for its list.
pub(crate) enum Said {
    /// Its list, as JSON.
    List(Vec<u8>),
    /// Nothing; what it listed last, which is of this hash, stands for it.
    Kept(ContentHash),
    /// Nothing, and of what it listed nothing is kept.
    Missed,
    /// That it fails.
    Failed,
}

impl Owners {
    /// Whose each is by the last list of this place.
    pub(crate) fn of(&self, place: &str, kind: Kind) -> Option<Owns> {
        self.lock().all.get(&key(place, kind)).map(|known| Arc::clone(&known.owners))
    }

    /// The same, as long as it stands: these are the sources still, and it lacks nothing, or for a while what no source
    /// has brought since.
    pub(crate) fn standing(&self, place: &str, kind: Kind, sources: &[Arc<dyn Provider>]) -> Option<Standing> {
        let memory = self.lock();
        let known = memory.all.get(&key(place, kind)).filter(|known| known.is_of(sources))?;
        if known.is_whole {
            return Some(Standing::Whole(Arc::clone(&known.owners)));
        }
        let is_recent = known.made.is_some_and(|made| made.elapsed() < LACKING);
        is_recent.then(|| Standing::Lacking(Arc::clone(&known.owners)))
    }

    /// What a source listed last at this place, if that is kept, and its hash.
    pub(crate) fn last(&self, place: &str, kind: Kind, source: &str) -> Option<(ContentHash, Vec<Value>)> {
        let (hash, text) = {
            let memory = self.lock();
            let last = memory.all.get(&key(place, kind))?.last.get(source)?;
            (last.hash, Arc::clone(last.text.as_ref()?))
        };
        Some((hash, serde_json::from_slice(&text).ok()?))
    }

    /// Remembers a list that was made when there were these sources, and what it was made of: all of the place, in order.
    /// What they listed is kept as far as there is room: a mebibyte for a list, 32 for all that is remembered.
    pub(crate) fn remember(
        &self,
        place: &str,
        kind: Kind,
        owners: Owns,
        said: Vec<(&str, Said)>,
        sources: &[Arc<dyn Provider>],
    ) {
        let key = key(place, kind);
        let mut memory = self.lock();
        let mut before = memory.take(&key).unwrap_or_default().last;
        let sources = sources.iter().map(Arc::downgrade).collect();
        let mut known = Known { owners, is_whole: true, made: Some(Instant::now()), sources, last: HashMap::new() };
        for (source, said) in said {
            let before = before.remove(source);
            known.is_whole &= match &said {
                Said::List(_) => true,
                // It may have come meanwhile.
                Said::Kept(hash) => before.as_ref().is_some_and(|before| before.hash == *hash),
                Said::Missed | Said::Failed => false,
            };
            let last = match said {
                Said::List(text) => Some(known.keep(text, false)),
                Said::Kept(_) | Said::Missed => before,
                Said::Failed => None,
            };
            if let Some(last) = last {
                known.last.insert(source.to_owned(), last);
            }
        }
        memory.put(key, known);
    }

    /// Keeps what a source listed after a list was made without it, or that it failed (`None`), and says whether clients
    /// are to be told: it is something else than they have, or they may not have it.
    pub(crate) fn came(&self, place: &str, kind: Kind, source: &str, list: Option<&[Value]>) -> bool {
        let key = key(place, kind);
        let mut memory = self.lock();
        let mut known = memory.take(&key).unwrap_or_default();
        let before = known.last.remove(source);
        let is_news = match list {
            Some(list) => {
                let last = known.keep(to_json(&list), true);
                // Once is enough: a source that is late always, and for whose list there is no room, would be asked
                // without end.
                let is_news =
                    before.is_none_or(|before| before.hash != last.hash || (before.text.is_none() && !before.is_told));
                known.last.insert(source.to_owned(), last);
                is_news
            }
            // What stood for it so far does so no more.
            None => before.is_some_and(|before| before.text.is_some()),
        };
        if is_news {
            (known.is_whole, known.made) = (false, None);
        }
        memory.put(key, known);
        is_news
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(place: &str, kind: Kind) -> Key {
    (place.to_owned(), kind)
}

impl Memory {
    fn take(&mut self, key: &Key) -> Option<Known> {
        let known = self.all.remove(key)?;
        self.bytes = self.bytes.saturating_sub(known.size());
        Some(known)
    }

    fn put(&mut self, key: Key, mut known: Known) {
        if known.size() > MAX_BYTES {
            (known.owners, known.is_whole, known.made) = (Owns::default(), false, None);
        }
        let size = known.size();
        // They are made again when they are asked for.
        if self.all.len() >= MAX_REMEMBERED || self.bytes + size > MAX_BYTES {
            (self.all, self.bytes) = (HashMap::new(), 0);
        }
        self.bytes += size;
        self.all.insert(key, known);
    }
}

impl Known {
    fn keep(&self, text: Vec<u8>, is_told: bool) -> Last {
        let hash = ContentHash::of_bytes(&text);
        let text = (self.listed() + text.len() <= MAX_LISTED).then(|| text.into());
        Last { hash, text, is_told }
    }

    fn is_of(&self, sources: &[Arc<dyn Provider>]) -> bool {
        let is_same = |(one, other): (&Weak<_>, &Arc<_>)| std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(other));
        self.sources.len() == sources.len() && self.sources.iter().zip(sources).all(is_same)
    }

    fn listed(&self) -> usize {
        self.last.values().filter_map(|last| last.text.as_ref()).map(|text| text.len()).sum()
    }

    fn size(&self) -> usize {
        let of = |(shown, owned): (&String, &Owned)| ENTRY + shown.len() + owned.server.len() + owned.own.len();
        let sources = self.last.keys().map(|source| ENTRY + source.len()).sum::<usize>();
        let sources = sources + size_of_val(&*self.sources);
        ENTRY + sources + self.listed() + self.owners.iter().map(of).sum::<usize>()
    }
}

impl Caller {
    /// Whose lists are remembered: the caller's, at this address.
    pub(crate) fn place(&self) -> String {
        format!("{} at {}", self.session.principal.id, self.view.scope.path())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KIND: Kind = Kind::Prompts;

    fn list(bytes: usize) -> Vec<Value> {
        vec![json!({"name": "x".repeat(bytes)})]
    }

    fn listed(bytes: usize) -> Said {
        Said::List(to_json(&list(bytes)))
    }

    fn is_whole(owners: &Owners) -> bool {
        matches!(owners.standing("p", KIND, &[]), Some(Standing::Whole(_)))
    }

    fn last(owners: &Owners) -> Option<Vec<Value>> {
        owners.last("p", KIND, "a").map(|(_, list)| list)
    }

    #[test]
    fn what_lacks_a_source_is_not_whole() {
        let kept = |bytes| Said::Kept(ContentHash::of_bytes(&to_json(&list(bytes))));
        for (said, is_whole) in
            [(listed(1), true), (kept(1), true), (kept(2), false), (Said::Missed, false), (Said::Failed, false)]
        {
            let owners = Owners::default();
            owners.remember("p", KIND, Owns::default(), vec![("a", Said::Missed), ("b", listed(1))], &[]);
            assert!(!self::is_whole(&owners));
            owners.remember("p", KIND, Owns::default(), vec![("a", listed(1)), ("b", said)], &[]);
            assert_eq!(self::is_whole(&owners), is_whole);
            assert!(owners.of("p", KIND).is_some());
        }
    }

    #[test]
    fn what_comes_late_is_told_if_clients_do_not_have_it() {
        const LARGE: usize = MAX_LISTED + 1;
        for (before, came, is_news) in [
            (None, 1, true),
            (Some(Said::Missed), 1, true),
            (Some(Said::Failed), 1, true),
            (Some(listed(1)), 1, false),
            (Some(listed(1)), 2, true),
            (Some(listed(LARGE)), LARGE, true),
        ] {
            let owners = Owners::default();
            if let Some(said) = before {
                owners.remember("p", KIND, Owns::default(), vec![("a", said)], &[]);
            }
            assert_eq!(owners.came("p", KIND, "a", Some(&list(came))), is_news, "{came}");
            assert_eq!(owners.standing("p", KIND, &[]).is_some(), !is_news, "{came}");
            assert_eq!(last(&owners), (came < LARGE).then(|| list(came)), "{came}");
            // Whether or not there is room: a client that lists again upon it is not told for ever.
            owners.remember("p", KIND, Owns::default(), vec![("a", Said::Missed)], &[]);
            assert!(!owners.came("p", KIND, "a", Some(&list(came))), "{came}");
            owners.remember("p", KIND, Owns::default(), vec![("a", Said::Failed)], &[]);
            assert_eq!(last(&owners), None);
        }
    }

    #[test]
    fn a_failure_that_comes_late_takes_away_what_stood_for_the_source() {
        let owners = Owners::default();
        assert!(!owners.came("p", KIND, "a", None), "nobody was shown anything");
        owners.remember("p", KIND, Owns::default(), vec![("a", listed(1))], &[]);
        assert!(owners.came("p", KIND, "a", None));
        assert!(last(&owners).is_none() && owners.standing("p", KIND, &[]).is_none());
        assert!(!owners.came("p", KIND, "a", None), "once is enough");
        assert!(owners.came("p", KIND, "a", Some(&list(1))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_lacks_a_source_stands_for_a_while() {
        let owners = Owners::default();
        let remember = |said| owners.remember("p", KIND, Owns::default(), vec![("a", said), ("b", listed(1))], &[]);
        let is_lacking = || matches!(owners.standing("p", KIND, &[]), Some(Standing::Lacking(_)));
        remember(Said::Failed);
        tokio::time::advance(LACKING - Duration::from_secs(1)).await;
        assert!(is_lacking());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(owners.standing("p", KIND, &[]).is_none());
        remember(Said::Missed);
        assert!(is_lacking());
        owners.came("p", KIND, "a", Some(&list(1)));
        assert!(owners.standing("p", KIND, &[]).is_none(), "what was missing is there now");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let owners = Owners::default();
        for place in 0..2 * MAX_REMEMBERED {
            owners.remember(&format!("small {place}"), KIND, Owns::default(), vec![("a", listed(1))], &[]);
            assert!(owners.lock().all.len() <= MAX_REMEMBERED);
        }
        for place in 0..2 * MAX_BYTES / MAX_LISTED {
            let place = place.to_string();
            let said = vec![("a", listed(MAX_LISTED / 2)), ("b", listed(MAX_LISTED / 2)), ("c", listed(9))];
            owners.remember(&place, KIND, Owns::default(), said, &[]);
            for (source, is_kept) in [("a", true), ("b", false), ("c", true)] {
                assert_eq!(owners.last(&place, KIND, source).is_some(), is_kept, "{source}");
            }
            owners.came(&place, KIND, "b", Some(&list(MAX_LISTED / 4)));
            let memory = owners.lock();
            assert!(memory.bytes <= MAX_BYTES, "{}", memory.bytes);
            assert_eq!(memory.bytes, memory.all.values().map(Known::size).sum::<usize>());
        }
        assert!(owners.lock().all.len() > 1);
        let owned = |n: usize| (n.to_string(), Owned { server: "a".into(), own: "x".repeat(1 << 20) });
        let many: Owns = Arc::new((0..40).map(owned).collect());
        owners.remember("p", KIND, many, vec![("a", listed(5))], &[]);
        assert!(owners.lock().bytes <= MAX_BYTES && owners.standing("p", KIND, &[]).is_none());
        assert_eq!(last(&owners), Some(list(5)));
    }
}
