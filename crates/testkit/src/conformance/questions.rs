//! Scripts of the tools and prompts that need input of the client.

use serde_json::{Value, json};

use super::blocks;
use super::dialogue::{Form, Round, Script, Step};
use crate::wire::Answer;

/// Returns the script of a tool; `None` for tools that ask nothing.
pub(super) fn script(tool: &str) -> Option<Script> {
    Some(match tool {
        "test_elicitation" => contact,
        "test_sampling" => sample,
        "test_elicitation_sep1034_defaults" => defaults,
        "test_elicitation_sep1330_enums" => enums,
        "test_streaming_elicitation" | "test_input_required_result_elicitation" => greeting,
        "test_input_required_result_sampling" => capital,
        "test_input_required_result_list_roots" => roots,
        "test_input_required_result_request_state" | "test_input_required_result_tampered_state" => confirmation,
        "test_input_required_result_multiple_inputs" => everything,
        "test_input_required_result_multi_round" => steps,
        "test_input_required_result_capabilities" => whatever,
        "confirm_delete" => deletion,
        "multi_input" => two_forms,
        _ => return None,
    })
}

pub(super) fn form(message: &str, properties: &Value, required: &[&str]) -> Value {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    json!({"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}})
}

pub(super) fn name_form() -> Value {
    form("What is your name?", &json!({"name": {"type": "string"}}), &["name"])
}

fn sampling(prompt: &str, max_tokens: u64) -> Value {
    let message = json!({"role": "user", "content": blocks::text(prompt)});
    json!({"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": max_tokens}})
}

fn roots_list() -> Value {
    json!({"method": "roots/list", "params": {}})
}

fn argument<'a>(round: &'a Round<'_>, key: &str) -> &'a str {
    round.request.argument(key).and_then(Value::as_str).unwrap_or_default()
}

fn field<'a>(content: &'a Value, key: &str) -> &'a str {
    content.get(key).and_then(Value::as_str).unwrap_or("somebody")
}

/// Describes the result of a form in the words of the suite's scenarios.
fn outcome(round: &Round<'_>, key: &str) -> String {
    let answer = round.answers.get(key).unwrap_or(&Value::Null);
    let (action, content) = (answer.get("action").unwrap_or(&Value::Null), answer.get("content"));
    format!("action={}, content={}", action.as_str().unwrap_or("?"), content.unwrap_or(&json!({})))
}

fn contact(round: &Round<'_>) -> Step {
    match round.form("contact") {
        Some(_) => Step::text(format!("User response: {}", outcome(round, "contact"))),
        None => {
            let fields = json!({
                "username": {"type": "string", "description": "User's response"},
                "email": {"type": "string", "description": "User's email address"},
            });
            Step::ask([("contact", form(argument(round, "message"), &fields, &["username", "email"]))])
        }
    }
}

fn sample(round: &Round<'_>) -> Step {
    match round.answers.get("sample") {
        Some(answer) => Step::text(format!("LLM response: {}", spoken(answer))),
        None => Step::ask([("sample", sampling(argument(round, "prompt"), 100))]),
    }
}

/// Returns the text of a sampling result, whose content is a block or a list of blocks.
fn spoken(answer: &Value) -> &str {
    let content = answer.get("content").unwrap_or(&Value::Null);
    let block = content.get(0).unwrap_or(content);
    block.get("text").and_then(Value::as_str).unwrap_or("nothing")
}

fn defaults(round: &Round<'_>) -> Step {
    match round.form("profile") {
        Some(_) => Step::text(format!("Elicitation completed: {}", outcome(round, "profile"))),
        None => {
            let fields = json!({
                "name": {"type": "string", "default": "John Doe"},
                "age": {"type": "integer", "default": 30},
                "score": {"type": "number", "default": 95.5},
                "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
                "verified": {"type": "boolean", "default": true},
            });
            Step::ask([("profile", form("Please check these values", &fields, &[]))])
        }
    }
}

fn enums(round: &Round<'_>) -> Step {
    match round.form("choices") {
        Some(_) => Step::text(format!("Elicitation completed: {}", outcome(round, "choices"))),
        None => {
            let titled = |noun: &str| {
                let option = |value: &str, rank: &str| json!({"const": value, "title": format!("{rank} {noun}")});
                json!([option("value1", "First"), option("value2", "Second"), option("value3", "Third")])
            };
            let plain = json!(["option1", "option2", "option3"]);
            let fields = json!({
                "untitledSingle": {"type": "string", "enum": plain},
                "titledSingle": {"type": "string", "oneOf": titled("Option")},
                "legacyEnum": {
                    "type": "string",
                    "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"],
                },
                "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
                "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
            });
            Step::ask([("choices", form("Please choose", &fields, &[]))])
        }
    }
}

fn greeting(round: &Round<'_>) -> Step {
    match round.form("user_name") {
        Some(Form::Accepted(content)) => Step::text(format!("Hello, {}!", field(content, "name"))),
        Some(Form::Refused) => Step::text("Hello, whoever you are!"),
        None => Step::ask([("user_name", name_form())]),
    }
}

fn capital(round: &Round<'_>) -> Step {
    match round.answers.get("capital_question") {
        Some(answer) => Step::text(format!("The model says: {}", spoken(answer))),
        None => Step::ask([("capital_question", sampling("What is the capital of France?", 100))]),
    }
}

fn roots(round: &Round<'_>) -> Step {
    match round.answers.get("client_roots") {
        Some(answer) => Step::text(format!("The roots are {}", answer.get("roots").unwrap_or(&Value::Null))),
        None => Step::ask([("client_roots", roots_list())]),
    }
}

/// Accepts an answer only with the state that was sent with the question.
fn confirmation(round: &Round<'_>) -> Step {
    let asked = round.state == Some(&json!("asked"));
    match round.form("confirm") {
        Some(Form::Accepted(content)) if asked => {
            Step::text(format!("state-ok, confirmed: {}", content.get("ok") == Some(&json!(true))))
        }
        Some(Form::Refused) if asked => Step::text("state-ok, not confirmed"),
        _ => {
            let question = form("Please confirm", &json!({"ok": {"type": "boolean"}}), &["ok"]);
            Step::ask([("confirm", question)]).with_state(json!("asked"))
        }
    }
}

fn everything(round: &Round<'_>) -> Step {
    let all = ["user_name", "greeting", "client_roots"].iter().all(|key| round.answers.contains_key(*key));
    if all {
        let name = match round.form("user_name") {
            Some(Form::Accepted(content)) => field(content, "name").to_owned(),
            _ => "nobody".to_owned(),
        };
        let (greeting, roots) = (spoken(&round.answers["greeting"]), &round.answers["client_roots"]["roots"]);
        return Step::text(format!("{name}: {greeting} {roots}"));
    }
    Step::ask([
        ("user_name", name_form()),
        ("greeting", sampling("Generate a greeting", 50)),
        ("client_roots", roots_list()),
    ])
    .with_state(json!("asked for everything"))
}

/// Carries the earlier answer in the state of each round.
fn steps(round: &Round<'_>) -> Step {
    let name = round.state.and_then(|state| state.get("name")).and_then(Value::as_str);
    match (name, round.form("step1"), round.form("step2")) {
        (_, Some(Form::Refused), _) | (_, _, Some(Form::Refused)) => Step::text("Somebody did not want to go on"),
        (Some(name), _, Some(Form::Accepted(content))) => {
            Step::text(format!("{name} likes {}", content.get("color").and_then(Value::as_str).unwrap_or("no color")))
        }
        (None, Some(Form::Accepted(content)), None) if round.state.is_some() => {
            let question =
                form("Step 2: What is your favorite color?", &json!({"color": {"type": "string"}}), &["color"]);
            Step::ask([("step2", question)]).with_state(json!({"name": field(content, "name")}))
        }
        _ => {
            let question = form("Step 1: What is your name?", &json!({"name": {"type": "string"}}), &["name"]);
            Step::ask([("step1", question)]).with_state(json!({}))
        }
    }
}

/// Asks two questions and accepts either answer, so that a client gets a question that it can answer.
fn whatever(round: &Round<'_>) -> Step {
    if let Some(answer) = round.answers.get("question") {
        return Step::text(format!("The model says: {}", spoken(answer)));
    }
    match round.form("user_name") {
        Some(_) => Step::text(format!("The user says: {}", outcome(round, "user_name"))),
        None => Step::ask([("user_name", name_form()), ("question", sampling("Who is the user?", 50))]),
    }
}

pub(super) fn deletion_form(file: &str) -> Value {
    let message = format!("Really delete {file}?");
    form(&message, &json!({"confirm": {"type": "boolean"}}), &["confirm"])
}

pub(super) fn deletion_text(file: &str, content: Option<&Value>) -> String {
    let confirmed = content.and_then(|content| content.get("confirm")) == Some(&json!(true));
    format!("{file} was {}deleted", if confirmed { "" } else { "not " })
}

fn deletion(round: &Round<'_>) -> Step {
    let file = argument(round, "filename");
    match round.form("confirm") {
        Some(Form::Accepted(content)) => Step::text(deletion_text(file, Some(content))),
        Some(Form::Refused) => Step::text(deletion_text(file, None)),
        None => Step::ask([("confirm", deletion_form(file))]),
    }
}

fn two_forms(round: &Round<'_>) -> Step {
    match (round.form("first"), round.form("second")) {
        (Some(_), Some(_)) => Step::text("Both questions are answered"),
        _ => Step::ask([("first", name_form()), ("second", deletion_form("everything"))]),
    }
}

/// Builds a prompt from the user's answer.
pub(super) fn prompt(round: &Round<'_>) -> Step {
    match round.form("user_context") {
        None => {
            let fields = json!({"context": {"type": "string"}});
            Step::ask([("user_context", form("What context should the prompt use?", &fields, &["context"]))])
        }
        Some(form) => {
            let context = match form {
                Form::Accepted(content) => content.get("context").and_then(Value::as_str).unwrap_or("nothing"),
                Form::Refused => "nothing",
            };
            let message = json!({"role": "user", "content": blocks::text(&format!("In the context of {context}"))});
            Step::Done(Answer::Result(json!({"messages": [message]})))
        }
    }
}

/// Returns the resource that needs a permission.
pub(super) fn guarded_resource(round: &Round<'_>) -> Step {
    let uri = round.request.text("uri");
    match round.form("permission") {
        None => {
            let fields = json!({"allow": {"type": "boolean"}});
            Step::ask([("permission", form("May the guarded resource be read?", &fields, &["allow"]))])
        }
        Some(Form::Accepted(content)) if content.get("allow") == Some(&json!(true)) => {
            let content = json!({"uri": uri, "mimeType": "text/plain", "text": "What was guarded."});
            Step::Done(Answer::Result(json!({"contents": [content]})))
        }
        Some(_) => {
            let content = json!({"uri": uri, "mimeType": "text/plain", "text": "Not allowed."});
            Step::Done(Answer::Result(json!({"contents": [content]})))
        }
    }
}
