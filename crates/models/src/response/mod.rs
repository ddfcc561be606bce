//! What the decoders of all APIs share: events out of bytes, and the answer under assembly.

pub(crate) mod answer;
pub(crate) mod framing;
mod json_values;
pub(crate) mod wire;
