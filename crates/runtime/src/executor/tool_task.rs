//! Runs a tool on its own task, or inside the call if it only waits.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use toolwright_core::catalogue::Entry;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::ToolOutput;

use super::panics::{Panic, catch_panic_now};

/// What a tool comes to.
type Ended = Result<ToolOutput, ToolError>;

/// A tool at work. A panic stays there: it is the call's error.
pub(super) struct Running<'e> {
    entry: &'e Entry,
    place: Place,
}

enum Place {
    /// What does not let go of its thread holds up nobody here.
    Task(JoinHandle<Ended>),
    /// Spares what only waits a task, and each of its ends a hop between two.
    Call(BoxFuture<'static, Ended>),
}

impl<'e> Running<'e> {
    /// Has `work` done, which runs the tool of `entry`. Boxed: a task's future is copied on its way into the task, and
    /// again when it has ended.
    pub(super) fn start(entry: &'e Entry, work: BoxFuture<'static, Ended>) -> Self {
        let place = if entry.provider.only_waits() { Place::Call(work) } else { Place::Task(tokio::spawn(work)) };
        Self { entry, place }
    }

    /// Ends it where it waits next.
    pub(super) fn abandon(self) {
        match self.place {
            Place::Task(task) => task.abort(),
            Place::Call(work) => drop_contained(work),
        }
    }

    fn panicked(&self, panicked: &Panic) -> ToolError {
        panicked.error(self.entry.id().as_str()).with_model_message("internal error of the tool")
    }
}

/// A panic of what is dropped is not the call's end.
fn drop_contained(work: BoxFuture<'static, Ended>) {
    if let Err(panicked) = catch_panic_now(|| drop(work)) {
        tracing::error!("a tool panicked when it was dropped: {}", panicked.text());
    }
}

impl Future for Running<'_> {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let died = match &mut self.place {
            Place::Task(task) => match ready!(Pin::new(task).poll(context)) {
                Ok(ended) => return Poll::Ready(ended),
                Err(error) => error.try_into_panic().map(Panic::from),
            },
            Place::Call(work) => match catch_panic_now(|| work.as_mut().poll(context)) {
                Ok(ended) => return ended,
                Err(panicked) => {
                    drop_contained(std::mem::replace(work, Box::pin(std::future::pending())));
                    Ok(panicked)
                }
            },
        };
        Poll::Ready(Err(match died {
            Ok(panicked) => self.panicked(&panicked),
            // Nothing else aborts it before its time.
            Err(error) => ToolError::new(ErrorKind::Canceled, "the runtime is ending").with_source(error),
        }))
    }
}
