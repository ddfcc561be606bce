//! The kept events of one stream: their ids, and which ones may be dropped.

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;
use tokio::time::Instant;

/// The most unread events of one stream. The same number of sent events is kept.
pub(super) const EVENTS: usize = 64;
const BYTES: usize = 256 << 10;
/// Prefixes of messages that a client can afford to miss: progress, and log messages.
const DROPPABLE_PREFIXES: [&[u8]; 2] =
    [br#"{"jsonrpc":"2.0","method":"notifications/progress""#, br#"{"jsonrpc":"2.0","method":"notifications/message""#];

/// The number of a stream's first connection.
pub(super) const FIRST_CONNECTION: u64 = 0;

/// The kind of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// The answer to a request.
    Answer,
    /// Notifications outside of requests. A session has one such stream.
    Session,
}

/// The id of an event, unique in its session: `a7-3` is event 3 of stream 7, an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventId {
    pub(super) kind: StreamKind,
    pub(super) stream: u64,
    pub(super) event: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            StreamKind::Answer => 'a',
            StreamKind::Session => 's',
        };
        write!(f, "{kind}{}-{}", self.stream, self.event)
    }
}

impl EventId {
    /// Parses a client's `Last-Event-ID`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = match text.as_bytes().first()? {
            b'a' => (StreamKind::Answer, text.get(1..)?),
            b's' => (StreamKind::Session, text.get(1..)?),
            _ => return None,
        };
        let (stream, event) = rest.split_once('-')?;
        Some(Self { kind, stream: stream.parse().ok()?, event: event.parse().ok()? })
    }
}

/// The events of a stream, and its connection.
pub(super) struct BufferState {
    /// By number, oldest first.
    pub(super) events: VecDeque<(u64, Bytes)>,
    /// The number of the next event.
    pub(super) next: u64,
    /// The number below which events were dropped that a client must not miss.
    pub(super) lost: u64,
    /// Events below this number were given to the current connection, or arrived before it.
    pub(super) sent: u64,
    /// Whether no more events will come.
    pub(super) is_over: bool,
    /// Whether the stream was dropped.
    pub(super) is_gone: bool,
    /// The number of the current connection.
    pub(super) connection: u64,
    /// When the last connection ended; `None` while there is one.
    pub(super) left: Option<Instant>,
}

/// The next item for a connection.
pub(super) enum NextEvent {
    /// The event of this number.
    Event(u64, Bytes),
    /// No event yet.
    Nothing,
    /// The end of the stream, or of a connection that another one has replaced.
    End,
}

impl BufferState {
    /// Creates a stream whose first event is empty, so that a client has an event id from the start.
    pub(super) fn new() -> Self {
        Self {
            events: VecDeque::from([(0, Bytes::new())]),
            next: 1,
            lost: 0,
            sent: 0,
            is_over: false,
            is_gone: false,
            connection: FIRST_CONNECTION,
            left: None,
        }
    }

    pub(super) fn bytes(&self, from: u64) -> usize {
        self.events.iter().filter(|(number, _)| *number >= from).map(|(_, event)| event.len()).sum()
    }

    /// Returns whether its client is not too far behind.
    pub(super) fn has_room(&self) -> bool {
        let waiting = self.next.saturating_sub(self.sent);
        waiting < EVENTS as u64 && self.bytes(self.sent) < BYTES
    }

    pub(super) fn add(&mut self, message: Bytes) {
        self.events.push_back((self.next, message));
        self.next += 1;
        self.prune();
    }

    /// Makes a new connection the current one. Returns its number; it gets the events after `after`. `None` if there
    /// was no such event, or later events are lost. Events that the old connection took but did not deliver count as
    /// unsent.
    pub(super) fn connect(&mut self, after: u64) -> Option<u64> {
        if after >= self.next || after + 1 < self.lost {
            return None;
        }
        self.sent = after + 1;
        self.left = None;
        self.connection += 1;
        Some(self.connection)
    }

    /// Returns the next event for this connection.
    pub(super) fn take(&mut self, connection: u64) -> NextEvent {
        if connection != self.connection {
            return NextEvent::End;
        }
        match self.events.iter().find(|(number, _)| *number >= self.sent).cloned() {
            Some((number, event)) => {
                self.sent = number + 1;
                self.prune();
                NextEvent::Event(number, event)
            }
            None if self.is_over || self.is_gone => NextEvent::End,
            None => NextEvent::Nothing,
        }
    }

    /// Drops the oldest sent events beyond the bound, passing messages first. The last event stays: it may be the
    /// answer, and its connection may break while it goes out.
    fn prune(&mut self) {
        let (sent, next) = (self.sent, self.next);
        let may_go = |number: u64| number < sent && number + 1 < next;
        while self.events.len() > EVENTS || self.bytes(0) > BYTES {
            let passing = self.events.iter().position(|(number, message)| may_go(*number) && is_droppable(message));
            if passing.is_some_and(|at| self.events.remove(at).is_some()) {
                continue;
            }
            match self.events.pop_front_if(|(number, _)| may_go(*number)) {
                Some((number, _)) => self.lost = number + 1,
                None => break,
            }
        }
    }
}

/// Returns whether a client can afford to miss this message.
fn is_droppable(message: &[u8]) -> bool {
    // The first event of a stream is empty.
    message.is_empty() || DROPPABLE_PREFIXES.iter().any(|begin| message.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        for text in ["a1-0", "s12-345"] {
            assert_eq!(EventId::parse(text).expect("an id").to_string(), text);
        }
        for text in ["", "a", "a1", "a-1", "b1-1", "a1-x", "é1-1", "a1-1-1", "1-1"] {
            assert_eq!(EventId::parse(text), None, "{text}");
        }
    }
}
