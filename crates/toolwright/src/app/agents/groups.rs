//! Drives the members of groups: each works when its mailbox has messages, in one process at a time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinHandle;
use toolwright_core::Cancel;
use toolwright_core::approval::{AgentStep, AnswerSource, ApprovalDecision, ApprovalRequest, Approver};
use toolwright_core::cancel::CancelCause;
use toolwright_core::session::SessionId;
use toolwright_core::store::group::Member;
use toolwright_core::store::{Claim, RunStore as _};

use super::Agent;
use crate::app::Toolwright;
use crate::app::stores::QUESTION_TIMEOUT;
use crate::error::Error;

/// How often the members are looked up.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a member waits for another process that drives it, and after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The task that drives members. When it is dropped they pause, and can continue later.
#[derive(Debug)]
pub struct DrivenGroups(JoinHandle<()>);

impl Drop for DrivenGroups {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A member that this process drives.
struct DrivenMember {
    cancel: Cancel,
    task: JoinHandle<()>,
}

impl Drop for DrivenMember {
    fn drop(&mut self) {
        self.cancel.cancel(CancelCause::Shutdown);
        self.task.abort();
    }
}

impl Toolwright {
    /// From now on, drives the started members of groups that no other process drives. For long-lived processes.
    #[must_use]
    pub fn drive_groups(self: &Arc<Self>) -> DrivenGroups {
        let app = Arc::downgrade(self);
        DrivenGroups(tokio::spawn(async move {
            let mut driven: HashMap<SessionId, DrivenMember> = HashMap::new();
            while let Some(app) = Weak::upgrade(&app) {
                match app.executor().services().groups.members(None).await {
                    Ok(members) => sync_members(&app, &mut driven, members),
                    Err(error) => tracing::warn!("the members of groups cannot be read: {error}"),
                }
                drop(app);
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }))
    }
}

/// Starts driving this workspace's started members, and stops those that no longer exist.
fn sync_members(app: &Arc<Toolwright>, driven: &mut HashMap<SessionId, DrivenMember>, members: Vec<Member>) {
    let root = app.config().root.clone();
    let is_ours = |member: &Member| member.started && member.rights.root == root;
    let started: HashMap<SessionId, Member> =
        members.into_iter().filter(is_ours).map(|member| (member.session.clone(), member)).collect();
    driven.retain(|session, one| started.contains_key(session) && !one.task.is_finished());
    for (session, member) in started {
        driven.entry(session).or_insert_with(|| {
            let (cancel, app) = (Cancel::new(), Arc::downgrade(app));
            let token = cancel.clone();
            DrivenMember { cancel, task: tokio::spawn(keep(app, member, token)) }
        });
    }
}

/// Drives a member until it is cancelled, and restarts it after failures.
async fn keep(app: Weak<Toolwright>, member: Member, cancel: Cancel) {
    // Held by its process permanently, so that two never share a mailbox.
    let claim = member.claim();
    while let Some(app) = Weak::upgrade(&app) {
        match app.store.claim(&claim).await {
            Ok(Claim::Held) => {
                let Err(error) = drive(&app, &member, &cancel).await else { return };
                tracing::warn!(member = member.name, "a member of a group cannot go on: {error}");
            }
            Ok(Claim::TakenBy(_)) => {}
            Err(error) => tracing::warn!(member = member.name, "a member of a group cannot be claimed: {error}"),
        }
        drop(app);
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn drive(app: &Arc<Toolwright>, member: &Member, cancel: &Cancel) -> Result<(), Error> {
    // A call that needs a person becomes a job that waits; a message reports its end.
    let inbox = || Arc::new(app.ask_inbox_for(QUESTION_TIMEOUT, AnswerSource::Elsewhere, |_| ())) as Arc<dyn Approver>;
    let inner = app.own_approver().unwrap_or_else(inbox);
    let approver = Arc::new(MemberApprover { member: member.name.clone(), inner });
    let principal = app.principal_now(&member.rights.principal).ok();
    let agent = agent(app, member)?.id(member.session.as_str()).cancel(cancel.clone()).job_wait(None).reading_mailbox();
    let agent = agent.shared_approver(approver);
    let mut conversation = agent.conversation().await?;
    conversation.open_or_create(introduction(member)).await?;
    loop {
        conversation.receive().await?;
        // It restarts with its token's present roles, and then reads its messages.
        if app.principal_now(&member.rights.principal).ok() != principal {
            return Ok(());
        }
        let report = conversation.proceed().await?;
        tracing::debug!(member = member.name, status = report.status.as_str(), "a member of a group has worked");
        if cancel.cause().is_some() {
            return Ok(());
        }
    }
}

/// Asks on behalf of a member, whose name is first in the path of agents.
struct MemberApprover {
    member: String,
    inner: Arc<dyn Approver>,
}

#[async_trait]
impl Approver for MemberApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        let mut request = request.clone();
        request.agents.insert(0, AgentStep { agent: self.member.clone(), reason: String::new() });
        self.inner.ask(&request).await
    }

    fn answers(&self) -> AnswerSource {
        self.inner.answers()
    }

    fn fallback_approver(&self) -> Option<Arc<dyn Approver>> {
        let inner = self.inner.fallback_approver()?;
        Some(Arc::new(Self { member: self.member.clone(), inner }))
    }

    fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout()
    }
}

/// Returns a member's agent, with no more rights than the one who added it.
fn agent(app: &Arc<Toolwright>, member: &Member) -> Result<Agent, Error> {
    let agent = if member.agent.is_empty() {
        let config = app.config();
        let model = config.sections.models.default.as_deref().or(app.default_model());
        app.agent(model.unwrap_or_default())
    } else {
        app.agent_named(&member.agent)?.privileged(member.privileged)
    };
    Ok(agent.narrowed_to(&member.rights))
}

/// Returns the text that a member reads before its messages.
fn introduction(member: &Member) -> String {
    let Member { name, instructions, .. } = member;
    let own = instructions.as_ref().map(|text| format!("\n\n{text}")).unwrap_or_default();
    format!(
        "You are `{name}`, a member of a group of agents. Messages come to you one after the other; each names its sender. \
         Nobody reads your text: answer with group__send to the sender's name, if an answer is due.{own}"
    )
}
