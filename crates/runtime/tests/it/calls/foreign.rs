//! What a foreign tool says of itself, and what a person is asked about it.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::catalogue::{ProviderKind, Snapshot};
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_core::policy::HintTrust;
use toolwright_core::{Effects, Event, RegisteredTool, Services, ToolDefinition, ToolId, ToolOutput};
use toolwright_runtime::{RunContext, SecretRedactor};
use toolwright_testkit::{FakeApprover, FakeProvider};

use crate::fixture::{Fixture, call, fixture};

/// The terms of calls of that tool, where `always` is said to every question.
fn terms(fixture: &Fixture, trust: HintTrust, policy: Value) -> (RunContext, Arc<FakeApprover>) {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let id = ToolId::parse("t:shell@1.0.0").expect("id");
    let mut definition = ToolDefinition::new(id, "Claims to be mild.", Some(schema));
    definition.effects = Effects { destructive: false, ..Effects::UNKNOWN };
    let tools = vec![RegisteredTool::own(definition).expect("registers")];
    let provider =
        Arc::new(FakeProvider::new("mild", ProviderKind::Native, tools).with(|provider| provider.trust = trust));
    let approver = Arc::new(FakeApprover::saying(ApprovalDecision::Always));
    let run = RunContext {
        policy: Arc::new(serde_json::from_value(policy).expect("policy")),
        approver: Arc::clone(&approver) as _,
        ..fixture.on(Snapshot::build(&[provider.listing()]))
    };
    (run, approver)
}

#[tokio::test]
async fn always_approval_uses_trusted_effects_only() {
    let plain = json!({"profile": "ask"});
    let noted = json!({"profile": "ask", "tools": [{"tool": "t:shell", "effects": {"destructive": false}}]});
    for (trust, policy, asked) in
        [(HintTrust::Foreign, &plain, 2), (HintTrust::Trusted, &plain, 1), (HintTrust::Foreign, &noted, 1)]
    {
        let fixture = fixture(|_| ()).await;
        let (run, approver) = terms(&fixture, trust, policy.clone());
        for n in [1, 1, 2] {
            let outcomes = fixture.executor.run_calls(vec![call("c", "shell", json!({"n": n}))], &run).await;
            assert!(outcomes[0].ok, "{}", outcomes[0].text());
        }
        assert_eq!(approver.count(), asked, "{trust:?} {policy}");
    }
}

#[tokio::test]
async fn reported_reasons_have_no_secrets() {
    let fixture = fixture(|options| {
        let redactor = Arc::new(SecretRedactor::default());
        options.services = Arc::new(Services { redactor, ..(*options.services).clone() });
    })
    .await;
    let mut events = fixture.events.subscribe();
    let rule = json!({"effect": "ask", "reason": "it holds AKIAQ3EGRJ7XK2V5PWNL"});
    let (run, _) = terms(&fixture, HintTrust::Foreign, json!({"rules": [rule]}));
    fixture.executor.run_calls(vec![call("c", "shell", json!({}))], &run).await;
    let reported =
        std::iter::from_fn(|| events.try_recv().ok().map(Arc::unwrap_or_clone)).find_map(|event| match event {
            Event::ApprovalRequested { reason, .. } => Some(reason),
            _ => None,
        });
    assert_eq!(reported.as_deref(), Some("it holds [secret]"));
}

#[tokio::test]
async fn a_protocol_method_is_reported_by_name() {
    let fixture = fixture(|_| ()).await;
    let mut events = fixture.events.subscribe();
    let id = ToolId::foreign("t", "resources-read").expect("id");
    let definition = ToolDefinition::new(id, "Reads a resource.", Some(json!({"type": "object"})));
    let tool = RegisteredTool::foreign(definition, "resources/read");
    let methods = FakeProvider::new("files", ProviderKind::Mcp, vec![tool])
        .answering(|_| ToolOutput::default().with_extra(METHOD_RESULT, json!({"contents": ["é"]})));
    let methods = Arc::new(methods.with(|provider| provider.lists_methods = true));
    let run = fixture.on(Snapshot::build(&[methods.listing()]));
    let read = call("c", "resources_read", json!({"uri": "a://1"}));
    let outcomes = fixture.executor.run_calls(vec![read], &run).await;
    assert!(outcomes[0].ok, "{}", outcomes[0].text());
    let reported =
        std::iter::from_fn(|| events.try_recv().ok().map(Arc::unwrap_or_clone)).find_map(|event| match event {
            Event::ToolFinished { method, characters_out, .. } => Some((method?, characters_out)),
            _ => None,
        });
    let characters = r#"{"contents":["é"]}"#.chars().count();
    assert_eq!(reported, Some(("resources/read".into(), characters)));
}
