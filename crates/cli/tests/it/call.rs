//! `call`: one process after the other, on one workspace root.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use serde_json::json;

use crate::cli::{ok, run, stderr};
use crate::support::Fixture;

#[test]
fn a_stored_output_of_one_call_is_read_by_the_next() {
    let fixture = Fixture::new();
    let line = "0123456789abcdef\n";
    fixture.write("project/big.txt", &line.repeat(40_000));
    let told = run(&fixture, &["call", "shell__bash", r#"{"command": "cat big.txt"}"#, "--max-output", "12288"]);
    let told = stderr(&told);
    let (_, rest) = told.split_once("handle=").unwrap_or_else(|| panic!("no handle in {told}"));
    let handle: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
    let read = json!({"handle": handle, "offset": 300_000, "limit": 400}).to_string();
    let part = ok(&fixture, &["call", "output__read", &read]);
    assert!(part.contains(line), "{handle}: {part}");
}

/// Answers requests, one a connection, and gives the idempotency key of each.
fn keys_of(listener: &TcpListener, requests: usize) -> Vec<String> {
    let mut keys = Vec::new();
    for stream in listener.incoming().take(requests) {
        let mut stream = stream.expect("connection");
        let lines = BufReader::new(stream.try_clone().expect("stream")).lines().map_while(Result::ok);
        for line in lines.take_while(|line| !line.is_empty()) {
            if let Some((_, key)) =
                line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"))
            {
                keys.push(key.trim().to_owned());
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").expect("answer");
    }
    keys
}

#[test]
fn calls_that_share_a_session_do_not_share_an_idempotency_key() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("port");
    let url = format!("http://{}/orders", listener.local_addr().expect("address"));
    let fixture = Fixture::with(&format!(
        "restTools:\n  order:\n    description: x\n    method: POST\n    url: {url}\n    allow_private: true\n"
    ));
    let server = std::thread::spawn(move || keys_of(&listener, 2));
    for _ in 0..2 {
        ok(&fixture, &["call", "rest__order", "{}"]);
    }
    let keys = server.join().expect("server");
    assert!(keys.len() == 2 && keys[0] != keys[1], "{keys:?}");
}
