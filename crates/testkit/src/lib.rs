//! For tests only: a scripted model server, a misbehaving MCP server, rules of model APIs, fixtures.

pub mod conformance;
mod data;
mod fake_clock;
mod fake_model;
mod fake_people;
mod fake_provider;
mod locate;
pub mod misbehaving;
pub mod model_server;
pub mod rules;
pub mod stream_order;
mod wire;

pub use data::test_data;
pub use fake_clock::FakeClock;
pub use fake_model::{FakeAnswer, FakeCall, FakeModel};
pub use fake_people::{FakeApprover, FakeRedactor};
pub use fake_provider::{FakeList, FakeOutput, FakeProvider, definition, listing, own};
pub use locate::bin;
