//! `shell:python`: one program.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::tool::Tool;

use super::interpreter::Interpreter;
use super::runner::{Runner, Start, longest};
use super::{common_properties, sandbox_note};
use crate::builtin::{define, parse};

/// Isolated: neither variables (`PYTHONPATH`) nor files beside the code (a `json.py` in the workspace)
/// decide what `import` means. Unbuffered: what was printed is there even if the program is killed.
/// UTF-8, whatever the locale. No `__pycache__` in the workspace.
const FLAGS: [&str; 6] = ["-I", "-u", "-B", "-X", "utf8", "-c"];

pub(super) struct Python {
    runner: Runner,
    /// Looked for at the first call; once more at the next one, where none was found.
    interpreter: OnceCell<Interpreter>,
}

#[derive(Deserialize)]
struct Arguments {
    code: String,
    #[serde(default)]
    args: Vec<String>,
    stdin: Option<String>,
    timeout_ms: u64,
    cwd: Option<String>,
}

impl Python {
    pub(super) fn new(runner: Runner) -> Self {
        Self { runner, interpreter: OnceCell::new() }
    }
}

#[async_trait]
impl Tool for Python {
    fn definition(&self) -> ToolDefinition {
        let own = json!({
            "code": {"type": "string", "minLength": 1, "description": "The program, up to 128 KiB. Print what is to come back."},
            "args": {"type": "array", "items": {"type": "string"}, "description": "What `sys.argv` holds after its first item."},
            "stdin": {"type": "string", "description": "What the program reads from standard input. Nothing by default."},
        });
        let mut properties: Map<String, Value> = own.as_object().cloned().unwrap_or_default();
        properties.extend(common_properties().map(|(name, property)| (name.to_owned(), property)));
        let description = format!(
            "Runs a Python 3 program in the workspace root and returns what it prints: standard output and standard \
             error as one text, in the order of writing. A failed program also reports its exit code. Each call is a \
             new process: variables and imports do not carry over. The standard library and installed packages can \
             be imported; for modules of the workspace put their folder on `sys.path` first.{}",
            sandbox_note(self.runner.profile())
        );
        let mut definition = define(
            "shell:python@1.0.0",
            "Run Python code",
            &description,
            Effects::UNKNOWN,
            Value::Object(properties),
            &["code"],
        );
        definition.concurrency = Concurrency::Exclusive;
        definition.body_argument = Some("code".into());
        definition.sandbox_profile = Some(self.runner.profile());
        definition.timeout = Some(longest());
        definition.examples = vec![
            json!({"code": "import math\nprint(math.comb(52, 5))"}),
            json!({"code": "import json, sys\nprint(len(json.load(open(sys.argv[1]))))", "args": ["data.json"]}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { code, args, stdin, timeout_ms, cwd } = parse(arguments)?;
        let find = || Interpreter::find(self.runner.withheld_env(), &context.session.root);
        let interpreter = self.interpreter.get_or_try_init(find).await?;
        let mut line: Vec<String> = FLAGS.map(str::to_owned).to_vec();
        line.push(code);
        line.extend(args);
        let start = Start {
            program: interpreter.program.clone().into(),
            arguments: line,
            code_name: "code",
            directory: cwd,
            stdin,
            timeout_ms,
            readable: interpreter.folders.clone(),
        };
        self.runner.run(start, context).await
    }
}
