//! Which tools to show. Pure scoring over a snapshot.

mod search;

pub use search::{SearchFilter, SearchHit, search};
