//! Long conversations with a model that counts tokens: the cost of compaction, and the facts that it keeps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use toolwright_agent::{ContextOptions, Driver, Limits, RunConfig, RunOptions, RunState, Status};
use toolwright_core::approval::NoApprover;
use toolwright_core::client::NoClient;
use toolwright_core::context::NoRedaction;
use toolwright_core::event::{EventSink, NoEvents};
use toolwright_core::model::Message;
use toolwright_core::output::is_output_tool;
use toolwright_core::{
    Cancel, ContentBlock, Effects, Policy, Principal, Profile, ProviderKind, Services, Session, SessionId,
    StaticProvider, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient};
use toolwright_providers::builtin::{self, BuiltinOptions};
use toolwright_runtime::{Catalogue, Executor, ExecutorOptions, ModelTraffic, OutputFiles, SqliteStore, SystemClock};
use toolwright_testkit::model_server::{LongTalk, MEMORY_MODEL, ScriptedModel, WireApi};

use crate::Failure;

/// The token limit of one answer.
const ANSWER: u32 = 512;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Turns of each conversation.
    #[arg(long, default_value_t = 300)]
    turns: usize,
    /// Windows, in tokens of the server's count.
    #[arg(long, value_delimiter = ',', default_values_t = [8_192, 32_768, 131_072])]
    windows: Vec<usize>,
    /// APIs that the model is asked over.
    #[arg(long, value_delimiter = ',', default_values_t = [ApiName::Openai, ApiName::Anthropic])]
    apis: Vec<ApiName>,
    /// What making room once leaves, as a part of what a request may have.
    #[arg(long, default_value_t = ContextOptions::default().target)]
    target: f64,
}

/// An API.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ApiName {
    Openai,
    Responses,
    Anthropic,
    Gemini,
    Ollama,
}

impl std::fmt::Display for ApiName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Openai => "openai",
            Self::Responses => "responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
        })
    }
}

impl ApiName {
    fn both(self) -> (Api, WireApi) {
        match self {
            Self::Openai => (Api::OpenAiChat, WireApi::OpenAi),
            Self::Responses => (Api::OpenAiResponses, WireApi::Responses),
            Self::Anthropic => (Api::Anthropic, WireApi::Anthropic),
            Self::Gemini => (Api::Gemini, WireApi::Gemini),
            Self::Ollama => (Api::Ollama, WireApi::Ollama),
        }
    }
}

/// One conversation. Tokens are by the server's tokenizer.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    window: usize,
    api: String,
    turns: usize,
    /// Requests refused by the server because they exceed the window.
    overflows: usize,
    /// The largest request with the limit of its answer, in percent of the window.
    most_percent: u64,
    /// How often old results were shortened (alone or with a summary), turns were summarized, and this failed.
    truncated: u32,
    summarized: u32,
    failed: u32,
    /// Facts of turn 3 that the model sees at the end, out of all.
    facts: String,
    /// Tokens of all the agent's requests.
    prompt_tokens: u64,
    /// The part that a prefix cache saves, in percent.
    cached_percent: u64,
    /// Requests that do not begin with the whole previous request.
    cache_breaks: usize,
    /// Requests to the model that makes summaries, and their tokens.
    memory_requests: usize,
    memory_in: u64,
    memory_out: u64,
    /// The cost of these requests in percent of the agent's own, with cached tokens at a tenth and answers at five
    /// times the price of input.
    memory_cost_percent: u64,
    seconds: f64,
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut rows = Vec::new();
        for &window in &options.windows {
            for &api in &options.apis {
                rows.push(row(window, api, options).await?);
            }
        }
        Ok(rows)
    })
}

async fn row(window: usize, api: ApiName, options: &Options) -> Result<Row, Failure> {
    let dir = tempfile::tempdir()?;
    let talk = LongTalk::new(window as u64, options.turns);
    let server = ScriptedModel::start(talk.script()).await?;
    let driver = driver(dir.path(), &server, api).await?;
    let mut state = RunState::new(run_config(window, options.target), vec![Message::user(first(&talk)?)]);
    let started = Instant::now();
    loop {
        let report = driver.run(&mut state, &run_options()).await?;
        if report.status != Status::Success {
            return Err(format!("{window} {api}: {:?} {:?}", report.reason, server.failures()).into());
        }
        let Some(next) = talk.user(talk.tally().turns) else { break };
        state.continue_with(vec![ContentBlock::text(next)])?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let (tally, done) = (talk.tally(), state.compactions());
    let percent = |part: u64, whole: u64| (part * 100).checked_div(whole).unwrap_or_default();
    let own = (tally.prompt - tally.cached) * 10 + tally.cached;
    let memory = (tally.memory_in + tally.memory_out * 5) * 10;
    Ok(Row {
        window,
        api: api.to_string(),
        turns: tally.turns,
        overflows: tally.overflows,
        most_percent: percent(tally.most, window as u64),
        truncated: done.truncated,
        summarized: done.summarized,
        failed: done.failed,
        facts: format!("{} of {}", tally.known, LongTalk::fact_count()),
        prompt_tokens: tally.prompt,
        cached_percent: percent(tally.cached, tally.prompt),
        cache_breaks: tally.breaks,
        memory_requests: tally.memory,
        memory_in: tally.memory_in,
        memory_out: tally.memory_out,
        memory_cost_percent: percent(memory, own),
        seconds: (seconds * 10.0).round() / 10.0,
    })
}

fn first(talk: &LongTalk) -> Result<String, Failure> {
    talk.user(0).ok_or_else(|| "a conversation has one turn at least".into())
}

fn run_config(window: usize, target: f64) -> RunConfig {
    RunConfig {
        max_tokens: Some(ANSWER),
        limits: Limits { turns: u32::MAX, ..Limits::default() },
        window: Some(window),
        context: ContextOptions { model: Some(format!("long/{MEMORY_MODEL}")), target, ..ContextOptions::default() },
        ..RunConfig::new("long/talker", "You do the work step by step.")
    }
}

fn run_options() -> RunOptions {
    let session = Session { id: SessionId::new("bench"), principal: Principal::owner(), root: "/".into(), agent: None };
    RunOptions::new(
        "bench".into(),
        Arc::new(session),
        Arc::new(Policy::of(Profile::Trusted)),
        Arc::new(NoApprover { remedy: String::new() }),
        Arc::new(NoClient),
        Cancel::new(),
    )
}

async fn driver(dir: &std::path::Path, server: &ScriptedModel, api: ApiName) -> Result<Driver, Failure> {
    let (api, wire) = api.both();
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("long", api, server.base_url(wire)).with_key("k"));
    let model = ModelTraffic::new(Arc::new(HttpModelClient::new(endpoints)), BTreeMap::default());
    let store = SqliteStore::open(dir)?;
    let events: Arc<dyn EventSink> = Arc::new(NoEvents);
    let services = Services {
        outputs: OutputFiles::new(dir.join("outputs")),
        events: Arc::clone(&events),
        model: Arc::clone(&model) as _,
        ..Services::none(Arc::new(SystemClock))
    };
    let executor =
        Executor::new(ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, Arc::clone(&store) as _));
    let catalogue = Catalogue::new(events, Arc::new(NoRedaction), Duration::from_secs(5));
    let mut tools = builtin::tools(&BuiltinOptions::default());
    tools.retain(|tool| is_output_tool(&tool.definition().id));
    tools.push(Arc::new(Step));
    catalogue.add_provider(Arc::new(StaticProvider::new("bench", ProviderKind::Native, tools)?)).await?;
    catalogue.refresh("bench").await;
    Ok(Driver::new(executor, catalogue, model, Some(store)))
}

/// The tool that the conversation uses.
struct Step;

#[async_trait]
impl Tool for Step {
    #[expect(clippy::expect_used, reason = "the id stands here")]
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::try_parse("t:step@1.0.0").expect("an id");
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "why": {"type": "string"}}});
        let mut definition = ToolDefinition::new(id, "Does one step of the work.", Some(schema));
        definition.effects = Effects::READ;
        definition
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let n = arguments["n"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or_default();
        Ok(ToolOutput::text(LongTalk::result(n)))
    }
}
