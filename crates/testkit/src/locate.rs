//! Finds the binaries of this crate for tests of other crates, which have no `CARGO_BIN_EXE_…` for them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use std::{env, fs, io};

/// Returns the path of one of this crate's binaries (`misbehaving-mcp`, `conformance-fixture`, `scripted-model`), in
/// the profile and target directory of the running test. If it is missing or older than this crate's sources, all of
/// them are built first, without the network.
///
/// # Panics
/// If the binary can neither be found nor built.
#[must_use]
pub fn bin(name: &str) -> PathBuf {
    static FOUND: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let found = found.get_or_insert_default();
    if let Some(path) = found.get(name) {
        return path.clone();
    }
    #[expect(clippy::panic, reason = "the caller is a test, which fails with this message")]
    let path = locate(name).unwrap_or_else(|error| panic!("the test binary `{name}` is not to be had: {error}"));
    found.insert(name.to_owned(), path.clone());
    path
}

fn locate(name: &str) -> io::Result<PathBuf> {
    // Test executables are in `<target>/<profile>/deps`, binaries one directory up.
    let test = env::current_exe()?;
    let directory = test.ancestors().find(|dir| dir.ends_with("deps")).and_then(Path::parent);
    let directory = directory.or_else(|| test.parent()).ok_or_else(|| io::Error::other("no target directory"))?;
    let path = directory.join(format!("{name}{}", env::consts::EXE_SUFFIX));
    if !is_fresh(&path)? {
        build(directory)?;
    }
    if path.is_file() {
        Ok(path)
    } else {
        Err(io::Error::other(format!("no binary of that name in {}", directory.display())))
    }
}

fn is_fresh(binary: &Path) -> io::Result<bool> {
    let Ok(built) = binary.metadata().and_then(|metadata| metadata.modified()) else { return Ok(false) };
    Ok(built >= newest(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))?)
}

fn newest(directory: &Path) -> io::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(directory)? {
        let (path, metadata) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        newest = newest.max(if metadata.is_dir() { self::newest(&path)? } else { metadata.modified()? });
    }
    Ok(newest)
}

fn build(directory: &Path) -> io::Result<()> {
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--offline", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--bins", "--profile", profile])
        .arg("--target-dir")
        .arg(directory.parent().unwrap_or(directory))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()?;
    if output.status.success() { Ok(()) } else { Err(io::Error::other(String::from_utf8_lossy(&output.stderr))) }
}
