//! The whole of a long output, on its way to the output store.

use toolwright_core::context::ToolContext;
use toolwright_core::event::Event;
use toolwright_core::store::{OutputWriter, StoreError, StoredOutput};

/// Where what was printed went.
#[derive(Default)]
pub(super) enum Stored {
    /// Nowhere yet: it fits the cap.
    #[default]
    Unneeded,
    /// Into the store, all of it.
    Open(Box<dyn OutputWriter>),
    /// The store failed. The rest only counts.
    Failed(String),
}

/// Where it is at the end.
pub(super) enum Kept {
    /// In memory, all of it.
    Whole,
    /// In the store, all of it.
    Stored(StoredOutput),
    /// Nowhere: the beginning and the end are in memory, and this is why.
    Cut(String),
}

impl Stored {
    /// Appends bytes; the first time, what came before them too.
    pub(super) async fn append(&mut self, before: &[u8], bytes: &[u8], context: &ToolContext) {
        let result = match self {
            Self::Unneeded => self.open(before, bytes, context).await,
            Self::Open(writer) => writer.write(bytes).await,
            Self::Failed(_) => return,
        };
        if let Err(error) = result {
            let message = format!("the output of call {} was cut, not stored: {error}", context.call_id);
            context.services.events.emit(Event::Warning { code: "output_not_stored".into(), message });
            // What was written is given up with the writer.
            *self = Self::Failed(error.to_string());
        }
    }

    async fn open(&mut self, before: &[u8], bytes: &[u8], context: &ToolContext) -> Result<(), StoreError> {
        let mut writer = context.services.outputs.writer(&context.session.id).await?;
        writer.write(before).await?;
        writer.write(bytes).await?;
        *self = Self::Open(writer);
        Ok(())
    }

    pub(super) async fn finish(self) -> Kept {
        match self {
            Self::Unneeded => Kept::Whole,
            Self::Open(writer) => writer.finish().await.map_or_else(|error| Kept::Cut(error.to_string()), Kept::Stored),
            Self::Failed(why) => Kept::Cut(why),
        }
    }
}
