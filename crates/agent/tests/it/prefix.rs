//! What a provider has kept of a run's prompt stays good: each request of a run begins as the one before, over all APIs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_agent::{AgentTools, Driver, Format, Limits, ReportSpec, RunSpec};
use toolwright_core::context::NoRedaction;
use toolwright_core::model::{Effort, ModelSettings};
use toolwright_core::{Effects, Services};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient};
use toolwright_runtime::executor::ExecutorOptions;
use toolwright_runtime::{Catalogue, Executor, ModelTraffic, SqliteStore, SystemClock};
use toolwright_testkit::model_server::{ScriptedModel, Turn, WireApi};

use crate::house::{Log, Note, begin_with, options, provider, spec};

/// A body without what is no part of the prompt: where it is kept, and what the last turn may choose.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| *key != "cache_control")
            .map(|(key, value)| (key.clone(), bare(value)))
            .collect(),
        Value::Array(items) => items.iter().map(bare).collect(),
        other => other.clone(),
    }
}
