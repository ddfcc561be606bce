//! The token budget of the conversation that receives the outcomes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use toolwright_core::catalogue::Entry;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::EstimatedTokens;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::outcome::Outcome;
use toolwright_core::output::{
    DEFAULT_MAX_BYTES, Readers, TOOL_OUTPUT, add_note, json_bytes, noted_outputs, stored_message, stored_note,
};
use toolwright_core::store::{StoreError, StoredOutput};

use super::cap::readers;
use super::{Executor, RunContext};

/// The message that replaces a result for which there is no room at all.
const EXCEEDED: &str = "context window budget exceeded";
/// Files of a result that are named where it does not fit; the text that is stored of it names all.
const MAX_FILES: usize = 8;
/// Set in the extras of such an outcome, and code of the warning.
pub const BUDGET_EXCEEDED: &str = "context_budget_exceeded";

/// Room for the results of a turn, in tokens. All that lands reserves its part under one lock, so that results
/// that come at once cannot take more than there is.
#[derive(Debug, Default)]
pub struct ContextBudget(Mutex<Room>);

/// The figures of a budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Room {
    /// Tokens that a request may have.
    limit: usize,
    /// What the next one has already: conversation and definitions of tools.
    current: usize,
    /// How much of that could be removed.
    removable: usize,
    /// Results that have landed.
    pending: usize,
}

/// Whether older results may give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compact {
    No,
    Yes,
}

impl Room {
    fn has(&self, tokens: usize, compact: Compact) -> bool {
        let removable = if compact == Compact::Yes { self.removable } else { 0 };
        let used = self.current.saturating_sub(removable);
        used.saturating_add(self.pending).saturating_add(tokens) <= self.limit
    }
}

impl ContextBudget {
    /// A budget of `limit` tokens, of which none are used.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Mutex::new(Room { limit, ..Room::default() }))
    }

    /// Tells what the next request has already without the results of this turn, and how much of that could be
    /// removed if need be.
    pub fn holds(&self, current: usize, removable: usize) {
        let mut room = self.room();
        (room.current, room.removable) = (current, removable);
    }

    /// Reserves `tokens`; `None` if they do not fit.
    fn reserve(self: &Arc<Self>, tokens: usize, compact: Compact) -> Option<Reserved> {
        let mut room = self.room();
        room.has(tokens, compact).then(|| {
            room.pending += tokens;
            Reserved { budget: Arc::clone(self), tokens }
        })
    }

    /// Tokens that are left where no older result gives way.
    fn left(&self) -> usize {
        let room = self.room();
        room.limit.saturating_sub(room.current.saturating_add(room.pending))
    }

    /// Takes `tokens` whether they fit or not: something has to be said.
    fn take(&self, tokens: usize) {
        let mut room = self.room();
        room.pending = room.pending.saturating_add(tokens);
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room that is given back unless it is kept: when a call fails or is dropped before its result is committed.
struct Reserved {
    budget: Arc<ContextBudget>,
    tokens: usize,
}

impl Reserved {
    fn keep(mut self) {
        self.tokens = 0;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut room = self.budget.room();
        room.pending = room.pending.saturating_sub(self.tokens);
    }
}

impl Executor {
    /// Reserves room for an outcome in the conversation of its run. One for which there is none is stored, and its
    /// handle takes its place; if that does not fit either, even when older results give way, an error does. Where no
    /// handle can be, older results give way to the whole.
    pub(super) async fn fit(&self, mut outcome: Outcome, entry: &Entry, run: &RunContext) -> Outcome {
        let Some(budget) = run.budget.as_ref().filter(|_| outcome.pending.is_none()) else { return outcome };
        let needed = tokens(&outcome);
        if let Some(reserved) = budget.reserve(needed, Compact::No) {
            reserved.keep();
            return outcome;
        }
        let left = budget.left();
        let kept = self.store_whole(&mut outcome, run).await;
        if kept.is_empty()
            && let Some(reserved) = budget.reserve(needed, Compact::Yes)
        {
            reserved.keep();
            return outcome;
        }
        self.options.services.events.tell(|| Event::BudgetExceeded {
            session: run.session.id.clone(),
            call: outcome.call_id.clone(),
            tool: Some(entry.id().clone()),
            needed: needed as u64,
            left: left as u64,
            handle: kept.first().map(str::to_owned),
        });
        if !kept.is_empty() {
            let message = vec![ContentBlock::text(kept.message(&readers(run)))];
            if let Some(reserved) = budget.reserve(message.iter().map(ContentBlock::tokens).sum(), Compact::Yes) {
                reserved.keep();
                outcome.content = message;
                outcome.structured = None;
                return outcome;
            }
        }
        self.no_room(outcome, &kept, budget)
    }

    /// Stores all of an outcome that a model would see, but for what is stored already: its text, its images and other
    /// files. What cannot be stored is not lost without a word: then the outcome counts as not stored.
    async fn store_whole(&self, outcome: &mut Outcome, run: &RunContext) -> Kept {
        if readers(run).is_empty() {
            return Kept::default();
        }
        match self.try_store_whole(outcome, run).await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!("a result that does not fit the conversation was not stored: {error}");
                Kept::default()
            }
        }
    }

    async fn try_store_whole(&self, outcome: &mut Outcome, run: &RunContext) -> Result<Kept, StoreError> {
        let (outputs, session) = (&self.options.services.outputs, &run.session.id);
        let mut kept = Kept::noted(outcome);
        let mut lines = Vec::new();
        for block in &outcome.content {
            let bytes = block.binary().and_then(|(data, media)| Some((BASE64_STANDARD.decode(data).ok()?, media)));
            let line = match bytes {
                Some((bytes, media)) => {
                    let handle = outputs.put_artifact(session, &bytes, media).await?.handle;
                    let line = format!("{} [kept as a file under the handle {handle}]", block.stand_in());
                    kept.files.push(handle);
                    line
                }
                None => block.stand_in(),
            };
            // What stands in place of a stored part names its handle.
            if !kept.texts.iter().any(|stored| line.contains(&stored.handle)) {
                lines.push(line);
            }
        }
        let text = match &outcome.structured {
            Some(structured) if outcome.content.is_empty() => structured.to_string(),
            _ if lines.len() == kept.files.len() && lines.len() <= MAX_FILES => String::new(),
            _ => lines.join("\n"),
        };
        if !text.trim().is_empty() {
            let stored = outputs.put(session, text.as_bytes()).await?;
            let mut note = stored_note(&stored);
            note["reason"] = BUDGET_EXCEEDED.into();
            add_note(&mut outcome.extras, TOOL_OUTPUT, note);
            kept.texts.push(stored);
        }
        Ok(kept)
    }

    fn no_room(&self, mut outcome: Outcome, kept: &Kept, budget: &ContextBudget) -> Outcome {
        let error = ToolError::new(ErrorKind::ExecutionError, EXCEEDED);
        let kept = if kept.is_empty() { Kept::noted(&outcome).short() } else { kept.short() };
        let content = ContentBlock::text(format!("{}\n{kept}", error.for_model()));
        budget.take(content.tokens());
        let call = &outcome.call_id;
        let message = format!("the result of call {call} does not fit the context window: the next turn is the last");
        self.options.services.events.emit(Event::Warning { code: BUDGET_EXCEEDED.into(), message });
        outcome.extras.insert(BUDGET_EXCEEDED.into(), json!(true));
        Outcome { ok: false, content: vec![content], structured: None, error: Some(error), ..outcome }
    }
}

/// What is stored of an outcome.
#[derive(Debug, Default)]
struct Kept {
    /// Its text, in parts.
    texts: Vec<StoredOutput>,
    /// Handles of its images and other files.
    files: Vec<String>,
}

impl Kept {
    /// What was stored of an outcome before.
    fn noted(outcome: &Outcome) -> Self {
        let texts = outcome.extras.get(TOOL_OUTPUT).map(noted_outputs).unwrap_or_default();
        Self { texts, files: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.files.is_empty()
    }

    fn first(&self) -> Option<&str> {
        self.texts.first().map(|stored| stored.handle.as_str()).or_else(|| self.files.first().map(String::as_str))
    }

    /// What takes the place of the outcome in the conversation.
    fn message(&self, readers: &Readers) -> String {
        let mut lines: Vec<String> = self.texts.iter().map(|stored| stored_message(stored, "", 0, readers)).collect();
        lines.extend(self.of_files());
        lines.join("\n")
    }

    /// The same in as few words as there can be.
    fn short(&self) -> String {
        let text = |stored: &StoredOutput| {
            format!("Its result, {} bytes, is stored under the handle {}.", stored.bytes, stored.handle)
        };
        let mut lines: Vec<String> = self.texts.iter().map(text).collect();
        lines.extend(self.of_files());
        if lines.is_empty() { "Its result was not kept.".into() } else { lines.join("\n") }
    }

    fn of_files(&self) -> Option<String> {
        let named = self.files.get(..self.files.len().min(MAX_FILES)).filter(|named| !named.is_empty())?;
        let rest = self.files.len() - named.len();
        let rest = if rest == 0 { String::new() } else { format!(" and {rest} more files") };
        Some(format!("toolwright stored its images and other files under {}{rest}.", named.join(", ")))
    }
}

/// Estimated tokens of what a model sees of an outcome.
fn tokens(outcome: &Outcome) -> usize {
    match &outcome.structured {
        Some(structured) if outcome.content.is_empty() => {
            EstimatedTokens::of_bytes(json_bytes(structured).min(DEFAULT_MAX_BYTES))
        }
        _ => outcome.content.iter().map(ContentBlock::tokens).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: usize, current: usize, removable: usize) -> Arc<ContextBudget> {
        let budget = Arc::new(ContextBudget::new(limit));
        budget.holds(current, removable);
        budget
    }

    fn check(limit: usize, current: usize, removable: usize, new: usize, whole: bool, compacted: bool) {
        let fits = |compact| budget(limit, current, removable).reserve(new, compact).is_some();
        assert_eq!((fits(Compact::No), fits(Compact::Yes)), (whole, compacted), "{limit} {current} {removable} {new}");
    }

    #[test]
    fn current_pending_and_new_are_within_the_limit() {
        check(1000, 600, 0, 400, true, true);
        check(1000, 600, 0, 401, false, false);
        check(1000, 600, 300, 700, false, true);
        check(1000, 600, 300, 701, false, false);
        check(1000, 2000, 0, 0, false, false);
        check(0, 0, 0, usize::MAX, false, false);
    }

    #[test]
    fn what_is_not_kept_is_given_back() {
        let budget = budget(1000, 0, 0);
        let first = budget.reserve(700, Compact::No).expect("room");
        assert!(budget.reserve(400, Compact::No).is_none(), "it is pending");
        drop(first);
        budget.reserve(1000, Compact::No).expect("room again").keep();
        assert!(budget.reserve(1, Compact::No).is_none(), "kept for good");
    }

    #[test]
    fn results_that_land_at_once_never_overbook() {
        let budget = budget(1000, 100, 0);
        let fitted: usize = std::thread::scope(|scope| {
            let land = || (0..100).filter(|_| budget.reserve(7, Compact::No).map(Reserved::keep).is_some()).count();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(land)).collect();
            threads.into_iter().map(|thread| thread.join().expect("thread")).sum()
        });
        assert_eq!((fitted, budget.room().pending), (128, 896));
    }
}
