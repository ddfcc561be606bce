//! Registry search with fixed tiers (SPEC section 3).

use std::sync::Arc;

use crate::catalogue::{Entry, Snapshot};

/// What to search among.
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

/// One hit.
#[derive(Debug, Clone)]
pub struct SearchHit {
    /// The tool.
    pub entry: Arc<Entry>,
    /// 0-100; the mean over the words of the query of each word's best rule.
    pub score: f64,
    /// The best rule, in words.
    pub reason: &'static str,
}

/// Case-insensitive search: exact id, wire name or name 100, name prefix 80, name substring 60, exact
/// tag 50, tag substring 40, description substring 20. Several words score by their mean; a tool that
/// no word hits is left out. Ties by registration order; an empty query lists what passes the filter.
#[must_use]
pub fn search(snapshot: &Snapshot, query: &str, limit: usize, filter: &SearchFilter) -> Vec<SearchHit> {
    let words: Vec<String> = query.split_whitespace().map(str::to_lowercase).collect();
    let mut hits: Vec<SearchHit> = snapshot
        .list()
        .iter()
        .filter(|entry| filter.passes(entry))
        .filter_map(|entry| {
            score(entry, &words).map(|(score, reason)| SearchHit { entry: Arc::clone(entry), score, reason })
        })
        .collect();
    hits.sort_by(|a, b| b.score.total_cmp(&a.score));
    hits.truncate(limit);
    hits
}

fn score(entry: &Entry, words: &[String]) -> Option<(f64, &'static str)> {
    if words.is_empty() {
        return Some((0.0, "listed"));
    }
    let fields = Fields::of(entry);
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

struct Fields {
    exact: [String; 4],
    name: String,
    tags: Vec<String>,
    description: String,
}

impl Fields {
    fn of(entry: &Entry) -> Self {
        let definition = entry.definition();
        Self {
            exact: [
                definition.id.as_str().to_lowercase(),
                definition.id.without_version().to_lowercase(),
                entry.wire_name.to_lowercase(),
                entry.tool.raw_name().to_lowercase(),
            ],
            name: definition.id.name().to_owned(),
            tags: definition.tags.iter().map(|tag| tag.to_lowercase()).collect(),
            description: definition.description.to_lowercase(),
        }
    }

    fn best_rule(&self, word: &str) -> (u32, &'static str) {
        let name = |test: &dyn Fn(&str) -> bool| test(&self.name) || test(&self.exact[3]);
        if self.name == word || self.exact.iter().any(|exact| exact == word) {
            (100, "exact name")
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
    use crate::testing::{definition, listing, own};

    fn snapshot() -> Snapshot {
        let tool = |id: &str, tags: &[&str], description: &str| {
            let mut definition = definition(id);
            definition.tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
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
        check("fs:read@1.0.0", &[("fs:read", 100.0)]);
        check("net", &[("web:fetch", 50.0)]);
        check("adab", &[("web:thread", 40.0)]);
        check("page", &[("web:fetch", 20.0)]);
        check("nothing", &[]);
    }

    #[test]
    fn several_words_score_by_their_mean_and_filters_hold() {
        check("read file", &[("fs:read", 70.0), ("fs:read_lines", 60.0), ("web:thread", 30.0), ("web:fetch", 20.0)]);
        let filter = SearchFilter { namespace: Some("web".into()), ..SearchFilter::default() };
        assert_eq!(search(&snapshot(), "", 20, &filter).len(), 2);
        assert_eq!(search(&snapshot(), "", 1, &filter).len(), 1);
        let filter = SearchFilter { prefix: Some("fs:read_".into()), tag: Some("files".into()), namespace: None };
        assert_eq!(search(&snapshot(), "read", 20, &filter).len(), 1);
    }
}
