//! What a server refused, and the form in which later requests go to it.
//!
//! A name tells much of what a model takes, but neither what its server does nor what a new model does. Where a server
//! answers 400 and says what it does not take, the error says that another form of the request may help; whoever asked
//! asks once more, and this time the request goes out in that form. Only once a form was answered is it the model's for
//! all its requests: what a server says may be about something else. Of several that were tried for one request that is
//! the last alone, with those that brought it about: whether the others are needed shows when the next request is
//! refused for the same, or is not. A form that is refused as well is forgotten. What is refused for its value is left
//! out where it is the same again: that says nothing of other values, nor of the other forms that were tried.

mod apply;
mod table;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest};

pub(crate) use table::{AnswerRoom, ParameterState, Sent};

/// Models of which something is kept; past that all are forgotten and found out again.
const MAX_KEPT: usize = 256;
/// Forms that are kept of one model, and requests to it that are tried in another form at one time; past that likewise.
const MAX_FORMS: usize = 64;
/// Values among them: where they differ each time the oldest give way, and nothing else does.
const MAX_VALUES: usize = 16;

/// One thing that is left out of a request, or said another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// This schema of an answer, by its hash, is said in words.
    Schema(ContentHash),
    /// Every schema of an answer is said in words.
    Schemas,
    /// That the answer is JSON is said in words.
    Json,
    /// The shape of an answer is said in words beside tools.
    NoShapeBesideTools,
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
    /// Likewise, where it is like this: what is refused is its value, or that it stands beside others.
    WithoutAs(usize, ParameterState),
    /// No room to think makes the limit of an answer this many tokens or more.
    LimitUnder(u32),
    /// Nor the limit and the question together, as that is estimated.
    WindowUnder(usize),
}

impl Form {
    /// Whether this form can only have been asked for because the request went out in the one `before`.
    fn follows(self, before: Self) -> bool {
        matches!((before, self), (Self::Schema(_) | Self::Schemas, Self::Json) | (Self::NoEffort, Self::SilentEffort))
    }

    /// Whether this form does what `other` does, and more.
    fn replaces(self, other: Self) -> bool {
        match (self, other) {
            (Self::LimitUnder(this), Self::LimitUnder(other)) => this <= other,
            (Self::WindowUnder(this), Self::WindowUnder(other)) => this <= other,
            _ => self == other,
        }
    }
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
pub(crate) struct Refusals(Mutex<HashMap<String, ModelForms>>);

/// What is kept of one model.
#[derive(Debug, Default)]
struct ModelForms {
    taken: Vec<Form>,
    /// By request, so that only a request that was refused says what its other form was good for.
    tried: HashMap<u64, Vec<Form>>,
}

impl ModelForms {
    /// `form` is the model's from now on.
    fn take(&mut self, model: &str, form: Form) {
        if self.taken.contains(&form) {
            return;
        }
        let is_news = self.is_news(form);
        self.taken.retain(|known| !form.replaces(*known));
        let is_value = |form: &Form| matches!(form, Form::WithoutAs(..));
        let values = self.taken.iter().filter(|known| is_value(known)).count();
        if self.taken.len() >= MAX_FORMS || (is_value(&form) && values >= MAX_VALUES) {
            match self.taken.iter().position(is_value) {
                Some(oldest) => drop(self.taken.remove(oldest)),
                None if is_value(&form) => return,
                None => self.taken.clear(),
            }
        }
        self.taken.push(form);
        if is_news {
            log_form(model, form);
        }
    }

    /// Whether an operator is told of a new form: of the values of one parameter, once while any is known.
    fn is_news(&self, form: Form) -> bool {
        let Form::WithoutAs(at, _) = form else { return true };
        !self.taken.iter().any(|known| matches!(known, Form::WithoutAs(other, _) if *other == at))
    }
}

/// Tells what a model is not sent any more.
fn log_form(model: &str, form: Form) {
    match form {
        Form::Without(at) => {
            let parameter = table::name(at);
            let costs = if parameter == "stream_options" { ", so what its answers use is not known" } else { "" };
            tracing::warn!(model, parameter, "the model's server refuses a parameter, which it is sent no more{costs}");
        }
        Form::WithoutAs(at, _) => {
            let parameter = table::name(at);
            tracing::warn!(
                model,
                parameter,
                "the model's server refuses what a parameter is set to, so it is not sent"
            );
        }
        _ => {}
    }
}

impl Refusals {
    /// The forms in which `request` goes to `model`.
    pub(crate) fn forms(&self, model: &str, request: &ModelRequest) -> Forms {
        let (mut all, is_trying) = match self.kept().get(model) {
            None => return Forms::default(),
            Some(kept) => (kept.taken.clone(), !kept.tried.is_empty()),
        };
        if !is_trying {
            return Forms { all, trial: None };
        }
        let key = key(request);
        let tried = self.kept().get(model).and_then(|kept| kept.tried.get(&key).cloned());
        let trial = tried.is_some().then_some(key);
        all.extend(tried.into_iter().flatten());
        Forms { all, trial }
    }

    /// A request was answered: of the forms that were tried for it, the one that brought the answer is its model's.
    pub(crate) fn answered(&self, model: &str, forms: &Forms) {
        let Some(key) = forms.trial else { return };
        let mut all = self.kept();
        let Some(kept) = all.get_mut(model) else { return };
        let Some(tried) = kept.tried.remove(&key) else { return };
        let (of_value, tried): (Vec<Form>, Vec<Form>) =
            tried.into_iter().partition(|form| matches!(form, Form::WithoutAs(..)));
        let last = tried.last().copied();
        let tried = tried.into_iter().filter(|form| last.is_some_and(|last| *form == last || last.follows(*form)));
        for form in tried.chain(of_value) {
            kept.take(model, form);
        }
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
        let words = error.message.to_lowercase();
        let next = match error.kind {
            ModelErrorKind::Invalid => table::next(&words, sent),
            ModelErrorKind::ContextOverflow => table::next_of_overflow(&words, sent),
            // What a busy server says is not about the form, and the request may be made again in this one.
            _ => return,
        };
        let Some(form) = next.filter(|form| !forms.has(*form)) else {
            if let Some(key) = forms.trial
                && let Some(kept) = self.kept().get_mut(model)
            {
                kept.tried.remove(&key);
            }
            return;
        };
        let key = forms.trial.unwrap_or_else(|| key(request));
        let mut all = self.kept();
        if all.len() >= MAX_KEPT && !all.contains_key(model) {
            all.clear();
        }
        let tried = &mut all.entry(model.to_owned()).or_default().tried;
        if tried.len() >= MAX_FORMS && !tried.contains_key(&key) {
            tried.clear();
        }
        let tried = tried.entry(key).or_default();
        // Another caller may have been told the same of the same request.
        if !tried.contains(&form) {
            tried.push(form);
        }
        error.should_retry = Some(true);
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<String, ModelForms>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request is known by for as long as it is tried.
fn key(request: &ModelRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    // Writing to memory does not fail.
    hasher.write(&serde_json::to_vec(request).unwrap_or_default());
    hasher.finish()
}

#[cfg(test)]
mod tests;
