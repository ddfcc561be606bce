//! A message of a gigabyte: refused at the framing, in bounded memory, and nobody else notices.

use serde_json::json;
use toolwright_core::cancel::CancelCause;
use toolwright_core::error::ErrorKind;

use super::Fixture;
use super::http::Site;
use super::stdio::script;
use crate::processes::peak_memory;

/// Bytes of each message. By hand: `TOOLWRIGHT_TEST_MCP_FLOOD=1000000000 cargo test … take_the_floods -- --nocapture`
const FLOOD: &str = "TOOLWRIGHT_TEST_MCP_FLOOD";

#[tokio::test]
async fn floods_of_messages_stay_out_of_memory() {
    // In a process of its own, whose memory is its own.
    let mut child = tokio::process::Command::new(std::env::current_exe().expect("test binary"));
    child.args(["--exact", "flood::take_the_floods", "--nocapture"]).env(FLOOD, "200000000");
    assert!(child.status().await.expect("runs").success());
}

#[tokio::test]
async fn take_the_floods() {
    let Some(bytes) = std::env::var(FLOOD).ok().and_then(|bytes| bytes.parse::<u64>().ok()) else { return };
    let site = Site::start("legacy").await;
    let (http, pipe) = (Fixture::new(site.transport(), |_| {}), script("plain").rig(|_| {}));
    let floods = [
        (&pipe, "deluge", json!({"bytes": bytes})),
        (&pipe, "deluge", json!({"bytes": bytes, "id_last": true})),
        (&http, "deluge", json!({"bytes": bytes})),
        (&http, "deluge_stream", json!({"bytes": bytes})),
    ];
    for (rig, tool, arguments) in floods {
        let shown = format!("{tool} {arguments}");
        let flood = async {
            let error = rig.call(tool, arguments).await.expect_err(&shown);
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{shown}: {error}");
            assert!(error.message().contains("message over max_message_bytes"), "{shown}: {error}");
        };
        let other = if std::ptr::eq(rig, &pipe) { &http } else { &pipe };
        let meanwhile = async {
            other
                .call(if std::ptr::eq(other, &http) { "plain" } else { "Echo.Args" }, json!({}))
                .await
                .expect("goes on");
        };
        tokio::join!(flood, meanwhile);
        println!("{shown}: {} MiB at most so far", peak_memory());
    }
    // With others in flight to the same server. They go on, but on pipes where the id comes last: nobody knows whose answer
    // it was.
    for (rig, own, id_last) in [(&pipe, "deluge", true), (&pipe, "deluge", false), (&http, "deluge_stream", false)] {
        let hanging = || Fixture {
            world: rig.world.clone(),
            provider: rig.provider.clone(),
            cancel: Default::default(),
            roots: rig.roots.clone(),
        };
        let others = [hanging(), hanging(), hanging()];
        let calls = futures_util::future::join_all(others.iter().map(|other| other.call("hang", json!({}))));
        let flood = async {
            let error = rig.call(own, json!({"bytes": bytes, "id_last": id_last})).await.expect_err(own);
            assert!(error.message().contains("message over max_message_bytes"), "{own}: {error}");
            if !id_last {
                others.iter().for_each(|other| other.cancel.cancel(CancelCause::User));
            }
        };
        for ended in tokio::join!(calls, flood).0 {
            let error = ended.expect_err("given up, or failed");
            match id_last {
                true => assert!(error.message().contains("in the answer to this or another request"), "{error}"),
                false => assert_eq!(error.cancel_cause(), Some(CancelCause::User), "{own}: {error}"),
            }
        }
    }
    pipe.call("Echo.Args", json!({})).await.expect("the server on pipes is still there");
    http.call("plain", json!({})).await.expect("the server behind HTTP is still there");
    let peak = peak_memory();
    assert!(peak < 100, "{peak} MiB");
}
