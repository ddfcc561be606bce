//! What a query asks for, in the terms of one index.

use super::super::query::{self, Query};
use super::LexicalIndex;
use super::dictionary::Term;

/// A stem that stands for a word of the query: 1 for the word's own, less for another.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) term: Term,
    pub(super) discount: f32,
}

/// What stands for one word of the query, its own stem first if any tool has it; never empty, and each stem once.
pub(super) type Group = Vec<Member>;

/// Some groups of a query, by number, with what each counts, at most 1.
pub(super) type Bag = Vec<(usize, f32)>;

/// A query, read against an index.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) groups: Vec<Group>,
    /// All groups.
    pub(super) whole: Bag,
    /// The groups of each clause, where there are several.
    pub(super) clauses: Vec<Bag>,
}

/// How many words of a query are looked for: of more, those that say most.
const MAX_GROUPS: usize = 64;
/// How many postings these may have, so that a query takes about a millisecond among any number of tools. Up to
/// some 10,000 tools queries have fewer.
const MAX_POSTINGS: usize = 1 << 16;

impl Plan {
    /// Reads a query; `stands_for` says what stands for one of its words.
    pub(super) fn new(query: &Query, index: &LexicalIndex, mut stands_for: impl FnMut(&query::Term) -> Group) -> Self {
        let used = query.terms().iter().enumerate().filter(|(_, term)| term.weight > 0.0);
        let mut found: Vec<_> = used.map(|(at, term)| (at, term.weight, stands_for(term))).collect();
        found.retain(|(_, _, group)| !group.is_empty());
        let worth = |(_, weight, group): &(usize, f32, Group)| weight * index.worth(group);
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
            let bag = |uses: &Vec<query::Use>| {
                uses.iter().filter_map(|one| Some((numbers[one.term]?, one.weight))).collect::<Bag>()
            };
            plan.clauses = query.each_clause().iter().map(bag).collect();
        }
        plan
    }
}
