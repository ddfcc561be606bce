//! How well each tool answers a query.
//!
//! A tool scores for each word of the query by the best of what stands for that word. Then more of the query
//! covered counts more, and of the best candidates those whose names the query covers. Each clause is scored
//! like a query of its own; what a tool is worth for the clause it answers best is added.

use std::ops::Range;

use super::best::Best;
use super::dictionary::Term;
use super::interner::number;
use super::plan::{Bag, Group, Member, Plan};
use super::sums::{self, Lanes, Sums};
use super::{LexicalIndex, Posting};

/// What a tool that has all of the query gains, as a share of its score.
const COVERAGE: f32 = 0.5;
/// What a tool gains whose whole name is in the query, as a share of the best score.
const NAME: f32 = 0.25;
/// How many of the best have their names looked at.
const CANDIDATES: usize = 100;
/// What the best tool of one clause gains, as a share of the best score.
const CLAUSE: f32 = 0.75;

/// Buffers with a place for each tool or term, used again by the next query. Sums are empty in between: what a
/// query touches it clears, so that it costs what it finds and not what there is.
#[derive(Default)]
pub(super) struct Scratch {
    whole: Sums,
    clause: Sums,
    /// Per tool: the most that it is worth for any clause, as a share of that clause's best.
    clauses: Vec<Lanes>,
    merger: Merger,
    /// Per term: how well it stands for a word of the bag, 0..1.
    asked: Vec<f32>,
}

/// What tools have of the groups of several members.
#[derive(Default)]
struct Merger {
    /// Group after group.
    shares: Vec<Share>,
    /// Per tool: where its share of the last group stands, if it has one; a place that holds no share of this
    /// tool is from another group or query.
    places: Vec<u32>,
}

/// What a tool has of a group.
struct Share {
    tool: u32,
    score: f32,
    /// What it has of all that could be had.
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
    pub(super) fn drain(self, mut visit: impl FnMut(u32, &Lanes)) {
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
        let found: Vec<Found<'_>> = plan.groups.iter().map(|group| Found::of(index, group, merger)).collect();
        let mut scorer = Scorer { index, plan, found, shares: &merger.shares, asked };
        // What is not yet in the sums of the whole query. What a clause is the first to have of it is added to both at
        // once, block by block.
        let mut left: Vec<f32> = plan.whole.iter().map(|(_, weight)| *weight).collect();
        for bag in &plan.clauses {
            let (first, again): (Bag, Bag) = bag.iter().partition(|(group, weight)| left[*group] == *weight);
            first.iter().for_each(|(group, _)| left[*group] = 0.0);
            scorer.add(&first, clause);
            whole.add_all(clause);
            scorer.add(&again, clause);
            let best = scorer.finish(bag, clause);
            clause.drain(|block, scores| {
                scores.iter_mut().for_each(|score| *score /= best);
                sums::raise(&mut clauses[block as usize], scores);
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
        sums::fit(&mut self.clauses, tools);
        self.merger.places.resize(tools.max(self.merger.places.len()), 0);
        self.asked.resize(index.rarities.len().max(self.asked.len()), 0.0);
    }
}

impl Merger {
    /// Takes in what the tools of `postings` have, of the group whose shares begin at `start`: the best counts.
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
                    shares.push(Share { tool, score, covered });
                }
            }
        }
    }
}

struct Scorer<'a, 'b> {
    index: &'a LexicalIndex,
    plan: &'a Plan,
    /// For each group of the plan.
    found: Vec<Found<'a>>,
    shares: &'b [Share],
    asked: &'b mut [f32],
}

impl Scorer<'_, '_> {
    /// Adds up what the tools have of some of the query's words.
    fn add(&self, bag: &Bag, sums: &mut Sums) {
        for &(group, weight) in bag {
            match &self.found[group] {
                Found::One { postings, rarity } => {
                    for posting in *postings {
                        sums.add(posting.tool, weight * (rarity * posting.impact), weight * rarity);
                    }
                }
                Found::Many { shares, .. } => {
                    for share in &self.shares[shares.clone()] {
                        sums.add(share.tool, weight * share.score, weight * share.covered);
                    }
                }
            }
        }
    }

    /// Makes scores of the sums; the best of them.
    fn finish(&mut self, bag: &Bag, sums: &mut Sums) -> f32 {
        let whole: f32 = bag.iter().map(|&(group, weight)| weight * self.found[group].best()).sum();
        let mut best = Best::new(CANDIDATES);
        sums.reward(whole, COVERAGE, &mut best);
        let candidates = best.into_unsorted();
        let most = candidates.clone().fold(0.0, |most: f32, candidate| most.max(candidate.score));
        self.ask(bag, |asked, worth| *asked = asked.max(worth));
        let best = candidates.fold(0.0, |best: f32, candidate| {
            let score = sums.score(candidate.index);
            *score += NAME * most * self.name_covered(candidate.index);
            best.max(*score)
        });
        self.ask(bag, |asked, _| *asked = 0.0);
        best
    }

    /// Visits the terms that stand for words of the bag, with how well they do.
    fn ask(&mut self, bag: &Bag, visit: impl Fn(&mut f32, f32)) {
        for &(group, weight) in bag {
            for member in &self.plan.groups[group] {
                visit(&mut self.asked[member.term as usize], member.discount * weight);
            }
        }
    }

    /// How much of a tool's name the bag has, 0..1.
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
enum Found<'a> {
    /// That of its only member.
    One { postings: &'a [Posting], rarity: f32 },
    /// Of several members, the best for each tool: a range of the merger's shares.
    Many { shares: Range<usize>, best: f32 },
}

impl<'a> Found<'a> {
    fn of(index: &'a LexicalIndex, group: &Group, merger: &mut Merger) -> Self {
        if let [only] = &**group
            && only.discount >= 1.0
        {
            return Self::One { postings: index.postings.get(only.term as usize), rarity: index.rarity(only.term) };
        }
        let best = index.worth(group);
        let start = merger.shares.len();
        for member in group {
            let postings = index.postings.get(member.term as usize);
            merger.merge(start, postings, index.member_worth(group, *member), member.discount * best);
        }
        Self::Many { shares: start..merger.shares.len(), best }
    }

    /// The most that a tool can have of it.
    fn best(&self) -> f32 {
        match self {
            Self::One { rarity: best, .. } | Self::Many { best, .. } => *best,
        }
    }
}

impl LexicalIndex {
    /// The most that a tool can score for a group.
    pub(super) fn worth(&self, group: &Group) -> f32 {
        group.iter().map(|member| self.member_worth(group, *member)).fold(0.0, f32::max)
    }

    /// The most that a tool can score for what stands for a word: no more than for the word itself.
    pub(super) fn member_worth(&self, group: &Group, member: Member) -> f32 {
        let own = group.first().filter(|own| own.discount >= 1.0);
        let most = own.map_or(f32::INFINITY, |own| self.rarity(own.term));
        member.discount * self.rarity(member.term).min(most)
    }

    /// How much a stem says.
    fn rarity(&self, term: Term) -> f32 {
        self.rarities[term as usize]
    }
}
