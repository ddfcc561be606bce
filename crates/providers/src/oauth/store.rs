//! Where credentials are kept: a folder of files that only their owner reads, or memory.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::credentials::Credentials;
use super::error::OAuthError;

/// How long another process may hold a server's credentials: a renewal takes some seconds at most.
const LOCK_BOUND: Duration = Duration::from_secs(30);
/// Pause between two looks at a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Bound on a file. Tokens have some kilobytes.
const MAX_FILE: u64 = 1 << 20;

/// Credentials by the name of their server.
#[derive(Debug, Clone)]
pub struct CredentialStore(Arc<Place>);

#[derive(Debug)]
enum Place {
    Folder(PathBuf),
    Memory(Mutex<BTreeMap<String, Credentials>>),
}

/// While it lives, no other process changes a server's credentials.
#[derive(Debug)]
pub struct CredentialLock(#[expect(dead_code, reason = "the lock ends when the file is closed")] Option<File>);

impl CredentialStore {
    /// A folder with one file for each server, mode 0600. It is made, mode 0700, when first written to.
    #[must_use]
    pub fn folder(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Place::Folder(path.into())))
    }

    /// Memory of this process.
    #[must_use]
    pub fn memory() -> Self {
        Self(Arc::new(Place::Memory(Mutex::default())))
    }

    /// The credentials kept for `server`, if they are for this URL.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub async fn load(&self, server: &str, url: &str) -> Result<Option<Credentials>, OAuthError> {
        Ok(self.find(server).await?.filter(|credentials| credentials.server_url == url))
    }

    /// The credentials kept for `server`, whatever its URL was.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub(super) async fn find(&self, server: &str) -> Result<Option<Credentials>, OAuthError> {
        match &*self.0 {
            Place::Memory(kept) => Ok(kept.lock().unwrap_or_else(PoisonError::into_inner).get(server).cloned()),
            Place::Folder(folder) => {
                let path = file(folder, server, "json");
                blocking("read", move || read(&path)).await
            }
        }
    }

    /// Keeps credentials, in place of what there was. A reader sees the old or the new, never a part.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub async fn save(&self, server: &str, credentials: Credentials) -> Result<(), OAuthError> {
        match &*self.0 {
            Place::Memory(kept) => {
                kept.lock().unwrap_or_else(PoisonError::into_inner).insert(server.to_owned(), credentials);
                Ok(())
            }
            Place::Folder(folder) => {
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

    /// Forgets the credentials of `server`. Whether there were any.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub async fn remove(&self, server: &str) -> Result<bool, OAuthError> {
        match &*self.0 {
            Place::Memory(kept) => Ok(kept.lock().unwrap_or_else(PoisonError::into_inner).remove(server).is_some()),
            Place::Folder(folder) => {
                let path = file(folder, server, "json");
                blocking("removed", move || match std::fs::remove_file(&path) {
                    Ok(()) => Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                    Err(error) => Err(error),
                })
                .await
            }
        }
    }

    /// Waits until no other process changes the credentials of `server`, 30 seconds at most.
    ///
    /// # Errors
    /// [`OAuthError::Store`].
    pub async fn lock(&self, server: &str) -> Result<CredentialLock, OAuthError> {
        let Place::Folder(folder) = &*self.0 else { return Ok(CredentialLock(None)) };
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

/// Path of a file of `server`; its name cannot lead elsewhere.
fn file(folder: &Path, server: &str, extension: &str) -> PathBuf {
    folder.join(format!("{}.{extension}", utf8_percent_encode(server, NON_ALPHANUMERIC)))
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
    async fn credentials_are_kept_for_one_url() {
        let folder = tempfile::tempdir().expect("a folder");
        for store in [CredentialStore::memory(), CredentialStore::folder(folder.path().join("oauth"))] {
            assert_eq!(store.load("../a", "https://h").await.expect("nothing"), None);
            store.save("../a", credentials("https://h")).await.expect("kept");
            assert_eq!(store.load("../a", "https://h").await.expect("read"), Some(credentials("https://h")));
            assert_eq!(store.load("../a", "https://other").await.expect("read"), None, "{store:?}");
            assert!(store.remove("../a").await.expect("removed") && !store.remove("../a").await.expect("removed"));
        }
        let around: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").flatten().collect();
        assert_eq!(around.len(), 1, "nothing is written outside: {around:?}");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn files_are_their_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("oauth");
        let store = CredentialStore::folder(&inner);
        let _lock = store.lock("a").await.expect("locked");
        store.save("a", credentials("https://h")).await.expect("kept");
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&inner), 0o700);
        for name in ["a.json", "a.lock"] {
            assert_eq!(mode(&inner.join(name)), 0o600, "{name}");
        }
    }

    #[tokio::test]
    async fn a_broken_file_is_told_without_its_text() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("a.json"), "{\"token\": \"sesame\"}").expect("written");
        let error = CredentialStore::folder(folder.path()).load("a", "u").await.expect_err("refused").to_string();
        assert!(error.contains("a.json") && !error.contains("sesame"), "{error}");
    }

    #[tokio::test]
    async fn one_holds_the_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = CredentialStore::folder(folder.path());
        let held = store.lock("a").await.expect("locked");
        let waiting = tokio::time::timeout(Duration::from_millis(200), store.lock("a")).await;
        assert!(waiting.is_err(), "the second waits");
        drop(held);
        store.lock("a").await.expect("free again");
    }
}
