//! REST tools from configuration: one HTTP request each, made of templates over the call's arguments.

mod body;
mod error;
mod provider;
mod query;
mod reply;
mod request;
mod spec;
mod template;

pub use error::RestError;
pub use provider::{RestOptions, RestProvider};
pub use query::Style;
pub use spec::{QueryValue, ResponseFormat, RestToolSpec};
