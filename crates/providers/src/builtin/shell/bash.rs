//! `shell:bash`: one command line.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::tool::Tool;

use super::runner::{Runner, Start, longest};
use super::{common_properties, sandbox_note};
use crate::builtin::{define, parse};

pub(super) struct Bash {
    runner: Runner,
}

#[derive(Deserialize)]
struct Arguments {
    command: String,
    timeout_ms: u64,
    cwd: Option<String>,
}

impl Bash {
    pub(super) fn new(runner: Runner) -> Self {
        Self { runner }
    }
}

#[async_trait]
impl Tool for Bash {
    fn definition(&self) -> ToolDefinition {
        let mut properties = Map::new();
        let command = json!({"type": "string", "minLength": 1, "description": "The command line, as for `bash -c`."});
        properties.insert("command".into(), command);
        properties.extend(common_properties().map(|(name, property)| (name.to_owned(), property)));
        let description = format!(
            "Runs a command with bash in the workspace root and returns what it prints: standard output and \
             standard error as one text, in the order of writing. A failed command also reports its exit code. \
             Each call is a new shell: directory changes and variables do not carry over. Nothing can be typed \
             in, so use flags that do not ask. What the command leaves running in the background is stopped \
             when it ends. Prefer the fs tools for reading, searching and editing files.{}",
            sandbox_note(self.runner.profile())
        );
        let mut definition = define(
            "shell:bash@1.0.0",
            "Run a shell command",
            &description,
            Effects::UNKNOWN,
            Value::Object(properties),
            &["command"],
        );
        definition.concurrency = Concurrency::Exclusive;
        definition.body_argument = Some("command".into());
        definition.sandbox_profile = Some(self.runner.profile());
        definition.timeout = Some(longest());
        definition.examples = vec![
            json!({"command": "git status --short"}),
            json!({"command": "cargo test 2>&1 | tail -n 40", "timeout_ms": 300_000}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { command, timeout_ms, cwd } = parse(arguments)?;
        let start = Start {
            program: "bash".into(),
            arguments: vec!["-c".to_owned(), command],
            code_name: "command",
            directory: cwd,
            stdin: None,
            timeout_ms,
            readable: Vec::new(),
        };
        self.runner.run(start, context).await
    }
}
