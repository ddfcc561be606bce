//! Anthropic Messages (docs.anthropic.com/en/api/messages, version 2023-06-01).
//!
//! Deferred tools are loaded by results of ours (platform.claude.com/docs/en/agents-and-tools/tool-use/
//! tool-search-tool, "Custom tool search implementation"); that needs no beta header. Their definitions are not
//! part of the prompt's prefix, so loading one leaves the cache as it is.

mod binding;
mod cache;
mod decode;
mod encode;

pub(crate) use binding::drop_foreign_thinking;
pub(crate) use decode::Assembly;
pub(crate) use encode::{DEFAULT_MAX_TOKENS, encode, tool};

use crate::api::Api;

/// The version of the API.
const VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");
const API: Api = Api::Anthropic;
