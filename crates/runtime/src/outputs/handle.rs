//! The handles of stored outputs: short enough for a model to copy without error.

use std::path::Path;

/// Digits and lower-case letters without those that look like others (Crockford's base 32).
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// What a handle begins with.
const FIRST: char = 'o';
/// Characters after that, five bits each.
const LENGTH: usize = 8;

/// A new handle, which nobody can guess and which another output may have.
pub(super) fn random() -> String {
    let (_, mut bits) = uuid::Uuid::new_v4().as_u64_pair();
    let mut handle = String::with_capacity(1 + LENGTH);
    handle.push(FIRST);
    for _ in 0..LENGTH {
        handle.push(char::from(ALPHABET[(bits & 31) as usize]));
        bits >>= 5;
    }
    handle
}

/// Whether a text can be a handle, and so the name of a file.
pub(super) fn is_legal(text: &str) -> bool {
    text.strip_prefix(FIRST).is_some_and(|rest| rest.len() == LENGTH && rest.bytes().all(|c| ALPHABET.contains(&c)))
}

/// Whether an output of this folder has the handle, whatever it is and however far it has come.
pub(super) fn is_taken(folder: &Path, handle: &str) -> bool {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().as_encoded_bytes().starts_with(handle.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_short_and_no_paths() {
        let handles: std::collections::HashSet<String> = (0..1000).map(|_| random()).collect();
        assert_eq!(handles.len(), 1000);
        assert!(handles.iter().all(|handle| handle.len() == 9 && is_legal(handle)));
        for text in ["", "o", "o1234567", "o123456789", "O12345678", "o../../..", "/12345678", "o1234567u", "o1234567é"]
        {
            assert!(!is_legal(text), "{text}");
        }
        let folder = tempfile::tempdir().expect("folder");
        for (file, handle) in [("o00000000", "o00000000"), ("o11111111.image~png", "o11111111")] {
            assert!(!is_taken(folder.path(), handle));
            std::fs::write(folder.path().join(file), "").expect("file");
            assert!(is_taken(folder.path(), handle), "{file}");
        }
        assert!(!is_taken(&folder.path().join("none"), "o00000000"));
    }
}
