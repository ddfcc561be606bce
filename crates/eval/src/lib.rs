//! Measuring models with tools (`toolwright bench`). All of it is pure: what stands in files of cases, what a
//! check says of an output, which calls a run is made of, what it may cost, and the reports.

mod cap;
mod case;
mod check;
mod compat_file;
mod plan;
pub mod report;
mod shipped;
mod summary;
mod written;

pub use cap::{Cap, Refusal, Reservation, Short};
pub use case::{Case, CaseError, Check, Kind, Of, Order, Spot, Suite};
pub use check::{Verdict, clipped, judged};
pub use compat_file::{CompatError, CompatFile, MAX_COMPAT_BYTES, MeasuredCompat, ToolCompat, Unused};
pub use plan::{Cell, MAX_CELLS, Plan, Planned, Terms, TooMany};
pub use shipped::shipped_cases;
pub use summary::{CaseRow, Measured, Row, Scored, summarize};
pub use written::{MAX_FILE_BYTES, parse};
