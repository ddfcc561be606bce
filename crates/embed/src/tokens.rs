//! Texts as the tokens that the model was trained on.

use std::path::Path;

use tokenizers::{PostProcessor as _, Tokenizer, TruncationParams};

use crate::directory::{LoadError, Settings, tokenizer};

/// Bytes of a text that are looked at, for each token that may come of it. Words have a token for every few
/// bytes, so what is cut away here would not have come before the model anyway.
const BYTES_A_TOKEN: usize = 64;

/// A tokenizer with the limits of its model.
pub(crate) struct Tokens {
    tokenizer: Tokenizer,
    max_bytes: usize,
    lower_case: bool,
}

impl Tokens {
    /// Reads `tokenizer.json`. Its own padding and cutting are those of some training run and do not count.
    pub(crate) fn load(dir: &Path, settings: &Settings) -> Result<Self, LoadError> {
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

    /// The tokens of a text, special ones included.
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
