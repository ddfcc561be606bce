//! Which log messages sources are told to send.

use serde_json::{Value, json};

use crate::sources::Source;
use crate::support::{House, messages};

const LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// That a source was told this level.
fn told(level: &str) -> (String, Value) {
    ("logging/setLevel".to_owned(), json!({"level": level}))
}

#[tokio::test]
async fn an_older_server_is_told_what_a_newer_request_wants_logged_before_it_is_called() {
    let house = House::new().await;
    let alpha = Source::new("alpha");
    house.add(alpha.clone()).await;
    let http = house.http().await;
    for (level, expect) in
        [(None, None), (Some("warning"), Some("warning")), (Some("alert"), None), (Some("debug"), Some("debug"))]
    {
        let mut params = json!({"name": "log", "arguments": {}});
        if let Some(level) = level {
            params["_meta"][LEVEL] = json!(level);
        }
        messages(http.modern("/mcp/alpha", json!(1), "tools/call", params)).await;
        let mut expect: Vec<_> = expect.map(told).into_iter().collect();
        expect.push(("log".to_owned(), json!({})));
        assert_eq!(alpha.taken(), expect, "{level:?}: the least severe that anybody wants");
    }
}
