//! Makes vectors without meaning, whose neighbours take as long to find as those of real ones.

use toolwright_search::{Quantized, Vectors};

/// The dimensions of small sentence-transformers.
const DIMENSIONS: usize = 384;

/// Returns one vector for each tool.
pub(super) fn vectors(tools: usize) -> Vectors {
    Vectors::build(DIMENSIONS, (1..=tools as u64).map(|seed| Some(Quantized::of(&vector(seed)))))
}

/// Returns a vector with a few large numbers, always the same for a seed (splitmix64).
pub(super) fn vector(seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95);
    let number = |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let step = i8::from_le_bytes([(mixed >> 56) as u8]);
        f32::from(step).powi(3)
    };
    (0..DIMENSIONS).map(number).collect()
}
