//! Commands to begin with: `demo`, `init`, `add`, `remove`, `import`, `doctor`.

pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod edit;
pub(crate) mod import_openapi;
