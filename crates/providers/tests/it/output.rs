//! The tools that read and search stored outputs, over outputs in memory.

use std::io::Cursor;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use toolwright_core::ErrorKind;
use toolwright_core::session::SessionId;
use toolwright_core::store::{LineRange, OpenOutput, OutputSlice, OutputStore, StoreError};

use crate::files::workspace::Workspace;

const HANDLE: &str = "session-a/b";

/// One output.
struct One(String);

impl One {
    fn slice(&self, start: usize, end: usize) -> OutputSlice {
        let (start, end) = (start.min(self.0.len()), end.min(self.0.len()));
        OutputSlice { text: self.0[start..end].to_owned(), next_offset: end as u64, total_bytes: self.0.len() as u64 }
    }

    fn known(handle: &str) -> Result<(), StoreError> {
        if handle == HANDLE { Ok(()) } else { Err(StoreError::NotFound(handle.to_owned())) }
    }
}

#[async_trait]
impl OutputStore for One {
    async fn read(&self, _: &SessionId, handle: &str, offset: u64, limit: usize) -> Result<OutputSlice, StoreError> {
        One::known(handle)?;
        let start = usize::try_from(offset).expect("small");
        Ok(self.slice(start, start + limit))
    }

    async fn read_lines(
        &self,
        _: &SessionId,
        handle: &str,
        range: LineRange,
        limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        One::known(handle)?;
        let ends: Vec<usize> = self
            .0
            .split_inclusive('\n')
            .scan(0, |end, line| {
                *end += line.len();
                Some(*end)
            })
            .collect();
        let end_of = |line: u64| ends.get(usize::try_from(line).expect("small").wrapping_sub(1)).copied();
        let start = if range.first == 1 { 0 } else { end_of(range.first - 1).unwrap_or(self.0.len()) };
        let end = end_of(range.first + range.count - 1).unwrap_or(self.0.len());
        Ok(self.slice(start, end.min(start + limit)))
    }

    async fn open(&self, _: &SessionId, handle: &str) -> Result<OpenOutput, StoreError> {
        One::known(handle)?;
        let binary = self.0.contains('\0').then(|| "application/octet-stream".to_owned());
        Ok(OpenOutput {
            bytes: self.0.len() as u64,
            reader: Box::new(Cursor::new(self.0.clone().into_bytes())),
            binary,
        })
    }
}

fn with(text: impl Into<String>) -> Workspace {
    let mut ws = Workspace::new();
    ws.services().outputs = Arc::new(One(text.into()));
    ws
}

#[tokio::test]
async fn stored_output_reads_by_bytes_and_lines() {
    let none = Workspace::new();
    none.fails("output:read", json!({"handle": HANDLE}), ErrorKind::InternalError, &["not supported"]).await;
    let ws = with("one\ntwo\nthree\nfour");
    for (arguments, expect) in [
        (json!({}), "one\ntwo\nthree\nfour\n[bytes 0 to 18 of 18; this is the end]"),
        (json!({"offset": 4, "limit": 3}), "two\n[bytes 4 to 7 of 18; read on with \"offset\": 7]"),
        (json!({"line": 2, "lines": 1}), "two\n[lines 2 to 2, up to byte 8 of 18; read on with \"line\": 3]"),
        (json!({"line": 3}), "three\nfour\n[lines 3 to 4; this is the end]"),
        (json!({"line": 3, "limit": 2}), "th\n[lines 3 to 3, which is cut; read on with \"offset\": 10]"),
        (json!({"line": 9}), "\n[there is no line 9; the output has 18 bytes]"),
    ] {
        let mut arguments = arguments;
        arguments["handle"] = HANDLE.into();
        assert_eq!(ws.ok("output:read", arguments.clone()).await, expect, "{arguments}");
    }
}

#[tokio::test]
async fn stored_output_is_searched() {
    let text: String = (1..=300).map(|n| format!("line {n}{}\n", if n % 100 == 0 { " Error" } else { "" })).collect();
    let ws = with(text);
    for (arguments, expect) in [
        (json!({"pattern": "Error"}), "100:line 100 Error\n200:line 200 Error\n300:line 300 Error\n[3 matching lines]"),
        (json!({"pattern": "error"}), "[no line matches `error`]"),
        (
            json!({"pattern": "error", "case_insensitive": true, "max": 1, "context": 1}),
            "99-line 99\n100:line 100 Error\n101-line 101\n--\n199-line 199\n[there are more matches: narrow the pattern or raise max]",
        ),
    ] {
        let mut arguments = arguments;
        arguments["handle"] = HANDLE.into();
        assert_eq!(ws.ok("output:grep", arguments.clone()).await, expect, "{arguments}");
    }
    ws.fails("output:grep", json!({"handle": HANDLE, "pattern": "("}), ErrorKind::InvalidParameters, &["regular"])
        .await;
}

#[tokio::test]
async fn long_lines_show_match_and_position() {
    let ws = with(format!("{}needle{}\n", "é".repeat(5000), "x".repeat(90_000)));
    let found = ws.ok("output:grep", json!({"handle": HANDLE, "pattern": "needle"})).await;
    assert!(found.starts_with("1:[at byte 9875; toolwright cut 99506 of 100006 bytes of this line] …"), "{found}");
    assert!(found.contains("éneedlex") && found.len() < 1000 && !found.contains('\u{fffd}'), "{found}");
    let many = with("match this\n".repeat(20_000));
    let found = many.ok("output:grep", json!({"handle": HANDLE, "pattern": "match", "max": 1000})).await;
    assert!(found.len() < 64 * 1024 && found.contains("there are more matches"));
    let long = with("x".repeat(9 * 1024 * 1024));
    let found = long.ok("output:grep", json!({"handle": HANDLE, "pattern": "y"})).await;
    assert!(found.starts_with("[the search ended early") && found.contains("read it by offset"), "{found}");
}

#[tokio::test]
async fn unknown_and_binary_outputs_are_no_failure() {
    let ws = with("\0\0");
    for (tool, more) in [("read", json!({})), ("grep", json!({"pattern": "x"})), ("extract", json!({"extract": "x"}))] {
        let mut arguments = more;
        arguments["handle"] = "../../etc/passwd".into();
        let unknown = ws.ok(&format!("output:{tool}"), arguments.clone()).await;
        assert!(unknown.contains("no stored output `../../etc/passwd`") && unknown.contains("expires"), "{unknown}");
        arguments["handle"] = HANDLE.into();
        if tool != "read" {
            let binary = ws.ok(&format!("output:{tool}"), arguments).await;
            assert!(binary.contains("is binary (application/octet-stream, 2 bytes)"), "{binary}");
        }
    }
}
