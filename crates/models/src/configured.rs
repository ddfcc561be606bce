//! What is configured of a model, in the requests to it.

use std::borrow::Cow;

use toolwright_core::model::ModelRequest;

use crate::api::Api;
use crate::endpoint::ModelHabits;
use crate::reasoning;

/// The request as it is configured for `model`, the name without its provider: it answers as is said of it where the request
/// says nothing, has room for what it is told to think, and is asked for no longer answer than it gives.
pub(crate) fn as_configured<'r>(
    request: &'r ModelRequest,
    api: Api,
    model: &str,
    habits: &ModelHabits,
) -> Cow<'r, ModelRequest> {
    let request = with_room_to_think(with_settings(request, habits), api, model);
    within_output(request, api, habits)
}

/// The request, and where it does not say how the model is to answer, what is configured.
fn with_settings<'r>(request: &'r ModelRequest, habits: &ModelHabits) -> Cow<'r, ModelRequest> {
    if habits.temperature.is_none() && habits.settings.is_empty() {
        return Cow::Borrowed(request);
    }
    Cow::Owned(ModelRequest {
        temperature: request.temperature.or(habits.temperature),
        settings: request.settings.clone().or(&habits.settings),
        ..request.clone()
    })
}

/// The request, with room beside its answer for what the model is told to think: the limits of all APIs are of both.
fn with_room_to_think<'r>(request: Cow<'r, ModelRequest>, api: Api, model: &str) -> Cow<'r, ModelRequest> {
    match (request.max_tokens, reasoning::room(api, model, &request.settings)) {
        (Some(asked), room @ 1..) => {
            Cow::Owned(ModelRequest { max_tokens: Some(asked.saturating_add(room)), ..request.into_owned() })
        }
        _ => request,
    }
}

/// The request, asking for no longer answer than the model gives. An API that demands a limit gets the model's.
fn within_output<'r>(request: Cow<'r, ModelRequest>, api: Api, habits: &ModelHabits) -> Cow<'r, ModelRequest> {
    let Some(most) = habits.max_output else { return request };
    match request.max_tokens {
        Some(asked) if asked <= most => request,
        None if api != Api::Anthropic => request,
        _ => Cow::Owned(ModelRequest { max_tokens: Some(most), ..request.into_owned() }),
    }
}
