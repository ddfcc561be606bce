//! How well each tool answers a query.
//!
//! A tool scores for each word of the query by the best of what stands for that word. Then more of the query
//! covered counts more, and of the best candidates those whose names the query covers. Each clause is scored
//! like a query of its own; what a tool is worth for the clause it answers best is added.

use super::best::Best;
use super::dictionary::Term;
use super::plan::{Bag, Group, Member, Plan};
use super::{LexicalIndex, Posting, Ranked};

/// What a tool that has all of the query gains, as a share of its score.
const COVERAGE: f32 = 0.5;
/// What a tool gains whose whole name is in the query, as a share of the best score.
const NAME: f32 = 0.25;
/// How many of the best have their names looked at.
const CANDIDATES: usize = 100;
/// What the best tool of one clause gains, as a share of the best score.
const CLAUSE: f32 = 0.75;

/// Buffers with a place for each tool or term, used again by the next query. All places are empty in between:
/// what a query touches it clears, so that it costs what it finds and not what there is.
#[derive(Default)]
pub(super) struct Scratch {
    whole: Sums,
    clause: Sums,
    /// Per tool: the most that it is worth for any clause, as a share of that clause's best.
    clauses: Vec<f32>,
    /// Per tool: what it has of the group that is being merged.
    merging: Vec<Tally>,
    /// Per term: how well it stands for a word of the bag, 0..1.
    asked: Vec<f32>,
}

/// What tools have of some words.
#[derive(Default)]
struct Sums {
    tallies: Vec<Tally>,
    /// The tools that have anything.
    tools: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    score: f32,
    /// What it has of all that could be had; above 0 if it has anything.
    covered: f32,
}

/// The scores of a query.
pub(super) struct Scores<'a> {
    scratch: &'a mut Scratch,
    /// The best score of the whole query, clauses apart.
    pub(super) strength: f32,
}

impl Scores<'_> {
    /// Every tool that has something of the query with its score, in no order, and once.
    pub(super) fn drain(self) -> impl Iterator<Item = Ranked> {
        let Scratch { whole, clauses, .. } = self.scratch;
        let strength = self.strength;
        whole.drain().map(move |(tool, score)| {
            let index = tool as usize;
            let clause = clauses.get_mut(index).map_or(0.0, std::mem::take);
            Ranked { index, score: score + CLAUSE * strength * clause }
        })
    }
}

impl Scratch {
    /// Scores the tools that have something of a query.
    pub(super) fn score(&mut self, index: &LexicalIndex, plan: &Plan) -> Scores<'_> {
        self.fit(index);
        let Self { whole, clause, clauses, merging, asked } = self;
        let found: Vec<Found<'_>> = plan.groups.iter().map(|group| Found::of(index, group, merging)).collect();
        let mut scorer = Scorer { index, plan, found, asked };
        for bag in &plan.clauses {
            scorer.add(bag, clause);
            let best = scorer.finish(bag, clause);
            for (tool, score) in clause.drain() {
                let most = &mut clauses[tool as usize];
                *most = most.max(score / best);
            }
        }
        scorer.add(&plan.whole, whole);
        let strength = scorer.finish(&plan.whole, whole);
        Scores { scratch: self, strength }
    }

    fn fit(&mut self, index: &LexicalIndex) {
        let tools = index.len();
        let tally = Tally::default();
        for tallies in [&mut self.whole.tallies, &mut self.clause.tallies, &mut self.merging] {
            tallies.resize(tools.max(tallies.len()), tally);
        }
        self.clauses.resize(tools.max(self.clauses.len()), 0.0);
        self.asked.resize(index.rarities.len().max(self.asked.len()), 0.0);
    }
}

impl Sums {
    fn add(&mut self, tool: u32, weight: f32, tally: Tally) {
        let sum = &mut self.tallies[tool as usize];
        if sum.covered == 0.0 {
            self.tools.push(tool);
        }
        sum.score += weight * tally.score;
        sum.covered += weight * tally.covered;
    }

    fn drain(&mut self) -> impl Iterator<Item = (u32, f32)> {
        let Self { tallies, tools } = self;
        tools.drain(..).map(|tool| (tool, std::mem::take(&mut tallies[tool as usize]).score))
    }
}

struct Scorer<'a, 'b> {
    index: &'a LexicalIndex,
    plan: &'a Plan,
    /// For each group of the plan.
    found: Vec<Found<'a>>,
    asked: &'b mut [f32],
}

impl Scorer<'_, '_> {
    /// Adds up what the tools have of some of the query's words.
    fn add(&self, bag: &Bag, sums: &mut Sums) {
        for &(group, weight) in bag {
            match &self.found[group] {
                Found::One { postings, rarity } => {
                    for posting in *postings {
                        sums.add(posting.tool, weight, Tally { score: rarity * posting.impact, covered: *rarity });
                    }
                }
                Found::Many { tools, .. } => tools.iter().for_each(|&(tool, tally)| sums.add(tool, weight, tally)),
            }
        }
    }

    /// Makes scores of the sums; the best of them.
    fn finish(&mut self, bag: &Bag, sums: &mut Sums) -> f32 {
        let whole: f32 = bag.iter().map(|&(group, weight)| weight * self.found[group].best()).sum();
        let mut best = Best::new(CANDIDATES);
        for &tool in &sums.tools {
            let tally = &mut sums.tallies[tool as usize];
            tally.score *= 1.0 + COVERAGE * tally.covered / whole;
            best.offer(Ranked { index: tool as usize, score: tally.score });
        }
        let candidates = best.into_unsorted();
        let most = candidates.iter().fold(0.0, |most: f32, candidate| most.max(candidate.score));
        self.ask(bag, |asked, worth| *asked = asked.max(worth));
        let best = candidates.iter().fold(0.0, |best: f32, candidate| {
            let score = &mut sums.tallies[candidate.index].score;
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
        let best = index.worth(group);
        let mut tools: Vec<(u32, Tally)> = Vec::new();
        for member in group {
            let worth = index.member_worth(group, *member);
            let covered = member.discount * best;
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
