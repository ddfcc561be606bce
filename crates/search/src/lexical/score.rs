//! Scores how well each tool answers a query.
//!
//! For each word of the query, a tool scores the best member of the word's group. Tools that cover more of the query
//! get a bonus, and so do the best candidates whose names the query covers. Each clause is scored like a separate
//! query; a tool's score for its best clause is added.

use std::cmp::Reverse;
use std::ops::Range;

use super::super::Ranked;
use super::dictionary::{Term, number};
use super::query::{self, Query};
use super::{LexicalIndex, Posting};

/// Bonus of a tool that covers the whole query, as a share of its score.
const COVERAGE: f32 = 0.5;
/// Bonus of a tool with its whole name in the query, as a share of the best score.
const NAME: f32 = 0.25;
/// Number of the best tools whose names are compared.
const CANDIDATES: usize = 100;
/// Bonus of the best tool of a clause, as a share of the best score.
const CLAUSE: f32 = 0.75;

/// Reusable buffers with a place for each tool or term. Sums are zero between queries: a
/// query clears the places it used, so its cost depends on its matches, not on the catalogue.
#[derive(Default)]
pub(super) struct Scratch {
    whole: TermSums,
    clause: TermSums,
    /// Per tool: the most that it is worth for any clause, as a share of that clause's best.
    clauses: Vec<BlockScores>,
    merger: Merger,
    /// For each term, how well it matches a word of the bag, 0..1.
    asked: Vec<f32>,
}

/// Shares of tools in groups of several members.
#[derive(Default)]
struct Merger {
    /// The shares of all groups, one group after another.
    shares: Vec<ToolShare>,
    /// For each tool, the position of its share of the last group, if it has one; a position without a share of this
    /// tool is from another group or query.
    places: Vec<u32>,
}

/// A tool's share in a group.
struct ToolShare {
    tool: u32,
    score: f32,
    /// Its part of the group's maximum.
    covered: f32,
}

/// The scores of a query.
pub(super) struct Scores<'a> {
    scratch: &'a mut Scratch,
    /// The best score of the whole query, clauses apart.
    pub(super) strength: f32,
}

impl Scores<'_> {
    /// Visits every tool that has something of the query, once and in blocks, with the block's number.
    pub(super) fn drain(self, mut visit: impl FnMut(u32, &BlockScores)) {
        let Scratch { whole, clauses, .. } = self.scratch;
        whole.drain(|block, scores| {
            let clauses = std::mem::take(&mut clauses[block as usize]);
            scores.iter_mut().zip(clauses).for_each(|(score, clause)| *score += CLAUSE * self.strength * clause);
            visit(block, scores);
        });
    }
}

impl Scratch {
    /// Scores the tools that have something of a query.
    pub(super) fn score(&mut self, index: &LexicalIndex, plan: &Plan) -> Scores<'_> {
        self.fit(index);
        let Self { whole, clause, clauses, merger, asked } = self;
        merger.shares.clear();
        let found: Vec<GroupPostings<'_>> =
            plan.groups.iter().map(|group| GroupPostings::of(index, group, merger)).collect();
        let mut scorer = Scorer { index, plan, found, shares: &merger.shares, asked };
        // Weights not yet in the sums of the whole query. Weights that a clause adds first are added to both at
        // once, block by block.
        let mut left: Vec<f32> = plan.whole.iter().map(|(_, weight)| *weight).collect();
        for groups in &plan.clauses {
            let (first, again): (GroupWeights, GroupWeights) =
                groups.iter().partition(|(group, weight)| left[*group] == *weight);
            first.iter().for_each(|(group, _)| left[*group] = 0.0);
            scorer.add(&first, clause);
            whole.add_all(clause);
            scorer.add(&again, clause);
            let best = scorer.finish(groups, clause);
            clause.drain(|block, scores| {
                scores.iter_mut().for_each(|score| *score /= best);
                raise(&mut clauses[block as usize], scores);
            });
        }
        let left = plan.whole.iter().filter(|(group, _)| left[*group] > 0.0);
        scorer.add(&left.copied().collect(), whole);
        let strength = scorer.finish(&plan.whole, whole);
        Scores { scratch: self, strength }
    }

    fn fit(&mut self, index: &LexicalIndex) {
        let tools = index.len();
        self.whole.fit(tools);
        self.clause.fit(tools);
        fit(&mut self.clauses, tools);
        self.merger.places.resize(tools.max(self.merger.places.len()), 0);
        self.asked.resize(index.rarities.len().max(self.asked.len()), 0.0);
    }
}

impl Merger {
    /// Merges the tools of `postings` into the group whose shares begin at `start`, keeping the maximum.
    fn merge(&mut self, start: usize, postings: &[Posting], worth: f32, covered: f32) {
        let Self { shares, places } = self;
        for &Posting { tool, impact } in postings {
            let score = worth * impact;
            let place = &mut places[tool as usize];
            match shares[start..].get_mut((*place as usize).wrapping_sub(start)) {
                Some(share) if share.tool == tool => {
                    share.score = share.score.max(score);
                    share.covered = share.covered.max(covered);
                }
                _ => {
                    *place = number(shares.len());
                    shares.push(ToolShare { tool, score, covered });
                }
            }
        }
    }
}

struct Scorer<'a, 'b> {
    index: &'a LexicalIndex,
    plan: &'a Plan,
    /// Matches of each group of the plan.
    found: Vec<GroupPostings<'a>>,
    shares: &'b [ToolShare],
    asked: &'b mut [f32],
}

impl Scorer<'_, '_> {
    /// Adds the tools' scores for some of the query's words.
    fn add(&self, groups: &GroupWeights, sums: &mut TermSums) {
        for &(group, weight) in groups {
            match &self.found[group] {
                GroupPostings::One { postings, rarity } => {
                    for posting in *postings {
                        sums.add(posting.tool, weight * (rarity * posting.impact), weight * rarity);
                    }
                }
                GroupPostings::Many { shares, .. } => {
                    for share in &self.shares[shares.clone()] {
                        sums.add(share.tool, weight * share.score, weight * share.covered);
                    }
                }
            }
        }
    }

    /// Makes scores of the sums; the best of them.
    fn finish(&mut self, groups: &GroupWeights, sums: &mut TermSums) -> f32 {
        let whole: f32 = groups.iter().map(|&(group, weight)| weight * self.found[group].best()).sum();
        let mut best = TopK::new(CANDIDATES);
        sums.reward(whole, COVERAGE, &mut best);
        let candidates = best.into_unsorted();
        let most = candidates.clone().fold(0.0, |most: f32, candidate| most.max(candidate.score));
        self.ask(groups, |asked, worth| *asked = asked.max(worth));
        let best = candidates.fold(0.0, |best: f32, candidate| {
            let score = sums.score(candidate.index);
            *score += NAME * most * self.name_covered(candidate.index);
            best.max(*score)
        });
        self.ask(groups, |asked, _| *asked = 0.0);
        best
    }

    /// Visits the terms that match words of the bag, with their weights.
    fn ask(&mut self, groups: &GroupWeights, visit: impl Fn(&mut f32, f32)) {
        for &(group, weight) in groups {
            for member in &self.plan.groups[group] {
                visit(&mut self.asked[member.term as usize], member.discount * weight);
            }
        }
    }

    /// Share of a tool's name in the bag, 0..1.
    fn name_covered(&self, tool: usize) -> f32 {
        let (mut whole, mut covered) = (0.0, 0.0);
        for &term in self.index.names.get(tool) {
            let rarity = self.index.rarity(term);
            whole += rarity;
            covered += rarity * self.asked[term as usize];
        }
        if whole > 0.0 { covered / whole } else { 0.0 }
    }
}

/// The tools that have something of a group.
enum GroupPostings<'a> {
    /// The postings of its only member.
    One { postings: &'a [Posting], rarity: f32 },
    /// The best member for each tool: a range of the merger's shares.
    Many { shares: Range<usize>, best: f32 },
}

impl<'a> GroupPostings<'a> {
    fn of(index: &'a LexicalIndex, group: &Group, merger: &mut Merger) -> Self {
        if let [only] = &**group
            && only.discount >= 1.0
        {
            return Self::One { postings: index.postings.get(only.term as usize), rarity: index.rarity(only.term) };
        }
        let best = index.max_score(group);
        let start = merger.shares.len();
        for member in group {
            let postings = index.postings.get(member.term as usize);
            merger.merge(start, postings, index.member_max_score(group, *member), member.discount * best);
        }
        Self::Many { shares: start..merger.shares.len(), best }
    }

    /// Returns the maximal share of a tool.
    fn best(&self) -> f32 {
        match self {
            Self::One { rarity: best, .. } | Self::Many { best, .. } => *best,
        }
    }
}

impl LexicalIndex {
    /// The most that a tool can score for a group.
    pub(super) fn max_score(&self, group: &Group) -> f32 {
        group.iter().map(|member| self.member_max_score(group, *member)).fold(0.0, f32::max)
    }

    /// Returns a tool's maximal score for a group member: no more than for the word itself.
    pub(super) fn member_max_score(&self, group: &Group, member: Member) -> f32 {
        let own = group.first().filter(|own| own.discount >= 1.0);
        let most = own.map_or(f32::INFINITY, |own| self.rarity(own.term));
        member.discount * self.rarity(member.term).min(most)
    }

    /// Returns the rarity of a stem.
    fn rarity(&self, term: Term) -> f32 {
        self.rarities[term as usize]
    }
}

/// A stem that matches a word of the query: weight 1 for the word's own, less for others.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) term: Term,
    pub(super) discount: f32,
}

/// The stems that can match one word of the query, its own first if any tool has it; not empty, without duplicates.
pub(super) type Group = Vec<Member>;

/// Some groups of a query, by number, each with its weight, at most 1.
pub(super) type GroupWeights = Vec<(usize, f32)>;

/// A query, read against an index.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) groups: Vec<Group>,
    /// All groups.
    pub(super) whole: GroupWeights,
    /// The groups of each clause, if there are several.
    pub(super) clauses: Vec<GroupWeights>,
}

/// Number of a query's words that are searched; the most significant ones are kept.
const MAX_GROUPS: usize = 64;
/// Bound on the postings of a query, so that it takes about a millisecond for any number of tools. Up to
/// some 10,000 tools queries have fewer.
const MAX_POSTINGS: usize = 1 << 16;

impl Plan {
    /// Plans a query; `stands_for` returns the group of a word.
    pub(super) fn new(query: &Query, index: &LexicalIndex, mut stands_for: impl FnMut(&query::Term) -> Group) -> Self {
        let used = query.terms().iter().enumerate().filter(|(_, term)| term.weight > 0.0);
        let mut found: Vec<_> = used.map(|(at, term)| (at, term.weight, stands_for(term))).collect();
        found.retain(|(_, _, group)| !group.is_empty());
        let worth = |(_, weight, group): &(usize, f32, Group)| weight * index.max_score(group);
        let effort = |group: &Group| group.iter().map(|member| index.uses_of(member.term)).sum::<usize>();
        let mut left = MAX_POSTINGS;
        if found.len() > MAX_GROUPS || found.iter().map(|found| effort(&found.2)).sum::<usize>() > left {
            found.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
            let fits = found.iter().position(|found| {
                let (before, own) = (left, effort(&found.2));
                left = left.saturating_sub(own);
                before < own
            });
            found.truncate(fits.unwrap_or(found.len()).clamp(1, MAX_GROUPS));
            found.sort_unstable_by_key(|found| found.0);
        }
        let mut plan = Self::default();
        let mut numbers = vec![None; query.terms().len()];
        for (number, (at, weight, group)) in found.into_iter().enumerate() {
            numbers[at] = Some(number);
            plan.whole.push((number, weight));
            plan.groups.push(group);
        }
        if query.clauses() > 1 {
            let groups = |uses: &Vec<query::TermUse>| {
                uses.iter().filter_map(|one| Some((numbers[one.term]?, one.weight))).collect::<GroupWeights>()
            };
            plan.clauses = query.each_clause().iter().map(groups).collect();
        }
        plan
    }
}

/// Tools of a block.
const LANES: usize = 16;

/// A number for each tool of a block.
pub(super) type BlockScores = [f32; LANES];

/// Scores of tools for some words.
#[derive(Default)]
pub(super) struct TermSums {
    blocks: Vec<Block>,
    /// Per block: whether anything was added.
    is_found: Vec<bool>,
    /// The blocks to which something was added come first.
    found: Vec<u32>,
    /// Number of valid entries.
    count: usize,
}

#[derive(Clone, Copy, Default)]
struct Block {
    /// Above 0 for a tool that has anything.
    scores: BlockScores,
    /// Their parts of the maxima.
    covered: BlockScores,
}

impl TermSums {
    /// Makes room for so many tools.
    pub(super) fn fit(&mut self, tools: usize) {
        let blocks = tools.div_ceil(LANES).max(self.blocks.len());
        self.blocks.resize(blocks, Block::default());
        self.is_found.resize(blocks, false);
        // One extra place, which is written before its validity is known.
        self.found.resize(blocks + 1, 0);
    }

    /// Adds to the sums of a tool; `score` is above 0.
    pub(super) fn add(&mut self, tool: u32, score: f32, covered: f32) {
        let (block, lane) = (tool as usize / LANES, tool as usize % LANES);
        let own = &mut self.blocks[block];
        own.scores[lane] += score;
        own.covered[lane] += covered;
        self.mark(tool / LANES as u32);
    }

    /// Adds other sums.
    pub(super) fn add_all(&mut self, others: &Self) {
        for &block in &others.found[..others.count] {
            let (own, other) = (&mut self.blocks[block as usize], &others.blocks[block as usize]);
            own.scores.iter_mut().zip(other.scores).for_each(|(own, other)| *own += other);
            own.covered.iter_mut().zip(other.covered).for_each(|(own, other)| *own += other);
            self.mark(block);
        }
    }

    /// Records a block with scores. New ones cannot be predicted, so this avoids a branch.
    fn mark(&mut self, block: u32) {
        self.found[self.count] = block;
        self.count += usize::from(!std::mem::replace(&mut self.is_found[block as usize], true));
    }

    /// Multiplies each score by 1 plus `bonus` times the covered share of `whole`; updates the best.
    pub(super) fn reward(&mut self, whole: f32, bonus: f32, best: &mut TopK) {
        for &block in &self.found[..self.count] {
            let Block { scores, covered } = &mut self.blocks[block as usize];
            for (score, covered) in scores.iter_mut().zip(covered) {
                *score *= 1.0 + bonus * *covered / whole;
            }
            if wants_any(best, scores) {
                each(block, scores).for_each(|ranked| best.offer(ranked));
            }
        }
    }

    /// The score of a tool.
    pub(super) fn score(&mut self, tool: usize) -> &mut f32 {
        &mut self.blocks[tool / LANES].scores[tool % LANES]
    }

    /// Visits the number and the scores of each block with anything, and empties it.
    pub(super) fn drain(&mut self, mut visit: impl FnMut(u32, &mut BlockScores)) {
        for &block in &self.found[..self.count] {
            let mut scores = std::mem::take(&mut self.blocks[block as usize]).scores;
            self.is_found[block as usize] = false;
            visit(block, &mut scores);
        }
        self.count = 0;
    }
}

/// Room for a number for each of so many tools, in blocks.
pub(super) fn fit(lanes: &mut Vec<BlockScores>, tools: usize) {
    lanes.resize(tools.div_ceil(LANES).max(lanes.len()), BlockScores::default());
}

/// Whether some score, even 0, may be among the best.
pub(super) fn wants_any(best: &TopK, scores: &BlockScores) -> bool {
    scores.iter().fold(false, |any, &score| any | best.wants(score))
}

/// The tools of a block that have anything.
pub(super) fn each(block: u32, scores: &BlockScores) -> impl Iterator<Item = Ranked> {
    let first = block as usize * LANES;
    let tools = scores.iter().enumerate().filter(|(_, score)| **score > 0.0);
    tools.map(move |(lane, &score)| Ranked { index: first + lane, score })
}

/// Takes the greater of each pair. Written so that it compiles to one instruction; there is no NaN.
pub(super) fn raise(most: &mut BlockScores, by: &BlockScores) {
    most.iter_mut().zip(by).for_each(|(most, &by)| *most = if by > *most { by } else { *most });
}

/// Keeps the `limit` best entries offered in any order; of equals, the first by position.
pub(crate) struct TopK {
    limit: usize,
    /// Scores below it are not among the best.
    floor: f32,
    kept: Vec<Key>,
}

impl TopK {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, floor: 0.0, kept: Vec::new() }
    }

    /// Whether this score may be among the best.
    pub(crate) fn wants(&self, score: f32) -> bool {
        score >= self.floor
    }

    pub(crate) fn offer(&mut self, ranked: Ranked) {
        if !self.wants(ranked.score) {
            return;
        }
        self.kept.push(Key::of(ranked));
        if self.kept.len() >= self.limit.saturating_mul(2).max(64) {
            self.cut();
            self.floor = self.kept.last().map_or(f32::INFINITY, |last| last.ranked().score);
        }
    }

    /// The best, best first.
    pub(crate) fn into_sorted(mut self) -> Vec<Ranked> {
        self.cut();
        self.kept.sort_unstable_by_key(|key| Reverse(*key));
        self.kept.into_iter().map(Key::ranked).collect()
    }

    /// The best, in no order.
    pub(crate) fn into_unsorted(mut self) -> impl Iterator<Item = Ranked> + Clone {
        self.cut();
        self.kept.into_iter().map(Key::ranked)
    }

    /// Keeps the best, with the lowest last.
    fn cut(&mut self) {
        if let Some(last) = self.limit.checked_sub(1).filter(|&last| last < self.kept.len()) {
            self.kept.select_nth_unstable_by_key(last, |key| Reverse(*key));
        }
        self.kept.truncate(self.limit);
    }
}

/// A score, and the complement of its position, in one number that increases with quality: the bits of
/// nonnegative floats sort like the floats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    fn of(Ranked { index, score }: Ranked) -> Self {
        // Adding 0 turns -0 into 0.
        Self(u64::from((score + 0.0).to_bits()) << 32 | u64::from(!number(index)))
    }

    fn ranked(self) -> Ranked {
        // Each half has 32 bits.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        let (score, position) = ((self.0 >> 32) as u32, self.0 as u32);
        Ranked { index: !position as usize, score: f32::from_bits(score) }
    }
}
