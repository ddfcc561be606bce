//! Which models take deferred tools.

use crate::api::Api;
use crate::endpoint::Endpoint;

/// Whether an API has a form for deferred tools.
pub(crate) fn is_possible(api: Api) -> bool {
    match api {
        Api::Anthropic | Api::OpenAiResponses => true,
        Api::OpenAiChat | Api::Gemini | Api::Ollama => false,
    }
}

/// Whether `model`, the name without its provider, takes deferred tools at `endpoint`. Only the makers' own
/// endpoints are known to: servers that speak the same API often ignore `defer_loading` and show every tool.
pub(crate) fn is_known(endpoint: &Endpoint, model: &str) -> bool {
    let Some(host) = url::Url::parse(&endpoint.base_url).ok().and_then(|url| url.host_str().map(str::to_owned)) else {
        return false;
    };
    match endpoint.api {
        Api::Anthropic => host == "api.anthropic.com" && is_able_claude(model),
        Api::OpenAiResponses => {
            let regional = host.strip_suffix("api.openai.com").is_some_and(|region| region.ends_with('.'));
            (host == "api.openai.com" || regional) && is_able_gpt(model)
        }
        Api::OpenAiChat | Api::Gemini | Api::Ollama => false,
    }
}

/// platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool, "Limits": Fable 5, Mythos 5 and its
/// preview, Sonnet and Opus from 4.0 on, Haiku from 4.5 on.
fn is_able_claude(model: &str) -> bool {
    let Some(name) = model.strip_prefix("claude-") else { return false };
    let (family, version) = name.split_once('-').unwrap_or((name, ""));
    // A long number is the date of a snapshot.
    let mut numbers = version.split('-').map_while(|part| part.parse::<u32>().ok().filter(|_| part.len() < 3));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match family {
        "sonnet" | "opus" => version >= (4, 0),
        "haiku" => version >= (4, 5),
        "fable" | "mythos" => true,
        _ => false,
    }
}

/// developers.openai.com/api/docs/guides/tools-tool-search: GPT-5.4 and later. The nano models refuse it («Tool
/// 'tool_search' is not supported with gpt-5.4-nano»), and chat models have no tools of this kind.
fn is_able_gpt(model: &str) -> bool {
    let Some(name) = model.strip_prefix("gpt-") else { return false };
    let (version, kind) = name.split_once('-').unwrap_or((name, ""));
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    let (Ok(major), Ok(minor)) = (major.parse::<u32>(), minor.parse::<u32>()) else { return false };
    (major, minor) >= (5, 4) && !kind.split('-').any(|word| matches!(word, "nano" | "chat"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_by_maker_family_and_version() {
        const CLAUDE: &str = "https://api.anthropic.com";
        const OPENAI: &str = "https://api.openai.com/v1";
        let check = |api, base: &str, models: &[&str], expect| {
            for model in models {
                assert_eq!(is_known(&Endpoint::new("p", api, base), model), expect, "{api} {base} {model}");
            }
        };
        let able = ["claude-opus-4-20250514", "claude-sonnet-4-5", "claude-haiku-4-5-20251001", "claude-opus-5"];
        check(Api::Anthropic, CLAUDE, &able, true);
        check(Api::Anthropic, CLAUDE, &["claude-fable-5", "claude-mythos-preview", "claude-haiku-5"], true);
        let old = ["claude-3-5-sonnet-20241022", "claude-haiku-4", "claude-sonnet-3-7", "claude-new-9", "claude-", "m"];
        check(Api::Anthropic, CLAUDE, &old, false);
        check(Api::Anthropic, "https://api.anthropic.com.example.org", &able, false);
        check(Api::Anthropic, "https://api.deepseek.com/anthropic", &able, false);
        check(Api::Anthropic, "http://127.0.0.1:9", &able, false);
        check(Api::Anthropic, "no URL", &able, false);

        let able = ["gpt-5.4", "gpt-5.4-mini", "gpt-5.4-2026-03-05", "gpt-5.10", "gpt-6", "gpt-6-astra"];
        check(Api::OpenAiResponses, OPENAI, &able, true);
        check(Api::OpenAiResponses, "https://eu.api.openai.com/v1", &able, true);
        check(Api::OpenAiResponses, "https://notapi.openai.com/v1", &able, false);
        check(Api::OpenAiChat, OPENAI, &able, false);
        let unable = ["gpt-5", "gpt-5.1-codex", "gpt-4.1", "gpt-5.4-nano", "gpt-5.5-chat-latest", "gpt-oss-120b", "o3"];
        check(Api::OpenAiResponses, OPENAI, &unable, false);
    }
}
