//! Servers at addresses, over each transport, called through the whole instance.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::command_line::cli::{ok, run, stderr};
use crate::support::Fixture;

/// A misbehaving server on a port of its own.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let program = toolwright_testkit::bin("misbehaving-mcp");
        let mut child = Command::new(program).args(arguments).stderr(Stdio::piped()).spawn().expect("server");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr")).lines().map_while(Result::ok);
        let ready = lines.find_map(|line| line.split_once(": ready ").map(|(_, url)| url.to_owned()));
        Self { child, url: ready.expect("it says where it is") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("ended");
    }
}

#[test]
fn each_transport_works_and_isolates_faults() {
    for (door, kind) in [("--http", ""), ("--sse", "type: sse"), ("--sse", "type: http"), ("--ws", "")] {
        let server = Server::start(&[door, "0"]);
        let fixture = Fixture::with(&format!("mcpServers:\n  odd:\n    url: {}\n    {kind}\n", server.url));
        let reported = ok(&fixture, &["call", "odd__echo", r#"{"text": "over the wire"}"#]);
        assert!(reported.contains("over the wire"), "{door} {kind}: {reported}");
        let reported = ok(&fixture, &["call", "odd__garbage", "{}"]);
        assert!(reported.contains("this is the answer"), "{door} {kind}: {reported}");
        let broken = run(&fixture, &["call", "odd__huge_line", r#"{"bytes": 20000000}"#]);
        let said = format!("{}{}", String::from_utf8_lossy(&broken.stdout), stderr(&broken));
        assert!(!broken.status.success() && said.contains("message over max_message_bytes"), "{door} {kind}: {said}");
    }
}
