//! `tools ls | show | search`, and the share of a context window that tools take.

use std::sync::Arc;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use indexmap::IndexMap;
use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::core::catalogue::WithheldTool;
use toolwright::core::context::EstimatedTokens;
use toolwright::core::exposure::{CALL_ID, ChosenExposure, DESCRIBE_ID, ExposureCost, SEARCH_ID, choose};
use toolwright::core::job::JOB_IDS;
use toolwright::core::model::ModelClient as _;
use toolwright::core::name_table::Resolution;
use toolwright::core::{Entry, Snapshot};
use toolwright::models::dialect::{Loss, PortableSchema};
use toolwright::search::{CompatQuery, FIT, fit_tools};
use toolwright::search::{SearchFilter, SearchHit, namespaces, search_or_similar};
use toolwright::search::{ToolFinder, searchable};

use crate::app::agent::can_answer;
use crate::app::lists::{WaitFor, say_failures, say_starting, wait_for};
use crate::app::{GlobalOptions, files_in_force, open_config, usable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::person::describe_effects;
use crate::terminal::screen::{BOLD, DIM, print_json, print_text, sanitize, say, say_warning, seen_json, styled};
use crate::terminal::table::{Table, name};
use crate::use_tools::serve::as_served;
use crate::values::share;

/// How long the lists of providers are awaited: long enough for downloading a server at its first start.
const LIST_WAIT: Duration = Duration::from_secs(30);
/// The most lines on unreadable tools of one source; `doctor` and `--json` have all.
pub(crate) const MAX_UNREADABLE: usize = 10;

#[derive(Debug, Subcommand)]
pub(crate) enum Tools {
    /// List every tool that `serve` offers. Effects are those that a tool declares: it reads, writes or is destructive
    /// (may overwrite or delete); `+net` means that it reaches beyond this machine.
    Ls(Ls),
    /// Show one tool with its schema.
    Show {
        /// Wire name, id, alias or bare name.
        tool: String,
    },
    /// Find tools by words. It searches names, tags and descriptions, also for parts of words. If nothing matches, it
    /// finds similar words: the last may be incomplete, and any may be misspelt.
    Search {
        /// The words.
        query: String,
        /// Most tools to list.
        #[arg(long, default_value_t = 20, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
        limit: usize,
        #[command(flatten)]
        filter: Filter,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// Lists only tools that this model works well with, by `toolwright bench` and `models.<model>.tool_compat`.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    pub(crate) model: Option<String>,
    /// With --model: lowest score, from 0 to 1.
    #[arg(long, value_name = "S", default_value_t = FIT, requires = "model", value_parser = share)]
    pub(crate) min_score: f64,
    /// Shows how many tokens the definitions take, by tool and by provider, and how many each exposure takes in each
    /// request. `direct`: all tools. `search`: the tools that find, describe and call the others, and a line of
    /// namespaces. `deferred`: the tool that finds the others, and that line; the API adds the others when they are
    /// found. `pick`: some tools of average size, and the tool that finds more.
    #[arg(long)]
    pub(crate) tokens: bool,
    /// Size of the model's context window, in tokens. Default: `models.<name>.window` of the default model.
    #[arg(long, value_name = "N", requires = "tokens", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) window: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Only this namespace.
    #[arg(long)]
    pub(crate) namespace: Option<String>,
    /// Only ids that begin with this.
    #[arg(long)]
    pub(crate) prefix: Option<String>,
    /// Only tools with this tag.
    #[arg(long)]
    pub(crate) tag: Option<String>,
}

pub(crate) async fn command(global: &GlobalOptions, command: &Tools) -> CommandResult {
    let settings = usable(global)?;
    if matches!(command, Tools::Ls(_)) && !global.json {
        say(styled(DIM, format_args!("configuration: {}", files_in_force(&settings))));
    }
    let app = open_config(global, settings).await?;
    let is_job_free = app.catalogue().snapshot().get(JOB_IDS[0]).is_none();
    as_served(&app).await;
    if matches!(command, Tools::Ls(Ls { model: Some(_), .. })) {
        // With a model, LLM-backed tools are of interest too.
        app.offer_llm_tools().await;
    }
    match command {
        Tools::Show { tool } => {
            app.list_for(tool, LIST_WAIT).await;
            say_failures(&app);
            if matches!(app.catalogue().snapshot().resolve(tool), Resolution::Unknown(_)) {
                say_starting(&app, tool);
            }
        }
        Tools::Ls(_) | Tools::Search { .. } => wait_for(&app, WaitFor::All, LIST_WAIT).await,
    }
    let snapshot = app.catalogue().snapshot();
    app.shut_down().await;
    match command {
        Tools::Ls(ls) => {
            let wanted =
                CompatQuery { listed: filter_of(&ls.filter), model: ls.model.clone(), min_score: ls.min_score };
            let compat = app.compat();
            let entries: Vec<&Arc<Entry>> = fit_tools(&snapshot, &wanted, &compat).collect();
            if let Some(model) = ls.model.as_deref().filter(|_| entries.is_empty()) {
                say(no_tools_reason(&app, model, ls.min_score).await);
            }
            let score = |entry: &Entry| compat.score(ls.model.as_deref()?, entry.id().as_str());
            if ls.tokens {
                let costs = Costs::of(&snapshot, &entries, &TargetModel::of(&app, ls.window));
                if global.json {
                    costs.print_json()?
                } else {
                    costs.print()?
                }
                return Ok(Exit::Ok);
            }
            if global.json {
                let listed = |entry: &&Arc<Entry>| {
                    let mut value = entry.to_json();
                    if let Some(score) = score(entry) {
                        value["score"] = score.into();
                    }
                    value
                };
                print_json(&entries.iter().map(listed).collect::<Value>())?;
                // Standard output has only the list of tools.
                for status in snapshot.providers() {
                    status.unreadable(usize::MAX).iter().for_each(|line| say_warning(&sanitize(line)));
                }
                return Ok(Exit::Ok);
            }
            let with_score = ls.model.is_some();
            let mut head = vec!["tool", "effects", "tokens>", "description"];
            if with_score {
                head.insert(1, "score>");
            }
            let mut table = Table::new(head);
            for entry in &entries {
                let definition = entry.definition();
                let mut cells = vec![
                    name(&entry.wire_name),
                    short_effects(entry.effects()).into(),
                    entry.tokens().into(),
                    (&definition.description).into(),
                ];
                if with_score {
                    cells.insert(1, score(entry).map_or_else(String::new, |score| format!("{score:.3}")).into());
                }
                table.row(cells);
            }
            if !entries.is_empty() {
                table.print()?;
            }
            for line in left_out(&snapshot, MAX_UNREADABLE) {
                say(styled(DIM, line));
            }
            if !app.executor().can_extract() {
                let named = app.config().sections.outputs.extract_model.clone();
                let why = no_model(&app, named).await;
                say(styled(DIM, format!("not listed: output__extract, as {why}; `run` and `chat` have it")));
            }
            if ls.model.is_none() && app.lacks_llm_tools() {
                let why = no_model(&app, None).await;
                let have = "`run`, `chat` and `call` have them";
                say(styled(DIM, format!("not listed: the llm__ tools, as {why}; {have}")));
            }
            if is_job_free {
                say(styled(DIM, "`run` and `chat` have the job__ tools once a call goes on in the background"));
            }
        }
        Tools::Search { query, limit, filter } => {
            let filter = filter_of(filter);
            let hits = search_or_similar(&snapshot, query, *limit, &filter);
            if global.json {
                print_json(&hits.iter().map(SearchHit::to_json).collect::<Value>())?;
                return Ok(Exit::Ok);
            }
            if hits.is_empty() {
                say("no tool matches; `toolwright tools ls` lists all");
            }
            let mut table = Table::new(["tool", "score>", "by", "description"]);
            for hit in &hits {
                let description = &hit.entry.definition().description;
                let score = format!("{:.0}", hit.score);
                table.row([name(&hit.entry.wire_name), score.into(), (&hit.reason).into(), description.into()]);
            }
            if !hits.is_empty() {
                table.print()?;
            }
        }
        Tools::Show { tool } => {
            let Resolution::Found(index, _) = snapshot.resolve(tool) else {
                let Resolution::Unknown(near) = snapshot.resolve(tool) else { return Ok(Exit::Ok) };
                return Err(unknown(&snapshot, tool, &near));
            };
            let entry = &snapshot.list()[index];
            let listed = PortableSchema::new(&entry.wire_name, &entry.shown_schema());
            let models = app.models_for(entry.id().as_str(), FIT);
            if global.json {
                let mut whole = entry.to_whole_json();
                whole["listed"] = json!({"inputSchema": listed.schema(), "losses": listed.losses()});
                whole["models_for"] = json!(models);
                print_json(&whole)?;
            } else {
                print_one(entry)?;
                print_losses(listed.losses())?;
                if !models.is_empty() {
                    print_text(&format!("models that do well with it: {}", models.join(", ")))?;
                }
            }
        }
    }
    Ok(Exit::Ok)
}

/// Returns why no tool is listed for a model: it cannot be asked, or no score is high enough.
async fn no_tools_reason(app: &Toolwright, model: &str, min_score: f64) -> String {
    let measured = format!(
        "no tool is known that {model} does well with ({min_score} or more): `toolwright bench --models {model}` measures it"
    );
    match can_answer(app, model).await {
        Ok(()) => measured,
        Err(why) => format!("{measured}; {why}"),
    }
}

/// Returns why tools cannot ask a model: neither `named` nor a default exists, or it cannot be asked.
async fn no_model(app: &Toolwright, named: Option<String>) -> String {
    let unset = || "no model is set".to_owned();
    match named.or_else(|| app.config().sections.models.default.clone()) {
        None => unset(),
        Some(model) => can_answer(app, &model).await.err().unwrap_or_else(unset),
    }
}

/// Returns the failure for an unknown tool: the reason, and similar names.
pub(crate) fn unknown(snapshot: &Snapshot, tool: &str, near: &[String]) -> Failure {
    Failure { exit: Exit::NoTool, message: snapshot.unknown_message(tool, near) }
}

fn filter_of(filter: &Filter) -> SearchFilter {
    SearchFilter { namespace: filter.namespace.clone(), prefix: filter.prefix.clone(), tag: filter.tag.clone() }
}

fn print_one(entry: &Entry) -> std::io::Result<()> {
    let definition = entry.definition();
    print_text(&format!("{}  {}", styled(BOLD, &entry.wire_name), styled(DIM, &definition.id)))?;
    print_text(&format!("from {} ({})", entry.provider.name(), describe_effects(entry.effects())))?;
    if !definition.tags.is_empty() {
        print_text(&format!("tags: {}", sanitize(&definition.tags.join(", "))))?;
    }
    print_text(&format!("\n{}\n", sanitize(&definition.description)))?;
    match &definition.parameters {
        Some(parameters) => print_text(&seen_json(&format!("{parameters:#}"))),
        None => print_text("It publishes no schema of its arguments."),
    }
}

/// Describes the effects in one word.
fn short_effects(effects: toolwright::core::Effects) -> String {
    let what = match (effects.read_only, effects.destructive) {
        (true, _) => "reads",
        (false, true) => "destructive",
        (false, false) => "writes",
    };
    format!("{what}{}", if effects.open_world { " +net" } else { "" })
}

/// Returns lines on tools of sources that the catalogue lacks: for each source one line for intended exclusions, and at
/// most `most` lines for unreadable tools.
pub(crate) fn left_out(snapshot: &Snapshot, most: usize) -> Vec<String> {
    let sources = snapshot.providers().iter().flat_map(|provider| {
        let meant: Vec<&WithheldTool> = provider.withheld().iter().filter(|one| !one.is_unreadable).collect();
        let (count, of) = (meant.len(), &provider.name);
        let meant = meant.first().map(|WithheldTool { name, why, .. }| match count {
            1 => format!("not listed: `{name}` of {of}: {why}"),
            _ => format!("not listed: {count} tools of {of}, as `{name}`: {why}"),
        });
        let unreadable = provider.unreadable(most).into_iter().map(|line| format!("not listed: {line}"));
        meant.into_iter().chain(unreadable).map(|line| sanitize(&line)).collect::<Vec<_>>()
    });
    sources.collect()
}

/// Prints how its schema is listed to clients, if that differs.
fn print_losses(losses: &[Loss]) -> std::io::Result<()> {
    if losses.is_empty() {
        return Ok(());
    }
    print_text("\nClients get this schema in a form that all of them accept (server.schemas: raw lists it as it is):")?;
    for Loss { path, keyword, note, .. } in losses {
        let at = if path.is_empty() { "the root" } else { path.as_str() };
        print_text(&format!("  {}: {} — {}", sanitize(at), sanitize(keyword), sanitize(note)))?;
    }
    Ok(())
}

/// The model for which tools are shown.
struct TargetModel {
    /// Its context window in tokens; `None` if unknown.
    window: Option<usize>,
    /// Whether its API loads deferred tools.
    has_tool_search: bool,
    /// The number of tools that the exposure `pick` starts with.
    pick_size: usize,
}

impl TargetModel {
    /// Creates it for Toolwright's default model, with the given `window`, else its configured one.
    fn of(app: &Toolwright, window: Option<usize>) -> Self {
        let config = app.config();
        let (models, pick_size) = (&config.sections.models, config.sections.selection.pick_size);
        let Some(model) = &models.default else { return Self { window, has_tool_search: false, pick_size } };
        let named = [model.as_str(), model.split('/').next().unwrap_or_default()];
        let configured = named.iter().find_map(|name| models.by_name.get(*name)?.requests.window);
        Self { window: window.or(configured), has_tool_search: app.models().has_tool_search(model), pick_size }
    }
}

/// Estimated tokens of tools, and of the ways to expose them.
struct Costs<'a> {
    tools: Vec<(&'a Entry, usize)>,
    /// By provider: the number of tools, and their tokens.
    providers: IndexMap<&'a str, ExposureCost>,
    total: usize,
    exposures: [(&'static str, usize); 4],
    auto: ChosenExposure,
}

impl<'a> Costs<'a> {
    /// Creates it for `entries`, tools of `snapshot`.
    fn of(snapshot: &Arc<Snapshot>, entries: &[&'a Arc<Entry>], reader: &TargetModel) -> Self {
        let tools: Vec<(&Entry, usize)> = entries.iter().map(|entry| (&***entry, entry.tokens())).collect();
        let mut providers: IndexMap<&str, ExposureCost> = IndexMap::new();
        for (entry, tokens) in &tools {
            let cost = providers.entry(entry.provider.name()).or_default();
            cost.tools += 1;
            cost.tokens += tokens;
        }
        let total = tools.iter().map(|(_, tokens)| tokens).sum();
        let cost = ExposureCost { tools: tools.len(), tokens: total };
        let finders = searchable(snapshot, ToolFinder::default());
        let finder = |id: &str| finders.get(id).map_or(0, |entry| entry.tokens());
        let index = EstimatedTokens::of_bytes(namespaces(tools.iter().map(|(entry, _)| *entry)).len());
        let picked = reader.pick_size.min(tools.len());
        Self {
            exposures: [
                ("direct", total),
                ("search", [SEARCH_ID, DESCRIBE_ID, CALL_ID].map(finder).iter().sum::<usize>() + index),
                ("deferred", finder(SEARCH_ID) + index),
                ("pick", finder(SEARCH_ID) + (total * picked).div_ceil(tools.len().max(1))),
            ],
            auto: choose(None, cost, reader.window, reader.has_tool_search),
            tools,
            providers,
            total,
        }
    }

    fn print_json(&self) -> std::io::Result<()> {
        let tools = self.tools.iter().map(|(entry, tokens)| {
            json!({"id": entry.id(), "wire_name": entry.wire_name, "provider": entry.provider.name(), "tokens": tokens})
        });
        let providers = self.providers.iter().map(|(name, cost)| {
            json!({"provider": name, "tools": cost.tools, "tokens": cost.tokens, "share": self.share(cost.tokens)})
        });
        let exposures = self.exposures.iter().map(|(name, tokens)| ((*name).to_owned(), Value::from(*tokens)));
        print_json(&json!({
            "estimated": true,
            "tools": tools.collect::<Value>(),
            "providers": providers.collect::<Value>(),
            "total": self.total,
            "exposures": Value::Object(exposures.collect()),
            "auto": self.auto,
        }))
    }

    fn print(&self) -> std::io::Result<()> {
        let mut tools = Table::new(["tool", "tokens>"]);
        self.tools.iter().for_each(|(entry, tokens)| tools.row([name(&entry.wire_name), tokens.into()]));
        tools.print()?;
        let mut providers = Table::new(["provider", "tools>", "tokens>", "share>"]);
        for (provider, cost) in &self.providers {
            let share = format!("{:.0} %", 100.0 * self.share(cost.tokens));
            providers.row([name(provider), cost.tools.into(), cost.tokens.into(), share.into()]);
        }
        print_text("")?;
        providers.print()?;
        let mut exposures = Table::new(["exposure", "tokens in each request, before anything is found>"]);
        self.exposures.iter().for_each(|(exposure, tokens)| exposures.row([name(exposure), tokens.into()]));
        print_text("")?;
        exposures.print()?;
        let ChosenExposure { exposure, reason } = &self.auto;
        print_text(&format!("auto is {}: {reason}", styled(BOLD, exposure)))?;
        print_text(&styled(DIM, "Tokens are estimated, at four bytes each."))
    }

    fn share(&self, tokens: usize) -> f64 {
        tokens as f64 / self.total.max(1) as f64
    }
}
