//! Putting new content in the place of a file, whole or not at all.

use std::fs::{Metadata, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;

use super::guard::Target;

/// Writes `bytes` to a temporary file beside the target and renames it into place: readers see the old
/// file or the new one. An `existing` file keeps its permissions (not its owner, nor its hard links); a
/// new one gets the usual ones and must still be new.
pub(super) fn replace(target: &Target, bytes: &[u8], existing: Option<&Metadata>) -> io::Result<Metadata> {
    let Some(folder) = target.path.parent() else { return Err(io::ErrorKind::IsADirectory.into()) };
    std::fs::create_dir_all(folder)?;
    // 0666 is what programs ask for; the umask takes away what the user does not want.
    let mut file = tempfile::Builder::new()
        .prefix(".toolwright-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    let file = match existing {
        Some(metadata) => {
            file.as_file().set_permissions(metadata.permissions())?;
            file.persist(&target.path)?
        }
        None => file.persist_noclobber(&target.path)?,
    };
    file.metadata()
}
