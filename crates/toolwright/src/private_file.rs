//! Private files: checks that a file belongs to this user alone, and keeps the token of the HTTP API in one.

use std::fs::Metadata;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// The permitted access of other users to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherUsersAccess {
    /// Any access, because the content is checked elsewhere.
    Anything,
    /// Reading.
    Read,
    /// None, because it contains a secret.
    Nothing,
}

/// Reads a regular file of at most `max` bytes. Devices and pipes are refused: an untrusted repository may link to one,
/// which never ends or never answers.
///
/// # Errors
/// Errors of the file system. The file is not regular, too large, another user's (root's is accepted), or accessible to
/// others beyond `others`; the error names the remedy.
pub(crate) fn read(path: &Path, others: OtherUsersAccess, max: u64) -> io::Result<String> {
    let mut options = std::fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        i32::try_from((rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits()).unwrap_or(0),
    );
    let file = options.read(true).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no ordinary file"));
    }
    if let Some(why) = foreign(&metadata, others, path) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut text = String::new();
    file.take(max.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() as u64 > max {
        return Err(io::Error::other(format!("it is over the limit of {max} bytes")));
    }
    Ok(text)
}

/// Returns whether a file or folder belongs to this user or root.
#[cfg(unix)]
pub(crate) fn is_own(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let own = rustix::process::geteuid().as_raw();
    std::fs::metadata(path).is_ok_and(|metadata| metadata.uid() == own || metadata.uid() == 0)
}

#[cfg(not(unix))]
pub(crate) fn is_own(_: &Path) -> bool {
    true
}

/// Returns why a file is not private to this user.
#[cfg(unix)]
fn foreign(metadata: &Metadata, others: OtherUsersAccess, path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let (forbidden, what) = match others {
        OtherUsersAccess::Anything => return None,
        OtherUsersAccess::Read => (0o022, "write"),
        OtherUsersAccess::Nothing => (0o077, "read or write"),
    };
    let owner = metadata.uid();
    if owner != rustix::process::geteuid().as_raw() && owner != 0 {
        return Some(format!("it is another user's ({owner}): delete it, or have it given to you (chown)"));
    }
    let is_open = metadata.mode() & forbidden != 0;
    is_open.then(|| format!("others may {what} it: `chmod 600 {}`, and change the secrets in it", path.display()))
}

#[cfg(not(unix))]
fn foreign(_: &Metadata, _: OtherUsersAccess, _: &Path) -> Option<String> {
    None
}

/// Maximum bytes of the file with the API token.
const MAX_TOKEN_FILE: u64 = 4096;

/// Returns the path of the file with the API token in a state directory.
pub(crate) fn api_token_file(state_dir: &Path) -> PathBuf {
    state_dir.join("api-token")
}

/// Reads the generated token of the HTTP API, which is used if none is configured. If it does not exist, generates one
/// of 64 hexadecimal digits. Concurrent processes get the same token.
///
/// # Errors
/// The file cannot be read or created, is empty, or others may read it. The error names its path and the remedy.
pub(crate) fn api_token(state_dir: &Path) -> io::Result<String> {
    let path = api_token_file(state_dir);
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    match read_token(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_token(state_dir, &path).and_then(|()| read_token(&path)).map_err(failed)
        }
        read => read.map_err(failed),
    }
}

fn read_token(path: &Path) -> io::Result<String> {
    let text = read(path, OtherUsersAccess::Nothing, MAX_TOKEN_FILE);
    let refuse =
        |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{why}; delete it, and a new one is made"));
    match text {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        Err(error) => Err(refuse(error.to_string())),
        Ok(text) if text.trim().is_empty() => Err(refuse("there is no token in it".to_owned())),
        Ok(text) => Ok(text.trim().to_owned()),
    }
}

/// Puts a new token at `path`, unless another process has just done so.
fn make_token(state_dir: &Path, path: &Path) -> io::Result<()> {
    // Private from its creation, and complete once it has its name.
    let mut file = tempfile::NamedTempFile::new_in(state_dir)?;
    writeln!(file, "{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())?;
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Creates a folder that only its owner can read.
pub(crate) fn private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Replaces a file atomically: a reader sees the old text or the new one. Permissions are kept.
///
/// # Errors
/// Errors of the file system.
pub fn write_atomically(path: &Path, text: &str) -> std::io::Result<()> {
    // For a symbolic link, its target is replaced, not the link.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    if let Ok(metadata) = std::fs::metadata(&path) {
        file.as_file().set_permissions(metadata.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_open_to_others_is_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, "text").expect("file");
        for (mode, others, expect) in [
            (0o600, OtherUsersAccess::Nothing, true),
            (0o640, OtherUsersAccess::Nothing, false),
            (0o604, OtherUsersAccess::Nothing, false),
            (0o644, OtherUsersAccess::Read, true),
            (0o664, OtherUsersAccess::Read, false),
            (0o666, OtherUsersAccess::Anything, true),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
            let read = read(&path, others, 4);
            assert_eq!(read.is_ok(), expect, "{mode:o} {others:?}: {read:?}");
            assert!(expect || read.expect_err("refused").to_string().contains("chmod 600"), "{mode:o}");
        }
        assert!(read(&path, OtherUsersAccess::Anything, 3).is_err(), "too large");
        assert!(read(folder.path(), OtherUsersAccess::Anything, 9).is_err(), "a folder");
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
            std::os::unix::fs::chown(&path, Some(65534), None).expect("given away");
            let error = read(&path, OtherUsersAccess::Nothing, 9).expect_err("another user's").to_string();
            assert!(error.contains("another user's"), "{error}");
        }
    }

    #[test]
    fn the_api_token_is_made_once_and_private() {
        let dir = tempfile::tempdir().expect("folder");
        let token = api_token(dir.path()).expect("made");
        assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
        assert_eq!(api_token(dir.path()).expect("there"), token);
        let path = api_token_file(dir.path());
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(dir.path().read_dir().expect("list").count(), 1, "nothing is left beside it");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("set");
        let error = api_token(dir.path()).expect_err("others may read it").to_string();
        assert!(error.contains("api-token") && error.contains("delete it"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
        std::fs::write(&path, " \n").expect("written");
        assert!(api_token(dir.path()).is_err(), "an empty one protects nothing");
    }
}
