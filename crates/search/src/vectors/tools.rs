//! The vectors of a catalogue's tools, each computed once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::{DocumentKey, Quantized, Searchable, Vectors};
use tokio::task::spawn_blocking;
use toolwright_core::ContentHash;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::embedding::{Embedder, EmbeddingError, TextRole};

use super::cache::{TextKey, VectorCache};
use super::sentences;

/// Tools whose vectors are computed before they are stored; a dropped caller loses no more than these.
const BATCH: usize = 16;
/// Number of tools processed before the task yields.
const TOOLS_PER_YIELD: usize = 128;
/// Number of cached builds: agents with different tool lists alternate.
const BUILDS: usize = 8;
/// Vectors of queries that are remembered.
const QUERIES: usize = 64;

/// The vectors of one model for tools and queries. Shared by `Arc`.
///
/// A vector is computed once for a tool's texts, in any process: it is looked up in the last 8 builds, then
/// on disk. One build runs at a time; concurrent callers wait for it and reuse its results.
pub struct ToolVectors {
    embedder: Arc<dyn Embedder>,
    cache: Option<Arc<VectorCache>>,
    /// The latest used last.
    builds: Mutex<VecDeque<Build>>,
    /// Vectors of unfinished builds. Held by the running build.
    unfinished: tokio::sync::Mutex<HashMap<TextKey, Quantized>>,
    /// Oldest first.
    queries: Mutex<VecDeque<Query>>,
}

/// The vectors of some list of tools.
#[derive(Clone)]
struct Build {
    /// The snapshot of these tools, if any.
    snapshot: Weak<Snapshot>,
    keys: Arc<[DocumentKey]>,
    vectors: Arc<Vectors>,
}

/// The hash of a query, and its vector.
type Query = (TextKey, Arc<[f32]>);

/// The embedded texts of one tool.
type Texts = [String; 3];

/// Source of a tool's vector.
enum Source {
    /// This place in a build.
    Place(Arc<Vectors>, usize),
    /// Its texts.
    Texts(TextKey),
}

impl std::fmt::Debug for ToolVectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolVectors").field("model", &self.embedder.id()).finish_non_exhaustive()
    }
}

impl ToolVectors {
    /// Vectors of `embedder`, cached in the directory `kept` if given.
    #[must_use]
    pub fn new(embedder: Arc<dyn Embedder>, kept: Option<&Path>) -> Self {
        let cache = kept.map(|dir| Arc::new(VectorCache::new(dir, embedder.id())));
        Self {
            embedder,
            cache,
            builds: Mutex::default(),
            unfinished: tokio::sync::Mutex::default(),
            queries: Mutex::default(),
        }
    }

    /// Returns the vectors of `tools`, by position. Computes new ones: seconds for a thousand tools on a
    /// CPU. The future may be dropped at any time; computed vectors are kept.
    ///
    /// # Errors
    /// The embedder's.
    pub async fn of<T: Searchable + Sync>(&self, tools: &[T]) -> Result<Arc<Vectors>, EmbeddingError> {
        let keys: Arc<[DocumentKey]> = tools.iter().map(Searchable::key).collect();
        let known = || self.built(|build| build.keys == keys);
        if let Some(vectors) = known() {
            return Ok(vectors);
        }
        let mut unfinished = self.unfinished.lock().await;
        if let Some(vectors) = known() {
            return Ok(vectors);
        }
        let builds: Vec<Build> = self.builds().iter().cloned().collect();
        let (sources, mut missing) = sources(&builds, tools, &keys).await;
        let kept = self.stored_vectors(missing.keys().copied().collect()).await;
        unfinished.extend(kept);
        missing.retain(|key, _| !unfinished.contains_key(key));
        // Alike in length, they go through a model without much padding.
        let mut missing: Vec<(TextKey, Texts)> = missing.into_iter().collect();
        missing.sort_unstable_by_key(|(key, texts)| (texts.iter().map(String::len).sum::<usize>(), *key));
        let length = |vector: Option<&Quantized>| vector.map(|vector| vector.numbers.len());
        let before = builds.iter().map(|build| build.vectors.dimensions()).max().unwrap_or_default();
        let mut dimensions = length(unfinished.values().next()).unwrap_or(before);
        for batch in missing.chunks(BATCH) {
            let computed = self.compute(batch).await?;
            dimensions = length(computed.first().map(|(_, vector)| vector)).unwrap_or(dimensions);
            unfinished.extend(computed.iter().cloned());
            self.keep(computed).await;
        }
        let found = std::mem::take(&mut *unfinished);
        let vectors = sources.into_iter().map(|source| match source {
            Source::Place(vectors, place) => vectors.get(place),
            Source::Texts(key) => found.get(&key).cloned(),
        });
        let vectors = Arc::new(Vectors::build(dimensions, vectors));
        let mut builds = self.builds();
        if builds.len() == BUILDS {
            builds.pop_front();
        }
        builds.push_back(Build { snapshot: Weak::new(), keys, vectors: Arc::clone(&vectors) });
        Ok(vectors)
    }

    /// Like [`of`](Self::of), for a snapshot's tools. A repeated call for the same snapshot returns the same result
    /// without looking at them.
    ///
    /// # Errors
    /// The embedder's.
    pub async fn of_snapshot(&self, snapshot: &Arc<Snapshot>) -> Result<Arc<Vectors>, EmbeddingError> {
        let same = Arc::downgrade(snapshot);
        if let Some(vectors) = self.built(|build| build.snapshot.ptr_eq(&same)) {
            return Ok(vectors);
        }
        let vectors = self.of(snapshot.list()).await?;
        if let Some(build) = self.builds().iter_mut().find(|build| Arc::ptr_eq(&build.vectors, &vectors)) {
            build.snapshot = same;
        }
        Ok(vectors)
    }

    /// The vectors of a build that is remembered.
    fn built(&self, is_it: impl Fn(&Build) -> bool) -> Option<Arc<Vectors>> {
        let mut builds = self.builds();
        let place = builds.iter().position(is_it)?;
        let build = builds.remove(place)?;
        let vectors = Arc::clone(&build.vectors);
        builds.push_back(build);
        Some(vectors)
    }

    fn builds(&self) -> MutexGuard<'_, VecDeque<Build>> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vector of a query. The last 64 are remembered.
    ///
    /// # Errors
    /// The embedder's.
    pub async fn query(&self, text: &str) -> Result<Arc<[f32]>, EmbeddingError> {
        let key = *ContentHash::of_bytes(text.as_bytes()).as_bytes();
        if let Some(vector) = self.remembered(&key) {
            return Ok(vector);
        }
        let vector = self.embedder.embed(&[text], TextRole::Query).await?.pop();
        let vector: Arc<[f32]> = vector.ok_or_else(|| self.wrong_vector_count())?.into();
        self.keep_only_model(vector.len()).await?;
        let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        queries.push_back((key, Arc::clone(&vector)));
        if queries.len() > QUERIES {
            queries.pop_front();
        }
        Ok(vector)
    }

    /// Whether [`ToolVectors::query`] has this text's vector cached.
    #[must_use]
    pub fn remembers(&self, text: &str) -> bool {
        self.remembered(ContentHash::of_bytes(text.as_bytes()).as_bytes()).is_some()
    }

    fn remembered(&self, key: &TextKey) -> Option<Arc<[f32]>> {
        let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        let place = queries.iter().position(|(known, _)| known == key)?;
        let query = queries.remove(place)?;
        let vector = Arc::clone(&query.1);
        queries.push_back(query);
        Some(vector)
    }

    /// The name may denote another model one day, for which old vectors are useless.
    async fn keep_only_model(&self, dimensions: usize) -> Result<(), EmbeddingError> {
        let Ok(mut unfinished) = self.unfinished.try_lock() else { return Ok(()) };
        let is_other = |build: &Build| !build.vectors.is_empty() && build.vectors.dimensions() != dimensions;
        if !self.builds().iter().any(is_other) {
            return Ok(());
        }
        self.builds().clear();
        unfinished.clear();
        if let Some(cache) = self.cache.clone() {
            let _ = spawn_blocking(move || cache.clear()).await;
        }
        let id = self.embedder.id();
        Err(EmbeddingError::new(format!("{id} is another model now: its vectors are computed again")))
    }

    async fn compute(&self, batch: &[(TextKey, Texts)]) -> Result<Vec<(TextKey, Quantized)>, EmbeddingError> {
        let mut distinct: Vec<&str> = batch.iter().flat_map(|(_, texts)| texts).map(String::as_str).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let computed = self.embedder.embed(&distinct, TextRole::Tool).await?;
        if computed.len() != distinct.len() {
            return Err(self.wrong_vector_count());
        }
        let by_text: HashMap<&str, Vec<f32>> = distinct.into_iter().zip(computed).collect();
        let vector = |texts: &Texts| sentences::vector(texts.each_ref().map(|text| &*by_text[text.as_str()]));
        Ok(batch.iter().map(|(key, texts)| (*key, Quantized::of(&vector(texts)))).collect())
    }

    /// Reads these texts' vectors from disk.
    async fn stored_vectors(&self, wanted: HashSet<TextKey>) -> HashMap<TextKey, Quantized> {
        match self.cache.clone() {
            Some(cache) if !wanted.is_empty() => spawn_blocking(move || cache.read(&wanted)).await.unwrap_or_default(),
            _ => HashMap::new(),
        }
    }

    /// Stores vectors on disk. A failure only costs computing them again in the next process.
    async fn keep(&self, vectors: Vec<(TextKey, Quantized)>) {
        let Some(cache) = self.cache.clone() else { return };
        if let Ok(Err(error)) = spawn_blocking(move || cache.append(&vectors)).await {
            tracing::debug!("vectors of tools are not kept: {error}");
        }
    }

    fn wrong_vector_count(&self) -> EmbeddingError {
        EmbeddingError::new(format!("{} gave another number of vectors than it was asked for", self.embedder.id()))
    }
}

/// Returns the source of each vector, and the texts to compute.
async fn sources<T: Searchable + Sync>(
    builds: &[Build],
    tools: &[T],
    keys: &[DocumentKey],
) -> (Vec<Source>, HashMap<TextKey, Texts>) {
    let wanted: HashSet<DocumentKey> = keys.iter().copied().collect();
    let mut places: HashMap<DocumentKey, (&Arc<Vectors>, usize)> = HashMap::new();
    for build in builds {
        let known = build.keys.iter().enumerate().filter(|(_, key)| wanted.contains(key));
        places.extend(known.map(|(place, key)| (*key, (&build.vectors, place))));
        tokio::task::yield_now().await;
    }
    let mut sources = Vec::with_capacity(tools.len());
    let mut missing = HashMap::new();
    for (tool, key) in tools.iter().zip(keys) {
        if sources.len() % TOOLS_PER_YIELD == 0 {
            tokio::task::yield_now().await;
        }
        sources.push(match places.get(key) {
            Some((vectors, place)) => Source::Place(Arc::clone(vectors), *place),
            None => {
                let texts = sentences::texts(&tool.document());
                let key = *sentences::key(&texts).as_bytes();
                missing.insert(key, texts);
                Source::Texts(key)
            }
        });
    }
    (sources, missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Document;
    use std::time::Duration;

    struct Tool(u64, String);

    impl Searchable for Tool {
        fn key(&self) -> DocumentKey {
            DocumentKey(self.0, 0)
        }
        fn document(&self) -> Document<'_> {
            Document { name: &self.1, ..Document::default() }
        }
    }

    fn tools(numbers: std::ops::Range<u64>) -> Vec<Tool> {
        numbers.map(|n| Tool(n, format!("t{n}"))).collect()
    }

    /// Derives a vector from a text's letters. It records the requested texts, and from a given text on it fails or
    /// never answers.
    #[derive(Default)]
    struct Letters {
        asked: Mutex<Vec<String>>,
        dimensions: usize,
        stops_after: Option<usize>,
        hangs: bool,
    }

    #[async_trait::async_trait]
    impl Embedder for Letters {
        fn id(&self) -> &str {
            "letters"
        }
        async fn embed(&self, texts: &[&str], _role: TextRole) -> Result<Vec<Vec<f32>>, EmbeddingError> {
            if self.stops_after.is_some_and(|most| self.asked().len() >= most) {
                if self.hangs {
                    std::future::pending::<()>().await;
                }
                return Err(EmbeddingError::new("worn out"));
            }
            self.asked.lock().unwrap().extend(texts.iter().map(|text| (*text).to_owned()));
            let vector = |text: &&str| {
                let mut vector = vec![0.0; self.dimensions];
                text.bytes().enumerate().for_each(|(n, byte)| vector[n % self.dimensions] += f32::from(byte));
                vector
            };
            Ok(texts.iter().map(vector).collect())
        }
    }

    impl Letters {
        fn new() -> Arc<Self> {
            Arc::new(Self { dimensions: 8, ..Self::default() })
        }
        fn asked(&self) -> Vec<String> {
            self.asked.lock().unwrap().clone()
        }
    }

    #[tokio::test]
    async fn each_text_is_computed_once() {
        let letters = Letters::new();
        let vectors = ToolVectors::new(Arc::clone(&letters) as _, None);
        let first = vectors.of(&tools(0..300)).await.unwrap();
        assert_eq!((first.len(), letters.asked().len()), (300, 300));
        assert!(Arc::ptr_eq(&first, &vectors.of(&tools(0..300)).await.unwrap()));

        let mut others = tools(100..302);
        others.push(Tool(999, "t300".into()));
        let second = vectors.of(&others).await.unwrap();
        assert_eq!(letters.asked()[300..], ["t 300", "t 301"]);
        assert_eq!(second.get(0), first.get(100));
        assert_eq!(second.get(200), second.get(202));
        assert!(vectors.of::<Tool>(&[]).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn different_agents_do_not_evict_each_other() {
        let vectors = ToolVectors::new(Letters::new(), None);
        let first = vectors.of(&tools(0..30)).await.unwrap();
        for others in 1..BUILDS as u64 {
            vectors.of(&tools(others..others + 20)).await.unwrap();
        }
        assert!(Arc::ptr_eq(&first, &vectors.of(&tools(0..30)).await.unwrap()));
        for others in 0..3 * BUILDS as u64 {
            vectors.of(&tools(others..others + 5)).await.unwrap();
        }
        assert_eq!(vectors.builds().len(), BUILDS);
        assert!(!Arc::ptr_eq(&first, &vectors.of(&tools(0..30)).await.unwrap()));
    }

    #[tokio::test]
    async fn ready_indexes_wait_for_no_build() {
        let letters = Letters { dimensions: 8, stops_after: Some(3), hangs: true, ..Letters::default() };
        let vectors = Arc::new(ToolVectors::new(Arc::new(letters), None));
        let first = vectors.of(&tools(0..3)).await.unwrap();
        let hung = tokio::spawn({
            let vectors = Arc::clone(&vectors);
            async move { vectors.of(&tools(3..9)).await }
        });
        while vectors.unfinished.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(Arc::ptr_eq(&first, &vectors.of(&tools(0..3)).await.unwrap()));
        hung.abort();
    }

    #[tokio::test]
    async fn vectors_are_shared_between_processes() {
        let dir = tempfile::tempdir().unwrap();
        let built = ToolVectors::new(Letters::new(), Some(dir.path())).of(&tools(0..300)).await.unwrap();
        let letters = Letters::new();
        let again = ToolVectors::new(Arc::clone(&letters) as _, Some(dir.path())).of(&tools(0..301)).await.unwrap();
        assert_eq!(letters.asked(), ["t 300"]);
        assert!((0..300).all(|place| built.get(place) == again.get(place)));
    }

    #[tokio::test]
    async fn unwritable_caches_cost_nothing_else() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let vectors = ToolVectors::new(Letters::new(), Some(&file.path().join("below")));
        assert_eq!(vectors.of(&tools(0..3)).await.unwrap().len(), 3);
    }

    #[tokio::test]
    async fn vectors_computed_before_a_failure_are_kept() {
        for hangs in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let letters =
                Arc::new(Letters { dimensions: 8, stops_after: Some(2 * BATCH), hangs, ..Letters::default() });
            let vectors = ToolVectors::new(Arc::clone(&letters) as _, Some(dir.path()));
            let three = tools(0..3 * BATCH as u64);
            let ended = tokio::time::timeout(Duration::from_secs(1), vectors.of(&three)).await;
            assert_eq!(ended.is_err(), hangs);
            assert!(!matches!(ended, Ok(Ok(_))));
            assert_eq!(vectors.unfinished.lock().await.len(), 2 * BATCH);
            let letters = Letters::new();
            let again = ToolVectors::new(Arc::clone(&letters) as _, Some(dir.path()));
            assert_eq!(again.of(&three).await.unwrap().len(), 3 * BATCH);
            assert_eq!(letters.asked().len(), BATCH);
        }
    }

    #[tokio::test]
    async fn concurrent_requests_share_the_work() {
        let letters = Letters::new();
        let vectors = ToolVectors::new(Arc::clone(&letters) as _, None);
        let tools = tools(0..300);
        let (a, b) = tokio::join!(vectors.of(&tools), vectors.of(&tools));
        assert!(Arc::ptr_eq(&a.unwrap(), &b.unwrap()));
        assert_eq!(letters.asked().len(), 300);
    }

    #[tokio::test]
    async fn the_last_queries_are_remembered() {
        let letters = Letters::new();
        let vectors = ToolVectors::new(Arc::clone(&letters) as _, None);
        for n in (0..64).chain([0]).chain([64]) {
            vectors.query(&format!("q{n}")).await.unwrap();
        }
        assert_eq!(letters.asked().len(), 65);
        vectors.query("q0").await.unwrap();
        assert_eq!(letters.asked().len(), 65);
        vectors.query("q1").await.unwrap();
        assert_eq!(letters.asked().len(), 66);
    }

    #[tokio::test]
    async fn a_replaced_model_is_measured_again() {
        let dir = tempfile::tempdir().unwrap();
        ToolVectors::new(Letters::new(), Some(dir.path())).of(&tools(0..3)).await.unwrap();
        let other = Arc::new(Letters { dimensions: 9, ..Letters::default() });
        let vectors = ToolVectors::new(Arc::clone(&other) as _, Some(dir.path()));
        assert_eq!(vectors.of(&tools(0..3)).await.unwrap().dimensions(), 8);
        assert!(vectors.query("q").await.unwrap_err().to_string().contains("another model"));
        assert_eq!(vectors.of(&tools(0..3)).await.unwrap().dimensions(), 9);
        assert_eq!(vectors.query("q").await.unwrap().len(), 9);
    }
}
