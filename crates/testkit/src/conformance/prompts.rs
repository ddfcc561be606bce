//! Prompts, and completions of their arguments and of the resource template's arguments.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{Fixture, blocks, dialogue, page, questions};
use crate::wire::{Answer, Exchange, Request, RpcError};

pub(super) fn list(fixture: &Fixture, request: &Request) -> Answer {
    let argument = |name: &str| json!({"name": name, "description": format!("The {name}"), "required": true});
    let prompt = |name: &str, description: &str, arguments: &[&str]| {
        let mut prompt = json!({"name": name, "description": description});
        if !arguments.is_empty() {
            prompt["arguments"] = arguments.iter().map(|name| argument(name)).collect();
        }
        prompt
    };
    let mut prompts = vec![
        prompt("test_simple_prompt", "A constant", &[]),
        prompt("test_prompt_with_arguments", "Says its arguments", &["arg1", "arg2"]),
        prompt("test_prompt_with_embedded_resource", "Embeds a resource", &["resourceUri"]),
        prompt("test_prompt_with_image", "Has an image", &[]),
        prompt("test_input_required_result_prompt", "Asks the user for a context", &[]),
    ];
    if fixture.extra_prompt.load(Ordering::Relaxed) {
        prompts.push(prompt("test_extra_prompt", "Comes and goes", &[]));
    }
    page(request, "prompts", &prompts)
}

pub(super) async fn get(fixture: &Fixture, request: &Request, exchange: &Exchange) -> Answer {
    let argument = |key: &str| match request.argument(key) {
        Some(Value::String(text)) => Ok(text.as_str()),
        _ => Err(RpcError::invalid(format!("the argument {key} is a required string"))),
    };
    match request.text("name") {
        "test_simple_prompt" => messages(&[blocks::text("This is a simple prompt for testing.")]),
        "test_prompt_with_arguments" => match (argument("arg1"), argument("arg2")) {
            (Ok(one), Ok(two)) => {
                messages(&[blocks::text(&format!("Prompt with arguments: arg1='{one}', arg2='{two}'"))])
            }
            (Err(error), _) | (_, Err(error)) => error.into(),
        },
        "test_prompt_with_embedded_resource" => match argument("resourceUri") {
            Ok(uri) => messages(&[
                blocks::resource(uri, "text/plain", "Embedded resource content for testing."),
                blocks::text("Please process the embedded resource above."),
            ]),
            Err(error) => error.into(),
        },
        "test_prompt_with_image" => messages(&[blocks::image(), blocks::text("Please analyze the image above.")]),
        "test_input_required_result_prompt" => {
            dialogue::hold(&fixture.seal, request, exchange, questions::prompt).await
        }
        "test_extra_prompt" if fixture.extra_prompt.load(Ordering::Relaxed) => {
            messages(&[blocks::text("Here for now.")])
        }
        name => RpcError::invalid(format!("unknown prompt: {name}")).into(),
    }
}

fn messages(blocks: &[Value]) -> Answer {
    let messages: Vec<_> = blocks.iter().map(|content| json!({"role": "user", "content": content})).collect();
    Answer::Result(json!({"messages": messages}))
}

/// Completes an argument with the values that begin with the text so far.
pub(super) fn complete(request: &Request) -> Answer {
    let text = |outer: &str, inner: &str| {
        request.params.get(outer).and_then(|value| value.get(inner)).and_then(Value::as_str).unwrap_or_default()
    };
    let source = match text("ref", "type") {
        "ref/prompt" => text("ref", "name"),
        "ref/resource" => text("ref", "uri"),
        other => return RpcError::invalid(format!("no such kind of reference: {other:?}")).into(),
    };
    let all: &[&str] = match (source, text("argument", "name")) {
        ("test_prompt_with_arguments", "arg1") => &["paris", "park", "party", "test", "testing"],
        ("test_prompt_with_arguments", "arg2") => &["hello", "world"],
        ("test_prompt_with_embedded_resource", "resourceUri") => &["test://static-text", "test://watched-resource"],
        ("test://template/{id}/data", "id") => &["1", "12", "123"],
        _ => return RpcError::invalid("no such reference or argument").into(),
    };
    let written = text("argument", "value");
    let values: Vec<_> = all.iter().filter(|value| value.starts_with(written)).collect();
    Answer::Result(json!({"completion": {"values": values, "total": values.len(), "hasMore": false}}))
}
