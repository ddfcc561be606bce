//! `chat`: an agent that answers each message of the user.

use std::sync::Arc;

use clap::Args;
use toolwright::Toolwright;
use toolwright::agent::Dispatch;
use toolwright::app::watch as watch_configuration;
use toolwright::core::model::Usage;
use toolwright::core::{Cancel, CancelCause};
use toolwright::search::{SearchFilter, search_or_similar};

use super::report::{exit, print_answer, summary, with_id};
use super::run::LIST_WAIT;
use super::serve::say_reload;
use crate::app::agent::{Agent, agent, failed, model, named, profile, record};
use crate::app::lists::{WaitFor, wait_for};
use crate::app::{GlobalOptions, open};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::console::{OnSignal, TerminalGuard, TypedLine, background_on_sigquit, next_signal, watch};
use crate::terminal::person::Terminal;
use crate::terminal::progress::{ProgressDisplay, TaskCost, TextOutput};
use crate::terminal::screen::{DIM, WARN, columns, is_interactive, print_json, sanitize, say, styled};
use crate::terminal::table::{Table, name};

/// The line history, in the state directory.
const HISTORY: &str = "chat_history";
/// The most tools that `/tools WORDS` lists.
const FOUND: usize = 20;
/// The text of `/help`.
const HELP: &str = "\
/help          this list
/tools [WORDS] the tools, or those that the words find
/cost          tokens and cost so far
/new           begin a new conversation
/exit          end (Ctrl-D does, too)
Ctrl-C stops an answer. Ctrl-\\ lets running calls go on in the background. Up and Ctrl-R find earlier lines.";

#[derive(Debug, Args)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) agent: Agent,
}

/// The request in a line.
#[derive(Debug, PartialEq, Eq)]
enum ChatLine<'a> {
    Empty,
    Help,
    Tools(&'a str),
    Cost,
    New,
    Exit,
    /// An unknown command.
    Unknown(&'a str),
    Message(&'a str),
    /// No input: messages have arrived that wake the conversation.
    Mail,
}

impl<'a> ChatLine<'a> {
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
            // A path counts as a message.
            _ if word.starts_with('/') && !word[1..].contains('/') => Self::Unknown(word),
            _ => Self::Message(line),
        }
    }
}

/// The totals of a chat.
#[derive(Default)]
struct ChatTotals {
    turns: u32,
    usage: Usage,
    cost: TaskCost,
}

impl ChatTotals {
    fn say(&self) {
        let Usage { input_tokens, output_tokens, .. } = self.usage;
        let (turns, cost) = (self.turns, self.cost);
        say(styled(DIM, format_args!("in all: {turns} turns, {input_tokens} tokens in, {output_tokens} out{cost}")));
    }
}

pub(crate) async fn chat(global: &GlobalOptions, chat: &Chat) -> CommandResult {
    let app = open(global).await?;
    record(&app, &chat.agent.record)?;
    app.offer_llm_tools().await;
    app.catalogue().offer_extraction(true).await;
    let config = named(&chat.agent, &app)?;
    let profile = profile(&chat.agent, config.as_ref(), &app)?;
    let model = model(&chat.agent, config.as_ref(), &app).await?;
    wait_for(&app, WaitFor::Unlisted, LIST_WAIT).await;
    let id = format!("chat-{}", uuid::Uuid::new_v4());
    let terminal = Terminal::new(&app);
    let agent = agent(&chat.agent, &app, &terminal, (&id, &model), profile, None)?;
    // Jobs that continue wake the conversation when they end.
    let mut conversation = agent.job_wait(None).reading_mailbox().conversation().await.map_err(failed)?;
    app.follow_pins();
    app.recover_jobs_of(conversation.session().clone());
    let triggers = app.run_triggers().await;
    let reloading = tokio::spawn(watch_configuration(Arc::clone(&app), |reloaded| say_reload(&reloaded)));
    if conversation.config().dispatch == Dispatch::Manual {
        return Err(Failure::usage(
            "chat cannot hold calls for --resume: use --dispatch turn-end or streaming, and --policy ask to be asked",
        ));
    }
    background_on_sigquit(&app, conversation.session());
    let groups = app.config().sections.defaults.groups.then(|| app.drive_groups());
    if is_interactive() {
        say(styled(DIM, format_args!("{}; /help lists what you can type, Ctrl-D ends", conversation.config().model)));
    }
    let (mut status, mut total) = (Exit::Ok, ChatTotals::default());
    let prompt = if is_interactive() { "> " } else { "" };
    // An editor needs a terminal at both ends; otherwise lines are read plainly.
    let history = (is_interactive() && columns().is_some()).then(|| app.config().state_dir.join(HISTORY));
    let _terminal = TerminalGuard::new();
    loop {
        let asked = async {
            match &history {
                Some(history) => terminal.console.edit(prompt, history).await,
                None => terminal.console.ask(prompt).await.map_or(TypedLine::End, TypedLine::Line),
            }
        };
        let typed = tokio::select! {
            biased;
            typed = asked => Some(typed),
            _ = next_signal() => Some(TypedLine::End),
            received = conversation.receive() => {
                received.map_err(failed)?;
                None
            }
        };
        let line = match typed {
            Some(TypedLine::Line(line)) => Some(line),
            Some(TypedLine::Interrupted) => {
                say(styled(DIM, "Ctrl-D or /exit ends"));
                continue;
            }
            Some(TypedLine::End) => break,
            None => None,
        };
        let message = match line.as_deref().map_or(ChatLine::Mail, ChatLine::of) {
            ChatLine::Mail => {
                if is_interactive() {
                    say(styled(DIM, "a message came"));
                }
                None
            }
            ChatLine::Empty => continue,
            ChatLine::Exit => break,
            ChatLine::Help => {
                say(HELP);
                continue;
            }
            ChatLine::Cost => {
                total.say();
                continue;
            }
            ChatLine::Tools(words) => {
                tools(&app, words)?;
                continue;
            }
            ChatLine::New => {
                conversation.reset();
                say(styled(DIM, "a new conversation"));
                continue;
            }
            ChatLine::Unknown(command) => {
                say(styled(WARN, format_args!("{} is no command; /help lists them", sanitize(command))));
                continue;
            }
            ChatLine::Message(message) => Some(message.to_owned()),
        };
        let cancel = Cancel::new();
        conversation.set_cancel(cancel.clone());
        let text = TextOutput::for_output(global.json);
        let progress = ProgressDisplay::begin(app.events().subscribe(), text, Arc::clone(&terminal.screen));
        let signals = watch(cancel.clone(), OnSignal::Cancel);
        let report = match message {
            Some(message) => conversation.send(message).await,
            None => conversation.proceed().await,
        };
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
            summary(&report, cost, "goes on in this chat");
        }
        status = exit(report.status);
        if cancel.cause() == Some(CancelCause::Shutdown) {
            break;
        }
    }
    if is_interactive() && total.turns > 0 {
        total.say();
    }
    // Other processes take over their work before calls are cancelled.
    drop((triggers, groups));
    reloading.abort();
    app.shut_down().await;
    Ok(status)
}

/// Lists all tools, or those that match the words.
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
    fn a_slash_begins_a_command_except_in_paths() {
        for (line, expect) in [
            ("  ", ChatLine::Empty),
            ("/help", ChatLine::Help),
            ("/tools read file ", ChatLine::Tools("read file")),
            ("/quit", ChatLine::Exit),
            ("/frob", ChatLine::Unknown("/frob")),
            ("/etc/hosts: what is it?", ChatLine::Message("/etc/hosts: what is it?")),
            ("hello /help", ChatLine::Message("hello /help")),
        ] {
            assert_eq!(ChatLine::of(line), expect, "{line}");
        }
    }
}
