//! How much a model is to think, in the words of each API and as far as the model takes them.
//!
//! Models of a maker know different words for it, and answer 400 to others. Where a name tells which words a model knows,
//! it gets the one that was asked for, else the next above, else the highest. A model that is known not to think is sent
//! none. Of names that tell nothing the API's own words are sent as they are, and a refusal is the API's to explain.

use serde_json::{Value, json};
use toolwright_core::model::{Effort, ModelSettings};

use crate::api::Api;
use crate::maker::{Family, Kind, Maker};

/// Of `known`, in order: `wanted`, else the next above, else the highest.
fn nearest(known: &[Effort], wanted: Effort) -> Option<Effort> {
    known.iter().find(|&&effort| effort >= wanted).or_else(|| known.last()).copied()
}

/// `reasoning_effort` of Chat Completions and `reasoning.effort` of Responses (developers.openai.com/api/docs/guides/
/// reasoning; which words are whose was found by asking: community.openai.com/t/1371738). Tokens of thinking cannot be
/// limited there.
pub(crate) fn openai_effort(model: &str, settings: &ModelSettings) -> Option<&'static str> {
    use Effort::{High, Low, Max, Medium, Minimal, None as No, Xhigh};
    let wanted = match (settings.effort, settings.thinking_tokens) {
        (Some(effort), _) => effort,
        (None, Some(0)) => No,
        (None, _) => return None,
    };
    let known: &[Effort] = match Maker::of(model) {
        Maker::Gpt((..5, _), _) | Maker::Gpt((5, 0), Kind::Chat) => return None,
        Maker::Gpt(_, Kind::Chat) => &[Medium],
        Maker::Gpt((5, 0), Kind::Pro) => &[High],
        Maker::Gpt((5, 0), Kind::Codex | Kind::CodexMax) | Maker::Gpt((5, 1), Kind::Codex) => &[Low, Medium, High],
        Maker::Gpt((5, 0), _) => &[Minimal, Low, Medium, High],
        Maker::Gpt((5, 1), Kind::CodexMax) => &[Low, Medium, High, Xhigh],
        Maker::Gpt((5, 1), _) => &[No, Low, Medium, High],
        Maker::Gpt((5, ..6), Kind::Pro) => &[Medium, High, Xhigh],
        Maker::Gpt((5, ..6), Kind::Codex | Kind::CodexMax) => &[Low, Medium, High, Xhigh],
        Maker::Gpt((5, ..6), _) => &[No, Low, Medium, High, Xhigh],
        Maker::Gpt(..) => &[No, Low, Medium, High, Xhigh, Max],
        Maker::O(..) | Maker::GptOss => &[Low, Medium, High],
        Maker::Claude(..) | Maker::Gemini(..) | Maker::Other => return Some(wanted.as_str()),
    };
    nearest(known, wanted).map(Effort::as_str)
}

/// Tokens that `model` may think for over `api`: those of the budget that it is told, else those that the word stands
/// for that it is told, or, where it is told nothing, that its provider takes for said. 0 where it is told not to
/// think, and for models of which the name does not tell that they think.
pub(crate) fn room(api: Api, model: &str, settings: &ModelSettings) -> u32 {
    let of_word = |word: &str| word.to_ascii_lowercase().parse().map_or(0, Effort::tokens);
    let untold = || by_itself(api, model).tokens();
    match api {
        Api::OpenAiChat | Api::OpenAiResponses => openai_effort(model, settings).map_or_else(untold, of_word),
        Api::Anthropic => {
            let told = anthropic(model, settings, None, Choice::Free);
            match told.thinking.as_ref().and_then(|thinking| thinking["type"].as_str()) {
                // Between calls it thinks briefly.
                Some("between_tools") => Effort::Low.tokens(),
                Some("disabled") => 0,
                _ => told.budget().or(told.effort.map(of_word)).unwrap_or_else(untold),
            }
        }
        Api::Gemini => match gemini(model, settings) {
            Some(told) => {
                told["thinkingLevel"].as_str().map_or_else(|| tokens(&told["thinkingBudget"]).unwrap_or(0), of_word)
            }
            None => untold(),
        },
        Api::Ollama => match ollama(model, settings) {
            Some(Value::String(word)) => of_word(&word),
            Some(Value::Bool(true)) => settings.thinking_room(),
            Some(_) => 0,
            None => untold(),
        },
    }
}

/// How much `model` thinks where it is told nothing (the sources of [`openai_effort`], [`anthropic`], [`gemini`] and
/// [`ollama`]): GPT at `medium`, but for 5.1 to 5.4, which do not think then, Anthropic's that think by themselves and
/// Gemini 3 at `high`. Of Gemini 3's small ones sources tell `minimal` and `high`.
fn by_itself(api: Api, model: &str) -> Effort {
    use Effort::{High, Medium, None as No};
    match Maker::of(model) {
        Maker::Gpt((..5, _), _) | Maker::Gpt((5, 0), Kind::Chat) => No,
        Maker::Gpt((5, 0), Kind::Pro) => High,
        Maker::Gpt((5, 1..=4), Kind::Plain) => No,
        Maker::Gpt(..) | Maker::O(..) | Maker::GptOss => Medium,
        Maker::Claude(..) => match claude(model) {
            Claude::Never | Claude::Budget | Claude::Either | Claude::Adaptive => No,
            Claude::Default | Claude::BetweenTools | Claude::Always => High,
        },
        Maker::Gemini(Some((..2, _) | (2, ..5)), _) | Maker::Gemini(Some((2, _)), Kind::FlashLite) => No,
        Maker::Gemini(Some((2, _)), _) | Maker::Gemini(_, Kind::FlashLite) => Medium,
        Maker::Gemini(..) => High,
        Maker::Other if is_a_thinker(api, model) => Medium,
        Maker::Other => No,
    }
}

/// Parts of names that say that the model thinks, and of those that Ollama lets think unless they are told not to,
/// where the name has none of the last ones (ollama.com/search?c=thinking).
const THINKERS: [&str; 8] =
    ["thinking", "reasoner", "reasoning", "deepseek-r1", "qwq", "magistral", "grok-4", "grok-3-mini"];
const THINK_AT_OLLAMA: [&str; 4] = ["qwen3", "deepseek-v3.1", "glm-4.", "nemotron-3"];
const DO_NOT_THINK: [&str; 6] = ["non-", "instruct", "coder", "embed", "rerank", "no-think"];

/// Whether a model of another maker thinks without being told to. Elsewhere than at Ollama the room could be more than
/// a server takes, so there only a name that says it plainly counts.
fn is_a_thinker(api: Api, model: &str) -> bool {
    let name = model.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    (has(&THINKERS) || api == Api::Ollama && has(&THINK_AT_OLLAMA)) && !has(&DO_NOT_THINK)
}

/// The budget that `model` is told over `api`, if it is told one that counts before all else.
pub(crate) fn budget(api: Api, model: &str, settings: &ModelSettings) -> Option<u32> {
    if api == Api::Anthropic { anthropic(model, settings, None, Choice::Free).budget() } else { None }
}

fn tokens(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|tokens| u32::try_from(tokens).ok())
}

/// What Anthropic's API is told.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Thinking {
    /// `thinking`.
    pub thinking: Option<Value>,
    /// `output_config.effort`.
    pub effort: Option<&'static str>,
}

impl Thinking {
    /// Its budget, if it has one.
    pub(crate) fn budget(&self) -> Option<u32> {
        self.thinking.as_ref().and_then(|thinking| tokens(&thinking["budget_tokens"]))
    }
}

/// The fewest tokens that a budget may have.
pub(crate) const MIN_BUDGET: u32 = 1024;

/// Which words a Claude takes (platform.claude.com/docs/en/build-with-claude/thinking and …/effort, and the notes on
/// what is new in each model).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claude {
    /// Does not think.
    Never,
    /// Thinks within a budget, where it is told to.
    Budget,
    /// Either, where it is told to: 4.6.
    Either,
    /// As much as it finds right, where it is told to: 4.7 and 4.8.
    Adaptive,
    /// Unless it is told not to.
    Default,
    /// Unless it is told to think between calls alone: Sonnet since 5.5.
    BetweenTools,
    /// Always.
    Always,
}

fn claude(model: &str) -> Claude {
    let Maker::Claude(family, version) = Maker::of(model) else {
        // Servers that speak the API for other models know its first form.
        return Claude::Budget;
    };
    let Some(version) = version.filter(|_| family != Family::Fable) else { return Claude::Always };
    match (version.0, version.1, family) {
        (..3, _, _) | (3, ..7, _) => Claude::Never,
        (3, _, _) | (4, ..6, _) => Claude::Budget,
        (4, 6, _) => Claude::Either,
        (4, _, _) => Claude::Adaptive,
        (5, 5, Family::Sonnet) => Claude::BetweenTools,
        (5, ..5, _) | (5, 5, Family::Haiku) => Claude::Default,
        _ => Claude::Always,
    }
}

/// Whether `model` answers 400 to a choice that forces a call, whatever else is asked: those of Anthropic's that think
/// always, and what came after them.
pub(crate) fn refuses_forced_calls(model: &str) -> bool {
    match Maker::of(model) {
        Maker::Claude(Family::Fable, version) => version.is_none_or(|version| version >= (5, 1)),
        Maker::Claude(_, version) => version.is_none_or(|version| version >= (5, 5)),
        _ => false,
    }
}

/// What Anthropic's API is told for an answer of at most `max_tokens`, thinking among them. Beside a choice that forces a
/// call it refuses to be told to think; Opus 4.8 takes it (langchain-ai/langchain-aws#1141 and #1151, which found 4.6 and 4.7
/// to refuse it on some servers).
pub(crate) fn anthropic(model: &str, settings: &ModelSettings, max_tokens: Option<u32>, choice: Choice) -> Thinking {
    use Effort::{High, Low, Max, Medium, Xhigh};
    let kind = claude(model);
    let effort = settings.effort.or((settings.thinking_tokens == Some(0)).then_some(Effort::None));
    let word = |known: &[Effort]| {
        effort.filter(|&effort| effort != Effort::None).and_then(|effort| nearest(known, effort)).map(Effort::as_str)
    };
    let (newer, older): (&[Effort], &[Effort]) = (&[Low, Medium, High, Xhigh, Max], &[Low, Medium, High, Max]);
    let says_none = effort == Some(Effort::None);
    let takes_both = matches!(Maker::of(model), Maker::Claude(_, Some((4, 8))));
    let may_think = choice == Choice::Free || takes_both;
    match kind {
        Claude::Never => Thinking::default(),
        Claude::Budget | Claude::Either
            if kind == Claude::Budget || settings.thinking_tokens.is_some_and(|tokens| tokens > 0) =>
        {
            let wanted = settings.thinking_room();
            if wanted == 0 {
                // A Claude does not think unless it is told to; of others that is not known.
                let is_said = says_none && !matches!(Maker::of(model), Maker::Claude(..));
                return Thinking { thinking: is_said.then(|| json!({"type": "disabled"})), ..Thinking::default() };
            }
            let budget = match (max_tokens, wanted.max(MIN_BUDGET)) {
                // A quarter is the answer's.
                (Some(most), wanted) if wanted >= most => most - most / 4,
                (_, wanted) => wanted,
            };
            if budget < MIN_BUDGET || !may_think {
                return Thinking::default();
            }
            let thinking = json!({"type": "enabled", "budget_tokens": budget});
            Thinking { thinking: Some(thinking), effort: None }
        }
        Claude::Budget | Claude::Either | Claude::Adaptive => {
            let effort = word(if kind == Claude::Adaptive { newer } else { older });
            let thinking = effort.filter(|_| may_think).map(|_| json!({"type": "adaptive"}));
            Thinking { thinking, effort }
        }
        Claude::Default if says_none => Thinking { thinking: Some(json!({"type": "disabled"})), ..Thinking::default() },
        Claude::BetweenTools if says_none => {
            Thinking { thinking: Some(json!({"type": "between_tools"})), ..Thinking::default() }
        }
        Claude::Always if says_none => Thinking { effort: Some("low"), ..Thinking::default() },
        Claude::Default | Claude::BetweenTools | Claude::Always => {
            Thinking { effort: word(newer), ..Thinking::default() }
        }
    }
}

/// Whether a request forces a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    Free,
    Forced,
}

/// `generationConfig.thinkingConfig` (ai.google.dev/gemini-api/docs/thinking): a level since Gemini 3, tokens before. Both
/// in one request are refused.
pub(crate) fn gemini(model: &str, settings: &ModelSettings) -> Option<Value> {
    use Effort::{High, Low, Medium, Minimal};
    let Maker::Gemini(version, kind) = Maker::of(model) else { return None };
    let known: &[Effort] = match (version, kind) {
        (Some((..2, _) | (2, ..5)), _) => return None,
        (Some((2, _)), _) => return gemini_budget(kind, settings).map(|tokens| json!({"thinkingBudget": tokens})),
        (Some((3, 0)), Kind::Pro) => &[Low, High],
        (Some((3, ..=6)), Kind::Flash) | (_, Kind::FlashLite) => &[Minimal, Low, Medium, High],
        _ => &[Low, Medium, High],
    };
    let level = match (settings.effort, settings.thinking_tokens) {
        (_, Some(0)) => Some(Effort::None),
        (Some(effort), _) => Some(effort),
        (None, Some(tokens)) => return Some(json!({"thinkingBudget": tokens.min(32_768)})),
        (None, None) => None,
    };
    let level = nearest(known, level?)?;
    Some(json!({"thinkingLevel": level.as_str().to_ascii_uppercase()}))
}

/// The budget of a Gemini 2.5, within its bounds.
fn gemini_budget(kind: Kind, settings: &ModelSettings) -> Option<u32> {
    let wanted = settings.thinking_tokens.or_else(|| settings.effort.map(Effort::tokens))?;
    Some(match (kind, wanted) {
        (Kind::Pro, _) => wanted.clamp(128, 32_768),
        (_, 0) => 0,
        (Kind::FlashLite, _) => wanted.clamp(512, 24_576),
        _ => wanted.min(24_576),
    })
}

/// Ollama's `think` (docs.ollama.com/capabilities/thinking): levels for gpt-oss, which cannot be told not to think, and
/// yes or no for others. A model that cannot think refuses a yes.
pub(crate) fn ollama(model: &str, settings: &ModelSettings) -> Option<Value> {
    let effort = match (settings.effort, settings.thinking_tokens) {
        (_, Some(0)) => Effort::None,
        (Some(effort), _) => effort,
        (None, Some(_)) => Effort::Medium,
        (None, None) => return None,
    };
    if Maker::of(model) == Maker::GptOss {
        return nearest(&[Effort::Low, Effort::Medium, Effort::High], effort).map(|effort| json!(effort.as_str()));
    }
    Some(json!(effort != Effort::None))
}

#[cfg(test)]
mod tests;
