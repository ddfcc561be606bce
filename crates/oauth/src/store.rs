//! The credential store: a folder of files that only their owner can read, or memory.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use toolwright_core::canonical::ContentHash;

use super::credentials::Credentials;
use crate::OAuthError;

/// Time limit for another process's lock on a server's credentials: a refresh takes some seconds at most.
const LOCK_BOUND: Duration = Duration::from_secs(30);
/// Pause between two looks at a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Hash digits of an address in its file's name.
const URL_DIGITS: usize = 16;
/// Bound on a file. Tokens have some kilobytes.
const MAX_FILE: u64 = 1 << 20;

/// Stored credentials, keyed by a server's name and address: projects that share only the name share no login.
#[derive(Debug, Clone)]
pub struct CredentialStore(Arc<StoreLocation>);

/// Key of credentials: the entry's name and the server's address.
pub type ServerKey<'a> = (&'a str, &'a str);

#[derive(Debug)]
enum StoreLocation {
    Folder(PathBuf),
    Memory(Mutex<Memory>),
}

#[derive(Debug, Default)]
struct Memory {
    kept: BTreeMap<(String, String), Credentials>,
    /// Number of changes.
    changes: u64,
}

/// Version of a server's stored credentials, found without reading them. Every change replaces the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CredentialsVersion(Option<Version>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Nothing,
    Changes(u64),
    File { modified: Option<SystemTime>, bytes: u64, inode: u64 },
}

impl CredentialsVersion {
    /// Differs from every stored version.
    pub(crate) const UNKNOWN: Self = Self(None);
}

/// While it lives, no other process changes a server's credentials.
#[derive(Debug)]
pub struct CredentialLock(#[expect(dead_code, reason = "the lock ends when the file is closed")] Option<File>);

impl CredentialStore {
    /// A folder with one file for each server, mode 0600. It is made, mode 0700, when first written to.
    #[must_use]
    pub fn folder(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(StoreLocation::Folder(path.into())))
    }

    /// Memory of this process.
    #[must_use]
    pub fn memory() -> Self {
        Self(Arc::new(StoreLocation::Memory(Mutex::default())))
    }

    /// Loads the stored credentials of a server.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub async fn load(&self, server: ServerKey<'_>) -> Result<Option<Credentials>, OAuthError> {
        match &*self.0 {
            StoreLocation::Memory(memory) => Ok(lock(memory).kept.get(&owned(server)).cloned()),
            StoreLocation::Folder(folder) => {
                let path = file(folder, server, "json");
                blocking("read", move || read(&path)).await
            }
        }
    }

    /// Reads the stored credentials of a server without waiting for a lock: one small file, blocking.
    pub(crate) fn peek(&self, server: ServerKey<'_>) -> io::Result<Option<Credentials>> {
        match &*self.0 {
            StoreLocation::Memory(memory) => Ok(lock(memory).kept.get(&owned(server)).cloned()),
            StoreLocation::Folder(folder) => read(&file(folder, server, "json")),
        }
    }

    /// Returns the version of a server's stored credentials: one file's metadata, blocking.
    pub(crate) fn stamp(&self, server: ServerKey<'_>) -> CredentialsVersion {
        let folder = match &*self.0 {
            StoreLocation::Memory(memory) => return CredentialsVersion(Some(Version::Changes(lock(memory).changes))),
            StoreLocation::Folder(folder) => folder,
        };
        let metadata = std::fs::metadata(file(folder, server, "json")).ok();
        CredentialsVersion(Some(metadata.map_or(Version::Nothing, |metadata| Version::File {
            modified: metadata.modified().ok(),
            bytes: metadata.len(),
            inode: inode(&metadata),
        })))
    }

    /// Replaces the stored credentials atomically: a reader sees the old or the new.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub async fn save(&self, server: ServerKey<'_>, credentials: Credentials) -> Result<(), OAuthError> {
        match &*self.0 {
            StoreLocation::Memory(memory) => {
                let mut memory = lock(memory);
                memory.changes += 1;
                memory.kept.insert(owned(server), credentials);
                Ok(())
            }
            StoreLocation::Folder(folder) => {
                let (folder, path) = (folder.clone(), file(folder, server, "json"));
                blocking("kept", move || {
                    let text = serde_json::to_vec_pretty(&credentials)?;
                    make_folder(&folder)?;
                    write(&folder, &path, &text)
                })
                .await
            }
        }
    }

    /// Removes the credentials of a server. Returns whether there were any.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub async fn remove(&self, server: ServerKey<'_>) -> Result<bool, OAuthError> {
        match &*self.0 {
            StoreLocation::Memory(memory) => {
                let mut memory = lock(memory);
                memory.changes += 1;
                Ok(memory.kept.remove(&owned(server)).is_some())
            }
            StoreLocation::Folder(folder) => {
                let path = file(folder, server, "json");
                blocking("removed", move || removed(&path)).await
            }
        }
    }

    /// Waits until no other process changes the credentials of a server, 30 seconds at most.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub async fn lock(&self, server: ServerKey<'_>) -> Result<CredentialLock, OAuthError> {
        let StoreLocation::Folder(folder) = &*self.0 else { return Ok(CredentialLock(None)) };
        let (folder, path) = (folder.clone(), file(folder, server, "lock"));
        let opened = blocking("kept", move || {
            make_folder(&folder)?;
            private(OpenOptions::new().write(true).create(true).truncate(false)).open(&path)
        });
        let opened = opened.await?;
        let until = Instant::now() + LOCK_BOUND;
        loop {
            match opened.try_lock() {
                Ok(()) => return Ok(CredentialLock(Some(opened))),
                Err(TryLockError::WouldBlock) if Instant::now() < until => tokio::time::sleep(LOCK_PAUSE).await,
                Err(error) => return Err(OAuthError::Store { doing: "locked", reason: error.to_string() }),
            }
        }
    }
}

fn owned((name, url): ServerKey<'_>) -> (String, String) {
    (name.to_owned(), url.to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Path of a file of a server; its name cannot lead elsewhere.
fn file(folder: &Path, (name, url): ServerKey<'_>, extension: &str) -> PathBuf {
    let url = ContentHash::of_bytes(url.as_bytes()).to_string();
    let url: String = url.chars().take(URL_DIGITS).collect();
    folder.join(format!("{}-{url}.{extension}", utf8_percent_encode(name, NON_ALPHANUMERIC)))
}

/// Removes a file. Returns whether it existed.
fn removed(path: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, OAuthError> {
    let failed = |reason: String| OAuthError::Store { doing, reason };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

fn read(path: &Path) -> io::Result<Option<Credentials>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let text = match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_FILE => {
            return Err(named(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large to be ours")));
        }
        Ok(_) => std::fs::read(path).map_err(named)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(named(error)),
    };
    // The parser's words may quote the text, and the text is secret.
    let unreadable = |error: serde_json::Error| {
        let place = format!("line {} cannot be read; remove the file and log in again", error.line());
        named(io::Error::new(io::ErrorKind::InvalidData, place))
    };
    serde_json::from_slice(&text).map(Some).map_err(unreadable)
}

fn write(folder: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    // Temporary files are made readable by their owner alone.
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(text)?;
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(unix)]
fn inode(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn inode(_: &std::fs::Metadata) -> u64 {
    0
}

#[cfg(unix)]
fn make_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn make_folder(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(url: &str) -> Credentials {
        Credentials { server_url: url.into(), issuer: Some("https://as".into()), ..Credentials::default() }
    }

    #[tokio::test]
    async fn credentials_belong_to_one_name_and_url() {
        let folder = tempfile::tempdir().expect("a folder");
        for store in [CredentialStore::memory(), CredentialStore::folder(folder.path().join("oauth"))] {
            let (one, other) = (("../a", "https://h"), ("../a", "https://other"));
            assert_eq!(store.load(one).await.expect("nothing"), None);
            for server in [one, other] {
                store.save(server, credentials(server.1)).await.expect("kept");
            }
            assert_eq!(store.load(one).await.expect("read"), Some(credentials("https://h")));
            assert_eq!(store.load(("b", "https://h")).await.expect("read"), None, "{store:?}");
            assert!(store.remove(one).await.expect("removed") && !store.remove(one).await.expect("removed"));
            assert_eq!(store.load(other).await.expect("read"), Some(credentials("https://other")), "{store:?}");
        }
        let around: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").flatten().collect();
        assert_eq!(around.len(), 1, "nothing is written outside: {around:?}");
    }

    #[tokio::test]
    async fn credentials_that_cannot_be_read_can_be_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, server) = (CredentialStore::folder(folder.path()), ("a", "https://h"));
        std::fs::write(file(folder.path(), server, "json"), "{").expect("written");
        assert!(store.load(server).await.is_err());
        assert!(store.remove(server).await.expect("removed"));
        assert_eq!(store.load(server).await.expect("read"), None);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn files_are_their_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("oauth");
        let store = CredentialStore::folder(&inner);
        let server = ("a", "https://h");
        let _lock = store.lock(server).await.expect("locked");
        store.save(server, credentials("https://h")).await.expect("kept");
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&inner), 0o700);
        for extension in ["json", "lock"] {
            assert_eq!(mode(&file(&inner, server, extension)), 0o600, "{extension}");
        }
    }

    #[tokio::test]
    async fn broken_file_errors_leave_out_its_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let server = ("a", "u");
        let path = file(folder.path(), server, "json");
        std::fs::write(&path, "{\"token\": \"sesame\"}").expect("written");
        let error = CredentialStore::folder(folder.path()).load(server).await.expect_err("refused").to_string();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(error.contains(name) && !error.contains("sesame"), "{error}");
    }

    #[tokio::test]
    async fn one_holds_the_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = CredentialStore::folder(folder.path());
        let server = ("a", "https://h");
        let held = store.lock(server).await.expect("locked");
        let waiting = tokio::time::timeout(Duration::from_millis(200), store.lock(server)).await;
        assert!(waiting.is_err(), "the second waits");
        store.lock(("a", "https://other")).await.expect("another one's");
        drop(held);
        store.lock(server).await.expect("free again");
    }
}
