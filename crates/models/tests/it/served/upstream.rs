//! What a model's server is sent for a request that was read: the client's limit, and its thinking.

use serde_json::{Value, json};
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{ModelClient, RequestProgress};
use toolwright_models::served::{ResponseHead, ResponseWriter, ServedApi, ServedApi::*, losses};
use toolwright_models::{Endpoint, Endpoints, HttpModelClient, ModelOverrides};
use toolwright_testkit::FakeModelEvents;
use toolwright_testkit::model_server::{Script, ScriptedModel, WireApi};

use super::{least, read};

fn with(api: ServedApi, fields: &Value) -> Value {
    let mut body = least(api);
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The body that the server of `model` gets for the least request with these fields.
async fn sent(api: ServedApi, fields: &Value, model: &str, overrides: &Value) -> Value {
    sent_with_losses(api, fields, model, overrides).await.0
}

/// [`sent`], and the names of what is lost.
async fn sent_with_losses(
    api: ServedApi,
    fields: &Value,
    model: &str,
    overrides: &Value,
) -> (Value, Vec<&'static str>) {
    let wire = match api {
        Chat => WireApi::OpenAi,
        Responses => WireApi::Responses,
        Messages => WireApi::Anthropic,
    };
    let server = ScriptedModel::start(Script::echo()).await.unwrap();
    let mut endpoints = Endpoints::default();
    endpoints.insert(Endpoint::new("p", api.api(), server.base_url(wire)).with_key("k"));
    let overrides: ModelOverrides = serde_json::from_value(overrides.clone()).unwrap();
    endpoints.set_overrides("p", overrides);
    let served = read(api, &with(api, fields)).unwrap();
    let (client, model) = (HttpModelClient::new(endpoints), format!("p/{model}"));
    let lost = FakeModelEvents::default();
    client.complete(&model, &served.request, &lost, &Cancel::new()).await.unwrap();
    let lost = lost.traffic().into_iter().filter_map(|traffic| match traffic {
        RequestProgress::Lost(parts) => Some(parts),
        _ => None,
    });
    let mut lost: Vec<_> = lost.flatten().collect();
    lost.extend(losses(api, Some(api.api()), &served));
    (server.requests().remove(0).body, lost)
}

#[tokio::test]
async fn limits_of_clients_cover_reasoning() {
    let high = json!({"effort": "high"});
    for (api, fields, model, key, expect) in [
        (Chat, json!({"max_completion_tokens": 77, "reasoning_effort": "high"}), "m", "max_completion_tokens", 77),
        (Chat, json!({"max_tokens": 100}), "gpt-5", "max_completion_tokens", 100),
        (Responses, json!({"max_output_tokens": 77, "reasoning": high}), "m", "max_output_tokens", 77),
        (Messages, json!({"max_tokens": 100}), "claude-opus-5", "max_tokens", 100),
        (Messages, json!({"max_tokens": 100, "output_config": high}), "claude-opus-4-8", "max_tokens", 100),
    ] {
        let body = sent(api, &fields, model, &json!({})).await;
        assert_eq!(body[key], json!(expect), "{api} {model} {fields}");
        let capped = sent(api, &fields, model, &json!({"max_output": 50, "effort": "high"})).await;
        assert_eq!(capped[key], json!(50), "{api} {model} {fields}");
    }
    let unlimited = sent(Chat, &json!({"reasoning_effort": "high"}), "gpt-5", &json!({})).await;
    assert_eq!(unlimited.get("max_completion_tokens"), None);
}

#[tokio::test]
async fn thinking_of_clients_reaches_claude_as_asked() {
    let enabled = |budget: u32| json!({"type": "enabled", "budget_tokens": budget});
    let adaptive = json!({"type": "adaptive"});
    let fields = |most: u32, thinking: &Value| json!({"max_tokens": most, "thinking": thinking});
    let check = async |fields: Value, model: &str, thinking: Value, effort: Value| {
        let body = sent(Messages, &fields, model, &json!({})).await;
        let found = json!([body["max_tokens"], body["thinking"], body["output_config"]["effort"]]);
        assert_eq!(found, json!([fields["max_tokens"], thinking, effort]), "{model} {fields}");
    };
    let null = Value::Null;
    for (model, most, budget) in [
        ("claude-opus-4-1", 32_000, 31_999),
        ("claude-opus-4-1", 21_000, 16_000),
        ("claude-sonnet-4-5", 64_000, 63_000),
        ("claude-sonnet-4-5", 2000, 1024),
        ("claude-opus-4-6", 8000, 5000),
    ] {
        check(fields(most, &enabled(budget)), model, enabled(budget), null.clone()).await;
    }
    for model in ["claude-opus-4-6", "claude-opus-4-7", "claude-opus-4-8", "claude-opus-5"] {
        check(fields(8000, &adaptive), model, adaptive.clone(), null.clone()).await;
        let mut with_effort = fields(8000, &adaptive);
        with_effort["output_config"] = json!({"effort": "low"});
        check(with_effort, model, adaptive.clone(), json!("low")).await;
        let effort = json!({"max_tokens": 8000, "output_config": {"effort": "low"}});
        check(effort, model, null.clone(), json!("low")).await;
    }
    // It takes no budget.
    check(fields(8000, &enabled(5000)), "claude-opus-4-8", adaptive, null.clone()).await;
    let mut off = fields(8000, &json!({"type": "disabled"}));
    check(off.clone(), "claude-opus-4-8", null.clone(), null.clone()).await;
    off["output_config"] = json!({"effort": "high"});
    check(off.clone(), "claude-opus-4-8", null, json!("high")).await;
    check(off, "claude-opus-5", json!({"type": "disabled"}), json!("high")).await;
}

#[test]
fn invalid_budgets_are_refused() {
    for (most, thinking, refused) in [
        (2000, json!({"type": "enabled", "budget_tokens": 10}), true),
        (2000, json!({"type": "enabled", "budget_tokens": 1023}), true),
        (2000, json!({"type": "enabled", "budget_tokens": 2000}), true),
        (2000, json!({"type": "enabled"}), true),
        (2000, json!({"type": "enabled", "budget_tokens": 1999}), false),
    ] {
        let found = read(Messages, &with(Messages, &json!({"max_tokens": most, "thinking": thinking}))).err();
        assert_eq!(found.as_deref(), refused.then_some("thinking.budget_tokens"), "{most} {thinking}");
    }
}

#[tokio::test]
async fn unsent_settings_are_listed_as_losses() {
    let sampling = json!({"temperature": 0.5, "top_p": 0.5, "stop": ["x"], "seed": 1});
    let sampled = json!({"max_tokens": 8000, "temperature": 0.5, "top_p": 0.5, "top_k": 5});
    let with = |fields: &Value, key: &str, value: Value| {
        let mut fields = fields.clone();
        fields[key] = value;
        fields
    };
    let enabled = json!({"type": "enabled", "budget_tokens": 5000});
    let thinking = json!({"max_tokens": 8000, "thinking": enabled});
    let tool = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let forced = with(&with(&thinking, "tools", tool), "tool_choice", json!({"type": "any"}));
    let text = |role: &str| json!({"role": role, "content": "hi"});
    let amid = json!({"messages": [text("user"), text("assistant"), text("system"), text("user")]});
    let first = json!({"messages": [text("system"), text("user")]});
    for (api, fields, model, overrides, keys, expect) in [
        (Chat, &sampling, "gpt-5", json!({}), "temperature top_p stop", "temperature top_p stop"),
        (Chat, &sampling, "gpt-4.1", json!({}), "", ""),
        (Messages, &sampled, "claude-opus-4-1", json!({}), "top_p", "top_p"),
        (Messages, &sampled, "claude-opus-4-8", json!({}), "temperature top_p top_k", "temperature top_p top_k"),
        (Messages, &sampled, "claude-sonnet-4-5", json!({"effort": "high"}), "temperature", "temperature top_p top_k"),
        (
            Messages,
            &with(&thinking, "temperature", json!(1)),
            "claude-sonnet-4-5",
            json!({}),
            "temperature",
            "temperature",
        ),
        (Messages, &thinking, "claude-sonnet-4-5", json!({}), "", ""),
        (Messages, &thinking, "claude-opus-4-8", json!({}), "", "thinking.budget_tokens"),
        (Messages, &forced, "claude-sonnet-4-5", json!({}), "thinking", "thinking thinking.budget_tokens"),
        (
            Messages,
            &thinking,
            "claude-sonnet-4-5",
            json!({"max_output": 4000}),
            "",
            "max_tokens thinking.budget_tokens",
        ),
        (Chat, &json!({"reasoning_effort": "high"}), "gpt-4.1", json!({}), "reasoning_effort", "reasoning_effort"),
        // What only the configuration adds is no loss.
        (Chat, &json!({}), "gpt-5", json!({"temperature": 0.5, "top_k": 4}), "temperature top_k", ""),
        (Chat, &amid, "m", json!({}), "", "place of system messages"),
        (Messages, &amid, "m", json!({}), "", "place of system messages"),
        (Chat, &first, "m", json!({}), "", ""),
    ] {
        let (body, lost) = sent_with_losses(api, fields, model, &overrides).await;
        assert_eq!(lost.join(" "), expect, "{model} {fields} {overrides}");
        for key in keys.split_whitespace() {
            assert_eq!(body.get(key), None, "{model} {fields} {overrides}");
        }
    }
}

#[test]
fn moved_system_messages_of_responses_are_lost() {
    let message = |role: &str| json!({"role": role, "content": "hi"});
    for (fields, expect) in [
        (json!({"input": [message("developer"), message("user")]}), false),
        (json!({"input": [message("user"), message("developer"), message("user")]}), true),
        (json!({"input": [message("developer"), message("user")], "previous_response_id": "resp_1"}), true),
        (json!({"instructions": "Be brief.", "previous_response_id": "resp_1"}), false),
    ] {
        assert_eq!(read(Responses, &with(Responses, &fields)).unwrap().moves_system, expect, "{fields}");
    }
}

#[test]
fn responses_do_not_repeat_lost_sampling() {
    let served = read(Responses, &with(Responses, &json!({"temperature": 0.5, "top_p": 0.5}))).unwrap();
    let mut writer = ResponseWriter::new(Responses, ResponseHead { echo: served.echo, ..ResponseHead::default() });
    writer.forget(&["temperature"]);
    let body = writer.body();
    assert_eq!((&body["temperature"], &body["top_p"]), (&json!(1.0), &json!(0.5)));
}
