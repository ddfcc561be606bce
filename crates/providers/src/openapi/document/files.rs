//! The files of a document, as JSON or YAML 1.2. Nothing is fetched: other files are read from below the document's
//! folder, and a document from the network has none.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use url::Url;

use super::Origin;

/// The most bytes of one document, and of a document and its other files together.
pub(in crate::openapi) const MAX_BYTES: usize = 64 << 20;
/// The most other files of a document; the largest split documents have some thousands.
const MAX_FILES: usize = 20_000;
/// The most file names in the references of all files, in any spelling.
const MAX_NAMED: usize = 200_000;
/// The deepest nesting that is examined.
pub(super) const MAX_DEPTH: usize = 130;

/// A document and its other files, beginning with the document.
#[derive(Debug)]
pub(super) struct Files {
    files: Vec<Value>,
    /// The hash of each file's text.
    hashes: Vec<ContentHash>,
    /// The location of each file.
    addresses: Vec<Option<Url>>,
    /// The file that a reference means, by the file that contains it and its text before `#`.
    targets: HashMap<(usize, String), Result<usize, String>>,
}

/// The location of the document, and what may still be read.
struct Reader {
    /// `None` for a document from the network.
    folder: Option<PathBuf>,
    /// The files that were read, in order.
    paths: Vec<PathBuf>,
    /// The number of each file, or why it cannot be read.
    known: HashMap<PathBuf, Result<usize, String>>,
    bytes: usize,
    values: usize,
}

impl Files {
    /// Reads the document of this text, and its referenced files.
    pub(super) fn read(document: Value, text: &str, origin: &Origin) -> Self {
        let start = match origin {
            Origin::File(path) => std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()),
            Origin::Url(_) => PathBuf::new(),
        };
        let folder = match origin {
            // The folder of the document itself, which a link may point to: its references start from there.
            Origin::File(_) => start.parent().map(Path::to_owned),
            Origin::Url(_) => None,
        };
        let address = match origin {
            Origin::File(_) => Url::from_file_path(&start).ok(),
            Origin::Url(url) => Some(url.clone()),
        };
        let mut reader = Reader {
            folder,
            known: HashMap::from([(start.clone(), Ok(0))]),
            paths: vec![start],
            bytes: MAX_BYTES.saturating_sub(text.len()),
            values: MAX_VALUES.saturating_sub(values(&document)),
        };
        let mut files = Self {
            files: vec![document],
            hashes: vec![ContentHash::of_bytes(text.as_bytes())],
            addresses: vec![address],
            targets: HashMap::new(),
        };
        files.read_others(&mut reader);
        files
    }

    /// Returns a hash of the texts of all files.
    pub(super) fn hash(&self) -> ContentHash {
        match self.hashes[..] {
            [alone] => alone,
            _ => ContentHash::of_bytes(&self.hashes.iter().flat_map(|hash| *hash.as_bytes()).collect::<Vec<u8>>()),
        }
    }

    /// Returns a whole file.
    pub(super) fn whole(&self, file: usize) -> &Value {
        self.files.get(file).unwrap_or(&Value::Null)
    }

    /// Returns the file that this text before `#` names in that file, or why there is none; `None` if it was not looked
    /// up.
    pub(super) fn named(&self, file: usize, written: &str) -> Option<Result<usize, &str>> {
        let target = self.targets.get(&(file, written.to_owned()))?;
        Some(target.as_ref().copied().map_err(String::as_str))
    }

    /// Returns each file with its location.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Value, Option<&Url>)> {
        self.files.iter().zip(self.addresses.iter().map(Option::as_ref))
    }

    /// Returns a file for modification.
    pub(super) fn whole_mut(&mut self, file: usize) -> Option<&mut Value> {
        self.files.get_mut(file)
    }

    /// Lets references in one file name another by this text.
    pub(super) fn name(&mut self, from: usize, written: String, file: usize) {
        self.targets.insert((from, written), Ok(file));
    }

    fn read_others(&mut self, reader: &mut Reader) {
        let mut next = 0;
        while next < self.files.len() {
            let mut found = BTreeSet::new();
            let room = MAX_NAMED.saturating_sub(self.targets.len());
            foreign_references(self.whole(next), &mut found, room, 0);
            for written in found {
                let read = self.read_other(&written, next, reader);
                self.targets.insert((next, written), read);
            }
            next += 1;
        }
    }

    fn read_other(&mut self, written: &str, from: usize, reader: &mut Reader) -> Result<usize, String> {
        if written.contains("://") {
            return Err("references to the network are not followed: put the file beside the document".into());
        }
        let Some(folder) = &reader.folder else {
            return Err("a document from the network has no other files: save it with them, or bundle it".into());
        };
        let written = percent_decode_str(written).decode_utf8_lossy().into_owned();
        let here = reader.paths.get(from).and_then(|path| path.parent()).unwrap_or(folder);
        let path = std::fs::canonicalize(here.join(&written)).map_err(|error| error.to_string())?;
        if !path.starts_with(folder) {
            return Err("it lies outside of the document's folder".into());
        }
        if let Some(known) = reader.known.get(&path) {
            return known.clone();
        }
        let read = self.read_new(&path, reader);
        reader.known.insert(path, read.clone());
        read
    }

    /// Reads a file that has not been tried yet.
    fn read_new(&mut self, path: &Path, reader: &mut Reader) -> Result<usize, String> {
        if self.files.len() > MAX_FILES {
            return Err(format!("the document refers to more than {MAX_FILES} other files"));
        }
        let too_large = || format!("the document and its other files have more than {MAX_BYTES} bytes together");
        let text = read_up_to(path, reader.bytes).map_err(|error| error.to_string())?.ok_or_else(too_large)?;
        reader.bytes = reader.bytes.saturating_sub(text.len());
        let value = parse(&text, reader.values)?;
        reader.values = reader.values.saturating_sub(values(&value));
        let file = self.files.len();
        self.files.push(value);
        self.hashes.push(ContentHash::of_bytes(text.as_bytes()));
        self.addresses.push(Url::from_file_path(path).ok());
        reader.paths.push(path.to_owned());
        Ok(file)
    }
}

/// Returns a hash of a document in a file, together with its referenced files.
///
/// # Errors
/// It cannot be read.
pub fn content_hash(path: &Path) -> std::io::Result<ContentHash> {
    let text = read_file(path)?;
    let alone = ContentHash::of_bytes(text.as_bytes());
    // Most documents only reference themselves, which is visible without parsing. If a reference is disguised, the
    // document gets a different hash when it is read.
    let names_others = |rest: &str| !rest.trim_start_matches(['"', '\'', ':', ' ']).starts_with('#');
    if !text.split("$ref").skip(1).any(names_others) {
        return Ok(alone);
    }
    let origin = Origin::File(path.to_owned());
    Ok(parse(&text, MAX_VALUES).map_or(alone, |document| Files::read(document, &text, &origin).hash()))
}

/// Returns at most `max` distinct server addresses in a document's file and its referenced files, with the
/// [`content_hash`] of what was read.
///
/// # Errors
/// It cannot be read, or is not a document.
pub fn server_addresses(path: &Path, max: usize) -> std::io::Result<(ContentHash, Vec<String>)> {
    let text = read_file(path)?;
    let document = parse(&text, MAX_VALUES).map_err(std::io::Error::other)?;
    let files = Files::read(document, &text, &Origin::File(path.to_owned()));
    let mut found: Vec<String> = files.files.first().and_then(super::swagger::address).into_iter().collect();
    files.files.iter().for_each(|file| collect_servers(file, max, &mut found, 0));
    Ok((files.hash(), found))
}

fn collect_servers(value: &Value, max: usize, found: &mut Vec<String>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let servers = value.get("servers").and_then(Value::as_array).into_iter().flatten();
    for address in servers.filter_map(|server| server.get("url")?.as_str()) {
        if found.len() < max && !found.iter().any(|known| known == address) {
            found.push(address.to_owned());
        }
    }
    match value {
        Value::Object(members) => members.values().for_each(|member| collect_servers(member, max, found, depth + 1)),
        Value::Array(items) => items.iter().for_each(|item| collect_servers(item, max, found, depth + 1)),
        _ => {}
    }
}

/// Reads the text of a file of at most [`MAX_BYTES`].
pub(in crate::openapi) fn read_file(path: &Path) -> std::io::Result<String> {
    let too_large = || std::io::Error::other(format!("it is larger than {MAX_BYTES} bytes"));
    read_up_to(path, MAX_BYTES)?.ok_or_else(too_large)
}

/// Reads the text of a file; `None` if it has more than `max` bytes.
fn read_up_to(path: &Path, max: usize) -> std::io::Result<Option<String>> {
    use std::io::Read as _;
    let mut text = String::new();
    let mut options = std::fs::OpenOptions::new();
    // A device or pipe, which may block or never end, is not a document.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.read(true).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no ordinary file"));
    }
    file.take(max as u64 + 1).read_to_string(&mut text)?;
    Ok((text.len() <= max).then_some(text))
}

/// Collects the texts before `#` of references, at most `room`.
fn foreign_references(value: &Value, found: &mut BTreeSet<String>, room: usize, depth: usize) {
    if depth > MAX_DEPTH || found.len() >= room {
        return;
    }
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref")
                && !reference.starts_with('#')
            {
                found.insert(reference.split('#').next().unwrap_or_default().to_owned());
            }
            members.values().for_each(|member| foreign_references(member, found, room, depth + 1));
        }
        Value::Array(items) => items.iter().for_each(|item| foreign_references(item, found, room, depth + 1)),
        _ => {}
    }
}

/// The most values of a document and its files together, counting YAML keys, because aliases can multiply the values of
/// a text. A description of 60 MB has about two million.
pub(super) const MAX_VALUES: usize = 4_000_000;
/// The most parts of values that aliases may repeat in any document, and per byte of its text, so that a small document
/// cannot use the memory of a large one.
const MAX_REPLAYED: usize = 200_000;
const REPLAYED_A_BYTE: usize = 4;
/// The deepest nesting in YAML, as in JSON.
const MAX_YAML_DEPTH: usize = 128;
/// Stack of the thread that reads YAML: each nesting level takes tens of kilobytes while it is read, and the document
/// is untrusted.
const STACK: usize = 32 << 20;

/// Parses JSON, or YAML of at most `max_values` values including keys. The values of JSON are limited by its bytes.
///
/// # Errors
/// It is neither, or has too many values.
pub(super) fn parse(text: &str, max_values: usize) -> Result<Value, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        match serde_json::from_str(text) {
            Ok(value) => return Ok(value),
            // YAML's flow style begins like JSON; the error for a text that is neither is JSON's.
            Err(error) => return yaml(text, max_values).map_err(|_| format!("it is not JSON: {error}")),
        }
    }
    yaml(text, max_values)
}

fn yaml(text: &str, max_values: usize) -> Result<Value, String> {
    let read = std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().name("yaml".to_owned()).stack_size(STACK);
        let reader = reader.spawn_scoped(scope, || read_yaml(text, max_values));
        let reader = reader.map_err(|error| format!("no thread can be had to read it: {error}"))?;
        reader.join().map_err(|_| "what reads YAML broke off".to_owned())
    });
    read?
}

fn read_yaml(text: &str, max_values: usize) -> Result<Value, String> {
    let replayed = MAX_REPLAYED.saturating_add(text.len().saturating_mul(REPLAYED_A_BYTE)).min(max_values);
    serde_saphyr::from_str_with_options(text, options(max_values, replayed)).map_err(|error| {
        let error = error.without_snippet();
        let message = error.to_string();
        let message = message.lines().next().unwrap_or_default();
        let mut cause = error;
        while let serde_saphyr::Error::AliasError { error, .. } = cause {
            cause = error;
        }
        match cause {
            serde_saphyr::Error::AliasReplayLimitExceeded { .. } => {
                format!("its aliases make more than {replayed} values of {} bytes: {message}", text.len())
            }
            serde_saphyr::Error::Budget { .. } => {
                format!(
                    "it is larger than {max_values} values and keys or deeper than {MAX_YAML_DEPTH} levels: {message}"
                )
            }
            _ => format!("it is neither JSON nor YAML: {message}"),
        }
    })
}

/// Returns options that limit a document by its size and its expanded aliases, not by how often an alias is used.
fn options(max_values: usize, replayed: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_nodes: max_values,
            max_events: max_values.saturating_mul(3),
            max_aliases: max_values,
            max_anchors: max_values,
            max_recorded_anchor_events: max_values,
            max_depth: MAX_YAML_DEPTH,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: replayed },
    }
}

/// Returns the number of values in a value, including itself.
pub(super) fn values(value: &Value) -> usize {
    let (mut count, mut waiting) = (0_usize, vec![value]);
    while let Some(value) = waiting.pop() {
        count = count.saturating_add(1);
        match value {
            Value::Array(items) => waiting.extend(items),
            Value::Object(members) => waiting.extend(members.values()),
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        parse(text, MAX_VALUES)
    }

    #[test]
    fn unquoted_scalars_follow_yaml_1_2() {
        for (written, expect) in [
            ("y", json!("y")),
            ("N", json!("N")),
            ("yes", json!("yes")),
            ("No", json!("No")),
            ("on", json!("on")),
            ("OFF", json!("OFF")),
            ("true", json!(true)),
            ("False", json!(false)),
            ("", json!(null)),
            ("~", json!(null)),
            ("Null", json!(null)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("010", json!(10.0)),
            ("-5", json!(-5)),
            ("+5", json!(5)),
            ("1e3", json!(1000.0)),
            (".5", json!(0.5)),
            ("18446744073709551616", json!(18446744073709551616.0)),
            ("12:30:45", json!("12:30:45")),
            ("2024-01-02", json!("2024-01-02")),
            ("2024-01-02T03:04:05Z", json!("2024-01-02T03:04:05Z")),
            ("1.2.3", json!("1.2.3")),
            ("'yes'", json!("yes")),
            ("\"1\"", json!("1")),
            ("!!str 1", json!("1")),
            ("|\n  a\n  b", json!("a\nb\n")),
        ] {
            assert_eq!(read(&format!("v: {written}")), Ok(json!({"v": expect})), "{written}");
            assert_eq!(read(&format!("- {written}")), Ok(json!([expect])), "{written}");
        }
        assert_eq!(
            read("y: 1\non: 2\n200: 3\n1.10: 4\ntrue: 5\n2024-01-02: 6\n"),
            Ok(json!({"y": 1, "on": 2, "200": 3, "1.10": 4, "true": 5, "2024-01-02": 6}))
        );
    }

    #[test]
    fn keys_are_merged_and_none_is_written_twice() {
        let merged = read("base: &b {a: 1, c: 2}\nall:\n  <<: *b\n  c: 3\n").expect("merged");
        assert_eq!(merged["all"], json!({"a": 1, "c": 3}));
        let twice = read("get: 1\nget: 2\n").expect_err("twice");
        assert!(twice.contains("get"), "{twice}");
    }

    #[test]
    fn yaml_is_bounded_by_its_expansion() {
        // As many values as a large description has, and one anchor that is used far more often than there are anchors.
        let mut text = String::from("a: &a {type: string}\nall:\n");
        for _ in 0..2_000 {
            text.push_str("- *a\n");
        }
        for index in 0..150_000 {
            text.push_str(&format!("- {{k: {index}}}\n"));
        }
        let large = read(&text).expect("it is a large document");
        assert_eq!(large["all"].as_array().map(Vec::len), Some(152_000));
        assert!(values(&large) > 300_000);
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&format!("a: {}", nested(120))).is_ok());
        assert!(read(&format!("a: {}", nested(200))).is_err());
        // Nine levels of nine would give four hundred million.
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let one = format!("*a{}, ", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", one.repeat(9)));
        }
        assert!(read(&bomb).is_err());
        // A small document must not use the memory of the largest one, even if it stays below that limit.
        let small: String = bomb.lines().take(6).map(|line| format!("{line}\n")).collect();
        let bounded = read(&small).expect_err("bounded");
        assert!(bounded.contains("its aliases make more than"), "{bounded}");
        assert!(parse("[1, 2, 3]", 3).expect_err("bounded").contains("larger than"));
    }
}
