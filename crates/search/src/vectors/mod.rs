//! Compares queries with tools by vectors, caches vectors, and merges rankings by words and by meaning.

mod cache;
mod hybrid;
mod sentences;
mod tools;

use toolwright_core::embedding::MAX_DIMENSIONS;

pub use self::hybrid::{Fusion, HYBRID_DEPTH, Hybrid, SemanticQuery, auto, combine, fuse};
pub use self::tools::ToolVectors;
use super::Ranked;

/// The largest number of a quantised query: 127 * 2047 * [`MAX_DIMENSIONS`] fits an `i32`.
const QUERY_STEPS: f32 = 2047.0;
/// Numbers that are multiplied at once.
const LANES: usize = 32;
/// The largest number of a quantised tool.
const STEPS: f32 = 127.0;

/// A vector in bytes, a quarter of the size: `scale * numbers`. Products of unit vectors have an error
/// of some 0.001.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// Size of one step; finite, and 0 for a vector that is near nothing.
    pub scale: f32,
    /// The steps, -127 to 127.
    pub numbers: Box<[i8]>,
}

impl Quantized {
    /// Quantises a vector. NaN counts as 0.
    #[must_use]
    pub fn of(vector: &[f32]) -> Self {
        let (scale, steps) = steps(vector, STEPS);
        // The steps are whole numbers from -127 to 127.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        Self { scale, numbers: steps.map(|step| step as i8).collect() }
    }
}

/// Returns the step size, and the numbers in whole steps, of which the largest is `most`.
fn steps(vector: &[f32], most: f32) -> (f32, impl Iterator<Item = f32>) {
    let finite = |number: f32| if number.is_finite() { number } else { 0.0 };
    let largest = vector.iter().map(|&number| finite(number).abs()).fold(0.0, f32::max);
    let inverse = if largest > f32::MIN_POSITIVE { most / largest } else { 0.0 };
    (largest / most, vector.iter().map(move |&number| (finite(number) * inverse).round()))
}

/// Number of tools at which half of the mean is subtracted: a small sample says little about common components.
const FEW: f32 = 20.0;

/// The vectors of a catalogue's tools, by position: a flat matrix that is compared with a query as a whole. Up to
/// some 50,000 tools this is faster than an approximate index.
///
/// Components that all tools share are uninformative, and tools in the
/// middle are near every query. [`Vectors::scores`] removes both effects by measuring from the catalogue's mean.
#[derive(Debug, Clone, Default)]
pub struct Vectors {
    dimensions: usize,
    numbers: Vec<i8>,
    scales: Vec<f32>,
    /// Subtracted from each vector.
    middle: Vec<f32>,
    /// The inverse distance of each from the middle; 0 for a tool without a vector.
    factors: Vec<f32>,
    /// Number of tools with a vector.
    known: usize,
}

impl Vectors {
    /// Builds the vectors of tools, with `dimensions` numbers each, 1 to [`MAX_DIMENSIONS`]. A tool without a vector,
    /// or with one of another length, is near nothing.
    #[must_use]
    pub fn build(dimensions: usize, tools: impl IntoIterator<Item = Option<Quantized>>) -> Self {
        let mut vectors = Self { dimensions: dimensions.clamp(1, MAX_DIMENSIONS), ..Self::default() };
        for tool in tools {
            let fitting = tool.filter(|vector| vector.numbers.len() == vectors.dimensions);
            vectors.scales.push(fitting.as_ref().map_or(0.0, |vector| vector.scale));
            vectors.numbers.extend_from_slice(fitting.as_ref().map_or(&[], |vector| &vector.numbers));
            vectors.numbers.resize(vectors.scales.len() * vectors.dimensions, 0);
        }
        vectors.find_middle();
        vectors
    }

    fn rows(&self) -> impl Iterator<Item = (&[i8], f32)> {
        self.numbers.chunks_exact(self.dimensions.max(1)).zip(self.scales.iter().copied())
    }

    fn find_middle(&mut self) {
        let mut middle = vec![0.0; self.dimensions];
        let mut known = 0;
        for (row, scale) in self.rows().filter(|(_, scale)| *scale > 0.0) {
            known += 1;
            middle.iter_mut().zip(row).for_each(|(sum, &number)| *sum += scale * f32::from(number));
        }
        middle.iter_mut().for_each(|sum| *sum /= known as f32 + FEW);
        let own = dot(&middle, &middle);
        let query = Query::of(&middle);
        let factor = |(row, scale): (&[i8], f32)| {
            // |v - m|^2 = |v|^2 - 2 v m + |m|^2
            let squares: i32 = row.iter().map(|&number| i32::from(number) * i32::from(number)).sum();
            let distance = as_float(squares) * scale * scale - 2.0 * query.product(row, scale) + own;
            if scale > 0.0 { distance.max(1e-12).sqrt().recip() } else { 0.0 }
        };
        self.factors = self.rows().map(factor).collect();
        self.middle = middle;
        self.known = known;
    }

    /// Returns the vector at a position, as it was added.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Quantized> {
        let scale = *self.scales.get(index)?;
        let start = index * self.dimensions;
        Some(Quantized { scale, numbers: self.numbers[start..start + self.dimensions].into() })
    }

    /// Number of tools.
    #[must_use]
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    /// Whether there are no tools.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }

    /// Number of tools with a vector.
    #[must_use]
    pub fn vector_count(&self) -> usize {
        self.known
    }

    /// The length of each.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let floats = self.scales.capacity() + self.factors.capacity() + self.middle.capacity();
        self.numbers.capacity() + floats * size_of::<f32>()
    }

    /// Writes the cosine of `query`, a normalised vector, and each tool to `scores`, measured from the middle of
    /// the catalogue: about -1 to 1, and 0 for a tool without a vector. A query of another length is near
    /// nothing.
    pub fn scores(&self, query: &[f32], scores: &mut Vec<f32>) {
        let middle = if query.len() == self.dimensions { dot(query, &self.middle) } else { 0.0 };
        self.products(query, scores);
        scores.iter_mut().zip(&self.factors).for_each(|(score, factor)| *score = (*score - middle) * factor);
    }

    /// The vector of length 1 from the middle of the catalogue to a tool: its product with a query is the
    /// tool's [score](Self::scores).
    #[must_use]
    pub fn direction(&self, index: usize) -> Option<Vec<f32>> {
        let (scale, factor) = (*self.scales.get(index)?, *self.factors.get(index)?);
        let row = &self.numbers[index * self.dimensions..(index + 1) * self.dimensions];
        let away = row.iter().zip(&self.middle).map(|(&number, middle)| (f32::from(number) * scale - middle) * factor);
        Some(away.collect())
    }

    /// Returns the `limit` nearest tools that `keep` accepts, by plain cosine: best first, ties by
    /// position, scores above 0 only.
    #[must_use]
    pub fn rank(&self, query: &[f32], limit: usize, keep: &dyn Fn(usize) -> bool) -> Vec<Ranked> {
        let mut scores = Vec::new();
        self.products(query, &mut scores);
        let all = scores.into_iter().enumerate().map(|(index, score)| Ranked { index, score });
        let mut ranked: Vec<Ranked> = all.filter(|tool| tool.score > 0.0 && keep(tool.index)).collect();
        let order = |a: &Ranked, b: &Ranked| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index));
        if limit < ranked.len() {
            ranked.select_nth_unstable_by(limit, order);
            ranked.truncate(limit);
        }
        ranked.sort_unstable_by(order);
        ranked
    }

    /// The product of `query` with each vector.
    fn products(&self, query: &[f32], products: &mut Vec<f32>) {
        products.clear();
        if query.len() == self.dimensions {
            let query = Query::of(query);
            products.extend(self.rows().map(|(row, scale)| query.product(row, scale)));
        } else {
            products.resize(self.len(), 0.0);
        }
    }
}

/// A quantised query.
struct Query {
    scale: f32,
    numbers: Vec<i16>,
}

impl Query {
    fn of(vector: &[f32]) -> Self {
        let (scale, steps) = steps(vector, QUERY_STEPS);
        #[expect(clippy::cast_possible_truncation, reason = "steps are whole and at most QUERY_STEPS")]
        Self { scale, numbers: steps.map(|step| step as i16).collect() }
    }

    fn product(&self, row: &[i8], scale: f32) -> f32 {
        let (rows, row) = row.as_chunks::<LANES>();
        let (parts, part) = self.numbers.as_chunks::<LANES>();
        // Widened first, a whole chunk compiles to multiply-and-add of 16-bit lanes.
        let whole = rows.iter().zip(parts).map(|(row, part)| sum(&row.map(i16::from), part));
        let rest = row.iter().zip(part).map(|(&a, &b)| i32::from(a) * i32::from(b));
        as_float(whole.chain(rest).sum()) * (scale * self.scale)
    }
}

fn sum(a: &[i16; LANES], b: &[i16; LANES]) -> i32 {
    a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum()
}

/// Converts a sum of steps; the loss above 2^24 is far below a step.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn as_float(sum: i32) -> f32 {
    sum as f32
}

/// The product of two vectors of one length. Sums side by side compile to vector instructions.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b);
    sums.into_iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unit(mut vector: Vec<f32>) -> Vec<f32> {
        let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
        vector.iter_mut().for_each(|number| *number /= length);
        vector
    }

    fn built(rows: &[Vec<f32>]) -> Vectors {
        Vectors::build(rows[0].len(), rows.iter().map(|row| Some(Quantized::of(row))))
    }

    fn check(query: &[f32], limit: usize, expect: &[usize]) {
        let rows = [vec![1.0, 0.0], vec![0.0, 1.0], vec![-1.0, 0.0], vec![0.6, 0.8], vec![0.0, 1.0], vec![0.0, 0.0]];
        let ranked = built(&rows).rank(query, limit, &|index| index != 1);
        assert_eq!(ranked.iter().map(|tool| tool.index).collect::<Vec<_>>(), expect, "{query:?}");
    }

    #[test]
    fn nearest_vectors_come_first() {
        check(&[1.0, 0.0], 9, &[0, 3]);
        check(&[0.0, 1.0], 9, &[4, 3]);
        check(&[0.0, 1.0], 1, &[4]);
        check(&[0.0, 1.0], 0, &[]);
        check(&[1.0, 0.0, 0.0], 9, &[]);
        check(&[f32::NAN, 1.0], 9, &[4, 3]);
        check(&[0.0, 0.0], 9, &[]);
        check(&[], 9, &[]);
    }

    #[test]
    fn ties_go_by_position() {
        let ranked = built(&vec![vec![0.6, 0.8]; 50]).rank(&[0.8, 0.6], 7, &|_| true);
        assert_eq!(ranked.iter().map(|tool| tool.index).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn invalid_vectors_are_near_nothing() {
        let rows = [&[1.0][..], &[1.0, 0.0], &[f32::NAN, f32::INFINITY], &[1.0, 0.0, 0.0]].map(Quantized::of);
        let vectors = Vectors::build(2, rows.into_iter().map(Some).chain([None]));
        assert_eq!(vectors.rank(&[1.0, 0.0], 9, &|_| true).len(), 1);
        assert_eq!((vectors.len(), vectors.get(5)), (5, None));
        assert_eq!(vectors.get(1), Some(Quantized::of(&[1.0, 0.0])));
        let mut scores = Vec::new();
        vectors.scores(&[1.0, 0.0], &mut scores);
        assert_eq!([scores[0], scores[2], scores[3], scores[4]], [0.0; 4]);
        assert!(scores[1] > 0.9);
        vectors.scores(&[1.0], &mut scores);
        assert_eq!(scores, [0.0; 5]);
        assert!(Vectors::build(0, [None]).rank(&[], 9, &|_| true).is_empty());
        assert_eq!(Vectors::build(0, [Some(Quantized::of(&[]))]).direction(0), Some(vec![0.0]));
        assert!(Vectors::default().is_empty());
    }

    #[test]
    fn the_longest_vectors_do_not_overflow() {
        let row = vec![1.0; MAX_DIMENSIONS];
        let ranked = built(std::slice::from_ref(&row)).rank(&row, 1, &|_| true);
        assert!((ranked[0].score / 8192.0 - 1.0).abs() < 1e-3, "{ranked:?}");
    }

    #[test]
    fn components_common_to_all_vectors_are_ignored() {
        let rows: Vec<Vec<f32>> =
            (0..200_u8).map(|n| unit(vec![1.0, f32::from(n % 2), f32::from(n / 2 % 2)])).collect();
        let vectors = built(&rows);
        let mut scores = Vec::new();
        vectors.scores(&[1.0, 0.0, 0.0], &mut scores);
        assert!(scores[0] > 0.5 && scores[1..4].iter().all(|score| *score < 0.1), "{:?}", &scores[..4]);
        assert_eq!(vectors.rank(&[1.0, 0.0, 0.0], 400, &|_| true).len(), 200);
    }

    proptest! {
        #[test]
        fn quantised_scores_match_the_original_vectors(
            rows in proptest::collection::vec(proptest::collection::vec(-1.0_f32..1.0, 48), 1..20),
        ) {
            let rows: Vec<Vec<f32>> = rows.into_iter().map(unit).collect();
            let vectors = built(&rows);
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            for tool in vectors.rank(&rows[0], 100, &|_| true) {
                let cosine = dot(&rows[tool.index], &rows[0]);
                prop_assert!((cosine - tool.score).abs() < 5e-3, "{cosine} {}", tool.score);
            }
            let mut scores = Vec::new();
            vectors.scores(&rows[0], &mut scores);
            for (index, score) in scores.into_iter().enumerate() {
                let direction = vectors.direction(index).unwrap();
                prop_assert!((dot(&direction, &direction) - 1.0).abs() < 5e-3);
                prop_assert!((dot(&direction, &rows[0]) - score).abs() < 5e-3);
            }
        }
    }
}
