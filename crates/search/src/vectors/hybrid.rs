//! Merges the rankings by words and by meaning into one.
//!
//! Ranks do not show confidence, and a fixed weight suits one catalogue but not the next. So both rankings are
//! converted to one unit, the weight of evidence. Words already use it: the BM25 score of the best tool is about the
//! number of rare words that it shares with the query, each worth the logarithm of the catalogue's size. Meaning is
//! converted: the tool with the nearest vector is worth two such words, if it is nearer than chance would put one of so
//! many. So words decide a query that names things, and meaning one in other words than the tools'.
//!
//! # How it was chosen
//! On the Berkeley Function-Calling Leaderboard, Seal-Tools and MetaTool (6,128 tools, 4,929 queries), with the
//! vectors of all-MiniLM-L6-v2. NDCG@10 in percent; in brackets that of either half of the queries, by their hash.
//! The first and the last row are from `eval select --halves`; all between is from a prototype, with halves of another
//! hash and, for words, some synonyms more.
//!
//! | | BFCL | Seal-Tools | MetaTool |
//! |---|---|---|---|
//! | words alone | 80.9 (81.6, 80.2) | 96.3 (95.8, 96.8) | 62.6 (63.2, 62.1) |
//! | meaning alone | 74.0 (75.4, 72.6) | 69.4 (69.0, 69.8) | 71.4 (71.3, 71.5) |
//! | reciprocal ranks, k = 60 | 80.3 (81.3, 79.1) | 85.6 (86.3, 84.9) | 71.8 (71.6, 72.0) |
//! | mean of min-max scores | 82.7 (83.9, 81.3) | 94.8 (95.1, 94.5) | 72.0 (71.7, 72.2) |
//! | sum of z-scores | 82.1 (83.3, 80.7) | 95.8 (95.8, 95.8) | 72.0 (71.8, 72.2) |
//! | this | 83.1 (83.0, 83.2) | 96.8 (96.5, 97.2) | 73.8 (74.1, 73.5) |
//!
//! A model of 15 features, trained on a half, was hardly better on the other, and worse on a set that it had not
//! seen. Of 96 choices of the constants, the best on one half and the best on two sets are within 0.2 of these on
//! the other half and on the third set. But the form was found while looking at all queries: expect less elsewhere.
//! On 5 to 9 % of the queries the right tools stand lower than by words alone, on 14 to 31 % higher.
//!
//! # Limits
//! Meaningless vectors cost the words 0.4 to 3.2, because chance cannot always be distinguished from meaning. Many
//! misleading words cannot be detected at all: with the three sets in one catalogue, queries of MetaTool are answered
//! better by meaning alone (40.0) than by both (37.4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::HashMap;

use super::{Vectors, dot};
use crate::lexical::TopK;
use crate::{LexicalIndex, LexicalRanking, Query, Ranked};

/// Weight of the nearest vector, in words that only one tool has.
const NEAREST: f32 = 2.0;
/// Best similarity, as a multiple of the one expected by chance, at which meaning starts to count, and at
/// which it counts fully.
const CHANCE: [f32; 2] = [0.8, 1.2];
/// Clauses from which on a query is held to have several tasks: up to these not at all, from these on fully.
const TASKS: [f32; 2] = [2.0, 4.0];
/// Number of tools removed one after the other from a query of several tasks.
const ROUNDS: usize = 3;
/// Tools that are ordered anew by that.
const DEPTH: usize = 50;
/// Number of tools found by words that are considered.
const LEXICAL: usize = 100;
/// Share of meaning in the reported score, where it counts fully.
const SHARE: f32 = 0.6;

/// The vectors of a query and of the tools.
#[derive(Debug, Clone, Copy)]
pub struct SemanticQuery<'a> {
    /// The vectors of the searched tools, by the same positions.
    pub vectors: &'a Vectors,
    /// The query's vector, from the same model.
    pub query: &'a [f32],
}

/// Ranks the tools of an index by words and, as far as available, by meaning: applies [`fuse`] to the result of
/// [`LexicalIndex::rank_clauses`]. This is `auto` in all tool searches.
#[must_use]
pub fn auto(
    index: &LexicalIndex,
    query: &Query,
    meaning: Option<SemanticQuery<'_>>,
    limit: usize,
    keep: &dyn Fn(usize) -> bool,
) -> Vec<Ranked> {
    let words = index.rank_clauses(query, if meaning.is_some() { limit.max(LEXICAL) } else { limit }, keep);
    fuse(&words, meaning, index.len(), limit, keep)
}

/// Merges rankings by words and by meaning of `tools` tools: returns the `limit` best accepted by `keep`,
/// best first, ties by position. `words` need only hold the first 100.
///
/// A tool without a vector is ranked by its words. All are if there is no meaning, if the query's vector has another
/// length, or if it is no nearer to any tool than by chance. Chance, and the weight of the nearest tool,
/// are measured on the whole catalogue, independent of `keep`. For a query
/// of three clauses or more, the first places go to tools that together are near the whole query.
///
/// Scores are above 0, up to 1, and do not rise along the ranking. They are weighted means of `s / (s + 1)`, where `s`
/// is the number of matched words, in units of a word in only one tool, and of the cosine, whose weight is up to 0.6
/// and decreases the more it looks like chance. If words and meaning disagree, a tool's score is limited to that of the
/// tool before it.
#[must_use]
pub fn fuse(
    words: &LexicalRanking,
    meaning: Option<SemanticQuery<'_>>,
    tools: usize,
    limit: usize,
    keep: &dyn Fn(usize) -> bool,
) -> Vec<Ranked> {
    let unit = words.strength.max(0.0);
    let found = words.ranked.iter().map(|found| Ranked { score: found.score * unit, ..*found });
    let found = found.filter(|found| found.index < tools && found.score > 0.0);
    let Some(near) = meaning.and_then(|meaning| VectorProximity::of(meaning, tools)) else {
        let kept = found.filter(|found| keep(found.index)).take(limit);
        return kept.map(|found| Ranked { score: share(found.score, tools), ..found }).collect();
    };
    let mut worth = vec![0.0; tools];
    found.for_each(|found| worth[found.index] = found.score);
    let mut best = TopK::new(limit.max(DEPTH));
    for (index, (words, cosine)) in worth.iter().zip(&near.cosines).enumerate() {
        let score = words + near.weight * cosine;
        if best.wants(score) && keep(index) {
            best.offer(Ranked { index, score });
        }
    }
    let mut ranked = best.into_sorted();
    near.matching_pursuit(&mut ranked, ramp(words.clauses as f32, TASKS));
    ranked.truncate(limit);
    let mut most = 1.0;
    for Ranked { index, score } in &mut ranked {
        let part = SHARE * near.sure;
        let mean = (1.0 - part) * share(worth[*index], tools) + part * near.cosines[*index].max(0.0);
        most = mean.min(most);
        *score = most;
    }
    ranked
}

/// Score of words, above 0 and up to 1: a half for a word that only one of so many tools has.
fn share(words: f32, tools: usize) -> f32 {
    (1.0 + (1.0 + tools as f32).ln() / words).recip().max(f32::MIN_POSITIVE)
}

/// Position of a number in a range, 0 to 1.
fn ramp(number: f32, [from, to]: [f32; 2]) -> f32 {
    ((number - from) / (to - from)).clamp(0.0, 1.0)
}

/// Similarity of a catalogue's tools to a query.
struct VectorProximity<'a> {
    vectors: &'a Vectors,
    /// Normalised vector.
    query: Vec<f32>,
    /// Cosines by position.
    cosines: Vec<f32>,
    /// Confidence that they are not chance: above 0, up to 1.
    sure: f32,
    /// Weight of a cosine of 1, in the unit of words.
    weight: f32,
}

impl<'a> VectorProximity<'a> {
    /// Measures the similarity; `None` if it is uninformative.
    fn of(meaning: SemanticQuery<'a>, tools: usize) -> Option<Self> {
        let SemanticQuery { vectors, query } = meaning;
        let factor = dot(query, query).sqrt().recip();
        let query: Vec<f32> = query.iter().map(|number| number * factor).collect();
        let mut cosines = Vec::new();
        vectors.scores(&query, &mut cosines);
        cosines.resize(tools, 0.0);
        let (mut best, mut sum, mut squares) = (0.0_f32, 0.0, 0.0);
        for &cosine in &cosines {
            best = best.max(cosine);
            sum += cosine;
            squares += cosine * cosine;
        }
        // Tools without a vector have cosine 0.
        let count = vectors.vector_count() as f32;
        let mean: f32 = sum / count;
        let deviation = (squares / count - mean * mean).max(0.0).sqrt();
        // The expected maximum of so many normally distributed numbers, in deviations from their mean.
        let chance = deviation * (2.0 * count.max(2.0).ln()).sqrt();
        let sure = ramp(best / chance.max(1e-9), CHANCE);
        let weight = sure * NEAREST * (1.0 + count).ln() / best;
        let says_something = sure > 0.0 && weight.is_finite() && squares.is_finite();
        says_something.then_some(Self { vectors, query, cosines, sure, weight })
    }

    /// Reorders the first tools by matching pursuit. The vector of a query with several tasks is about the sum of
    /// the tasks' vectors: removing the component in the direction of the best tool exposes the other tasks.
    /// `several` is the share of that component to remove.
    fn matching_pursuit(&self, ranked: &mut [Ranked], several: f32) {
        if several == 0.0 {
            return;
        }
        let depth = ranked.len().min(DEPTH);
        let candidate = |&tool: &Ranked| {
            let direction = self.vectors.direction(tool.index).unwrap_or_default();
            Candidate { tool, left: dot(&direction, &self.query), direction }
        };
        let mut candidates: Vec<Candidate> = ranked[..depth].iter().map(candidate).collect();
        for round in 1..=ROUNDS.min(depth) {
            candidates[round - 1..].sort_unstable_by(Candidate::order);
            let (taken, others) = candidates.split_at_mut(round);
            let Some(taken) = taken.last() else { return };
            for other in others {
                let lost = several * taken.left * dot(&taken.direction, &other.direction);
                other.left -= lost;
                other.tool.score -= self.weight * lost;
            }
        }
        candidates[ROUNDS.min(depth)..].sort_unstable_by(Candidate::order);
        ranked.iter_mut().zip(candidates).for_each(|(place, candidate)| *place = candidate.tool);
    }
}

/// A tool that competes for the first places of a query with several tasks.
struct Candidate {
    tool: Ranked,
    /// Its product with the remaining query.
    left: f32,
    direction: Vec<f32>,
}

impl Candidate {
    fn order(&self, other: &Self) -> Ordering {
        other.tool.score.total_cmp(&self.tool.score).then(self.tool.index.cmp(&other.tool.index))
    }
}

/// The constant of reciprocal-rank fusion that its authors settled on (Cormack, Clarke, Büttcher, SIGIR 2009).
const K: f32 = 60.0;

/// Number of entries of each ranking that a hybrid combines.
pub const HYBRID_DEPTH: usize = 1000;

/// How the two rankings are combined. The score that is reported is the weighted mean in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fusion {
    /// The weighted mean of the scores.
    #[default]
    Mean,
    /// Reciprocal ranks, weighted.
    Ranks,
}

/// Words and meaning, and how they are put together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hybrid {
    /// Weight of the words.
    #[schemars(range(min = 0))]
    pub lexical: f32,
    /// Weight of the meaning.
    #[schemars(range(min = 0))]
    pub semantic: f32,
    /// How the two rankings are combined: `mean` by the weighted mean of the scores, `ranks` by weighted reciprocal
    /// ranks.
    pub fusion: Fusion,
}

impl Default for Hybrid {
    fn default() -> Self {
        Self { lexical: 0.4, semantic: 0.6, fusion: Fusion::Mean }
    }
}

/// Combines rankings that are sorted best first with scores from 0 to 1. A tool missing in a ranking has score 0
/// and no rank there; ties go by position. Negative weights and NaN count as 0; weights
/// need not sum to 1.
#[must_use]
pub fn combine(rankings: &[(f32, &[Ranked])], fusion: Fusion) -> Vec<Ranked> {
    let weight = |weight: f32| if weight.is_finite() { weight.max(0.0) } else { 0.0 };
    let total: f32 = rankings.iter().map(|(each, _)| weight(*each)).sum();
    let mut sums: HashMap<usize, (f32, f32)> = HashMap::new();
    for (each, ranking) in rankings {
        let share = if total > 0.0 { weight(*each) / total } else { 0.0 };
        for (rank, ranked) in (1_u16..=u16::MAX).chain(std::iter::repeat(u16::MAX)).zip(*ranking) {
            let (mean, ranks) = sums.entry(ranked.index).or_default();
            *mean += share * ranked.score;
            *ranks += share / (K + f32::from(rank));
        }
    }
    let mut order: Vec<(f32, Ranked)> = sums
        .into_iter()
        .map(|(index, (mean, ranks))| {
            let by = match fusion {
                Fusion::Mean => mean,
                Fusion::Ranks => ranks,
            };
            (by, Ranked { index, score: mean })
        })
        .collect();
    order.sort_unstable_by(|(a, at_a), (b, at_b)| b.total_cmp(a).then(at_a.index.cmp(&at_b.index)));
    order.into_iter().map(|(_, ranked)| ranked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, DocumentKey, Quantized, Searchable};
    use proptest::prelude::*;

    /// Small vectors with two groups of similar tools: the first three, and the fourth and fifth.
    const ROWS: [[f32; 8]; 10] = [
        [9.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [9.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.0],
        [8.0, 2.0, 2.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 1.0, 9.0, 2.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 2.0, 9.0, 1.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 1.0, 9.0, 2.0, 0.0],
        [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 9.0, 3.0],
        [0.0, 9.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0],
        [0.0, 0.0, 9.0, 1.0, 0.0, 2.0, 0.0, 0.0],
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 9.0],
    ];
    const QUERY: [f32; 8] = [7.0, 0.0, 1.0, 5.0, 0.0, 0.0, 0.0, 0.0];

    fn vectors<const N: usize>(rows: &[[f32; N]]) -> Vectors {
        Vectors::build(N, rows.iter().map(|row| Some(Quantized::of(&unit(row)))))
    }

    fn unit(row: &[f32]) -> Vec<f32> {
        let length = dot(row, row).sqrt();
        row.iter().map(|number| number / length).collect()
    }

    fn words(ranked: &[(usize, f32)], strength: f32, clauses: usize) -> LexicalRanking {
        let ranked = ranked.iter().map(|&(index, score)| Ranked { index, score }).collect();
        LexicalRanking { ranked, strength, clauses }
    }

    fn indexes(ranked: &[Ranked]) -> Vec<usize> {
        ranked.iter().map(|tool| tool.index).collect()
    }

    /// Against the figures of an independent implementation in numpy.
    fn check(clauses: usize, limit: usize, expect: &[(usize, f32)]) {
        let words = words(&[(8, 1.0), (3, 0.6), (5, 0.4)], 1.5, clauses);
        let vectors = vectors(&ROWS);
        let meaning = SemanticQuery { vectors: &vectors, query: &QUERY };
        let ranked = fuse(&words, Some(meaning), ROWS.len(), limit, &|_| true);
        assert_eq!(indexes(&ranked), expect.iter().map(|(index, _)| *index).collect::<Vec<_>>(), "{clauses}");
        for (tool, (_, score)) in ranked.iter().zip(expect) {
            assert!((tool.score - score).abs() < 1e-3, "{clauses} {ranked:?}");
        }
    }

    #[test]
    fn words_and_vectors_are_combined() {
        let all = [(3, 0.3233), (1, 0.1872), (0, 0.1837), (2, 0.1824), (8, 0.1824), (5, 0.1521), (4, 0.003)];
        check(1, 10, &all);
        check(2, 10, &all);
        check(1, 2, &all[..2]);
        check(1, 0, &[]);
    }

    #[test]
    fn several_tasks_share_the_first_places() {
        check(3, 10, &[(3, 0.3233), (1, 0.1872), (8, 0.1872), (0, 0.1837), (2, 0.1824), (5, 0.1521), (4, 0.003)]);
        let all = [(3, 0.3233), (1, 0.1872), (8, 0.1872), (5, 0.1521), (2, 0.1521), (0, 0.1521), (4, 0.003)];
        check(4, 10, &all);
        check(99, 3, &all[..3]);
    }

    #[test]
    fn vector_scores_are_compared_to_random_texts() {
        let vectors = vectors(&ROWS);
        let near = VectorProximity::of(SemanticQuery { vectors: &vectors, query: &QUERY }, ROWS.len()).unwrap();
        assert!((near.sure - 0.3999).abs() < 1e-2 && (near.weight - 2.4576).abs() < 5e-2, "{}", near.weight);
        let longer = QUERY.map(|number| number * 1e6);
        let same = VectorProximity::of(SemanticQuery { vectors: &vectors, query: &longer }, ROWS.len()).unwrap();
        assert!((same.weight - near.weight).abs() < 1e-3);
        // A half of them are equally near.
        let rows: Vec<[f32; 2]> = (0..200_u8).map(|n| [1.0, f32::from(n % 2)]).collect();
        let vectors = super::tests::vectors(&rows);
        assert!(VectorProximity::of(SemanticQuery { vectors: &vectors, query: &[0.0, 1.0] }, rows.len()).is_none());
    }

    #[test]
    fn dropped_tools_change_nothing_for_others() {
        let (words, vectors) = (words(&[(8, 1.0), (3, 0.6), (5, 0.4)], 1.5, 1), vectors(&ROWS));
        let meaning = Some(SemanticQuery { vectors: &vectors, query: &QUERY });
        let ranked = fuse(&words, meaning, ROWS.len(), 10, &|index| index != 3 && index != 1);
        assert_eq!(indexes(&ranked), [0, 2, 8, 5, 4]);
        assert!((ranked[0].score - 0.1837).abs() < 1e-3, "{ranked:?}");
    }

    #[test]
    fn words_decide_without_a_matching_vector() {
        let words = words(&[(8, 1.0), (3, 0.6), (50, 0.5), (5, 0.4)], 3.0, 4);
        let (some, none, empty) = (vectors(&ROWS), Vectors::build(8, vec![None; 10]), Vectors::default());
        for (vectors, query) in [
            (&some, &QUERY[..7]),
            (&some, &[0.0; 8]),
            (&some, &[f32::NAN; 8]),
            (&some, &[]),
            (&none, &QUERY),
            (&empty, &QUERY),
            (&empty, &[]),
        ] {
            let ranked = fuse(&words, Some(SemanticQuery { vectors, query }), 10, 10, &|_| true);
            assert_eq!(ranked, fuse(&words, None, 10, 10, &|_| true), "{query:?}");
            assert_eq!(indexes(&ranked), [8, 3, 5]);
        }
        let rare = super::share(11.0_f32.ln(), 10);
        assert!((rare - 0.5).abs() < 1e-6);
    }

    struct Tool(usize, &'static str);

    impl Searchable for Tool {
        fn key(&self) -> DocumentKey {
            DocumentKey(self.0 as u64, 0)
        }
        fn document(&self) -> Document<'_> {
            Document { name: self.1, ..Document::default() }
        }
    }

    #[test]
    fn auto_ranks_by_words_and_meaning() {
        let names = ["draw_circle", "send_mail", "mail_list", "get_weather", "send_parcel"];
        let tools: Vec<Tool> = names.into_iter().enumerate().map(|(n, name)| Tool(n, name)).collect();
        let index = LexicalIndex::build(&tools, None);
        let query = Query::new("send the mail");
        let alone = auto(&index, &query, None, 9, &|_| true);
        let words = index.rank_clauses(&query, 9, &|_| true).ranked;
        assert_eq!(indexes(&alone), indexes(&words));
        assert_eq!((alone[0].index, alone.len()), (1, 3));
        assert!(alone[0].score > 0.5 && alone[2].score < alone[0].score, "{alone:?}");
        let vectors = vectors(&[[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]);
        let both =
            auto(&index, &query, Some(SemanticQuery { vectors: &vectors, query: &[0.0, 1.0, 0.0] }), 9, &|_| true);
        assert_eq!(indexes(&both)[..2], [1, 0]);
    }

    #[test]
    fn tools_without_vectors_rank_by_words() {
        let rows = ROWS.iter().map(|row| Some(Quantized::of(&unit(row)))).chain([None, None]);
        let vectors = Vectors::build(8, rows);
        let meaning = Some(SemanticQuery { vectors: &vectors, query: &QUERY });
        let ranked = fuse(&words(&[(11, 1.0)], 9.0, 1), meaning, 12, 3, &|_| true);
        assert_eq!(indexes(&ranked), [11, 1, 0]);
    }

    #[test]
    fn vector_matches_suffice_without_words() {
        let vectors = vectors(&ROWS);
        let meaning = Some(SemanticQuery { vectors: &vectors, query: &QUERY });
        assert_eq!(indexes(&fuse(&LexicalRanking::default(), meaning, 10, 3, &|_| true)), [1, 0, 2]);
        assert_eq!(fuse(&LexicalRanking::default(), None, 10, 3, &|_| true), []);
        assert_eq!(fuse(&LexicalRanking::default(), meaning, 0, 3, &|_| true), []);
        let one = super::tests::vectors(&ROWS[..1]);
        let ranked =
            fuse(&LexicalRanking::default(), Some(SemanticQuery { vectors: &one, query: &QUERY }), 1, 3, &|_| true);
        assert_eq!(indexes(&ranked), [0]);
    }

    #[test]
    fn ties_go_by_position() {
        let mut rows: Vec<[f32; 2]> = (0..380_u16).map(|n| [0.0, 1.0 - 2.0 * f32::from(n % 2)]).collect();
        rows.extend([[1.0, 0.0]; 20]);
        let vectors = vectors(&rows);
        for clauses in [1, 9] {
            let meaning = Some(SemanticQuery { vectors: &vectors, query: &[1.0, 0.0] });
            let ranked = fuse(&words(&[], 0.0, clauses), meaning, rows.len(), 10, &|_| true);
            assert_eq!(indexes(&ranked), (380..390).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn scores_are_numbers_in_falling_order(
            rows in proptest::collection::vec(any::<[f32; 3]>(), 0..80),
            query in any::<[f32; 3]>(),
            found in proptest::collection::btree_map(0_usize..90, any::<f32>(), 0..20),
            strength in any::<f32>(),
            clauses in 0_usize..6,
            limit in 0_usize..90,
        ) {
            let vectors = Vectors::build(3, rows.iter().map(|row| Some(Quantized::of(row))));
            let mut found: Vec<_> = found.into_iter().collect();
            found.sort_by(|a, b| b.1.total_cmp(&a.1));
            let words = words(&found, strength, clauses);
            let meaning = Some(SemanticQuery { vectors: &vectors, query: &query });
            let ranked = fuse(&words, meaning, rows.len(), limit, &|index| index % 7 != 3);
            prop_assert!(ranked.len() <= limit);
            prop_assert!(ranked.iter().all(|tool| tool.score > 0.0 && tool.score <= 1.0 && tool.index < rows.len()));
            prop_assert!(ranked.iter().all(|tool| tool.index % 7 != 3));
            prop_assert!(ranked.is_sorted_by(|a, b| a.score >= b.score));
            let mut places = indexes(&ranked);
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), ranked.len());
        }

        #[test]
        fn fewer_are_the_first_of_more(
            rows in proptest::collection::vec(any::<[i8; 4]>(), 60..150),
            query in any::<[i8; 4]>(),
            limit in 0_usize..150,
            clauses in 0_usize..6,
        ) {
            let rows: Vec<[f32; 4]> = rows.iter().map(|row| row.map(f32::from)).collect();
            let vectors = vectors(&rows);
            let query = query.map(f32::from);
            let words = words(&[(7, 1.0), (50, 0.5), (3, 0.5)], 2.0, clauses);
            let meaning = Some(SemanticQuery { vectors: &vectors, query: &query });
            let all = fuse(&words, meaning, rows.len(), 200, &|_| true);
            let some = fuse(&words, meaning, rows.len(), limit, &|_| true);
            prop_assert_eq!(&some[..], &all[..limit.min(all.len())]);
        }
    }
}

#[cfg(test)]
mod hybrid_tests {
    use super::*;

    fn check(weights: [f32; 2], fusion: Fusion, expect: &[(usize, f32)]) {
        let ranked = |list: &[(usize, f32)]| -> Vec<Ranked> {
            list.iter().map(|&(index, score)| Ranked { index, score }).collect()
        };
        let (words, meaning) = (ranked(&[(3, 0.9), (1, 0.5)]), ranked(&[(1, 0.6), (2, 0.5), (3, 0.2)]));
        let both = combine(&[(weights[0], &words), (weights[1], &meaning)], fusion);
        let got: Vec<_> = both.iter().map(|ranked| (ranked.index, (ranked.score * 1e4).round() / 1e4)).collect();
        assert_eq!(got, expect, "{weights:?} {fusion:?}");
    }

    #[test]
    fn means_order_by_what_they_report() {
        check([0.4, 0.6], Fusion::Mean, &[(1, 0.56), (3, 0.48), (2, 0.3)]);
        check([4.0, 6.0], Fusion::Mean, &[(1, 0.56), (3, 0.48), (2, 0.3)]);
        check([1.0, 0.0], Fusion::Mean, &[(3, 0.9), (1, 0.5), (2, 0.0)]);
        check([f32::NAN, -1.0], Fusion::Mean, &[(1, 0.0), (2, 0.0), (3, 0.0)]);
    }

    #[test]
    fn ranks_order_and_means_are_reported() {
        check([0.5, 0.5], Fusion::Ranks, &[(1, 0.55), (3, 0.55), (2, 0.25)]);
        check([0.9, 0.1], Fusion::Ranks, &[(3, 0.83), (1, 0.51), (2, 0.05)]);
    }
}
