//! Which models take a sampling temperature. Those that do not answer 400 to any, zero and one included.

/// Whether `model` (the name without its provider) may be sent a temperature.
///
/// OpenAI's reasoning models refuse one ("'temperature' does not support 0 with this model"), and so does every
/// model of Anthropic's since Opus 4.7 ("`temperature` is deprecated for this model"). A name that tells of neither
/// is one of somebody else's models, which take one.
pub(crate) fn takes_temperature(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    // One that was trained further is named after the model that it was.
    let name = name.trim_start_matches("ft:");
    if let Some((_, claude)) = name.split_once("claude-") {
        return claude_version(claude).is_some_and(|version| version < (4, 7));
    }
    let reasons = |family: &str| {
        let digits = name.strip_prefix(family).unwrap_or_default();
        digits.starts_with(|c: char| c.is_ascii_digit()).then(|| leading(digits).unwrap_or(u32::MAX))
    };
    let gpt = reasons("gpt-").is_some_and(|version| version >= 5) && !name.starts_with("gpt-5-chat");
    !gpt && reasons("o").is_none()
}

/// The version in the name of a model after `claude-`: `opus-4-7`, `3-5-sonnet-20241022`, `sonnet-4@20250514`.
fn claude_version(name: &str) -> Option<(u32, u32)> {
    let mut words = name.split(['-', '@', '.', ':']).skip_while(|word| leading(word).is_none());
    let major = leading(words.next()?)?;
    // What has more digits is a date.
    let minor = words.next().filter(|word| word.len() <= 2).and_then(leading);
    Some((major, minor.unwrap_or(0)))
}

/// The number that a text begins with.
fn leading(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::takes_temperature;

    #[test]
    fn a_name_tells_whether_a_model_takes_a_temperature() {
        for (takes, names) in [
            (true, "ft:gpt-4o-mini-2024-07-18:acme::a1"),
            (false, "ft:gpt-5-mini-2025-08-07:acme::a1 openai/ft:o4-mini-2025-04-16:acme:x:b2"),
            (true, "gpt-4.1 gpt-4o-mini gpt-3.5-turbo gpt-5-chat-latest gpt-oss:20b openai/gpt-oss-120b qwen3:8b"),
            (true, "olmo-2 o llama-4 mistral-large gemini-3-pro some-model meta/opt-1"),
            (
                false,
                "o1 o3-mini o4-mini-2025-04-16 gpt-5 gpt-5-mini gpt-5.2-chat-latest openai/gpt-5.6-sol gpt-6-astra GPT-5",
            ),
            (true, "claude-2.1 claude-3-opus-20240229 claude-3-5-sonnet-20241022 claude-3-7-sonnet-latest"),
            (true, "claude-opus-4-20250514 claude-sonnet-4@20250514 claude-opus-4-5-20251101 claude-haiku-4-5"),
            (true, "claude-sonnet-4-6 anthropic/claude-opus-4.6 us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
            (
                false,
                "claude-opus-4-7 claude-opus-4-8 claude-opus-5 claude-sonnet-5-5 claude-fable-5 claude-mythos-preview",
            ),
            (false, "anthropic/claude-opus-4.8 eu.anthropic.claude-opus-4-7-v1:0 claude-latest"),
        ] {
            for name in names.split(' ') {
                assert_eq!(takes_temperature(name), takes, "{name}");
            }
        }
    }
}
