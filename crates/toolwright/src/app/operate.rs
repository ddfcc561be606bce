//! Implements the owner's view of an instance, and changes to it, for the HTTP API of `serve`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use similar::{Algorithm, DiffTag, capture_diff_slices};
use toolwright_core::agents::AgentTree as _;
use toolwright_core::catalogue::{CallScope, Entry};
use toolwright_core::duration::iso;
use toolwright_core::json::canonical::ContentHash;
use toolwright_core::pins::{Pin, diff, renamed};
use toolwright_core::policy::{Decision, PolicyQuery};
use toolwright_core::session::{Principal, Session, SessionId};
use toolwright_core::store::group::{Groups as _, Member};
use toolwright_core::store::todo::{TODO_ROOT, TodoList};
use toolwright_core::store::{LedgerEntry, LogEntry, PinDecision, SessionLog as _, StoreError, fold};
use toolwright_core::trigger::{Firing, Triggers as _};
use toolwright_core::{ApprovalRequest, Outcome, Policy, Profile};
use toolwright_gateway::{Operator, PinAction};

use super::Toolwright;
use crate::config::trust::{TrustStore, write_approved};
use crate::config::{Config, PolicyConfig, Problem, Severity, policy_file};
use crate::import::edit;

/// The most bytes of a text in a saved conversation; of longer ones the beginning is shown.
const MAX_TEXT: usize = 8 << 10;
/// The most messages of a mailbox that are shown.
const MESSAGES: usize = 500;
/// The number of a trigger's next firings that are shown.
const NEXT: usize = 5;
/// The most tools whose exclusion from a pick is explained.
const MAX_EXPLAINED: usize = 100;
/// The section of a configuration with the policy.
const POLICY: &str = "policy";

/// An instance, and the profile of `serve`.
#[derive(Debug)]
pub(crate) struct Operations {
    pub(crate) app: Arc<Toolwright>,
    pub(crate) profile: Option<Profile>,
    pub(crate) usual: Profile,
}

#[async_trait]
impl Operator for Operations {
    async fn pins(&self) -> Result<Value, StoreError> {
        let store = self.app.pins();
        let mut pins = Vec::new();
        for pin in self.app.configured_pins().await? {
            let contracts = store.pin_contracts(&pin.source, std::slice::from_ref(&pin.tool)).await?;
            let contracts = contracts.into_iter().next().unwrap_or_default();
            let mut value = pin.to_json();
            if pin.waiting.is_some() {
                let name = pin.renamed.as_deref().map(|name| renamed(&pin.tool, name));
                let both = contracts.approved.as_ref().zip(contracts.waiting.as_ref());
                let changes = name.into_iter().chain(both.into_iter().flat_map(|(was, is)| diff(was, is)));
                let text = |of: &Value| serde_json::to_string_pretty(of).unwrap_or_default();
                value["difference"] = json!(both.map(|(was, is)| difference(&text(was), &text(is))));
                value["changes"] = changes.map(|change| json!(change)).collect();
                value["approved_definition"] = json!(contracts.approved);
                value["waiting_definition"] = json!(contracts.waiting);
            }
            pins.push(value);
        }
        Ok(pins.into())
    }

    async fn decide_pin(
        &self,
        provider: &str,
        tool: &str,
        hash: &str,
        word: PinAction,
        by: &str,
    ) -> Result<(), StoreError> {
        let pins = self.app.configured_pins().await?;
        let named = |pin: &&Pin| pin.source.provider == provider && pin.tool == tool;
        let missing = || StoreError::NotFound(format!("the definition {provider}/{tool}"));
        let pin = pins.iter().find(named).ok_or_else(missing)?;
        let Some(mark) = pin.waiting.as_ref().filter(|mark| json!(mark.hash) == hash) else {
            return Err(StoreError::Refused(format!(
                "{} no longer waits with this definition: load the page again",
                pin.name()
            )));
        };
        let decision = match word {
            // Approves the definition that was shown, not one that a list brings meanwhile.
            PinAction::Approve => PinDecision::Approve(Some(mark.hash)),
            PinAction::Reject => PinDecision::Revoke,
        };
        if !self.app.pins().decide_pin(&pin.source, &pin.tool, decision, by).await? {
            return Err(StoreError::Refused(format!("{} was decided meanwhile", pin.name())));
        }
        self.app.catalogue().recheck_pins().await;
        Ok(())
    }

    fn left_out(&self) -> Vec<(String, String)> {
        let config = self.app.config();
        let mut left_out: Vec<(String, String)> = Vec::new();
        for problem in config.problems.iter().filter(|problem| problem.severity == Severity::EntryDisabled) {
            let Some((name, field)) =
                problem.field.strip_prefix("mcp_servers.").map(|path| path.split_once('.').unwrap_or((path, "")))
            else {
                continue;
            };
            if left_out.iter().all(|(known, _)| known != name) {
                let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
                left_out.push((name.to_owned(), format!("{field}{}; {}", problem.message, problem.remedy)));
            }
        }
        left_out
    }

    async fn decision_preview(&self, request: &ApprovalRequest) -> Result<Value, StoreError> {
        let config = self.app.config();
        let Some(entry) = self.app.catalogue().snapshot().get(request.tool.as_str()).map(Arc::clone) else {
            return Ok(json!({"changes": null, "always": {"why": format!("{} no longer exists", request.tool)}}));
        };
        let session = self.session_of(&config, &request.principal);
        let (tool, arguments) = (Arc::clone(&entry), request.arguments.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let scope = tool.provider.scope(tool.id(), &arguments, &session);
            let changes = tool.provider.changes(tool.id(), &arguments, &session);
            (session, scope, changes)
        });
        let (session, scope, changes) = looked.await.map_err(|error| StoreError::Refused(error.to_string()))?;
        // A session in another place has other files with the same names.
        let changes = changes.filter(|_| scope == request.scope);
        let query =
            PolicyQuery { tainted: &request.tainted, ..query(&entry, &request.arguments, &session, request.scope) };
        let always = self.always(&config, &query, request).unwrap_or_else(|why| json!({"why": why}));
        Ok(json!({"changes": changes, "always": always}))
    }

    async fn pick(&self, prompt: &str, max: usize) -> Result<Value, StoreError> {
        let snapshot = self.app.catalogue().snapshot();
        let mut options = self.app.config().sections.selection.pick_options();
        (options.config.max_candidates, options.debug) = (max, true);
        let picked = self.app.selector().pick(prompt.trim(), &snapshot, &options).await;
        let entry = |position: usize| &snapshot.list()[position];
        let provenance = &picked.provenance;
        let picks = picked.picks.iter().map(|pick| {
            let entry = entry(pick.position);
            json!({
                "id": entry.id(),
                "wire_name": entry.wire_name,
                "score": pick.score,
                "reason": pick.reason,
                "tokens": entry.tokens(),
                "details": pick.details,
            })
        });
        let picks: Vec<Value> = picks.collect();
        let excluded = provenance.excluded.iter().take(MAX_EXPLAINED);
        let excluded = excluded.map(|(at, why)| json!({"id": entry(*at).id(), "reason": why.to_string()}));
        let fell_back = provenance.fell_back.iter().map(|(scorer, why)| json!({"scorer": scorer, "reason": why}));
        Ok(json!({
            "picks": picks,
            "scorer": provenance.scorer,
            "candidates": provenance.candidates,
            "shown_usually": self.app.config().sections.selection.pick.max_candidates,
            "excluded": excluded.collect::<Value>(),
            "fell_back": fell_back.collect::<Value>(),
        }))
    }

    async fn agents(&self, after: Option<&str>, limit: usize) -> Result<Value, StoreError> {
        let config = self.app.config();
        let agents = config.agents.iter().map(|agent| {
            let mut value = json!(agent.config);
            value["name"] = agent.config.name.as_str().into();
            shorten(&mut value);
            value
        });
        let members = self.app.store.members(None).await?;
        let mut trees = Vec::new();
        let roots = self.app.store.agent_roots(after, limit).await?;
        for run in &roots.ids {
            let nodes = self.app.store.agents_of(run).await?;
            let nodes = nodes.iter().map(|node| {
                json!({
                    "run": node.id, "parent": node.parent, "name": node.name, "limits": node.limits, "live": node.live,
                    "spent": node.spent, "until_ms": node.until_ms,
                })
            });
            trees.push(json!({"run": run, "agents": nodes.collect::<Value>()}));
        }
        let (mailboxes, all_mailboxes) = self.app.store.mailboxes(limit).await?;
        let default = config.sections.models.default.as_deref().or(self.app.default_model());
        Ok(json!({
            "agents": agents.collect::<Value>(),
            "members": members.iter().map(Member::to_json).collect::<Value>(),
            "mailboxes": mailboxes,
            "mailboxes_total": all_mailboxes,
            "trees": trees,
            "total": roots.total,
            "next": roots.next,
            "default_model": default,
        }))
    }

    async fn triggers(&self, firings: usize) -> Result<Value, StoreError> {
        let triggers = self.app.triggers();
        let mut triggers_json = Vec::new();
        for trigger in triggers.list(None).await? {
            let mut value = trigger.to_json();
            // One more than needed shows whether there are more.
            let rows = triggers.firings(Some(&trigger.id), firings.saturating_add(1)).await?;
            value["firings"] = rows.iter().take(firings).map(Firing::to_json).collect();
            value["more_firings"] = (rows.len() > firings).into();
            value["next"] = triggers.next(&trigger, NEXT).iter().map(|slot| iso(*slot)).collect();
            triggers_json.push(value);
        }
        Ok(json!({"triggers": triggers_json, "is_run": triggers.has_runner().await?}))
    }

    async fn fire(&self, trigger: &str) -> Result<Value, StoreError> {
        Ok(self.app.triggers().fire(trigger).await?.to_json())
    }

    async fn run(&self, run: &str) -> Result<Value, StoreError> {
        let missing = || StoreError::NotFound(format!("the run {run}"));
        let saved = self.app.runs().run(run).await?.ok_or_else(missing)?;
        let state = saved.state;
        let part = |path: &str| state.pointer(path).cloned().unwrap_or_default();
        let mut messages = part("/messages");
        shorten(&mut messages);
        let session = match self.app.executor().ledger().find_traces(run).await?.first() {
            Some(trace) => trace.session.clone(),
            None => SessionId::new(run),
        };
        let answered = saved.calls.iter().filter_map(|(_, outcome)| outcome.as_ref().map(Outcome::to_json));
        Ok(json!({
            "run": run,
            "model": part("/spec/model"),
            "agent": part("/spec/agent"),
            "system": part("/spec/system"),
            "state": part("/phase/waits_for"),
            "result": part("/phase/result"),
            "limits": part("/spec/limits"),
            "turns": part("/task/turns"),
            "usage": part("/task/usage"),
            "cost": part("/task/cost"),
            "messages": messages,
            "answered": answered.collect::<Value>(),
            "todo": self.todo(&session).await?,
        }))
    }

    async fn session(&self, session: &str, after: u64) -> Result<Value, StoreError> {
        let (id, log) = (SessionId::new(session), &self.app.store);
        let rows = log.messages(&id, after, MESSAGES).await?;
        let next = rows.last().filter(|_| rows.len() == MESSAGES).map(|row| row.seq);
        let messages = rows.iter().filter_map(|row| {
            let message = row.message()?;
            Some(json!({
                "seq": row.seq, "at_ms": row.at_ms, "from": row.author.name(), "kind": message.kind,
                "subject": message.subject, "text": message.text,
            }))
        });
        let written = log.values(&id, "").await?.into_iter().filter_map(|row| match row.entry {
            LogEntry::Value(written) => Some(written),
            LogEntry::Message(_) => None,
        });
        let written: Vec<_> = written.collect();
        let mut values = fold(written.iter(), "", None).unwrap_or_default();
        shorten(&mut values);
        Ok(json!({
            "messages": messages.collect::<Value>(),
            "next": next,
            "values": values,
            "todo": self.todo(&id).await?,
        }))
    }

    async fn policy(&self, calls: usize) -> Result<Value, StoreError> {
        let config = self.app.config();
        let policy = self.in_force(&config);
        let recorded = self.recorded(calls).await?;
        let queries = recorded.queries();
        let file = policy_section(&config);
        Ok(json!({
            "profile": policy.profile,
            "rules": policy.rules,
            "hits": policy.hits(&queries),
            "calls": queries.len(),
            "unknown": recorded.unknown,
            "file": file.as_ref().map(|file| file.path.display().to_string()),
            "text": file.as_ref().map_or_else(String::new, |file| file.section.clone()),
            "base": file.as_ref().map(|file| file.hash()),
        }))
    }

    async fn test_policy(&self, draft: &str, calls: usize) -> Result<Value, StoreError> {
        let config = self.app.config();
        let section = match policy_file(draft, Path::new("draft")) {
            Ok(section) => section,
            Err(problems) => return Ok(json!({"problems": problems.iter().map(problem_value).collect::<Value>()})),
        };
        let in_force = self.in_force(&config);
        let draft = section.policy_for(self.profile.or(section.profile).unwrap_or(self.usual));
        let recorded = self.recorded(calls).await?;
        let queries = recorded.queries();
        let said = |decision: &Decision| json!(decision);
        let changed = in_force.changed_by(&draft, &queries);
        let changed = changed.iter().map(|changed| {
            let call = &recorded.calls[changed.call];
            json!({
                "tool": call.ledger.name, "arguments": call.arguments, "at_ms": call.ledger.at_ms,
                "session": call.ledger.session, "run": call.ledger.op.lineage.run,
                "was": said(&changed.was), "is": said(&changed.is),
            })
        });
        Ok(json!({
            "problems": [],
            "hits": draft.hits(&queries),
            "calls": queries.len(),
            "unknown": recorded.unknown,
            "changed": changed.collect::<Value>(),
        }))
    }

    async fn save_policy(&self, draft: &str, base: &str) -> Result<Value, StoreError> {
        let config = self.app.config();
        if let Err(problems) = policy_file(draft, Path::new("draft")) {
            let why: Vec<String> = problems.iter().map(|problem| problem.message.clone()).collect();
            return Err(StoreError::Refused(format!("the policy cannot be used: {}", why.join("; "))));
        }
        let no_file = || StoreError::Refused("no configuration file is in use: `toolwright init` writes one".into());
        let file = policy_section(&config).ok_or_else(no_file)?;
        if file.hash() != base {
            let path = file.path.display();
            return Err(StoreError::Refused(format!("{path} was changed meanwhile: load it again")));
        }
        let failed = |error: &dyn std::fmt::Display| StoreError::Refused(error.to_string());
        let edited = edit::put_section(&file.text, POLICY, draft).map_err(|error| failed(&error))?;
        let mut backup = file.path.clone().into_os_string();
        backup.push(".bak");
        let backup = PathBuf::from(backup);
        edit::write_atomically(&backup, &file.text).map_err(|error| failed(&error))?;
        let trust = TrustStore::in_state(&config.state_dir);
        let is_approved = write_approved(&file.path, &edited, &trust).map_err(|error| failed(&error))?;
        // A file named on the command line needs no approval.
        let in_force = is_approved || !config.trust.iter().any(|judged| judged.file == file.path);
        Ok(json!({
            "file": file.path.display().to_string(),
            "backup": backup.display().to_string(),
            "diff": difference(&file.section, draft),
            "in_force": in_force,
        }))
    }
}

impl Operations {
    async fn todo(&self, session: &SessionId) -> Result<Value, StoreError> {
        let rows = self.app.store.values(session, TODO_ROOT).await?;
        Ok(json!(TodoList::of_rows(rows).items()))
    }

    /// Returns the policy of clients' calls.
    fn in_force(&self, config: &Config) -> Policy {
        config.policy(self.profile, self.usual)
    }

    /// Returns a session of this principal, for asking a policy.
    fn session_of(&self, config: &Config, principal: &str) -> Session {
        let owner = Principal::owner();
        let principal = if *owner.id == *principal {
            owner
        } else {
            let roles = config.sections.server.tokens.get(principal).map(|client| client.roles.clone());
            Principal { id: principal.to_owned(), roles: roles.unwrap_or_default(), owner: false }
        };
        Session { principal, ..Session::clone(&self.app.session("policy-test")) }
    }

    /// Returns the rule that "always" would write for a call, and the file with it; else why there is none.
    fn always(&self, config: &Config, query: &PolicyQuery<'_>, request: &ApprovalRequest) -> Result<Value, String> {
        let file = policy_section(config).ok_or("no configuration file is in use")?;
        let written = match file.section.trim() {
            "" => PolicyConfig::default(),
            text => policy_file(text, &file.path).map_err(|_| "the file's policy cannot be read")?,
        };
        let policy = self.in_force(config);
        if written.rules != policy.rules {
            return Err("the rules in force stand in other files too".into());
        }
        let found = policy.always_rule(query, request)?;
        let draft = edit::add_rule(&file.section, found.place, &found.rule).map_err(|error| error.to_string())?;
        Ok(json!({
            "rule": edit::rule_text(&found.rule, 0).map_err(|error| error.to_string())?,
            "file": file.path.display().to_string(),
            "diff": difference(&file.section, &draft),
            "base": file.hash(),
            "draft": draft,
        }))
    }

    /// Returns the last recorded calls that a policy can be tested on.
    async fn recorded(&self, limit: usize) -> Result<Recorded, StoreError> {
        let snapshot = self.app.catalogue().snapshot();
        let config = self.app.config();
        let mut recorded = Recorded::default();
        for ledger in self.app.executor().ledger().recent_calls(None, limit).await? {
            let arguments = ledger.arguments.as_deref().and_then(|text| serde_json::from_str(text).ok());
            let (Some(entry), Some(arguments)) = (snapshot.get(&ledger.name), arguments) else {
                recorded.unknown += 1;
                continue;
            };
            let session = self.session_of(&config, &ledger.principal);
            let scope = entry.provider.scope(entry.id(), &arguments, &session);
            recorded.calls.push(RecordedCall { ledger, entry: Arc::clone(entry), arguments, session, scope });
        }
        Ok(recorded)
    }
}

/// Recorded calls.
#[derive(Default)]
struct Recorded {
    calls: Vec<RecordedCall>,
    /// The number of calls whose tool is gone, or whose arguments were not recorded.
    unknown: usize,
}

struct RecordedCall {
    ledger: LedgerEntry,
    entry: Arc<Entry>,
    arguments: Value,
    session: Session,
    scope: CallScope,
}

impl Recorded {
    /// Returns the queries as the executor makes them.
    fn queries(&self) -> Vec<PolicyQuery<'_>> {
        self.calls.iter().map(|call| query(&call.entry, &call.arguments, &call.session, call.scope)).collect()
    }
}

/// Returns the query for a call of which only these data are known.
fn query<'c>(entry: &'c Entry, arguments: &'c Value, session: &'c Session, scope: CallScope) -> PolicyQuery<'c> {
    PolicyQuery {
        definition: entry.definition(),
        trust: entry.provider.trust(),
        principal: &session.principal,
        root: &session.root,
        scope,
        unvalidated: None,
        arguments,
        request: None,
        tainted: &[],
    }
}

fn problem_value(problem: &Problem) -> Value {
    json!({"line": problem.line.unwrap_or(0), "field": problem.field, "message": problem.message, "remedy": problem.remedy})
}

/// The file with the policy in force.
struct PolicyFile {
    path: PathBuf,
    text: String,
    section: String,
}

impl PolicyFile {
    fn hash(&self) -> String {
        ContentHash::of_bytes(self.text.as_bytes()).to_string()
    }
}

/// Returns the nearest file with a policy, else the nearest file.
fn policy_section(config: &Config) -> Option<PolicyFile> {
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        let section = edit::section_text(&text, POLICY).ok()?;
        Some((path.clone(), text, section))
    };
    let files: Vec<_> = config.files.iter().filter_map(read).collect();
    let with_policy = files.iter().position(|(.., section)| section.is_some()).unwrap_or(0);
    let (path, text, section) = files.into_iter().nth(with_policy)?;
    Some(PolicyFile { path, text, section: section.unwrap_or_default() })
}

/// Returns all lines of both, with `-` and `+` for lines that only one has.
fn difference(before: &str, after: &str) -> String {
    let (was, is): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let mut out = String::new();
    let mut write = |mark: &str, lines: &[&str]| lines.iter().for_each(|line| out.extend([mark, line, "\n"]));
    for op in capture_diff_slices(Algorithm::Myers, &was, &is) {
        if op.tag() == DiffTag::Equal {
            write(" ", &was[op.old_range()]);
        } else {
            write("-", &was[op.old_range()]);
            write("+", &is[op.new_range()]);
        }
    }
    out
}

/// Cuts long texts, and adds their lengths.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > MAX_TEXT => {
            let end = text.floor_char_boundary(MAX_TEXT);
            *text = format!("{} … {} bytes more", &text[..end], text.len() - end);
        }
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Object(members) => members.values_mut().for_each(shorten),
        _ => {}
    }
}
