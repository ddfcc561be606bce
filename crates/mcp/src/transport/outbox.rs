//! Queues messages to a child's standard input: messages that are sent together go out in one write.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;

use super::{Outgoing, OutgoingKind, PipeIncoming, RequestId, SendError};

/// Bytes that may wait to be written; above that senders wait. A single message may be larger.
const MAX_WAITING: usize = 1 << 20;

/// Messages that wait for the task that writes them.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// Something waits, or no more will.
    more: Notify,
    /// Enough waits to keep the server busy; wakes a writer that waits for more.
    enough: Notify,
    /// Held by the sender that waits for room, so that messages keep their order.
    turn: tokio::sync::Mutex<()>,
    /// There is room again, or the outbox is closed.
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    batch: Batch,
    /// Requests that wait for room, or behind others.
    outside: Vec<RequestId>,
    /// Set once it is closed, with the reason.
    closed: Option<String>,
}

impl State {
    fn has_room(&self) -> bool {
        self.batch.lines.len() < MAX_WAITING
    }
}

/// Whole lines, to be written together.
#[derive(Debug, Default)]
struct Batch {
    lines: Vec<u8>,
    /// The requests among them, each with its first byte and the one after its last.
    requests: Vec<(RequestId, usize, usize)>,
}

impl Batch {
    fn push(&mut self, message: Outgoing<'_>) {
        let start = self.lines.len();
        if self.lines.is_empty() && self.lines.capacity() < message.json.len() {
            self.lines = message.json;
        } else {
            self.lines.extend_from_slice(&message.json);
        }
        self.lines.push(b'\n');
        if let OutgoingKind::Request { id, .. } = message.kind {
            self.requests.push((id, start, self.lines.len()));
        }
    }

    /// Removes a request. Returns whether it was there.
    fn remove(&mut self, id: RequestId) -> bool {
        let Some(index) = self.requests.iter().position(|(other, ..)| *other == id) else { return false };
        let (_, start, end) = self.requests.remove(index);
        self.lines.drain(start..end);
        for (_, later, its_end) in &mut self.requests[index..] {
            *later -= end - start;
            *its_end -= end - start;
        }
        true
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.lines.clear();
        self.lines.shrink_to(MAX_WAITING);
    }
}

impl Outbox {
    /// Queues a message after all earlier ones. Waits only for room. If a request cannot be written, the inbox
    /// reports that to it.
    ///
    /// # Errors
    /// [`SendError::NotSent`]: the outbox is closed.
    pub(crate) async fn send(&self, message: Outgoing<'_>) -> Result<(), SendError> {
        let mut standing = None;
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                standing = self.register_waiting(&message);
                self.turn.lock().await
            }
        };
        let _turn = turn;
        loop {
            {
                let mut state = self.lock();
                if let Some(id) = standing.take_if(|_| state.closed.is_some() || state.has_room()) {
                    state.outside.retain(|other| *other != id);
                }
                if let Some(reason) = &state.closed {
                    return Err(SendError::NotSent(reason.clone()));
                }
                if state.has_room() {
                    state.batch.push(message);
                    break;
                }
            }
            standing = standing.or_else(|| self.register_waiting(&message));
            self.room.notified().await;
        }
        self.more.notify_one();
        Ok(())
    }

    /// Call after sending: writes the queue if the server has no other work. A busy server gets larger
    /// batches, which cost it least; a server that would become idle does not wait for further
    /// senders.
    pub(crate) fn flush_if_idle(&self, inbox: &dyn PipeIncoming) {
        if self.is_enough(inbox) {
            self.enough.notify_waiters();
        }
    }

    fn is_enough(&self, inbox: &dyn PipeIncoming) -> bool {
        let waiting = self.lock().batch.requests.len();
        inbox.in_flight().saturating_sub(waiting) <= waiting
    }

    /// Registers a request that has to wait for room; `None` for other messages.
    fn register_waiting(&self, message: &Outgoing<'_>) -> Option<RequestId> {
        let OutgoingKind::Request { id, .. } = message.kind else { return None };
        self.lock().outside.push(id);
        Some(id)
    }

    /// Removes an abandoned request that was not written yet, or is still waiting for room. Returns
    /// whether it was removed.
    pub(crate) fn take_back(&self, id: RequestId) -> bool {
        let was_there = {
            let mut state = self.lock();
            let outside = state.outside.iter().position(|other| *other == id);
            outside.map(|at| state.outside.swap_remove(at)).is_some() || state.batch.remove(id)
        };
        self.room.notify_one();
        was_there
    }

    /// Closes it. Waiting requests are not sent and are told so; other waiting messages are still written.
    pub(crate) fn close(&self, reason: &str, inbox: &dyn PipeIncoming) {
        let waiting = {
            let mut state = self.lock();
            state.closed.get_or_insert_with(|| reason.to_owned());
            let waiting: Vec<RequestId> = state.batch.requests.iter().map(|(id, ..)| *id).collect();
            for &id in &waiting {
                state.batch.remove(id);
            }
            waiting
        };
        self.more.notify_one();
        self.room.notify_one();
        for id in waiting {
            inbox.request_failed(id, SendError::NotSent(reason.to_owned()));
        }
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed.is_some()
    }

    /// Writes messages until [`Outbox::close`] and the last message.
    ///
    /// # Errors
    /// `input` broke; then the outbox is closed.
    pub(crate) async fn write(
        &self,
        mut input: impl AsyncWrite + Unpin,
        inbox: &dyn PipeIncoming,
    ) -> Result<(), String> {
        let mut batch = Batch::default();
        loop {
            self.more.notified().await;
            if !self.is_enough(inbox) {
                // Calls that are ready to run are about to send as well.
                tokio::select! {
                    () = self.enough.notified() => {}
                    () = tokio::task::yield_now() => {}
                }
            }
            let is_last = {
                let mut state = self.lock();
                std::mem::swap(&mut state.batch, &mut batch);
                state.closed.is_some()
            };
            self.room.notify_one();
            let mut written = 0;
            if let Err(error) = write_all(&mut input, &batch.lines, &mut written).await {
                return Err(self.fail_unwritten(&error, batch, written, inbox));
            }
            if is_last {
                return Ok(());
            }
            batch.clear();
        }
    }

    /// Reports every unwritten request as failed, with the reason.
    fn fail_unwritten(&self, error: &io::Error, batch: Batch, written: usize, inbox: &dyn PipeIncoming) -> String {
        let closed = format!("the server closed its standard input ({error})");
        self.close(&closed, inbox);
        for (id, start, end) in batch.requests {
            match written {
                _ if end <= written => {}
                _ if start < written => {
                    inbox.request_failed(id, SendError::Broken(format!("the server's input broke ({error})")));
                }
                _ => inbox.request_failed(id, SendError::NotSent(closed.clone())),
            }
        }
        closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes all bytes and counts those written, even on failure.
async fn write_all(input: &mut (impl AsyncWrite + Unpin), bytes: &[u8], written: &mut usize) -> io::Result<()> {
    while *written < bytes.len() {
        match input.write(&bytes[*written..]).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => *written += count,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use tokio::io::AsyncReadExt as _;
    use toolwright_core::event::NoEvents;

    use super::*;
    use crate::client::connection::inbox::listener::Listener;
    use crate::client::connection::inbox::{Inbox, RequestOutcome, RequestPurpose};
    use crate::config::AsTools;

    const SHORT: Duration = Duration::from_millis(50);

    fn inbox() -> Arc<Inbox> {
        Inbox::new(Listener::new("s".into(), Arc::new(NoEvents), Arc::new(|| {}), AsTools::No))
    }

    fn message(id: Option<RequestId>, json: impl Into<Vec<u8>>) -> Outgoing<'static> {
        let kind = match id {
            Some(id) => OutgoingKind::Request { id, method: "m", name: None },
            None => OutgoingKind::Response,
        };
        Outgoing { json: json.into(), kind, version: None, headers: Vec::new() }
    }

    /// Notes each write, and breaks after so many bytes.
    struct Input {
        writes: Arc<Mutex<Vec<String>>>,
        left: usize,
    }

    impl AsyncWrite for Input {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.left);
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            self.left -= count;
            let written = String::from_utf8_lossy(&bytes[..count]).into_owned();
            self.writes.lock().expect("writes").push(written);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn messages_sent_together_share_one_write() {
        let (outbox, writes) = (Outbox::default(), Arc::default());
        let inbox = inbox();
        for json in ["1", "22", "333"] {
            outbox.send(message(None, json)).await.expect("taken");
        }
        outbox.close("closed", &*inbox);
        outbox.write(Input { writes: Arc::clone(&writes), left: 1000 }, &*inbox).await.expect("written");
        assert_eq!(*writes.lock().expect("writes"), ["1\n22\n333\n"]);
        assert_eq!(outbox.send(message(None, "4")).await, Err(SendError::NotSent("closed".to_owned())));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn idle_servers_get_one_request_busy_ones_several() {
        for (busy_with, expect) in [(0, vec![1, 1, 2]), (1, vec![1, 2, 1]), (9, vec![4])] {
            let (outbox, inbox, writes) = (Arc::new(Outbox::default()), inbox(), Arc::<Mutex<Vec<String>>>::default());
            let register = |id| inbox.register(id, RequestPurpose::Internal).map_err(drop).expect("room");
            let _busy: Vec<_> = (100..100 + busy_with).map(register).collect();
            let writer = {
                let (outbox, inbox, writes) = (Arc::clone(&outbox), Arc::clone(&inbox), Arc::clone(&writes));
                tokio::spawn(async move { outbox.write(Input { writes, left: 1000 }, &*inbox).await })
            };
            let calls = {
                let (outbox, inbox) = (Arc::clone(&outbox), Arc::clone(&inbox));
                async move {
                    // The writer runs before them.
                    tokio::task::yield_now().await;
                    for id in 1..=4 {
                        let (outbox, inbox) = (Arc::clone(&outbox), Arc::clone(&inbox));
                        tokio::spawn(async move {
                            let answer = inbox.register(id, RequestPurpose::Internal).map_err(drop).expect("room");
                            outbox.send(message(Some(id), id.to_string())).await.expect("taken");
                            outbox.flush_if_idle(&*inbox);
                            // A call still waits.
                            answer.await.ok();
                        });
                    }
                }
            };
            tokio::spawn(calls).await.expect("calls");
            let lines = || writes.lock().expect("writes").iter().map(|write| write.lines().count()).collect::<Vec<_>>();
            let all = async {
                while lines().iter().sum::<usize>() < 4 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), all).await.expect("they are written");
            outbox.close("closed", &*inbox);
            writer.await.expect("writer").expect("written");
            assert_eq!(lines(), expect, "busy with {busy_with}");
        }
    }

    #[tokio::test]
    async fn abandoned_requests_not_begun_are_not_sent() {
        let (outbox, inbox, writes) = (Outbox::default(), inbox(), Arc::default());
        for (id, json) in [(1, "1"), (2, "22"), (3, "333"), (4, "4444")] {
            outbox.send(message(Some(id), json)).await.expect("taken");
        }
        outbox.send(message(None, "n")).await.expect("taken");
        assert!(outbox.take_back(2) && outbox.take_back(3) && !outbox.take_back(3) && !outbox.take_back(9));
        let fourth = inbox.register(4, RequestPurpose::Internal).map_err(drop).expect("room");
        outbox.write(Input { writes: Arc::clone(&writes), left: 2 }, &*inbox).await.expect_err("broken");
        assert_eq!(*writes.lock().expect("writes"), ["1\n"], "and then `4444`, which breaks");
        assert!(matches!(fourth.await, Ok(RequestOutcome::Lost(SendError::NotSent(_)))));
        assert!(!outbox.take_back(1), "it was written");
    }

    #[tokio::test]
    async fn closing_connections_refuse_to_send_requests() {
        let (outbox, inbox, writes) = (Outbox::default(), inbox(), Arc::default());
        let answer = inbox.register(1, RequestPurpose::Internal).map_err(drop).expect("room");
        outbox.send(message(None, "a")).await.expect("taken");
        outbox.send(message(Some(1), "call")).await.expect("taken");
        outbox.send(message(None, "b")).await.expect("taken");
        outbox.close("it ends", &*inbox);
        outbox.write(Input { writes: Arc::clone(&writes), left: 1000 }, &*inbox).await.expect("written");
        assert_eq!(*writes.lock().expect("writes"), ["a\nb\n"]);
        assert!(matches!(answer.await, Ok(RequestOutcome::Lost(SendError::NotSent(reason))) if reason == "it ends"));
    }

    #[tokio::test]
    async fn requests_dropped_early_never_go_out() {
        let outbox = Outbox::default();
        outbox.send(message(None, vec![b'a'; MAX_WAITING])).await.expect("one message may be as large");
        // The first waits for room, the second for the first.
        let (first, second) = (outbox.send(message(Some(1), "1")), outbox.send(message(Some(2), "2")));
        tokio::time::timeout(SHORT, futures_util::future::join(first, second)).await.expect_err("no room");
        assert!(outbox.take_back(1) && outbox.take_back(2), "nothing of them is to be told to the server");
        assert!(!outbox.take_back(1) && !outbox.take_back(2), "they are forgotten");
        outbox.lock().batch.clear();
        outbox.send(message(Some(3), "3")).await.expect("taken");
        assert!(outbox.lock().outside.is_empty());
    }

    #[tokio::test]
    async fn requests_in_flight_wait_for_queued_ones() {
        let (outbox, inbox, writes) = (Arc::new(Outbox::default()), inbox(), Arc::default());
        let _first = inbox.register(1, RequestPurpose::Internal).map_err(drop).expect("room");
        let _second = inbox.register(2, RequestPurpose::Internal).map_err(drop).expect("room");
        let _at_the_server = inbox.register(3, RequestPurpose::Internal).map_err(drop).expect("room");
        outbox.send(message(Some(1), "1")).await.expect("taken");
        let later = {
            let outbox = Arc::clone(&outbox);
            async move { outbox.send(message(Some(2), "2")).await.expect("taken") }
        };
        let written = outbox.write(Input { writes: Arc::clone(&writes), left: 4 }, &*inbox);
        tokio::join!(tokio::time::timeout(SHORT, written), later).0.map(drop).expect_err("it goes on");
        assert_eq!(*writes.lock().expect("writes"), ["1\n2\n"]);
    }

    #[tokio::test]
    async fn broken_pipe_errors_give_the_requests_progress() {
        // Bytes written before the pipe breaks, and the results of the requests `11`, `22` and `33`.
        for (left, expect) in [
            (0, ["not sent", "not sent", "not sent"]),
            (3, ["waits", "not sent", "not sent"]),
            (4, ["waits", "broken", "not sent"]),
            (8, ["waits", "waits", "broken"]),
        ] {
            let (outbox, inbox) = (Outbox::default(), inbox());
            let mut answers = Vec::new();
            for id in [1, 2, 3] {
                answers.push(inbox.register(id, RequestPurpose::Internal).map_err(drop).expect("room"));
                outbox.send(message(Some(id), id.to_string().repeat(2))).await.expect("taken");
            }
            outbox.write(Input { writes: Arc::default(), left }, &*inbox).await.expect_err("broken");
            let ends = answers.iter_mut().map(|answer| match answer.try_recv() {
                Ok(RequestOutcome::Lost(SendError::NotSent(_))) => "not sent",
                Ok(RequestOutcome::Lost(SendError::Broken(_))) => "broken",
                Ok(_) => "something else",
                // Whether it had an effect is known when the connection ends.
                Err(_) => "waits",
            });
            assert_eq!(ends.collect::<Vec<_>>(), expect, "{left} bytes");
            assert!(matches!(outbox.send(message(None, "4")).await, Err(SendError::NotSent(_))));
        }
    }

    #[tokio::test]
    async fn senders_wait_while_the_outbox_is_full() {
        let (outbox, inbox) = (Outbox::default(), inbox());
        outbox.send(message(None, vec![b'a'; MAX_WAITING])).await.expect("one message may be as large");
        tokio::time::timeout(SHORT, outbox.send(message(None, "b"))).await.expect_err("no room");
        let (writer, mut reader) = tokio::io::duplex(1 << 16);
        let read = async {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).await.expect("read");
            read
        };
        let send = async {
            outbox.send(message(None, "c")).await.expect("taken");
            outbox.close("closed", &*inbox);
        };
        let (read, written, ()) = tokio::join!(read, outbox.write(writer, &*inbox), send);
        written.expect("written");
        assert_eq!(read.split(|byte| *byte == b'\n').map(<[u8]>::len).collect::<Vec<_>>(), [MAX_WAITING, 1, 0]);
    }
}
