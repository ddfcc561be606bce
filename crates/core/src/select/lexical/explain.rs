//! Which fields of a tool a query matches.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{Document, Query};
use super::LexicalIndex;
use super::bm25f::{Field, impact};
use super::dictionary::Term;
use super::intake::Intake;
use super::plan::Plan;

impl LexicalIndex {
    /// What each field of a tool adds to its score for a query, as shares of 1, the greatest first; fields that
    /// add nothing are left out. Coverage and clauses, which belong to no field, are not looked at. `document` is
    /// read anew, so this is for one tool that is asked about, not for rankings.
    #[must_use]
    pub fn explain(&self, query: &Query, document: &Document<'_>) -> Vec<(&'static str, f32)> {
        let mut intake = Intake::new(Arc::clone(&self.dictionary));
        let mut counts: HashMap<Term, [f32; Field::ALL.len()]> = HashMap::new();
        intake.each_occurrence(document, |field, term, each| {
            counts.entry(term).or_default()[field as usize] += each;
        });
        let plan = Plan::new(query, self, |word| self.expanded(word));
        let mut shares = [0.0; Field::ALL.len()];
        for &(group, weight) in &plan.whole {
            let group = &plan.groups[group];
            let members = group.iter().filter_map(|member| {
                let counts = counts.get(&member.term)?;
                let sum = counts.iter().sum::<f32>();
                Some((self.member_worth(group, *member) * impact(sum), sum, counts))
            });
            if let Some((score, sum, counts)) = members.max_by(|a, b| a.0.total_cmp(&b.0)) {
                shares.iter_mut().zip(counts).for_each(|(share, count)| *share += weight * score * count / sum);
            }
        }
        let whole = shares.iter().sum::<f32>();
        let found = Field::ALL.iter().zip(shares).filter(|(_, share)| *share > 0.0);
        let mut found: Vec<_> = found.map(|(field, share)| (field.name(), share / whole)).collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found
    }
}
