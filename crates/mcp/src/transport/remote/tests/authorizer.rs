//! Tests: an authorizer adds headers, and is called when a server refuses.

use async_trait::async_trait;
use axum::http::StatusCode;
use http::HeaderMap;

use super::super::StreamableHttp;
use super::*;
use crate::transport::Transport as _;
use toolwright_net::{Challenge, Retry};

/// Has several tokens in turn, then fails with a message.
#[derive(Debug, Default)]
struct Tokens {
    used: Mutex<usize>,
    challenges: Mutex<Vec<(Challenge, HeaderMap)>>,
    accepted: Mutex<Vec<HeaderMap>>,
    stubborn: bool,
}

#[async_trait]
impl Authorizer for Tokens {
    async fn headers(&self) -> Result<HeaderMap, String> {
        let used = *self.used.lock().expect("used");
        let value = format!("Bearer t{used}").parse().expect("value");
        Ok(HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]))
    }
    async fn on_challenge(&self, challenge: Challenge, sent: HeaderMap) -> Result<Retry, String> {
        *self.used.lock().expect("used") += 1;
        let status = challenge.status;
        self.challenges.lock().expect("challenges").push((challenge, sent));
        match status {
            _ if self.stubborn => Ok(Retry::Yes),
            401 => Ok(Retry::Yes),
            _ => Err("log in with `toolwright mcp login srv`".into()),
        }
    }
    fn accepted(&self, sent: &HeaderMap) {
        self.accepted.lock().expect("accepted").push(sent.clone());
    }
}

#[tokio::test]
async fn refused_requests_retry_once_with_new_credentials() {
    let site = Site::start(|asked| match (asked.message["method"].as_str(), asked.header("authorization")) {
        (Some("tools/list"), Some("Bearer t0")) => {
            (StatusCode::UNAUTHORIZED, [("www-authenticate", "Bearer resource_metadata=\"http://x\"")], "no")
                .into_response()
        }
        (Some("tools/list"), Some(_)) => reply(asked),
        (Some("never"), _) => status(401),
        _ => status(403),
    })
    .await;
    let tokens = Arc::new(Tokens::default());
    let transport =
        StreamableHttp::new(site.target_with(Some(Arc::clone(&tokens) as _)).await, Arc::new(Log::default()));
    soon(transport.send(request(1, "tools/list", LEGACY))).await.expect("answered");
    let (challenge, sent) = tokens.challenges.lock().expect("challenges").remove(0);
    assert_eq!(
        (challenge.status, &*challenge.authenticate),
        (401, &["Bearer resource_metadata=\"http://x\"".to_owned()][..])
    );
    assert_eq!(sent["authorization"], "Bearer t0");
    assert_eq!(site.asked()[1].header("authorization"), Some("Bearer t1"));

    let error = soon(transport.send(request(2, "forbidden", LEGACY))).await.expect_err("refused");
    assert_eq!(error, SendError::Final("log in with `toolwright mcp login srv`".into()));
    let accepted: Vec<_> = tokens.accepted.lock().expect("accepted").drain(..).collect();
    assert_eq!(accepted.len(), 1, "what was refused is not accepted: {accepted:?}");
    assert_eq!(accepted[0]["authorization"], "Bearer t1");

    let stubborn = Arc::new(Tokens { stubborn: true, ..Tokens::default() });
    let transport = StreamableHttp::new(site.target_with(Some(stubborn)).await, Arc::new(Log::default()));
    let before = site.asked().len();
    let error = soon(transport.send(request(3, "never", LEGACY))).await.expect_err("refused");
    assert!(
        matches!(&error, SendError::Final(text) if text.contains("mcp login") && !text.contains("headers.")),
        "{error:?}"
    );
    assert_eq!(site.asked().len() - before, 4);
}
