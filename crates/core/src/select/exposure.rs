//! How the catalogue is put before a model (SPEC section 4).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Id of the tool that finds tools, wire name `tools__search`. The structured part of its result is
/// `{"tools": [wire name, …]}`, best first.
pub const SEARCH_ID: &str = "tools:search@1.0.0";
/// Id of the tool that describes tools, wire name `tools__describe`.
pub const DESCRIBE_ID: &str = "tools:describe@1.0.0";
/// Id of the tool that calls the tool which its arguments name, wire name `tools__call`; see
/// [`crate::carried`].
pub const CALL_ID: &str = "tools:call@1.0.0";

/// Tokens that a model is taken to take in where nobody says.
pub const ASSUMED_WINDOW: usize = 128_000;
/// Tools that are few.
const FEW_TOOLS: usize = 20;
/// The part of the window that tools may fill, however many they are: one in this many.
const SMALL_PART: usize = 10;
/// The part that a few tools may fill.
const LARGE_PART: usize = 2;

/// How the catalogue is put before a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What it costs to show tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cost {
    /// How many there are.
    pub tools: usize,
    /// Tokens of their definitions.
    pub tokens: usize,
}

/// What one request shows of a catalogue, for the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Showing {
    /// How; absent where nobody chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
    /// Tools that are shown.
    pub shown: usize,
    /// Tools that are declared to an API which loads them when they are found.
    pub deferred: usize,
    /// Tools that the run may use and the request does not mention.
    pub excluded: usize,
    /// Tokens of the definitions that the model gets to read, loaded ones included; an estimate.
    pub tokens: usize,
}

/// An exposure, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The exposure.
    pub exposure: Exposure,
    /// Why, in words, for the operator.
    pub reason: String,
}

impl Choice {
    fn new(exposure: Exposure, reason: impl Into<String>) -> Self {
        Self { exposure, reason: reason.into() }
    }
}

/// Chooses how a catalogue that costs `cost` is put before a model. `setting` is what was asked for, `None` for
/// `auto`; `window` the tokens that the model takes in, [`ASSUMED_WINDOW`] where it is not known;
/// `api_has_tool_search` whether its API loads deferred tools.
///
/// `auto` shows all tools while they fill at most a tenth of the window, and up to 20 of them while they fill
/// at most half of it: a few tools are no burden to choose from, but they have to leave room for the work.
/// Beyond that it defers them where the API can, and has them searched where it cannot. What was asked for is
/// done, but for `deferred` where the API lacks it: that becomes `search`.
#[must_use]
pub fn choose(setting: Option<Exposure>, cost: Cost, window: Option<usize>, api_has_tool_search: bool) -> Choice {
    match setting {
        Some(Exposure::Deferred) if !api_has_tool_search => {
            Choice::new(Exposure::Search, "deferred was asked for, but the model's API has no tool search")
        }
        Some(exposure) => Choice::new(exposure, "it was asked for"),
        None => automatic(cost, window, api_has_tool_search),
    }
}

fn automatic(Cost { tools, tokens }: Cost, window: Option<usize>, api_has_tool_search: bool) -> Choice {
    let size = window.unwrap_or(ASSUMED_WINDOW);
    let assumed = if window.is_none() { " that is assumed" } else { "" };
    let told = format!("{tools} tools take about {tokens} tokens, and the window{assumed} has {size}");
    let small = tokens <= size / SMALL_PART;
    if small || (tools <= FEW_TOOLS && tokens <= size / LARGE_PART) {
        return Choice::new(Exposure::Direct, format!("{told}: {} enough", if small { "small" } else { "few" }));
    }
    let (exposure, why) = if api_has_tool_search {
        (Exposure::Deferred, "the model's API searches them")
    } else {
        (Exposure::Search, "the model searches them")
    };
    Choice::new(exposure, format!("{told}: too much to show, so {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(setting: Option<Exposure>, (tools, tokens): (usize, usize), window: Option<usize>, api: bool) -> Exposure {
        let choice = choose(setting, Cost { tools, tokens }, window, api);
        assert!(!choice.reason.is_empty());
        choice.exposure
    }

    #[test]
    fn few_or_small_tools_are_shown_and_the_rest_is_searched() {
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
        ] {
            assert_eq!(
                (check(None, cost, window, false), check(None, cost, window, true)),
                (without, with),
                "{cost:?}"
            );
        }
    }

    #[test]
    fn what_was_asked_for_is_done_where_the_api_can() {
        use Exposure::{Deferred, Direct, Pick, Search};
        for exposure in [Direct, Pick, Search] {
            assert_eq!(check(Some(exposure), (9_000, 9_000_000), None, true), exposure);
        }
        assert_eq!(check(Some(Deferred), (1, 1), None, true), Deferred);
        let choice = choose(Some(Deferred), Cost::default(), None, false);
        assert_eq!(choice.exposure, Search);
        assert!(choice.reason.contains("no tool search"), "{}", choice.reason);
    }
}
