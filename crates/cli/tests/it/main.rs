//! Tests of the whole: configuration, import, and the program as it is run.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod agent;
mod agent_files;
mod agent_kills;
mod approvals;
mod arguments;
mod asking;
mod bench;
mod bench_bounds;
mod call;
mod cli;
mod clients;
mod codec;
mod compaction_kill;
mod config;
mod config_messages;
mod demo;
mod dispatch;
mod doctor;
mod edit;
mod elsewhere;
mod embeddings;
mod eval;
mod exposure;
#[cfg(unix)]
mod facade_kills;
mod final_report;
mod gateway;
mod import;
mod jobs;
mod ledger;
mod llm;
mod llm_models;
mod native;
mod oauth;
mod pick;
mod pins;
#[cfg(unix)]
mod plan_kills;
mod planned_runs;
mod plans;
mod policy;
mod policy_cases;
mod prompts;
mod reference;
mod replay;
mod safety;
mod sandbox;
mod secrets;
mod serve;
mod session_log;
mod state;
mod stops;
mod sub_agents;
mod support;
#[cfg(feature = "telemetry")]
mod telemetry;
mod terminal;
mod text_format;
mod transports;
mod triggers;
mod trust;
mod views;
mod width;
mod words;
