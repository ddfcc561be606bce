//! Checks that a file belongs to this user and that no other user can write or read it.

use std::fs::Metadata;
use std::io::{self, Read as _};
use std::path::Path;

/// What other users may do with a file at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// Whatever its folder lets them: the content is judged elsewhere.
    Anything,
    /// Read it.
    Read,
    /// Nothing: it holds a secret.
    Nothing,
}

/// Reads an ordinary file of at most `max` bytes. A device or a pipe is none: a stranger's repository may have a link to one,
/// which never ends or never answers.
///
/// # Errors
/// Those of the file system. A file that is none, is too large, is another user's (root's is fine), or is open to others
/// beyond `others`; the remedy is named.
pub(crate) fn read(path: &Path, others: Others, max: u64) -> io::Result<String> {
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

/// Why a file is not this user's own.
#[cfg(unix)]
fn foreign(metadata: &Metadata, others: Others, path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let (forbidden, what) = match others {
        Others::Anything => return None,
        Others::Read => (0o022, "write"),
        Others::Nothing => (0o077, "read or write"),
    };
    let owner = metadata.uid();
    if owner != rustix::process::geteuid().as_raw() && owner != 0 {
        return Some(format!("it is another user's ({owner}): delete it, or have it given to you (chown)"));
    }
    let is_open = metadata.mode() & forbidden != 0;
    is_open.then(|| format!("others may {what} it: `chmod 600 {}`, and change the secrets in it", path.display()))
}

#[cfg(not(unix))]
fn foreign(_: &Metadata, _: Others, _: &Path) -> Option<String> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_others_may_touch_is_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, "text").expect("file");
        for (mode, others, expect) in [
            (0o600, Others::Nothing, true),
            (0o640, Others::Nothing, false),
            (0o604, Others::Nothing, false),
            (0o644, Others::Read, true),
            (0o664, Others::Read, false),
            (0o666, Others::Anything, true),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
            let read = read(&path, others, 4);
            assert_eq!(read.is_ok(), expect, "{mode:o} {others:?}: {read:?}");
            assert!(expect || read.expect_err("refused").to_string().contains("chmod 600"), "{mode:o}");
        }
        assert!(read(&path, Others::Anything, 3).is_err(), "too large");
        assert!(read(folder.path(), Others::Anything, 9).is_err(), "a folder");
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
            std::os::unix::fs::chown(&path, Some(65534), None).expect("given away");
            let error = read(&path, Others::Nothing, 9).expect_err("another user's").to_string();
            assert!(error.contains("another user's"), "{error}");
        }
    }
}
