//! Sums by tool, in blocks of a cache line: added to one by one, and read block by block with vector
//! instructions. Only the blocks that were added to are read and emptied again.

use super::super::Ranked;
use super::best::Best;

/// Tools of a block.
const LANES: usize = 16;

/// A number for each tool of a block.
pub(super) type Lanes = [f32; LANES];

/// What tools have of some words.
#[derive(Default)]
pub(super) struct Sums {
    blocks: Vec<Block>,
    /// Per block: whether anything was added.
    is_found: Vec<bool>,
    /// The blocks to which something was added come first.
    found: Vec<u32>,
    /// How many these are.
    count: usize,
}

#[derive(Clone, Copy, Default)]
struct Block {
    /// Above 0 for a tool that has anything.
    scores: Lanes,
    /// What they have of all that could be had.
    covered: Lanes,
}

impl Sums {
    /// Makes room for so many tools.
    pub(super) fn fit(&mut self, tools: usize) {
        let blocks = tools.div_ceil(LANES).max(self.blocks.len());
        self.blocks.resize(blocks, Block::default());
        self.is_found.resize(blocks, false);
        // One more, which is written before it is known that it does not count.
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

    /// Notes that a block has something. Which is new cannot be foreseen, so this does without a branch.
    fn mark(&mut self, block: u32) {
        self.found[self.count] = block;
        self.count += usize::from(!std::mem::replace(&mut self.is_found[block as usize], true));
    }

    /// Multiplies each score by 1 and `bonus` times what is covered of `whole`; the best of them.
    pub(super) fn reward(&mut self, whole: f32, bonus: f32, best: &mut Best) {
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
    pub(super) fn drain(&mut self, mut visit: impl FnMut(u32, &mut Lanes)) {
        for &block in &self.found[..self.count] {
            let mut scores = std::mem::take(&mut self.blocks[block as usize]).scores;
            self.is_found[block as usize] = false;
            visit(block, &mut scores);
        }
        self.count = 0;
    }
}

/// Room for a number for each of so many tools, in blocks.
pub(super) fn fit(lanes: &mut Vec<Lanes>, tools: usize) {
    lanes.resize(tools.div_ceil(LANES).max(lanes.len()), Lanes::default());
}

/// Whether some score may be among the best; also if it is 0.
pub(super) fn wants_any(best: &Best, scores: &Lanes) -> bool {
    scores.iter().fold(false, |any, &score| any | best.wants(score))
}

/// The tools of a block that have anything.
pub(super) fn each(block: u32, scores: &Lanes) -> impl Iterator<Item = Ranked> {
    let first = block as usize * LANES;
    let tools = scores.iter().enumerate().filter(|(_, score)| **score > 0.0);
    tools.map(move |(lane, &score)| Ranked { index: first + lane, score })
}

/// The greater of each two numbers. Written so that it compiles to one instruction; none is NaN.
pub(super) fn raise(most: &mut Lanes, by: &Lanes) {
    most.iter_mut().zip(by).for_each(|(most, &by)| *most = if by > *most { by } else { *most });
}
