//! The programs in `examples`, run as they are.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use toolwright_testkit::bin;
use toolwright_testkit::model_server::{Reply, ScriptedModel, Turn, WireApi};

use crate::support::{builder, calls, serve_json, sum};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The program of an example, which `cargo test` builds beside this test; built here if it is not, or is older than its text.
fn program(name: &str) -> PathBuf {
    static BUILT: std::sync::Once = std::sync::Once::new();
    let test = std::env::current_exe().expect("this test");
    let profile =
        test.ancestors().find(|folder| folder.ends_with("deps")).and_then(Path::parent).expect("a target folder");
    let path = profile.join("examples").join(name);
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    if modified(&path) < modified(&root().join(format!("examples/{name}.rs"))) {
        BUILT.call_once(|| {
            let mut build = std::process::Command::new(env!("CARGO"));
            build.args(["build", "--offline", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--examples"]);
            let built = build.arg("--target-dir").arg(profile.parent().unwrap_or(profile)).current_dir(root()).status();
            assert!(built.expect("cargo").success(), "the examples are not built");
        });
    }
    path
}

/// A command that sees nothing of this machine but its programs, and `model`.
fn command(name: &str, model: Option<&ScriptedModel>) -> Command {
    let mut command = Command::new(program(name));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(root())
        .kill_on_drop(true);
    if let Some(model) = model {
        command.env("OPENAI_BASE_URL", model.base_url(WireApi::OpenAi)).env("OPENAI_API_KEY", "sk-example");
    }
    command
}

fn error_output(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

async fn run(mut command: Command) -> String {
    error_output(&command.output().await.expect("runs"))
}

#[tokio::test]
async fn own_tool() {
    let mut command = command("own_tool", None);
    command.arg("the quick brown fox");
    assert_eq!(run(command).await.trim(), r#"{"words":4,"characters":19}"#);
}

#[tokio::test]
async fn mcp_server() {
    let mut command = command("mcp_server", None);
    command.args(["echo", r#"{"text": "hello"}"#]).arg(bin("misbehaving-mcp"));
    let said = run(command).await;
    assert!(said.contains("server__echo: Returns the text") && said.ends_with("hello\n"), "{said}");
}

#[tokio::test]
async fn agent() {
    let answer = Turn::computed(|asked| Reply::text(format!("It is {}.", asked.last_result_text())));
    let model = ScriptedModel::start(vec![calls("math__add", sum(2, 40)), answer]).await.expect("starts");
    assert_eq!(run(command("agent", Some(&model))).await, "It is 42.\n");
    assert_eq!(model.requests()[0].body["model"], "gpt-5-mini");
}

#[tokio::test]
async fn events() {
    let turns = vec![calls("fs__tree", json!({"path": "examples/config"})), Turn::text("Five files.")];
    let model = ScriptedModel::start(turns).await.expect("starts");
    let said = run(command("events", Some(&model))).await;
    for expect in ["-> fs__tree", "<- fs__tree ok", "Five files.", "success: 2 turns, 1 calls"] {
        assert!(said.contains(expect), "{expect}: {said}");
    }
}

#[tokio::test]
async fn approval() {
    let said = run(command("approval", None)).await;
    for expect in [
        "mail__read: one letter",
        "asked about mail:send: ",
        "mail__send: sent to ann@example.com",
        "only to example.com",
        "letters stay",
    ] {
        assert!(said.contains(expect), "{expect}: {said}");
    }
    assert_eq!(said.matches("asked about").count(), 2, "{said}");
}

#[tokio::test]
async fn openapi() {
    let address = serve_json(json!([{"id": 1, "name": "Rex"}])).await;
    let mut command = command("openapi", None);
    command.args(["examples/openapi/pets.yaml", &format!("http://{address}")]);
    let said = run(command).await;
    assert!(said.contains("pets__listPets: Lists the pets of the shop") && said.contains("Rex"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway() {
    let mut gateway = command("gateway", None).stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(gateway.stdout.take().expect("output")).lines();
    let url = lines.next_line().await.expect("read").expect("an address");
    let client = builder().mcp_url("mine", url).build().await.expect("builds");
    let outcome = client.call("mine__greet__hello", json!({"name": "Ann"})).await.expect("greets");
    assert_eq!(outcome.text(), "Hello, Ann!");
    client.shut_down().await;
    gateway.kill().await.expect("ends");
}
