//! Defines the ways to show the catalogue to a model, and decides which one a run uses.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Id of the tool search, wire name `tools__search`. The structured part of its result is
/// `{"tools": [wire name, …]}`, best first.
pub const SEARCH_ID: &str = "tools:search@1.0.0";
/// Id of the tool that describes tools, wire name `tools__describe`.
pub const DESCRIBE_ID: &str = "tools:describe@1.0.0";
/// Id of the tool that calls the tool in its arguments, wire name `tools__call`; see
/// [`crate::indirect_call`].
pub const CALL_ID: &str = "tools:call@1.0.0";

/// Assumed context window in tokens if unknown.
pub const ASSUMED_WINDOW: usize = 128_000;
/// Bound on deferred tools: Anthropic's tool search supports 10,000, and refuses larger requests.
const MAX_DEFERRED: usize = 10_000;
/// Number of tools that counts as few.
const FEW_TOOLS: usize = 20;
/// The part of the window that tools may fill, however many they are: one in this many.
const SMALL_PART: usize = 10;
/// The part that a few tools may fill.
const LARGE_PART: usize = 2;

/// How tools are shown to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Exposure {
    /// All tools, whole.
    Direct,
    /// The tools that fit the conversation best, turn by turn.
    Pick,
    /// The API's own tool search: all tools are declared, and come before the model when it looks for them.
    Deferred,
    /// Three tools that find, describe and call the others.
    Search,
}

impl Exposure {
    /// Its name in configuration and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Pick => "pick",
            Self::Deferred => "deferred",
            Self::Search => "search",
        }
    }
}

/// The configured exposure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExposureSetting {
    /// `direct` while the tools are few and small, else `deferred` if the API supports it, else `search`.
    #[default]
    Auto,
    /// A fixed exposure.
    #[serde(untagged)]
    Fixed(Exposure),
}

impl JsonSchema for ExposureSetting {
    fn schema_name() -> Cow<'static, str> {
        "ExposureChoice".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Exposure::json_schema(generator);
        let description =
            "`direct` while the tools are few and small, else `deferred` where the API has it, else `search`.";
        if let Some(Value::Array(choices)) = schema.get_mut("oneOf") {
            choices.insert(0, json!({"description": description, "type": "string", "const": "auto"}));
        }
        schema
    }
}

impl ExposureSetting {
    /// The exposure; `None` for `auto`.
    #[must_use]
    pub fn exposure(self) -> Option<Exposure> {
        match self {
            Self::Auto => None,
            Self::Fixed(exposure) => Some(exposure),
        }
    }
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The size of a tool list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExposureCost {
    /// Number of tools.
    pub tools: usize,
    /// Tokens of their definitions.
    pub tokens: usize,
}

/// The tools shown by one request, for the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExposureRecord {
    /// The exposure, if chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
    /// Tools that are shown.
    pub shown: usize,
    /// Tools that are declared to an API which loads them when they are found.
    pub deferred: usize,
    /// Tools that the run may use and the request does not mention.
    pub excluded: usize,
    /// Estimated tokens of the definitions in the prompt, including loaded ones.
    pub tokens: usize,
}

/// An exposure, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenExposure {
    /// The exposure.
    pub exposure: Exposure,
    /// Why, in words, for the operator.
    pub reason: String,
}

impl ChosenExposure {
    fn new(exposure: Exposure, reason: impl Into<String>) -> Self {
        Self { exposure, reason: reason.into() }
    }
}

/// Chooses how a catalogue of size `cost` is exposed to a model. `setting` is the configured exposure, `None` for
/// `auto`; `window` is the context window in tokens, [`ASSUMED_WINDOW`] if unknown; `api_has_tool_search` says whether
/// the API loads deferred tools.
///
/// `auto` shows all tools while they fill at most a tenth of the window, and up to 20 of them while they fill at most
/// half of it: few tools are easy to choose from, but must leave room for the work. Larger catalogues are deferred if
/// the API supports it, else searched. A configured exposure is used, except that `deferred` becomes `search` if the
/// API does not support it. No API defers more than 10,000 tools.
#[must_use]
pub fn choose(
    setting: Option<Exposure>,
    cost: ExposureCost,
    window: Option<usize>,
    api_has_tool_search: bool,
) -> ChosenExposure {
    let no_deferral = if api_has_tool_search {
        (cost.tools > MAX_DEFERRED)
            .then(|| format!("the model's API searches {MAX_DEFERRED} tools at most, and there are {}", cost.tools))
    } else {
        Some("the model's API has no tool search".to_owned())
    };
    match (setting, no_deferral) {
        (Some(Exposure::Deferred), Some(why)) => {
            ChosenExposure::new(Exposure::Search, format!("deferred was asked for, but {why}"))
        }
        (Some(exposure), _) => ChosenExposure::new(exposure, "it was asked for"),
        (None, no_deferral) => automatic(cost, window, no_deferral),
    }
}

/// `no_deferral` is why tools cannot be deferred, if they cannot.
fn automatic(
    ExposureCost { tools, tokens }: ExposureCost,
    window: Option<usize>,
    no_deferral: Option<String>,
) -> ChosenExposure {
    let size = window.unwrap_or(ASSUMED_WINDOW);
    let assumed = if window.is_none() { " that is assumed" } else { "" };
    let sizes = format!("{tools} tools take about {tokens} tokens, and the window{assumed} has {size}");
    let small = tokens <= size / SMALL_PART;
    if small || (tools <= FEW_TOOLS && tokens <= size / LARGE_PART) {
        return ChosenExposure::new(
            Exposure::Direct,
            format!("{sizes}: {} enough", if small { "small" } else { "few" }),
        );
    }
    let (exposure, why) = match no_deferral {
        None => (Exposure::Deferred, "the model's API searches them".to_owned()),
        Some(why) => (Exposure::Search, format!("the model searches them, since {why}")),
    };
    ChosenExposure::new(exposure, format!("{sizes}: too much to show, so {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(setting: Option<Exposure>, (tools, tokens): (usize, usize), window: Option<usize>, api: bool) -> Exposure {
        let choice = choose(setting, ExposureCost { tools, tokens }, window, api);
        assert!(!choice.reason.is_empty());
        choice.exposure
    }

    #[test]
    fn few_small_tools_are_shown_others_searched() {
        use Exposure::{Deferred, Direct, Search};
        for (cost, window, without, with) in [
            ((0, 0), None, Direct, Direct),
            ((500, 12_800), None, Direct, Direct),
            ((500, 12_801), None, Search, Deferred),
            ((20, 64_000), None, Direct, Direct),
            ((20, 64_001), None, Search, Deferred),
            ((21, 64_000), None, Search, Deferred),
            ((21, 900), Some(8_192), Search, Deferred),
            ((20, 4_096), Some(8_192), Direct, Direct),
            ((1, 4_097), Some(8_192), Search, Deferred),
            ((1, 1), Some(0), Search, Deferred),
            ((10_000, 2_000_000), None, Search, Deferred),
            ((10_001, 2_000_000), None, Search, Search),
            ((10_001, 2_000_000), Some(20_000_000), Direct, Direct),
        ] {
            assert_eq!(
                (check(None, cost, window, false), check(None, cost, window, true)),
                (without, with),
                "{cost:?}"
            );
        }
    }

    #[test]
    fn requested_exposures_hold_where_possible() {
        use Exposure::{Deferred, Direct, Pick, Search};
        for exposure in [Direct, Pick, Search] {
            assert_eq!(check(Some(exposure), (9_000, 9_000_000), None, true), exposure);
        }
        assert_eq!(check(Some(Deferred), (1, 1), None, true), Deferred);
        for (tools, api, reason) in
            [(0, false, "no tool search"), (10_001, false, "no tool search"), (10_001, true, "10000 tools at most")]
        {
            let choice = choose(Some(Deferred), ExposureCost { tools, tokens: 0 }, None, api);
            assert_eq!(choice.exposure, Search);
            assert!(choice.reason.contains(reason), "{}", choice.reason);
        }
    }
}
