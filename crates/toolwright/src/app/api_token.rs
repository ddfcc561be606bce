//! The generated token of the HTTP API, used if none is configured.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::own_file::{self, Others};

/// Bytes of the file that are read.
const MAX_FILE: u64 = 4096;

/// Where the token is kept in a state directory.
#[must_use]
pub fn api_token_file(state_dir: &Path) -> PathBuf {
    state_dir.join("api-token")
}

/// Reads the token, and makes one first where there is none: 64 hexadecimal digits in a file that only its owner reads.
/// Several processes come to the same.
///
/// # Errors
/// The file cannot be read or made, is empty, or others may read it; its path and the remedy are named.
pub fn api_token(state_dir: &Path) -> io::Result<String> {
    let path = api_token_file(state_dir);
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    match read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(state_dir, &path).and_then(|()| read(&path)).map_err(failed)
        }
        read => read.map_err(failed),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let text = own_file::read(path, Others::Nothing, MAX_FILE);
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
fn make(state_dir: &Path, path: &Path) -> io::Result<()> {
    // Private from the beginning, and whole once it has its name.
    let mut file = tempfile::NamedTempFile::new_in(state_dir)?;
    writeln!(file, "{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())?;
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_token_is_made_once_and_only_its_owner_reads_it() {
        use std::os::unix::fs::PermissionsExt as _;
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
