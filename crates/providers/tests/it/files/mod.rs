//! The tools that work on files, and the guard of the workspace.

mod edits;
mod fs;
mod fs_race;
mod json_files;
mod protected;
pub(crate) mod workspace;
