//! What servers turn out to refuse, and the other forms in which requests go to them from then on.
//!
//! A name tells much of what a model takes, but neither what its server does nor what a new model does. Where a server
//! answers 400 and says what it does not take, the error says that another form of the request may help; whoever asked
//! asks once more, and this time the request goes out in that form. Only once a form was answered is it the model's for
//! all its requests: what a server says may be about something else. A form that is refused as well is forgotten.

mod apply;
mod table;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest};

pub(crate) use table::Sent;

/// Models of which something is kept, and requests that are tried in another form at one time; past that all are
/// forgotten and found out again.
const MAX_KEPT: usize = 256;
/// Forms that are kept of one model; past that likewise.
const MAX_FORMS: usize = 64;

/// One thing that is left out of a request, or said another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// This schema of an answer, by its hash, is said in words.
    Schema(ContentHash),
    /// Every schema of an answer is said in words.
    Schemas,
    /// That the answer is JSON is said in words.
    Json,
    /// Beside tools the model is told not to think.
    NoEffort,
    /// Beside tools the model is told nothing of thinking.
    SilentEffort,
    /// The limit of an answer goes by the name that Chat Completions had for it before.
    OlderLimit,
    /// Patterns in the schemas of tools and of the answer are said in words.
    NoPatterns,
    /// Thoughts are not asked for.
    NoThoughtsBack,
    /// Thoughts with something else before them are dropped.
    DropForeignThoughts,
    /// A parameter is left out, the one at this place of the table.
    Without(usize),
}

/// The forms that one request goes out in.
#[derive(Debug, Default)]
pub(crate) struct Forms {
    all: Vec<Form>,
    /// What the request is known by, if some of these are tried for it.
    trial: Option<u64>,
}

impl Forms {
    pub(crate) fn has(&self, form: Form) -> bool {
        self.all.contains(&form)
    }
}

/// What is known of all models, and what is being tried.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    taken: HashMap<String, Vec<Form>>,
    tried: HashMap<u64, Vec<Form>>,
}

impl Refusals {
    /// The forms in which `request` goes to `model`.
    pub(crate) fn forms(&self, model: &str, request: &ModelRequest) -> Forms {
        let kept = self.kept();
        let mut all = kept.taken.get(model).cloned().unwrap_or_default();
        if kept.tried.is_empty() {
            return Forms { all, trial: None };
        }
        drop(kept);
        let key = key(model, request);
        let tried = self.kept().tried.get(&key).cloned();
        let trial = tried.is_some().then_some(key);
        all.extend(tried.into_iter().flatten());
        Forms { all, trial }
    }

    /// A request was answered: the forms that were tried for it are those of its model.
    pub(crate) fn answered(&self, model: &str, forms: &Forms) {
        let Some(key) = forms.trial else { return };
        let mut kept = self.kept();
        let Some(tried) = kept.tried.remove(&key) else { return };
        if kept.taken.len() >= MAX_KEPT && !kept.taken.contains_key(model) {
            kept.taken.clear();
        }
        let taken = kept.taken.entry(model.to_owned()).or_default();
        if taken.len() + tried.len() > MAX_FORMS {
            taken.clear();
        }
        tried.into_iter().for_each(|form| {
            if !taken.contains(&form) {
                taken.push(form);
            }
        });
    }

    /// `request` to `model` has failed, having been `sent` in `forms`. If there is a form that it was not in and that
    /// may be taken, the error says that another try may help; else what was tried for it is forgotten.
    pub(crate) fn failed(
        &self,
        model: &str,
        request: &ModelRequest,
        sent: &Sent<'_>,
        forms: Forms,
        error: &mut ModelError,
    ) {
        // What a busy server says is not about the form.
        if error.kind != ModelErrorKind::Invalid {
            return;
        }
        let next = table::next(&error.message.to_lowercase(), sent).filter(|form| !forms.has(*form));
        if next.is_none() && forms.trial.is_none() {
            return;
        }
        let key = forms.trial.unwrap_or_else(|| key(model, request));
        let mut kept = self.kept();
        let Some(form) = next else {
            kept.tried.remove(&key);
            return;
        };
        if kept.tried.len() >= MAX_KEPT && !kept.tried.contains_key(&key) {
            kept.tried.clear();
        }
        let tried = kept.tried.entry(key).or_default();
        // Another caller may have been told the same of the same request.
        if !tried.contains(&form) {
            tried.push(form);
        }
        error.should_retry = Some(true);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request to a model is known by for as long as it is tried.
fn key(model: &str, request: &ModelRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(model.as_bytes());
    // Writing to memory does not fail.
    hasher.write(&serde_json::to_vec(request).unwrap_or_default());
    hasher.finish()
}

#[cfg(test)]
mod tests;
