//! Severity of log messages (`LoggingLevel`, the words of RFC 5424).

use serde_json::Value;

/// How severe a log message is; the order is that of severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// For who debugs.
    Debug,
    /// Usual events.
    Info,
    /// Usual, but significant.
    Notice,
    /// May become an error.
    Warning,
    /// Something failed.
    Error,
    /// A part failed.
    Critical,
    /// To be acted upon at once.
    Alert,
    /// The system is not usable.
    Emergency,
}

impl Level {
    /// All levels, the least severe first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }

    /// The level of this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == word)
    }

    /// The level of a message (the parameters of `notifications/message`). One without a known level counts as an
    /// error: nobody's filter may lose it.
    #[must_use]
    pub fn of_message(message: &Value) -> Self {
        message.get("level").and_then(Value::as_str).and_then(Self::parse).unwrap_or(Self::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_are_levels_in_the_order_of_severity() {
        for (n, level) in Level::ALL.into_iter().enumerate() {
            assert_eq!((Level::parse(level.as_str()), level as usize), (Some(level), n));
        }
        assert!(Level::Debug < Level::Warning && Level::parse("warn").is_none());
        assert_eq!(Level::of_message(&json!({"level": "notice"})), Level::Notice);
        assert_eq!(Level::of_message(&json!({"data": 1})), Level::Error);
    }
}
