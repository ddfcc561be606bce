//! Sentence embeddings from a sentence-transformer directory, on the CPU.
//!
//! [`SentenceTransformer::load`] reads the directory as its authors publish it, for BERT and `RoBERTa` models:
//!
//! | file | content |
//! |---|---|
//! | `config.json` | the shape of the model |
//! | `tokenizer.json` | the tokenizer |
//! | `model.safetensors` | the weights: f32, f16 or bf16 |
//! | `modules.json`, `1_Pooling/config.json` (optional) | mean or CLS pooling; without them, mean |
//! | `sentence_bert_config.json` (optional) | the maximal length of a text in tokens, and whether to use lower case |
//! | `config_sentence_transformers.json` (optional) | prefixes of queries and documents |
//!
//! [`TokenTable`] counts tokens by the `tokenizer.json` of any model.
//!
//! Nothing is downloaded, and no code of the directory is run.

mod bert;
mod counter;
mod directory;
mod model;

pub use counter::TokenTable;
pub use directory::LoadError;
pub use model::SentenceTransformer;
