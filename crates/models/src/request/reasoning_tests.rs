use serde_json::{Value, json};
use toolwright_core::model::{Effort, ModelSettings};

use super::*;

fn at(effort: Effort) -> ModelSettings {
    ModelSettings { effort: Some(effort), ..ModelSettings::default() }
}

fn within(tokens: u32) -> ModelSettings {
    ModelSettings { thinking_tokens: Some(tokens), ..ModelSettings::default() }
}

fn budget_of(thinking: Option<&Value>) -> u64 {
    thinking.and_then(|thinking| thinking["budget_tokens"].as_u64()).unwrap_or(0)
}

/// What becomes of each effort, none to max; `-` for nothing.
fn words(word: &dyn Fn(&ModelSettings) -> Option<String>) -> String {
    Effort::ALL.map(|effort| word(&at(effort)).unwrap_or("-".into())).join(" ")
}

#[test]
fn models_of_openai_get_the_next_word_that_they_know() {
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
fn a_claude_is_told_what_its_generation_takes() {
    let said = |model: &str, settings: &ModelSettings| {
        let Thinking { thinking, effort } = anthropic(model, settings, Some(20_000), Choice::Free);
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
        assert_eq!(said(model, &ModelSettings::default()), "-/-/0", "{model}");
        assert_eq!(said(model, &within(0)), none, "{model}: no tokens are no thinking");
    }
    assert_eq!(said("claude-sonnet-4-6", &at(Effort::Xhigh)), "adaptive/max/0", "4.6 has no xhigh");
    assert_eq!(said("claude-opus-4-7", &at(Effort::Minimal)), "adaptive/low/0");
}

#[test]
fn a_budget_fits_the_answer_and_no_call_is_forced_beside_thinking() {
    let budget =
        |most, choice| budget_of(anthropic("claude-haiku-4-5", &at(Effort::Medium), most, choice).thinking.as_ref());
    assert_eq!(budget(None, Choice::Free), 8192);
    assert_eq!(budget(Some(3000), Choice::Free), 2250);
    assert_eq!(budget(Some(1024), Choice::Free), 0, "no room for the least budget");
    assert_eq!(budget(None, Choice::Forced), 0);
    for (model, expect) in [("claude-opus-4-7", None), ("claude-opus-4-8", Some(json!({"type": "adaptive"})))] {
        let forced = anthropic(model, &at(Effort::High), None, Choice::Forced);
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
fn gemini_takes_levels_since_its_third_generation_and_tokens_before() {
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
fn ollama_is_told_yes_or_no_and_gpt_oss_how_much() {
    let word =
        |model: &'static str| move |settings: &ModelSettings| ollama(model, settings).map(|said| said.to_string());
    assert_eq!(words(&word("qwen3:8b")), "false true true true true true true");
    assert_eq!(words(&word("gpt-oss:20b")), r#""low" "low" "low" "medium" "high" "high" "high""#);
    assert_eq!((ollama("qwen3", &within(0)), ollama("qwen3", &within(9))), (Some(json!(false)), Some(json!(true))));
    assert_eq!(ollama("qwen3", &ModelSettings::default()), None);
}

#[test]
fn room_is_made_for_what_is_told() {
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
        let got: Vec<u32> = Effort::ALL.map(at).iter().chain([&within(100)]).map(|how| room(api, model, how)).collect();
        assert_eq!(got, expect, "{api} {model}");
    }
}

#[test]
fn room_is_made_for_what_a_model_thinks_by_itself() {
    use Api::{Anthropic, Gemini, Ollama, OpenAiChat as Chat, OpenAiResponses as Responses};
    let check = |apis: &[Api], model: &str, expect: u32| {
        for &api in apis {
            assert_eq!(room(api, model, &ModelSettings::default()), expect, "{api} {model}");
            let silent = if expect == 0 { 0 } else { room(api, model, &at(Effort::None)) };
            assert!(silent <= 1024, "{api} {model}: {silent} where it is told not to");
        }
    };
    for model in ["gpt-4.1", "gpt-5-chat-latest", "gpt-5.1", "gpt-5.2-2025-12-11", "gpt-5.4-mini", "some-model"] {
        check(&[Chat, Responses], model, 0);
    }
    for model in ["gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-5.1-codex", "gpt-5.5", "gpt-6-astra", "o3", "o4-mini"] {
        check(&[Chat, Responses], model, 8192);
    }
    assert_eq!(room(Chat, "gpt-5-pro", &ModelSettings::default()), 24_576);
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
    assert_eq!(room(Gemini, "gemini-flash-latest", &ModelSettings::default()), 24_576);
    for model in ["qwen3:8b", "qwen3.5:4b", "deepseek-r1", "qwq", "kimi-k2-thinking"] {
        check(&[Ollama], model, 8192);
    }
    for model in ["qwen3-coder:30b", "qwen3:30b-a3b-instruct-2507", "qwen3-embedding", "llama3.2", "gemma3"] {
        check(&[Ollama], model, 0);
    }
    // Elsewhere only a name that says it: a server may take no more than its window.
    for (model, expect) in [("Qwen/Qwen3-8B", 0), ("deepseek-reasoner", 8192), ("grok-4-fast-non-reasoning", 0)] {
        assert_eq!(room(Chat, model, &ModelSettings::default()), expect, "{model}");
    }
}
