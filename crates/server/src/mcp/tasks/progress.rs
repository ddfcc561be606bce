//! A task's progress, as far as those see it who only look at it.

use std::sync::Arc;

use toolwright_core::context::PartialSink;
use toolwright_core::event::Partial;

use super::task::Task;

/// Keeps the last message as the task's, and passes everything on.
pub(crate) struct TaskProgress {
    pub(crate) task: Arc<Task>,
    pub(crate) to_client: Option<Arc<dyn PartialSink>>,
}

impl PartialSink for TaskProgress {
    fn send(&self, partial: Partial) {
        if let Partial::Progress { message: Some(message), .. } = &partial {
            self.task.says(message);
        }
        if let Some(client) = &self.to_client {
            client.send(partial);
        }
    }
}
