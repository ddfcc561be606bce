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
mod summary;

pub use case::{Case, CaseError, CaseLocation, MAX_FILE_BYTES, Suite, parse, shipped_cases};
pub use check::{Check, Kind, NumericMeasure, Order, Verdict};
pub use compat_file::{CompatFile, MAX_COMPAT_BYTES, MeasuredCompat, ToolCompat, UnusedEntry};
pub use cost::{ModelPrice, Price, Pricing};
pub use measure::{Bencher, PreparedBench};
pub use plan::{Cell, MAX_CELLS, Plan, PlanOptions, PlannedCases, TooManyCalls, drop_rubrics};
pub use report::page::page;
pub use results_file::ResultsFile;
pub use run::{BenchOutcome, Progress, RunOptions, run};
pub use summary::{CaseRow, CheckScore, Measurement, Row, summarize};
