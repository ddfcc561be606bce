//! Test support: a scripted model server, a misbehaving MCP server, rules of model APIs, and fixtures.

#[cfg(feature = "servers")]
pub mod conformance;
mod data;
mod fakes;
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
pub use fakes::{
    FakeAnswer, FakeApprover, FakeCallClient, FakeClock, FakeEvents, FakeItems, FakeLedger, FakeList, FakeModel,
    FakeModelEvents, FakeOutput, FakeProvider, FakeRedactor, FakeReply, FakeRequest, StreamItem, definition, listing,
    own,
};
pub use locate::bin;
