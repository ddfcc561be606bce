//! What is configured of a model, in the requests to it.

use std::borrow::Cow;

use toolwright_core::model::{Effort, ModelRequest, ModelSettings, PromptCache, Reuse, usable_window};

use crate::anthropic::DEFAULT_MAX_TOKENS;
use crate::api::Api;
use crate::endpoint::{Endpoint, ModelOverrides};
use crate::maker::Maker;
use crate::reasoning::{self, MIN_BUDGET};
use crate::refusals::{Form, Forms, Roomy};
use crate::sampling::takes_one_of_both;

/// The request as it is configured for `model`, the name without its provider, at `endpoint`: it answers as is said of it
/// where the request says nothing, is told what its server takes, has room for what it is told to think, and is asked for no
/// longer answer than it gives. `forms` is what its server has been found to refuse.
pub(crate) fn as_configured<'r>(
    request: &'r ModelRequest,
    endpoint: &Endpoint,
    model: &str,
    overrides: &ModelOverrides,
    forms: &Forms,
) -> Cow<'r, ModelRequest> {
    let request = as_its_server_takes_it(with_settings(request, model, overrides), endpoint, model, forms);
    with_limit(request, endpoint.api, model, overrides, forms)
}

/// The limit that `configured` has of what is `asked`, where it holds room to think that the request could go without:
/// that of a budget is told to the model too.
pub(crate) fn roomy(
    asked: &ModelRequest,
    configured: &ModelRequest,
    api: Api,
    model: &str,
    overrides: &ModelOverrides,
) -> Option<Roomy> {
    let answer = match (asked.max_tokens, overrides.max_output) {
        (Some(answer), _) => answer,
        (None, None) if api == Api::Anthropic => DEFAULT_MAX_TOKENS,
        (None, _) => return None,
    };
    let limit = configured.max_tokens.filter(|&limit| limit > answer)?;
    let has_budget = reasoning::budget(api, model, &configured.settings).is_some();
    (!has_budget).then(|| Roomy { limit, whole: configured.tokens().saturating_add(limit as usize) })
}

/// The request, and where it does not say how the model is to answer, what is configured. Of a temperature and a `top_p` of
/// which the model takes one, the request's own counts.
fn with_settings<'r>(request: &'r ModelRequest, model: &str, overrides: &ModelOverrides) -> Cow<'r, ModelRequest> {
    if overrides.temperature.is_none() && overrides.settings.is_empty() {
        return Cow::Borrowed(request);
    }
    let is_free = request.settings.top_p.is_none() || !takes_one_of_both(model);
    Cow::Owned(ModelRequest {
        temperature: request.temperature.or(overrides.temperature.filter(|_| is_free)),
        settings: request.settings.clone().or(&overrides.settings),
        ..request.clone()
    })
}

/// The request without what OpenAI's server takes and others refuse, or the other way round.
///
/// Over Chat Completions GPT since 5.4 takes tools only where it is told not to think ("Function tools with
/// reasoning_effort are not supported …": openai/openai-openapi#541), 5.6 even where it is told nothing. Azure's Foundry has
/// refused that word as well (agentgateway/agentgateway#2894), and proxies before OpenAI do as it does; what a server has
/// refused counts before what is known of it. Others that speak the API may refuse a `prompt_cache_key`.
fn as_its_server_takes_it<'r>(
    request: Cow<'r, ModelRequest>,
    endpoint: &Endpoint,
    model: &str,
    forms: &Forms,
) -> Cow<'r, ModelRequest> {
    if !matches!(endpoint.api, Api::OpenAiChat | Api::OpenAiResponses) {
        return request;
    }
    let (maker, is_of_openai) = (Maker::of(model), endpoint.is_of_openai());
    let is_of_tools = endpoint.api == Api::OpenAiChat && !request.tools.is_empty();
    let is_told_not_to =
        forms.has(Form::NoEffort) || is_of_openai && matches!(maker, Maker::Gpt((5, 4..) | (6.., _), _));
    let settings = if is_of_tools && (is_told_not_to || forms.has(Form::SilentEffort)) {
        let silent = ModelSettings { effort: Some(Effort::None), ..ModelSettings::default() };
        // Some kinds of it do not know the word.
        let says_none = !forms.has(Form::SilentEffort) && reasoning::openai_effort(model, &silent) == Some("none");
        let effort = silent.effort.filter(|_| says_none);
        Some(ModelSettings { effort, thinking_tokens: None, ..request.settings.clone() })
    } else {
        None
    };
    let keeps_nothing = !is_of_openai && maker.is_openai() && request.reuse != Reuse::Once;
    if settings.is_none() && !keeps_nothing {
        return request;
    }
    let mut request = request.into_owned();
    request.settings = settings.unwrap_or(request.settings);
    if keeps_nothing {
        request.settings.cache = Some(PromptCache::Off);
    }
    Cow::Owned(request)
}

/// The request, with room beside its answer for what the model thinks ([`reasoning::room`]): the limits of all APIs
/// are of both. It asks for no more than the model gives, and room is made as far as the window and the model's name
/// allow; none where the server has refused a limit of that size. An API that demands a limit gets one. Where there is not enough for all, what was asked for the answer is
/// kept for it, and at least a quarter; a budget has the rest, or the model is not told to think.
fn with_limit<'r>(
    request: Cow<'r, ModelRequest>,
    api: Api,
    model: &str,
    overrides: &ModelOverrides,
    forms: &Forms,
) -> Cow<'r, ModelRequest> {
    let budget = reasoning::budget(api, model, &request.settings);
    let room = reasoning::room(api, model, &request.settings);
    let (answer, whole, unthinking) = match (request.max_tokens, overrides.max_output) {
        (None, _) if api != Api::Anthropic => return request,
        (None, Some(most)) => (most / 4, most, most),
        (asked, most) => {
            let most = most.unwrap_or(u32::MAX);
            let answer = asked.unwrap_or(DEFAULT_MAX_TOKENS).min(most);
            let bound = if room == 0 { u32::MAX } else { bound(&request, model, overrides) };
            let whole = answer.saturating_add(room).min(bound.max(answer)).min(most);
            let is_refused = budget.is_none() && whole > answer && forms.refuse_limit(whole, || request.tokens());
            (answer, if is_refused { answer } else { whole }, answer)
        }
    };
    let (max_tokens, thinking_tokens) = match budget {
        Some(budget) if whole < answer.saturating_add(budget) => match whole - answer.max(whole / 4) {
            left @ MIN_BUDGET.. => (whole, Some(left)),
            _ => (unthinking, Some(0)),
        },
        _ => (whole, None),
    };
    if request.max_tokens == Some(max_tokens) && thinking_tokens.is_none() {
        return request;
    }
    let mut request = request.into_owned();
    request.max_tokens = Some(max_tokens);
    if thinking_tokens.is_some() {
        request.settings.thinking_tokens = thinking_tokens;
        request.settings.effort = None;
    }
    Cow::Owned(request)
}

/// Tokens that answer and thoughts may have together, by what is known of the model and what is left of its window,
/// less a margin for what the question was estimated too low.
fn bound(request: &ModelRequest, model: &str, overrides: &ModelOverrides) -> u32 {
    let left = overrides.window.map(|window| usable_window(window).saturating_sub(request.tokens()));
    let left = left.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    [left, Maker::of(model).max_output()].into_iter().flatten().min().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
