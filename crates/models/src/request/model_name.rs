//! What a model's name tells of who made it and when.

/// A model of one of the makers whose models differ in what they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// `gpt-5.2-pro`: its version, and what kind of model it is.
    Gpt((u32, u32), Kind),
    /// `o4-mini`; 0 for an unheard-of number.
    O(u32, Kind),
    /// `claude-opus-4-8`; no version for a name without one, like `claude-latest`.
    Claude(Family, Option<(u32, u32)>),
    /// `gemini-3-flash-preview`; no version for `gemini-flash-latest`.
    Gemini(Option<(u32, u32)>, Kind),
    /// `gpt-oss`, over whichever API.
    GptOss,
    /// Somebody else's.
    Other,
}

/// The words of a name that make a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// Does not reason, or not as it is told.
    Chat,
    Pro,
    Codex,
    CodexMax,
    Flash,
    FlashLite,
}

/// The lines of Claude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Opus,
    Sonnet,
    Haiku,
    /// Fable and Mythos.
    Fable,
    Other,
}

impl Maker {
    /// Of `model`, the name without its provider.
    pub(crate) fn of(model: &str) -> Self {
        let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
        // One that was trained further is named after the model that it was.
        let name = name.trim_start_matches("ft:");
        if let Some((_, claude)) = name.split_once("claude-") {
            return Self::Claude(Family::of(claude), claude_version(claude));
        }
        if let Some(gemini) = name.strip_prefix("gemini-") {
            return Self::Gemini(dotted(gemini), Kind::of(gemini));
        }
        if name.starts_with("gpt-oss") {
            return Self::GptOss;
        }
        if let Some(gpt) = name.strip_prefix("gpt-").filter(|gpt| gpt.starts_with(|c: char| c.is_ascii_digit())) {
            return match dotted(gpt).unwrap_or((u32::MAX, 0)) {
                // Names at Azure had no dot: `gpt-35-turbo`.
                (35, 0) => Self::Gpt((3, 5), Kind::of(gpt)),
                version => Self::Gpt(version, Kind::of(gpt)),
            };
        }
        if name.starts_with("chatgpt-") {
            return Self::Gpt((4, 0), Kind::Chat);
        }
        match name.strip_prefix('o').filter(|o| o.starts_with(|c: char| c.is_ascii_digit())) {
            Some(o) => Self::O(leading(o).unwrap_or(0), Kind::of(o)),
            None => Self::Other,
        }
    }

    /// Whether it is one of OpenAI's own.
    pub(crate) fn is_openai(self) -> bool {
        matches!(self, Self::Gpt(..) | Self::O(..))
    }

    /// Whether it is one of OpenAI's that reason.
    pub(crate) fn is_reasoning_openai(self) -> bool {
        matches!(self, Self::O(..)) || self.is_gpt_since_5() && !matches!(self, Self::Gpt((5, 0), Kind::Chat))
    }

    /// The most tokens of one answer, thoughts among them, of models that think and answer 400 to more
    /// (platform.claude.com/docs/en/about-claude/models/overview, developers.openai.com/api/docs/models,
    /// ai.google.dev/gemini-api/docs/models; Vertex has taken 65,535 where the others take one more).
    pub(crate) fn max_output(self) -> Option<u32> {
        match self {
            Self::Claude(Family::Opus, Some((4, ..=1))) => Some(32_000),
            Self::Claude(_, Some((3, 7) | (4, ..=5))) => Some(64_000),
            Self::Claude(Family::Fable, _) | Self::Claude(_, Some((4.., _))) => Some(128_000),
            Self::Gpt((5.., _), Kind::Chat) => Some(16_384),
            Self::Gpt((5, 0), Kind::Pro) => Some(272_000),
            Self::Gpt((5.., _), _) => Some(128_000),
            Self::O(..) => Some(100_000),
            Self::Gemini(None | Some((2, 5..) | (3.., _)), _) => Some(65_535),
            _ => None,
        }
    }

    fn is_gpt_since_5(self) -> bool {
        matches!(self, Self::Gpt((5.., _), _))
    }
}

impl Kind {
    fn of(name: &str) -> Self {
        let has = |word: &str| name.split(['-', '@', ':', '.']).any(|part| part == word);
        match () {
            () if has("chat") => Self::Chat,
            () if has("codex") && has("max") => Self::CodexMax,
            () if has("codex") => Self::Codex,
            () if has("flash") && has("lite") => Self::FlashLite,
            () if has("flash") => Self::Flash,
            () if has("pro") => Self::Pro,
            () => Self::Plain,
        }
    }
}

impl Family {
    fn of(name: &str) -> Self {
        let has = |word: &str| name.split(['-', '@', ':', '.']).any(|part| part == word);
        match () {
            () if has("opus") => Self::Opus,
            () if has("sonnet") => Self::Sonnet,
            () if has("haiku") => Self::Haiku,
            () if has("fable") || has("mythos") => Self::Fable,
            () => Self::Other,
        }
    }
}

/// The version in the name of a model after `claude-`: `opus-4-7`, `3-5-sonnet-20241022`, `sonnet-4@20250514`.
fn claude_version(name: &str) -> Option<(u32, u32)> {
    let mut words = name.split(['-', '@', '.', ':']).skip_while(|word| leading(word).is_none());
    let major = leading(words.next()?)?;
    // What has more digits is a date.
    let minor = words.next().filter(|word| word.len() <= 2).and_then(leading);
    Some((major, minor.unwrap_or(0)))
}

/// The version that a text begins with, `5.2` or `5`.
fn dotted(text: &str) -> Option<(u32, u32)> {
    let major = leading(text)?;
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    Some((major, rest.strip_prefix('.').and_then(leading).unwrap_or(0)))
}

/// The number that a text begins with.
fn leading(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Family, Kind, Maker};

    #[test]
    fn a_name_tells_the_maker_and_the_version() {
        for (name, expect) in [
            ("gpt-4o-mini", Maker::Gpt((4, 0), Kind::Plain)),
            ("ft:gpt-4.1-mini-2025:acme::a1", Maker::Gpt((4, 1), Kind::Plain)),
            ("gpt-35-turbo-16k", Maker::Gpt((3, 5), Kind::Plain)),
            ("openai/GPT-5.2-pro-2025-12-11", Maker::Gpt((5, 2), Kind::Pro)),
            ("gpt-5-chat-latest", Maker::Gpt((5, 0), Kind::Chat)),
            ("gpt-5.1-codex-max", Maker::Gpt((5, 1), Kind::CodexMax)),
            ("gpt-5-codex", Maker::Gpt((5, 0), Kind::Codex)),
            ("openai/gpt-oss-120b", Maker::GptOss),
            ("o4-mini-2025-04-16", Maker::O(4, Kind::Plain)),
            ("olmo-2", Maker::Other),
            ("gpt-neo", Maker::Other),
            ("claude-3-5-sonnet-20241022", Maker::Claude(Family::Sonnet, Some((3, 5)))),
            ("eu.anthropic.claude-opus-4-7-v1:0", Maker::Claude(Family::Opus, Some((4, 7)))),
            ("claude-sonnet-4@20250514", Maker::Claude(Family::Sonnet, Some((4, 0)))),
            ("claude-fable-5-1", Maker::Claude(Family::Fable, Some((5, 1)))),
            ("claude-mythos-preview", Maker::Claude(Family::Fable, None)),
            ("gemini-3-flash-preview", Maker::Gemini(Some((3, 0)), Kind::Flash)),
            ("models/gemini-2.5-flash-lite", Maker::Gemini(Some((2, 5)), Kind::FlashLite)),
            ("gemini-3.1-pro-preview", Maker::Gemini(Some((3, 1)), Kind::Pro)),
            ("gemini-flash-latest", Maker::Gemini(None, Kind::Flash)),
            ("gemma-3", Maker::Other),
            ("qwen3:8b", Maker::Other),
        ] {
            assert_eq!(Maker::of(name), expect, "{name}");
        }
    }
}
