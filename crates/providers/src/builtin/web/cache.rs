//! Caches recent pages of `web:fetch`, so that reading a page again or its next part needs no request.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::CACHE_CONTROL;

/// The most pages in the cache.
const MAX_PAGES: usize = 64;
/// The most bytes of all pages.
const MAX_BYTES: usize = 32 << 20;

/// Pages by key, the newest last.
#[derive(Debug)]
pub(super) struct PageCache<K, T> {
    pages: Mutex<Vec<Page<K, T>>>,
}

#[derive(Debug)]
struct Page<K, T> {
    key: K,
    until: Instant,
    bytes: usize,
    page: T,
}

impl<K, T> Default for PageCache<K, T> {
    fn default() -> Self {
        Self { pages: Mutex::default() }
    }
}

impl<K: PartialEq, T: Clone> PageCache<K, T> {
    /// Returns the page, if it may still be used.
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<T> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|page| page.until > now);
        pages.iter().find(|page| page.key == *key).map(|page| page.page.clone())
    }

    /// Stores a page of this many bytes; the oldest are dropped for it.
    pub(super) fn put(&self, key: K, page: T, bytes: usize, until: Instant) {
        if bytes > MAX_BYTES {
            return;
        }
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|page| page.key != key);
        while pages.len() >= MAX_PAGES || pages.iter().map(|page| page.bytes).sum::<usize>() + bytes > MAX_BYTES {
            pages.remove(0);
        }
        pages.push(Page { key, until, bytes, page });
    }
}

/// Returns how long a response may be reused: as the server allows (RFC 9111), at most `most`, which is also the
/// default.
pub(super) fn usable_for(headers: &HeaderMap, most: Duration) -> Duration {
    let lines = headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    let mut allowed = most;
    for word in lines.flat_map(|line| line.split(',')).map(|word| word.trim().to_ascii_lowercase()) {
        match word.split_once('=') {
            None if matches!(&*word, "no-store" | "no-cache" | "private") => return Duration::ZERO,
            Some(("max-age", seconds)) => {
                let seconds = seconds.trim_matches('"').parse().unwrap_or(0);
                allowed = allowed.min(Duration::from_secs(seconds));
            }
            _ => {}
        }
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_say_how_long_pages_are_used() {
        let check = |line: Option<&'static str>, expect: u64| {
            let mut headers = HeaderMap::new();
            headers.extend(line.map(|line| (CACHE_CONTROL, http::HeaderValue::from_static(line))));
            let most = Duration::from_secs(300);
            assert_eq!(usable_for(&headers, most), Duration::from_secs(expect), "{line:?}");
        };
        check(None, 300);
        check(Some("public, max-age=60"), 60);
        check(Some("max-age=86400"), 300);
        check(Some("max-age=soon"), 0);
        check(Some("No-Store"), 0);
        check(Some("private, max-age=60"), 0);
    }

    #[test]
    fn the_oldest_pages_make_room() {
        let cache = PageCache::default();
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        for key in 0..100 {
            cache.put(key, key, 1 << 20, later);
        }
        assert_eq!((cache.get(&67, now), cache.get(&68, now), cache.get(&99, now)), (None, Some(68), Some(99)));
        assert_eq!(cache.get(&99, later), None);
        cache.put(1, 1, MAX_BYTES + 1, later);
        assert_eq!(cache.get(&1, now), None);
    }
}
