//! Indexes the tools of a snapshot by name and by word, so that a pick need not examine every tool.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, OnceLock};

use toolwright_core::{Entry, Snapshot};

use super::lexical::LexicalIndex;

/// Lookup data of one snapshot. Each part is built on first use.
#[derive(Debug, Default)]
pub struct SnapshotIndex {
    directory: OnceLock<Directory>,
    lexical: OnceLock<Arc<LexicalIndex>>,
    /// The index to reuse data from.
    known: Option<Arc<LexicalIndex>>,
}

/// Names and restricted tools of a catalogue; built in at most a millisecond per thousand tools.
#[derive(Debug)]
pub(super) struct Directory {
    /// The tools' names.
    pub(super) names: NameIndex,
    /// The positions of the tools that are not for everybody, in order.
    pub(super) restricted: Vec<usize>,
}

impl SnapshotIndex {
    /// An empty index that reuses data of this one, for another snapshot with common tools.
    #[must_use]
    pub fn following(&self) -> Self {
        Self { known: self.lexical.get().or(self.known.as_ref()).cloned(), ..Self::default() }
    }

    /// Returns the lexical index of the snapshot's tools, by position. Building it takes some 10 ms per
    /// thousand tools, unless [`SnapshotIndex::is_ready`].
    pub fn lexical(&self, snapshot: &Snapshot) -> &Arc<LexicalIndex> {
        self.lexical.get_or_init(|| Arc::new(LexicalIndex::build(snapshot.list(), self.known.as_deref())))
    }

    /// Whether the lexical index is built.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.lexical.get().is_some()
    }

    /// Number of tools that a following index can reuse.
    pub(super) fn known_tools(&self) -> usize {
        self.lexical.get().or(self.known.as_ref()).map_or(0, |known| known.len())
    }

    pub(super) fn directory(&self, snapshot: &Snapshot) -> &Directory {
        self.directory.get_or_init(|| Directory::of(snapshot.list()))
    }
}

impl Directory {
    fn of(tools: &[Arc<Entry>]) -> Self {
        let restricted = (0..tools.len()).filter(|&position| is_restricted(&tools[position])).collect();
        Self { names: NameIndex::of(tools), restricted }
    }
}

/// Whether a tool is restricted: only options of a pick can exclude the others.
fn is_restricted(entry: &Entry) -> bool {
    let tool = entry.definition();
    !tool.safe || !tool.allowed_roles.is_empty()
}

/// Maximal bytes of a name to look up.
const MAX_NAME: usize = 256;

/// The names of a catalogue's tools, ignoring case: wire name, id (with or without its version), its name
/// part, raw name and aliases.
#[derive(Debug)]
pub(super) struct NameIndex {
    /// The hash of a name and the position of a tool that may have it, sorted. The names themselves are not
    /// copied.
    hashes: Vec<(u64, usize)>,
}

impl NameIndex {
    pub(super) fn of(tools: &[Arc<Entry>]) -> Self {
        let mut lower = String::new();
        let mut hashes = Vec::with_capacity(4 * tools.len());
        for (position, tool) in tools.iter().enumerate() {
            for name in names(tool).filter(|name| name.len() <= MAX_NAME) {
                lower_into(name, &mut lower);
                hashes.push((hash(&lower), position));
            }
        }
        hashes.sort_unstable();
        hashes.dedup();
        hashes.shrink_to_fit();
        Self { hashes }
    }

    /// Returns the positions of the tools named in `query`, in order. `tools` must be those of the index.
    pub(super) fn named(&self, query: &str, tools: &[Arc<Entry>]) -> Vec<usize> {
        let mut named = Vec::new();
        let mut lower = String::new();
        for word in QueryNames::of(query).0 {
            let hash = hash(&word);
            let from = self.hashes.partition_point(|(other, _)| *other < hash);
            for (_, position) in self.hashes[from..].iter().take_while(|(other, _)| *other == hash) {
                let is_named = names(&tools[*position]).any(|name| {
                    lower_into(name, &mut lower);
                    lower == word
                });
                if is_named {
                    named.push(*position);
                }
            }
        }
        named.sort_unstable();
        named.dedup();
        named
    }
}

/// Returns the names by which a query may call a tool.
fn names(tool: &Entry) -> impl Iterator<Item = &str> {
    let definition = tool.definition();
    let id = &definition.id;
    let own = [tool.wire_name.as_str(), tool.tool.raw_name(), id.as_str(), id.without_version(), id.name()];
    own.into_iter().chain(definition.aliases.iter().map(String::as_str))
}

fn hash(lower: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    lower.hash(&mut hasher);
    hasher.finish()
}

/// Parts of a query that may be names of tools, in lower case.
///
/// A part is a name if it is the whole query, is in quotes, or is a separate word that could not be one of a natural
/// language: `read_file`, `fs:read`, `getWeather`, `base64`. "search the web" does not name a tool `search`, and
/// "Endgame" does not name `endGame`.
struct QueryNames(HashSet<String>);

impl QueryNames {
    fn of(query: &str) -> Self {
        let mut names = Self(HashSet::new());
        names.add(query, true);
        names.add(query.trim().trim_matches(is_quote), true);
        for quote in ['`', '"'] {
            // The content of the first pair, the second, …
            for quoted in query.split(quote).skip(1).step_by(2) {
                names.add(quoted, true);
            }
        }
        for word in query.split(separates) {
            names.add(word.trim_matches('\''), word.len() > 2 && word.starts_with('\'') && word.ends_with('\''));
            names.add(word.trim_matches(|c: char| !c.is_alphanumeric() && c != '_'), false);
            word.split('/').for_each(|part| names.add(part, false));
        }
        names
    }

    fn add(&mut self, word: &str, is_meant: bool) {
        let word = word.trim().trim_end_matches(['.', ':', '?', '!']);
        if word.is_empty() || word.len() > MAX_NAME || !(is_meant || is_identifier_like(word)) {
            return;
        }
        let mut lower = String::with_capacity(word.len());
        lower_into(word, &mut lower);
        self.0.insert(lower);
    }
}

fn lower_into(word: &str, lower: &mut String) {
    lower.clear();
    lower.extend(word.chars().flat_map(char::to_lowercase));
}

fn is_quote(c: char) -> bool {
    matches!(c, '`' | '"' | '\'')
}

fn separates(c: char) -> bool {
    c.is_whitespace() || matches!(c, '`' | '"' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | ',' | ';' | '=' | '|')
}

/// Whether it has letters and also a separator used in code, a digit, or a capital after
/// a small letter. A hyphen does not count: `follow-up` is English.
fn is_identifier_like(name: &str) -> bool {
    let mut before = None;
    let mut marked = false;
    for c in name.trim_matches(|c: char| !c.is_alphanumeric()).chars() {
        let is_sign = matches!(c, '_' | '.' | ':' | '/') || c.is_numeric();
        marked |= is_sign || (c.is_uppercase() && before.is_some_and(char::is_lowercase));
        before = Some(c);
    }
    marked && name.contains(char::is_alphabetic)
}

#[cfg(test)]
mod exact_tests {
    use super::*;
    use toolwright_core::catalogue::{RegisteredTool, Snapshot};
    use toolwright_core::definition::ToolDefinition;
    use toolwright_core::tool_id::ToolId;
    use toolwright_testkit::{definition, listing, own};

    fn snapshot() -> Snapshot {
        let mut read = definition("fs:read@1.0.0");
        read.aliases = vec!["cat_file".into()];
        let foreign = |raw: &str| {
            let id = ToolId::foreign("gh", raw).expect("id");
            RegisteredTool::foreign(ToolDefinition::new(id, "", None), raw)
        };
        let names = ["Repo.Search", "search", "getWeather", "My Tool", "web3", "ΣΊΣΥΦΟΣ_x", "a/b", "follow-up"];
        Snapshot::build(&[
            listing("fs", vec![own(read)]),
            listing("gh", names.iter().map(|raw| foreign(raw)).collect()),
        ])
    }

    fn check(query: &str, expect: &[&str]) {
        let snapshot = snapshot();
        let named = NameIndex::of(snapshot.list()).named(query, snapshot.list());
        let names: Vec<_> = named.into_iter().map(|position| snapshot.list()[position].tool.raw_name()).collect();
        assert_eq!(names, expect, "{query}");
    }

    #[test]
    fn tool_names_count_when_alone() {
        for query in ["fs:read@1.0.0", "use FS__Read, then stop", "run (fs:read).", "what does cat_file do?", "`read`"]
        {
            check(query, &["read"]);
        }
        for query in
            ["gh__repo_search", "Repo.Search", "call repo.search(q=1)", "gh__Repo_Search: do it", "gh:repo_search"]
        {
            check(query, &["Repo.Search"]);
        }
        check("getWeather in Paris", &["getWeather"]);
        check("{\"tool\":\"search\"}", &["search"]);
        check("fs:read/web3", &["read", "web3"]);
        check("ask a/b", &["a/b"]);
        check("σίσυφοσ_X", &["ΣΊΣΥΦΟΣ_x"]);
        check("'My tool'", &["My Tool"]);
    }

    #[test]
    fn words_count_as_names_only_if_intended() {
        check("search", &["search"]);
        check("Search.", &["search"]);
        check("use 'search' now", &["search"]);
        check("search the web and read it", &[]);
        check("Getweather, the film", &[]);
        check("my tool is broken", &[]);
        check("send a follow-up mail to Ann", &[]);
        check("use `follow-up`", &["follow-up"]);
        check("follow-up", &["follow-up"]);
        check("the user's repo, search its files", &[]);
        check("repo_searching gh__repo_search2 xgh__repo_search", &[]);
        check("", &[]);
    }

    #[test]
    fn names_are_distinguished_from_words() {
        for (name, expect) in [
            ("read_file", true),
            ("getWeather", true),
            ("s3", true),
            ("a.b", true),
            ("e-mail", false),
            ("follow-up", false),
            ("Wi-Fi", false),
            ("mp3-player", true),
            ("search", false),
            ("SQL", false),
            ("Search", false),
            ("_search_", false),
            ("2048", false),
            ("2026-11-20", false),
            ("", false),
        ] {
            assert_eq!(is_identifier_like(name), expect, "{name}");
        }
    }
}
