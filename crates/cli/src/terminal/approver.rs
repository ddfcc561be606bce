//! Asks the person at the terminal for approvals.

use std::sync::Arc;

use async_trait::async_trait;
use toolwright::core::approval::AlwaysCovers;
use toolwright::core::{ApprovalDecision, ApprovalRequest, Approver};

use crate::terminal::console::Console;
use crate::terminal::screen::{BOLD, Screen, WARN, harmless, say, styled};
use crate::use_tools::tools::words;

/// Characters of arguments that are shown; nobody reads more before an answer.
const MAX_SHOWN: usize = 8000;

/// Asks yes, no, skip or always. One question at a time; the progress display pauses meanwhile.
pub(crate) struct TerminalApprover {
    console: Arc<Console>,
    screen: Arc<Screen>,
}

impl TerminalApprover {
    pub(crate) fn new(console: Arc<Console>, screen: Arc<Screen>) -> Self {
        Self { console, screen }
    }
}

#[async_trait]
impl Approver for TerminalApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        let _screen = self.screen.hold().await;
        let arguments = harmless(&format!("{:#}", request.arguments));
        let shown: String = arguments.chars().take(MAX_SHOWN).collect();
        let cut = arguments.chars().count() - shown.chars().count();
        say(format_args!("\n{} {}", styled(WARN, "May this run?"), styled(BOLD, self.screen.name(&request.tool))));
        say(format_args!("  it {}; asked because {}", words(request.effects), harmless(&request.reason)));
        for line in shown.lines() {
            say(format_args!("  {line}"));
        }
        if cut > 0 {
            say(styled(WARN, format_args!("  … {cut} more characters are not shown")));
        }
        let covered = match request.always_covers() {
            AlwaysCovers::Tool => "this tool".to_owned(),
            AlwaysCovers::ToolForAsker => {
                format!("what {} asks", harmless(request.asker.as_deref().unwrap_or_default()))
            }
            AlwaysCovers::ToolInWorkspace => "this tool inside the workspace".to_owned(),
            AlwaysCovers::ThisCall => "exactly these arguments".to_owned(),
        };
        let question = format!("[y]es, [n]o, [s]kip, [a]lways for {covered} in this session: ");
        self.console.forget_typed_ahead().await;
        loop {
            let Some(answer) = self.console.ask(&question).await else {
                return ApprovalDecision::Deny { reason: "the input ended before anybody answered".into() };
            };
            match answer.trim().to_lowercase().as_str() {
                "y" | "yes" => return ApprovalDecision::Approve,
                "a" | "always" => return ApprovalDecision::Always,
                "n" | "no" => return ApprovalDecision::Deny { reason: "the user said no".into() },
                "s" | "skip" => return ApprovalDecision::Skip,
                _ => say("please answer y, n, s or a"),
            }
        }
    }
}
