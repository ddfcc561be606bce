//! Fakes of the traits of `core`: a clock, a model client, an approver, a client of calls, a redactor, a provider, and
//! receivers of events, answers and ledger entries.

mod clock;
mod model;
mod people;
mod provider;
mod sinks;

pub use clock::FakeClock;
pub use model::{FakeAnswer, FakeModel, FakeRequest};
pub use people::{FakeApprover, FakeCallClient, FakeRedactor, FakeReply};
pub use provider::{FakeItems, FakeList, FakeOutput, FakeProvider, definition, listing, own};
pub use sinks::{FakeEvents, FakeLedger, FakeModelEvents, StreamItem};
