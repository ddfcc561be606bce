//! The files of a sentence-transformer directory, read and judged.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest JSON file that is read: tokenizers with large vocabularies have 30 MB.
const MAX_JSON: u64 = 128 << 20;
/// The largest weights that are read: they are held in memory, as f32.
const MAX_WEIGHTS: u64 = 4 << 30;

/// Why a directory is not a usable sentence-transformer.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is missing or unreadable.
    #[error(
        "{} cannot be read: {source}; expected a sentence-transformer directory with config.json, tokenizer.json and \
         model.safetensors, as its authors publish it (to count tokens, the tokenizer.json is enough)",
        .path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file has the wrong format.
    #[error("{} is damaged or of another model: {problem}; download it again, with all its files", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// The model needs something that is not built in.
    #[error(
        "{}: {problem} is not supported; choose a BERT or RoBERTa model with mean or CLS pooling, or serve this one \
         over an embeddings API",
        .path.display()
    )]
    Unsupported {
        /// The file with the requirement.
        path: PathBuf,
        /// The required feature.
        problem: String,
    },
}

/// Activation function of hidden layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Activation {
    /// Exact GELU, with the error function.
    Gelu,
    /// GELU approximated with `tanh`.
    #[serde(alias = "gelu_pytorch_tanh")]
    GeluNew,
    Relu,
}

/// The part of `config.json` that defines the model's shape.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Shape {
    model_type: String,
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) hidden_act: Activation,
    pub(crate) max_position_embeddings: usize,
    pub(crate) type_vocab_size: usize,
    pub(crate) layer_norm_eps: f64,
    #[serde(default)]
    pad_token_id: usize,
    position_embedding_type: Option<String>,
}

impl Shape {
    /// The position of the first token. `RoBERTa` counts from after the padding's position.
    pub(crate) fn first_position(&self) -> usize {
        if self.model_type == "bert" { 0 } else { self.pad_token_id.saturating_add(1) }
    }
}

/// How token vectors are combined into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Pooling {
    /// Their mean.
    Mean,
    /// The first of them.
    Cls,
}

/// Everything in the directory but tokenizer and weights.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct EncoderConfig {
    pub(crate) shape: Shape,
    pub(crate) pooling: Pooling,
    /// Maximal tokens of a text, including special ones.
    pub(crate) max_tokens: usize,
    pub(crate) lower_case: bool,
    /// Prefix of every query.
    pub(crate) query_prompt: String,
    /// Prefix of every document.
    pub(crate) document_prompt: String,
}

impl EncoderConfig {
    pub(crate) fn read(dir: &Path) -> Result<Self, LoadError> {
        let shape = shape(dir)?;
        let pooling = pooling(dir)?;
        let limits: Limits = optional_json(dir, "sentence_bert_config.json")?.unwrap_or_default();
        let prompts: Prompts = optional_json(dir, "config_sentence_transformers.json")?.unwrap_or_default();
        let positions = shape.max_position_embeddings - shape.first_position();
        Ok(Self {
            pooling,
            max_tokens: limits.max_seq_length.unwrap_or(positions).min(positions),
            lower_case: limits.do_lower_case,
            query_prompt: prompts.of(&["query"]),
            document_prompt: prompts.of(&["document", "passage"]),
            shape,
        })
    }
}

#[derive(Deserialize, Default)]
struct Limits {
    max_seq_length: Option<usize>,
    #[serde(default)]
    do_lower_case: bool,
}

#[derive(Deserialize, Default)]
struct Prompts {
    #[serde(default)]
    prompts: serde_json::Map<String, Value>,
    default_prompt_name: Option<String>,
}

impl Prompts {
    fn of(&self, names: &[&str]) -> String {
        let names = names.iter().copied().chain(self.default_prompt_name.as_deref());
        names.filter_map(|name| self.prompts.get(name)?.as_str()).next().unwrap_or_default().to_owned()
    }
}

fn shape(dir: &Path) -> Result<Shape, LoadError> {
    let path = dir.join("config.json");
    let shape: Shape = json(&path)?;
    let unsupported = |problem| Err(LoadError::Unsupported { path: path.clone(), problem });
    if !["bert", "roberta", "xlm-roberta", "camembert"].contains(&shape.model_type.as_str()) {
        return unsupported(format!("the model type `{}`", shape.model_type));
    }
    if let Some(kind) = shape.position_embedding_type.as_deref().filter(|kind| *kind != "absolute") {
        return unsupported(format!("the position embedding type `{kind}`"));
    }
    let damaged = |problem: &str| Err(LoadError::Damaged { path: path.clone(), problem: problem.to_owned() });
    if shape.hidden_size == 0 || shape.num_attention_heads == 0 || shape.type_vocab_size == 0 {
        return damaged("hidden_size, num_attention_heads and type_vocab_size must be at least 1");
    }
    if !shape.hidden_size.is_multiple_of(shape.num_attention_heads) {
        return damaged("hidden_size is no multiple of num_attention_heads");
    }
    if shape.max_position_embeddings <= shape.first_position() {
        return damaged("max_position_embeddings leaves no room for a token");
    }
    Ok(shape)
}

/// Reads the pooling from `modules.json`.
fn pooling(dir: &Path) -> Result<Pooling, LoadError> {
    #[derive(Deserialize)]
    struct Module {
        #[serde(default)]
        path: PathBuf,
        #[serde(rename = "type")]
        kind: String,
    }
    let mut folder = PathBuf::from("1_Pooling");
    for module in optional_json::<Vec<Module>>(dir, "modules.json")?.unwrap_or_default() {
        // The types are Python classes, and their packages have moved.
        match module.kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" | "Normalize" => {}
            "Pooling" => folder = module.path,
            other => {
                let problem = format!("a module `{other}`");
                return Err(LoadError::Unsupported { path: dir.join("modules.json"), problem });
            }
        }
    }
    let name = folder.join("config.json");
    let config: serde_json::Map<String, Value> = optional_json(dir, &name)?.unwrap_or_default();
    let flags = config.iter().filter(|(_, on)| **on == Value::Bool(true));
    let mut modes: Vec<&str> = flags.filter_map(|(key, _)| key.strip_prefix("pooling_mode_")).collect();
    modes.extend(config.get("pooling_mode").and_then(Value::as_str));
    match modes[..] {
        [] | ["mean_tokens" | "mean"] => Ok(Pooling::Mean),
        ["cls_token" | "cls"] => Ok(Pooling::Cls),
        _ => {
            let problem = format!("the pooling `{}`", modes.join(" and "));
            Err(LoadError::Unsupported { path: dir.join(name), problem })
        }
    }
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    serde_json::from_slice(&read(path, MAX_JSON)?)
        .map_err(|error| LoadError::Damaged { path: path.to_owned(), problem: error.to_string() })
}

fn optional_json<T: DeserializeOwned>(dir: &Path, name: impl AsRef<Path>) -> Result<Option<T>, LoadError> {
    match json(&dir.join(name)) {
        Ok(value) => Ok(Some(value)),
        Err(LoadError::Unreadable { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The bytes of `tokenizer.json`.
pub(crate) fn tokenizer(dir: &Path) -> Result<(PathBuf, Vec<u8>), LoadError> {
    let path = dir.join("tokenizer.json");
    Ok((path.clone(), read(&path, MAX_JSON)?))
}

/// The bytes of a tokenizer's file.
pub(crate) fn tokenizer_file(path: &Path) -> Result<Vec<u8>, LoadError> {
    let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
    read(&file, MAX_JSON)
}

/// The bytes of `model.safetensors`.
pub(crate) fn weights(dir: &Path) -> Result<(PathBuf, Vec<u8>), LoadError> {
    let path = dir.join("model.safetensors");
    Ok((path.clone(), read(&path, MAX_WEIGHTS)?))
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let size = file.metadata().map_err(unreadable)?.len();
    // The reported size of special files may be 0; the bound applies to the bytes read.
    let mut bytes = Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or_default());
    file.take(limit + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(LoadError::Damaged {
            path: path.to_owned(),
            problem: format!("it is longer than {} MiB", limit >> 20),
        });
    }
    Ok(bytes)
}
