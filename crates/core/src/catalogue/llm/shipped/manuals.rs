//! The manuals of the shipped tools, which `job__info` returns, and examples of their arguments.

use serde_json::{Value, json};

/// The manual of the tool of this name, and arguments for it.
pub(super) fn of(name: &str) -> (Option<&'static str>, Vec<Value>) {
    let text = MANUALS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
    let examples = match name {
        "summarize" => vec![
            json!({"content": "The council met on Monday and moved the market to Friday.", "max_length": 20}),
            json!({"content": "The pumps arrive on 3 May and cost 900 euros.", "focus": "the price"}),
        ],
        "classify" => {
            vec![json!({"request": "I want my money back.", "suggestions": ["complaint", "refund", "praise"]})]
        }
        "score" => vec![
            json!({"task": "Name the capital of Norway.", "answer": "Oslo."}),
            json!({"task": "Greet the reader.", "answer": "Hello!", "criteria": ["politeness", "brevity"]}),
        ],
        "structure" => vec![json!({
            "request": "Two tickets to Bergen, please.",
            "schema": {
                "type": "object",
                "properties": {"count": {"type": "integer"}, "to": {"type": "string"}},
                "required": ["count", "to"],
            },
        })],
        "clarify" => vec![json!({
            "prompt": "Book me a room in Oslo.",
            "requirements": ["the day of arrival", "the number of nights"],
        })],
        "fact-extract" => vec![json!({"text": "Ann moves to Bergen on 3 May.", "max_facts": 5})],
        _ => Vec::new(),
    };
    (text, examples)
}

const MANUALS: [(&str, &str); 6] = [
    (
        "summarize",
        "\
Asks a model for a summary of `content` and for its main statements. Nothing is added to what the text says.

- `max_length` limits the words of the summary; a summary that is much longer comes with a warning.
- `focus` says what the reader asks about above all. If the text says nothing of it, the summary says so.
- `max_tokens` limits the model's whole answer; an answer that reaches it fails.

Give it the text itself, not a path.",
    ),
    (
        "classify",
        "\
Asks a model which one of `suggestions` a request asks for. It always chooses one, also where none fits well: add an option like
\"none of these\", and look at `confidence`, which is below 0.5 for a guess. `selected_index` counts from 0.",
    ),
    (
        "score",
        "\
Asks a model how well `answer` does `task`, from 0 to 100 for each of `criteria`; `score` is the mean, which Toolwright computes. The
usual criteria are accuracy, completeness and clarity. `feedback` names the faults first. The model sees only what the call gives:
put sources and rules that matter into `task`.",
    ),
    (
        "structure",
        "\
Asks a model to fill in a form from a text. `schema` is a JSON Schema with `type: object`; its references stay inside it. The result is
checked against the schema, and the model is asked once more if it does not fit. What the text does not say is left out where the
schema allows that: make such properties optional.",
    ),
    (
        "clarify",
        "\
Asks a model which of `requirements` a prompt does not meet yet. Write each requirement as one thing that the prompt must say.
`missing_requirements` repeats their words, `clarification_questions` has a question for each, and `satisfied` is true if none is
missing.",
    ),
    (
        "fact-extract",
        "\
Asks a model for the facts that `text` states, `max_facts` at most (20). Each has a `key` in snake_case, a `value` that can be
understood alone, a `category`, and the `quote` that says it; a quote that the text does not contain is left out. A list that the
model could not finish comes with `cut` and a warning: give it a shorter text, or fewer facts.",
    ),
];
