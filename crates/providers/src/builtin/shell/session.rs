//! Sessions of `shell`: the working directory and the environment that one call leaves for the next one of the same
//! name.
//!
//! A program controls what it leaves, so this must not affect how the next one is started: only its prelude applies it,
//! inside the sandbox.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::SessionId;

/// The most sessions that are kept; the least recently used is dropped first.
const MAX_SESSIONS: usize = 100;
/// The most bytes of a session's state, below the 128 KiB limit of an environment variable.
pub(super) const MAX_STATE: usize = 96 << 10;
/// The most characters of a name.
const MAX_NAME: usize = 64;
/// Variable with the state of the previous call.
pub(super) const STATE: &str = "TOOLWRIGHT_SESSION";
/// Variable that names the file for the state at a program's end.
pub(super) const LEFT: &str = "TOOLWRIGHT_SESSION_END";

/// Restores the state, runs the command `$1` in the folder `$2` if given, and saves the state at the end.
pub(super) const BASH: &str = r#"__toolwright_end() {
local file=$TOOLWRIGHT_SESSION_END; unset TMPDIR TMP TEMP TOOLWRIGHT_SESSION_END
{ printf 'cd -- %q\n' "$PWD"; export -p; } >"$file"; }
trap __toolwright_end EXIT
if [ -n "$TOOLWRIGHT_SESSION" ]; then
for __toolwright in $(compgen -e); do case $__toolwright in TMPDIR|TMP|TEMP|TOOLWRIGHT_*) ;; *) unset "$__toolwright" 2>/dev/null;; esac; done
eval "$TOOLWRIGHT_SESSION"; fi
unset TOOLWRIGHT_SESSION
if [ -n "$2" ]; then cd -- "$2" || exit; fi
__toolwright=$1; set --; eval "$__toolwright""#;

/// The same for Python: the program is the first argument, its folder the second.
pub(super) const PYTHON: &str = r"def __toolwright():
    import atexit, json, os, sys
    own = ('TMPDIR', 'TMP', 'TEMP')
    file = os.environ.pop('TOOLWRIGHT_SESSION_END')
    kept = os.environ.pop('TOOLWRIGHT_SESSION', '')
    if kept:
        kept = json.loads(kept)
        for name in list(os.environ):
            if name not in own and not name.startswith('TOOLWRIGHT_'):
                del os.environ[name]
        os.environ.update(kept['env'])
        try:
            os.chdir(kept['cwd'])
        except OSError as error:
            print(error, file=sys.stderr)
    program, folder = sys.argv[1:3]
    del sys.argv[1:3]
    if folder:
        os.chdir(folder)
    def leave():
        env = {name: value for name, value in os.environ.items() if name not in own}
        with open(file, 'w') as left:
            json.dump({'cwd': os.getcwd(), 'env': env}, left)
    atexit.register(leave)
    return program
try:
    exec(compile(__toolwright(), '<code>', 'exec'), {'__name__': '__main__', '__builtins__': __builtins__})
except Exception as error:
    import sys, traceback
    traceback.print_exception(type(error), error, error.__traceback__.tb_next)
    sys.exit(1)
";

/// Returns the argument that names a session.
pub(super) fn property() -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": MAX_NAME,
        "description": "Name of a session: working directory and exported variables carry over between its calls.",
    })
}

type Key = (SessionId, String);

/// The states of a tool's sessions, the most recently used at the end.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Vec<(Key, OsString)>>);

impl Sessions {
    /// Opens the session of this name in the call's conversation.
    pub(super) fn open(&self, name: String, context: &ToolContext) -> Session<'_> {
        Session { sessions: self, key: (context.session.id.clone(), name) }
    }
}

/// One session.
pub(super) struct Session<'a> {
    sessions: &'a Sessions,
    key: Key,
}

impl Session<'_> {
    /// Returns the saved state; empty at first.
    pub(super) fn state(&self) -> OsString {
        let all = self.sessions.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(key, _)| *key == self.key).map(|(_, state)| state.clone()).unwrap_or_default()
    }

    /// Saves the state of a program. If that is not possible, says so in its output.
    pub(super) fn keep(&self, left: Option<Vec<u8>>, output: &mut ToolOutput) {
        let name = &self.key.1;
        let why = match left {
            Some(left) if left.len() > MAX_STATE => format!("its environment has more than {} KiB", MAX_STATE >> 10),
            Some(left) if left.contains(&0) => "what was left is no text".to_owned(),
            Some(left) => {
                let mut all = self.sessions.0.lock().unwrap_or_else(PoisonError::into_inner);
                all.retain(|(key, _)| *key != self.key);
                if all.len() >= MAX_SESSIONS {
                    all.remove(0);
                }
                all.push((self.key.clone(), OsString::from_vec(left)));
                return;
            }
            None => "the program did not end in the usual way".to_owned(),
        };
        output.content.push(ContentBlock::text(format!("[toolwright: session `{name}` stays as it was: {why}]")));
    }
}

/// Waits for the next input after this output, if the tool is stateful and its caller sends more; `None`: the call
/// ends.
pub(super) async fn next_step(
    is_session: bool,
    output: &ToolOutput,
    context: &ToolContext,
) -> Result<Option<String>, ToolError> {
    if !is_session || !context.turns.is_stepwise() {
        return Ok(None);
    }
    let next = match context.turns.pause(output.clone()).await? {
        Value::String(code) => code,
        other => other.get("command").or(other.get("code")).and_then(Value::as_str).unwrap_or_default().to_owned(),
    };
    Ok(Some(next).filter(|next| !matches!(next.trim(), "" | "exit")))
}
