//! What a directory that is not whole is answered with.

use std::fs;

use toolwright_core::embedding::{Embedder as _, TextRole};
use toolwright_search::embed::SentenceTransformer;

use super::tiny::{self, PLAIN};

/// Each file with something in it replaced, or with other bytes altogether, and what the error says.
fn check(file: &str, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>, expect: &[&str]) {
    let dir = tiny::directory(&PLAIN);
    let path = dir.path().join(file);
    match change(fs::read(&path).unwrap_or_default()) {
        Some(bytes) => fs::write(&path, bytes).unwrap(),
        None => fs::remove_file(&path).unwrap(),
    }
    let message = SentenceTransformer::load(dir.path()).unwrap_err().to_string();
    for part in expect.iter().chain(&[file]) {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

fn replaced<'a>(from: &'a str, to: &'a str) -> impl Fn(Vec<u8>) -> Option<Vec<u8>> + 'a {
    move |bytes| {
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(from), "{from}");
        Some(text.replace(from, to).into_bytes())
    }
}

#[test]
fn missing_model_files_name_the_remedy() {
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        check(file, |_| None, &["cannot be read", "sentence-transformer directory"]);
        check(file, |bytes| Some(bytes[..bytes.len() / 2].to_vec()), &["download it again, with all its files"]);
        check(file, |_| Some(Vec::new()), &["download it again, with all its files"]);
        check(file, |_| Some(vec![0xff; 4096]), &["download it again, with all its files"]);
    }
    for file in ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"] {
        check(file, |_| Some(b"[{]".to_vec()), &["download it again, with all its files"]);
    }
    check("config_sentence_transformers.json", |_| Some(b"7".to_vec()), &["download it again, with all its files"]);
}

#[test]
fn unsupported_model_files_are_named() {
    let serve = "embeddings API";
    check("config.json", replaced("\"bert\"", "\"mpnet\""), &["the model type `mpnet` is not supported", serve]);
    check("modules.json", replaced("models.Normalize", "models.Dense"), &["a module `Dense`", serve]);
    check("1_Pooling/config.json", replaced("max_tokens\":false", "max_tokens\":true"), &["max_tokens", serve]);
    check("config.json", replaced("\"gelu\"", "\"swish\""), &["swish"]);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let config = |from, to, expect| check("config.json", replaced(from, to), &[expect]);
    config("\"num_attention_heads\":4", "\"num_attention_heads\":0", "at least 1");
    config("\"num_attention_heads\":4", "\"num_attention_heads\":5", "no multiple");
    config("\"max_position_embeddings\":20", "\"max_position_embeddings\":0", "no room");
    config("\"hidden_size\":32", "\"hidden_size\":-1", "invalid value");
    let other = |from, to, file: &str| check_blames(from, to, file);
    other("\"hidden_size\":32", "\"hidden_size\":64", "model.safetensors");
    other("\"num_hidden_layers\":2", "\"num_hidden_layers\":18446744073709551615", "model.safetensors");
    other("\"vocab_size\":24", "\"vocab_size\":23", "tokenizer.json");
    other("\"vocab_size\":24", "\"vocab_size\":25", "model.safetensors");
    check("sentence_bert_config.json", |_| Some(br#"{"max_seq_length": "x"}"#.to_vec()), &["invalid type"]);
    let dir = tiny::directory(&PLAIN);
    fs::write(dir.path().join("sentence_bert_config.json"), r#"{"max_seq_length": 2}"#).unwrap();
    let message = SentenceTransformer::load(dir.path()).unwrap_err().to_string();
    assert!(message.contains("2 tokens leave no room"), "{message}");
}

/// A change of `config.json` that only another file gives away.
fn check_blames(from: &str, to: &str, file: &str) {
    let dir = tiny::directory(&PLAIN);
    let path = dir.path().join("config.json");
    fs::write(&path, replaced(from, to)(fs::read(&path).unwrap()).unwrap()).unwrap();
    let message = SentenceTransformer::load(dir.path()).unwrap_err().to_string();
    assert!(message.contains(file), "{message}");
}

#[tokio::test]
async fn weights_that_are_no_numbers_give_an_error() {
    let dir = tiny::directory(&PLAIN);
    let mut tensors = tiny::tensors();
    tensors.get_mut("embeddings.LayerNorm.bias").unwrap().1[0] = f32::NAN;
    fs::write(dir.path().join("model.safetensors"), tiny::safetensors(&tensors)).unwrap();
    let model = SentenceTransformer::load(dir.path()).unwrap();
    let error = model.embed(&["read"], TextRole::Query).await.unwrap_err();
    assert!(error.to_string().contains("not a number"), "{error}");
}

#[test]
fn errors_name_paths_that_are_not_directories() {
    let message = SentenceTransformer::load("/nowhere/at/all".as_ref()).unwrap_err().to_string();
    assert!(message.contains("/nowhere/at/all/config.json"), "{message}");
}
