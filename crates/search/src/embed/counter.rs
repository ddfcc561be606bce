//! Counts tokens as a model does, with its `tokenizer.json`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokenizers::Tokenizer;
use toolwright_core::context::{EstimatedTokens, Exactness, TokenCounter};

use super::directory::{self, LoadError};

/// Number of cached counts: each turn counts a conversation again, which grows at its end.
const MAX_KNOWN: usize = 16_384;

/// Counts tokens with a model's `tokenizer.json`. The file is read at the first count, which takes a second for a large
/// vocabulary and some hundred megabytes. An unreadable file causes one warning, and counts are estimates.
pub struct TokenTable {
    path: PathBuf,
    table: OnceLock<Option<Tokenizer>>,
    known: Mutex<HashMap<(u64, usize), usize>>,
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenTable").field("path", &self.path).finish_non_exhaustive()
    }
}

impl TokenTable {
    /// A counter with this file, which is not opened yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Arc<Self> {
        Arc::new(Self { path: path.into(), table: OnceLock::new(), known: Mutex::default() })
    }

    /// Checks that a file is a tokenizer.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn check(path: &Path) -> Result<(), LoadError> {
        load(path).map(drop)
    }

    /// Whether the file is loaded.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.table.get().is_some()
    }

    fn table(&self) -> Option<&Tokenizer> {
        let read = || load(&self.path).inspect_err(|error| tracing::warn!("tokens are estimated: {error}")).ok();
        self.table.get_or_init(read).as_ref()
    }
}

fn load(path: &Path) -> Result<Tokenizer, LoadError> {
    let bytes = directory::tokenizer_file(path)?;
    let damaged = |problem: String| LoadError::Damaged { path: path.to_owned(), problem };
    // Libraries panic on some files that no check foresaw.
    let read = std::panic::catch_unwind(|| Tokenizer::from_bytes(bytes));
    let mut tokenizer = match read {
        Ok(Ok(tokenizer)) => tokenizer,
        Ok(Err(error)) => return Err(damaged(error.to_string())),
        Err(_) => return Err(damaged("it is no tokenizer".into())),
    };
    // Remove the padding of some training run.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| damaged(error.to_string()))?;
    Ok(tokenizer)
}

impl TokenCounter for TokenTable {
    fn count(&self, text: &str) -> (usize, Exactness) {
        let estimated = || (EstimatedTokens::of_bytes(text.len()), Exactness::Estimate);
        let Some(table) = self.table() else { return estimated() };
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let key = (hasher.finish(), text.len());
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&count) = known().get(&key) {
            return (count, Exactness::Exact);
        }
        let Ok(encoding) = table.encode_fast(text, false) else { return estimated() };
        let count = encoding.len();
        let mut known = known();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, count);
        (count, Exactness::Exact)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A tokenizer of whole words.
    fn words(dir: &Path) -> PathBuf {
        let path = dir.join("tokenizer.json");
        let tokenizer = json!({
            "version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "gate": 1}, "unk_token": "[UNK]"},
        });
        std::fs::write(&path, tokenizer.to_string()).expect("written");
        path
    }

    #[test]
    fn token_files_are_read_at_first_use() {
        let dir = tempfile::tempdir().expect("dir");
        let table = TokenTable::new(words(dir.path()));
        assert!(!table.is_loaded());
        for _ in 0..2 {
            assert_eq!(table.count("the gate is shut, the gate is open"), (9, Exactness::Exact));
        }
        assert_eq!(table.count(""), (0, Exactness::Exact));
        assert!(table.is_loaded());
    }

    #[test]
    fn missing_token_files_warn_and_estimate() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("tokenizer.json");
        for (content, why) in [(None, "cannot be read"), (Some("{}"), "damaged")] {
            if let Some(content) = content {
                std::fs::write(&path, content).expect("written");
            }
            let error = TokenTable::check(&path).expect_err("no tokenizer").to_string();
            assert!(error.contains(why), "{error}");
            assert_eq!(TokenTable::new(&path).count("eight by"), (2, Exactness::Estimate));
        }
    }
}
