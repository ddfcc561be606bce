//! `doctor`: finds problems of the configuration, its providers and models, with remedies.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolwright::Toolwright;
use toolwright::config::{Config, Problem, Severity};
use toolwright::core::Snapshot;
use toolwright::core::catalogue::{Entry, Provider, ProviderKind, ProviderStatus, WithheldTool};
use toolwright::core::pattern::nearest;
use toolwright::core::sandbox::{Enforcement, SandboxProfile, enforcement};
use toolwright::core::trigger::{Creator, Trigger};
use toolwright::gateway::ListedSchemas;
use toolwright::models::dialect::{Loss, PortableSchema};
use toolwright::sandbox::enforce::support;
use toolwright::trust::{ProjectTrust, TrustState};

use super::doctor_models::{ModelProbe, default_model, probe_models};
use crate::app::lists::{WaitFor, starting, wait_with_notice};
use crate::app::{GlobalOptions, open_config, read};
use crate::exit::{CommandResult, Exit};
use crate::terminal::logging;
use crate::terminal::screen::{BAD, DIM, GOOD, WARN, print_json, print_text, sanitize, styled};
use crate::use_tools::serve::as_served;
use crate::use_tools::tools::left_out;

/// The longest server and tool name together that some clients accept.
const CLIENT_LIMIT: usize = 60;
/// The name of this server in clients set up by the README.
const SERVER_NAME: &str = "toolwright";
/// The most measurements of changed tools that are named.
const MAX_STALE: usize = 20;
/// The most tools that are reported for changed schemas in lists.
const MAX_LISTED: usize = 20;
/// A start that is noticeably slow.
const SLOW: Duration = Duration::from_secs(5);
/// How long the process at the port of `serve` may take to identify itself as Toolwright.
const HEALTH_WAIT: Duration = Duration::from_millis(300);
/// The most bytes of its answer.
const MAX_HEALTH: u64 = 4096;

/// The result of probing a provider.
struct ProviderProbe {
    name: String,
    kind: Value,
    tools: usize,
    /// The reason why it has no tools, if it should have some.
    empty: Option<String>,
    error: Option<String>,
    took: Duration,
}

/// Findings in addition to the problems of the configuration and the states of providers.
#[derive(Default)]
struct Diagnosis {
    /// Problems with remedies.
    findings: Vec<String>,
    /// Warnings about what works, but may not be intended.
    warnings: Vec<String>,
    models: Vec<ModelProbe>,
    /// The default model.
    default_model: String,
    /// The number of tools in the catalogue.
    tools: usize,
    /// Tools of sources that the catalogue lacks.
    left_out: Vec<String>,
    /// Tools whose schemas are listed in another form, with the losses.
    listed: Vec<(String, Vec<Loss>)>,
}

pub(crate) async fn command(global: &GlobalOptions) -> CommandResult {
    let settings = read(global)?;
    let problems = settings.problems.clone();
    if settings.is_unusable() {
        return report(global, &settings, &problems, &[], &Diagnosis::default());
    }
    let app = open_config(global, settings).await?;
    as_served(&app).await;
    if !app.config().compat.written.tools.is_empty() {
        // For measured tools, changes are reported.
        app.offer_llm_tools().await;
    }
    let probes = wait_with_notice(|| starting(&app, WaitFor::All), probe(&app)).await;
    let snapshot = app.catalogue().snapshot();
    let models = probe_models(&app).await;
    let (default_model, unusable) = default_model(&app, &models).await;
    let unmatched = app.unmatched();
    let unrun = idle_triggers(&app).await;
    // Before the shutdown, whose messages are not interesting.
    let logged = logging::warnings();
    app.shut_down().await;
    let settings = app.config();
    let mut findings = unmatched;
    findings.extend(findings_of(&settings, &snapshot));
    findings.extend(probes.iter().filter_map(|probe| Some(format!("{}: {}", probe.name, probe.empty.as_ref()?))));
    findings.extend(models.iter().filter_map(ModelProbe::finding));
    findings.extend(unusable);
    findings.extend(unrun);
    findings.extend(taken_port(&settings.sections.server.http).await);
    let warnings = warnings(&settings, logged, &probes, &findings);
    let (tools, left_out) = (snapshot.list().len(), left_out(&snapshot, usize::MAX));
    let listed = tools_listed_differently(&settings, &snapshot);
    let diagnosis = Diagnosis { findings, warnings, models, default_model, tools, left_out, listed };
    report(global, &settings, &problems, &probes, &diagnosis)
}

/// Reports triggers that never fire, webhooks without a secret, and triggers that no process runs.
async fn idle_triggers(app: &Toolwright) -> Vec<String> {
    let installed = app.triggers().of_root(&app.config().root).await.unwrap_or_default();
    let issue = |trigger: &Trigger| {
        let why = app.principal_now(&trigger.rights.principal).err()?;
        Some(format!("trigger {} fires nothing: {why}", trigger.id))
    };
    let mut all: Vec<String> = installed.iter().filter_map(issue).collect();
    all.extend(app.unsigned_webhooks().await);
    all.extend(triggers_without_runner(app, &installed).await);
    all
}

async fn triggers_without_runner(app: &Toolwright, installed: &[Trigger]) -> Option<String> {
    let written = app.configured_triggers().len();
    let count = installed.iter().filter(|trigger| trigger.creator != Creator::Configuration).count() + written;
    if count == 0 || app.triggers().has_runner().await.ok()? {
        return None;
    }
    let there_are = if count == 1 { "there is a trigger".to_owned() } else { format!("there are {count} triggers") };
    Some(format!("{there_are}, and no process runs them: start `toolwright serve` or `toolwright chat`"))
}

/// Returns the tools whose schemas some address lists in another form than their sources.
fn tools_listed_differently(settings: &Config, snapshot: &Snapshot) -> Vec<(String, Vec<Loss>)> {
    let of_views = settings.sections.views.values().filter_map(|view| view.schemas);
    if of_views.chain([settings.sections.server.schemas]).all(|form| form == ListedSchemas::Raw) {
        return Vec::new();
    }
    let losses = |entry: &Arc<Entry>| {
        let losses = PortableSchema::new(&entry.wire_name, &entry.shown_schema()).losses().to_vec();
        (!losses.is_empty()).then(|| (entry.wire_name.clone(), losses))
    };
    snapshot.list().iter().filter_map(losses).collect()
}

/// Describes the keywords of such a tool that are listed differently.
fn in_words((tool, losses): &(String, Vec<Loss>)) -> String {
    let mut keywords: Vec<&str> = losses.iter().map(|loss| loss.keyword.as_str()).collect();
    keywords.sort_unstable();
    keywords.dedup();
    format!("{tool}: clients are listed its schema in a form that all of them take ({})", keywords.join(", "))
}

/// Lists each provider, several concurrently.
async fn probe(app: &Toolwright) -> Vec<ProviderProbe> {
    let providers = app.catalogue().providers().await;
    let concurrency = app.config().sections.defaults.mcp_init_concurrency;
    let timed: Vec<(String, Duration)> =
        futures_util::stream::iter(providers.iter().map(|provider| provider.name().to_owned()))
            .map(|name| async move {
                let started = Instant::now();
                app.catalogue().refresh(&name).await;
                (name, started.elapsed())
            })
            .buffered(concurrency)
            .collect()
            .await;
    let snapshot = app.catalogue().snapshot();
    let status = |name: &str| snapshot.providers().iter().find(|provider| provider.name == name).cloned();
    timed
        .into_iter()
        .filter_map(|(name, took)| {
            let status = status(&name)?;
            let empty = providers.iter().find(|p| p.name() == name).and_then(|p| empty_reason(&**p, &status));
            Some(ProviderProbe {
                name,
                kind: json!(status.kind),
                tools: status.tools,
                empty,
                error: status.error,
                took,
            })
        })
        .collect()
}

/// Returns why a provider has no tools, although its list succeeded; `None` if it has tools, or offers something else.
fn empty_reason(provider: &dyn Provider, status: &ProviderStatus) -> Option<String> {
    let has_none_to_list = provider.capabilities().is_some_and(|offers| !offers.contains_key("tools"));
    if status.tools > 0 || status.error.is_some() || has_none_to_list {
        return None;
    }
    let all = status.withheld();
    Some(match most_common(all) {
        None => "0 tools: its source has none".to_owned(),
        Some(WithheldTool { name, why, .. }) => {
            format!("0 tools: none of its {} tools is offered, like `{name}`: {why}", all.len())
        }
    })
}

/// Returns a tool that is withheld for the most common reason. If several are equally common, the last, because
/// filtered tools come first.
fn most_common(withheld: &[WithheldTool]) -> Option<&WithheldTool> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for one in withheld {
        *counts.entry(&one.why).or_default() += 1;
    }
    withheld.iter().max_by_key(|one| counts.get(one.why.as_str()))
}

/// Returns logged warnings that are not reported otherwise, and settings that may not be intended.
fn warnings(settings: &Config, logged: Vec<String>, probes: &[ProviderProbe], findings: &[String]) -> Vec<String> {
    let is_reported = |warning: &String| {
        let errors = probes.iter().filter_map(|probe| probe.error.as_ref());
        findings
            .iter()
            .chain(errors)
            .any(|finding| finding.contains(warning.as_str()) || warning.contains(finding.as_str()))
    };
    let mut all: Vec<String> = logged.into_iter().filter(|warning| !is_reported(warning)).collect();
    if settings.files.is_empty() && settings.root.parent().is_none() {
        all.push(format!(
            "the workspace root is {}, the whole machine, and no configuration was found from there: clients that start \
             servers in no folder of theirs need `--config FILE` and `--root FOLDER`, both absolute",
            settings.root.display()
        ));
    }
    all
}

/// Returns how a tool's definition contradicts itself: examples that its schema rejects, required arguments without a
/// description. Only for tools in the configuration.
fn contradictions(entry: &Entry) -> Vec<String> {
    let (Ok(Some(schema)), true) =
        (entry.tool.schema(), matches!(entry.provider.kind(), ProviderKind::Rest | ProviderKind::Llm))
    else {
        return Vec::new();
    };
    let (definition, field) =
        (entry.definition(), format!("{}_tools.{}", entry.id().namespace(), entry.tool.raw_name()));
    let mut all = Vec::new();
    for (number, example) in definition.examples.iter().enumerate() {
        if let Some(violation) = schema.violations(example).first() {
            all.push(format!(
                "{field}.examples: number {} does not fit `parameters`: {violation}; models follow examples: write a \
                 valid one",
                number + 1
            ));
        }
    }
    let keys = definition.parameters.as_ref().and_then(|parameters| {
        Some((parameters.get("required")?.as_array()?, parameters.get("properties")?.as_object()?))
    });
    if let Some((required, properties)) = keys {
        let required = required.iter().filter_map(Value::as_str);
        for name in required.filter(|name| !properties.contains_key(*name)) {
            let near = nearest(name, properties.keys().map(String::as_str));
            let remedy =
                near.map_or("describe it there, or leave it out".into(), |near| format!("did you mean `{near}`?"));
            all.push(format!("{field}.parameters: `{name}` is required and not among the properties; {remedy}"));
        }
    }
    all
}

/// Returns problems of the whole catalogue, each as a sentence with its remedy.
fn findings_of(settings: &Config, snapshot: &Snapshot) -> Vec<String> {
    let mut all: Vec<String> =
        snapshot.issues().iter().map(|issue| format!("{}: {}", issue.provider, issue.message)).collect();
    for entry in snapshot.list() {
        if let Err(error) = entry.tool.schema() {
            all.push(format!(
                "{}: its schema does not compile, so its arguments are not validated: {error}; tell its author",
                entry.wire_name
            ));
        }
        all.extend(contradictions(entry));
    }
    let contract = |tool: &str| snapshot.get(tool).map(|entry| entry.tool.hash().to_hex());
    for (tool, model) in settings.compat.written.stale(&contract).take(MAX_STALE) {
        all.push(format!(
            "{}: {tool} has changed since {model} was measured with it; `toolwright bench --models {model}` measures \
             it again",
            settings.compat.file.display()
        ));
    }
    let names = snapshot.names_within(settings.sections.server.max_tool_name);
    let dropped: Vec<&str> = (0..snapshot.list().len())
        .map(|index| names.wire_name(index))
        .filter(|name| name.len() + SERVER_NAME.len() > CLIENT_LIMIT)
        .collect();
    if !dropped.is_empty() {
        all.push(format!(
            "clients that take {CLIENT_LIMIT} characters of server and tool name together (Cursor) would drop {}; set server.max_tool_name to {}",
            dropped.join(", "),
            CLIENT_LIMIT - SERVER_NAME.len()
        ));
    }
    all
}

/// Reports if a program other than Toolwright uses the port of `serve`.
async fn taken_port(http: &str) -> Option<String> {
    let error = std::net::TcpListener::bind(http).err()?;
    if error.kind() != std::io::ErrorKind::AddrInUse || answers_health(http.parse().ok()?).await {
        return None;
    }
    Some(format!("{http} is taken by another program: set server.http, or start `serve` with --http 127.0.0.1:PORT"))
}

/// Returns whether a Toolwright listens there.
async fn answers_health(mut address: SocketAddr) -> bool {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(MAX_HEALTH).read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(HEALTH_WAIT, ask).await;
    answer.is_ok_and(|answer| {
        answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nok"))
    })
}

fn report(
    global: &GlobalOptions,
    settings: &Config,
    problems: &[Problem],
    probes: &[ProviderProbe],
    diagnosis: &Diagnosis,
) -> CommandResult {
    let well = problems.iter().all(|problem| problem.severity == Severity::Warning)
        && probes.iter().all(|probe| probe.error.is_none())
        && diagnosis.findings.is_empty()
        && !(settings.sections.shell.sandbox.strict
            && sandboxes(settings).any(|(_, sandbox)| sandbox.gaps().is_some()));
    let exit = match well {
        true => Exit::Ok,
        false => Exit::Failed,
    };
    if global.json {
        let probes: Vec<Value> = probes
            .iter()
            .map(|probe| {
                json!({"name": probe.name, "kind": probe.kind, "tools": probe.tools, "ok": probe.error.is_none() && probe.empty.is_none(), "error": probe.error, "milliseconds": millis(probe.took)})
            })
            .collect();
        let models: Vec<Value> = diagnosis.models.iter().map(ModelProbe::to_json).collect();
        let sandboxes: Vec<Value> = sandboxes(settings)
            .map(|(whose, sandbox)| {
                let mut report = sandbox.to_json();
                report["of"] = json!(whose);
                report["limits"] = json!(settings.sections.shell.sandbox.limits.of_trees());
                report
            })
            .collect();
        print_json(
            &json!({"ok": well, "files": settings.files, "trust": settings.trust.iter().map(ProjectTrust::to_json).collect::<Vec<_>>(), "root": settings.root, "state_dir": settings.state_dir, "problems": problems, "providers": probes, "tools": diagnosis.tools, "not_listed": diagnosis.left_out, "models": models, "sandboxes": sandboxes, "findings": diagnosis.findings, "warnings": diagnosis.warnings, "schemas": diagnosis.listed.iter().flat_map(|(_, losses)| losses).collect::<Vec<_>>()}),
        )?;
        return Ok(exit);
    }
    let mut lines = describe_files(settings);
    lines.push(format!("workspace root {}, state in {}", settings.root.display(), settings.state_dir.display()));
    for problem in problems {
        let style = if problem.severity == Severity::Warning { WARN } else { BAD };
        lines.push(styled(style, sanitize(&problem.to_string())));
    }
    for probe in probes {
        let took = styled(DIM, format_args!("{} ms", millis(probe.took)));
        lines.push(match &probe.error {
            Some(error) => format!("{} {}: {} {took}", styled(BAD, "✗"), probe.name, sanitize(error)),
            None if probe.empty.is_some() => format!("{} {}: 0 tools {took}", styled(BAD, "✗"), probe.name),
            None => format!("{} {}: {} tools {took}", styled(GOOD, "✓"), probe.name, probe.tools),
        });
        if probe.error.is_none() && probe.took > SLOW {
            lines.push(styled(
                WARN,
                "  it starts slowly; install it instead of fetching it at each start (npx, uvx), and its list is shown from the cache meanwhile",
            ));
        }
    }
    if !probes.is_empty() {
        lines.push(format!("{} tools in all, as `serve` and `tools ls` list them", diagnosis.tools));
    }
    lines.extend(diagnosis.left_out.iter().map(|line| styled(DIM, line)));
    lines.extend(diagnosis.models.iter().map(ModelProbe::line));
    lines.extend(Some(diagnosis.default_model.clone()).filter(|line| !line.is_empty()));
    for (whose, sandbox) in sandboxes(settings) {
        lines.push(format!("sandbox of {whose}: {}", sandbox.profile));
        lines.push(styled(DIM, format_args!("  {}", settings.sections.shell.sandbox.limits.of_trees())));
        if let Some(gaps) = sandbox.gaps() {
            lines.push(match settings.sections.shell.sandbox.strict {
                true => styled(BAD, format_args!("  it is refused, since sandbox.strict is set: {gaps}")),
                false => styled(DIM, format_args!("  {gaps}")),
            });
        }
    }
    let shown = diagnosis.listed.iter().take(MAX_LISTED).map(|tool| styled(DIM, sanitize(&in_words(tool))));
    lines.extend(shown);
    if diagnosis.listed.len() > MAX_LISTED {
        let more = diagnosis.listed.len() - MAX_LISTED;
        lines.push(styled(DIM, format_args!("and {more} more; `toolwright tools show TOOL` says what differs")));
    } else if !diagnosis.listed.is_empty() {
        lines.push(styled(DIM, "`toolwright tools show TOOL` says what differs"));
    }
    lines.extend(diagnosis.warnings.iter().map(|warning| styled(WARN, format_args!("warning: {}", sanitize(warning)))));
    lines.extend(diagnosis.findings.iter().map(|finding| styled(BAD, format_args!("to mend: {}", sanitize(finding)))));
    lines.push(match (well, problems.is_empty() && diagnosis.warnings.is_empty()) {
        (true, true) => styled(GOOD, "all is well"),
        // A warning loses nothing, but something is not as intended.
        (true, false) => styled(WARN, "all works, but for the warnings above"),
        (false, _) => styled(BAD, "see above for what to fix"),
    });
    print_text(&lines.join("\n"))?;
    Ok(exit)
}

/// Returns the files that were read, and existing ones that could not be.
fn describe_files(settings: &Config) -> Vec<String> {
    let there = settings.candidates.iter().map(|layer| &layer.path).filter(|path| path.is_file());
    let unread = there.filter(|path| !settings.files.contains(path)).map(|file| {
        let is_left_out = |judged: &ProjectTrust| judged.file == *file && judged.in_force.is_none();
        let verb = if settings.trust.iter().any(is_left_out) { "left out" } else { "could not read" };
        format!("{verb} {}", file.display())
    });
    let read = settings.files.iter().map(|file| {
        let is_older = |judged: &ProjectTrust| judged.file == *file && judged.state != TrustState::Approved;
        let what = if settings.trust.iter().any(is_older) { "use what was approved of" } else { "read" };
        format!("{what} {}", file.display())
    });
    let mut lines: Vec<String> = read.chain(unread).collect();
    if lines.is_empty() {
        lines.push("no configuration file: the built-in tools only (`toolwright init` writes one)".to_owned());
    }
    lines
}

/// Returns the configured sandboxes and what they enforce.
fn sandboxes(settings: &Config) -> impl Iterator<Item = (String, Enforcement)> {
    let section = &settings.sections.shell;
    let tools = [("shell__bash".to_owned(), section.bash), ("shell__python".to_owned(), section.python)];
    let processes = settings.servers.iter().filter(|server| server.config.transport.url().is_none());
    let servers = processes.map(|server| (format!("server {}", server.entry), server.config.sandbox));
    let restricted = tools.into_iter().chain(servers).filter(|(_, profile)| *profile != SandboxProfile::Full);
    restricted.map(|(whose, profile)| (whose, enforcement(profile, support())))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_source_names_the_most_common_reason() {
        let withheld = |reasons: &[&str]| -> Vec<WithheldTool> {
            reasons.iter().enumerate().map(|(n, reason)| WithheldTool::new(format!("tool {n}"), *reason)).collect()
        };
        for (reasons, expect) in [
            (&[][..], None),
            (&["off", "wrong", "wrong"], Some("tool 2")),
            (&["off", "off", "wrong"], Some("tool 1")),
            (&["off", "wrong"], Some("tool 1")),
        ] {
            let withheld = withheld(reasons);
            assert_eq!(most_common(&withheld).map(|one| one.name.as_str()), expect, "{reasons:?}");
        }
    }
}
