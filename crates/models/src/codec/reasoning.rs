//! Translates the reasoning effort to the parameters of each API.
//!
//! Models of one maker support different values and answer 400 to others. If the name tells which values a model
//! supports, it gets the requested one, else the next higher, else the highest. A model known not to think gets none.
//! Unknown names get the requested value.

use serde_json::{Value, json};
use toolwright_core::model::{Effort, ModelSettings, RequestSettings};

use crate::api::{Api, RequestPart};
use crate::codec::request::{ClaudeFamily, ModelFamily, ModelKind};

/// Returns `wanted` if it is in `known`, which is ascending, else the next higher, else the highest.
fn nearest(known: &[Effort], wanted: Effort) -> Option<Effort> {
    known.iter().find(|&&effort| effort >= wanted).or_else(|| known.last()).copied()
}

/// Returns `reasoning_effort` of Chat Completions and `reasoning.effort` of Responses (developers.openai.com/api/docs/
/// guides/reasoning; values by model were found by tests: community.openai.com/t/1371738). These APIs cannot limit
/// thinking tokens.
pub(crate) fn openai_effort(model: &str, settings: &ModelSettings) -> Option<&'static str> {
    use Effort::{High, Low, Max, Medium, Minimal, None as No, Xhigh};
    let wanted = match (settings.effort, settings.thinking_tokens) {
        (Some(effort), _) => effort,
        (None, Some(0)) => No,
        (None, _) => return None,
    };
    let known: &[Effort] = match ModelFamily::of(model) {
        ModelFamily::Gpt((..5, _), _) | ModelFamily::Gpt((5, 0), ModelKind::Chat) => return None,
        ModelFamily::Gpt(_, ModelKind::Chat) => &[Medium],
        ModelFamily::Gpt((5, 0), ModelKind::Pro) => &[High],
        ModelFamily::Gpt((5, 0), ModelKind::Codex | ModelKind::CodexMax)
        | ModelFamily::Gpt((5, 1), ModelKind::Codex) => &[Low, Medium, High],
        ModelFamily::Gpt((5, 0), _) => &[Minimal, Low, Medium, High],
        ModelFamily::Gpt((5, 1), ModelKind::CodexMax) => &[Low, Medium, High, Xhigh],
        ModelFamily::Gpt((5, 1), _) => &[No, Low, Medium, High],
        ModelFamily::Gpt((5, ..6), ModelKind::Pro) => &[Medium, High, Xhigh],
        ModelFamily::Gpt((5, ..6), ModelKind::Codex | ModelKind::CodexMax) => &[Low, Medium, High, Xhigh],
        ModelFamily::Gpt((5, ..6), _) => &[No, Low, Medium, High, Xhigh],
        ModelFamily::Gpt(..) => &[No, Low, Medium, High, Xhigh, Max],
        ModelFamily::O(..) | ModelFamily::GptOss => &[Low, Medium, High],
        ModelFamily::Claude(..) | ModelFamily::Gemini(..) | ModelFamily::Other => return Some(wanted.as_str()),
    };
    nearest(known, wanted).map(Effort::as_str)
}

/// Returns the tokens that `model` over `api` may use for thinking: those of the budget sent, else of the effort
/// sent, else of its default effort. 0 if thinking is off, and for models not known to think.
pub(crate) fn thinking_allowance(api: Api, model: &str, settings: &RequestSettings) -> u32 {
    let of_word = |word: &str| word.to_ascii_lowercase().parse().map_or(0, Effort::tokens);
    let by_default = || default_effort(api, model).tokens();
    match api {
        Api::OpenAiChat | Api::OpenAiResponses => openai_effort(model, settings).map_or_else(by_default, of_word),
        Api::Anthropic => {
            let sent = anthropic(model, settings, None, ToolForcing::Free);
            match sent.thinking.as_ref().and_then(|thinking| thinking["type"].as_str()) {
                // Between calls it thinks briefly.
                Some("between_tools") => Effort::Low.tokens(),
                Some("disabled") => 0,
                Some("adaptive") if sent.effort.is_none() => Effort::High.tokens(),
                _ => sent.budget().or(sent.effort.map(of_word)).unwrap_or_else(by_default),
            }
        }
        Api::Gemini => match gemini(model, settings) {
            Some(sent) => {
                sent["thinkingLevel"].as_str().map_or_else(|| tokens(&sent["thinkingBudget"]).unwrap_or(0), of_word)
            }
            None => by_default(),
        },
        Api::Ollama => match ollama(model, settings) {
            Some(Value::String(word)) => of_word(&word),
            Some(Value::Bool(true)) => settings.thinking_room(),
            Some(_) => 0,
            None => by_default(),
        },
    }
}

/// Notes what the client's settings ask of reasoning and `model` over `api` is not sent: `budget` is the thinking budget
/// that it is sent, and `is_set` whether it is sent anything that makes it think.
pub(crate) fn note_losses(
    (api, model): (Api, &str),
    settings: &ModelSettings,
    (is_set, budget): (bool, Option<u32>),
    losses: &mut Vec<RequestPart>,
) {
    if !is_set {
        losses.push(RequestPart::Effort);
    }
    if !is_set && default_effort(api, model) == Effort::None {
        losses.push(RequestPart::Thinking);
    }
    if budget != settings.thinking_tokens {
        losses.push(RequestPart::Budget);
    }
}

/// Returns the default effort of `model` (the sources of [`openai_effort`], [`anthropic`], [`gemini`] and [`ollama`]):
/// `medium` for GPT, except 5.1 to 5.4, which do not think by default; `high` for Gemini 3 and for Anthropic's models
/// that think by default. For the small models of Gemini 3, sources say `minimal` and `high`.
fn default_effort(api: Api, model: &str) -> Effort {
    use Effort::{High, Medium, None as No};
    match ModelFamily::of(model) {
        ModelFamily::Gpt((..5, _), _) | ModelFamily::Gpt((5, 0), ModelKind::Chat) => No,
        ModelFamily::Gpt((5, 0), ModelKind::Pro) => High,
        ModelFamily::Gpt((5, 1..=4), ModelKind::Plain) => No,
        ModelFamily::Gpt(..) | ModelFamily::O(..) | ModelFamily::GptOss => Medium,
        ModelFamily::Claude(..) => match claude(model) {
            ClaudeThinking::Never | ClaudeThinking::Budget | ClaudeThinking::Either | ClaudeThinking::Adaptive => No,
            ClaudeThinking::Default | ClaudeThinking::BetweenTools | ClaudeThinking::Always => High,
        },
        ModelFamily::Gemini(Some((..2, _) | (2, ..5)), _) | ModelFamily::Gemini(Some((2, _)), ModelKind::FlashLite) => {
            No
        }
        ModelFamily::Gemini(Some((2, _)), _) | ModelFamily::Gemini(_, ModelKind::FlashLite) => Medium,
        ModelFamily::Gemini(..) => High,
        ModelFamily::Other if thinks_by_default(api, model) => Medium,
        ModelFamily::Other => No,
    }
}

/// Parts of names of models that think, of models that think by default at Ollama, and of their variants that do not
/// (ollama.com/search?c=thinking).
const THINKERS: [&str; 8] =
    ["thinking", "reasoner", "reasoning", "deepseek-r1", "qwq", "magistral", "grok-4", "grok-3-mini"];
const THINK_AT_OLLAMA: [&str; 4] = ["qwen3", "deepseek-v3.1", "glm-4.", "nemotron-3"];
const DO_NOT_THINK: [&str; 6] = ["non-", "instruct", "coder", "embed", "rerank", "no-think"];

/// Whether a model of another maker thinks by default. Except over Ollama's API, the allowance could exceed the
/// server's limit, so there only names that say so count.
fn thinks_by_default(api: Api, model: &str) -> bool {
    let name = model.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    (has(&THINKERS) || api == Api::Ollama && has(&THINK_AT_OLLAMA)) && !has(&DO_NOT_THINK)
}

/// The thinking budget that `model` is sent over `api`, if any.
pub(crate) fn budget(api: Api, model: &str, settings: &RequestSettings) -> Option<u32> {
    if api == Api::Anthropic { anthropic(model, settings, None, ToolForcing::Free).budget() } else { None }
}

pub(crate) fn tokens(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|tokens| u32::try_from(tokens).ok())
}

/// The thinking parameters of Anthropic's API.
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

/// How a Claude's thinking is controlled (platform.claude.com/docs/en/build-with-claude/thinking and …/effort, and the
/// release notes of each model).
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaudeThinking {
    /// Does not think.
    Never,
    /// Thinks within a budget, if one is set.
    Budget,
    /// Supports a budget or an effort: 4.6.
    Either,
    /// Thinks adaptively, if set: 4.7 and 4.8.
    Adaptive,
    /// Thinks by default.
    Default,
    /// Thinks by default, and at least between calls: Sonnet since 5.5.
    BetweenTools,
    /// Always.
    Always,
}

fn claude(model: &str) -> ClaudeThinking {
    let ModelFamily::Claude(family, version) = ModelFamily::of(model) else {
        // Servers that speak the API for other models know its first form.
        return ClaudeThinking::Budget;
    };
    let Some(version) = version.filter(|_| family != ClaudeFamily::Fable) else { return ClaudeThinking::Always };
    match (version.0, version.1, family) {
        (..3, _, _) | (3, ..7, _) => ClaudeThinking::Never,
        (3, _, _) | (4, ..6, _) => ClaudeThinking::Budget,
        (4, 6, _) => ClaudeThinking::Either,
        (4, _, _) => ClaudeThinking::Adaptive,
        (5, 5, ClaudeFamily::Sonnet) => ClaudeThinking::BetweenTools,
        (5, ..5, _) | (5, 5, ClaudeFamily::Haiku) => ClaudeThinking::Default,
        _ => ClaudeThinking::Always,
    }
}

/// Whether `model` answers 400 to a forced call: Anthropic's models that always think, and later ones.
pub(crate) fn refuses_forced_calls(model: &str) -> bool {
    match ModelFamily::of(model) {
        ModelFamily::Claude(ClaudeFamily::Fable, version) => version.is_none_or(|version| version >= (5, 1)),
        ModelFamily::Claude(_, version) => version.is_none_or(|version| version >= (5, 5)),
        _ => false,
    }
}

/// Returns the thinking parameters for a response of at most `max_tokens`, including thinking. Anthropic's API refuses
/// them with a forced call, except for Opus 4.8 (langchain-ai/langchain-aws#1141 and #1151, which found that 4.6 and
/// 4.7 refuse them on some servers).
pub(crate) fn anthropic(
    model: &str,
    settings: &RequestSettings,
    max_tokens: Option<u32>,
    choice: ToolForcing,
) -> Thinking {
    use Effort::{High, Low, Max, Medium, Xhigh};
    let kind = claude(model);
    let effort = settings.effort.or((settings.thinking_tokens == Some(0)).then_some(Effort::None));
    let word = |known: &[Effort]| {
        effort.filter(|&effort| effort != Effort::None).and_then(|effort| nearest(known, effort)).map(Effort::as_str)
    };
    let (newer, older): (&[Effort], &[Effort]) = (&[Low, Medium, High, Xhigh, Max], &[Low, Medium, High, Max]);
    let says_none =
        effort == Some(Effort::None) || settings.asks_thinking == Some(false) && settings.thinking_tokens == Some(0);
    let takes_both = matches!(ModelFamily::of(model), ModelFamily::Claude(_, Some((4, 8))));
    let may_think = choice == ToolForcing::Free || takes_both;
    let adaptive = || json!({"type": "adaptive"});
    match kind {
        ClaudeThinking::Never => Thinking::default(),
        ClaudeThinking::Budget | ClaudeThinking::Either
            if kind == ClaudeThinking::Budget || settings.thinking_tokens.is_some_and(|tokens| tokens > 0) =>
        {
            let wanted = settings.thinking_room();
            if wanted == 0 {
                // A Claude does not think by default; others may.
                let is_sent = says_none && !matches!(ModelFamily::of(model), ModelFamily::Claude(..));
                return Thinking { thinking: is_sent.then(|| json!({"type": "disabled"})), ..Thinking::default() };
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
        ClaudeThinking::Budget | ClaudeThinking::Either | ClaudeThinking::Adaptive => {
            let effort = word(if kind == ClaudeThinking::Adaptive { newer } else { older });
            let thinks = may_think && settings.asks_thinking.unwrap_or(effort.is_some());
            Thinking { thinking: thinks.then(adaptive), effort }
        }
        ClaudeThinking::Default if says_none => {
            Thinking { thinking: Some(json!({"type": "disabled"})), effort: word(newer) }
        }
        ClaudeThinking::BetweenTools if says_none => {
            Thinking { thinking: Some(json!({"type": "between_tools"})), effort: word(newer) }
        }
        ClaudeThinking::Always if says_none => Thinking { effort: word(newer).or(Some("low")), ..Thinking::default() },
        ClaudeThinking::Default | ClaudeThinking::BetweenTools | ClaudeThinking::Always => {
            let thinks = may_think && settings.asks_thinking == Some(true);
            Thinking { thinking: thinks.then(adaptive), effort: word(newer) }
        }
    }
}

/// Whether a request forces a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolForcing {
    Free,
    Forced,
}

/// Returns `generationConfig.thinkingConfig` (ai.google.dev/gemini-api/docs/thinking): a level since Gemini 3, tokens
/// before. The API refuses both in one request.
pub(crate) fn gemini(model: &str, settings: &ModelSettings) -> Option<Value> {
    use Effort::{High, Low, Medium, Minimal};
    let ModelFamily::Gemini(version, kind) = ModelFamily::of(model) else { return None };
    let known: &[Effort] = match (version, kind) {
        (Some((..2, _) | (2, ..5)), _) => return None,
        (Some((2, _)), _) => return gemini_budget(kind, settings).map(|tokens| json!({"thinkingBudget": tokens})),
        (Some((3, 0)), ModelKind::Pro) => &[Low, High],
        (Some((3, ..=6)), ModelKind::Flash) | (_, ModelKind::FlashLite) => &[Minimal, Low, Medium, High],
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
fn gemini_budget(kind: ModelKind, settings: &ModelSettings) -> Option<u32> {
    let wanted = settings.thinking_tokens.or_else(|| settings.effort.map(Effort::tokens))?;
    Some(match (kind, wanted) {
        (ModelKind::Pro, _) => wanted.clamp(128, 32_768),
        (_, 0) => 0,
        (ModelKind::FlashLite, _) => wanted.clamp(512, 24_576),
        _ => wanted.min(24_576),
    })
}

/// Returns Ollama's `think` (docs.ollama.com/capabilities/thinking): levels for gpt-oss, whose thinking cannot be
/// turned off, and a boolean for others. A model that cannot think refuses `true`.
pub(crate) fn ollama(model: &str, settings: &ModelSettings) -> Option<Value> {
    let effort = match (settings.effort, settings.thinking_tokens) {
        (_, Some(0)) => Effort::None,
        (Some(effort), _) => effort,
        (None, Some(_)) => Effort::Medium,
        (None, None) => return None,
    };
    if ModelFamily::of(model) == ModelFamily::GptOss {
        return nearest(&[Effort::Low, Effort::Medium, Effort::High], effort).map(|effort| json!(effort.as_str()));
    }
    Some(json!(effort != Effort::None))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use toolwright_core::model::{Effort, ModelSettings};

    use super::*;

    fn at(effort: Effort) -> RequestSettings {
        ModelSettings { effort: Some(effort), ..ModelSettings::default() }.into()
    }

    fn within(tokens: u32) -> RequestSettings {
        ModelSettings { thinking_tokens: Some(tokens), ..ModelSettings::default() }.into()
    }

    fn budget_of(thinking: Option<&Value>) -> u64 {
        thinking.and_then(|thinking| thinking["budget_tokens"].as_u64()).unwrap_or(0)
    }

    /// Returns the value sent for each effort, none to max; `-` for no value.
    fn words(word: &dyn Fn(&ModelSettings) -> Option<String>) -> String {
        Effort::ALL.map(|effort| word(&at(effort)).unwrap_or("-".into())).join(" ")
    }

    #[test]
    fn openai_effort_is_the_next_known_word() {
        for (model, expect) in [
            ("gpt-4.1", "- - - - - - -"),
            ("gpt-5-chat-latest", "- - - - - - -"),
            ("gpt-5.2-chat-latest", "medium medium medium medium medium medium medium"),
            ("gpt-5-mini", "minimal minimal low medium high high high"),
            ("gpt-5-pro", "high high high high high high high"),
            ("gpt-5-codex", "low low low medium high high high"),
            ("gpt-5.1", "none low low medium high high high"),
            ("gpt-5.1-codex-max", "low low low medium high xhigh xhigh"),
            ("gpt-5.2", "none low low medium high xhigh xhigh"),
            ("gpt-5.4-pro", "medium medium medium medium high xhigh xhigh"),
            ("gpt-5.6-sol", "none low low medium high xhigh max"),
            ("gpt-6-astra", "none low low medium high xhigh max"),
            ("o3", "low low low medium high high high"),
            ("openai/gpt-oss-120b", "low low low medium high high high"),
            ("grok-4", "none minimal low medium high xhigh max"),
        ] {
            assert_eq!(words(&|settings| openai_effort(model, settings).map(str::to_owned)), expect, "{model}");
        }
        assert_eq!((openai_effort("gpt-5", &within(9)), openai_effort("gpt-5.1", &within(0))), (None, Some("none")));
    }

    #[test]
    fn claude_thinking_parameters_follow_the_generation() {
        let said = |model: &str, settings: &RequestSettings| {
            let Thinking { thinking, effort } = anthropic(model, settings, Some(20_000), ToolForcing::Free);
            let kind = thinking.as_ref().and_then(|thinking| thinking["type"].as_str()).unwrap_or("-").to_owned();
            format!("{kind}/{}/{}", effort.unwrap_or("-"), budget_of(thinking.as_ref()))
        };
        for (model, none, low, max, tokens) in [
            ("claude-3-5-sonnet-20241022", "-/-/0", "-/-/0", "-/-/0", "-/-/0"),
            ("claude-3-7-sonnet-latest", "-/-/0", "enabled/-/1024", "enabled/-/15000", "enabled/-/5000"),
            ("claude-haiku-4-5", "-/-/0", "enabled/-/1024", "enabled/-/15000", "enabled/-/5000"),
            ("deepseek-chat", "disabled/-/0", "enabled/-/1024", "enabled/-/15000", "enabled/-/5000"),
            ("claude-sonnet-4-6", "-/-/0", "adaptive/low/0", "adaptive/max/0", "enabled/-/5000"),
            ("claude-opus-4-8", "-/-/0", "adaptive/low/0", "adaptive/max/0", "-/-/0"),
            ("claude-opus-5", "disabled/-/0", "-/low/0", "-/max/0", "-/-/0"),
            ("claude-haiku-5-5", "disabled/-/0", "-/low/0", "-/max/0", "-/-/0"),
            ("claude-sonnet-5-5", "between_tools/-/0", "-/low/0", "-/max/0", "-/-/0"),
            ("claude-opus-5-5", "-/low/0", "-/low/0", "-/max/0", "-/-/0"),
            ("claude-fable-5-1", "-/low/0", "-/low/0", "-/max/0", "-/-/0"),
            ("claude-opus-6", "-/low/0", "-/low/0", "-/max/0", "-/-/0"),
        ] {
            let got = [at(Effort::None), at(Effort::Low), at(Effort::Max), within(5000)].map(|how| said(model, &how));
            assert_eq!(got, [none, low, max, tokens], "{model}");
            assert_eq!(said(model, &RequestSettings::default()), "-/-/0", "{model}");
            assert_eq!(said(model, &within(0)), none, "{model}: no tokens are no thinking");
        }
        assert_eq!(said("claude-sonnet-4-6", &at(Effort::Xhigh)), "adaptive/max/0", "4.6 has no xhigh");
        assert_eq!(said("claude-opus-4-7", &at(Effort::Minimal)), "adaptive/low/0");
    }

    #[test]
    fn thinking_budget_fits_and_forces_no_call() {
        let budget = |most, choice| {
            budget_of(anthropic("claude-haiku-4-5", &at(Effort::Medium), most, choice).thinking.as_ref())
        };
        assert_eq!(budget(None, ToolForcing::Free), 8192);
        assert_eq!(budget(Some(3000), ToolForcing::Free), 2250);
        assert_eq!(budget(Some(1024), ToolForcing::Free), 0, "no room for the least budget");
        assert_eq!(budget(None, ToolForcing::Forced), 0);
        for (model, expect) in [("claude-opus-4-7", None), ("claude-opus-4-8", Some(json!({"type": "adaptive"})))] {
            let forced = anthropic(model, &at(Effort::High), None, ToolForcing::Forced);
            assert_eq!(forced, Thinking { thinking: expect, effort: Some("high") }, "{model}");
        }
        for (model, refuses) in [
            ("claude-sonnet-4-5", false),
            ("claude-opus-5", false),
            ("claude-opus-5-5", true),
            ("claude-fable-5-1", true),
            ("claude-latest", true),
            ("gpt-5", false),
        ] {
            assert_eq!(refuses_forced_calls(model), refuses, "{model}");
        }
    }

    #[test]
    fn gemini_takes_levels_since_3_tokens_before() {
        for (model, expect) in [
            ("gemini-2.0-flash", "- - - - - - -"),
            ("gemma-3", "- - - - - - -"),
            ("gemini-2.5-pro", "128 1024 1024 8192 24576 32768 32768"),
            ("gemini-2.5-flash", "0 1024 1024 8192 24576 24576 24576"),
            ("gemini-2.5-flash-lite", "0 1024 1024 8192 24576 24576 24576"),
            ("gemini-3-pro-preview", "LOW LOW LOW HIGH HIGH HIGH HIGH"),
            ("gemini-3.1-pro-preview", "LOW LOW LOW MEDIUM HIGH HIGH HIGH"),
            ("gemini-3-flash-preview", "MINIMAL MINIMAL LOW MEDIUM HIGH HIGH HIGH"),
            ("gemini-3.6-flash", "MINIMAL MINIMAL LOW MEDIUM HIGH HIGH HIGH"),
            ("gemini-3.7-flash", "LOW LOW LOW MEDIUM HIGH HIGH HIGH"),
            ("gemini-3.8-flash", "LOW LOW LOW MEDIUM HIGH HIGH HIGH"),
            ("gemini-flash-latest", "LOW LOW LOW MEDIUM HIGH HIGH HIGH"),
            ("gemini-3.8-flash-lite", "MINIMAL MINIMAL LOW MEDIUM HIGH HIGH HIGH"),
        ] {
            let word = |settings: &ModelSettings| {
                let config = gemini(model, settings)?;
                assert_eq!(config.as_object().map(serde_json::Map::len), Some(1), "never both");
                Some(match &config["thinkingLevel"] {
                    Value::String(level) => level.clone(),
                    _ => config["thinkingBudget"].to_string(),
                })
            };
            assert_eq!(words(&word), expect, "{model}");
        }
        assert_eq!(gemini("gemini-3-pro", &within(900)), Some(json!({"thinkingBudget": 900})));
        assert_eq!(gemini("gemini-3-pro", &within(90_000)), Some(json!({"thinkingBudget": 32_768})));
        assert_eq!(gemini("gemini-3-pro", &within(0)), Some(json!({"thinkingLevel": "LOW"})));
        assert_eq!(gemini("gemini-2.5-flash-lite", &within(9)), Some(json!({"thinkingBudget": 512})));
        assert_eq!(gemini("gemini-2.5-flash", &ModelSettings::default()), None);
    }

    #[test]
    fn ollama_gets_a_flag_or_an_effort() {
        let word =
            |model: &'static str| move |settings: &ModelSettings| ollama(model, settings).map(|said| said.to_string());
        assert_eq!(words(&word("qwen3:8b")), "false true true true true true true");
        assert_eq!(words(&word("gpt-oss:20b")), r#""low" "low" "low" "medium" "high" "high" "high""#);
        assert_eq!((ollama("qwen3", &within(0)), ollama("qwen3", &within(9))), (Some(json!(false)), Some(json!(true))));
        assert_eq!(ollama("qwen3", &ModelSettings::default()), None);
    }

    #[test]
    fn thinking_room_follows_model_and_effort() {
        use Api::{Anthropic, Gemini, Ollama, OpenAiChat as Chat};
        for (api, model, expect) in [
            (Chat, "gpt-4.1", [0; 8]),
            (Chat, "gpt-5", [1024, 1024, 1024, 8192, 24_576, 24_576, 24_576, 8192]),
            (Chat, "o3", [1024, 1024, 1024, 8192, 24_576, 24_576, 24_576, 8192]),
            (Chat, "gpt-5.2", [0, 1024, 1024, 8192, 24_576, 32_768, 32_768, 0]),
            (Chat, "gpt-5.6-sol", [0, 1024, 1024, 8192, 24_576, 32_768, 32_768, 8192]),
            (Chat, "some-model", [0, 1024, 1024, 8192, 24_576, 32_768, 32_768, 0]),
            (Anthropic, "claude-haiku-4-5", [0, 1024, 1024, 8192, 24_576, 32_768, 32_768, 1024]),
            (Anthropic, "claude-sonnet-5-5", [1024, 1024, 1024, 8192, 24_576, 32_768, 32_768, 24_576]),
            (Anthropic, "claude-opus-5", [0, 1024, 1024, 8192, 24_576, 32_768, 32_768, 24_576]),
            (Anthropic, "claude-opus-5-5", [1024, 1024, 1024, 8192, 24_576, 32_768, 32_768, 24_576]),
            (Gemini, "gemini-2.5-pro", [128, 1024, 1024, 8192, 24_576, 32_768, 32_768, 128]),
            (Gemini, "gemini-3-pro", [1024, 1024, 1024, 24_576, 24_576, 24_576, 24_576, 100]),
            (Ollama, "gpt-oss:20b", [1024, 1024, 1024, 8192, 24_576, 24_576, 24_576, 8192]),
            (Ollama, "qwen3", [0, 1024, 1024, 8192, 24_576, 32_768, 32_768, 100]),
        ] {
            let got: Vec<u32> = Effort::ALL
                .map(at)
                .iter()
                .chain([&within(100)])
                .map(|how| thinking_allowance(api, model, how))
                .collect();
            assert_eq!(got, expect, "{api} {model}");
        }
    }

    #[test]
    fn room_is_made_for_unasked_thinking() {
        use Api::{Anthropic, Gemini, Ollama, OpenAiChat as Chat, OpenAiResponses as Responses};
        let check = |apis: &[Api], model: &str, expect: u32| {
            for &api in apis {
                assert_eq!(thinking_allowance(api, model, &RequestSettings::default()), expect, "{api} {model}");
                let silent = if expect == 0 { 0 } else { thinking_allowance(api, model, &at(Effort::None)) };
                assert!(silent <= 1024, "{api} {model}: {silent} where thinking is off");
            }
        };
        for model in ["gpt-4.1", "gpt-5-chat-latest", "gpt-5.1", "gpt-5.2-2025-12-11", "gpt-5.4-mini", "some-model"] {
            check(&[Chat, Responses], model, 0);
        }
        for model in ["gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-5.1-codex", "gpt-5.5", "gpt-6-astra", "o3", "o4-mini"] {
            check(&[Chat, Responses], model, 8192);
        }
        assert_eq!(thinking_allowance(Chat, "gpt-5-pro", &RequestSettings::default()), 24_576);
        check(&[Chat, Responses, Ollama], "gpt-oss:20b", 8192);
        for model in ["claude-3-5-haiku-latest", "claude-sonnet-4-5", "claude-opus-4-8"] {
            check(&[Anthropic], model, 0);
        }
        for model in ["claude-opus-5", "claude-haiku-5-5", "claude-sonnet-5-5", "claude-opus-5-5", "claude-fable-5-1"] {
            check(&[Anthropic], model, 24_576);
        }
        for (model, expect) in [
            ("gemini-2.0-flash", 0),
            ("gemini-2.5-flash-lite", 0),
            ("gemini-2.5-flash", 8192),
            ("gemini-2.5-pro", 8192),
            ("gemini-3.1-flash-lite", 8192),
        ] {
            check(&[Gemini], model, expect);
        }
        check(&[Gemini], "gemini-3-flash-preview", 24_576);
        assert_eq!(thinking_allowance(Gemini, "gemini-flash-latest", &RequestSettings::default()), 24_576);
        for model in ["qwen3:8b", "qwen3.5:4b", "deepseek-r1", "qwq", "kimi-k2-thinking"] {
            check(&[Ollama], model, 8192);
        }
        for model in ["qwen3-coder:30b", "qwen3:30b-a3b-instruct-2507", "qwen3-embedding", "llama3.2", "gemma3"] {
            check(&[Ollama], model, 0);
        }
        // On other servers only explicit names count: the server's limit may be its window.
        for (model, expect) in [("Qwen/Qwen3-8B", 0), ("deepseek-reasoner", 8192), ("grok-4-fast-non-reasoning", 0)] {
            assert_eq!(thinking_allowance(Chat, model, &RequestSettings::default()), expect, "{model}");
        }
    }
}
