//! Fakes of the traits of `core`: a clock, a model client, an approver, a redactor, a provider.

mod clock;
mod model;
mod people;
mod provider;

pub use clock::FakeClock;
pub use model::{FakeAnswer, FakeModel, FakeRequest};
pub use people::{FakeApprover, FakeRedactor};
pub use provider::{FakeItems, FakeList, FakeOutput, FakeProvider, definition, listing, own};
