//! Long conversations over real APIs: a server that counts by itself and refuses what does not fit.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_agent::{ContextOptions, Driver, DriverError, Limits, RunConfig, RunReport, RunState, Status};
use toolwright_core::context::{EstimatedTokens, NoRedaction, TokenCounter};
use toolwright_core::event::{CompactionLayer, Event, EventSink};
use toolwright_core::model::{Message, Prices, Usage};
use toolwright_core::output::is_output_tool;
use toolwright_core::store::{OutputStore, RunStore};
use toolwright_core::{
    ContentBlock, Effects, Services, Tool, ToolContext, ToolDefinition, ToolError, ToolId, ToolOutput,
};
use toolwright_models::{Api, Endpoint, Endpoints, HttpModelClient, ModelOverrides};
use toolwright_providers::builtin::{self, BuiltinOptions};
use toolwright_runtime::{Catalogue, Executor, ExecutorOptions, ModelTraffic, OutputFiles, SqliteStore, SystemClock};
use toolwright_testkit::FakeEvents;
use toolwright_testkit::model_server::{LongTalk, MEMORY_MODEL, Script, ScriptedModel, WireApi};

use crate::fixture::{options, provider, run_config};

/// Does a step, and says what the conversation has for it; with the fourth it shows images, if it has some.
#[derive(Default)]
pub(crate) struct Step(pub(crate) Vec<ContentBlock>);

#[async_trait]
impl Tool for Step {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::parse("t:step@1.0.0").unwrap();
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "why": {"type": "string"}}});
        let mut definition = ToolDefinition::new(id, "Does one step of the work.", Some(schema));
        definition.effects = Effects::READ;
        definition
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let n = usize::try_from(arguments["n"].as_u64().unwrap_or_default()).unwrap();
        let mut output = ToolOutput::text(LongTalk::result(n));
        if n == SHOWING {
            output.content.extend(self.0.iter().cloned());
        }
        Ok(output)
    }
}

/// The step that shows images.
const SHOWING: usize = 4;

/// Puts something in front of the stored outputs.
type WrapOutputs = Box<dyn FnOnce(Arc<dyn OutputStore>) -> Arc<dyn OutputStore> + Send>;

/// Parts that differ from the defaults.
pub(crate) struct LongRunOptions {
    pub(crate) tokens: Arc<dyn TokenCounter>,
    pub(crate) outputs: WrapOutputs,
    pub(crate) step: Step,
    /// Of the model that talks.
    pub(crate) overrides: ModelOverrides,
}

impl Default for LongRunOptions {
    fn default() -> Self {
        let (tokens, overrides) = (Arc::new(EstimatedTokens), ModelOverrides::default());
        Self { tokens, outputs: Box::new(|outputs| outputs), step: Step::default(), overrides }
    }
}

pub(crate) struct LongRunFixture {
    pub(crate) driver: Driver,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) log: Arc<FakeEvents>,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) server: Arc<ScriptedModel>,
}

pub(crate) const APIS: [(Api, WireApi); 5] = [
    (Api::OpenAiChat, WireApi::OpenAi),
    (Api::Anthropic, WireApi::Anthropic),
    (Api::OpenAiResponses, WireApi::Responses),
    (Api::Gemini, WireApi::Gemini),
    (Api::Ollama, WireApi::Ollama),
];

impl LongRunFixture {
    pub(crate) async fn new(dir: &Path, script: Script, apis: (Api, WireApi)) -> Self {
        let server = ScriptedModel::start(script).await.unwrap();
        Self::on(dir, Arc::new(server), apis, LongRunOptions::default(), |store| store).await
    }

    /// A fixture that talks to this server, has these parts and stores runs through `wrap`.
    pub(crate) async fn on<S: RunStore + 'static>(
        dir: &Path,
        server: Arc<ScriptedModel>,
        (api, wire): (Api, WireApi),
        LongRunOptions { tokens, outputs, step, overrides }: LongRunOptions,
        wrap: impl FnOnce(Arc<SqliteStore>) -> Arc<S>,
    ) -> Self {
        let mut endpoints = Endpoints::default();
        endpoints.insert(Endpoint::new("long", api, server.base_url(wire)).with_key("k"));
        endpoints.set_overrides("long/talker", overrides);
        let model = ModelTraffic::new(Arc::new(HttpModelClient::new(endpoints)), std::collections::BTreeMap::default());
        let store = SqliteStore::open(dir).unwrap();
        let log = Arc::new(FakeEvents::default());
        let events: Arc<dyn EventSink> = log.clone();
        let services = Services {
            outputs: outputs(OutputFiles::new(dir.join("outputs"))),
            events: Arc::clone(&events),
            model: Arc::clone(&model) as _,
            tokens,
            ..Services::none(Arc::new(SystemClock))
        };
        let mut settings = ExecutorOptions::new(Arc::new(services), store.clone(), store.clone());
        let prices = Prices { input: 1.0, output: 10.0, ..Prices::default() };
        settings.prices = [("long".to_owned(), prices)].into_iter().collect();
        let executor = Executor::new(settings);
        let catalogue = Catalogue::new(events, Arc::new(NoRedaction), std::time::Duration::from_secs(5));
        let mut tools = builtin::tools(&BuiltinOptions::default());
        tools.retain(|tool| is_output_tool(&tool.definition().id));
        tools.push(Arc::new(step));
        catalogue.add_provider(provider("test", tools)).await.unwrap();
        catalogue.refresh("test").await;
        let driver = Driver::new(executor.clone(), Arc::clone(&catalogue), model, Some(wrap(store.clone())));
        Self { driver, catalogue, executor, log, store, server }
    }

    /// Goes on until all is said, or the driver breaks off.
    pub(crate) async fn talk(&self, talk: &LongTalk, state: &mut RunState) -> Result<RunReport, DriverError> {
        loop {
            let report = self.driver.run(state, &options()).await?;
            match talk.user(talk.tally().turns).filter(|_| report.status == Status::Success) {
                Some(next) => state.continue_with(vec![ContentBlock::text(next)]).unwrap(),
                None => return Ok(report),
            }
        }
    }

    /// What is stored of the result of step `n`, by the handle that stands in its place.
    async fn note_of(&self, state: &RunState, n: usize) -> String {
        let asked = format!("\"n\":{n},");
        let calls = state.messages().iter().filter_map(|message| match message {
            Message::Assistant { calls, .. } => Some(calls),
            _ => None,
        });
        let call = calls.flatten().find(|call| call.arguments.contains(&asked)).unwrap();
        let results = state.messages().iter().filter_map(|message| match message {
            Message::Tool { results } => Some(results),
            _ => None,
        });
        let result = results.flatten().find(|result| result.call_id == call.id).unwrap();
        let note = result.content[0].as_text().unwrap();
        let handle = note.split("\"handle\": \"").nth(1).unwrap().split('"').next().unwrap();
        let outputs = &self.executor.services().outputs;
        outputs.read(&options().session.id, handle, 0, 100_000).await.unwrap().text
    }

    pub(crate) fn compacted(&self, wanted: CompactionLayer) -> usize {
        let log = self.log.seen();
        log.iter().filter(|event| matches!(event, Event::Compacted { layer, .. } if *layer == wanted)).count()
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        let log = self.log.seen();
        let code = |event: &Event| match event {
            Event::Warning { code, message } => Some(format!("{code}: {message}")),
            _ => None,
        };
        log.iter().filter_map(code).collect()
    }
}

pub(crate) fn terms() -> ContextOptions {
    ContextOptions { model: Some(format!("long/{MEMORY_MODEL}")), ..ContextOptions::default() }
}

pub(crate) fn begin(talk: &LongTalk, window: usize, context: ContextOptions) -> RunState {
    let limits = Limits { turns: 400, ..Limits::default() };
    let config = RunConfig {
        model: "long/talker".into(),
        window: Some(window),
        max_tokens: Some(512),
        context,
        ..run_config(limits)
    };
    RunState::new(config, vec![Message::user(talk.user(0).unwrap())])
}

/// So many turns in a window: the server refuses nothing, and what was told in turn 3 is known at the end.
async fn check(window: usize, turns: usize, apis: (Api, WireApi), summaries: std::ops::RangeInclusive<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let talk = LongTalk::new(window as u64, turns);
    let fixture = LongRunFixture::new(dir.path(), talk.script(), apis).await;
    let mut state = begin(&talk, window, terms());
    let report = fixture.talk(&talk, &mut state).await.unwrap();
    assert_eq!((report.status, fixture.server.failures()), (Status::Success, vec![]), "{report:?}");
    let (tally, done) = (talk.tally(), state.compactions());
    assert_eq!((tally.turns, tally.overflows, tally.known), (turns, 0, LongTalk::fact_count()), "{window} {tally:?}");
    if done.summarized == 0 {
        let note = fixture.note_of(&state, 3).await;
        assert!(note.contains(&LongTalk::result(3)), "{note}");
    }
    assert!(tally.most <= window as u64, "{window}");
    assert!(summaries.contains(&done.summarized) && done.failed == 0, "{window} {done:?}");
    // Each time room is made, the beginning of the conversation is another once, and only then.
    let made = usize::try_from(done.summarized + done.truncated).unwrap();
    assert!(tally.breaks <= made + 1, "{window} {tally:?} {done:?}");
    assert_eq!(fixture.compacted(CompactionLayer::Summarize), usize::try_from(done.summarized).unwrap());
    assert_eq!(fixture.compacted(CompactionLayer::Truncate), usize::try_from(done.truncated).unwrap());
    assert_eq!(fixture.warnings(), Vec::<String>::new());
    // All that was done is told, what gave way beside turns that were put together too.
    let (mut results, mut messages, mut usage) = (0, 0, Usage::default());
    for event in fixture.log.seen().iter() {
        if let Event::Compacted { results: gone, kept, messages: together, usage: used, .. } = event {
            assert_eq!(gone, kept, "{window}: all of it can be read again");
            (results, messages) = (results + gone, messages + together);
            usage.add(*used);
        }
    }
    assert_eq!((results, messages, usage), (done.results, done.messages, done.usage), "{window}");
}

#[tokio::test]
async fn three_hundred_turns_stay_within_8k_over_openai() {
    check(8192, 300, APIS[0], 5..=30).await;
}

#[tokio::test]
async fn a_long_talk_stays_within_8k_over_anthropic() {
    check(8192, 150, APIS[1], 4..=20).await;
}

#[tokio::test]
async fn a_long_talk_stays_within_8k_over_responses() {
    check(8192, 60, APIS[2], 1..=10).await;
}

#[tokio::test]
async fn a_long_talk_stays_within_8k_over_gemini() {
    check(8192, 60, APIS[3], 1..=10).await;
}

#[tokio::test]
async fn a_long_talk_stays_within_8k_over_ollama() {
    check(8192, 60, APIS[4], 1..=10).await;
}

#[tokio::test]
async fn three_hundred_turns_stay_within_32k() {
    check(32_768, 300, APIS[1], 1..=20).await;
}

#[tokio::test]
async fn a_long_talk_stays_within_128k() {
    check(131_072, 160, APIS[0], 0..=3).await;
}
