//! Anthropic Messages (docs.anthropic.com/en/api/messages, version 2023-06-01).

mod decode;
mod encode;

pub(crate) use decode::Assembly;
pub(crate) use encode::{encode, tool};

use crate::api::Api;

const API: Api = Api::Anthropic;
