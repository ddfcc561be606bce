//! What stands in place of a result that gave way.

use toolwright_core::model::CallResult;

use super::Place;

/// A result that gives way, and where its parts are now.
#[derive(Debug, Clone)]
pub(crate) struct GivenUp {
    pub(crate) place: Place,
    /// Handle of its text.
    pub(crate) text: Option<String>,
    /// Handles of its images.
    pub(crate) images: Vec<String>,
}

impl GivenUp {
    /// The note. `reader` reads stored text; without one nothing is told of handles.
    pub(super) fn note(&self, result: &CallResult, reader: Option<&str>) -> String {
        let bytes: usize = result.content.iter().filter_map(|block| block.as_text()).map(str::len).sum();
        let how = match (&self.text, reader) {
            (Some(handle), Some(reader)) => format!("it is stored, read it with {reader} {{\"handle\": \"{handle}\"}}"),
            _ => "call the tool again if you need it".to_owned(),
        };
        let images = match self.images.as_slice() {
            [] => String::new(),
            handles => format!("; its images are kept as files under {}", handles.join(", ")),
        };
        format!("[toolwright took this result, {bytes} bytes, out to make room; {how}{images}]")
    }
}
