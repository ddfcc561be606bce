//! Tool identity: canonical ids and wire names. Nothing here looks names up.
//!
//! A canonical id is `namespace:name@major.minor.patch`; a wire name is what a model sees. Wire names
//! are produced here and looked up in [`crate::identity::name_table::NameTable`]; they are never parsed back.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json::canonical::ContentHash;

/// The longest wire name any supported model API accepts (OpenAI, Anthropic and Gemini all stop at 64).
pub const MAX_WIRE_NAME: usize = 64;

/// The version a foreign tool gets when its source does not version it.
pub const UNVERSIONED: &str = "0.0.0";

/// Namespaces that belong to Toolwright itself. A configured server that asks for one is renamed
/// (see [`server_namespace`]); a provider registered from Rust is refused.
pub const RESERVED_NAMESPACES: &[&str] = &[
    "agent", "agents", "channel", "client", "code", "fs", "group", "job", "llm", "media", "memory", "native", "output",
    "rest", "router", "schema", "shell", "skills", "tools", "trigger", "web",
];

/// Why a string is not a tool id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The string has not the form `namespace:name@major.minor.patch`.
    #[error("`{0}` is not a tool id: expected namespace:name@major.minor.patch")]
    Form(String),
    /// A namespace or name holds characters outside `[a-z0-9_-]`, or is empty.
    #[error("`{value}` is not a legal {part}: only a-z, 0-9, `_` and `-` are allowed, and at least one of them")]
    Part {
        /// The invalid part: `namespace` or `name`.
        part: &'static str,
        /// The value as given.
        value: String,
    },
    /// The version is not three dot-separated decimal numbers.
    #[error("`{0}` is not a version: expected three numbers, like 1.0.0")]
    Version(String),
    /// A namespace holds the separator of wire names.
    #[error("namespace `{0}` may not contain `__`: it separates namespace and name in wire names")]
    Separator(String),
}

/// A canonical tool id. Cheap to clone; compared exactly, including the version: there is no range resolution.
#[derive(Clone)]
pub struct ToolId {
    full: Arc<str>,
    colon: usize,
    at: usize,
}

impl ToolId {
    /// Parses `namespace:name@major.minor.patch`.
    ///
    /// # Errors
    /// [`IdError`] names the offending part.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let form = || IdError::Form(text.to_owned());
        let (namespace, rest) = text.split_once(':').ok_or_else(form)?;
        let (name, version) = rest.rsplit_once('@').ok_or_else(form)?;
        Self::format(namespace, name, version)
    }

    /// [`ToolId::parse`] without the reason.
    #[must_use]
    pub fn try_parse(text: &str) -> Option<Self> {
        Self::parse(text).ok()
    }

    /// Builds an id from its parts, validating each.
    ///
    /// # Errors
    /// [`IdError`] names the part that is illegal.
    pub fn format(namespace: &str, name: &str, version: &str) -> Result<Self, IdError> {
        legal_part("namespace", namespace)?;
        if namespace.contains("__") {
            return Err(IdError::Separator(namespace.to_owned()));
        }
        legal_part("name", name)?;
        if !is_version(version) {
            return Err(IdError::Version(version.to_owned()));
        }
        Ok(Self::join(namespace, name, version))
    }

    /// The id of a foreign tool: the configured namespace, the raw name lower-cased with illegal characters as `_`,
    /// version 0.0.0. Distinct raw names may give equal ids; the snapshot builder distinguishes those with
    /// [`ToolId::with_hash_suffix`].
    ///
    /// # Errors
    /// [`IdError`] when `namespace` is illegal. The raw name never fails.
    pub fn foreign(namespace: &str, raw_name: &str) -> Result<Self, IdError> {
        let mut name: String =
            raw_name.chars().flat_map(char::to_lowercase).map(|c| if is_id_char(c) { c } else { '_' }).collect();
        if name.is_empty() {
            name.push('_');
        }
        Self::format(namespace, &name, UNVERSIONED)
    }

    /// This id with eight hexadecimal digits of the raw name's hash appended to its name.
    #[must_use]
    pub fn with_hash_suffix(&self, raw_name: &str) -> Self {
        self.with_suffix(&short_hash(raw_name, 8))
    }

    /// This id with `_` and `suffix`, of characters that a name may have, appended to its name.
    pub(crate) fn with_suffix(&self, suffix: &str) -> Self {
        Self::join(self.namespace(), &format!("{}_{suffix}", self.name()), self.version())
    }

    fn join(namespace: &str, name: &str, version: &str) -> Self {
        let full = format!("{namespace}:{name}@{version}");
        let colon = namespace.len();
        let at = colon + 1 + name.len();
        Self { full: full.into(), colon, at }
    }

    /// The part before `:`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.full[..self.colon]
    }

    /// The part between `:` and `@`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.full[self.colon + 1..self.at]
    }

    /// The part after `@`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.full[self.at + 1..]
    }

    /// `namespace:name`, the id without its version.
    #[must_use]
    pub fn without_version(&self) -> &str {
        &self.full[..self.at]
    }

    /// The whole id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.full
    }

    /// The version as numbers, for choosing the highest. Numbers beyond `u64` compare as the largest.
    #[must_use]
    pub fn version_key(&self) -> (u64, u64, u64) {
        let mut parts = self.version().split('.').map(|p| p.parse().unwrap_or(u64::MAX));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }
}

impl From<&ToolId> for Arc<str> {
    fn from(id: &ToolId) -> Self {
        Self::clone(&id.full)
    }
}

impl fmt::Display for ToolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for ToolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolId({})", self.full)
    }
}

impl PartialEq for ToolId {
    fn eq(&self, other: &Self) -> bool {
        self.full == other.full
    }
}
impl Eq for ToolId {}
impl PartialOrd for ToolId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ToolId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.full.cmp(&other.full)
    }
}
impl Hash for ToolId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.full.hash(state);
    }
}
impl std::borrow::Borrow<str> for ToolId {
    fn borrow(&self) -> &str {
        &self.full
    }
}

impl Serialize for ToolId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.full)
    }
}
impl<'de> Deserialize<'de> for ToolId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Returns the namespace of a configured server named `entry`, and whether it differs from the entry.
///
/// Names like `memory` or `Time Server` are common: if the name is reserved, illegal or in `taken`, the namespace is
/// `mcp-<name>` in lower case with other characters as `-`.
#[must_use]
pub fn server_namespace(entry: &str, taken: &dyn Fn(&str) -> bool) -> String {
    let legal = legal_part("namespace", entry).is_ok() && !entry.contains("__");
    if legal && !RESERVED_NAMESPACES.contains(&entry) && !taken(entry) {
        return entry.to_owned();
    }
    let mut name = String::from("mcp-");
    for c in entry.chars().flat_map(char::to_lowercase) {
        let c = if is_id_char(c) { c } else { '-' };
        if !(c == '_' && name.ends_with('_')) {
            name.push(c);
        }
    }
    if taken(&name) { format!("{name}-{}", short_hash(entry, 8)) } else { name }
}

/// Returns the wire name of `namespace` and `raw_name`, ignoring length and collisions: illegal
/// characters become `_`, case and `-` are kept, and it starts with a letter or `_` (Gemini refuses others).
#[must_use]
pub fn wire_candidate(namespace: &str, raw_name: &str) -> String {
    legal_wire(namespace.chars().chain("__".chars()).chain(raw_name.chars()))
}

/// Returns wire names of at most `max` characters (16 at least) for tools without a namespace, in their order. Legal,
/// unique names are kept; a long name and every member of a collision get a hash; equal names are
/// distinguished by their order.
#[must_use]
pub fn wire_names<'a>(names: impl Iterator<Item = &'a str> + Clone, max: usize) -> Vec<String> {
    let max = max.max(16);
    let mut claims: HashMap<String, usize> = HashMap::new();
    for name in names.clone() {
        *claims.entry(legal_wire(name.chars())).or_default() += 1;
    }
    let mut taken = HashSet::new();
    let mut occurrences: HashMap<&str, usize> = HashMap::new();
    names
        .map(|name| {
            let occurrence = occurrences.entry(name).or_default();
            *occurrence += 1;
            let mut wire = legal_wire(name.chars());
            if wire.len() > max || claims.get(&wire) != Some(&1) || taken.contains(&wire) {
                let candidate = wire;
                let mut digits = 8;
                loop {
                    wire = hashed(&candidate, &format!("{name}#{occurrence}"), max, digits);
                    if !taken.contains(&wire) || digits + 4 > max - 2 {
                        break;
                    }
                    digits += 4;
                }
            }
            taken.insert(wire.clone());
            wire
        })
        .collect()
}

fn legal_wire(name: impl Iterator<Item = char>) -> String {
    let mut wire: String =
        name.map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect();
    if !wire.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        wire.insert(0, '_');
    }
    wire
}

/// Shortens `candidate` to at most `max` characters: both ends around `digits` hexadecimal
/// digits of `id`'s hash. Used for over-long names and for collisions, so short names get a hash too.
#[must_use]
pub fn hashed_wire_name(candidate: &str, id: &ToolId, max: usize, digits: usize) -> String {
    hashed(candidate, id.as_str(), max, digits)
}

fn hashed(candidate: &str, identity: &str, max: usize, digits: usize) -> String {
    let hash = short_hash(identity, digits);
    // Candidates are ASCII: byte offsets are character offsets.
    let room = max.saturating_sub(digits + 2);
    if candidate.len() <= room {
        return format!("{candidate}_{hash}");
    }
    let head = room.div_ceil(2);
    let tail = room - head;
    format!("{}_{hash}_{}", &candidate[..head], &candidate[candidate.len() - tail..])
}

/// The first `digits` hexadecimal digits (64 at most) of the SHA-256 of `text`.
#[must_use]
pub fn short_hash(text: &str, digits: usize) -> String {
    let mut out = ContentHash::of_bytes(text.as_bytes()).to_hex();
    out.truncate(digits);
    out
}

fn is_id_char(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-'
}

fn legal_part(part: &'static str, value: &str) -> Result<(), IdError> {
    if !value.is_empty() && value.chars().all(is_id_char) {
        Ok(())
    } else {
        Err(IdError::Part { part, value: value.to_owned() })
    }
}

fn is_version(text: &str) -> bool {
    let mut parts = 0;
    for part in text.split('.') {
        parts += 1;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return false;
        }
    }
    parts == 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_unique_names_stay_without_a_namespace() {
        let long = "x".repeat(70);
        let names = ["read", "a.b", "a_b", "list", "list", "9lives", "", &long];
        let wire = wire_names(names.into_iter(), 64);
        assert_eq!((wire[0].as_str(), wire[5].as_str(), wire[6].as_str()), ("read", "_9lives", "_"));
        for (index, start) in [(1, "a_b_"), (2, "a_b_"), (3, "list_"), (4, "list_"), (7, "xxx")] {
            assert!(wire[index].starts_with(start) && wire[index].len() <= 64, "{wire:?}");
        }
        assert_eq!(wire.iter().collect::<HashSet<_>>().len(), names.len());
    }

    fn check(text: &str, expect: Result<(&str, &str, &str), &str>) {
        match (ToolId::parse(text), expect) {
            (Ok(id), Ok(parts)) => {
                assert_eq!((id.namespace(), id.name(), id.version()), parts, "{text}");
                assert_eq!(id.to_string(), text);
            }
            (Err(error), Err(fragment)) => {
                assert!(error.to_string().contains(fragment), "{text}: {error}");
            }
            (got, want) => panic!("{text}: got {got:?}, want {want:?}"),
        }
    }

    #[test]
    fn ids_parse_and_print() {
        check("fs:read@1.0.0", Ok(("fs", "read", "1.0.0")));
        check("a-b_c:d-e_f@0.10.200", Ok(("a-b_c", "d-e_f", "0.10.200")));
        check("fs:read", Err("namespace:name@"));
        check("read@1.0.0", Err("namespace:name@"));
        check("Fs:read@1.0.0", Err("legal namespace"));
        check("fs:re.ad@1.0.0", Err("legal name"));
        check("fs:@1.0.0", Err("legal name"));
        check("fs:read@1.0", Err("version"));
        check("fs:read@1.0.x", Err("version"));
        check("a__b:read@1.0.0", Err("__"));
    }

    #[test]
    fn foreign_names_become_legal_ids() {
        let id = ToolId::foreign("gh", "Repo.Search\u{e9}!").expect("id");
        assert_eq!(id.as_str(), "gh:repo_search__@0.0.0");
        assert_eq!(ToolId::foreign("gh", "").expect("id").name(), "_");
        assert_ne!(id.with_hash_suffix("a"), id.with_hash_suffix("b"));
    }

    #[test]
    fn servers_with_taken_or_illegal_names_are_kept() {
        let none = |_: &str| false;
        assert_eq!(server_namespace("github", &none), "github");
        assert_eq!(server_namespace("memory", &none), "mcp-memory");
        assert_eq!(server_namespace("Time Server", &none), "mcp-time-server");
        assert_eq!(server_namespace("a__b", &none), "mcp-a_b");
        assert_eq!(server_namespace("github", &|n| n == "github"), "mcp-github");
    }

    #[test]
    fn wire_names_are_bounded_and_keep_both_ends() {
        assert_eq!(wire_candidate("fs", "read"), "fs__read");
        assert_eq!(wire_candidate("gh", "Repo.search-all"), "gh__Repo_search-all");
        assert_eq!(wire_candidate("7z", "x"), "_7z__x");
        let id = ToolId::parse("a:b@0.0.0").expect("id");
        let long = wire_candidate("server", &"x".repeat(80));
        let wire = hashed_wire_name(&long, &id, MAX_WIRE_NAME, 8);
        assert_eq!(wire.len(), MAX_WIRE_NAME);
        assert!(wire.starts_with("server__x") && wire.ends_with("xx"));
        assert!(hashed_wire_name("a__b", &id, 48, 8).starts_with("a__b_"));
    }
}
