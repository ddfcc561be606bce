//! `shell:bash`: one command line.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;

use super::runner::{CommandSpec, Runner, longest};
use super::session::{BASH, Sessions, next_step};
use super::{common_properties, folder_of, program_files, sandbox_note};
use crate::builtin::{define, parse};

const MANUAL: &str = "\
Runs one command line with `bash -c`, by default in the root of the workspace. Standard output and standard error come back as one
text. An exit code other than 0 is an error that has the output too.

- `timeout_ms` ends the command and all that it started. Nothing that it started outlives it.
- Nothing can be typed in: standard input is empty.
- `session` names a session. The working directory and the exported variables at the end of a call are there again in the next
  call of that session; functions, aliases and processes are not. A command that is killed, or that replaces the shell by
  `exec`, leaves the session as it was. Sessions end with the process of Toolwright.
- Where the operator has made the tool `stateful`, a call with a session waits after its command: `job__send` sends the next
  command as `input`, and `exit` ends it.
- Long output is stored and named by a handle; `output__read` and `output__grep` read it.";

pub(super) struct Bash {
    runner: Runner,
    sessions: Sessions,
}

#[derive(Deserialize)]
struct Arguments {
    command: String,
    timeout_ms: u64,
    cwd: Option<String>,
    session: Option<String>,
}

impl Bash {
    pub(super) fn new(runner: Runner) -> Self {
        Self { runner, sessions: Sessions::default() }
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
             Each call is a new shell: directory changes and variables do not carry over, unless the calls name a \
             `session`. Nothing can be typed \
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
        definition.documentation = Some(MANUAL.into());
        definition.examples = vec![
            json!({"command": "git status --short"}),
            json!({"command": "cargo test 2>&1 | tail -n 40", "timeout_ms": 300_000}),
            json!({"command": "cd web && export NODE_ENV=test", "session": "web"}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { mut command, timeout_ms, cwd, session } = parse(arguments)?;
        loop {
            let session = session.clone().map(|name| self.sessions.open(name, context));
            let is_session = session.is_some();
            let (arguments, directory) = if is_session {
                let folder = folder_of(cwd.as_deref(), context);
                (vec!["-c".to_owned(), BASH.to_owned(), "bash".to_owned(), command, folder], None)
            } else {
                (vec!["-c".to_owned(), command], cwd.clone())
            };
            let start = CommandSpec {
                program: "bash".into(),
                arguments,
                code_name: "command",
                directory,
                stdin: None,
                timeout_ms,
                readable: Vec::new(),
                session,
            };
            let output = self.runner.run(start, context).await?;
            match next_step(is_session, &output, context).await? {
                Some(next) => command = next,
                None => return Ok(output),
            }
        }
    }

    fn files(&self, _arguments: &Value, session: &Session) -> FileUse {
        program_files(session)
    }
}
