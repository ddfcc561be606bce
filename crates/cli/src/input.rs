//! Reads texts from files and standard input, with a size limit.

use std::io::Read as _;
use std::path::Path;

use serde::Deserializer as _;
use serde::de::Visitor;
use toolwright::core::RunInput;
use toolwright::core::json::fault;
use toolwright_eval::select::{AdjustedRecords, CatalogueFile, MAX_CATALOGUE_BYTES};

use crate::exit::Failure;
use crate::terminal::screen::{sanitize, say_warning};

/// The most bytes of one input, as many as of a model's longest answer.
const MAX_INPUT: u64 = 64 << 20;

/// The byte order mark that some programs write.
const MARK: char = '\u{feff}';

/// Reads the text of `file`, or of standard input for `-`, without a byte order mark.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    read_up_to(file, MAX_INPUT)
}

/// Like [`read`], with its own limit in bytes.
pub(crate) fn read_up_to(file: &Path, max: u64) -> Result<String, Failure> {
    let mut text = String::from_utf8(bytes_up_to(file, max)?)
        .map_err(|error| Failure::usage(format!("{} is not UTF-8: {}", name(file), error.utf8_error())))?;
    if text.starts_with(MARK) {
        text.drain(..MARK.len_utf8());
    }
    Ok(text)
}

/// Reads the input of a run: JSON, or a file with JSON. An object is one input, an array many inputs.
pub(crate) fn run_input(written: &str) -> Result<RunInput, Failure> {
    let is_json = written.trim_start().starts_with(['{', '[']);
    let text = if is_json { written.to_owned() } else { read(Path::new(written))? };
    let value = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("--input is not JSON: {}", fault(&error))))?;
    RunInput::of_value(value).map_err(|why| Failure::usage(format!("--input: {why}")))
}

/// Reads the tools of a file. Warns of adjusted records.
pub(crate) fn read_catalogue(file: &Path) -> Result<CatalogueFile, Failure> {
    let (tools, again) = CatalogueFile::parse(&read_up_to(file, MAX_CATALOGUE_BYTES)?)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    warn_of(file, &again, "tools are left out, as an earlier one has their id");
    Ok(tools)
}

/// Warns of a file's adjusted records: how many, `what` was adjusted, and the first.
pub(crate) fn warn_of(file: &Path, records: &AdjustedRecords, what: &str) {
    if let Some(odd) = records.in_words(what) {
        say_warning(&sanitize(&format!("{}: {odd}", file.display())));
    }
}

/// Reads the bytes of `file`, or of standard input for `-`.
pub(crate) fn read_bytes(file: &Path) -> Result<Vec<u8>, Failure> {
    bytes_up_to(file, MAX_INPUT)
}

fn bytes_up_to(file: &Path, max: u64) -> Result<Vec<u8>, Failure> {
    let unreadable = |error: std::io::Error| Failure::usage(format!("{} cannot be read: {error}", name(file)));
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(max + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).map_err(unreadable)?.take(max + 1).read_to_end(&mut bytes)
    };
    read.map_err(unreadable)?;
    if bytes.len() as u64 > max {
        return Err(Failure::usage(format!("{} has more than {max} bytes", name(file))));
    }
    Ok(bytes)
}

/// Removes the byte order mark that some programs write.
pub(crate) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(MARK.encode_utf8(&mut [0; 4]).as_bytes()).unwrap_or(bytes)
}

/// Parses a JSON text. Half a surrogate pair, which several languages write but no string can contain, becomes U+FFFD.
pub(crate) fn json_text(json: &[u8]) -> serde_json::Result<String> {
    struct Bytes;
    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a string")
        }

        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
            Ok(bytes.to_vec())
        }
    }
    let mut reader = serde_json::Deserializer::from_slice(json);
    let mut bytes = reader.deserialize_bytes(Bytes)?;
    reader.end()?;
    // Half a pair arrives as the three bytes of its (invalid) UTF-8 encoding.
    for at in 0..bytes.len().saturating_sub(2) {
        if bytes[at] == 0xED && bytes[at + 1] >= 0xA0 {
            bytes[at..at + 3].copy_from_slice("\u{fffd}".as_bytes());
        }
    }
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

fn name(file: &Path) -> String {
    if file == Path::new("-") { "standard input".into() } else { file.display().to_string() }
}
