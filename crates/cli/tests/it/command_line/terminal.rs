//! The program at a terminal: what a person is told there, and what their answers come to.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};
use toolwright_testkit::model_server::{Turn, WireApi};

use crate::agents::agent::{ended, report, run_id, start, with_model};
use crate::command_line::cli::{program, run, stderr};
use crate::support::{Fixture, until};

/// The program at a terminal of its own: it reads there, and says there what is not its output.
pub(crate) struct Terminal {
    child: Child,
    keys: File,
    shown: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Terminal {
    pub(crate) fn start(fixture: &Fixture, arguments: &[&str]) -> Self {
        Self::start_with(fixture, arguments, &[], false)
    }

    /// With these variables, and with the output at the terminal too where it is `whole`.
    pub(crate) fn start_with(fixture: &Fixture, arguments: &[&str], variables: &[(&str, String)], whole: bool) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("granted");
        unlockpt(&ours).expect("unlocked");
        let name = ptsname(&ours, Vec::new()).expect("its name").into_string().expect("text");
        let theirs = || File::options().read(true).write(true).open(&name).expect("its other side");
        let mut command = program(fixture);
        // Wide, so that what is asserted on stands in one line; the terminal itself has 80 columns.
        command.args(arguments).env("NO_COLOR", "1").env("COLUMNS", "1000");
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).expect("a size");
        command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
        let output = if whole { Stdio::from(theirs()) } else { Stdio::piped() };
        let child = command.stdin(theirs()).stderr(theirs()).stdout(output).spawn().expect("the program runs");
        let keys = File::from(ours);
        let (mut screen, shown) = (keys.try_clone().expect("a second handle"), Arc::<Mutex<String>>::default());
        let written = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The terminal fails once nobody is at its other side.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                written.lock().expect("text").push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { child, keys, shown, reader }
    }

    pub(crate) fn shown_text(&self) -> String {
        self.shown.lock().expect("text").clone()
    }

    /// Types, once the program has asked this.
    pub(crate) fn types(&mut self, question: &str, keys: &str) {
        until(&format!("it asks {question:?}"), || self.shown_text().contains(question));
        self.keys.write_all(keys.as_bytes()).expect("typed");
    }

    /// Its exit code, and all that stood on the terminal.
    pub(crate) fn ended_whole(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().expect("it ends").code();
        (code, self.text_at_end())
    }

    /// All that stood on the terminal when nobody writes to it any more; what the program left behind may hold it open.
    fn text_at_end(&self) -> String {
        for _ in 0..500 {
            if self.reader.is_finished() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        self.shown_text()
    }

    /// Its exit code, and its output.
    pub(crate) fn ended(mut self) -> (Option<i32>, String, String) {
        let mut output = String::new();
        self.child.stdout.take().expect("stdout").read_to_string(&mut output).expect("text");
        let code = self.child.wait().expect("it ends").code();
        (code, output, self.text_at_end())
    }
}

const OPEN: &str = "Open it yourself if you trust it. [y]es, I opened it, [n]o, I do not want to: ";
const DONE: &str = "[y]es, [n]o: ";
const PAGE: &str = "https://login.example/?for=1";

fn fixture() -> Fixture {
    Fixture::with(&format!(
        "mcpServers:\n  bad:\n    command: {}\n",
        toolwright_testkit::bin("misbehaving-mcp").display()
    ))
}

#[test]
fn end_of_input_ends_the_question_line() {
    let fixture = Fixture::new();
    fixture.write_as_stranger("project/toolwright.yaml", "mcpServers:\n  a: {command: none}\n");
    for (arguments, question) in [(&["demo"][..], "in this session: "), (&["tools", "ls"], "[y/N] ")] {
        let mut terminal = Terminal::start_with(&fixture, arguments, &[], true);
        terminal.types(question, "\u{4}");
        let (_, said) = terminal.ended_whole();
        let asked = said.lines().find(|line| line.contains(question)).expect("it was asked");
        assert!(asked.trim_end().ends_with(question.trim_end()), "{said}");
    }
}

#[test]
fn a_call_asks_before_a_required_page() {
    // What is typed at which question; calls that are refused; the exit code, the kind of error and what is told of it.
    for (answers, refusals, code, kind, says) in [
        (&[(OPEN, "y\n"), (DONE, "y\n")][..], 1, 0, None, "welcome"),
        (&[(OPEN, "n\n")], 1, 4, Some("denied"), "needs its user to open a page at login.example, and they did not"),
        (&[(OPEN, "\u{4}")], 1, 4, Some("denied"), "needs its user to open a page at login.example, and they did not"),
        (&[(OPEN, "y\n"), (DONE, "n\n")], 1, 4, Some("denied"), "needs its user to open a page at login.example"),
        (&[(OPEN, "y\n"), (DONE, "y\n")], 2, 1, Some("execution_error"), "log in first"),
    ] {
        for json in [false, true] {
            let fixture = fixture();
            let refusals = format!("refusals={refusals}");
            let arguments = ["call", "bad__log_in", &refusals, "--json"];
            let mut terminal = Terminal::start(&fixture, &arguments[..if json { 4 } else { 3 }]);
            for (question, keys) in answers {
                terminal.types(question, keys);
            }
            let (ended, output, said) = terminal.ended();
            assert_eq!(ended, Some(code), "{answers:?}: {said}");
            for shown in ["A tool's server asks you to open a page: bad:log_in", "  Log in.", PAGE, "at login.example"]
            {
                assert!(said.contains(shown), "{shown}: {said}");
            }
            if !json {
                let reported = if kind.is_some() { &said } else { &output };
                assert!(reported.contains(says), "{answers:?}: {output} {said}");
                continue;
            }
            let printed: Value = serde_json::from_str(&output).expect("JSON");
            assert_eq!(printed["ok"].as_bool(), Some(kind.is_none()), "{printed}");
            assert_eq!(printed["error"]["kind"].as_str(), kind, "{printed}");
            let reported = if kind.is_some() { &printed["error"]["message"] } else { &printed["text"] };
            assert!(reported.as_str().is_some_and(|reported| reported.contains(says)), "{printed}");
        }
    }
}

#[test]
fn a_required_page_without_person_fails() {
    let fixture = fixture();
    for json in [false, true] {
        let arguments = ["call", "bad__log_in", "--json"];
        let output = run(&fixture, &arguments[..if json { 3 } else { 2 }]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let says = format!("open {PAGE} and call again");
        if json {
            let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(printed["error"]["kind"], "execution_error", "{printed}");
            assert!(printed["error"]["message"].as_str().is_some_and(|reported| reported.contains(&says)), "{printed}");
        } else {
            assert!(stderr(&output).contains(&says), "{}", stderr(&output));
        }
    }
}

#[test]
fn a_long_wait_names_the_server() {
    for arguments in [&["call", "slow__x"][..], &["doctor"], &["tools", "ls"]] {
        let fixture = Fixture::with("mcpServers:\n  slow: {command: sleep, args: ['600']}\n");
        let terminal = Terminal::start(&fixture, arguments);
        until(&format!("{arguments:?} says it"), || terminal.shown_text().contains("waiting for slow"));
    }
}

#[test]
fn the_demo_accepts_a_no() {
    let fixture = Fixture::new();
    let mut terminal = Terminal::start(&fixture, &["demo"]);
    terminal.types("[y]es, [n]o, [s]kip", "n\n");
    let (code, output, said) = terminal.ended();
    assert_eq!(code, Some(0), "{output}{said}");
    assert!(said.contains("May this run?") && said.contains("shop__order"), "{said}");
    assert!(output.contains("Nothing was ordered") && !output.contains("no terminal"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_plan_cannot_be_resumed() {
    let fixture = Fixture::new();
    let calls = || Turn::calls(vec![("shell__bash", json!({"command": "echo once >> count"}))]);
    let (_server, variables) = with_model(WireApi::OpenAi, vec![calls(), Turn::text("Done.")].into()).await;
    let mut terminal = Terminal::start_with(&fixture, &["run", "x", "--plan"], &variables, false);
    terminal.types("run this plan?", "n\n");
    let (code, _, said) = terminal.ended();
    assert!(code == Some(1) && said.contains("nothing ran"), "{said}");
    let resume = ["run", "--resume", &run_id(&said), "--policy", "trusted", "--json"];
    let resumed = report(&ended(start(&fixture, &variables, &resume)).await);
    assert_eq!((&resumed["status"], &resumed["calls"][0]["ok"]), (&json!("failure"), &json!(false)), "{resumed}");
    assert!(!fixture.path("project/count").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_has_editing_history_and_commands() {
    let fixture = Fixture::new();
    let is_hello = |asked: &toolwright_testkit::model_server::RecordedRequest| asked.last_user_text() == "hello";
    let script = vec![
        Turn::text("# Hi\n\nIt is **bold**.").expecting("the line as it was edited", is_hello),
        Turn::text("Again.").expecting("the line of the history", is_hello),
    ];
    let (server, variables) = with_model(WireApi::OpenAi, script.into()).await;
    let (code, said) = tokio::task::spawn_blocking(move || {
        let mut terminal =
            Terminal::start_with(&fixture, &["chat", "--policy", "ask", "--state-dir", "state"], &variables, true);
        terminal.types("/help lists", "/help\r");
        // A letter is taken back before the line is sent.
        terminal.types("tokens and cost so far", "hellx\u{7f}o\r");
        terminal.types("1 turns", "\u{1b}[A\r");
        until("it answers again", || terminal.shown_text().contains("Again."));
        terminal.types("Again.", "/frob\r");
        terminal.types("/frob is no command", "/exit\r");
        let code = terminal.child.wait().expect("it ends").code();
        let history = fixture.path("project/state/chat_history");
        let mode = std::os::unix::fs::PermissionsExt::mode(&history.metadata().expect("a history").permissions());
        assert_eq!(mode & 0o777, 0o600);
        until("the total is told", || terminal.shown_text().contains("in all: 2 turns"));
        (code, terminal.shown_text())
    })
    .await
    .expect("joins");
    assert_eq!(server.failures(), Vec::<String>::new(), "{said}");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("It is bold.") && !said.contains("**bold**"), "{said}");
}
