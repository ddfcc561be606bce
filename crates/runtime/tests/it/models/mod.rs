//! Tools that ask models, the queue of their requests, and the tools that are picked.

mod by_model;
mod model_retries;
mod pick;
mod select;
