//! What sources say reaches their clients as each revision has it, whatever the transport.

use std::sync::atomic::Ordering;

use serde_json::json;

use crate::sources::Source;
use crate::support::{House, body, rpc};

#[tokio::test]
async fn an_error_of_a_server_is_none_of_the_transport_whatever_its_code() {
    let house = House::new().await;
    let source = Source::new("alpha");
    house.add(source.clone()).await;
    let http = house.http().await;
    let said = |code| json!({"code": code, "message": "not for you", "data": {"limit": 3}});
    for (code, modern) in [(-32000, 200), (-32601, 200), (-32002, 200), (7, 200), (-32602, 400), (-32021, 400)] {
        source.own_error.store(code, Ordering::Relaxed);
        let expect = Some(said(code));
        for (path, name) in [("/mcp/alpha", "hello"), ("/mcp", "alpha__hello")] {
            let get = json!({"name": name});
            let (session, _) = http.initialize(path).await;
            let legacy = body(http.in_session(&session, path, &rpc(1, "prompts/get", get.clone())), 200).await;
            assert_eq!(legacy.get("error"), expect.as_ref(), "{path} {code}");
            if path == "/mcp/alpha" {
                let answer = body(http.modern(path, json!(1), "prompts/get", get), modern).await;
                assert_eq!(answer.get("error"), expect.as_ref(), "{path} {code}");
            }
        }
    }
}

#[tokio::test]
async fn what_a_client_fills_in_for_a_template_reaches_its_server_as_it_wrote_it() {
    let house = House::new().await;
    let beta = Source::new("beta");
    house.add(Source::new("alpha")).await;
    house.add(beta.clone()).await;
    let http = house.http().await;
    let uri = "toolwright-resource://beta/beta://a%2Fb/data";
    let read = body(http.modern("/mcp", json!(1), "resources/read", json!({"uri": uri})), 200).await;
    assert_eq!(read["result"]["contents"][0], json!({"uri": uri, "text": "beta"}));
    assert_eq!(beta.taken(), [("resources/read".to_owned(), json!({"uri": "beta://a%2Fb/data"}))]);
}
