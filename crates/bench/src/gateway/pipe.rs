//! MCP on the pipes of a process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::call::{Call, LoadLimit, Times};
use super::front::{ANSWER, HELLO, TIMEOUT, result};
use super::process::ProcessGroup;
use crate::Failure;

/// A server, or several processes in a pipeline in front of one.
pub(super) struct Pipe {
    // Dropped first: a server ends when its input closes.
    ends: PipeEnds,
    family: ProcessGroup,
}

struct PipeEnds {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// The number of the last request.
    last: u64,
    line: Vec<u8>,
}

impl Pipe {
    /// Starts the commands as a pipeline and opens the MCP session.
    pub(super) fn open(commands: Vec<Command>, log: &Path) -> Result<Self, Failure> {
        let (family, stdin, stdout) = ProcessGroup::pipeline(commands, log)?;
        let stdout = BufReader::with_capacity(64 << 10, stdout);
        let mut pipe = Self { ends: PipeEnds { stdin, stdout, last: 0, line: Vec::new() }, family };
        pipe.request("initialize", HELLO).map_err(|error| pipe.family.explained(&error))?;
        pipe.ends.stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
        Ok(pipe)
    }

    /// Returns the processes.
    pub(super) fn family(&self) -> &ProcessGroup {
        &self.family
    }

    /// Sends a request and returns its result.
    pub(super) fn request(&mut self, method: &str, params: &str) -> Result<Value, Failure> {
        let ends = &mut self.ends;
        self.family.within(TIMEOUT, || ends.request(method, params))
    }

    /// Times calls, always `in_flight` of them at once.
    pub(super) fn load(&mut self, call: &Call, limit: LoadLimit, in_flight: usize) -> Result<Times, Failure> {
        let ends = &mut self.ends;
        let load = self.family.within(limit.time + ANSWER, || ends.load(call, limit, in_flight));
        load.map_err(|error| self.family.explained(&error))
    }
}

impl PipeEnds {
    fn receive(&mut self) -> Result<&[u8], Failure> {
        self.line.clear();
        match self.stdout.read_until(b'\n', &mut self.line)? {
            0 => Err("the server ended".into()),
            _ => Ok(&self.line),
        }
    }

    fn request(&mut self, method: &str, params: &str) -> Result<Value, Failure> {
        self.last += 1;
        let id = self.last;
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        self.stdin.write_all(line.as_bytes())?;
        loop {
            let message: Value = serde_json::from_slice(self.receive()?)?;
            if message["id"] == id && message.get("method").is_none() {
                return result(method, message);
            }
        }
    }

    fn send(&mut self, call: &Call, sent: &mut Vec<Option<Instant>>) -> Result<(), Failure> {
        self.last += 1;
        let mut line = call.text(self.last);
        line.push('\n');
        sent.push(Some(Instant::now()));
        Ok(self.stdin.write_all(line.as_bytes())?)
    }

    fn load(&mut self, call: &Call, limit: LoadLimit, in_flight: usize) -> Result<Times, Failure> {
        let first = self.last + 1;
        // The start of each call; `None` once it is answered, so that no answer counts twice.
        let mut sent: Vec<Option<Instant>> = Vec::with_capacity(limit.calls);
        let mut times = Times { each: Vec::with_capacity(limit.calls), elapsed: Duration::ZERO };
        let started = Instant::now();
        while sent.len() < limit.calls.min(in_flight) {
            self.send(call, &mut sent)?;
        }
        while times.each.len() < sent.len() {
            let Some(id) = call.answered(self.receive()?)? else { continue };
            let place = id.checked_sub(first).and_then(|index| sent.get_mut(usize::try_from(index).ok()?));
            let at = place.and_then(Option::take).ok_or_else(|| format!("an answer to no call: {id}"))?;
            times.each.push(at.elapsed());
            if limit.continues(sent.len(), started) {
                self.send(call, &mut sent)?;
            }
        }
        times.elapsed = started.elapsed();
        Ok(times)
    }
}
