//! Texts from files and standard input, bounded.

use std::io::Read as _;
use std::path::Path;

use super::exit::Failure;

/// Bytes that are read of one input: as many as of the longest answer of a model.
const MAX_INPUT: u64 = 64 << 20;

/// The text of `file`, or of standard input for `-`.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    String::from_utf8(read_bytes(file)?)
        .map_err(|error| Failure::usage(format!("{} is not UTF-8: {}", name(file), error.utf8_error())))
}

/// The bytes of `file`, or of standard input for `-`.
pub(crate) fn read_bytes(file: &Path) -> Result<Vec<u8>, Failure> {
    let unreadable = |error: std::io::Error| Failure::usage(format!("{} cannot be read: {error}", name(file)));
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).map_err(unreadable)?.take(MAX_INPUT + 1).read_to_end(&mut bytes)
    };
    read.map_err(unreadable)?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(Failure::usage(format!("{} has more than {MAX_INPUT} bytes", name(file))));
    }
    Ok(bytes)
}

fn name(file: &Path) -> String {
    if file == Path::new("-") { "standard input".into() } else { file.display().to_string() }
}
