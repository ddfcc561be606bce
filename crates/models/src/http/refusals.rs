//! Learns from refused requests: later requests omit or rewrite what a server does not support.
//!
//! A model's name does not tell what its server supports, nor what a new model does. If a server answers 400 and names
//! an unsupported parameter, the error requests another attempt, which is sent with a workaround. If an attempt with a
//! workaround succeeds, the model keeps the workaround for all its requests; before that, the server's message may be
//! about something else. If several workarounds were tried for one request, the model keeps the last one and those that
//! led to it; the others are tried again when needed. A workaround that is refused too is dropped. A parameter that is
//! refused for its value is omitted only when it has the same value again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest, ModelSettings, OutputFormat};

use super::refusal_table::{self, PARAMETERS, avoid_format, patterns_in_words};
pub(crate) use super::refusal_table::{SentRequest, ThinkingAllowance, Workaround};
use crate::api::{Api, EncodedRequest, RequestPart};
use crate::codec::anthropic;
use crate::codec::request::with_instruction;

/// Bound on models with workarounds; beyond it all are dropped and learned again.
const MAX_KEPT: usize = 256;
/// Bound on the workarounds of one model, and on concurrent requests that try one; beyond it likewise.
const MAX_WORKAROUNDS: usize = 64;
/// Refused values among them: past that number the oldest value is dropped.
const MAX_VALUES: usize = 16;

/// The workarounds of one request.
#[derive(Debug, Default)]
pub(crate) struct Workarounds {
    all: Vec<Workaround>,
    /// The key of the request, if some of these are tried for it.
    trial: Option<u64>,
}

impl Workarounds {
    pub(crate) fn has(&self, workaround: Workaround) -> bool {
        self.all.contains(&workaround)
    }
}

/// The workarounds of all models, and those being tried.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<String, ModelWorkarounds>>);

/// The workarounds of one model.
#[derive(Debug, Default)]
struct ModelWorkarounds {
    taken: Vec<Workaround>,
    /// By request: only the refused request shows whether its workaround helps.
    tried: HashMap<u64, Vec<Workaround>>,
}

impl ModelWorkarounds {
    /// Keeps a workaround for all requests of the model.
    fn take(&mut self, model: &str, workaround: Workaround) {
        if self.taken.contains(&workaround) {
            return;
        }
        let is_news = self.is_new(workaround);
        self.taken.retain(|known| !workaround.replaces(*known));
        let is_value = |workaround: &Workaround| matches!(workaround, Workaround::WithoutAs(..));
        let values = self.taken.iter().filter(|known| is_value(known)).count();
        if self.taken.len() >= MAX_WORKAROUNDS || (is_value(&workaround) && values >= MAX_VALUES) {
            match self.taken.iter().position(is_value) {
                Some(oldest) => drop(self.taken.remove(oldest)),
                None if is_value(&workaround) => return,
                None => self.taken.clear(),
            }
        }
        self.taken.push(workaround);
        if is_news {
            log_workaround(model, workaround);
        }
    }

    /// Whether to log a new workaround. Refused values of one parameter are logged once while any is known.
    fn is_new(&self, workaround: Workaround) -> bool {
        let Workaround::WithoutAs(at, _) = workaround else { return true };
        !self.taken.iter().any(|known| matches!(known, Workaround::WithoutAs(other, _) if *other == at))
    }
}

/// Logs a parameter that is no longer sent to a model.
fn log_workaround(model: &str, workaround: Workaround) {
    match workaround {
        Workaround::Without(at) => {
            let parameter = refusal_table::name(at);
            let costs = if parameter == "stream_options" { ", so what its answers use is not known" } else { "" };
            tracing::warn!(model, parameter, "the model's server refuses a parameter, which is no longer sent{costs}");
        }
        Workaround::WithoutAs(at, _) => {
            let parameter = refusal_table::name(at);
            tracing::warn!(model, parameter, "the model's server refuses the value of a parameter, so it is not sent");
        }
        _ => {}
    }
}

impl Refusals {
    /// The workarounds of `request` to `model`.
    pub(crate) fn workarounds(&self, model: &str, request: &ModelRequest) -> Workarounds {
        let (mut all, is_trying) = match self.lock_workarounds().get(model) {
            None => return Workarounds::default(),
            Some(kept) => (kept.taken.clone(), !kept.tried.is_empty()),
        };
        if !is_trying {
            return Workarounds { all, trial: None };
        }
        let key = key(request);
        let tried = self.lock_workarounds().get(model).and_then(|kept| kept.tried.get(&key).cloned());
        let trial = tried.is_some().then_some(key);
        all.extend(tried.into_iter().flatten());
        Workarounds { all, trial }
    }

    /// Handles a success: the model keeps the workaround that led to the response.
    pub(crate) fn answered(&self, model: &str, workarounds: &Workarounds) {
        let Some(key) = workarounds.trial else { return };
        let mut all = self.lock_workarounds();
        let Some(kept) = all.get_mut(model) else { return };
        let Some(tried) = kept.tried.remove(&key) else { return };
        let (of_value, tried): (Vec<Workaround>, Vec<Workaround>) =
            tried.into_iter().partition(|workaround| matches!(workaround, Workaround::WithoutAs(..)));
        let last = tried.last().copied();
        let tried = tried
            .into_iter()
            .filter(|workaround| last.is_some_and(|last| *workaround == last || last.follows(*workaround)));
        for workaround in tried.chain(of_value) {
            kept.take(model, workaround);
        }
    }

    /// Handles the failure of `request` to `model`, which was `sent` with `workarounds`. If another workaround may
    /// help, the error requests another attempt; otherwise the request's attempts are forgotten.
    pub(crate) fn failed(
        &self,
        model: &str,
        request: &ModelRequest,
        sent: &SentRequest<'_>,
        workarounds: Workarounds,
        error: &mut ModelError,
    ) {
        let words = error.message.to_lowercase();
        let next = match error.kind {
            ModelErrorKind::Invalid => refusal_table::next(&words, sent),
            ModelErrorKind::ContextOverflow => refusal_table::overflow_workaround(&words, sent),
            // A busy server says nothing about the workaround, which stays for the next attempt.
            _ => return,
        };
        let Some(workaround) = next.filter(|workaround| !workarounds.has(*workaround)) else {
            if let Some(key) = workarounds.trial
                && let Some(kept) = self.lock_workarounds().get_mut(model)
            {
                kept.tried.remove(&key);
            }
            return;
        };
        let key = workarounds.trial.unwrap_or_else(|| key(request));
        let mut all = self.lock_workarounds();
        if all.len() >= MAX_KEPT && !all.contains_key(model) {
            all.clear();
        }
        let tried = &mut all.entry(model.to_owned()).or_default().tried;
        if tried.len() >= MAX_WORKAROUNDS && !tried.contains_key(&key) {
            tried.clear();
        }
        let tried = tried.entry(key).or_default();
        // A concurrent caller may have added it for an equal request.
        if !tried.contains(&workaround) {
            tried.push(workaround);
        }
        error.should_retry = Some(true);
    }

    fn lock_workarounds(&self) -> MutexGuard<'_, HashMap<String, ModelWorkarounds>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key of a request while workarounds are tried for it.
fn key(request: &ModelRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    // Writing to memory does not fail.
    hasher.write(&serde_json::to_vec(request).unwrap_or_default());
    hasher.finish()
}

impl Workarounds {
    /// The request, with the response schema in the system prompt if `api` or its model is known to refuse it. JSON output is
    /// still demanded for an object, unless that is refused too.
    pub(crate) fn without_refused_schema<'a>(&self, api: Api, request: Cow<'a, ModelRequest>) -> Cow<'a, ModelRequest> {
        let beside_tools = !request.tools.is_empty() && self.has(Workaround::NoShapeBesideTools);
        let Some(output) = request.output.as_ref().filter(|output| beside_tools || self.refuse(output)) else {
            return request;
        };
        let system = with_instruction(&request.system, output);
        let is_object = output.schema.as_ref().is_some_and(|schema| schema["type"] == "object");
        let has_json = api != Api::Anthropic && is_object && !beside_tools && !self.has(Workaround::Json);
        let output = has_json.then(|| OutputFormat { name: output.name.clone(), schema: None });
        Cow::Owned(ModelRequest { system, output, ..request.into_owned() })
    }

    fn refuse(&self, output: &OutputFormat) -> bool {
        match &output.schema {
            Some(_) if self.all.is_empty() => false,
            Some(_) => self.has(Workaround::Schemas) || self.has(avoid_format(output)),
            None => self.has(Workaround::Json),
        }
    }

    /// Whether a token limit with a thinking allowance was refused; `question` returns the tokens of the request.
    pub(crate) fn refuse_limit(&self, limit: u32, question: impl Fn() -> usize) -> bool {
        self.all.iter().any(|workaround| match *workaround {
            Workaround::LimitUnder(most) => limit >= most,
            Workaround::WindowUnder(most) => question().saturating_add(limit as usize) >= most,
            _ => false,
        })
    }

    /// Applies the workarounds to an encoded request with these settings.
    pub(crate) fn apply(&self, settings: &ModelSettings, encoded: &mut EncodedRequest) {
        self.apply_always(encoded);
        // Omitted parameters change which parameters are combined.
        let of_value = |encoded: &EncodedRequest| {
            self.all.iter().find_map(|workaround| match workaround {
                Workaround::WithoutAs(at, how) if how.holds(*at, encoded, settings) => Some(*at),
                _ => None,
            })
        };
        while let Some(at) = of_value(encoded) {
            leave_out(at, encoded);
        }
    }

    fn apply_always(&self, encoded: &mut EncodedRequest) {
        for workaround in &self.all {
            match workaround {
                Workaround::OlderLimit => encoded.rename("max_completion_tokens", "max_tokens"),
                Workaround::NoPatterns => encoded.map_schemas(patterns_in_words),
                Workaround::NoThoughtsBack => encoded.leave_out("include"),
                Workaround::DropForeignThoughts => anthropic::drop_foreign_thinking(encoded),
                Workaround::Without(at) => leave_out(*at, encoded),
                Workaround::WithoutAs(..)
                | Workaround::Schema(_)
                | Workaround::Schemas
                | Workaround::Json
                | Workaround::NoShapeBesideTools
                | Workaround::NoEffort
                | Workaround::SilentEffort
                | Workaround::LimitUnder(_)
                | Workaround::WindowUnder(_) => {}
            }
        }
    }
}

/// Removes the parameter at this place of the table, by all its names.
fn leave_out(at: usize, encoded: &mut EncodedRequest) {
    PARAMETERS.get(at).into_iter().copied().flatten().for_each(|name| encoded.leave_out(name));
    if let Some(part) = RequestPart::of_parameter(refusal_table::name(at)) {
        encoded.lose(part);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::codec::encode;
    use crate::http::refusal_table::next;
    use crate::http::refusal_table::tests::{THINKING_ALLOWANCE, closed, request, without};

    fn refusal(words: &str) -> ModelError {
        ModelError::new(ModelErrorKind::Invalid, words)
    }

    #[test]
    fn form_is_kept_only_once_it_worked() {
        let refusals = Refusals::default();
        let (one, mut other) = (request(closed()), request(closed()));
        other.system = "Another.".into();
        let encoded = encode(Api::OpenAiChat, &one, "m");
        let sent = SentRequest { api: Api::OpenAiChat, request: &one, encoded: &encoded, thinking_allowance: None };
        let fail = |request: &ModelRequest, words: &str| {
            let mut error = refusal(words);
            refusals.failed("p/m", request, &sent, refusals.workarounds("p/m", request), &mut error);
            error.is_retried_differently()
        };
        let workarounds = |request: &ModelRequest| refusals.workarounds("p/m", request).all;
        let (temperature, seed) = ("'temperature' is not supported", "'seed' is not supported");
        assert!(fail(&one, temperature));
        assert_eq!(
            (workarounds(&one), workarounds(&other)),
            (vec![without("temperature")], vec![]),
            "tried for this request alone"
        );
        refusals.answered("p/m", &refusals.workarounds("p/m", &other));
        assert_eq!(workarounds(&other), [], "the answer of another request says nothing");
        assert!(fail(&one, seed), "there may be two things");
        assert!(!fail(&one, seed), "the same again helps nobody");
        assert_eq!(workarounds(&one), [], "what did not help is forgotten");
        assert!(fail(&one, temperature));
        refusals.answered("p/m", &refusals.workarounds("p/m", &one));
        assert_eq!(
            (workarounds(&one), workarounds(&other)),
            (vec![without("temperature")], vec![without("temperature")])
        );
        assert_eq!(refusals.workarounds("p/n", &one).all, []);
        assert!(refusals.lock_workarounds().values().all(|kept| kept.tried.is_empty()));
        assert_eq!(refusals.workarounds("p/m", &one).trial, None);
    }

    #[test]
    fn unsupported_parameters_are_losses() {
        let asked = request(closed());
        let mut encoded = encode(Api::OpenAiChat, &asked, "m");
        assert!(!encoded.losses().contains(&RequestPart::Seed));
        let workarounds = Workarounds { all: vec![without("seed"), without("stream_options")], trial: None };
        workarounds.apply(&asked.settings, &mut encoded);
        assert!(encoded.losses().ends_with(&[RequestPart::Seed]), "{:?}", encoded.losses());
    }

    #[test]
    fn the_form_that_worked_is_kept() {
        let check = |said: &[&str], expect: &[Workaround]| {
            let refusals = Refusals::default();
            let one = request(closed());
            for words in said {
                let workarounds = refusals.workarounds("p/m", &one);
                let asked = workarounds.without_refused_schema(Api::OpenAiChat, Cow::Borrowed(&one));
                let mut encoded = encode(Api::OpenAiChat, &asked, "m");
                workarounds.apply(&asked.settings, &mut encoded);
                let sent = SentRequest {
                    api: Api::OpenAiChat,
                    request: &asked,
                    encoded: &encoded,
                    thinking_allowance: THINKING_ALLOWANCE,
                };
                let mut error = refusal(words);
                refusals.failed("p/m", &one, &sent, workarounds, &mut error);
                assert!(error.is_retried_differently(), "{words}");
            }
            refusals.answered("p/m", &refusals.workarounds("p/m", &one));
            let other = ModelRequest { system: "Another.".into(), ..one };
            let mut kept = refusals.workarounds("p/m", &other).all;
            let of_value = kept.extract_if(.., |workaround| matches!(workaround, Workaround::WithoutAs(..))).count();
            assert_eq!(kept, expect, "{said:?}");
            assert_eq!(of_value, said.iter().filter(|words| words.contains("0..1")).count(), "{said:?}");
        };
        let (temperature, seed) = ("'temperature' is not supported", "'seed' is not supported");
        check(&[temperature, seed], &[without("seed")]);
        check(&[seed, temperature], &[without("temperature")]);
        check(&["temperature: range: 0..1"], &[]);
        check(&["temperature: range: 0..1", seed], &[without("seed")]);
        check(&[seed, "temperature: range: 0..1"], &[without("seed")]);
        check(&["max_tokens: 9000 > 8192"], &[Workaround::LimitUnder(9000)]);
        let shape = "Unsupported parameter: 'response_format'";
        check(&[shape, shape], &[Workaround::Schemas, Workaround::Json]);
        check(&[seed, shape, shape], &[Workaround::Schemas, Workaround::Json]);
    }

    #[test]
    fn smaller_limit_replaces_larger_one() {
        let mut kept = ModelWorkarounds::default();
        for workaround in [Workaround::LimitUnder(9000), Workaround::WindowUnder(7), Workaround::LimitUnder(5000)] {
            kept.take("p/m", workaround);
        }
        assert_eq!(kept.taken, [Workaround::WindowUnder(7), Workaround::LimitUnder(5000)]);
    }

    #[test]
    fn remembered_refusals_are_bounded() {
        let refusals = Refusals::default();
        let fail = |model: &str, request: &ModelRequest, words: &str| {
            let encoded = encode(Api::OpenAiChat, request, "m");
            let sent = SentRequest { api: Api::OpenAiChat, request, encoded: &encoded, thinking_allowance: None };
            let mut error = refusal(words);
            refusals.failed(model, request, &sent, Workarounds::default(), &mut error);
            assert!(error.is_retried_differently(), "{words}");
        };
        for number in 0..2 * MAX_KEPT {
            fail(&format!("p/{number}"), &request(None), "'seed' is not supported");
            let other = ModelRequest { system: number.to_string(), ..request(None) };
            fail("p/m", &other, "'seed' is not supported");
            let kept = refusals.lock_workarounds();
            assert!(kept.len() <= MAX_KEPT && kept.values().all(|kept| kept.tried.len() <= MAX_WORKAROUNDS));
        }
        for number in 0..2 * MAX_WORKAROUNDS {
            let shaped = request(Some(json!({"type": "object", "title": number.to_string()})));
            fail("p/m", &shaped, "The compiled grammar is too large");
            refusals.answered("p/m", &refusals.workarounds("p/m", &shaped));
            let taken = refusals.lock_workarounds()["p/m"].taken.len();
            assert!((1..=MAX_WORKAROUNDS).contains(&taken), "{taken}");
        }
    }

    /// Returns the requests until `one` succeeds, at a server that refuses by parameter names.
    fn requests_until_answered(
        refusals: &Refusals,
        one: &ModelRequest,
        refuses: &dyn Fn(&[&str]) -> Option<String>,
    ) -> usize {
        for requests in 1..20 {
            let workarounds = refusals.workarounds("p/m", one);
            let mut encoded = encode(Api::OpenAiChat, one, "m");
            workarounds.apply(&one.settings, &mut encoded);
            let names: Vec<&str> = PARAMETERS
                .iter()
                .flat_map(|names| names.iter().copied())
                .filter(|name| encoded.has_parameter(name))
                .collect();
            let Some(words) = refuses(&names) else {
                refusals.answered("p/m", &workarounds);
                return requests;
            };
            let sent = SentRequest { api: Api::OpenAiChat, request: one, encoded: &encoded, thinking_allowance: None };
            let mut error = refusal(&words);
            refusals.failed("p/m", one, &sent, workarounds, &mut error);
            assert!(error.is_retried_differently(), "{words}");
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
        // Two parameters that are refused together may each be accepted alone.
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
        refusals.workarounds("p/m", &alone).apply(&alone.settings, &mut encoded);
        assert!(encoded.has_parameter("temperature"));
    }

    #[test]
    fn varying_values_cost_other_forms_nothing() {
        let mut kept = ModelWorkarounds::default();
        kept.take("p/m", Workaround::Schemas);
        let of_value = |number: u32| {
            let mut one = request(None);
            one.settings.seed = Some(number);
            let encoded = encode(Api::OpenAiChat, &one, "m");
            let sent = SentRequest { api: Api::OpenAiChat, request: &one, encoded: &encoded, thinking_allowance: None };
            next("seed must be between 0 and 1", &sent).expect("a workaround")
        };
        let last = 3 * u32::try_from(MAX_WORKAROUNDS).expect("a number");
        let mut reported = 0;
        for number in 0..=last {
            reported += usize::from(kept.is_new(of_value(number)));
            kept.take("p/m", of_value(number));
        }
        assert_eq!((kept.taken.len(), reported), (1 + MAX_VALUES, 1));
        assert!(kept.taken.contains(&Workaround::Schemas) && kept.taken.contains(&of_value(last)));
        assert!(!kept.taken.contains(&of_value(0)), "the oldest gives way");
        // A value is not kept if the list is full of others.
        kept.taken = vec![Workaround::Schemas; MAX_WORKAROUNDS];
        kept.take("p/m", of_value(0));
        assert_eq!(kept.taken, vec![Workaround::Schemas; MAX_WORKAROUNDS]);
    }

    #[test]
    fn trials_at_one_model_leave_others_alone() {
        let refusals = Refusals::default();
        let one = request(None);
        let encoded = encode(Api::OpenAiChat, &one, "m");
        let sent = SentRequest { api: Api::OpenAiChat, request: &one, encoded: &encoded, thinking_allowance: None };
        refusals.failed("p/m", &one, &sent, Workarounds::default(), &mut refusal("'seed' is not supported"));
        assert_eq!(refusals.lock_workarounds().keys().collect::<Vec<_>>(), ["p/m"]);
        assert!(refusals.workarounds("p/m", &one).trial.is_some());
        assert!(refusals.workarounds("p/n", &one).trial.is_none());
        // A conversation that does not fit is retried as another request.
        let mut overflow = ModelError::new(ModelErrorKind::ContextOverflow, "prompt is too long");
        refusals.failed("p/m", &one, &sent, refusals.workarounds("p/m", &one), &mut overflow);
        assert_eq!((overflow.kind, overflow.should_retry), (ModelErrorKind::ContextOverflow, None));
        assert!(refusals.lock_workarounds()["p/m"].tried.is_empty());
    }
}
