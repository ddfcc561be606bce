//! What a server refused, and the form in which later requests go to it.
//!
//! A name tells much of what a model takes, but neither what its server does nor what a new model does. Where a server
//! answers 400 and says what it does not take, the error says that another form of the request may help; whoever asked
//! asks once more, and this time the request goes out in that form. Only once a form was answered is it the model's for
//! all its requests: what a server says may be about something else. Of several that were tried for one request that is
//! the last alone, with those that brought it about: whether the others are needed shows when the next request is
//! refused for the same, or is not. A form that is refused as well is forgotten. What is refused for its value is left
//! out where it is the same again: that says nothing of other values, nor of the other forms that were tried.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest, ModelSettings, OutputFormat};

use super::refusal_table::{self, PARAMETERS, patterns_in_words, this_shape};
pub(crate) use super::refusal_table::{AnswerRoom, ParameterState, Sent};
use crate::api::{Api, EncodedRequest};
use crate::codec::anthropic;
use crate::codec::request::with_instruction;

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
            let parameter = refusal_table::name(at);
            let costs = if parameter == "stream_options" { ", so what its answers use is not known" } else { "" };
            tracing::warn!(model, parameter, "the model's server refuses a parameter, which it is sent no more{costs}");
        }
        Form::WithoutAs(at, _) => {
            let parameter = refusal_table::name(at);
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
            ModelErrorKind::Invalid => refusal_table::next(&words, sent),
            ModelErrorKind::ContextOverflow => refusal_table::next_of_overflow(&words, sent),
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

impl Forms {
    /// The request, its answer's shape in words where `api` or its model is known to refuse to hold it to that. An object is
    /// asked for as JSON at least, where that is not refused too.
    pub(crate) fn around<'a>(&self, api: Api, request: Cow<'a, ModelRequest>) -> Cow<'a, ModelRequest> {
        let beside_tools = !request.tools.is_empty() && self.has(Form::NoShapeBesideTools);
        let Some(output) = request.output.as_ref().filter(|output| beside_tools || self.refuse(output)) else {
            return request;
        };
        let system = with_instruction(&request.system, output);
        let is_object = output.schema.as_ref().is_some_and(|schema| schema["type"] == "object");
        let has_json = api != Api::Anthropic && is_object && !beside_tools && !self.has(Form::Json);
        let output = has_json.then(|| OutputFormat { name: output.name.clone(), schema: None });
        Cow::Owned(ModelRequest { system, output, ..request.into_owned() })
    }

    fn refuse(&self, output: &OutputFormat) -> bool {
        match &output.schema {
            Some(_) if self.all.is_empty() => false,
            Some(_) => self.has(Form::Schemas) || self.has(this_shape(output)),
            None => self.has(Form::Json),
        }
    }

    /// Whether a limit of an answer with room to think is one that was refused; `question` is what else takes of the
    /// window.
    pub(crate) fn refuse_limit(&self, limit: u32, question: impl Fn() -> usize) -> bool {
        self.all.iter().any(|form| match *form {
            Form::LimitUnder(most) => limit >= most,
            Form::WindowUnder(most) => question().saturating_add(limit as usize) >= most,
            _ => false,
        })
    }

    /// Changes what is sent of a request with these settings.
    pub(crate) fn apply(&self, settings: &ModelSettings, encoded: &mut EncodedRequest) {
        self.apply_always(encoded);
        // What is left out changes what the others stand beside. Each round leaves one out of few.
        let of_value = |encoded: &EncodedRequest| {
            self.all.iter().find_map(|form| match form {
                Form::WithoutAs(at, how) if how.holds(*at, encoded, settings) => Some(*at),
                _ => None,
            })
        };
        while let Some(at) = of_value(encoded) {
            leave_out(at, encoded);
        }
    }

    fn apply_always(&self, encoded: &mut EncodedRequest) {
        for form in &self.all {
            match form {
                Form::OlderLimit => encoded.rename("max_completion_tokens", "max_tokens"),
                Form::NoPatterns => encoded.map_schemas(patterns_in_words),
                Form::NoThoughtsBack => encoded.leave_out("include"),
                Form::DropForeignThoughts => anthropic::drop_foreign_thinking(encoded),
                Form::Without(at) => leave_out(*at, encoded),
                Form::WithoutAs(..)
                | Form::Schema(_)
                | Form::Schemas
                | Form::Json
                | Form::NoShapeBesideTools
                | Form::NoEffort
                | Form::SilentEffort
                | Form::LimitUnder(_)
                | Form::WindowUnder(_) => {}
            }
        }
    }
}

/// Leaves the parameter at this place out, by all its names.
fn leave_out(at: usize, encoded: &mut EncodedRequest) {
    PARAMETERS.get(at).into_iter().copied().flatten().for_each(|name| encoded.leave_out(name));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::codec::encode;
    use crate::http::refusal_table::next;
    use crate::http::refusal_table::tests::{ANSWER_ROOM, closed, request, without};

    fn refusal(words: &str) -> ModelError {
        ModelError::new(ModelErrorKind::Invalid, words)
    }

    #[test]
    fn form_is_kept_only_once_it_worked() {
        let refusals = Refusals::default();
        let (one, mut other) = (request(closed()), request(closed()));
        other.system = "Another.".into();
        let encoded = encode(Api::OpenAiChat, &one, "m");
        let sent = Sent { api: Api::OpenAiChat, request: &one, encoded: &encoded, answer_room: None };
        let fail = |request: &ModelRequest, words: &str| {
            let mut error = refusal(words);
            refusals.failed("p/m", request, &sent, refusals.forms("p/m", request), &mut error);
            error.wants_another_form()
        };
        let forms = |request: &ModelRequest| refusals.forms("p/m", request).all;
        let (temperature, seed) = ("'temperature' is not supported", "'seed' is not supported");
        assert!(fail(&one, temperature));
        assert_eq!(
            (forms(&one), forms(&other)),
            (vec![without("temperature")], vec![]),
            "tried for this request alone"
        );
        refusals.answered("p/m", &refusals.forms("p/m", &other));
        assert_eq!(forms(&other), [], "the answer of another request says nothing");
        assert!(fail(&one, seed), "there may be two things");
        assert!(!fail(&one, seed), "the same again helps nobody");
        assert_eq!(forms(&one), [], "what did not help is forgotten");
        assert!(fail(&one, temperature));
        refusals.answered("p/m", &refusals.forms("p/m", &one));
        assert_eq!((forms(&one), forms(&other)), (vec![without("temperature")], vec![without("temperature")]));
        assert_eq!(refusals.forms("p/n", &one).all, []);
        assert!(refusals.kept().values().all(|kept| kept.tried.is_empty()));
        assert_eq!(refusals.forms("p/m", &one).trial, None);
    }

    #[test]
    fn form_that_brought_the_answer_is_kept() {
        let check = |said: &[&str], expect: &[Form]| {
            let refusals = Refusals::default();
            let one = request(closed());
            for words in said {
                let forms = refusals.forms("p/m", &one);
                let asked = forms.around(Api::OpenAiChat, Cow::Borrowed(&one));
                let mut encoded = encode(Api::OpenAiChat, &asked, "m");
                forms.apply(&asked.settings, &mut encoded);
                let sent = Sent { api: Api::OpenAiChat, request: &asked, encoded: &encoded, answer_room: ANSWER_ROOM };
                let mut error = refusal(words);
                refusals.failed("p/m", &one, &sent, forms, &mut error);
                assert!(error.wants_another_form(), "{words}");
            }
            refusals.answered("p/m", &refusals.forms("p/m", &one));
            let other = ModelRequest { system: "Another.".into(), ..one };
            let mut kept = refusals.forms("p/m", &other).all;
            let of_value = kept.extract_if(.., |form| matches!(form, Form::WithoutAs(..))).count();
            assert_eq!(kept, expect, "{said:?}");
            assert_eq!(of_value, said.iter().filter(|words| words.contains("0..1")).count(), "{said:?}");
        };
        let (temperature, seed) = ("'temperature' is not supported", "'seed' is not supported");
        check(&[temperature, seed], &[without("seed")]);
        check(&[seed, temperature], &[without("temperature")]);
        check(&["temperature: range: 0..1"], &[]);
        check(&["temperature: range: 0..1", seed], &[without("seed")]);
        check(&[seed, "temperature: range: 0..1"], &[without("seed")]);
        check(&["max_tokens: 9000 > 8192"], &[Form::LimitUnder(9000)]);
        let shape = "Unsupported parameter: 'response_format'";
        check(&[shape, shape], &[Form::Schemas, Form::Json]);
        check(&[seed, shape, shape], &[Form::Schemas, Form::Json]);
    }

    #[test]
    fn smaller_limit_replaces_larger_one() {
        let mut kept = ModelForms::default();
        for form in [Form::LimitUnder(9000), Form::WindowUnder(7), Form::LimitUnder(5000)] {
            kept.take("p/m", form);
        }
        assert_eq!(kept.taken, [Form::WindowUnder(7), Form::LimitUnder(5000)]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let refusals = Refusals::default();
        let fail = |model: &str, request: &ModelRequest, words: &str| {
            let encoded = encode(Api::OpenAiChat, request, "m");
            let sent = Sent { api: Api::OpenAiChat, request, encoded: &encoded, answer_room: None };
            let mut error = refusal(words);
            refusals.failed(model, request, &sent, Forms::default(), &mut error);
            assert!(error.wants_another_form(), "{words}");
        };
        for number in 0..2 * MAX_KEPT {
            fail(&format!("p/{number}"), &request(None), "'seed' is not supported");
            let other = ModelRequest { system: number.to_string(), ..request(None) };
            fail("p/m", &other, "'seed' is not supported");
            let kept = refusals.kept();
            assert!(kept.len() <= MAX_KEPT && kept.values().all(|kept| kept.tried.len() <= MAX_FORMS));
        }
        for number in 0..2 * MAX_FORMS {
            let shaped = request(Some(json!({"type": "object", "title": number.to_string()})));
            fail("p/m", &shaped, "The compiled grammar is too large");
            refusals.answered("p/m", &refusals.forms("p/m", &shaped));
            let taken = refusals.kept()["p/m"].taken.len();
            assert!((1..=MAX_FORMS).contains(&taken), "{taken}");
        }
    }

    /// The requests until `one` is answered by a server that looks at the names of parameters for what to refuse.
    fn requests_until_answered(
        refusals: &Refusals,
        one: &ModelRequest,
        refuses: &dyn Fn(&[&str]) -> Option<String>,
    ) -> usize {
        for requests in 1..20 {
            let forms = refusals.forms("p/m", one);
            let mut encoded = encode(Api::OpenAiChat, one, "m");
            forms.apply(&one.settings, &mut encoded);
            let names: Vec<&str> = PARAMETERS
                .iter()
                .flat_map(|names| names.iter().copied())
                .filter(|name| encoded.has_parameter(name))
                .collect();
            let Some(words) = refuses(&names) else {
                refusals.answered("p/m", &forms);
                return requests;
            };
            let sent = Sent { api: Api::OpenAiChat, request: one, encoded: &encoded, answer_room: None };
            let mut error = refusal(&words);
            refusals.failed("p/m", one, &sent, forms, &mut error);
            assert!(error.wants_another_form(), "{words}");
        }
        panic!("it is never answered");
    }

    #[test]
    fn refused_value_stays_out() {
        let has = |names: &[&str], name: &str| names.contains(&name);
        let refusals = Refusals::default();
        // The value is refused first, and then three others as a whole.
        let range = |names: &[&str]| {
            if has(names, "temperature") {
                return Some("temperature: range: 0..1".to_owned());
            }
            let whole = ["seed", "top_p", "stop"].into_iter().find(|name| has(names, name));
            whole.map(|name| format!("'{name}' is not supported"))
        };
        let one = request(None);
        assert_eq!(requests_until_answered(&refusals, &one, &range), 5);
        // The same two that may not stand together may each stand alone.
        let refusals = Refusals::default();
        let both = |names: &[&str]| {
            let stand_together = has(names, "temperature") && has(names, "top_p");
            stand_together.then(|| "`temperature` and `top_p` cannot both be specified".to_owned())
        };
        assert_eq!(requests_until_answered(&refusals, &one, &both), 2);
        assert_eq!(requests_until_answered(&refusals, &one, &both), 1);
        let mut alone = one.clone();
        alone.settings.top_p = None;
        let mut encoded = encode(Api::OpenAiChat, &alone, "m");
        refusals.forms("p/m", &alone).apply(&alone.settings, &mut encoded);
        assert!(encoded.has_parameter("temperature"));
    }

    #[test]
    fn varying_values_cost_other_forms_nothing() {
        let mut kept = ModelForms::default();
        kept.take("p/m", Form::Schemas);
        let of_value = |number: u32| {
            let mut one = request(None);
            one.settings.seed = Some(number);
            let encoded = encode(Api::OpenAiChat, &one, "m");
            let sent = Sent { api: Api::OpenAiChat, request: &one, encoded: &encoded, answer_room: None };
            next("seed must be between 0 and 1", &sent).expect("a form")
        };
        let last = 3 * u32::try_from(MAX_FORMS).expect("a number");
        let mut told = 0;
        for number in 0..=last {
            told += usize::from(kept.is_news(of_value(number)));
            kept.take("p/m", of_value(number));
        }
        assert_eq!((kept.taken.len(), told), (1 + MAX_VALUES, 1));
        assert!(kept.taken.contains(&Form::Schemas) && kept.taken.contains(&of_value(last)));
        assert!(!kept.taken.contains(&of_value(0)), "the oldest gives way");
        // Where all is full of others, a value is not kept.
        kept.taken = vec![Form::Schemas; MAX_FORMS];
        kept.take("p/m", of_value(0));
        assert_eq!(kept.taken, vec![Form::Schemas; MAX_FORMS]);
    }

    #[test]
    fn trials_at_one_model_leave_others_alone() {
        let refusals = Refusals::default();
        let one = request(None);
        let encoded = encode(Api::OpenAiChat, &one, "m");
        let sent = Sent { api: Api::OpenAiChat, request: &one, encoded: &encoded, answer_room: None };
        refusals.failed("p/m", &one, &sent, Forms::default(), &mut refusal("'seed' is not supported"));
        assert_eq!(refusals.kept().keys().collect::<Vec<_>>(), ["p/m"]);
        assert!(refusals.forms("p/m", &one).trial.is_some());
        assert!(refusals.forms("p/n", &one).trial.is_none());
        // A conversation that does not fit is taken up again as another request.
        let mut overflow = ModelError::new(ModelErrorKind::ContextOverflow, "prompt is too long");
        refusals.failed("p/m", &one, &sent, refusals.forms("p/m", &one), &mut overflow);
        assert_eq!((overflow.kind, overflow.should_retry), (ModelErrorKind::ContextOverflow, None));
        assert!(refusals.kept()["p/m"].tried.is_empty());
    }
}
