//! How well each tool answers a query.
//!
//! A tool scores for each word of the query by the best of what stands for that word. Then more of the query
//! covered counts more, and of the best candidates those whose names the query covers.

use super::best::Best;
use super::dictionary::Term;
use super::query::{Bag, Group, Query};
use super::{LexicalIndex, Posting, Ranked};

/// What a tool that has all of the query gains, as a share of its score.
const COVERAGE: f32 = 0.5;
/// What a tool gains whose whole name is in the query, as a share of the best score.
const NAME: f32 = 0.25;
/// How many of the best have their names looked at.
const CANDIDATES: usize = 100;
/// What the best tool of one clause gains, as a share of the best score.
const CLAUSE: f32 = 0.75;

/// Buffers with a place for each tool, used again by the next query.
#[derive(Default)]
pub(super) struct Scratch {
    scores: Vec<f32>,
    clause: Vec<f32>,
    clauses: Vec<f32>,
    tallies: Vec<Tally>,
    merging: Vec<Tally>,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    score: f32,
    covered: f32,
}

impl Scratch {
    /// The score of every tool: 0 for one that has nothing of the query.
    pub(super) fn score(&mut self, index: &LexicalIndex, query: &Query) -> &[f32] {
        let Self { scores, clause, clauses, tallies, merging } = self;
        merging.resize(index.len(), Tally::default());
        let found: Vec<Found<'_>> = query.groups.iter().map(|group| Found::of(index, group, merging)).collect();
        let scorer = Scorer { index, query, found };
        let most = scorer.score(&query.whole, tallies, scores);
        if query.clauses.is_empty() {
            return scores;
        }
        zeros(clauses, index.len());
        for bag in &query.clauses {
            let best = scorer.score(bag, tallies, clause);
            if best > 0.0 {
                clauses.iter_mut().zip(&*clause).for_each(|(most, score)| *most = most.max(score / best));
            }
        }
        scores.iter_mut().zip(&*clauses).for_each(|(score, clause)| *score += CLAUSE * most * clause);
        scores
    }
}

fn zeros<T: Copy + Default>(values: &mut Vec<T>, count: usize) {
    values.clear();
    values.resize(count, T::default());
}

struct Scorer<'a> {
    index: &'a LexicalIndex,
    query: &'a Query,
    /// For each group of the query.
    found: Vec<Found<'a>>,
}

impl Scorer<'_> {
    /// Scores every tool for some of the query's words; the best score.
    fn score(&self, bag: &Bag, tallies: &mut Vec<Tally>, scores: &mut Vec<f32>) -> f32 {
        zeros(tallies, self.index.len());
        zeros(scores, self.index.len());
        let mut whole = 0.0;
        for &(group, weight) in bag {
            let found = &self.found[group];
            whole += found.best() * weight;
            found.each(|tool, hit| {
                let tally = &mut tallies[tool as usize];
                tally.score += weight * hit.score;
                tally.covered += weight * hit.covered;
            });
        }
        if whole == 0.0 {
            return 0.0;
        }
        let mut best = Best::new(CANDIDATES);
        for (index, (score, tally)) in scores.iter_mut().zip(&*tallies).enumerate() {
            *score = tally.score * (1.0 + COVERAGE * tally.covered / whole);
            if best.wants(*score) {
                best.offer(Ranked { index, score: *score });
            }
        }
        let candidates = best.into_sorted();
        let most = candidates.first().map_or(0.0, |best| best.score);
        let asked = self.asked(bag);
        candidates.iter().fold(0.0, |best, candidate| {
            let score = &mut scores[candidate.index];
            *score += NAME * most * self.name_covered(candidate.index, &asked);
            score.max(best)
        })
    }

    /// The stems that stand for words of the query, in order, with how well they do.
    fn asked(&self, bag: &Bag) -> Vec<(Term, f32)> {
        let groups = bag.iter().map(|&(group, weight)| (&self.query.groups[group], weight));
        let members = groups.flat_map(|(group, weight)| group.iter().map(move |m| (m.term, m.discount * weight)));
        let mut asked: Vec<_> = members.collect();
        asked.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        asked.dedup_by_key(|(term, _)| *term);
        asked
    }

    /// How much of a tool's name the query has, 0..1.
    fn name_covered(&self, tool: usize, asked: &[(Term, f32)]) -> f32 {
        let (mut whole, mut covered) = (0.0, 0.0);
        for &term in self.index.names.get(tool) {
            let rarity = self.index.rarity(term);
            whole += rarity;
            if let Ok(found) = asked.binary_search_by_key(&term, |(term, _)| *term) {
                covered += rarity * asked[found].1;
            }
        }
        if whole > 0.0 { covered / whole } else { 0.0 }
    }
}

/// The tools that have something of a group.
enum Found<'a> {
    /// That of its only member.
    One { postings: &'a [Posting], rarity: f32 },
    /// Of several members, the best for each tool.
    Many { tools: Vec<(u32, Tally)>, best: f32 },
}

impl<'a> Found<'a> {
    fn of(index: &'a LexicalIndex, group: &Group, merging: &mut [Tally]) -> Self {
        if let [only] = &**group
            && only.discount >= 1.0
        {
            return Self::One { postings: index.postings.get(only.term as usize), rarity: index.rarity(only.term) };
        }
        // What stands for a word counts no more than the word itself would.
        let own = group.iter().find(|member| member.discount >= 1.0);
        let most = own.map_or(f32::INFINITY, |own| index.rarity(own.term));
        let worth = |term, discount: f32| discount * index.rarity(term).min(most);
        let best = group.iter().fold(0.0, |best: f32, member| best.max(worth(member.term, member.discount)));
        let mut tools: Vec<(u32, Tally)> = Vec::new();
        for member in group {
            let (worth, covered) = (worth(member.term, member.discount), member.discount * best);
            for posting in index.postings.get(member.term as usize) {
                let tally = &mut merging[posting.tool as usize];
                if tally.covered == 0.0 {
                    tools.push((posting.tool, Tally::default()));
                }
                tally.score = tally.score.max(worth * posting.impact);
                tally.covered = tally.covered.max(covered);
            }
        }
        for (tool, tally) in &mut tools {
            *tally = std::mem::take(&mut merging[*tool as usize]);
        }
        Self::Many { tools, best }
    }

    /// The most that a tool can have of it.
    fn best(&self) -> f32 {
        match self {
            Self::One { postings: [], .. } => 0.0,
            Self::One { rarity: best, .. } | Self::Many { best, .. } => *best,
        }
    }

    fn each(&self, mut hit: impl FnMut(u32, Tally)) {
        match self {
            Self::One { postings, rarity } => postings
                .iter()
                .for_each(|posting| hit(posting.tool, Tally { score: rarity * posting.impact, covered: *rarity })),
            Self::Many { tools, .. } => tools.iter().for_each(|&(tool, tally)| hit(tool, tally)),
        }
    }
}
