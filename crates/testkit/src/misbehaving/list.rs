//! The tool list, depending on the flags.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::Misbehaving;

/// The annotations of a tool about its effects.
#[derive(Clone, Copy)]
enum Hint {
    ReadOnly,
    /// No annotation: the client must assume the worst.
    None,
}

fn tool(name: &str, description: &str, hint: Hint, properties: &Value) -> Value {
    let mut tool = json!({
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties},
    });
    if let Hint::ReadOnly = hint {
        tool["annotations"] = json!({"readOnlyHint": true});
    }
    tool
}

pub(super) fn tools(server: &Misbehaving) -> Value {
    let milliseconds = || json!({"ms": {"type": "integer", "minimum": 0}});
    let bytes = || json!({"bytes": {"type": "integer", "minimum": 0}});
    let echo = || {
        let mut echo = tool("echo", &server.options.describe, Hint::ReadOnly, &json!({"text": {"type": "string"}}));
        echo["inputSchema"]["required"] = json!(["text"]);
        echo
    };
    let mut lie = tool("lie", "Promises an integer and returns a string", Hint::ReadOnly, &json!({}));
    lie["outputSchema"] = json!({
        "type": "object",
        "properties": {"value": {"type": "integer"}},
        "required": ["value"],
    });
    let uncompilable = tool(
        "uncompilable",
        "Has a schema that no validator takes; answers like echo",
        Hint::ReadOnly,
        &json!({"text": {"type": "strnig", "pattern": "("}}),
    );
    let counter = json!({
        "label": {"type": "string"},
        "then": {"type": "string", "enum": ["answer", "die", "hang"], "default": "answer"},
    });
    let mut tools = vec![
        echo(),
        tool("slow", "Answers after `ms`, with progress on the way", Hint::ReadOnly, &milliseconds()),
        tool("die", "Ends the process in the middle of the call", Hint::None, &json!({})),
        tool("hang", "Never answers", Hint::None, &json!({})),
        tool("flood", "Returns so many bytes of lines (default 1 MiB)", Hint::ReadOnly, &bytes()),
        tool("huge_line", "Returns so many bytes without a line break (default 17 MiB)", Hint::ReadOnly, &bytes()),
        tool("garbage", "Sends what is no protocol, then answers", Hint::ReadOnly, &json!({})),
        tool(
            "stderr_flood",
            "Writes so many bytes to standard error (default 4 MiB), then answers",
            Hint::ReadOnly,
            &bytes(),
        ),
        lie,
        uncompilable,
        tool("change_list", "Adds a tool to this list", Hint::None, &json!({})),
        tool("ignore_cancel", "Answers after `ms`, cancelled or not", Hint::None, &milliseconds()),
        tool("observe_cancel", "Answers after `ms`, or not at all once cancelled", Hint::None, &milliseconds()),
        tool("cancelled_ids", "Returns the ids of the requests that were cancelled", Hint::ReadOnly, &json!({})),
        tool("counter", "Adds a line to the counter file; then answers, dies or hangs", Hint::None, &counter),
        tool(
            "log_in",
            "Refuses so many calls (default 1) until a page is opened, with error -32042; then answers",
            Hint::ReadOnly,
            &json!({"refusals": {"type": "integer", "minimum": 0}}),
        ),
        tool(
            "spawn_child",
            "Starts a process in a session of its own that sleeps for ten minutes",
            Hint::None,
            &json!({}),
        ),
    ];
    tools.extend((1..=server.added.load(Ordering::Relaxed)).map(|n| plain(&format!("added_{n}"))));
    tools.extend((1..=server.options.many).map(|n| plain(&format!("many_{n:04}"))));
    if server.options.dup_names {
        tools.push(echo());
    }
    if server.options.bad_tool {
        tools.insert(1, json!({"name": 7, "description": ["malformed"], "inputSchema": "none"}));
    }
    json!({"tools": tools})
}

fn plain(name: &str) -> Value {
    tool(name, &format!("Answers with its name, {name}"), Hint::ReadOnly, &json!({}))
}
