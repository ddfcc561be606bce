//! A loaded sentence-transformer.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokenizers::{PostProcessor as _, Tokenizer, TruncationParams};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use toolwright_core::embedding::{Embedder, EmbeddingError, TextRole};

use super::bert::Bert;
use super::directory::{EncoderConfig, LoadError, Pooling, tokenizer, weights};

/// Texts processed together: enough to batch some of similar length.
const BATCH_TEXTS: usize = 512;
/// Tokens per batch, including padding. Larger batches are no faster, and make other
/// requests wait longer.
const BATCH_TOKENS: usize = 1024;
/// Pieces of the weights that go into the model's id, and their length in bytes.
const SAMPLES: usize = 64;
const SAMPLE: usize = 16 << 10;

/// A BERT model that embeds texts. Read-only, so cheap to share.
///
/// Texts are processed in batches of similar length, one batch at a time, on a blocking thread with as many
/// threads as there are cores (`RAYON_NUM_THREADS` sets fewer). Requests alternate batch by batch,
/// so that a query waits for one batch, not for a catalogue.
pub struct SentenceTransformer {
    id: String,
    model: Arc<Model>,
    turn: Arc<Mutex<()>>,
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

struct Model {
    settings: EncoderConfig,
    tokens: Tokens,
    bert: Bert,
}

impl std::fmt::Debug for SentenceTransformer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentenceTransformer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SentenceTransformer {
    /// Reads a directory. Blocks while it reads: some tenths of a second for a model of 100 MB, which is held
    /// in memory as f32.
    ///
    /// # Errors
    /// [`LoadError`], naming the file.
    pub fn load(dir: &Path) -> Result<Self, LoadError> {
        let settings = EncoderConfig::read(dir)?;
        let tokens = Tokens::load(dir, &settings)?;
        let (path, weights) = weights(dir)?;
        let bert = Bert::load(&weights, &settings.shape)
            .map_err(|error| LoadError::Damaged { path, problem: error.to_string() })?;
        let name = dir.canonicalize().ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
        let id =
            format!("{}-{}", name.as_deref().unwrap_or("model"), fingerprint(&settings, &tokenizer(dir)?.1, &weights));
        Ok(Self { id, model: Arc::new(Model { settings, tokens, bert }), turn: Arc::default() })
    }

    /// The dimension of its vectors.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.model.settings.shape.hidden_size
    }

    /// Runs `work` on a blocking thread, in turn. A caller that goes away leaves at most one
    /// piece of work running.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Model) -> Result<T, Cause> + Send + 'static,
    ) -> Result<T, Cause> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let model = Arc::clone(&self.model);
        let done = spawn_blocking(move || {
            let _turn = turn;
            work(&model)
        });
        // A panic of the libraries on unexpected weights becomes an error.
        done.await.unwrap_or_else(|error| Err(error.into()))
    }

    fn failed(&self, what: &str, error: impl Into<Cause>) -> EmbeddingError {
        let error = error.into();
        let message = format!("embedding model {}: {what}: {error}; download its directory again", self.id);
        EmbeddingError { source: Some(error), message }
    }
}

#[async_trait]
impl Embedder for SentenceTransformer {
    fn id(&self) -> &str {
        &self.id
    }

    async fn embed(&self, texts: &[&str], role: TextRole) -> Result<Vec<Vec<f32>>, EmbeddingError> {
        let settings = &self.model.settings;
        let prompt = match role {
            TextRole::Query => &settings.query_prompt,
            TextRole::Tool => &settings.document_prompt,
        };
        let mut vectors = Vec::with_capacity(texts.len());
        for portion in texts.chunks(BATCH_TEXTS) {
            let portion: Vec<String> = portion.iter().map(|text| format!("{prompt}{text}")).collect();
            let tokens = self.run(move |model| portion.iter().map(|text| model.tokens.of(text)).collect()).await;
            let tokens: Vec<_> = tokens.map_err(|error| self.failed("a text cannot be split into tokens", error))?;
            let mut by_length: Vec<(usize, Vec<u32>)> = tokens.into_iter().enumerate().collect();
            by_length.sort_by_key(|(_, tokens)| tokens.len());
            let mut pooled = vec![Vec::new(); by_length.len()];
            while !by_length.is_empty() {
                let batch = by_length.split_off(batch_start(&by_length));
                let (places, rows): (Vec<usize>, Vec<Vec<u32>>) = batch.into_iter().unzip();
                let done = self.run(move |model| model.vectors(&rows)).await;
                let done = done.map_err(|error| self.failed("a text cannot be computed", error))?;
                for (place, vector) in places.into_iter().zip(done) {
                    pooled[place] = vector;
                }
            }
            vectors.append(&mut pooled);
        }
        if vectors.iter().flatten().any(|number| !number.is_finite()) {
            return Err(self.failed("its output is not a number", "its weights are damaged"));
        }
        Ok(vectors)
    }
}

impl Model {
    /// Returns a normalised vector for each row of tokens.
    fn vectors(&self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Cause> {
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let state = self.bert.forward(&rows)?.to_vec3::<f32>()?;
        Ok(rows.iter().zip(state).map(|(row, states)| pool(&states[..row.len()], self.settings.pooling)).collect())
    }
}

/// Pools token vectors into one normalised vector.
fn pool(states: &[Vec<f32>], pooling: Pooling) -> Vec<f32> {
    let taken = match pooling {
        Pooling::Mean => states,
        Pooling::Cls => &states[..states.len().min(1)],
    };
    let mut sum = vec![0.0; taken.first().map_or(0, Vec::len)];
    for state in taken {
        sum.iter_mut().zip(state).for_each(|(sum, number)| *sum += number);
    }
    // A mean is a scaled sum, and the result is normalised anyway.
    let length = sum.iter().map(|number| number * number).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    sum.iter_mut().for_each(|number| *number /= length);
    sum
}

/// Returns the start of the last batch among texts sorted by length.
fn batch_start(by_length: &[(usize, Vec<u32>)]) -> usize {
    let longest = by_length.last().map_or(1, |(_, tokens)| tokens.len().max(1));
    by_length.len().saturating_sub((BATCH_TOKENS / longest).max(1))
}

/// Identifies a model by its settings, tokenizer and samples of its weights. Training changes every
/// weight, so equal samples mean equal models.
fn fingerprint(settings: &EncoderConfig, tokenizer: &[u8], weights: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(json!(settings).to_string());
    hash.update(Sha256::digest(tokenizer));
    hash.update((weights.len() as u64).to_le_bytes());
    for sample in weights.chunks((weights.len() / SAMPLES).max(SAMPLE)) {
        hash.update(&sample[..sample.len().min(SAMPLE)]);
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of a text that are read per possible token. Words have a token for every few
/// bytes, so the model would not see the rest anyway.
const BYTES_A_TOKEN: usize = 64;

/// A tokenizer with its model's limits.
pub(crate) struct Tokens {
    tokenizer: Tokenizer,
    max_bytes: usize,
    lower_case: bool,
}

impl Tokens {
    /// Reads `tokenizer.json`, ignoring its padding and truncation, which belong to some training run.
    pub(crate) fn load(dir: &Path, settings: &EncoderConfig) -> Result<Self, LoadError> {
        let (path, bytes) = tokenizer(dir)?;
        let damaged = |problem: String| LoadError::Damaged { path: path.clone(), problem };
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| damaged(error.to_string()))?;
        let highest = tokenizer.get_vocab(true).into_values().max();
        let vocabulary = settings.shape.vocab_size;
        if highest.is_none_or(|id| id as usize >= vocabulary) {
            return Err(damaged(format!("its tokens do not fit the vocabulary of {vocabulary} in config.json")));
        }
        // The library subtracts one from the other.
        if settings.max_tokens <= tokenizer.get_post_processor().map_or(0, |added| added.added_tokens(false)) {
            return Err(damaged(format!("{} tokens leave no room for a text", settings.max_tokens)));
        }
        let truncation = TruncationParams { max_length: settings.max_tokens, ..TruncationParams::default() };
        tokenizer.with_padding(None);
        tokenizer.with_truncation(Some(truncation)).map_err(|error| damaged(error.to_string()))?;
        let max_bytes = settings.max_tokens.saturating_mul(BYTES_A_TOKEN);
        Ok(Self { tokenizer, max_bytes, lower_case: settings.lower_case })
    }

    /// Returns the tokens of a text, including special ones.
    pub(crate) fn of(&self, text: &str) -> Result<Vec<u32>, tokenizers::Error> {
        let text = &text[..text.floor_char_boundary(self.max_bytes)];
        let encoding = if self.lower_case {
            self.tokenizer.encode_fast(text.to_lowercase(), true)
        } else {
            self.tokenizer.encode_fast(text, true)
        }?;
        Ok(encoding.get_ids().to_vec())
    }
}
