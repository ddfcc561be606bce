//! What a builder makes.

use std::sync::Arc;

use serde_json::json;
use toolwright::core::name_table::Resolution;
use toolwright::{ApprovalDecision, ApprovalRequest, Error, ErrorKind, Profile, Rule, Tool};

use crate::support::{Add, Send, builder, sum, until, with_server};

fn kind(error: &Error) -> Option<ErrorKind> {
    error.outcome()?.error.as_ref().map(|error| error.kind())
}

#[tokio::test]
async fn own_tools_are_called_by_name() {
    let tw = builder().tool(Add).tools([Arc::new(Send) as Arc<dyn Tool>]).build().await.expect("builds");
    assert_eq!(tw.call("math__add", sum(2, 40)).await.expect("adds").text(), "42");
    let names: Vec<_> = tw.tools().await.iter().map(|tool| tool.wire_name.clone()).collect();
    assert_eq!(names, ["mail__send", "math__add"]);
    let invalid = tw.call("math__add", json!({"a": "x"})).await.expect_err("no number");
    assert_eq!(kind(&invalid), Some(ErrorKind::InvalidParameters));
    assert!(invalid.to_string().contains("math:add failed: invalid_parameters"), "{invalid}");
    let unknown = tw.call("math__ad", sum(1, 1)).await.expect_err("no such tool");
    assert!(unknown.to_string().contains("math__add"), "{unknown}");
    tw.shut_down().await;
}

#[tokio::test]
async fn by_default_nothing_is_stored_or_read() {
    let tw = builder().tool(Add).build().await.expect("builds");
    let (config, state) = (tw.config(), tw.config().state_dir.clone());
    assert!(config.files.is_empty() && config.candidates.is_empty());
    assert!(state.starts_with(std::env::temp_dir()) && state.is_dir());
    tw.call("math__add", sum(1, 2)).await.expect("adds");
    assert!(!state.join("toolwright.sqlite3").exists());
    tw.shut_down().await;
    assert!(!state.exists(), "a shutdown removes the folder");
}

#[tokio::test]
async fn settings_that_cannot_be_used_fail_the_build() {
    for (settings, expect) in [
        (json!({"mcp_servers": {"x": {"comand": "y"}}}), "mcp_servers.x"),
        (json!({"mcp_servers": {"x": {"command": "${NOT_SET_ANYWHERE}"}}}), "NOT_SET_ANYWHERE is not set"),
        (json!({"rest_tools": {"x": {"url": "no address"}}}), "rest_tools.x"),
        (json!({"polcy": {}}), "polcy"),
        (json!(7), "settings"),
    ] {
        let error = builder().settings(&settings).build().await.expect_err("refused");
        assert!(matches!(error, Error::Config(_)) && error.to_string().contains(expect), "{settings}: {error}");
    }
    let profile = builder().policy(Profile::Owner).build().await.expect_err("no profile of a policy");
    assert!(profile.to_string().contains("policy.profile"), "{profile}");
}

#[tokio::test]
async fn a_namespace_has_one_source() {
    let error = with_server(builder().tool(Add), &[])
        .settings(json!({"mcp_servers": {"math": {"command": "true"}}}))
        .build()
        .await
        .expect_err("two are called math");
    assert!(matches!(error, Error::Duplicate(_)), "{error}");
}

#[tokio::test]
async fn a_server_connects_when_its_tools_are_needed() {
    let tw = with_server(builder(), &[]).build().await.expect("builds");
    assert!(tw.catalogue().snapshot().list().is_empty(), "a build connects nothing");
    let outcome = tw.call("odd__echo", json!({"text": "hello"})).await.expect("echoes");
    assert_eq!(outcome.text(), "hello");
    assert!(tw.search("echo", 3).await[0].entry.wire_name == "odd__echo");
    assert_eq!(tw.pick("return the text", 1).await[0].tool.wire_name, "odd__echo");
    tw.connect().await.expect("all is there");
    tw.shut_down().await;
}

#[tokio::test]
async fn servers_that_do_not_start_are_named() {
    let tw = with_server(builder().tool(Add), &["--exit-at-once", "3"]).build().await.expect("builds");
    let error = tw.connect().await.expect_err("it does not start");
    assert!(error.to_string().contains("odd has no tools"), "{error}");
    assert_eq!(tw.call("math__add", sum(1, 1)).await.expect("others go on").text(), "2");
    let error = tw.call("odd__echo", json!({})).await.expect_err("it is not there").to_string();
    assert!(error.contains("odd"), "{error}");
    tw.shut_down().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_ends_servers_and_removes_the_folder() {
    let folder = tempfile::tempdir().expect("folder");
    let script = format!("echo $$ > {}/pid; exec \"$0\"", folder.path().display());
    let server = toolwright_testkit::bin("misbehaving-mcp").to_string_lossy().into_owned();
    let tw = builder().mcp_stdio("odd", "sh", ["-c", &script, &server]).build().await.expect("builds");
    tw.call("odd__echo", json!({"text": "x"})).await.expect("echoes");
    let pid = std::fs::read_to_string(folder.path().join("pid")).expect("pid").trim().to_owned();
    let (process, state) = (format!("/proc/{pid}"), tw.config().state_dir.clone());
    assert!(std::path::Path::new(&process).exists());
    drop(tw);
    assert!(!state.exists(), "the folder goes with it");
    until("the server ends", || {
        std::fs::read_to_string(format!("{process}/stat")).map_or(true, |stat| stat.contains(") Z "))
    })
    .await;
}

#[tokio::test]
async fn rules_and_the_approver_decide_calls() {
    let approver = |request: &ApprovalRequest| match request.arguments["to"].as_str() {
        Some(to) if to.ends_with("@example.com") => ApprovalDecision::Approve,
        _ => ApprovalDecision::Deny { reason: "only example.com".into() },
    };
    let tw = builder()
        .tool(Add)
        .tool(Send)
        .policy(Profile::Ask)
        .rule(Rule::deny("math__*").because("no sums today"))
        .approver(approver)
        .build()
        .await
        .expect("builds");
    let sent = tw.call("mail__send", json!({"to": "a@example.com"})).await.expect("approved");
    assert_eq!(sent.text(), "sent to a@example.com");
    let denied = tw.call("mail__send", json!({"to": "a@elsewhere.org"})).await.expect_err("denied");
    assert_eq!(kind(&denied), Some(ErrorKind::Denied));
    assert!(denied.to_string().contains("only example.com"), "{denied}");
    let denied = tw.call("math__add", sum(1, 1)).await.expect_err("denied");
    assert!(denied.to_string().contains("no sums today"), "{denied}");
    tw.shut_down().await;
}

#[tokio::test]
async fn denials_without_approver_name_the_remedy() {
    let tw = builder().tool(Send).policy(Profile::Ask).build().await.expect("builds");
    let denied = tw.call("mail__send", json!({"to": "a"})).await.expect_err("denied").to_string();
    assert!(denied.contains(".approver(..)"), "{denied}");
    tw.shut_down().await;
}

#[tokio::test]
async fn settings_in_code_override_the_file() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("toolwright.yaml");
    std::fs::write(
        &file,
        "defaults: {builtins_allowed: [fs__read]}\nweb: {max_bytes: 300}\nqueues: {x: {concurrent: 2}}\n",
    )
    .expect("written");
    std::fs::write(folder.path().join("note.txt"), "from the workspace").expect("written");
    let tw = builder()
        .config(&file)
        .state_dir(folder.path().join("state"))
        .settings(json!({"web": {"max_bytes": 400}}))
        .tool(Add)
        .build()
        .await
        .expect("builds");
    let config = tw.config();
    assert_eq!((config.sections.web.max_bytes, config.queues.len()), (400, 1));
    let names: Vec<_> = tw.tools().await.iter().map(|tool| tool.wire_name.clone()).collect();
    assert_eq!(names, ["fs__read", "math__add"]);
    let read = tw.call("fs__read", json!({"path": "note.txt"})).await.expect("reads");
    assert!(read.text().contains("from the workspace"), "{}", read.text());
    tw.shut_down().await;
    assert!(folder.path().join("state/toolwright.sqlite3").exists());
}

#[tokio::test]
async fn only_requested_built_in_tools_exist() {
    for (wanted, expect) in [(None, 0), (Some(vec!["fs__read".to_owned(), "fs__glob".to_owned()]), 2)] {
        let mut builder = builder();
        if let Some(wanted) = wanted {
            builder = builder.builtins(wanted);
        }
        let tw = builder.build().await.expect("builds");
        assert_eq!(tw.tools().await.len(), expect);
        tw.shut_down().await;
    }
    let all = builder().builtins(true).build().await.expect("builds");
    assert!(matches!(all.catalogue().snapshot().resolve("shell__bash"), Resolution::Found(..)));
    all.shut_down().await;
}

#[tokio::test]
async fn endpoints_and_documents_become_tools() {
    let address = crate::support::serve_json(json!([{"id": 1, "name": "Rex"}])).await;
    let folder = tempfile::tempdir().expect("folder");
    let document = folder.path().join("pets.yaml");
    let text = format!(
        "openapi: 3.0.3\ninfo: {{title: Pets, version: '1'}}\nservers: [{{url: 'http://{address}'}}]\npaths:\n  /pets:\n    get: \
         {{operationId: listPets, summary: Lists pets, responses: {{'200': {{description: ok}}}}}}\n"
    );
    std::fs::write(&document, text).expect("written");
    let tw = builder()
        .rest("pets", json!({"url": format!("http://{address}/pets"), "description": "Lists pets"}))
        .openapi("shop", document.to_string_lossy())
        .settings(json!({"web": {"allowed_hosts": [address.to_string()]}}))
        .build()
        .await
        .expect("builds");
    for tool in ["rest__pets", "shop__listPets"] {
        let outcome = tw.call(tool, json!({})).await.expect("answers");
        assert!(outcome.text().contains("Rex"), "{tool}: {}", outcome.text());
    }
    tw.shut_down().await;
}
