//! One call through the executor: check, stages, ends.

mod cache;
mod checking;
mod endings;
mod executor;
mod foreign;
mod inner;
mod output;
mod recorded;
mod routes;
mod workspace;
