//! The tokens of the web console: of links that open it once, and of its pages.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Token;

/// Links that have not been used; of more the oldest stop working.
const MAX_LINKS: usize = 16;
/// Pages at once; of more the longest unused are signed out.
const MAX_PAGES: usize = 64;
/// How long a page stays signed in without a request.
const IDLE: Duration = Duration::from_secs(12 * 60 * 60);

/// The tokens of the console's pages. They are kept in memory: a page signs in again after a restart.
#[derive(Debug, Default)]
pub(crate) struct PageTokens {
    links: Mutex<VecDeque<Token>>,
    pages: Mutex<VecDeque<(Token, Instant)>>,
}

impl PageTokens {
    /// A path that opens the console once.
    pub(crate) fn link(&self) -> String {
        let text = random();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if links.len() == MAX_LINKS {
            links.pop_front();
        }
        links.extend(Token::new(text.clone()));
        format!("/#token={text}")
    }

    /// The token for a page that has that of a link, which counts no more.
    pub(crate) fn sign_in(&self, given: &str) -> Option<String> {
        {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            let at = links.iter().position(|link| link.matches(given))?;
            links.remove(at);
        }
        let text = random();
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|(_, used)| used.elapsed() < IDLE);
        if pages.len() == MAX_PAGES {
            pages.pop_front();
        }
        pages.extend(Token::new(text.clone()).map(|token| (token, Instant::now())));
        Some(text)
    }

    /// Whether this is the token of a page.
    pub(crate) fn knows(&self, given: &str) -> bool {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = pages.iter().position(|(token, used)| token.matches(given) && used.elapsed() < IDLE) else {
            return false;
        };
        // The longest unused stands first.
        let page = pages.remove(at).map(|(token, _)| (token, Instant::now()));
        pages.extend(page);
        true
    }
}

/// 244 random bits.
fn random() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_opens_the_console_once() {
        let console = PageTokens::default();
        let link = console.link();
        let token = link.strip_prefix("/#token=").expect("a fragment");
        assert!(!console.knows(token), "the token of a link is none of a page");
        let page = console.sign_in(token).expect("signs in");
        assert!(console.knows(&page) && !console.knows(token));
        assert_eq!(console.sign_in(token), None);
        assert_eq!(console.sign_in(&page), None);
    }

    #[test]
    fn links_and_pages_are_bounded() {
        let console = PageTokens::default();
        let first = console.link();
        let links: Vec<String> = (0..MAX_LINKS).map(|_| console.link()).collect();
        let token = |link: &str| link.strip_prefix("/#token=").map(ToOwned::to_owned).expect("a fragment");
        assert_eq!(console.sign_in(&token(&first)), None);
        let oldest = console.sign_in(&token(&links[0])).expect("signs in");
        for _ in 0..MAX_PAGES {
            console.sign_in(&token(&console.link())).expect("signs in");
        }
        assert!(!console.knows(&oldest));
    }
}
