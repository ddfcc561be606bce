//! Test support: a scripted model server, a misbehaving MCP server, rules of model APIs, and fixtures.

#[cfg(feature = "servers")]
pub mod conformance;
mod data;
mod fake_clock;
mod fake_model;
mod fake_people;
mod fake_provider;
mod locate;
#[cfg(feature = "servers")]
pub mod misbehaving;
#[cfg(feature = "servers")]
pub mod model_server;
pub mod requests;
#[cfg(feature = "servers")]
pub mod rules;
#[cfg(feature = "servers")]
pub mod stream_order;
#[cfg(feature = "servers")]
mod wire;

pub use data::test_data;
pub use fake_clock::FakeClock;
pub use fake_model::{FakeAnswer, FakeModel, FakeRequest};
pub use fake_people::{FakeApprover, FakeRedactor};
pub use fake_provider::{FakeItems, FakeList, FakeOutput, FakeProvider, definition, listing, own};
pub use locate::bin;
