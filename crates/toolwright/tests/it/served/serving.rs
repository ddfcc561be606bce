//! The gateway within a program.

use serde_json::json;
use toolwright::{Ask, Error, Expose, Profile};

use crate::support::{Add, Send, builder, sum};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_are_served_over_http_until_shutdown() {
    let tw = builder().tool(Add).tool(Send).build().await.expect("builds");
    let gateway = tw.serve().ask(Ask::Nobody).http("127.0.0.1:0").await.expect("listens");
    let client = builder().mcp_url("remote", gateway.url()).build().await.expect("builds");
    let outcome = client.call("remote__math__add", sum(2, 40)).await.expect("adds");
    assert_eq!(outcome.text(), "42");
    let denied = client.call("remote__mail__send", json!({"to": "me"})).await.expect_err("not without a word");
    assert!(denied.to_string().contains("denied"), "{denied}");
    client.shut_down().await;
    let url = gateway.url();
    gateway.shut_down().await.expect("ends well");
    let unconnected = builder().mcp_url("remote", url).build().await.expect("builds");
    unconnected.connect().await.expect_err("nobody listens");
    tw.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_tokens_and_profiles_are_enforced() {
    let tw = builder().tool(Send).build().await.expect("builds");
    let serve = tw.serve().policy(Profile::Trusted).token("sesame").expose(Expose::Direct);
    let gateway = serve.http("127.0.0.1:0").await.expect("listens");
    assert!(gateway.needs_token());
    let stranger = builder().mcp_url("remote", gateway.url()).build().await.expect("builds");
    stranger.connect().await.expect_err("no token");
    let headers = json!({"mcp_servers": {"remote": {"headers": {"Authorization": "Bearer sesame"}}}});
    let client = builder().mcp_url("remote", gateway.url()).settings(headers).build().await.expect("builds");
    let sent = client.call("remote__mail__send", json!({"to": "me"})).await.expect("runs unasked");
    assert_eq!(sent.text(), "sent to me");
    client.shut_down().await;
    drop(gateway);
    tw.shut_down().await;
}

#[tokio::test]
async fn unusable_serve_settings_are_refused() {
    let tw = builder().tool(Add).settings(json!({"views": {"math": {}}})).build().await.expect("builds");
    let error = tw.serve().http("here").await.expect_err("no address");
    assert!(error.to_string().contains("127.0.0.1:7117"), "{error}");
    let error = tw.serve().http("127.0.0.1:0").await.expect_err("a view has a source's name");
    assert!(matches!(&error, Error::Usage(why) if why.contains("views.math")), "{error}");
    tw.shut_down().await;
    let open = builder().tool(Add).build().await.expect("builds");
    let error = open.serve().http("0.0.0.0:0").await.expect_err("everybody could come");
    assert!(matches!(error, Error::Http(_)), "{error}");
    open.shut_down().await;
}
