//! Read before write: a file that exists is only changed by somebody who knows what is in it.

use std::fs::Metadata;
use std::path::Path;

use toolwright_core::canonical::ContentHash;
use toolwright_core::context::{FileSeen, ToolContext};
use toolwright_core::error::ToolError;

use super::guard::Target;
use crate::builtin::failed;

/// Notes that the session knows the file with this content.
pub(super) fn note(context: &ToolContext, path: &Path, hash: ContentHash, metadata: Option<&Metadata>) {
    let modified = metadata.and_then(|metadata| metadata.modified().ok());
    context.services.files.saw(&context.session.id, path, FileSeen { hash, modified });
}

/// Lets a change of the file pass if its caller knows its present content: by the hash it gives, else by
/// what the session has read.
///
/// # Errors
/// Names what is unknown, and the remedy.
pub(super) fn check(
    context: &ToolContext,
    target: &Target,
    current: ContentHash,
    expected: Option<&str>,
) -> Result<(), ToolError> {
    let path = &target.written;
    if let Some(expected) = expected {
        return if expected.eq_ignore_ascii_case(&current.to_hex()) {
            Ok(())
        } else {
            Err(failed(format!(
                "`{path}` does not have the content of expected_hash (it has sha256 {current}): read it again with fs__read first"
            )))
        };
    }
    match context.services.files.seen(&context.session.id, &target.path) {
        Ok(Some(seen)) if seen.hash == current => Ok(()),
        Ok(Some(_)) => {
            Err(failed(format!("`{path}` has changed since this session read it: read it again with fs__read first")))
        }
        Ok(None) => Err(failed(format!(
            "`{path}` exists and this session has not read it: read it first with fs__read, or pass the sha256 \
             that fs__read reports as expected_hash"
        ))),
        Err(_) => Err(failed(format!(
            "`{path}` exists, and what was read is not remembered here: pass the sha256 that fs__read reports as expected_hash"
        ))),
    }
}
