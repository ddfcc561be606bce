//! Measures how well tools are found, and the cost: catalogues and queries from files, rankings, and tasks that are
//! played through the agent loop.

mod catalogue_file;
mod playback;
mod ranking;
mod records;
mod tasks;

pub use catalogue_file::{CatalogueFile, CatalogueTool, FileProvider, MAX_CATALOGUE_BYTES};
pub use playback::{EXPOSURES, Playback, TokensSpent};
pub use ranking::{DEPTHS, Figures, Ranker, Scorer, milliseconds};
pub use records::{AdjustedRecords, RecordFields, RecordKind, RecordLocation, SCHEMA, TOOLS, records, texts};
pub use tasks::{Call, Queries, Query, Task};
