//! `shell:python`: runs one program, with the interpreter and the folders that it needs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::sync::OnceCell;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;
use toolwright_sandbox::{SupervisedCommand, candidates};

use crate::builtin::shell::runner::{CommandSpec, Runner, longest};
use crate::builtin::shell::session::{PYTHON, Sessions, next_step};
use crate::builtin::shell::{common_properties, folder_of, program_files, sandbox_note};
use crate::builtin::{define, failed, parse};

/// Isolated: neither variables (`PYTHONPATH`) nor files beside the code (a `json.py` in the workspace) affect `import`.
/// Unbuffered: output is complete even if the program is killed. UTF-8 in every locale. No `__pycache__` in the
/// workspace.
const FLAGS: [&str; 6] = ["-I", "-u", "-B", "-X", "utf8", "-c"];

const MANUAL: &str = "\
Runs one Python 3 program, by default in the root of the workspace, and returns what it prints. Each call is a new process: print
what is to come back, and write to files what is needed later.

- The interpreter is isolated: modules of the workspace are found only once their folder is on `sys.path`.
- `args` is `sys.argv[1:]`, `stdin` is what the program reads.
- `timeout_ms` ends the program and all that it started.
- `session` names a session. The working directory and `os.environ` at the end of a call are there again in the next call of that
  session; variables of the program are not. A program that is killed leaves the session as it was.
- Where the operator has made the tool `stateful`, a call with a session waits after its program: `job__send` sends the next
  program as `input`, and `exit` ends it.";

pub(super) struct Python {
    runner: Runner,
    /// Found at the first call; searched again at the next if none was found.
    interpreter: OnceCell<Interpreter>,
    sessions: Sessions,
}

#[derive(Deserialize)]
struct Arguments {
    code: String,
    #[serde(default)]
    args: Vec<String>,
    stdin: Option<String>,
    timeout_ms: u64,
    cwd: Option<String>,
    session: Option<String>,
}

impl Python {
    pub(super) fn new(runner: Runner) -> Self {
        Self { runner, interpreter: OnceCell::new(), sessions: Sessions::default() }
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
             new process: variables and imports do not carry over; with a `session` the working directory and `os.environ` do. The standard library and installed packages can \
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
        definition.documentation = Some(MANUAL.into());
        definition.examples = vec![
            json!({"code": "import math\nprint(math.comb(52, 5))"}),
            json!({"code": "import json, sys\nprint(len(json.load(open(sys.argv[1]))))", "args": ["data.json"]}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { mut code, args, stdin, timeout_ms, cwd, session } = parse(arguments)?;
        let find = || Interpreter::find(self.runner.withheld_env(), &context.session.root);
        let interpreter = self.interpreter.get_or_try_init(find).await?;
        loop {
            let session = session.clone().map(|name| self.sessions.open(name, context));
            let is_session = session.is_some();
            let mut line: Vec<String> = FLAGS.map(str::to_owned).to_vec();
            let directory = if is_session {
                line.extend([PYTHON.to_owned(), code, folder_of(cwd.as_deref(), context)]);
                None
            } else {
                line.push(code);
                cwd.clone()
            };
            line.extend(args.iter().cloned());
            let start = CommandSpec {
                program: interpreter.program.clone().into(),
                arguments: line,
                code_name: "code",
                directory,
                stdin: stdin.clone(),
                timeout_ms,
                readable: interpreter.folders.clone(),
                session,
            };
            let output = self.runner.run(start, context).await?;
            match next_step(is_session, &output, context).await? {
                Some(next) => code = next,
                None => return Ok(output),
            }
        }
    }

    fn files(&self, _arguments: &Value, session: &Session) -> FileUse {
        program_files(session)
    }
}

/// Time limit of the probe: version managers put a script in between.
const PROBE_TIME: Duration = Duration::from_secs(10);
/// The most bytes of the probe's answer.
const PROBE_BYTES: u64 = 64 * 1024;
/// Prints the version, the interpreter's own file, and the folders of its library, one per line.
const PROBE: &str = "import sys, os
print(sys.version_info[0])
print(sys.executable)
for p in (os.path.dirname(os.path.realpath(sys.executable)), sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
    print(p)";

/// A Python 3.
#[derive(Debug, Clone)]
pub(super) struct Interpreter {
    /// The interpreter itself, not a wrapper script.
    pub(super) program: PathBuf,
    /// Folders that it reads, for profiles that allow little else.
    pub(super) folders: Vec<PathBuf>,
}

impl Interpreter {
    /// Finds the first `python3`, else `python`, on `PATH` that runs and is a Python 3. Scripts of version managers run
    /// in `root`, because they select a version by folder.
    ///
    /// # Errors
    /// Says what to install if there is none.
    pub(super) async fn find(withheld_env: &[String], root: &Path) -> Result<Self, ToolError> {
        for program in ["python3", "python"].into_iter().flat_map(candidates) {
            if let Some(interpreter) = probe(&program, withheld_env, root).await {
                return Ok(interpreter);
            }
        }
        Err(failed(
            "no Python 3 was found: install it, as `python3` in a folder of PATH, or run the code by another tool",
        ))
    }
}

async fn probe(program: &Path, withheld_env: &[String], root: &Path) -> Option<Interpreter> {
    let command = SupervisedCommand::new(program).withhold(withheld_env).args(["-I", "-c", PROBE]).current_dir(root);
    let mut child = command.spawn_blocking_thread().await.ok()?;
    let mut text = String::new();
    let answer = child.stdout.take()?;
    let read = tokio::time::timeout(PROBE_TIME, answer.take(PROBE_BYTES).read_to_string(&mut text)).await;
    read.ok()?.ok()?;
    let mut lines = text.lines();
    if lines.next() != Some("3") {
        return None;
    }
    let program = PathBuf::from(lines.next()?);
    // A prefix of `/` would grant access to everything.
    let folders = lines.map(PathBuf::from).filter(|folder| folder.parent().is_some()).collect();
    program.is_absolute().then_some(Interpreter { program, folders })
}
