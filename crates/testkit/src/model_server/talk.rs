//! A long conversation with a model that counts tokens: about a hundred turns, facts early in it, and a limited window.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::counting::{answer_limit, parts, tokens};
use super::{RecordedRequest, Reply, Script, Turn, WireApi};

/// The model that makes summaries; every other name is the agent's model.
pub const MEMORY_MODEL: &str = "memory";
/// The wire name of the tool that the agent's model calls. It takes `{n, why}`.
pub const STEP_TOOL: &str = "t__step";
/// The turn that contains the facts.
const FACTS_TURN: usize = 3;
/// The turns of a task, from the fourth turn on.
const TASK: usize = 10;
/// The marks around a fact.
const MARK: &str = "Note for later: ";
const END: char = '.';

/// The facts of turn 3: in the user's message, in the answer, in the arguments of a call and in a result.
const FACTS: [(&str, &str); 4] = [
    ("north_gate_code", "4711-K"),
    ("harbour_contact", "Ilse Brandt"),
    ("invoice_total", "18240 Euro"),
    ("crane_limit", "37 tonnes"),
];

/// The server's counts of a conversation. Tokens are by the server's tokenizer.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Answered turns of the agent.
    pub turns: usize,
    /// Requests refused because they exceed the window.
    pub overflows: usize,
    /// Tokens of the agent's largest request, including the limit of its answer.
    pub most: u64,
    /// Tokens of all the agent's requests.
    pub prompt: u64,
    /// Tokens of [`Tally::prompt`] that a prefix cache would save.
    pub cached: u64,
    /// Requests that do not begin with the whole previous request.
    pub breaks: usize,
    /// Requests for summaries and facts.
    pub memory: usize,
    /// Tokens of [`Tally::memory`]'s requests.
    pub memory_in: u64,
    /// Tokens of [`Tally::memory`]'s answers.
    pub memory_out: u64,
    /// Facts in the agent's last request.
    pub known: usize,
    before: Vec<(u64, u64)>,
}

/// A conversation with a limited number of turns and a limited window.
#[derive(Debug, Clone)]
pub struct LongTalk {
    window: u64,
    turns: usize,
    tally: Arc<Mutex<Tally>>,
}

impl LongTalk {
    /// Creates a conversation of `turns` answers. Requests over `window` tokens, including the limit of the answer, are
    /// refused with the message of their API.
    #[must_use]
    pub fn new(window: u64, turns: usize) -> Self {
        Self { window, turns, tally: Arc::default() }
    }

    /// Returns the script for the server.
    #[must_use]
    pub fn script(&self) -> Script {
        let talk = self.clone();
        let turn = Turn::computed(move |asked| talk.answer(asked));
        Script::from(vec![turn]).repeating().counting(|asked| parts(asked).iter().map(|part| part.1).sum())
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.log().clone()
    }

    /// Returns the number of facts.
    #[must_use]
    pub fn fact_count() -> usize {
        FACTS.len()
    }

    /// Returns the user's next message after `turns` turns; `None` at the end.
    #[must_use]
    pub fn user(&self, turns: usize) -> Option<String> {
        let next = turns + 1;
        (next <= self.turns).then(|| {
            let fact = if next == FACTS_TURN { reported(0) } else { String::new() };
            format!("Request {next}. {fact}{}", prose(next, 300))
        })
    }

    /// Returns the result of turn `n`'s call.
    #[must_use]
    pub fn result(n: usize) -> String {
        let mut text = if n == FACTS_TURN { reported(3) } else { String::new() };
        if n % 10 == 7 {
            let _ = write!(text, "{MARK}figure_{n} is {}{END} ", (n * 7919) % 10_007);
        }
        let bytes = 200 + (n * 2741) % 5600;
        match n % 11 {
            3 => {
                while text.len() < bytes {
                    let _ = writeln!(text, "{:08x}{:08x} {:016x}", n * 40_503, text.len() * 2_654_435, n * text.len());
                }
            }
            5 => text.push_str(&"港の門は今日も閉まっている。".repeat(bytes / 42 + 1)),
            8 => {
                while text.len() < bytes {
                    let row =
                        json!({"id": n * 1000 + text.len(), "state": "ready", "tags": ["a", "b"], "size": text.len()});
                    let _ = writeln!(text, "{row}");
                }
            }
            _ => text.push_str(&prose(n, bytes)),
        }
        text
    }

    fn log(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, asked: &RecordedRequest) -> Reply {
        let parts = parts(asked);
        let prompt: u64 = parts.iter().map(|part| part.1).sum();
        let most = prompt + answer_limit(&asked.body);
        let mut tally = self.log();
        if most > self.window {
            tally.overflows += 1;
            return overflow(asked.api, prompt, most - prompt, self.window);
        }
        if asked.model() == MEMORY_MODEL || asked.path.contains(&format!("/{MEMORY_MODEL}:")) {
            let reply = remember(&asked.last_user_text());
            tally.memory += 1;
            tally.memory_in += prompt;
            tally.memory_out += tokens(&reply);
            return Reply::text(reply);
        }
        tally.turns += 1;
        tally.most = tally.most.max(most);
        tally.prompt += prompt;
        let same = parts.iter().zip(&tally.before).take_while(|(now, before)| now == before);
        let (same, cached) = same.fold((0, 0), |(count, tokens), (part, _)| (count + 1, tokens + part.1));
        tally.cached += cached;
        tally.breaks += usize::from(same < tally.before.len());
        tally.before = parts;
        let body = asked.body.to_string();
        tally.known = FACTS.iter().filter(|(key, value)| body.contains(key) && body.contains(value)).count();
        self.turn(tally.turns)
    }

    /// Returns the agent's answer number `n`.
    fn turn(&self, n: usize) -> Reply {
        let text = if n == FACTS_TURN { reported(1) } else { format!("Turn {n}. {}", prose(n, 120)) };
        if n < FACTS_TURN || n.is_multiple_of(TASK) || n >= self.turns {
            return Reply::text(text);
        }
        let why = if n == FACTS_TURN { reported(2) } else { format!("step {n}") };
        Reply::text_and_calls(text, vec![(STEP_TOOL, json!({"n": n, "why": why}))])
    }
}

fn reported(fact: usize) -> String {
    let (key, value) = FACTS[fact];
    format!("{MARK}{key} is {value}{END} ")
}

/// Returns prose, always the same for the same number.
fn prose(n: usize, bytes: usize) -> String {
    const WORDS: [&str; 16] = [
        "the", "harbour", "gate", "was", "opened", "before", "noon", "and", "seven", "lorries", "waited", "for",
        "their", "papers", "in", "line",
    ];
    let mut text = String::with_capacity(bytes + 16);
    let mut at = n;
    while text.len() < bytes {
        at = (at * 1_103_515_245 + 12_345) % 2_147_483_648;
        text.push_str(WORDS[(at >> 16) % WORDS.len()]);
        text.push(if at.is_multiple_of(9) { '\n' } else { ' ' });
    }
    text
}

/// Returns the facts marked in a text, or its first words as a summary, as the model for summaries would.
fn remember(message: &str) -> String {
    if !message.trim_start().starts_with("<text>") {
        let body = message.split("<content>").last().unwrap_or_default();
        let words: Vec<&str> = body.split_whitespace().take(80).collect();
        return json!({"summary": words.join(" "), "key_points": ["Lorries waited.", "Gates were opened."]})
            .to_string();
    }
    let mut facts: Vec<Value> = Vec::new();
    for reported in message.split(MARK).skip(1) {
        let Some((key, value)) = reported.split(END).next().and_then(|reported| reported.split_once(" is ")) else {
            continue;
        };
        let category = if FACTS.iter().any(|fact| fact.0 == key) { "decision" } else { "other" };
        facts.push(json!({"key": key, "value": value, "category": category}));
    }
    json!({"facts": facts}).to_string()
}

fn overflow(api: WireApi, prompt: u64, answer: u64, window: u64) -> Reply {
    let (code, message) = match api {
        WireApi::OpenAi | WireApi::Responses => (
            "context_length_exceeded",
            format!(
                "This model's maximum context length is {window} tokens. However, you requested {} tokens ({prompt} in the messages, {answer} in the completion).",
                prompt + answer
            ),
        ),
        WireApi::Anthropic if prompt > window => {
            ("", format!("prompt is too long: {prompt} tokens > {window} maximum"))
        }
        WireApi::Anthropic => (
            "",
            format!(
                "input length and `max_tokens` exceed context limit: {prompt} + {answer} > {window}, decrease input length or `max_tokens` and try again"
            ),
        ),
        WireApi::Gemini => {
            ("", format!("The input token count ({prompt}) exceeds the maximum number of tokens allowed ({window})."))
        }
        WireApi::Ollama => ("", "the input length exceeds the context length".to_owned()),
    };
    Reply::Error { status: 400, code: code.into(), message, retry_after: None }
}
