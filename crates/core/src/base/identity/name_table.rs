//! The table between tools and the names that models and clients use for them.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::identity::tool_id::{ToolId, hashed_wire_name, wire_candidate};

/// Number of near names suggested for an unknown name.
const MAX_SUGGESTIONS: usize = 3;

/// A tool of the table; `provider` is its index in registration order.
#[derive(Debug, Clone, Copy)]
pub struct NamedTool<'a> {
    /// Index of the provider.
    pub provider: usize,
    /// Canonical id.
    pub id: &'a ToolId,
    /// The name at its source, in its own spelling.
    pub raw_name: &'a str,
    /// Declared aliases.
    pub aliases: &'a [String],
}

/// Prefixes that models write before a name: their format's namespace of functions. Removed only if no tool has the
/// full name.
const PREFIXES: [&str; 7] = ["functions.", "default_api.", "default_api:", "tools.", "tool.", "mcp__", "mcp."];

/// How a written name was matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameMatch {
    /// The exact wire name.
    #[default]
    Wire,
    /// The canonical id.
    Id,
    /// A declared alias.
    Alias,
    /// A bare name that exactly one tool has; valid only if the arguments validate there.
    Bare,
    /// Matched after removing decorations of the model's format: `functions.`, `default_api.`,
    /// a call's number (`:0`), an empty pair of brackets.
    Decorated,
    /// Matched exactly one wire name, ignoring case and the characters between words; valid only if the
    /// arguments validate there.
    Spelling,
}

impl NameMatch {
    /// Whether the match counts only if the arguments validate.
    #[must_use]
    pub fn is_guess(self) -> bool {
        matches!(self, Self::Bare | Self::Spelling)
    }
}

/// The result of [`NameTable::resolve`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The tool's index in the order given to [`NameTable::build`].
    Found(usize, NameMatch),
    /// No match; the nearest wire names.
    Unknown(Vec<String>),
}

/// Wire names of one snapshot. Deterministic; adding a provider at the end never renames an earlier
/// provider's tools.
#[derive(Debug, Clone, Default)]
pub struct NameTable {
    wire: Vec<String>,
    by_wire: HashMap<String, usize>,
    by_id: HashMap<String, usize>,
    by_alias: HashMap<String, usize>,
    by_bare: HashMap<String, BareName>,
    by_spelling: HashMap<String, BareName>,
}

#[derive(Debug, Clone, Copy)]
enum BareName {
    One(usize),
    Several,
}

impl NameTable {
    /// Builds the table for `tools` with names of at most `max` characters (16 at least).
    ///
    /// Tools must come in registration order, one provider's tools together. Within a provider every
    /// member of a collision is hashed; across providers only the later one. Several versions of one
    /// tool share a name: the highest of the first provider has it, the others get hashed names.
    #[must_use]
    pub fn build(tools: &[NamedTool<'_>], max: usize) -> Self {
        let max = max.max(16);
        let mut table = Self { wire: vec![String::new(); tools.len()], ..Self::default() };
        let mut start = 0;
        while start < tools.len() {
            let provider = tools[start].provider;
            let end = tools[start..].iter().position(|t| t.provider != provider).map_or(tools.len(), |n| start + n);
            table.name_provider(tools, start..end, max);
            start = end;
        }
        for (index, tool) in tools.iter().enumerate() {
            table.by_id.entry(tool.id.as_str().to_owned()).or_insert(index);
            table.add_bare(tool.id.name(), index, tools);
            if tool.raw_name != tool.id.name() {
                table.add_bare(tool.raw_name, index, tools);
            }
        }
        for (index, tool) in tools.iter().enumerate() {
            for alias in tool.aliases {
                table.by_alias.entry(alias.clone()).or_insert(index);
            }
            let spelling = table.by_spelling.entry(folded(&table.wire[index]));
            spelling.and_modify(|bare| *bare = BareName::Several).or_insert(BareName::One(index));
        }
        table
    }

    fn name_provider(&mut self, tools: &[NamedTool<'_>], range: std::ops::Range<usize>, max: usize) {
        // The highest version of an id gets the unhashed name; other versions are always hashed.
        let mut highest: HashMap<&str, usize> = HashMap::new();
        for index in range.clone() {
            let best = highest.entry(tools[index].id.without_version()).or_insert(index);
            if tools[index].id.version_key() > tools[*best].id.version_key() {
                *best = index;
            }
        }
        let candidate = |index: usize| wire_candidate(tools[index].id.namespace(), tools[index].raw_name);
        let mut claims: HashMap<String, usize> = HashMap::new();
        for &index in highest.values() {
            *claims.entry(candidate(index)).or_default() += 1;
        }
        for index in range {
            let plain = candidate(index);
            let stands = highest.get(tools[index].id.without_version()) == Some(&index);
            let alone = claims.get(&plain) == Some(&1) && !self.by_wire.contains_key(&plain);
            let name = if stands && alone && plain.len() <= max {
                plain
            } else {
                self.unused_hashed_name(&plain, tools[index].id, max)
            };
            self.by_wire.insert(name.clone(), index);
            self.wire[index] = name;
        }
    }

    fn unused_hashed_name(&self, plain: &str, id: &ToolId, max: usize) -> String {
        let mut digits = 8;
        loop {
            let name = hashed_wire_name(plain, id, max, digits);
            // 12 digits more and the name is the hash alone: equal ids were refused before.
            if !self.by_wire.contains_key(&name) || digits + 4 > max.saturating_sub(2) {
                return name;
            }
            digits += 4;
        }
    }

    fn add_bare(&mut self, name: &str, index: usize, tools: &[NamedTool<'_>]) {
        let same_tool = |other: usize| tools[other].id.without_version() == tools[index].id.without_version();
        match self.by_bare.get(name) {
            None => {
                self.by_bare.insert(name.to_owned(), BareName::One(index));
            }
            Some(BareName::One(other)) if same_tool(*other) => {
                if tools[index].provider == tools[*other].provider
                    && tools[index].id.version_key() > tools[*other].id.version_key()
                {
                    self.by_bare.insert(name.to_owned(), BareName::One(index));
                }
            }
            Some(_) => {
                self.by_bare.insert(name.to_owned(), BareName::Several);
            }
        }
    }

    /// The wire name of the tool at `index`.
    #[must_use]
    pub fn wire_name(&self, index: usize) -> &str {
        self.wire.get(index).map_or("", String::as_str)
    }

    /// The tool with exactly this wire name.
    #[must_use]
    pub fn by_wire_name(&self, wire: &str) -> Option<usize> {
        self.by_wire.get(wire).copied()
    }

    /// Resolves a name as a model wrote it. Control markers and surrounding space are removed; then wire name,
    /// canonical id, alias and bare name are tried, in that order; then the same without decorations of models'
    /// formats; then near spellings.
    #[must_use]
    pub fn resolve(&self, written: &str) -> Resolution {
        if let Some(&index) = self.by_wire.get(written) {
            return Resolution::Found(index, NameMatch::Wire);
        }
        if let Some(&index) = self.by_id.get(written) {
            return Resolution::Found(index, NameMatch::Id);
        }
        let cleaned = strip_markers(written);
        let name = cleaned.trim();
        if let Some((index, matched)) = self.exact(name) {
            return Resolution::Found(index, matched);
        }
        let plain = undecorated(name);
        if plain != name
            && let Some((index, matched)) = self.exact(plain)
        {
            let matched = if matched.is_guess() { matched } else { NameMatch::Decorated };
            return Resolution::Found(index, matched);
        }
        if let Some(BareName::One(index)) = self.by_spelling.get(&folded(plain)) {
            return Resolution::Found(*index, NameMatch::Spelling);
        }
        Resolution::Unknown(self.suggest(plain))
    }

    fn exact(&self, name: &str) -> Option<(usize, NameMatch)> {
        let found = |index: Option<&usize>, matched| index.map(|&index| (index, matched));
        found(self.by_wire.get(name), NameMatch::Wire)
            .or_else(|| found(self.by_id.get(name), NameMatch::Id))
            .or_else(|| found(self.by_alias.get(name), NameMatch::Alias))
            .or_else(|| match self.by_bare.get(name) {
                Some(BareName::One(index)) => Some((*index, NameMatch::Bare)),
                _ => None,
            })
    }

    /// Returns the wire names near `name`, best first: by edit distance,
    /// then by shared words.
    #[must_use]
    pub fn suggest(&self, name: &str) -> Vec<String> {
        // A name far longer than any wire name cannot be near one, and distance is quadratic.
        if name.is_empty() || name.len() > 256 {
            return Vec::new();
        }
        let query = NameQuery::new(name);
        let by_letters = self.nearest(|wire| query.distance_to(wire));
        if by_letters.is_empty() { self.nearest(|wire| query.missing_words(wire)) } else { by_letters }
    }

    fn nearest(&self, distance: impl Fn(&str) -> Option<usize>) -> Vec<String> {
        let near = |(index, wire): (usize, &String)| distance(wire).map(|distance| (distance, index));
        let mut scored: Vec<(usize, usize)> = self.wire.iter().enumerate().filter_map(near).collect();
        scored.sort_unstable();
        scored.into_iter().take(MAX_SUGGESTIONS).map(|(_, index)| self.wire[index].clone()).collect()
    }
}

/// A name to resolve.
struct NameQuery {
    name: String,
    words: Vec<String>,
    /// Letters that may differ.
    limit: usize,
}

impl NameQuery {
    fn new(name: &str) -> Self {
        let lower = name.to_lowercase();
        Self { words: words(name), limit: (lower.len() / 3).max(2), name: lower }
    }

    /// Edit distance to a wire name, or to its part after the namespace; `None` if too far.
    fn distance_to(&self, wire: &str) -> Option<usize> {
        let lower = wire.to_lowercase();
        let bare = lower.split_once("__").map_or(lower.as_str(), |(_, bare)| bare);
        let bare_name = self.name.rsplit(['.', ':', '/']).next().unwrap_or(&self.name);
        let near = |a: &str, b: &str| (a.len().abs_diff(b.len()) <= self.limit).then(|| strsim::levenshtein(a, b));
        [near(&self.name, &lower), near(&self.name, bare).map(|d| d + 1), near(bare_name, bare).map(|d| d + 1)]
            .into_iter()
            .flatten()
            .min()
            .filter(|&distance| distance <= self.limit)
    }

    /// Number of words in only one of the two names; `None` unless half of the wanted words match, one of them outside
    /// the namespace.
    fn missing_words(&self, wire: &str) -> Option<usize> {
        let (namespace, bare) = wire.split_once("__").unwrap_or(("", wire));
        let (space, own) = (words(namespace), words(bare));
        let shared = |all: &[String]| self.words.iter().filter(|word| all.contains(word)).count();
        let (in_space, in_own) = (shared(&space), shared(&own));
        let is_distinctive = self.words.iter().any(|word| word.len() >= 3 && own.contains(word));
        let enough = is_distinctive && (in_space + in_own) * 2 >= self.words.len();
        enough.then(|| self.words.len().saturating_sub(in_space + in_own) + own.len().saturating_sub(in_own))
    }
}

/// Splits a name into words: at separators, and where a capital follows a small letter.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut small_before = false;
    for c in name.chars() {
        if !c.is_alphanumeric() {
            small_before = false;
            words.push(String::new());
            continue;
        }
        if words.is_empty() || (small_before && c.is_uppercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.extend(c.to_lowercase());
        }
        small_before = c.is_lowercase() || c.is_numeric();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A name without case and with one separator between words.
fn folded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_alphanumeric() {
            out.extend(c.to_lowercase());
        } else if !out.ends_with('_') && !out.is_empty() {
            out.push('_');
        }
    }
    out
}

/// Removes decorations of models' formats from a name.
fn undecorated(name: &str) -> &str {
    let mut plain = name;
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| plain.strip_prefix(prefix)) {
        plain = rest;
    }
    let plain = plain.strip_suffix("()").unwrap_or(plain);
    match plain.rsplit_once(':') {
        Some((name, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => plain,
    }
}

/// Removes control markers, and everything after a marker that follows the name: the rest of
/// a message's head, such as a channel.
fn strip_markers(text: &str) -> &str {
    let mut rest = text.trim_start();
    while let Some(end) = rest.strip_prefix("<|").and_then(|marker| marker.find("|>")) {
        rest = rest[end + 4..].trim_start();
    }
    match rest.find("<|") {
        Some(start) if rest[start..].contains("|>") => &rest[..start],
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(tools: &[(usize, &str, &str)]) -> Vec<(usize, ToolId, String)> {
        tools.iter().map(|(p, id, raw)| (*p, ToolId::parse(id).expect("id"), (*raw).to_owned())).collect()
    }

    fn table(tools: &[(usize, ToolId, String)], max: usize) -> NameTable {
        let tools: Vec<_> =
            tools.iter().map(|(p, id, raw)| NamedTool { provider: *p, id, raw_name: raw, aliases: &[] }).collect();
        NameTable::build(&tools, max)
    }

    #[test]
    fn plain_names_stay_and_collisions_are_hashed() {
        let tools = ids(&[
            (0, "fs:read@1.0.0", "read"),
            (1, "gh:a_b@0.0.0", "a.b"),
            (1, "gh:a_b_1@0.0.0", "a_b"),
            (2, "gh:a-c@0.0.0", "a-c"),
        ]);
        let table = table(&tools, 64);
        assert_eq!(table.wire_name(0), "fs__read");
        assert!(table.wire_name(1).starts_with("gh__a_b_"), "both members of a collision are hashed");
        assert!(table.wire_name(2).starts_with("gh__a_b_"));
        assert_ne!(table.wire_name(1), table.wire_name(2));
        assert_eq!(table.wire_name(3), "gh__a-c");
    }

    #[test]
    fn highest_version_of_first_provider_has_the_name() {
        let tools = ids(&[(0, "x:t@1.0.0", "t"), (0, "x:t@1.10.0", "t"), (0, "x:t@1.9.0", "t"), (1, "x:t@9.0.0", "t")]);
        let table = table(&tools, 64);
        assert_eq!(table.wire_name(1), "x__t");
        for index in [0, 2, 3] {
            assert!(table.wire_name(index).starts_with("x__t_"));
        }
        assert_eq!(table.resolve("x:t@1.0.0"), Resolution::Found(0, NameMatch::Id));
        assert_eq!(table.resolve("t"), Resolution::Found(1, NameMatch::Bare));
    }

    #[test]
    fn written_tool_names_resolve_in_order() {
        let id = ids(&[(0, "gh:search@0.0.0", "Search"), (0, "gh:list@0.0.0", "list"), (1, "fs:list@1.0.0", "list")]);
        let aliases = ["find_code".to_owned()];
        let tools: Vec<_> = id
            .iter()
            .enumerate()
            .map(|(n, (p, id, raw))| NamedTool {
                provider: *p,
                id,
                raw_name: raw,
                aliases: if n == 0 { &aliases } else { &[] },
            })
            .collect();
        let table = NameTable::build(&tools, 64);
        for (written, expect) in [
            ("gh__Search", Resolution::Found(0, NameMatch::Wire)),
            (" <|constrain|>gh__Search\n", Resolution::Found(0, NameMatch::Wire)),
            ("gh:search@0.0.0", Resolution::Found(0, NameMatch::Id)),
            ("find_code", Resolution::Found(0, NameMatch::Alias)),
            ("Search", Resolution::Found(0, NameMatch::Bare)),
            ("search", Resolution::Found(0, NameMatch::Bare)),
            ("gh__Search<|channel|>commentary", Resolution::Found(0, NameMatch::Wire)),
            ("<|start|><|x|> gh__Search<|y", Resolution::Unknown(vec!["gh__Search".into()])),
            ("functions.gh__Search", Resolution::Found(0, NameMatch::Decorated)),
            ("functions.gh__Search:0", Resolution::Found(0, NameMatch::Decorated)),
            ("mcp__gh__Search", Resolution::Found(0, NameMatch::Decorated)),
            ("default_api.Search", Resolution::Found(0, NameMatch::Bare)),
            ("GH.search", Resolution::Found(0, NameMatch::Spelling)),
            ("fs/list()", Resolution::Found(2, NameMatch::Spelling)),
            ("gh__serch", Resolution::Unknown(vec!["gh__Search".into()])),
            ("zzzzzzzz", Resolution::Unknown(vec![])),
        ] {
            assert_eq!(table.resolve(written), expect, "{written}");
        }
        assert_eq!(table.suggest("search_gh_repositories"), ["gh__Search"], "words in another order");
        assert!(table.suggest("gh_delete_branch").is_empty(), "the namespace alone tells nothing");
        let Resolution::Unknown(near) = table.resolve("list") else { panic!("ambiguous bare names are not guessed") };
        assert!(near.contains(&"gh__list".to_owned()) && near.contains(&"fs__list".to_owned()), "{near:?}");
    }

    #[test]
    fn names_are_split_into_words() {
        assert_eq!(words("gh__listPullRequests-v2"), ["gh", "list", "pull", "requests", "v2"]);
        assert_eq!(folded(" GH..List--Pull "), "gh_list_pull_");
    }

    proptest! {
        #[test]
        fn wire_names_are_legal_distinct_and_stable(
            names in proptest::collection::vec((0usize..3, "[a-zA-Z0-9._é -]{0,90}"), 1..20), max in 16usize..65,
        ) {
            let mut tools: Vec<(usize, ToolId, String)> = Vec::new();
            let mut sorted = names;
            sorted.sort_by_key(|(provider, _)| *provider);
            for (provider, raw) in sorted {
                let mut id = ToolId::foreign("srv", &raw).expect("id");
                if tools.iter().any(|(_, other, _)| *other == id) { id = id.with_hash_suffix(&format!("{provider}{raw}{}", tools.len())); }
                tools.push((provider, id, raw));
            }
            let whole = table(&tools, max);
            let mut seen = std::collections::HashSet::new();
            for index in 0..tools.len() {
                let wire = whole.wire_name(index);
                prop_assert!(wire.len() <= max && !wire.is_empty());
                prop_assert!(wire.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'));
                prop_assert!(wire.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'));
                prop_assert!(seen.insert(wire.to_owned()));
            }
            let first: Vec<_> = tools.iter().filter(|(p, ..)| *p == 0).cloned().collect();
            let alone = table(&first, max);
            for index in 0..first.len() {
                prop_assert_eq!(alone.wire_name(index), whole.wire_name(index));
            }
        }

        #[test]
        fn resolving_anything_never_panics(text in "\\PC{0,300}") {
            let tools = ids(&[(0, "fs:read@1.0.0", "read")]);
            let _ = table(&tools, 64).resolve(&text);
        }
    }
}
