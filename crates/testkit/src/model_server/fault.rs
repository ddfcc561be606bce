//! Faults that the server injects while it sends an answer.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

/// A fault while an answer is sent, whole or as a stream. A whole answer is one frame.
///
/// As text: its name in snake case, then its numbers after colons: `cut_after:2`, `drip:5:20` (bytes and milliseconds),
/// `status:429`, `status:429:3` (with `retry-after: 3`), `overload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Fault {
    /// The connection breaks after this many frames (an event or a line).
    CutAfter(usize),
    /// The connection breaks in the middle of the frame after this many.
    CutWithin(usize),
    /// The stream ends normally after this many frames, as if it were complete.
    EndAfter(usize),
    /// Nothing is sent for a minute after this many frames.
    HangAfter(usize),
    /// Nothing is sent for a minute, not even the headers.
    Hang,
    /// The API's error event replaces the rest after this many frames.
    ErrorAfter(usize),
    /// The bytes are sent slowly: this many at a time, with this pause between.
    Drip(usize, Duration),
    /// After this many frames only keep-alive data is sent, every 20 ms, for a minute.
    KeepAlive(usize),
    /// A frame with invalid JSON is sent after this many frames, then the rest.
    Garble(usize),
    /// Correct headers and an empty body.
    Empty,
    /// HTTP 200 with a web page, as from a proxy that wants a login.
    Page,
    /// The correct bytes as `text/plain`.
    Mislabel,
    /// This HTTP status with the API's usual error, and these seconds as `retry-after`.
    Status(u16, Option<u64>),
    /// This HTTP status and these seconds as `retry-after`, then no body for a minute.
    HangingStatus(u16, u64),
    /// The API's status and message of an overloaded server.
    Overload,
}

impl Fault {
    /// Whether the whole answer still arrives.
    pub(super) fn is_harmless(self) -> bool {
        matches!(self, Self::Drip(..) | Self::Mislabel)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutAfter(frames) => write!(f, "cut_after:{frames}"),
            Self::CutWithin(frames) => write!(f, "cut_within:{frames}"),
            Self::EndAfter(frames) => write!(f, "end_after:{frames}"),
            Self::HangAfter(frames) => write!(f, "hang_after:{frames}"),
            Self::Hang => f.write_str("hang"),
            Self::ErrorAfter(frames) => write!(f, "error_after:{frames}"),
            Self::Drip(bytes, pause) => write!(f, "drip:{bytes}:{}", pause.as_millis()),
            Self::KeepAlive(frames) => write!(f, "keep_alive:{frames}"),
            Self::Garble(frames) => write!(f, "garble:{frames}"),
            Self::Empty => f.write_str("empty"),
            Self::Page => f.write_str("page"),
            Self::Mislabel => f.write_str("mislabel"),
            Self::Status(status, None) => write!(f, "status:{status}"),
            Self::Status(status, Some(seconds)) => write!(f, "status:{status}:{seconds}"),
            Self::HangingStatus(status, seconds) => write!(f, "hanging_status:{status}:{seconds}"),
            Self::Overload => f.write_str("overload"),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, figures) = text.split_once(':').unwrap_or((text, ""));
        let figures: Vec<u64> = figures
            .split(':')
            .filter(|figure| !figure.is_empty())
            .map(|figure| figure.parse().map_err(|_| format!("`{figure}` of the fault `{text}` is no figure")))
            .collect::<Result<_, _>>()?;
        let frames = |figure: u64| usize::try_from(figure).unwrap_or(usize::MAX);
        let status = |code: u64| {
            let status = u16::try_from(code).ok().filter(|status| (400..=599).contains(status));
            status.ok_or_else(|| format!("the fault `{text}` needs a status from 400 to 599"))
        };
        Ok(match (name, &*figures) {
            ("cut_after", [n]) => Self::CutAfter(frames(*n)),
            ("cut_within", [n]) => Self::CutWithin(frames(*n)),
            ("end_after", [n]) => Self::EndAfter(frames(*n)),
            ("hang_after", [n]) => Self::HangAfter(frames(*n)),
            ("hang", []) => Self::Hang,
            ("error_after", [n]) => Self::ErrorAfter(frames(*n)),
            ("drip", [bytes, millis]) => Self::Drip(frames(*bytes), Duration::from_millis(*millis)),
            ("keep_alive", [n]) => Self::KeepAlive(frames(*n)),
            ("garble", [n]) => Self::Garble(frames(*n)),
            ("empty", []) => Self::Empty,
            ("page", []) => Self::Page,
            ("mislabel", []) => Self::Mislabel,
            ("status", [code, wait @ ..]) if wait.len() < 2 => Self::Status(status(*code)?, wait.first().copied()),
            ("hanging_status", [code, seconds]) => Self::HangingStatus(status(*code)?, *seconds),
            ("overload", []) => Self::Overload,
            _ => return Err(format!("`{text}` is not a fault, or has other figures than it needs")),
        })
    }
}

impl TryFrom<String> for Fault {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_written_as_they_are_read() {
        let pause = Duration::from_millis(20);
        for (text, fault) in [
            ("cut_after:0", Fault::CutAfter(0)),
            ("cut_within:3", Fault::CutWithin(3)),
            ("end_after:1", Fault::EndAfter(1)),
            ("hang_after:1", Fault::HangAfter(1)),
            ("hang", Fault::Hang),
            ("error_after:2", Fault::ErrorAfter(2)),
            ("drip:5:20", Fault::Drip(5, pause)),
            ("keep_alive:1", Fault::KeepAlive(1)),
            ("garble:1", Fault::Garble(1)),
            ("empty", Fault::Empty),
            ("page", Fault::Page),
            ("mislabel", Fault::Mislabel),
            ("status:503", Fault::Status(503, None)),
            ("status:429:3", Fault::Status(429, Some(3))),
            ("hanging_status:429:1", Fault::HangingStatus(429, 1)),
            ("overload", Fault::Overload),
        ] {
            assert_eq!((text.parse(), fault.to_string().as_str()), (Ok(fault), text));
        }
        for text in ["", "cut_after", "cut_after:x", "hang:1", "drip:5", "status:200", "status:429:1:2"] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }
}
