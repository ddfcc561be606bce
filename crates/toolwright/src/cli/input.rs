//! Texts from files and standard input, bounded.

use std::io::Read;
use std::path::Path;

use super::exit::Failure;

/// Bytes that are read of one input.
const MAX_INPUT: u64 = 16 << 20;

/// The text of `file`, or of standard input for `-`.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    if file == Path::new("-") {
        return bounded(std::io::stdin().lock(), "standard input");
    }
    let name = file.display().to_string();
    let open = std::fs::File::open(file).map_err(|error| Failure::usage(format!("{name} cannot be read: {error}")))?;
    bounded(open, &name)
}

fn bounded(source: impl Read, name: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let read = source.take(MAX_INPUT + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("{name} cannot be read: {error}")))?;
    if text.len() as u64 > MAX_INPUT {
        return Err(Failure::usage(format!("{name} has more than {MAX_INPUT} bytes")));
    }
    Ok(text)
}
