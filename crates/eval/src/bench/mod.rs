//! Measures how well models use tools: cases and their checks, the plan of a run, its cost, the run itself, its results
//! and reports, and the compat file.

mod case;
mod check;
pub mod compat;
mod compat_file;
mod cost;
mod measure;
mod plan;
pub mod report;
mod results_file;
mod run;

pub use case::{Case, CaseError, MAX_FILE_BYTES, Spot, Suite, parse, shipped_cases};
pub use check::{Check, Kind, Of, Order, Verdict};
pub use compat_file::{CompatFile, MAX_COMPAT_BYTES, MeasuredCompat, ToolCompat, Unused};
pub use cost::{ModelPrice, Price, Pricing};
pub use measure::{Bencher, Prepared};
pub use plan::{Cell, MAX_CELLS, Plan, PlanOptions, Planned, TooMany, leave_out_rubrics};
pub use report::page::page;
pub use report::summary::{CaseRow, Measured, Row, Scored, summarize};
pub use results_file::ResultsFile;
pub use run::{BenchOutcome, Progress, RunOptions, run};
