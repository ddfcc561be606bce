//! Directories of tiny models, whole and damaged, and a real one where there is one.

mod damaged;
mod model;
mod real;
mod tiny;
