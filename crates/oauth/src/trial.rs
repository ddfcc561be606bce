//! Whether the server takes the token that was got for it. One that it refuses as soon as it has it, for another
//! audience or a closed account, is not made good by the next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;

/// How long a token counts as new, and how long none is got after a new one was refused.
const PAUSE: Duration = Duration::from_secs(60);

/// The token that was got last, until the server has taken it.
#[derive(Default)]
pub(crate) struct Trial {
    /// Whether anything is known: nearly all requests are accepted, and need no more than this.
    is_on: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// What was given and has not been sent, or not been answered.
    given: Option<Moment>,
    /// What was refused when it was new.
    refused: Option<Moment>,
}

/// When something happened to which token, as it is sent.
struct Moment {
    since: Instant,
    token: HeaderValue,
}

impl Moment {
    fn now(token: HeaderValue) -> Self {
        Self { since: Instant::now(), token }
    }

    fn is_recent(&self) -> bool {
        self.since.elapsed() < PAUSE
    }
}

impl Trial {
    /// A token was got.
    pub(crate) fn begin(&self, token: HeaderValue) {
        self.lock().given = Some(Moment::now(token));
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// The server took what was sent. That it takes what it has refused shows that it refuses what was asked: another
    /// token would not change that.
    pub(crate) fn accepted(&self, sent: Option<&HeaderValue>) {
        let Some(sent) = sent.filter(|_| self.is_on.load(Ordering::Relaxed)) else { return };
        let mut known = self.lock();
        known.given = known.given.take().filter(|given| given.is_recent() && given.token != *sent);
        known.refused = known.refused.take().filter(|refused| refused.is_recent() && refused.token == *sent);
        self.is_on.store(known.given.is_some() || known.refused.is_some(), Ordering::Relaxed);
    }

    /// The server refused what was sent. Whether another token would be refused, too.
    pub(crate) fn is_refused(&self, sent: Option<&HeaderValue>) -> bool {
        let mut known = self.lock();
        if known.refused.as_ref().is_some_and(Moment::is_recent) {
            return true;
        }
        let new = known.given.take_if(|given| given.is_recent() && Some(&given.token) == sent);
        known.refused = new.map(|given| Moment::now(given.token));
        known.refused.is_some()
    }

    /// Whether the server has refused a new token a moment ago.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().refused.as_ref().is_some_and(Moment::is_recent)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_that_is_refused_is_the_last_until_the_server_takes_another() {
        let trial = Trial::default();
        let [old, new, other] = ["old", "new", "other"].map(HeaderValue::from_static);
        assert!(!trial.is_refused(Some(&old)), "nothing is known of it");
        trial.begin(new.clone());
        assert!(!trial.is_refused(Some(&old)), "it is of before");
        assert!(trial.is_refused(Some(&new)) && trial.has_failed());
        assert!(trial.is_refused(Some(&other)) && trial.is_refused(None));
        trial.accepted(Some(&new));
        assert!(trial.is_refused(Some(&new)), "it takes it for something else");
        trial.accepted(Some(&other));
        assert!(!trial.is_refused(Some(&other)) && !trial.has_failed());
        trial.begin(new.clone());
        trial.accepted(Some(&new));
        assert!(!trial.is_refused(Some(&new)), "it was good once");
    }
}
