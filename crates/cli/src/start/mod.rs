//! Commands for the first steps: `demo`, `init`, `add`, `remove`, `import`, `doctor`.

pub(crate) mod demo;
mod demo_team;
pub(crate) mod doctor;
mod doctor_models;
pub(crate) mod edit;
pub(crate) mod import_openapi;
