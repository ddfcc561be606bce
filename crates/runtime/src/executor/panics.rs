//! Catches panics of foreign code.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{FutureExt as _, TryFutureExt as _};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::{Attention, Event, EventSink};

/// A panic, in words.
#[derive(Debug)]
pub(super) struct Panic(String);

impl From<Box<dyn Any + Send>> for Panic {
    fn from(payload: Box<dyn Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Self(text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it said nothing".into()))
    }
}

impl Panic {
    /// What it said.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// The panic as a call's error; `who` is whose fault it is.
    pub(super) fn error(&self, who: &str) -> ToolError {
        ToolError::new(ErrorKind::InternalError, format!("{who} panicked: {}; this is a fault of its code", self.0))
            .with_model_message("internal error")
    }
}

/// Does what may panic.
pub(super) fn catch_panic_now<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Panic::from)
}

/// Awaits what may panic, by reference: a future that is passed on by value is copied each time.
pub(super) fn catch_panic<T>(
    work: Pin<&mut (impl Future<Output = T> + ?Sized)>,
) -> impl Future<Output = Result<T, Panic>> {
    AssertUnwindSafe(work).catch_unwind().map_err(Panic::from)
}

/// A sink that cannot break who emits.
pub(super) struct PanicSafeEvents(pub(super) Arc<dyn EventSink>);

impl EventSink for PanicSafeEvents {
    fn emit(&self, event: Event) {
        self.emit_shared(Arc::new(event));
    }

    fn emit_shared(&self, event: Arc<Event>) {
        if let Err(panicked) = catch_panic_now(|| self.0.emit_shared(event)) {
            tracing::error!("an observer of events panicked: {}", panicked.0);
        }
    }

    fn attention(&self) -> Attention {
        catch_panic_now(|| self.0.attention()).unwrap_or(Attention::Nothing)
    }

    fn dropped(&self) -> u64 {
        self.0.dropped()
    }
}
