//! Measures how well models use tools: cases and their checks, the plan of a run, its cost, the run itself, its results
//! and reports, and what they recommend.

mod case;
mod check;
mod cost;
mod measure;
mod plan;
mod recommendations;
pub mod report;
mod results_file;
mod run;
mod summary;

pub use case::{Case, CaseError, CaseLocation, MAX_FILE_BYTES, Suite, parse, shipped_cases};
pub use check::{Check, Kind, NumericMeasure, Order, Verdict};
pub use cost::{ModelPrice, Price, Pricing};
pub use measure::{Bencher, PreparedBench};
pub use plan::{Cell, MAX_CELLS, Plan, PlanOptions, PlannedCases, TooManyCalls, drop_rubrics};
pub use recommendations::{recommend, rows_of};
pub use report::page::page;
pub use results_file::ResultsFile;
pub use run::{BenchOutcome, Progress, RunOptions, run};
pub use summary::{CaseRow, CheckScore, Measurement, Row, summarize};
