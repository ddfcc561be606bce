//! The search for people and programs (`tools search`, `GET /api/search`): scores names, tags and descriptions by fixed
//! rules. Models search through `tools.rs`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{LexicalIndex, Ranked};
use toolwright_core::catalogue::{Entry, Snapshot};

/// Number of words of a query that are read.
const MAX_WORDS: usize = 64;

/// The tools to search.
#[derive(Debug, Clone, Default)]
pub struct SearchFilter {
    /// Exact namespace.
    pub namespace: Option<String>,
    /// Prefix of the id.
    pub prefix: Option<String>,
    /// Exact tag.
    pub tag: Option<String>,
}

impl SearchFilter {
    /// Whether a tool passes.
    #[must_use]
    pub fn passes(&self, entry: &Entry) -> bool {
        let definition = entry.definition();
        self.namespace.as_deref().is_none_or(|n| definition.id.namespace() == n)
            && self.prefix.as_deref().is_none_or(|p| definition.id.as_str().starts_with(p))
            && self.tag.as_deref().is_none_or(|t| definition.tags.iter().any(|tag| tag == t))
    }
}

/// A search result.
#[derive(Debug, Clone)]
pub struct SearchHit {
    /// The tool.
    pub entry: Arc<Entry>,
    /// 0-100; the mean over the query's words of each word's best rule.
    pub score: f64,
    /// The best rule, in words.
    pub reason: &'static str,
}

impl SearchHit {
    /// The hit as programs are shown it: an element of `tools search --json` and of `GET /api/search`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.entry.id(),
            "wire_name": self.entry.wire_name,
            "score": self.score,
            "reason": self.reason,
        })
    }
}

/// Returns the results of [`search`], or, if there are none, of [`similar`].
#[must_use]
pub fn search_or_similar(snapshot: &Snapshot, query: &str, limit: usize, filter: &SearchFilter) -> Vec<SearchHit> {
    let hits = search(snapshot, query, limit, filter);
    if hits.is_empty() { similar(snapshot, query, limit, filter) } else { hits }
}

/// Searches ignoring case: exact id (with or without its version), wire name, name or alias 100, name
/// prefix 80, name substring 60, exact tag 50, tag substring 40, description substring 20. Several words score their
/// mean, unless together they are a name; tools without a match are left out. Ties by registration
/// order; an empty query lists all tools that pass the filter, with score 0. Words past the 64th are ignored.
#[must_use]
pub fn search(snapshot: &Snapshot, query: &str, limit: usize, filter: &SearchFilter) -> Vec<SearchHit> {
    let query = query.to_lowercase();
    let words: Vec<&str> = query.split_whitespace().take(MAX_WORDS).collect();
    let mut hits: Vec<SearchHit> = snapshot
        .list()
        .iter()
        .filter(|entry| filter.passes(entry))
        .filter_map(|entry| {
            score(entry, query.trim(), &words).map(|(score, reason)| SearchHit {
                entry: Arc::clone(entry),
                score,
                reason,
            })
        })
        .collect();
    hits.sort_by(|a, b| b.score.total_cmp(&a.score));
    hits.truncate(limit);
    hits
}

/// Returns tools with words like those of `query`, as a person typed it, if [`search`] finds nothing:
/// words may be mistyped, and the last one incomplete. Scores are between 0 and 10, less than those of any rule of
/// `search`.
#[must_use]
pub fn similar(snapshot: &Snapshot, query: &str, limit: usize, filter: &SearchFilter) -> Vec<SearchHit> {
    let tools: Vec<Arc<Entry>> = snapshot.list().iter().filter(|entry| filter.passes(entry)).cloned().collect();
    let ranked = LexicalIndex::build(&tools, None).rank_typed(query, limit, &|_| true);
    let hit = |found: Ranked| SearchHit {
        entry: Arc::clone(&tools[found.index]),
        score: f64::from(10.0 * found.score / (found.score + 1.0)),
        reason: "similar words",
    };
    ranked.into_iter().map(hit).collect()
}

fn score(entry: &Entry, query: &str, words: &[&str]) -> Option<(f64, &'static str)> {
    if words.is_empty() {
        return Some((0.0, "listed"));
    }
    let fields = Fields::of(entry);
    if fields.is_name(query) {
        return Some((100.0, EXACT));
    }
    let mut sum = 0;
    let mut best = (0, "");
    for word in words {
        let rule = fields.best_rule(word);
        sum += rule.0;
        if rule.0 > best.0 {
            best = rule;
        }
    }
    // Counts are small: the conversion is exact.
    #[expect(clippy::cast_precision_loss, reason = "a query has far fewer than 2^52 words")]
    (best.0 > 0).then(|| (f64::from(sum) / words.len() as f64, best.1))
}

/// The best rule, in words.
const EXACT: &str = "exact name";

struct Fields {
    /// Its names; the raw name comes first.
    exact: Vec<String>,
    name: String,
    tags: Vec<String>,
    description: String,
}

impl Fields {
    fn of(entry: &Entry) -> Self {
        let definition = entry.definition();
        let id = &definition.id;
        let own = [entry.tool.raw_name(), id.name(), id.as_str(), id.without_version(), &entry.wire_name];
        let names = own.into_iter().chain(definition.aliases.iter().map(String::as_str));
        Self {
            exact: names.map(str::to_lowercase).collect(),
            name: definition.id.name().to_owned(),
            tags: definition.tags.iter().map(|tag| tag.to_lowercase()).collect(),
            description: definition.description.to_lowercase(),
        }
    }

    fn is_name(&self, text: &str) -> bool {
        self.exact.iter().any(|exact| exact == text)
    }

    fn best_rule(&self, word: &str) -> (u32, &'static str) {
        let name = |test: &dyn Fn(&str) -> bool| test(&self.name) || self.exact.first().is_some_and(|raw| test(raw));
        if self.is_name(word) {
            (100, EXACT)
        } else if name(&|n| n.starts_with(word)) {
            (80, "name begins with it")
        } else if name(&|n| n.contains(word)) {
            (60, "name contains it")
        } else if self.tags.iter().any(|tag| tag == word) {
            (50, "tag")
        } else if self.tags.iter().any(|tag| tag.contains(word)) {
            (40, "tag contains it")
        } else if self.description.contains(word) {
            (20, "description contains it")
        } else {
            (0, "")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_testkit::{definition, listing, own};

    fn snapshot() -> Snapshot {
        let tool = |id: &str, tags: &[&str], description: &str| {
            let mut definition = definition(id);
            definition.tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
            definition.aliases = vec![format!("{} please", definition.id.name())];
            description.clone_into(&mut definition.description);
            own(definition)
        };
        Snapshot::build(&[listing(
            "p",
            vec![
                tool("fs:read@1.0.0", &["files"], "Reads a file."),
                tool("fs:read_lines@1.0.0", &["files"], "Reads lines."),
                tool("web:thread@1.0.0", &["readable"], "Posts."),
                tool("web:fetch@1.0.0", &["net"], "Reads a page and a file."),
            ],
        )])
    }

    fn check(query: &str, expect: &[(&str, f64)]) {
        let hits = search(&snapshot(), query, 20, &SearchFilter::default());
        let got: Vec<_> = hits.iter().map(|hit| (hit.entry.id().without_version(), hit.score)).collect();
        assert_eq!(got, expect, "{query}");
    }

    #[test]
    fn the_best_rule_of_each_tool_counts() {
        check("READ", &[("fs:read", 100.0), ("fs:read_lines", 80.0), ("web:thread", 60.0), ("web:fetch", 20.0)]);
        check("fs__read", &[("fs:read", 100.0)]);
        check("FS:Read", &[("fs:read", 100.0)]);
        check(" fetch please ", &[("web:fetch", 100.0)]);
        check("fs:read@1.0.0", &[("fs:read", 100.0)]);
        check("net", &[("web:fetch", 50.0)]);
        check("adab", &[("web:thread", 40.0)]);
        check("page", &[("web:fetch", 20.0)]);
        check("nothing", &[]);
    }

    #[test]
    fn words_score_by_mean_within_filters() {
        check("read file", &[("fs:read", 70.0), ("fs:read_lines", 60.0), ("web:thread", 30.0), ("web:fetch", 20.0)]);
        let filter = SearchFilter { namespace: Some("web".into()), ..SearchFilter::default() };
        assert_eq!(search(&snapshot(), "", 20, &filter).len(), 2);
        assert_eq!(search(&snapshot(), "", 1, &filter).len(), 1);
        let filter = SearchFilter { prefix: Some("fs:read_".into()), tag: Some("files".into()), namespace: None };
        assert_eq!(search(&snapshot(), "read", 20, &filter).len(), 1);
    }
    #[test]
    fn mistyped_queries_match_similar_words() {
        let namespace = |name: &str| SearchFilter { namespace: Some(name.into()), ..SearchFilter::default() };
        for (query, filter, expect) in [
            ("fecth", SearchFilter::default(), &["web:fetch"][..]),
            ("thraed posst", SearchFilter::default(), &["web:thread"]),
            ("raeds", namespace("fs"), &["fs:read", "fs:read_lines"]),
            ("fecth", namespace("fs"), &[]),
            ("", SearchFilter::default(), &[]),
        ] {
            let hits = similar(&snapshot(), query, 20, &filter);
            let got: Vec<_> = hits.iter().map(|hit| hit.entry.id().without_version()).collect();
            assert_eq!(got, expect, "{query}");
            assert!(hits.iter().all(|hit| hit.score > 0.0 && hit.score < 10.0));
        }
    }
}
