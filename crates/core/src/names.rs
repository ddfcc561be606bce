//! The table between tools and the names that models and clients use for them.

use std::collections::HashMap;

use crate::name::{ToolId, hashed_wire_name, wire_candidate};

/// How many near names an unknown name is answered with.
const MAX_SUGGESTIONS: usize = 3;

/// One tool as the table needs it; `provider` counts in registration order.
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

/// How a written name was understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameMatch {
    /// The exact wire name.
    Wire,
    /// The canonical id.
    Id,
    /// A declared alias.
    Alias,
    /// A bare name that exactly one tool has; valid only if the arguments validate there.
    Bare,
}

/// The result of [`NameTable::resolve`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The tool's index in the order given to [`NameTable::build`].
    Found(usize, NameMatch),
    /// No tool; the nearest wire names.
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
    by_bare: HashMap<String, Bare>,
}

#[derive(Debug, Clone, Copy)]
enum Bare {
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
        }
        table
    }

    fn name_provider(&mut self, tools: &[NamedTool<'_>], range: std::ops::Range<usize>, max: usize) {
        // The highest version of each unversioned id stands for it; the rest are always hashed.
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
                self.free_hashed(&plain, tools[index].id, max)
            };
            self.by_wire.insert(name.clone(), index);
            self.wire[index] = name;
        }
    }

    fn free_hashed(&self, plain: &str, id: &ToolId, max: usize) -> String {
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
                self.by_bare.insert(name.to_owned(), Bare::One(index));
            }
            Some(Bare::One(other)) if same_tool(*other) => {
                if tools[index].provider == tools[*other].provider
                    && tools[index].id.version_key() > tools[*other].id.version_key()
                {
                    self.by_bare.insert(name.to_owned(), Bare::One(index));
                }
            }
            Some(_) => {
                self.by_bare.insert(name.to_owned(), Bare::Several);
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

    /// Resolves what a model wrote: control markers and surrounding space off, then wire name,
    /// canonical id, alias, bare name, in that order.
    #[must_use]
    pub fn resolve(&self, written: &str) -> Resolution {
        if let Some(&index) = self.by_wire.get(written) {
            return Resolution::Found(index, NameMatch::Wire);
        }
        let cleaned = strip_markers(written);
        let name = cleaned.trim();
        if let Some(&index) = self.by_wire.get(name) {
            return Resolution::Found(index, NameMatch::Wire);
        }
        if let Some(&index) = self.by_id.get(name) {
            return Resolution::Found(index, NameMatch::Id);
        }
        if let Some(&index) = self.by_alias.get(name) {
            return Resolution::Found(index, NameMatch::Alias);
        }
        if let Some(Bare::One(index)) = self.by_bare.get(name) {
            return Resolution::Found(*index, NameMatch::Bare);
        }
        Resolution::Unknown(self.suggest(name))
    }

    /// The nearest wire names to `name`, best first; only those that are near.
    #[must_use]
    pub fn suggest(&self, name: &str) -> Vec<String> {
        let wanted = name.to_lowercase();
        // A name far longer than any wire name cannot be near one, and distance is quadratic.
        if wanted.is_empty() || wanted.len() > 256 {
            return Vec::new();
        }
        let mut scored: Vec<(usize, usize)> = self
            .wire
            .iter()
            .enumerate()
            .filter_map(|(index, wire)| nearness(&wanted, &wire.to_lowercase()).map(|distance| (distance, index)))
            .collect();
        scored.sort_unstable();
        scored.into_iter().take(MAX_SUGGESTIONS).map(|(_, index)| self.wire[index].clone()).collect()
    }
}

/// Distance of a written name to a wire name, or to the part of it after the namespace; `None` if far.
fn nearness(wanted: &str, wire: &str) -> Option<usize> {
    let bare = wire.split_once("__").map_or(wire, |(_, bare)| bare);
    let wanted_bare = wanted.rsplit(['.', ':', '/']).next().unwrap_or(wanted);
    let limit = (wanted.len() / 3).max(2);
    [edit_distance(wanted, wire), edit_distance(wanted, bare) + 1, edit_distance(wanted_bare, bare) + 1]
        .into_iter()
        .min()
        .filter(|&distance| distance <= limit)
        .or_else(|| (wanted.len() >= 4 && wire.contains(wanted_bare) && wanted_bare.len() >= 3).then_some(limit + 1))
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn strip_markers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("<|") {
        let Some(length) = rest[start..].find("|>") else { break };
        out.push_str(&rest[..start]);
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(specs: &[(usize, &str, &str)]) -> Vec<(usize, ToolId, String)> {
        specs.iter().map(|(p, id, raw)| (*p, ToolId::parse(id).expect("id"), (*raw).to_owned())).collect()
    }

    fn table(specs: &[(usize, ToolId, String)], max: usize) -> NameTable {
        let tools: Vec<_> =
            specs.iter().map(|(p, id, raw)| NamedTool { provider: *p, id, raw_name: raw, aliases: &[] }).collect();
        NameTable::build(&tools, max)
    }

    #[test]
    fn plain_names_stay_and_collisions_are_hashed() {
        let specs = ids(&[
            (0, "fs:read@1.0.0", "read"),
            (1, "gh:a_b@0.0.0", "a.b"),
            (1, "gh:a_b_1@0.0.0", "a_b"),
            (2, "gh:a-c@0.0.0", "a-c"),
        ]);
        let table = table(&specs, 64);
        assert_eq!(table.wire_name(0), "fs__read");
        assert!(table.wire_name(1).starts_with("gh__a_b_"), "both members of a collision are hashed");
        assert!(table.wire_name(2).starts_with("gh__a_b_"));
        assert_ne!(table.wire_name(1), table.wire_name(2));
        assert_eq!(table.wire_name(3), "gh__a-c");
    }

    #[test]
    fn the_highest_version_of_the_first_provider_has_the_name() {
        let specs = ids(&[(0, "x:t@1.0.0", "t"), (0, "x:t@1.10.0", "t"), (0, "x:t@1.9.0", "t"), (1, "x:t@9.0.0", "t")]);
        let table = table(&specs, 64);
        assert_eq!(table.wire_name(1), "x__t");
        for index in [0, 2, 3] {
            assert!(table.wire_name(index).starts_with("x__t_"));
        }
        assert_eq!(table.resolve("x:t@1.0.0"), Resolution::Found(0, NameMatch::Id));
        assert_eq!(table.resolve("t"), Resolution::Found(1, NameMatch::Bare));
    }

    #[test]
    fn what_a_model_writes_resolves_in_order() {
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
            ("gh__serch", Resolution::Unknown(vec!["gh__Search".into()])),
            ("zzzzzzzz", Resolution::Unknown(vec![])),
        ] {
            assert_eq!(table.resolve(written), expect, "{written}");
        }
        let Resolution::Unknown(near) = table.resolve("list") else { panic!("ambiguous bare names are not guessed") };
        assert!(near.contains(&"gh__list".to_owned()) && near.contains(&"fs__list".to_owned()), "{near:?}");
    }

    proptest! {
        #[test]
        fn names_are_legal_distinct_and_never_renamed_by_a_later_provider(
            names in proptest::collection::vec((0usize..3, "[a-zA-Z0-9._é -]{0,90}"), 1..20), max in 16usize..65,
        ) {
            let mut specs: Vec<(usize, ToolId, String)> = Vec::new();
            let mut sorted = names;
            sorted.sort_by_key(|(provider, _)| *provider);
            for (provider, raw) in sorted {
                let mut id = ToolId::foreign("srv", &raw).expect("id");
                if specs.iter().any(|(_, other, _)| *other == id) { id = id.with_hash_suffix(&format!("{provider}{raw}{}", specs.len())); }
                specs.push((provider, id, raw));
            }
            let whole = table(&specs, max);
            let mut seen = std::collections::HashSet::new();
            for index in 0..specs.len() {
                let wire = whole.wire_name(index);
                prop_assert!(wire.len() <= max && !wire.is_empty());
                prop_assert!(wire.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'));
                prop_assert!(wire.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'));
                prop_assert!(seen.insert(wire.to_owned()));
            }
            let first: Vec<_> = specs.iter().filter(|(p, ..)| *p == 0).cloned().collect();
            let alone = table(&first, max);
            for index in 0..first.len() {
                prop_assert_eq!(alone.wire_name(index), whole.wire_name(index));
            }
        }

        #[test]
        fn resolving_anything_never_panics(text in "\\PC{0,300}") {
            let specs = ids(&[(0, "fs:read@1.0.0", "read")]);
            let _ = table(&specs, 64).resolve(&text);
        }
    }
}
