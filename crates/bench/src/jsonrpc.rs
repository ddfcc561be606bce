//! A bare MCP client over a child's stdio: no SDK, so that what is timed is the server alone.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::Failure;

/// A connected child.
pub(crate) struct Client {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    next: u64,
}

impl Client {
    /// Starts the command and says hello in the protocol of 2025-11-25.
    pub(crate) fn connect(command: &mut Command) -> Result<Self, Failure> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdin = child.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let mut client = Self { child, stdin, stdout, next: 0 };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "0"}});
        client.request("initialize", &hello)?;
        writeln!(client.stdin, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(client)
    }

    /// Sends a request and waits for its result, passing over notifications.
    pub(crate) fn request(&mut self, method: &str, params: &Value) -> Result<Value, Failure> {
        self.next += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        self.stdin.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.stdout.read_line(&mut line)? == 0 {
                return Err(format!("the server ended during {method}").into());
            }
            let message: Value = serde_json::from_str(&line)?;
            if message["id"] == self.next {
                return match message.get("error") {
                    Some(error) => Err(format!("{method}: {error}").into()),
                    None => Ok(message["result"].clone()),
                };
            }
        }
    }

    /// Waits until a tool of this name is listed.
    pub(crate) fn wait_for_tool(&mut self, name: &str) -> Result<(), Failure> {
        for _ in 0..200 {
            let listed = self.request("tools/list", &json!({}))?;
            if listed["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["name"] == name)) {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        Err(format!("`{name}` was never listed").into())
    }

    /// Resident memory of the child, in MiB.
    pub(crate) fn rss_mb(&self) -> f64 {
        rss_mb(self.child.id())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The child may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resident memory of a process in MiB, from /proc; 0 where there is none.
pub(crate) fn rss_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    (kib.unwrap_or(0.0) / 102.4).round() / 10.0
}
