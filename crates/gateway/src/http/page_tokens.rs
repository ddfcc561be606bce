//! The tokens of the web console: one-time links, and the tokens of its pages.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Identity, Token};

/// The most unused links of one sender; beyond this its oldest stops working.
const MAX_LINKS: usize = 16;
/// Open pages of one sender; beyond this its longest unused is signed out.
const MAX_PAGES: usize = 64;
/// How long a page stays signed in without a request.
const IDLE: Duration = Duration::from_secs(12 * 60 * 60);

/// The tokens of the console. They are in memory only: pages sign in again after a restart.
#[derive(Debug)]
pub(crate) struct PageTokens {
    owner: Identity,
    links: Mutex<VecDeque<(Token, Identity)>>,
    pages: Mutex<VecDeque<(Token, Identity, Instant)>>,
}

impl PageTokens {
    pub(crate) fn new(owner: Identity) -> Self {
        Self { owner, links: Mutex::default(), pages: Mutex::default() }
    }

    /// Creates a path that opens the console once, for the owner.
    pub(crate) fn link(&self) -> String {
        self.link_for(self.owner.clone())
    }

    /// Creates a path that opens the console once. Its page may do what this sender may.
    pub(crate) fn link_for(&self, identity: Identity) -> String {
        let text = random();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut links, MAX_LINKS, |(_, of)| *of == identity);
        links.extend(Token::new(text.clone()).map(|token| (token, identity)));
        format!("/#token={text}")
    }

    /// Exchanges a link's token for a page token; the link then expires.
    pub(crate) fn sign_in(&self, link_token: &str) -> Option<String> {
        let identity = {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            let at = links.iter().position(|(link, _)| link.matches(link_token))?;
            links.remove(at)?.1.by_page()
        };
        let text = random();
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|(.., used)| used.elapsed() < IDLE);
        make_room(&mut pages, MAX_PAGES, |(_, of, _)| *of == identity);
        pages.extend(Token::new(text.clone()).map(|token| (token, identity, Instant::now())));
        Some(text)
    }

    /// Returns the sender for whom the page with this token acts.
    pub(crate) fn identity(&self, page_token: &str) -> Option<Identity> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let at = pages.iter().position(|(token, _, used)| token.matches(page_token) && used.elapsed() < IDLE)?;
        // The longest unused page comes first.
        let (token, identity, _) = pages.remove(at)?;
        pages.push_back((token, identity.clone(), Instant::now()));
        Some(identity)
    }
}

/// Removes the sender's first entry if it has `max` of them.
fn make_room<T>(all: &mut VecDeque<T>, max: usize, is_own: impl Fn(&T) -> bool) {
    if all.iter().filter(|one| is_own(one)).count() >= max
        && let Some(first) = all.iter().position(is_own)
    {
        all.remove(first);
    }
}

/// Returns 244 random bits as text.
fn random() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use toolwright_core::session::Principal;

    use super::*;

    #[test]
    fn a_link_opens_the_console_once() {
        let console = PageTokens::new(Identity::owner(&Principal::owner()));
        let link = console.link();
        let token = link.strip_prefix("/#token=").expect("a fragment");
        assert!(console.identity(token).is_none(), "the token of a link is none of a page");
        let page = console.sign_in(token).expect("signs in");
        assert!(console.identity(&page).is_some() && console.identity(token).is_none());
        assert_eq!(console.sign_in(token), None);
        assert_eq!(console.sign_in(&page), None);
    }

    #[test]
    fn links_and_pages_are_bounded() {
        let console = PageTokens::new(Identity::owner(&Principal::owner()));
        let first = console.link();
        let links: Vec<String> = (0..MAX_LINKS).map(|_| console.link()).collect();
        let token = |link: &str| link.strip_prefix("/#token=").map(ToOwned::to_owned).expect("a fragment");
        assert_eq!(console.sign_in(&token(&first)), None);
        let oldest = console.sign_in(&token(&links[0])).expect("signs in");
        for _ in 0..MAX_PAGES {
            console.sign_in(&token(&console.link())).expect("signs in");
        }
        assert!(console.identity(&oldest).is_none());
        let guest = Principal { id: "guest".into(), ..Principal::owner() };
        let (link, page) = (console.link(), console.sign_in(&token(&console.link())).expect("signs in"));
        for _ in 0..=MAX_PAGES {
            console.sign_in(&token(&console.link_for(Identity::owner(&guest)))).expect("signs in");
            console.link_for(Identity::owner(&guest));
        }
        assert!(console.identity(&page).is_some() && console.sign_in(&token(&link)).is_some(), "others' have gone");
    }
}
