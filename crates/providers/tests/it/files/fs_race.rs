//! Somebody swaps a folder of the workspace for a link to the outside while the file tools work.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;
use toolwright_core::content::joined_text;

use crate::files::workspace::Workspace;

/// What lies outside, and must never be seen.
const SECRET: &str = "secret-of-the-outside";
const ROUNDS: usize = 400;

/// Swaps until it is dropped.
struct Swapping {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapping {
    /// `folder` is by turns itself and a link to `outside`; it is never missing.
    fn start(folder: PathBuf, outside: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let link = folder.with_extension("link");
        symlink(outside, &link).expect("link");
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                renameat_with(CWD, &folder, CWD, &link, RenameFlags::EXCHANGE).expect("exchanged");
                std::thread::yield_now();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("runs").join().expect("swapped to the end");
    }
}

/// A workspace with a folder `a/b`, and what is outside.
fn world() -> (Workspace, PathBuf) {
    let ws = Workspace::new();
    ws.put("a/b/file.txt", "inside\n");
    let outside = ws.outer.path().join("outside");
    std::fs::create_dir_all(outside.join("b")).expect("folders");
    for file in ["file.txt", "b/file.txt"] {
        std::fs::write(outside.join(file), SECRET).expect("file");
    }
    std::fs::write(outside.join("b").join(SECRET), SECRET).expect("file");
    (ws, outside)
}

/// All files below, with what is in them.
fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("folder").flatten() {
        if entry.path().is_dir() {
            all.extend(files(&entry.path()));
        } else {
            all.push((entry.path(), std::fs::read_to_string(entry.path()).expect("file")));
        }
    }
    all.sort();
    all
}

#[tokio::test]
async fn a_swapped_folder_redirects_no_write() {
    let (ws, outside) = world();
    let before = files(&outside);
    let swapping = Swapping::start(ws.path("a"), &outside);
    let mut written = 0;
    for round in 0..ROUNDS {
        let new = json!({"path": format!("a/b/new-{round}/x.txt"), "content": "x"});
        written += u32::from(ws.call("fs:write", new).await.is_ok());
        let old = json!({"path": "a/b/file.txt", "content": "new\n", "expected_hash": hash("inside\n")});
        let _ = ws.call("fs:write", old).await;
        let _ = ws.call("fs:read", json!({"path": "a/b/file.txt"})).await;
        let edit = json!({"path": "a/b/file.txt", "old_string": "e", "new_string": "E"});
        let _ = ws.call("fs:edit", edit).await;
        let leaked = json!({"path": "a/b/file.txt", "old_string": SECRET, "new_string": "gone",
                            "expected_hash": hash(SECRET)});
        let _ = ws.call("fs:edit", leaked).await;
    }
    drop(swapping);
    assert_eq!(files(&outside), before);
    assert!(written > 0, "the tools work meanwhile");
}

#[tokio::test]
async fn a_swapped_folder_redirects_no_read() {
    let (ws, outside) = world();
    let swapping = Swapping::start(ws.path("a"), &outside);
    for _ in 0..ROUNDS {
        for (tool, arguments) in [
            ("fs:read", json!({"path": "a/b/file.txt"})),
            ("fs:grep", json!({"pattern": "secret|inside"})),
            ("fs:grep", json!({"pattern": "secret|inside", "path": "a/b"})),
            ("fs:glob", json!({"pattern": "**/*"})),
            ("fs:tree", json!({})),
            ("fs:tree", json!({"path": "a"})),
        ] {
            if let Ok(output) = ws.call(tool, arguments).await {
                let text = joined_text(&output.content);
                assert!(!text.contains(SECRET), "{tool}: {text}");
            }
        }
    }
    drop(swapping);
}

fn hash(text: &str) -> String {
    toolwright_core::ContentHash::of_bytes(text.as_bytes()).to_hex()
}
