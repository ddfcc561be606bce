//! Picks the right few tools for a query: candidates, order and reasons. Pure; a scorer that needs the network runs
//! between [`PickRun::begin`] and [`PickRun::finish`].

pub mod judge;
pub(crate) mod scorer;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::scorer::Method;
use super::lexical::{QueryWords, by_shared_words};
use super::{HYBRID_DEPTH, Hybrid, Query, Ranked, Searchable as _, SemanticQuery, SnapshotIndex, auto, combine};
use toolwright_core::catalogue::{Entry, Snapshot};
use toolwright_core::context::NestedCalls;
use toolwright_core::definition::{Mode, ToolDefinition};
use toolwright_core::session::Principal;

/// Name of the registration order in provenance.
const IN_ORDER: &str = "registration";
/// Bytes of a query that are read; the rest is ignored.
const MAX_QUERY: usize = 32 << 10;
/// Number of turns of a conversation that are read.
const MAX_TURNS: usize = 4;
/// Minimal score of a tool with words of the query in prose alone, or found only by related words. In
/// MetaTool, BFCL and Seal-Tools, such matches of right tools score higher; most queries unrelated to a
/// catalogue score lower.
const MIN_WEAK_SCORE: f32 = 0.25;

/// The text to search for: a task, or the last turns of a conversation.
///
/// Of several turns, [`Method::Auto`] reads the last four, earlier ones with less weight (see
/// [`Query::conversation`]), and so do all methods that use embeddings. Other scorers and the names of
/// tools use only the last turn.
#[derive(Clone)]
pub struct PickInput<'a> {
    text: Cow<'a, str>,
    before: &'a [&'a str],
    calls: Option<&'a dyn NestedCalls>,
}

impl fmt::Debug for PickInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PickInput").field("text", &self.text).field("before", &self.before).finish_non_exhaustive()
    }
}

impl<'a> PickInput<'a> {
    /// A conversation, oldest turn first. An empty one matches nothing.
    #[must_use]
    pub fn turns(turns: &'a [&'a str]) -> Self {
        let (text, before) = turns.split_last().map_or(("", turns), |(last, before)| (*last, before));
        Self { before: &before[before.len().saturating_sub(MAX_TURNS - 1)..], ..Self::from(text) }
    }

    /// Sets the run or call to pick for: a scorer's model requests through `calls` count for it.
    #[must_use]
    pub fn on_behalf_of(self, calls: Option<&'a dyn NestedCalls>) -> Self {
        Self { calls, ..self }
    }

    /// Sends model requests of scorers.
    pub(crate) fn calls(&self) -> Option<&'a dyn NestedCalls> {
        self.calls
    }

    /// The text of the last turn, at most 32 KiB.
    #[must_use]
    pub fn text(&self) -> &str {
        cut(&self.text)
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_QUERY)]
}

impl<'a> From<&'a str> for PickInput<'a> {
    fn from(text: &'a str) -> Self {
        Self { text: Cow::Borrowed(text), before: &[], calls: None }
    }
}

/// Text stays as it is; anything else becomes compact JSON.
impl<'a> From<&'a Value> for PickInput<'a> {
    fn from(input: &'a Value) -> Self {
        match input {
            Value::String(text) => Self::from(text.as_str()),
            other => Self { text: Cow::Owned(other.to_string()), before: &[], calls: None },
        }
    }
}

/// Which tools are picked, and how many: the part of a pick that the configuration sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PickConfig {
    /// Most tools that `pick` returns.
    #[schemars(range(min = 1, max = 1000))]
    pub max_candidates: usize,
    /// Lowest score, from 0 to 1, of a tool that is picked.
    // Tools that the query names are above it. Unless it is 0, a tool that is found by related words or by words of its
    // descriptions alone, with nothing to say that they mean the same, needs 0.25.
    #[schemars(range(min = 0, max = 1))]
    pub min_score: f64,
    /// Whether tools that their authors mark unsafe (`safe: false`) are shown, found and picked.
    pub allow_unsafe: bool,
    /// Capabilities that a tool must declare to be picked, like `streaming`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// What the environment of the tools provides, by name. A tool that needs anything else is not picked. Default: not
    /// checked.
    // A tool needs what its capability `REQUIRES` names, and `background` or `stateful` if that is its mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<String>>,
    /// Tokens that the definitions of all picks together may take. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub budget: Option<usize>,
}

impl Default for PickConfig {
    fn default() -> Self {
        Self {
            max_candidates: 3,
            min_score: 0.05,
            allow_unsafe: false,
            capabilities: Vec::new(),
            context: None,
            budget: None,
        }
    }
}

/// What is picked, and from what. The default waits without limit.
#[derive(Debug, Clone, Default)]
pub struct PickOptions {
    /// Which tools, and how many.
    pub config: PickConfig,
    /// The required namespace; `None` for any.
    pub namespace: Option<String>,
    /// The caller's roles, for tools limited to roles. `None` is the owner, who has all roles.
    pub roles: Option<Vec<String>>,
    /// The scoring method.
    pub scorer: Method,
    /// Time limit for scoring, with everything it needs. After it the available results count: words, the first pass
    /// of a cascade, or else the order of registration.
    pub timeout: Option<Duration>,
    /// Whether picks include the details of their scores.
    pub debug: bool,
}

/// Capability that lists a tool's required features of its surroundings: one name, or a list.
pub const REQUIRES: &str = "requires";

/// Why a tool was not even scored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exclusion {
    /// Its author marked it unsafe, and unsafe tools were not allowed.
    Unsafe,
    /// Its namespace is another one.
    Namespace,
    /// It is limited to roles that the caller lacks.
    Roles(Vec<String>),
    /// It lacks a required capability.
    Capability(String),
    /// It needs something that its surroundings do not have.
    Context(String),
    /// Its definition exceeds the remaining budget, with its tokens.
    Budget(usize),
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsafe => write!(f, "it is marked unsafe"),
            Self::Namespace => write!(f, "its namespace is another one"),
            Self::Roles(roles) => write!(f, "it is only for {}", roles.join(" or ")),
            Self::Capability(name) => write!(f, "it lacks the capability {name}"),
            Self::Context(name) => write!(f, "it needs {name}, which is not available"),
            Self::Budget(tokens) => write!(f, "its definition takes {tokens} tokens, more than are left"),
        }
    }
}

/// A tool that was picked.
#[derive(Debug, Clone, PartialEq)]
pub struct Pick {
    /// Its position in the snapshot.
    pub position: usize,
    /// From 0 to 1.
    pub score: f32,
    /// Why, in words.
    pub reason: String,
    /// Places of the query's words, and details of the scorer; only with [`PickOptions::debug`].
    pub details: Option<Value>,
}

/// How picks were made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Provenance {
    /// The scorer that ordered them.
    pub scorer: String,
    /// Scorers that should have and failed, in order, each with the reason.
    pub fell_back: Vec<(String, String)>,
    /// Number of tools that could have been picked.
    pub candidates: usize,
    /// The others, by position, each with the reason.
    pub excluded: Vec<(usize, Exclusion)>,
}

impl Provenance {
    /// Whether nothing was scored: the picks are tools named in the query, then the first registered ones.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        self.scorer == IN_ORDER
    }
}

/// Picks, best first, and how they were made. May be empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Picked {
    /// The tools.
    pub picks: Vec<Pick>,
    /// How they were made.
    pub provenance: Provenance,
}

/// A ranking of tools, with notes on some of them.
#[derive(Debug, Clone, Default)]
pub struct Ranking {
    /// Name of the scorer that ordered.
    pub scorer: String,
    /// Best first.
    pub order: Vec<Ranked>,
    /// Whether related words were used, and no embeddings.
    pub by_words: bool,
    /// Notes by position.
    pub notes: HashMap<usize, ScorerNote>,
}

/// A scorer's note on a tool, besides its score.
#[derive(Debug, Clone, Default)]
pub struct ScorerNote {
    /// Why, in words.
    pub reason: Option<String>,
    /// Debug details.
    pub details: Option<Value>,
}

/// A pick in progress, from the filter to the cut.
pub struct PickRun<'a> {
    snapshot: &'a Snapshot,
    index: &'a SnapshotIndex,
    query: &'a str,
    before: &'a [&'a str],
    options: &'a PickOptions,
    admitted: Vec<bool>,
    /// Positions of named tools, in order.
    named: Vec<usize>,
    excluded: Vec<(usize, Exclusion)>,
}

impl<'a> PickRun<'a> {
    /// Finds the candidates, and the tools named in the query. `index` belongs to `snapshot`.
    #[must_use]
    pub fn begin(
        query: &'a PickInput<'a>,
        snapshot: &'a Snapshot,
        index: &'a SnapshotIndex,
        options: &'a PickOptions,
    ) -> Self {
        let (query, before) = (query.text(), query.before);
        let caller = match options.roles.clone() {
            Some(roles) => Principal { id: String::new(), roles, owner: false },
            None => Principal::owner(),
        };
        let (tools, directory) = (snapshot.list(), index.directory(snapshot));
        let mut picking = Self {
            snapshot,
            index,
            query,
            before,
            options,
            admitted: vec![true; tools.len()],
            named: directory.names.named(query, tools),
            excluded: Vec::new(),
        };
        let mut check = |position: usize| {
            if let Some(why) = excluded(&tools[position], options, &caller) {
                picking.admitted[position] = false;
                picking.excluded.push((position, why));
            }
        };
        if filters(options) {
            (0..tools.len()).for_each(check);
        } else {
            directory.restricted.iter().copied().for_each(&mut check);
        }
        picking.named.retain(|position| picking.admitted[*position]);
        picking
    }

    /// The tools.
    #[must_use]
    pub fn snapshot(&self) -> &'a Snapshot {
        self.snapshot
    }

    /// The text to search for, that of the last turn.
    #[must_use]
    pub fn query(&self) -> &'a str {
        self.query
    }

    /// The nonblank turns of the conversation, 1 to 4. The last one is always included.
    #[must_use]
    pub fn turns(&self) -> Vec<&'a str> {
        let before = self.before.iter().map(|turn| cut(turn)).filter(|turn| !turn.trim().is_empty());
        before.chain([self.query]).collect()
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &'a PickOptions {
        self.options
    }

    /// Whether the tool at `position` may be chosen.
    #[must_use]
    pub fn is_candidate(&self, position: usize) -> bool {
        self.admitted.get(position) == Some(&true)
    }

    /// Positions of all candidates, in registration order.
    pub fn candidates(&self) -> impl Iterator<Item = usize> {
        (0..self.admitted.len()).filter(|position| self.admitted[*position])
    }

    /// Returns how long a ranking must be so that no pick is missing.
    #[must_use]
    pub fn enough(&self) -> usize {
        // Sizes of definitions are applied last: with a budget any tool may be skipped.
        if self.options.config.budget.is_some() {
            return self.admitted.len();
        }
        self.options.config.max_candidates.saturating_add(self.named.len())
    }

    /// Returns the tools that share words with the query, scored by share; the first `limit` among `keep`.
    #[must_use]
    pub fn by_keyword(&self, limit: usize, keep: &dyn Fn(usize) -> bool) -> Vec<Ranked> {
        by_shared_words(self.query, self.snapshot, limit, keep)
    }

    /// Returns the tools that share words with the query, by BM25 scaled to 0..1; the first `limit` among `keep`.
    #[must_use]
    pub fn by_bm25(&self, limit: usize, keep: &dyn Fn(usize) -> bool) -> Vec<Ranked> {
        let mut ranked = self.index.lexical(self.snapshot).rank(self.query, limit, keep);
        ranked.iter_mut().for_each(|ranked| ranked.score /= ranked.score + 1.0);
        ranked
    }

    /// Returns the first `limit` tools among `keep` that match misspelled words of the query. Their scores
    /// are halved.
    #[must_use]
    pub fn by_spelling(&self, limit: usize, keep: &dyn Fn(usize) -> bool) -> Vec<Ranked> {
        let mut ranked = self.index.lexical(self.snapshot).rank_mistyped(self.query, limit, keep);
        ranked.iter_mut().for_each(|ranked| ranked.score /= 2.0 * (ranked.score + 1.0));
        ranked
    }

    /// Returns the tools found by words or meaning, with fixed weights; the first `limit` among `keep`. `near` are the
    /// first [`HYBRID_DEPTH`] by meaning. Also returns the ranking by words.
    #[must_use]
    pub fn by_hybrid(
        &self,
        hybrid: Hybrid,
        near: &[Ranked],
        limit: usize,
        keep: &dyn Fn(usize) -> bool,
    ) -> (Vec<Ranked>, Vec<Ranked>) {
        let words = self.by_bm25(HYBRID_DEPTH, keep);
        let mut order = combine(&[(hybrid.lexical, &words), (hybrid.semantic, near)], hybrid.fusion);
        order.truncate(limit);
        (order, words)
    }

    /// Returns the tools found by words or `meaning`; the first `limit` among `keep`.
    #[must_use]
    pub fn by_all(
        &self,
        meaning: Option<SemanticQuery<'_>>,
        limit: usize,
        keep: &dyn Fn(usize) -> bool,
    ) -> Vec<Ranked> {
        auto(self.index.lexical(self.snapshot), &Query::conversation(&self.turns()), meaning, limit, keep)
    }

    /// Returns a ranking in pick order: tools named in the query with score 1, in their relative
    /// order, then the rest down to the minimal score.
    pub fn order(&self, ranked: &[Ranked]) -> impl Iterator<Item = Ranked> {
        let mut named = self.named.clone();
        if named.len() > 1 {
            let ranks: HashMap<usize, usize> =
                ranked.iter().enumerate().map(|(rank, ranked)| (ranked.index, rank)).collect();
            named.sort_by_key(|position| ranks.get(position).copied().unwrap_or(usize::MAX));
        }
        // In the scores' precision, so that rounding does not exclude a tool at the limit.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        let least = self.options.config.min_score as f32;
        let is_new = |ranked: &&Ranked| !self.is_named(ranked.index) && self.is_candidate(ranked.index);
        let rest = ranked.iter().filter(is_new).filter(move |ranked| ranked.score >= least).copied();
        // If any score suffices, so does none: the other tools follow in registration order.
        let zeros = (self.options.config.min_score <= 0.0).then(|| {
            let ranked: HashSet<usize> = ranked.iter().map(|ranked| ranked.index).collect();
            let is_other = move |position: &usize| !ranked.contains(position) && !self.is_named(*position);
            self.candidates().filter(is_other).map(|index| Ranked { index, score: 0.0 })
        });
        named.into_iter().map(|index| Ranked { index, score: 1.0 }).chain(rest).chain(zeros.into_iter().flatten())
    }

    fn is_named(&self, position: usize) -> bool {
        self.named.binary_search(&position).is_ok()
    }

    /// The picks of a ranking, in that [order](Self::order).
    #[must_use]
    pub fn finish(self, mut ranking: Ranking, provenance: Provenance) -> Picked {
        let words = QueryWords::of(&self.turns());
        let fits = |ranked: &Ranked| {
            let is_weak = ranking.by_words && self.options.config.min_score > 0.0 && ranked.score < MIN_WEAK_SCORE;
            let is_meant = || words.found_in(&self.snapshot.list()[ranked.index].document()).is_outside_prose();
            !is_weak || self.is_named(ranked.index) || is_meant()
        };
        let chosen = self.within_budget(self.order(&ranking.order).filter(fits));
        let picks = chosen
            .into_iter()
            .map(|Ranked { index, score }| {
                let note = ranking.notes.remove(&index).unwrap_or_default();
                let found = words.found_in(&self.snapshot.list()[index].document());
                let reason = match note.reason {
                    _ if self.is_named(index) => "the query names it".to_owned(),
                    Some(reason) => reason,
                    None if score <= 0.0 => "nothing of the query speaks for it".to_owned(),
                    None => found.in_words(),
                };
                let details = self.options.debug.then(|| found.details(note.details));
                Pick { position: index, score, reason, details }
            })
            .collect();
        self.picked(picks, Provenance { scorer: ranking.scorer, ..provenance })
    }

    /// Returns the picks without a ranking, for the reason `why`: tools named in the query, then
    /// the first ones registered, with score 0.
    #[must_use]
    pub fn in_order(self, why: &str, provenance: Provenance) -> Picked {
        let is_new = |position: &usize| !self.is_named(*position);
        let named = self.named.iter().map(|&index| Ranked { index, score: 1.0 });
        let rest = self.candidates().filter(is_new).map(|index| Ranked { index, score: 0.0 });
        let reason = |score: f32| {
            if score > 0.0 { "the query names it".to_owned() } else { format!("in the order of registration: {why}") }
        };
        let picks = self
            .within_budget(named.chain(rest))
            .into_iter()
            .map(|Ranked { index, score }| Pick { position: index, score, reason: reason(score), details: None })
            .collect();
        self.picked(picks, Provenance { scorer: IN_ORDER.into(), ..provenance })
    }

    /// Returns as many as are wanted and fit the budget.
    fn within_budget(&self, ranked: impl Iterator<Item = Ranked>) -> Vec<Ranked> {
        let mut left = self.options.config.budget;
        let fits = |ranked: &Ranked| {
            let Some(tokens) = &mut left else { return true };
            let rest = tokens.checked_sub(self.snapshot.list()[ranked.index].tokens());
            *tokens = rest.unwrap_or(*tokens);
            rest.is_some()
        };
        ranked.filter(fits).take(self.options.config.max_candidates).collect()
    }

    fn picked(self, picks: Vec<Pick>, provenance: Provenance) -> Picked {
        let candidates = self.admitted.len() - self.excluded.len();
        Picked { picks, provenance: Provenance { candidates, excluded: self.excluded, ..provenance } }
    }
}

/// Whether the options exclude unrestricted tools.
fn filters(options: &PickOptions) -> bool {
    let PickOptions { namespace, config: PickConfig { capabilities, context, budget, .. }, .. } = options;
    namespace.is_some() || !capabilities.is_empty() || context.is_some() || budget.is_some()
}

/// Returns why a tool is no candidate, if so.
fn excluded(entry: &Entry, options: &PickOptions, caller: &Principal) -> Option<Exclusion> {
    let tool = entry.definition();
    if options.namespace.as_deref().is_some_and(|namespace| tool.id.namespace() != namespace) {
        return Some(Exclusion::Namespace);
    }
    if !tool.safe && !options.config.allow_unsafe {
        return Some(Exclusion::Unsafe);
    }
    if !caller.may_use(&tool.allowed_roles) {
        return Some(Exclusion::Roles(tool.allowed_roles.clone()));
    }
    if let Some(lacking) = options.config.capabilities.iter().find(|name| !has(tool, name)) {
        return Some(Exclusion::Capability(lacking.clone()));
    }
    if let Some(context) = &options.config.context
        && let Some(missing) = needs(tool).find(|name| !context.iter().any(|there| there == name))
    {
        return Some(Exclusion::Context(missing.to_owned()));
    }
    let budget = options.config.budget?;
    let tokens = entry.tokens();
    (tokens > budget).then_some(Exclusion::Budget(tokens))
}

/// Whether it declares the capability, with any value except `null`, `false`, 0 or an empty one.
fn has(tool: &ToolDefinition, name: &str) -> bool {
    match tool.capabilities.get(name) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(members)) => !members.is_empty(),
    }
}

/// Returns the features that it needs.
fn needs(tool: &ToolDefinition) -> impl Iterator<Item = &str> {
    let mode = match tool.mode {
        Mode::Direct => None,
        Mode::Background => Some("background"),
        Mode::Stateful => Some("stateful"),
    };
    let named = match tool.capabilities.get(REQUIRES) {
        Some(Value::Array(names)) => names.as_slice(),
        Some(name) => std::slice::from_ref(name),
        None => &[],
    };
    mode.into_iter().chain(named.iter().filter_map(Value::as_str))
}
