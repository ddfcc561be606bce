//! `decode`: what a model wrote, as values.

use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use toolwright::core::json::repair;

use super::args::Decode;
use super::exit::{Done, Exit, Failure};
use super::input;
use super::screen::{print_json, stdout};

pub(crate) fn command(decode: &Decode) -> Done {
    if decode.format != "arguments" {
        return Err(Failure::usage(format!(
            "the format `{}` is not supported by this version; `arguments` is",
            decode.format
        )));
    }
    let text = input::read(decode.file.as_deref().unwrap_or(Path::new("-")))?;
    if !decode.jsonl {
        let (answer, exit) = arguments(&text);
        print_json(&answer)?;
        return Ok(exit);
    }
    let mut out = stdout();
    let mut worst = Exit::Ok;
    for line in text.lines() {
        let (answer, exit) = match serde_json::from_str::<String>(line) {
            Ok(text) => arguments(&text),
            Err(error) => failed(&format!("the line is not one JSON string: {error}")),
        };
        writeln!(out, "{answer}")?;
        if exit != Exit::Ok {
            worst = exit;
        }
    }
    Ok(worst)
}

/// `{value, repaired}`, with `error` where there is no value.
fn arguments(text: &str) -> (Value, Exit) {
    match repair(text) {
        Ok(read) => (json!({"value": read.value, "repaired": read.repaired}), Exit::Ok),
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(error: &str) -> (Value, Exit) {
    (json!({"value": null, "repaired": false, "error": error}), Exit::Failed)
}
