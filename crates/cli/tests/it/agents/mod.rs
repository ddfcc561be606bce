//! `run`, `chat` and `agents`, and the models that they ask.

pub(crate) mod agent;
mod agent_files;
mod agent_kills;
mod dispatch;
mod exposure;
mod final_report;
mod handoff;
mod llm;
mod llm_models;
mod native;
mod sub_agents;
