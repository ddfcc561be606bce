//! Keeps streams beyond their connections (MCP 2025-11-25, "Resumability and Redelivery"): numbers events, keeps the
//! last ones, and resumes the stream of a client whose connection broke.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::Instant;
use toolwright_core::cancel::Cancel;

use super::event_buffer::{BufferState, EventId, FIRST_CONNECTION, NextEvent, StreamKind};
use super::sse::numbered;

/// Streams of one session that are kept at once.
const STREAMS: usize = 32;
/// How long a stream is kept without a connection.
const GRACE: Duration = Duration::from_secs(120);
/// Bytes of ended streams over all sessions.
pub(super) const ENDED_BYTES: usize = 64 << 20;

/// The resumable streams of one session.
pub(super) struct ResumableStreams {
    streams: Mutex<Vec<Arc<ResumableStream>>>,
    begun: AtomicU64,
    ended: Cancel,
    room: Arc<ReplayBudget>,
}

/// One stream.
pub(super) struct ResumableStream {
    kind: StreamKind,
    number: u64,
    /// How long it is kept without a connection.
    grace: Duration,
    state: watch::Sender<BufferState>,
}

impl ResumableStreams {
    /// Creates the streams of a session that ends with `ended`. Ended streams share `room`.
    pub(super) fn new(ended: Cancel, room: Arc<ReplayBudget>) -> Arc<Self> {
        Arc::new(Self { streams: Mutex::default(), begun: AtomicU64::new(1), ended, room })
    }

    /// Begins a stream of these messages and returns the frames for its first connection, which holds `held`. If too
    /// many open streams are kept, this one ends with its connection.
    pub(super) fn begin<S, H>(
        self: &Arc<Self>,
        kind: StreamKind,
        messages: S,
        held: H,
    ) -> impl Stream<Item = Bytes> + Send + use<S, H>
    where
        S: Stream<Item = Bytes> + Send + 'static,
        H: Send + 'static,
    {
        let stream = self.keep(kind);
        let frames = stream.frames(FIRST_CONNECTION, held);
        let replay = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                () = stream.run(messages, &replay.room) => {}
                _ = replay.ended.cancelled() => {}
            }
            stream.end_without_client();
            replay.lock().retain(|other| !Arc::ptr_eq(other, &stream));
        });
        frames
    }

    /// Creates a stream, which is kept if there is room.
    fn keep(&self, kind: StreamKind) -> Arc<ResumableStream> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let mut all = self.lock();
        if kind == StreamKind::Session {
            // A client that opens a second stream has lost the first and will not resume it.
            all.extract_if(.., |stream| stream.kind == StreamKind::Session)
                .for_each(|stream| stream.end_without_client());
        }
        if all.len() >= STREAMS
            && let Some(over) = all.iter().position(|stream| stream.state.borrow().is_over)
        {
            all.remove(over).end_without_client();
        }
        let has_room = all.len() < STREAMS;
        let stream = Arc::new(ResumableStream::new(kind, number, if has_room { GRACE } else { Duration::ZERO }));
        if has_room {
            all.push(Arc::clone(&stream));
        }
        stream
    }

    /// Returns the frames after this event for a connection that holds `held`. Progress and log messages may be
    /// missing.
    ///
    /// # Errors
    /// `held`, if the stream or too much of it is no longer kept.
    pub(super) fn resume<H: Send + 'static>(
        &self,
        after: EventId,
        held: H,
    ) -> Result<impl Stream<Item = Bytes> + Send + use<H>, H> {
        let all = self.lock();
        let is_meant = |stream: &&Arc<ResumableStream>| stream.kind == after.kind && stream.number == after.stream;
        let found = all.iter().find(is_meant).and_then(|stream| Some((stream, stream.connect(after.event)?)));
        match found {
            Some((stream, number)) => Ok(stream.frames(number, held)),
            None => Err(held),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<ResumableStream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResumableStream {
    fn new(kind: StreamKind, number: u64, grace: Duration) -> Self {
        Self { kind, number, grace, state: watch::Sender::new(BufferState::new()) }
    }

    /// Takes the messages, and keeps the stream until its time to resume has passed.
    async fn run(self: &Arc<Self>, messages: impl Stream<Item = Bytes> + Send, room: &ReplayBudget) {
        let mut state = self.state.subscribe();
        {
            let mut messages = pin!(messages);
            loop {
                let (has_room, left) = {
                    let state = state.borrow_and_update();
                    if state.is_gone {
                        return;
                    }
                    (state.has_room(), state.left)
                };
                tokio::select! {
                    biased;
                    changed = state.changed() => if changed.is_err() { return },
                    message = messages.next(), if has_room => match message {
                        Some(message) => self.state.send_modify(|state| state.add(message)),
                        None => break,
                    },
                    () = self.expired(left) => return,
                }
            }
        }
        self.state.send_modify(|state| state.is_over = true);
        let mut held = None;
        loop {
            let (left, bytes) = {
                let state = state.borrow_and_update();
                if state.is_gone {
                    return;
                }
                (state.left, state.bytes(0))
            };
            // An ended stream takes no room until its connection ends.
            if left.is_some() && held.is_none() {
                held = room.take(self, bytes);
                if held.is_none() {
                    return;
                }
            }
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return },
                () = self.expired(left) => return,
            }
        }
    }

    /// Waits until the time to resume has passed.
    async fn expired(&self, left: Option<Instant>) {
        match left {
            Some(left) => tokio::time::sleep_until(left + self.grace).await,
            None => std::future::pending().await,
        }
    }

    /// Returns whether everything was sent and no connection is reading.
    fn is_fully_sent(&self) -> bool {
        let state = self.state.borrow();
        state.sent >= state.next && state.left.is_some()
    }

    fn end_without_client(&self) {
        self.state.send_modify(|state| state.is_gone = true);
    }

    /// Opens a connection for the events after this one and returns its number; `None` if too little is kept.
    fn connect(&self, after: u64) -> Option<u64> {
        let mut number = None;
        self.state.send_if_modified(|state| {
            number = state.connect(after);
            number.is_some()
        });
        number
    }

    /// Returns the frames for the connection of this number.
    fn frames<H: Send + 'static>(self: &Arc<Self>, number: u64, held: H) -> impl Stream<Item = Bytes> + Send + use<H> {
        let connection =
            StreamConnection { stream: Arc::clone(self), number, state: self.state.subscribe(), _held: held };
        stream::unfold(connection, |mut connection| async move {
            let frame = connection.frame().await?;
            Some((frame, connection))
        })
    }
}

/// Room for ended streams whose clients are away, over all sessions. Completely sent streams make room for others,
/// oldest first.
pub(super) struct ReplayBudget(Mutex<ReplayRoom>);

struct ReplayRoom {
    left: usize,
    /// Streams with their sizes, oldest first.
    streams: Vec<(Arc<ResumableStream>, usize)>,
}

/// The room of one stream, released on drop.
struct StreamShare<'r> {
    budget: &'r ReplayBudget,
    of: Arc<ResumableStream>,
}

impl ReplayBudget {
    pub(super) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(ReplayRoom { left: bytes, streams: Vec::new() })))
    }

    /// Takes this many bytes if there is enough room. Drops other streams only if that makes enough.
    fn take(&self, of: &Arc<ResumableStream>, bytes: usize) -> Option<StreamShare<'_>> {
        let mut room = self.lock();
        let mut missing = bytes.saturating_sub(room.left);
        let mut evicted = Vec::new();
        for (stream, bytes) in room.streams.iter().filter(|(stream, _)| stream.is_fully_sent()) {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(*bytes);
            evicted.push(Arc::clone(stream));
        }
        if missing > 0 {
            return None;
        }
        evicted.iter().for_each(|stream| room.release_room(stream));
        room.left -= bytes;
        room.streams.push((Arc::clone(of), bytes));
        drop(room);
        evicted.iter().for_each(|stream| stream.end_without_client());
        Some(StreamShare { budget: self, of: Arc::clone(of) })
    }

    fn lock(&self) -> MutexGuard<'_, ReplayRoom> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReplayRoom {
    /// Releases the room of a stream, unless it was already dropped to make room.
    fn release_room(&mut self, of: &Arc<ResumableStream>) {
        if let Some(at) = self.streams.iter().position(|(stream, _)| Arc::ptr_eq(stream, of)) {
            self.left += self.streams.remove(at).1;
        }
    }
}

impl Drop for StreamShare<'_> {
    fn drop(&mut self) {
        self.budget.lock().release_room(&self.of);
    }
}

/// A connection to a stream. When it is dropped, the client may resume.
struct StreamConnection<H> {
    stream: Arc<ResumableStream>,
    number: u64,
    state: watch::Receiver<BufferState>,
    _held: H,
}

impl<H> StreamConnection<H> {
    /// Returns the next frame; `None` at the end, or once another connection has replaced this one. Cancel-safe.
    async fn frame(&mut self) -> Option<Bytes> {
        loop {
            // Marked before reading the state, so that a concurrent change wakes the task.
            self.state.mark_unchanged();
            let mut taken = NextEvent::End;
            self.stream.state.send_if_modified(|state| {
                taken = state.take(self.number);
                matches!(taken, NextEvent::Event(..))
            });
            match taken {
                NextEvent::Event(event, message) => {
                    let id = EventId { kind: self.stream.kind, stream: self.stream.number, event };
                    return Some(numbered(id, &message));
                }
                NextEvent::Nothing => self.state.changed().await.ok()?,
                NextEvent::End => return None,
            }
        }
    }
}

impl<H> Drop for StreamConnection<H> {
    fn drop(&mut self) {
        self.stream.state.send_if_modified(|state| {
            let is_in_force = state.connection == self.number;
            if is_in_force {
                state.left = Some(Instant::now());
            }
            is_in_force
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::mcp::transport::http::event_buffer::EVENTS;

    struct Fixture {
        replay: Arc<ResumableStreams>,
        room: Arc<ReplayBudget>,
        ended: Cancel,
    }

    fn fixture(room: usize) -> Fixture {
        let (room, ended) = (ReplayBudget::new(room), Cancel::new());
        Fixture { replay: ResumableStreams::new(ended.clone(), Arc::clone(&room)), room, ended }
    }

    fn messages(receiver: mpsc::Receiver<Bytes>) -> impl Stream<Item = Bytes> + Send + 'static {
        stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
    }

    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    async fn next(frames: &mut (impl Stream<Item = Bytes> + Unpin)) -> Option<String> {
        let next = tokio::time::timeout(Duration::from_secs(5), frames.next()).await.expect("in time");
        next.map(|frame| String::from_utf8(frame.to_vec()).expect("text"))
    }

    fn event(text: &str) -> EventId {
        EventId::parse(text).expect("an id")
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_stream_continues_at_its_last_event() {
        let Fixture { replay, .. } = fixture(1000);
        let (send, sent) = mpsc::channel(8);
        let mut first = Box::pin(replay.begin(StreamKind::Answer, messages(sent), ()));
        assert_eq!(next(&mut first).await.as_deref(), Some("id: a1-0\ndata:\n\n"));
        send.send("one".into()).await.expect("taken");
        assert_eq!(next(&mut first).await.as_deref(), Some("id: a1-1\ndata: one\n\n"));
        drop(first);
        send.send("two".into()).await.expect("taken");
        settle().await;
        let mut second = Box::pin(replay.resume(event("a1-0"), ()).expect("kept"));
        assert_eq!(next(&mut second).await.as_deref(), Some("id: a1-1\ndata: one\n\n"), "it may have been lost");
        assert_eq!(next(&mut second).await.as_deref(), Some("id: a1-2\ndata: two\n\n"));
        let mut third = Box::pin(replay.resume(event("a1-2"), ()).expect("kept"));
        assert_eq!(next(&mut second).await, None, "another has it");
        drop((second, send));
        assert_eq!(next(&mut third).await, None, "it is over");
        drop(third);
        for (id, is_kept) in [("a1-2", true), ("a1-3", false), ("s1-0", false), ("a2-0", false)] {
            assert_eq!(replay.resume(event(id), ()).is_ok(), is_kept, "{id}");
        }
        tokio::time::sleep(GRACE + Duration::from_secs(1)).await;
        assert!(replay.resume(event("a1-2"), ()).is_err(), "nobody came back");
    }

    #[tokio::test(start_paused = true)]
    async fn kept_streams_are_bounded_and_expire() {
        let Fixture { replay, room, ended } = fixture(10);
        // A client that does not read must not make the stream grow.
        let (send, sent) = mpsc::channel(1);
        let frames = replay.begin(StreamKind::Session, messages(sent), ());
        let mut sent = 0;
        while tokio::time::timeout(Duration::from_secs(1), send.send("x".into())).await.is_ok() {
            sent += 1;
        }
        assert!((EVENTS..=EVENTS + 2).contains(&sent), "{sent}");
        // Nor must a client that reads.
        let mut frames = Box::pin(frames);
        for _ in 0..=EVENTS {
            next(&mut frames).await.expect("an event");
        }
        settle().await;
        assert!(replay.lock()[0].state.borrow().events.len() <= EVENTS);
        drop(frames);
        tokio::time::sleep(GRACE + Duration::from_secs(1)).await;
        assert!(send.is_closed() && replay.lock().is_empty(), "given up as nobody came back");
        // Ended streams share the room of all sessions. They are dropped for others once they were sent.
        for (message, left) in [("12345", 5), ("123456", 4), ("12345678901", 4)] {
            let said = stream::iter([Bytes::from(message)]);
            let mut frames = Box::pin(replay.begin(StreamKind::Answer, said, ()));
            while next(&mut frames).await.is_some() {}
            drop(frames);
            settle().await;
            assert_eq!((replay.lock().len(), room.lock().left), (1, left), "{message}");
        }
        // Beyond the bound, ended streams make room; open ones stay.
        let mut open: Vec<_> =
            (0..=STREAMS).map(|_| Box::pin(replay.begin(StreamKind::Answer, stream::pending(), ()))).collect();
        assert_eq!(replay.lock().len(), STREAMS);
        let mut last = open.pop().expect("one more");
        assert!(next(&mut last).await.is_some(), "it is a stream all the same");
        let number = EventId { kind: StreamKind::Answer, stream: replay.begun.load(Ordering::Relaxed) - 1, event: 0 };
        assert!(replay.resume(number, ()).is_err());
        ended.cancel(toolwright_core::cancel::CancelCause::User);
        settle().await;
        assert!(replay.lock().is_empty());
        assert_eq!(room.lock().left, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn delivered_streams_make_room_for_undelivered_ones() {
        let Fixture { replay, .. } = fixture(10);
        for (is_delivered, expect) in [(true, 1), (true, 2), (false, 3), (false, 3), (true, 3)] {
            let (send, sent) = mpsc::channel(1);
            let mut frames = Box::pin(replay.begin(StreamKind::Answer, messages(sent), ()));
            next(&mut frames).await.expect("an event");
            if !is_delivered {
                drop(frames);
                send.send("12345678".into()).await.expect("taken");
                drop(send);
            } else {
                send.send("12345678".into()).await.expect("taken");
                drop(send);
                while next(&mut frames).await.is_some() {}
                drop(frames);
            }
            settle().await;
            let kept: Vec<u64> = replay.lock().iter().map(|kept| kept.number).collect();
            assert_eq!(kept, [expect], "{is_delivered}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn questions_are_kept_longer_than_progress() {
        use crate::mcp::message::notification;
        let Fixture { replay, .. } = fixture(1000);
        let (send, sent) = mpsc::channel(1);
        let mut frames = Box::pin(replay.begin(StreamKind::Answer, messages(sent), ()));
        next(&mut frames).await.expect("an event");
        // The client does not get these, because its connection broke unnoticed.
        let mut go_out = async |message: &Bytes, count: usize| {
            for _ in 0..count {
                send.send(message.clone()).await.expect("taken");
                next(&mut frames).await.expect("an event");
            }
        };
        let of = |method: &str| notification(method, Some(&serde_json::json!({"x": 1})));
        let (first, second) = (of("notifications/elicitation/complete"), Bytes::from(r#"{"id":1,"method":"m"}"#));
        go_out(&first, 1).await;
        go_out(&of("notifications/progress"), EVENTS).await;
        go_out(&second, 1).await;
        go_out(&of("notifications/message"), EVENTS).await;
        let mut again = Box::pin(replay.resume(event("a1-0"), ()).expect("kept"));
        for expect in [first, second] {
            let expect = String::from_utf8(expect.to_vec()).expect("text");
            assert!(next(&mut again).await.expect("an event").contains(&expect), "{expect}");
        }
        drop(again);
        // Beyond the bound some events are lost, and resuming fails.
        let mut frames = Box::pin(replay.begin(StreamKind::Answer, stream::repeat(Bytes::from("x")), ()));
        for _ in 0..2 * EVENTS {
            next(&mut frames).await.expect("an event");
        }
        let (lost, next) = {
            let all = replay.lock();
            let state = all[1].state.borrow();
            assert!(state.events.len() <= EVENTS + 1, "{}", state.events.len());
            (state.lost, state.next)
        };
        for (number, is_kept) in [(0, false), (lost - 2, false), (lost - 1, true), (next - 1, true)] {
            let id = EventId { kind: StreamKind::Answer, stream: 2, event: number };
            assert_eq!(replay.resume(id, ()).is_ok(), is_kept, "{number} of {lost} to {next}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resent_events_are_kept_until_delivered() {
        let Fixture { replay, .. } = fixture(1000);
        let numbers = stream::iter(1..=4 * EVENTS).map(|number| Bytes::from(number.to_string()));
        let mut first = Box::pin(replay.begin(StreamKind::Answer, numbers, ()));
        // The client gets none of these.
        for _ in 0..EVENTS / 2 {
            next(&mut first).await.expect("an event");
        }
        let mut again = Box::pin(replay.resume(event("a1-0"), ()).expect("kept"));
        assert_eq!(next(&mut first).await, None, "another has it");
        settle().await;
        for number in 1..=4 * EVENTS {
            let expect = format!("id: a1-{number}\ndata: {number}\n\n");
            assert_eq!(next(&mut again).await, Some(expect));
            if number == EVENTS {
                // The client gets none of the following either.
                for _ in 0..9 {
                    next(&mut again).await.expect("an event");
                }
                again = Box::pin(replay.resume(event(&format!("a1-{EVENTS}")), ()).expect("kept"));
            }
            settle().await;
        }
        assert_eq!(next(&mut again).await, None, "it is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_being_resent_is_not_evicted() {
        let Fixture { replay, .. } = fixture(10);
        let begin = || Box::pin(replay.begin(StreamKind::Answer, stream::iter([Bytes::from("12345678")]), ()));
        let mut first = begin();
        while next(&mut first).await.is_some() {}
        drop(first);
        settle().await;
        let mut again = Box::pin(replay.resume(event("a1-0"), ()).expect("kept"));
        drop(begin());
        settle().await;
        assert!(replay.resume(event("a2-0"), ()).is_err(), "there is no room for it");
        assert_eq!(next(&mut again).await.as_deref(), Some("id: a1-1\ndata: 12345678\n\n"));
        // The event was not delivered to that connection either.
        let again = replay.resume(event("a1-0"), ()).expect("kept");
        drop((again, begin()));
        settle().await;
        let mut last = Box::pin(replay.resume(event("a1-0"), ()).expect("kept"));
        assert_eq!(next(&mut last).await.as_deref(), Some("id: a1-1\ndata: 12345678\n\n"));
        assert_eq!(next(&mut last).await, None);
        drop(last);
        settle().await;
        let mut other = begin();
        while next(&mut other).await.is_some() {}
        drop(other);
        settle().await;
        assert!(replay.resume(event("a1-0"), ()).is_err(), "all of it was sent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_has_one_stream_of_its_own() {
        let Fixture { replay, .. } = fixture(10);
        let begin = || Box::pin(replay.begin(StreamKind::Session, stream::pending(), ()));
        let mut first = begin();
        next(&mut first).await.expect("an event");
        let _second = begin();
        assert_eq!(next(&mut first).await, None);
        assert!(replay.resume(event("s1-0"), ()).is_err() && replay.resume(event("s2-0"), ()).is_ok());
    }
}
