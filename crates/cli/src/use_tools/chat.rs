//! `chat`: runs the agent once for each message of the user.

use std::sync::Arc;

use toolwright::Toolwright;
use toolwright::agent::Dispatch;
use toolwright::core::model::Usage;
use toolwright::core::select::{SearchFilter, search_or_similar};
use toolwright::core::{Cancel, CancelCause};

use crate::app::agent::{Terminal, agent, failed, model, profile};
use crate::app::list_wait::{Wanted, wait_for};
use crate::app::{config, open, record};
use crate::args::{Chat, Global};
use crate::exit::{Done, Exit, Failure};
use crate::terminal::console::{KeptTerminal, Typed};
use crate::terminal::progress::{Cost, ProgressDisplay, Text};
use crate::terminal::screen::{DIM, WARN, columns, harmless, is_interactive, print_json, say, styled};
use crate::terminal::signals::{First, background_on_quit, next_signal, watch};
use crate::terminal::table::{Table, name};
use crate::use_tools::run::{LIST_WAIT, exit, print_answer, summary, with_id};

/// The history of lines, in the state directory.
const HISTORY: &str = "chat_history";
/// Tools that `/tools WORDS` finds.
const FOUND: usize = 20;
const HELP: &str = "\
/help          this list
/tools [WORDS] the tools, or those that the words find
/cost          tokens and cost so far
/new           begin a new conversation
/exit          end (Ctrl-D does, too)
Ctrl-C stops an answer. Ctrl-\\ lets running calls go on in the background. Up and Ctrl-R find earlier lines.";

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Empty,
    Help,
    Tools(&'a str),
    Cost,
    New,
    Exit,
    /// A command that there is not.
    Unknown(&'a str),
    Message(&'a str),
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            "" => Self::Empty,
            "/help" | "/?" => Self::Help,
            "/tools" => Self::Tools(rest.trim()),
            "/cost" => Self::Cost,
            "/new" | "/clear" => Self::New,
            "/exit" | "/quit" => Self::Exit,
            // A path is a message.
            _ if word.starts_with('/') && !word[1..].contains('/') => Self::Unknown(word),
            _ => Self::Message(line),
        }
    }
}

/// What a chat took so far.
#[derive(Default)]
struct Total {
    turns: u32,
    usage: Usage,
    cost: Cost,
}

impl Total {
    fn say(&self) {
        let Usage { input_tokens, output_tokens, .. } = self.usage;
        let (turns, cost) = (self.turns, self.cost);
        say(styled(DIM, format_args!("in all: {turns} turns, {input_tokens} tokens in, {output_tokens} out{cost}")));
    }
}

pub(crate) async fn command(global: &Global, chat: &Chat) -> Done {
    let app = open(global, config::usable(global)?).await?;
    record(&app, &chat.agent.record)?;
    app.offer_llm_tools().await;
    app.catalogue().offer_extraction(true).await;
    let profile = profile(&chat.agent, &app)?;
    let model = model(&chat.agent, &app).await?;
    wait_for(&app, Wanted::Unknown, LIST_WAIT).await;
    let id = format!("chat-{}", uuid::Uuid::new_v4());
    let terminal = Terminal::new(&app);
    let agent = agent(&chat.agent, &app, &terminal, (&id, &model), profile, None)?;
    // Of jobs that go on the next message tells.
    let mut conversation = agent.job_wait(None).conversation().await.map_err(failed)?;
    app.follow_pins();
    app.recover_jobs_of(conversation.session().clone());
    if conversation.spec().dispatch == Dispatch::Manual {
        return Err(Failure::usage(
            "a chat has no way to let calls run one turn at a time: use --dispatch turn-end or streaming, and --policy ask to be asked",
        ));
    }
    background_on_quit(&app, conversation.session());
    if is_interactive() {
        say(styled(DIM, format_args!("{}; /help lists what you can type, Ctrl-D ends", conversation.spec().model)));
    }
    let (mut status, mut total) = (Exit::Ok, Total::default());
    let prompt = if is_interactive() { "> " } else { "" };
    // An editor needs both ends; elsewhere lines are read as they come.
    let history = (is_interactive() && columns().is_some()).then(|| app.config().state_dir.join(HISTORY));
    let _terminal = KeptTerminal::new();
    loop {
        let asked = async {
            match &history {
                Some(history) => terminal.console.edit(prompt, history).await,
                None => terminal.console.ask(prompt).await.map_or(Typed::End, Typed::Line),
            }
        };
        let typed = tokio::select! {
            typed = asked => typed,
            _ = next_signal() => Typed::End,
        };
        let line = match typed {
            Typed::Line(line) => line,
            Typed::Interrupted => {
                say(styled(DIM, "Ctrl-D or /exit ends"));
                continue;
            }
            Typed::End => break,
        };
        let message = match Line::of(&line) {
            Line::Empty => continue,
            Line::Exit => break,
            Line::Help => {
                say(HELP);
                continue;
            }
            Line::Cost => {
                total.say();
                continue;
            }
            Line::Tools(words) => {
                tools(&app, words)?;
                continue;
            }
            Line::New => {
                conversation.reset();
                say(styled(DIM, "a new conversation"));
                continue;
            }
            Line::Unknown(command) => {
                say(styled(WARN, format_args!("{} is no command; /help lists them", harmless(command))));
                continue;
            }
            Line::Message(message) => message.to_owned(),
        };
        let cancel = Cancel::new();
        conversation.set_cancel(cancel.clone());
        let text = Text::for_output(global.json);
        let progress = ProgressDisplay::begin(app.events().subscribe(), text, Arc::clone(&terminal.screen));
        let signals = watch(cancel.clone(), First::Cancels);
        let report = conversation.send(message).await;
        signals.abort();
        let (shown, cost) = progress.end().await;
        let report = report.map_err(failed)?;
        total.turns += report.turns;
        total.usage.add(report.usage);
        total.cost.add(cost);
        if global.json {
            print_json(&with_id(&report, &id))?;
        } else {
            print_answer(&report, text, shown)?;
            summary(&report, cost);
        }
        status = exit(report.status);
        if cancel.cause() == Some(CancelCause::Shutdown) {
            break;
        }
    }
    if is_interactive() && total.turns > 0 {
        total.say();
    }
    app.shut_down().await;
    Ok(status)
}

/// Lists the tools, or those that the words find.
fn tools(app: &Toolwright, words: &str) -> std::io::Result<()> {
    let snapshot = app.catalogue().snapshot();
    let mut table = Table::new(["tool", "description"]);
    let mut row = |entry: &toolwright::core::Entry| {
        table.row([name(&entry.wire_name), (&entry.definition().description).into()]);
    };
    if words.is_empty() {
        snapshot.list().iter().for_each(|entry| row(entry));
    } else {
        search_or_similar(&snapshot, words, FOUND, &SearchFilter::default()).iter().for_each(|hit| row(&hit.entry));
    }
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_with_a_slash_is_a_command_but_for_paths() {
        for (line, expect) in [
            ("  ", Line::Empty),
            ("/help", Line::Help),
            ("/tools read file ", Line::Tools("read file")),
            ("/quit", Line::Exit),
            ("/frob", Line::Unknown("/frob")),
            ("/etc/hosts: what is it?", Line::Message("/etc/hosts: what is it?")),
            ("hello /help", Line::Message("hello /help")),
        ] {
            assert_eq!(Line::of(line), expect, "{line}");
        }
    }
}
