//! Sessions of `shell`: the working directory and the environment that one call leaves to the next of the same name.
//!
//! What a program leaves is its own word, so nothing of it decides how the next one is started: the next one's prelude applies
//! it, inside the sandbox.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use toolwright_core::content::ContentBlock;
use toolwright_core::context::ToolContext;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::SessionId;

/// Sessions that are kept; the one that was used longest ago goes first.
const MAX_SESSIONS: usize = 100;
/// Bytes that a session keeps: what one variable may have is 128 KiB.
pub(super) const MAX_STATE: usize = 96 << 10;
/// Characters of a name.
const MAX_NAME: usize = 64;
/// Variable that holds what the call before left.
pub(super) const STATE: &str = "TOOLWRIGHT_SESSION";
/// Variable that names the file in which a program leaves what it was in.
pub(super) const LEFT: &str = "TOOLWRIGHT_SESSION_END";

/// Takes the state up, leaves it at the end, and runs the command, which is `$1`, in the folder `$2` if there is one.
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

/// The argument that names a session.
pub(super) fn property() -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": MAX_NAME,
        "description": "Name of a session: working directory and exported variables carry over between its calls.",
    })
}

type Key = (SessionId, String);

/// What the sessions of a tool have kept, the one that was used last at the end.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Vec<(Key, OsString)>>);

impl Sessions {
    /// The session of this name, of the conversation that the call belongs to.
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
    /// What was left; empty at first.
    pub(super) fn state(&self) -> OsString {
        let all = self.sessions.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(key, _)| *key == self.key).map(|(_, state)| state.clone()).unwrap_or_default()
    }

    /// Keeps what a program left. Says in its output where that cannot be.
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

/// What a call goes on with after this output, where its tool is stateful and its caller sends more; `None`: it ends.
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
