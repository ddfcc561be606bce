//! Room in the context window with failing stores, with images, and by the choice of models.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use toolwright_agent::{ContextOptions, RunConfig, RunState, Status};
use toolwright_core::event::{CompactionLayer, Event};
use toolwright_core::llm::{LlmDefinition, LlmHooks, define_llm_tool, shipped};
use toolwright_core::model::{CallResult, Message, RawToolCall};
use toolwright_core::store::{LineRange, OpenOutput, OutputSlice, OutputStore, OutputWriter, StoreError, StoredOutput};
use toolwright_core::{ContentBlock, SessionId, Tool, ToolId};
use toolwright_models::ModelOverrides;
use toolwright_testkit::model_server::{LongTalk, Reply, STEP_TOOL, Script, ScriptedModel, Turn};

use crate::fixture::{options, provider};
use crate::turns::long_conversations::{APIS, LongRunFixture, LongRunOptions, Step, begin, terms};

/// What is asked of a store.
enum StoreOperation<'a> {
    Put(&'a str),
    PutFile,
    Read,
}

/// Outputs on a disk that fails at what `fails` says.
struct Failing {
    inner: Arc<dyn OutputStore>,
    fails: fn(StoreOperation<'_>) -> bool,
}

impl Failing {
    fn check(&self, does: StoreOperation<'_>) -> Result<(), StoreError> {
        if (self.fails)(does) { Err(StoreError::NotFound("the disk".into())) } else { Ok(()) }
    }
}

#[async_trait]
impl OutputStore for Failing {
    async fn put(&self, session: &SessionId, bytes: &[u8]) -> Result<StoredOutput, StoreError> {
        self.check(StoreOperation::Put(std::str::from_utf8(bytes).unwrap()))?;
        self.inner.put(session, bytes).await
    }
    async fn put_artifact(&self, session: &SessionId, bytes: &[u8], media: &str) -> Result<StoredOutput, StoreError> {
        self.check(StoreOperation::PutFile)?;
        self.inner.put_artifact(session, bytes, media).await
    }
    async fn writer(&self, session: &SessionId) -> Result<Box<dyn OutputWriter>, StoreError> {
        self.inner.writer(session).await
    }
    async fn read(
        &self,
        session: &SessionId,
        handle: &str,
        offset: u64,
        limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        self.check(StoreOperation::Read)?;
        self.inner.read(session, handle, offset, limit).await
    }
    async fn read_lines(
        &self,
        session: &SessionId,
        handle: &str,
        range: LineRange,
        limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        self.inner.read_lines(session, handle, range, limit).await
    }
    async fn open(&self, session: &SessionId, handle: &str) -> Result<OpenOutput, StoreError> {
        self.inner.open(session, handle).await
    }
    fn has_outputs(&self, session: &SessionId) -> bool {
        self.inner.has_outputs(session)
    }
}

/// Turns of a talk in which a model makes room at least once.
const TURNS: usize = 60;
const WINDOW: usize = 8192;

/// A talk with a disk that fails goes on to its end. `warned`: whether anybody is told; `kept`: whether the turns that were put
/// together were stored; `refused`: how many requests may be found too large by the server alone.
async fn check_failing(fails: fn(StoreOperation<'_>) -> bool, warned: bool, kept: bool, refused: usize) {
    let dir = tempfile::tempdir().unwrap();
    let talk = LongTalk::new(WINDOW as u64, TURNS);
    let server = Arc::new(ScriptedModel::start(talk.script()).await.unwrap());
    let fixture = LongRunFixture::on(
        dir.path(),
        server,
        APIS[0],
        LongRunOptions {
            outputs: Box::new(move |inner| Arc::new(Failing { inner, fails })),
            ..LongRunOptions::default()
        },
        |store| store,
    )
    .await;
    let mut state = begin(&talk, WINDOW, terms());
    let report = fixture.talk(&talk, &mut state).await.unwrap();
    let (tally, done) = (talk.tally(), state.compactions());
    assert_eq!((report.status, tally.turns), (Status::Success, TURNS), "{report:?}");
    assert!(tally.overflows <= refused, "{} requests were refused", tally.overflows);
    assert!(done.summarized > 0 && done.failed == 0, "{done:?}");
    let warnings = fixture.warnings();
    assert_eq!(warnings.iter().any(|warning| warning.starts_with("output_store_failed")), warned, "{warnings:?}");
    let log = fixture.log.seen();
    let handles = log.iter().filter_map(|event| match event {
        Event::Compacted { layer: CompactionLayer::Summarize, handle, .. } => Some(handle.is_some()),
        _ => None,
    });
    assert!(handles.clone().count() > 0 && handles.into_iter().all(|handle| handle == kept));
    let record = texts(&state).into_iter().find(|text| text.contains("<record>")).unwrap();
    assert_eq!(record.contains("The whole text was not kept."), !kept, "{record}");
    assert!(record.contains("north_gate_code: 4711-K"), "what was read in time is kept: {record}");
}

fn texts(state: &RunState) -> Vec<String> {
    let text = |message: &Message| match message {
        Message::User { content } => content.iter().filter_map(ContentBlock::as_text).collect(),
        Message::Tool { results } => {
            results.iter().flat_map(|result| &result.content).filter_map(ContentBlock::as_text).collect()
        }
        Message::Assistant { text, .. } => text.clone(),
    };
    state.messages().iter().map(text).collect()
}

#[tokio::test]
async fn a_failing_store_during_compaction_ends_no_run() {
    // Nothing can be stored at all: results stay for as long as the conversation is taken to fit.
    check_failing(|does| matches!(does, StoreOperation::Put(_)), true, false, 1).await;
    // The turns cannot, the results could.
    check_failing(
        |does| matches!(does, StoreOperation::Put(text) if text.contains("Assistant calls t__step:")),
        true,
        false,
        0,
    )
    .await;
    // What was stored cannot be read again: the models see the notes in its place.
    check_failing(|does| matches!(does, StoreOperation::Read), false, true, 0).await;
    // Files alone: there are none.
    check_failing(|does| matches!(does, StoreOperation::PutFile), false, true, 0).await;
}

/// The bytes of what is stored under a handle.
async fn stored(fixture: &LongRunFixture, handle: &str) -> (Vec<u8>, Option<String>) {
    let OpenOutput { mut reader, binary, .. } =
        fixture.executor.services().outputs.open(&options().session.id, handle).await.unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
    (bytes, binary)
}

#[tokio::test]
async fn images_keep_their_handles_through_eviction_and_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let talk = LongTalk::new(16_384, TURNS * 2);
    let server = Arc::new(ScriptedModel::start(talk.script()).await.unwrap());
    let images = [1u8, 2].map(|n| (0..6000).map(|at| (at % 251) as u8 ^ n).collect::<Vec<u8>>());
    let blocks = images.iter().map(|image| ContentBlock::image(BASE64_STANDARD.encode(image), "image/png")).collect();
    let parts = LongRunOptions { step: Step(blocks), ..LongRunOptions::default() };
    let fixture = LongRunFixture::on(dir.path(), server, APIS[1], parts, |store| store).await;
    let mut state = begin(&talk, 16_384, terms());
    let report = fixture.talk(&talk, &mut state).await.unwrap();
    assert_eq!((report.status, fixture.server.failures()), (Status::Success, Vec::new()), "{report:?}");
    assert!(state.compactions().summarized > 0, "{:?}", state.compactions());

    // First its result gave way, alone: the note has the handles.
    let noted = fixture.server.requests().into_iter().map(|request| request.body.to_string());
    let noted = noted.filter(|body| body.contains("its images and other files are kept under ")).count();
    assert!(noted > 0, "no note named the images");
    // Then the turn was put together, and the record has them still.
    let record = texts(&state).into_iter().find(|text| text.contains("<record>")).unwrap();
    let named = record.split("Its images and other files are kept under ").nth(1).unwrap().split(".\n").next().unwrap();
    let mut found = Vec::new();
    for handle in named.split(", ") {
        let (bytes, media) = stored(&fixture, handle).await;
        assert_eq!(media.as_deref(), Some("image/png"), "{handle}");
        found.push(bytes);
    }
    found.sort();
    let mut expect = images.to_vec();
    expect.sort();
    assert_eq!(found, expect);
}

/// A conversation with results of about so many tokens each, and a last, small one.
fn with_results(tokens: &[usize]) -> Vec<Message> {
    let mut messages = vec![Message::user("Go on.")];
    for (n, tokens) in tokens.iter().chain(&[10]).enumerate() {
        let id = format!("c{n}");
        let call = RawToolCall { id: id.clone(), name: STEP_TOOL.into(), arguments: format!("{{\"n\":{n}}}") };
        messages.push(Message::Assistant { text: String::new(), calls: vec![call], opaque: Vec::new() });
        let content = vec![ContentBlock::text("four".repeat(*tokens))];
        let result = CallResult { call_id: id, name: STEP_TOOL.into(), content, ..CallResult::default() };
        messages.push(Message::Tool { results: vec![result] });
    }
    messages
}

/// A run of one answer that begins with these messages, on a disk that fails at what `fails` says.
async fn answered(messages: Vec<Message>, config: RunConfig, fails: fn(StoreOperation<'_>) -> bool) -> LongRunFixture {
    let dir = tempfile::tempdir().unwrap();
    let server = Arc::new(ScriptedModel::start(Script::echo()).await.unwrap());
    let outputs = Box::new(move |inner| Arc::new(Failing { inner, fails }) as Arc<dyn OutputStore>);
    let fixture = LongRunFixture::on(
        dir.path(),
        server,
        APIS[0],
        LongRunOptions { outputs, ..LongRunOptions::default() },
        |store| store,
    )
    .await;
    fixture.driver.run(&mut RunState::new(config, messages), &options()).await.unwrap();
    fixture
}

#[tokio::test]
async fn an_unstorable_result_stays_if_others_make_room() {
    let context = ContextOptions { summarize: false, ..terms() };
    let config = begin(&LongTalk::new(8192, 1), 8192, context).config().clone();
    let fixture = answered(with_results(&[4000, 4000]), config, |does| matches!(does, StoreOperation::Put(_))).await;
    let body = fixture.server.requests()[0].body.to_string();
    assert_eq!(body.matches("[toolwright took this result").count(), 1, "{body}");
    assert!(body.contains(&"four".repeat(4000)), "one of them is whole");
}

#[tokio::test]
async fn too_few_tokens_for_compaction_store_nothing() {
    static STORED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let mut messages = vec![Message::user("Go on.")];
    for _ in 0..6 {
        let text = "four".repeat(1500);
        messages.push(Message::Assistant { text, calls: Vec::new(), opaque: Vec::new() });
        messages.push(Message::user("And on."));
    }
    for (tokens, expect) in [(1000, false), (1_000_000, true)] {
        let mut config = begin(&LongTalk::new(8192, 1), 8192, terms()).config().clone();
        config.limits.tokens = Some(tokens);
        let counting = |does: StoreOperation<'_>| {
            if matches!(does, StoreOperation::Put(text) if text.contains("Assistant:")) {
                STORED.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
            false
        };
        answered(messages.clone(), config, counting).await;
        assert_eq!(STORED.swap(0, std::sync::atomic::Ordering::SeqCst) > 0, expect, "{tokens}");
    }
}

/// What a model says that puts turns together, whatever its name.
fn summary_answer(text: &str) -> Option<Value> {
    if text.trim_start().starts_with("<text>") {
        return Some(json!({"facts": [{"key": "gate", "value": "4711-K", "category": "decision"}]}));
    }
    text.contains("<content>").then(|| json!({"summary": "Steps were made.", "key_points": []}))
}

/// The models that were asked to put turns together, and those that were asked for steps.
async fn asked(context: ContextOptions) -> (Vec<String>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let answer = Turn::computed(|asked| match summary_answer(&asked.last_user_text()) {
        Some(made) => Reply::text(made.to_string()),
        None if asked.body["messages"].to_string().contains("Steps were made.") => Reply::text("Done."),
        None => Reply::text_and_calls(
            "word ".repeat(300),
            vec![(STEP_TOOL, json!({"n": 1, "why": asked.body.to_string().len()}))],
        ),
    });
    let fixture = LongRunFixture::new(dir.path(), Script::from(vec![answer]).repeating(), APIS[0]).await;
    let config = RunConfig { window: Some(4000), ..begin(&LongTalk::new(4000, 1), 4000, context).config().clone() };
    let mut state = RunState::new(config, vec![Message::user("Go on.")]);
    let report = fixture.driver.run(&mut state, &options()).await.unwrap();
    assert_eq!((report.status, fixture.server.failures()), (Status::Success, Vec::new()), "{report:?}");
    let requests = fixture.server.requests();
    let of = |memory: bool| {
        let is = |body: &&Value| {
            summary_answer(
                body["messages"].as_array().unwrap().last().unwrap()["content"].to_string().trim_matches('"'),
            )
            .is_some()
                == memory
        };
        let mut models: Vec<String> = requests
            .iter()
            .map(|request| &request.body)
            .filter(is)
            .map(|body| body["model"].as_str().unwrap().to_owned())
            .collect();
        models.dedup();
        models
    };
    (of(true), of(false))
}

#[tokio::test]
async fn the_runs_model_compacts_unless_another_is_named() {
    let own = ContextOptions { model: None, ..terms() };
    let named = ContextOptions { model: Some("long/other".into()), ..terms() };
    for (context, model) in [(own, "talker"), (named, "other")] {
        let (memory, steps) = asked(context).await;
        assert_eq!((memory, steps), (vec![model.to_owned()], vec!["talker".to_owned()]));
    }
}

#[tokio::test]
async fn the_limit_leaves_room_for_the_apis_answer() {
    // A tenth of the window at most is the buffer; more than half of it is kept for no answer.
    for (window, max_output, answer) in [(100_000, None, 8192), (100_000, Some(700), 700), (8192, None, 4096)] {
        let dir = tempfile::tempdir().unwrap();
        let server = Arc::new(ScriptedModel::start(Script::echo()).await.unwrap());
        let overrides = ModelOverrides { max_output, ..ModelOverrides::default() };
        let fixture = LongRunFixture::on(
            dir.path(),
            server,
            APIS[1],
            LongRunOptions { overrides, ..LongRunOptions::default() },
            |store| store,
        )
        .await;
        let config = begin(&LongTalk::new(window as u64, 1), window, terms()).config().clone();
        let mut state = RunState::new(RunConfig { max_tokens: None, ..config }, vec![Message::user("Go on.")]);
        let report = fixture.driver.run(&mut state, &options()).await.unwrap();
        assert_eq!(report.status, Status::Success, "{report:?}");
        let sent = fixture.server.requests()[0].body["max_tokens"].as_u64();
        assert_eq!(sent, Some(u64::from(max_output.unwrap_or(8192))));
        assert_eq!(state.context_limit(), Some(window - window / 20 - answer), "{window} {max_output:?}");
    }
}

/// Something else under the name of the tool that turns are put together with.
fn replaced() -> Arc<dyn Tool> {
    let id = ToolId::parse("llm:summarize@1.0.0").unwrap();
    let parameters = json!({
        "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": false,
    });
    let definition = LlmDefinition::new(id, "Shortens.", parameters, "", "Shorten: {{ text }}");
    define_llm_tool(definition, LlmHooks::default()).unwrap()
}

/// A shipped tool with another description, as the configuration may tune it.
fn tool_with_overrides(name: &str) -> Arc<dyn Tool> {
    let tool = shipped().iter().find(|tool| tool.source().id.name() == name).unwrap();
    let mut definition = (**tool.source()).clone();
    definition.description = "Ours.".into();
    definition.model_preference.max_tokens = Some(333);
    define_llm_tool(definition, tool.hooks().clone()).unwrap()
}

#[tokio::test]
async fn shipped_tools_compact_despite_tools_of_their_name() {
    let extract = || tool_with_overrides("fact-extract");
    for (tools, is_ours) in [
        (vec![tool_with_overrides("summarize"), extract()], true),
        (vec![replaced(), extract()], false),
        (vec![replaced()], false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let talk = LongTalk::new(8192, TURNS);
        let fixture = LongRunFixture::new(dir.path(), talk.script(), APIS[0]).await;
        fixture.catalogue.add_provider(provider("llm", tools)).await.unwrap();
        fixture.catalogue.refresh("llm").await;
        let mut state = begin(&talk, 8192, terms());
        let report = fixture.talk(&talk, &mut state).await.unwrap();
        assert_eq!((report.status, talk.tally().turns), (Status::Success, TURNS), "{report:?}");
        let done = state.compactions();
        assert!(done.summarized > 0 && done.failed == 0, "{done:?} {:?}", fixture.warnings());
        let limits: Vec<u64> = fixture
            .server
            .requests()
            .iter()
            .filter(|asked| asked.body["messages"][1]["content"].to_string().contains("<content>"))
            .filter_map(|asked| asked.body["max_completion_tokens"].as_u64().or(asked.body["max_tokens"].as_u64()))
            .collect();
        assert!(!limits.is_empty() && limits.iter().all(|limit| (*limit <= 333) == is_ours), "{limits:?} {is_ours}");
    }
}
