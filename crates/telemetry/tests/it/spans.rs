//! Which spans come of which events.

use std::fmt::Write as _;
use std::time::SystemTime;

use serde_json::json;
use toolwright_core::error::ErrorKind;
use toolwright_core::event::Event;
use toolwright_core::job::JobState;
use toolwright_core::operation::{CallOrigin, Lineage, OpId, TraceId};
use toolwright_telemetry::{Content, Span, SpanOptions, Spans, Value};

use crate::support::{
    CallTraits, SECRET_TEXT, answered, asked, at, finished, in_run, job_changed, job_finished, job_started, op,
    run_finished, run_started, started,
};

/// A span as one line, and one for each attribute.
fn drawn(span: &Span) -> String {
    let ms = |time: SystemTime| time.duration_since(at(0)).expect("later").as_millis();
    let parent = span.parent.map(|parent| format!(" in {:x}", parent.get())).unwrap_or_default();
    let failed = span.failure.as_ref().map(|said| format!(" failed {said:?}")).unwrap_or_default();
    let mut out = format!(
        "{:x}{parent} {:?} `{}` {}..{}{failed}\n",
        span.id.get(),
        span.kind,
        span.name,
        ms(span.start),
        ms(span.end)
    );
    for attribute in &span.attributes {
        let value = match &attribute.value {
            Value::Text(text) => text.to_string(),
            Value::Texts(texts) => format!("[{}]", texts.join(",")),
            Value::Number(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
        };
        writeln!(out, "  {}={value}", attribute.key).expect("text");
    }
    out
}

/// The spans that end with each event, and what is left at last.
fn check(options: SpanOptions, events: &[(u64, Event)], expect: &str) {
    let mut spans = Spans::new(options);
    let mut ended = Vec::new();
    for (ms, event) in events {
        spans.observe(event, at(*ms), &mut ended);
    }
    spans.close(at(9000), &mut ended);
    let drawn: String = ended.iter().map(drawn).collect();
    let expect: String = expect.lines().filter(|line| !line.trim().is_empty()).fold(String::new(), |all, line| {
        let line = line.strip_prefix("        ").unwrap_or(line);
        all + line + "\n"
    });
    assert_eq!(drawn, expect);
}

fn recorded() -> SpanOptions {
    SpanOptions { content: Content::Recorded, ..SpanOptions::default() }
}

#[test]
fn call_becomes_a_span() {
    let op = in_run(op(0xb, 0xa), "run-1", 2);
    let events = [(10, started(&op, "x:echo@1.0.0")), (260, finished(&op, "x:echo@1.0.0", None, 300))];
    check(
        SpanOptions::default(),
        &events,
        "
        b in a Internal `execute_tool x__echo` 10..260
          toolwright.run.id=run-1
          toolwright.run.turn=2
          gen_ai.operation.name=execute_tool
          gen_ai.tool.name=x__echo
          gen_ai.tool.type=function
          toolwright.tool.id=x:echo@1.0.0
          gen_ai.tool.call.id=call-11
          gen_ai.conversation.id=s1
          toolwright.origin=agent
        ",
    );
}

#[test]
fn mcp_calls_have_request_attributes() {
    let (op, id) = (op(0xb, 0), "git:log@1.0.0");
    let upstream = CallTraits { mcp: true, origin: CallOrigin::Owner, method: None };
    let mut failed = upstream.finished(&op, id, Some(ErrorKind::ExecutionError), 9);
    let expect = |error: &str| {
        format!(
            "
        b Internal `execute_tool git__log` 0..9 failed \"\"
          gen_ai.operation.name=execute_tool
          gen_ai.tool.name=git__log
          gen_ai.tool.type=function
          toolwright.tool.id=git:log@1.0.0
          gen_ai.tool.call.id=call-11
          gen_ai.conversation.id=s1
          toolwright.origin=owner
          mcp.method.name=tools/call
          toolwright.mcp.server=git
          mcp.protocol.version=2025-11-25
          mcp.session.id=upstream-1
        {error}
        "
        )
    };
    // A result with `isError`, and an answer that is an error of JSON-RPC.
    check(
        SpanOptions::default(),
        &[(0, upstream.started(&op, id)), (9, failed.clone())],
        &expect("  error.type=tool_error"),
    );
    if let Event::ToolFinished { code, .. } = &mut failed {
        *code = Some(-32602);
    }
    check(
        SpanOptions::default(),
        &[(9, failed)],
        &expect("  rpc.response.status_code=-32602\n          error.type=-32602"),
    );
    let client = CallTraits { mcp: false, origin: CallOrigin::Gateway, method: None };
    check(
        SpanOptions::default(),
        &[(0, client.started(&op, "x:echo@1.0.0")), (9, client.finished(&op, "x:echo@1.0.0", None, 9))],
        "
        b Internal `execute_tool x__echo` 0..9
          gen_ai.operation.name=execute_tool
          gen_ai.tool.name=x__echo
          gen_ai.tool.type=function
          toolwright.tool.id=x:echo@1.0.0
          gen_ai.tool.call.id=call-11
          gen_ai.conversation.id=s1
          toolwright.origin=gateway
          mcp.method.name=tools/call
        ",
    );
}

#[test]
fn mcp_method_span_has_no_tool() {
    let (op, id) = (op(0xb, 0), "git:resources-read@0.0.0");
    let read = CallTraits { mcp: true, origin: CallOrigin::Gateway, method: Some("resources/read") };
    let mut begun = read.started(&op, id);
    if let Event::ToolStarted { arguments, .. } = &mut begun {
        *arguments = json!({"uri": "a://1", "later": SECRET_TEXT});
    }
    let events = [(0, begun), (9, read.finished(&op, id, None, 9))];
    let expect = |about: &str| {
        format!(
            "
        b Internal `resources/read` 0..9
          toolwright.tool.id=git:resources-read@0.0.0
          gen_ai.conversation.id=s1
          toolwright.origin=gateway
          mcp.method.name=resources/read
          toolwright.mcp.server=git
          mcp.protocol.version=2025-11-25
          mcp.session.id=upstream-1
        {about}
        "
        )
    };
    check(SpanOptions::default(), &events, &expect(""));
    check(recorded(), &events, &expect("  mcp.resource.uri=a://1"));
}

#[test]
fn content_is_recorded_only_if_enabled() {
    let op = op(0xb, 0);
    let id = "x:echo@1.0.0";
    let mut end = finished(&op, id, Some(ErrorKind::ExecutionError), 5);
    if let Event::ToolFinished { attempts, queue, wait_us, .. } = &mut end {
        (*attempts, *queue, *wait_us) = (2, Some("slow".into()), 700);
    }
    // It is tried twice.
    let events = [(0, started(&op, id)), (2, started(&op, id)), (5, end)];
    let expect = |failed: &str, argument: &str| {
        format!(
            "
        b Internal `execute_tool x__echo` 0..5 failed {failed:?}
          gen_ai.operation.name=execute_tool
          gen_ai.tool.name=x__echo
          gen_ai.tool.type=function
          toolwright.tool.id=x:echo@1.0.0
          gen_ai.tool.call.id=call-11
          gen_ai.conversation.id=s1
          toolwright.origin=agent
        {argument}
          toolwright.attempts=2
          toolwright.queue=slow
          toolwright.wait_us=700
          error.type=execution_error
        "
        )
    };
    check(SpanOptions::default(), &events, &expect("", ""));
    let argument = format!("  gen_ai.tool.call.arguments={{\"text\":\"{SECRET_TEXT}\"}}");
    check(recorded(), &events, &expect(SECRET_TEXT, &argument));
}

#[test]
fn call_without_start_spans_its_latency() {
    let event = finished(&op(0xb, 0xa), "", Some(ErrorKind::UnknownTool), 40);
    check(
        SpanOptions::default(),
        &[(100, event)],
        "
        b in a Internal `execute_tool unknown` 60..100 failed \"\"
          gen_ai.operation.name=execute_tool
          gen_ai.tool.name=unknown
          gen_ai.tool.type=function
          gen_ai.tool.call.id=call-11
          gen_ai.conversation.id=s1
          toolwright.origin=agent
          error.type=unknown_tool
        ",
    );
}

#[test]
fn model_request_is_client_span_with_tokens() {
    let (first, second) = (op(1, 0), op(2, 0));
    let events = [
        (0, asked(&first, "gemini/gemini-3-pro")),
        (3, asked(&second, "local/a/b")),
        (900, answered(&first, "gemini/gemini-3-pro", true, 900)),
        (1000, answered(&second, "local/a/b", false, 997)),
    ];
    check(
        SpanOptions::default(),
        &events,
        "
        1 Client `chat gemini-3-pro` 0..900
          gen_ai.operation.name=chat
          gen_ai.provider.name=gcp.gemini
          gen_ai.request.model=gemini-3-pro
          gen_ai.conversation.id=s1
          gen_ai.usage.input_tokens=1000
          gen_ai.usage.output_tokens=50
          gen_ai.usage.cache_read.input_tokens=900
          gen_ai.usage.cache_creation.input_tokens=60
          gen_ai.response.finish_reasons=[tool_call]
        2 Client `chat a/b` 3..1000 failed \"\"
          gen_ai.operation.name=chat
          gen_ai.provider.name=local
          gen_ai.request.model=a/b
          gen_ai.conversation.id=s1
          gen_ai.usage.input_tokens=0
          gen_ai.usage.output_tokens=0
          error.type=rate_limit
        ",
    );
}

#[test]
fn a_run_is_the_invocation_of_its_agent() {
    let (named, unnamed) = (op(1, 0), op(2, 1));
    let events = [
        (0, run_started(&named, Some("reviewer"))),
        (5, run_started(&unnamed, None)),
        (50, run_finished(&unnamed, None, false, 45)),
        (60, run_finished(&named, Some("reviewer"), true, 60)),
    ];
    check(
        SpanOptions::default(),
        &events,
        "
        2 in 1 Internal `invoke_agent` 5..50 failed \"\"
          gen_ai.operation.name=invoke_agent
          gen_ai.provider.name=openai
          gen_ai.request.model=gpt-6
          gen_ai.conversation.id=s1
          gen_ai.usage.input_tokens=3000
          gen_ai.usage.output_tokens=70
          toolwright.run.status=failure
          error.type=failure
        1 Internal `invoke_agent reviewer` 0..60
          gen_ai.operation.name=invoke_agent
          gen_ai.agent.name=reviewer
          gen_ai.provider.name=openai
          gen_ai.request.model=gpt-6
          gen_ai.conversation.id=s1
          gen_ai.usage.input_tokens=3000
          gen_ai.usage.output_tokens=70
          toolwright.run.status=success
        ",
    );
}

#[test]
fn a_job_is_a_span_of_its_own() {
    let (op, id) = (op(1, 0), "x:build@1.0.0");
    let events = [
        (0, job_started(&op, "build_0a1b2c3d", id)),
        (5, job_changed(&op, "build_0a1b2c3d", id, JobState::Running)),
        (900, job_finished(&op, "build_0a1b2c3d", id, JobState::Cancelled, 900)),
    ];
    check(
        SpanOptions::default(),
        &events,
        "
        1 Internal `job x__build` 0..900 failed \"\"
          gen_ai.tool.name=x__build
          toolwright.job.id=build_0a1b2c3d
          gen_ai.conversation.id=s1
          toolwright.job.state=cancelled
          error.type=cancelled
        ",
    );
}

/// Ids and times of the spans, and whether they are unfinished.
fn outline(options: SpanOptions, events: &[(u64, Event)]) -> Vec<(u64, bool)> {
    let mut spans = Spans::new(options);
    let mut ended = Vec::new();
    for (ms, event) in events {
        spans.observe(event, at(*ms), &mut ended);
    }
    spans.close(at(9000), &mut ended);
    let unfinished = |span: &Span| span.attributes.iter().any(|attribute| attribute.key == "toolwright.unfinished");
    ended.iter().map(|span| (span.id.get(), unfinished(span))).collect()
}

#[test]
fn oldest_open_span_ends_unfinished() {
    let id = "x:echo@1.0.0";
    let begun: Vec<_> = (1..=5).map(|n| (n, started(&op(n, 0), id))).collect();
    let two = SpanOptions { max_open: 2, ..SpanOptions::default() };
    assert_eq!(outline(two, &begun), [(1, true), (2, true), (3, true), (4, true), (5, true)]);
    let ends = [begun.clone(), vec![(8, finished(&op(5, 0), id, None, 3))]].concat();
    assert_eq!(outline(two, &ends), [(1, true), (2, true), (3, true), (5, false), (4, true)]);
    assert_eq!(outline(SpanOptions::default(), &ends)[0], (5, false));
}

#[test]
fn traces_are_sampled_whole() {
    let id = "x:echo@1.0.0";
    let half = SpanOptions { sample_ratio: 0.5, ..SpanOptions::default() };
    let none = SpanOptions { sample_ratio: 0.0, ..SpanOptions::default() };
    let mut sampled = 0;
    for n in 0..2000_u128 {
        // Spread over the lower half of the id, which decides.
        let trace = TraceId::new(1 + n * 0x20_c49b_a5e3_53f7);
        let lineage = Lineage::in_trace(trace);
        let (outer, inner) = (lineage.begin(OpId::new(1)), lineage.begin(OpId::new(2)));
        let events =
            [&outer, &inner].map(|op| [(0, started(op, id)), (1, finished(op, id, None, 1))]).as_flattened().to_vec();
        let given = outline(half, &events).len();
        assert!(given == 0 || given == 2, "{given}");
        sampled += usize::from(given > 0);
        assert!(outline(none, &events).is_empty());
    }
    assert!((900..1100).contains(&sampled), "{sampled}");
}

#[test]
fn batched_events_keep_their_durations() {
    let (op, id) = (op(1, 0), "x:echo@1.0.0");
    // What took longer than events wait was not begun so long ago: a person may have been asked before.
    for (heard, took, expect) in [(500, 3, 497), (500, 10_000, 495), (503, 3, 500), (600, 3, 500)] {
        let mut spans = Spans::new(SpanOptions::default());
        let mut ended = Vec::new();
        spans.observe(&started(&op, id), at(500), &mut ended);
        spans.observe(&finished(&op, id, None, took), at(heard), &mut ended);
        assert_eq!((ended[0].start, ended[0].end), (at(expect), at(heard)), "{heard} {took}");
    }
}

#[test]
fn delayed_start_event_keeps_start_time() {
    let (op, id) = (op(1, 0), "x:echo@1.0.0");
    let reported = |events: &[(u64, Event)]| {
        let (mut spans, mut ended) = (Spans::new(SpanOptions::default()), Vec::new());
        events.iter().for_each(|(when, event)| spans.observe(event, at(*when), &mut ended));
        (ended[0].start, ended[0].end)
    };
    // Somebody was asked for a minute before it ran for 2 ms.
    let mut short = finished(&op, id, None, 60_000);
    let Event::ToolFinished { run_us, .. } = &mut short else { unreachable!("it is one") };
    *run_us = 2000;
    assert_eq!(reported(&[(90_000, short)]), (at(89_998), at(90_000)));
    let mut delayed = started(&op, id);
    let Event::ToolStarted { after_us, .. } = &mut delayed else { unreachable!("it is one") };
    *after_us = 5000;
    assert_eq!(reported(&[(505, delayed), (600, finished(&op, id, None, 100))]), (at(500), at(600)));
}

#[test]
fn span_never_ends_before_its_start() {
    let (op, id) = (op(1, 0), "x:echo@1.0.0");
    let mut spans = Spans::new(SpanOptions::default());
    let mut ended = Vec::new();
    spans.observe(&started(&op, id), at(500), &mut ended);
    spans.observe(&finished(&op, id, None, 3), at(100), &mut ended);
    assert_eq!((ended[0].start, ended[0].end), (at(500), at(500)));
}
