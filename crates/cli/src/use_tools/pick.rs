//! `pick`: selects the tools for a task and explains the choice.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::{RangedU64ValueParser, TypedValueParser};
use serde_json::{Value, json};
use toolwright::config::EmbeddingsConfig;
use toolwright::config::file::{CascadeConfig, ScorerName, SelectionConfig};
use toolwright::core::Snapshot;
use toolwright::search::{Pick, PickConfig, PickOptions, Picked};
use toolwright_eval::select::CatalogueFile;

use crate::app::lists::{WaitFor, wait_for};
use crate::app::{GlobalOptions, cwd, open_config, usable};
use crate::exit::{CommandResult, Exit};
use crate::input::{self, read_catalogue};
use crate::terminal::screen::{DIM, one_line, print_json, sanitize, say, say_warning, styled};
use crate::terminal::table::{Table, name};
use crate::values::{duration, one_of, share};

/// How long the lists of providers are awaited, as in `tools search`.
const LIST_WAIT: Duration = Duration::from_secs(30);
/// The most tools whose exclusion is explained.
const MAX_EXPLAINED: usize = 100;

/// What `pick` takes.
#[derive(Debug, Args)]
pub(crate) struct PickArgs {
    /// What the tools are for; `-` reads it from standard input.
    query: String,
    /// Most tools to return. Default: `selection.max_candidates`.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    max: Option<usize>,
    /// Lowest score, from 0 to 1. Default: `selection.min_score`.
    #[arg(long, value_name = "S", value_parser = share)]
    min_score: Option<f64>,
    /// How tools are scored. Default: `selection.scorer`.
    #[arg(long, value_name = "SCORER", value_parser = scorer())]
    scorer: Option<ScorerName>,
    /// Weights of words and of meaning, for the scorer `hybrid`, which is used unless `--scorer` says otherwise.
    /// Default: `selection.hybrid`.
    #[arg(long, num_args = 2, value_names = ["WORDS", "MEANING"], value_parser = weight)]
    weights: Option<Vec<f32>>,
    /// The two passes of the scorer `cascade`, which is used unless `--scorer` says otherwise. Default:
    /// `selection.cascade`.
    #[arg(long, num_args = 2, value_names = ["FIRST", "THEN"], value_parser = scorer())]
    passes: Option<Vec<ScorerName>>,
    /// Roles of the caller, for tools that are limited to roles. Default: the owner's, which are all.
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    roles: Option<Vec<String>>,
    /// How long scoring may take, embeddings and judge included. When the time is over, the scores by words count;
    /// without these, the order of registration. Vectors that were computed by then are kept. Default:
    /// `selection.timeout`.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// Only tools of this namespace.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Only tools that declare these capabilities. Default: `selection.capabilities`.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    capability: Option<Vec<String>>,
    /// What the environment of the tools provides; tools that need anything else are left out. Default:
    /// `selection.context`.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    context: Option<Vec<String>>,
    /// Tokens that the definitions of all picks may take. Default: `selection.budget`.
    #[arg(long, value_name = "TOKENS")]
    budget: Option<usize>,
    /// Picks tools that are marked unsafe too.
    #[arg(long)]
    allow_unsafe: bool,
    /// Picks from the tools of this file, JSON or JSON lines, instead of the catalogue.
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,
    /// Directory of a sentence-transformer, for scorers by meaning. Default: `selection.embeddings`.
    #[arg(long, value_name = "DIR")]
    embeddings: Option<PathBuf>,
    /// Shows where the query's words occur, what each adds to the score, and which tools were not candidates.
    #[arg(long)]
    debug: bool,
}

fn weight(text: &str) -> Result<f32, &'static str> {
    let weight = text.parse().ok().filter(|weight: &f32| weight.is_finite() && *weight >= 0.0);
    weight.ok_or("write a number, 0 or more")
}

fn scorer() -> impl TypedValueParser<Value = ScorerName> {
    one_of([
        ("auto", "Words, and meaning where there are embeddings, as suits the query", ScorerName::Auto),
        ("keyword", "The share of the query's words that a tool has", ScorerName::Keyword),
        ("bm25", "BM25 over the fields of a tool", ScorerName::Bm25),
        ("embedding", "Cosine of sentence embeddings", ScorerName::Embedding),
        ("hybrid", "BM25 and embeddings, weighted", ScorerName::Hybrid),
        ("judge", "A model's judgement of what `auto` finds", ScorerName::Judge),
        ("cascade", "Two passes, as `selection.cascade` says", ScorerName::Cascade),
    ])
}

pub(crate) async fn command(global: &GlobalOptions, args: &PickArgs) -> CommandResult {
    let query = match args.query.as_str() {
        "-" => input::read(Path::new("-"))?,
        query => query.to_owned(),
    };
    let mut settings = usable(global)?;
    if let Some(dir) = &args.embeddings {
        let path = Some(cwd()?.join(dir));
        settings.sections.selection.embeddings = Some(EmbeddingsConfig { path, ..EmbeddingsConfig::default() });
    }
    let app = open_config(global, settings).await?;
    let (file, snapshot) = match &args.catalogue {
        Some(path) => {
            let file = read_catalogue(path)?;
            let snapshot = Arc::new(file.snapshot());
            (Some(file), snapshot)
        }
        None => {
            wait_for(&app, WaitFor::All, LIST_WAIT).await;
            (None, app.catalogue().snapshot())
        }
    };
    let options = args.options(&app.config().sections.selection);
    let picked = app.selector().pick(query.trim(), &snapshot, &options).await;
    app.shut_down().await;
    for (scorer, why) in &picked.provenance.fell_back {
        let instead = &picked.provenance.scorer;
        say_warning(&format!("{scorer} did not score: {}; the order is by {instead}", sanitize(why)));
    }
    let report = PickReport { picked: &picked, snapshot: &snapshot, file: file.as_ref(), debug: args.debug };
    if args.debug && (picked.picks.is_empty() || !global.json) {
        for (id, why) in report.excluded() {
            say(styled(DIM, format_args!("{} was no candidate: {why}", sanitize(&id))));
        }
    }
    let note = picked.picks.is_empty().then(|| match picked.provenance.candidates {
        0 => "no tool may be picked; --debug says why".to_owned(),
        candidates if options.config.min_score > 0.0 => {
            format!("none of {candidates} tools fits; --min-score 0 shows the nearest")
        }
        candidates => format!("none of {candidates} tools matches it"),
    });
    if let Some(note) = &note {
        say_warning(note);
    }
    if global.json {
        let picks: Value = picked.picks.iter().map(|pick| report.json(pick)).collect();
        let mut document = json!({ "picks": picks });
        if let Some(note) = note {
            document["note"] = note.into();
        }
        print_json(&document)?;
    } else {
        report.print()?;
    }
    Ok(Exit::Ok)
}

impl PickArgs {
    /// Returns the options; `configured` provides defaults.
    fn options(&self, selection: &SelectionConfig) -> PickOptions {
        let mut selection = selection.clone();
        if let Some([.., lexical, semantic]) = self.weights.as_deref() {
            (selection.hybrid.lexical, selection.hybrid.semantic) = (*lexical, *semantic);
            selection.scorer = ScorerName::Hybrid;
        }
        if let Some([.., first, then]) = self.passes.as_deref() {
            let configured = selection.cascade.take().unwrap_or_default();
            selection.cascade = Some(CascadeConfig { first: *first, then: *then, ..configured });
            selection.scorer = ScorerName::Cascade;
        }
        let configured = selection.pick_options();
        let PickConfig { max_candidates, min_score, allow_unsafe, capabilities, context, budget } = configured.config;
        PickOptions {
            config: PickConfig {
                max_candidates: self.max.unwrap_or(max_candidates),
                min_score: self.min_score.unwrap_or(min_score),
                allow_unsafe: self.allow_unsafe || allow_unsafe,
                capabilities: self.capability.clone().unwrap_or(capabilities),
                context: self.context.clone().or(context),
                budget: self.budget.or(budget),
            },
            scorer: self.scorer.map_or(configured.scorer, |name| selection.method(name)),
            timeout: self.timeout.or(configured.timeout),
            roles: self.roles.clone(),
            namespace: self.namespace.clone(),
            debug: self.debug,
        }
    }
}

/// The output.
struct PickReport<'a> {
    picked: &'a Picked,
    snapshot: &'a Snapshot,
    file: Option<&'a CatalogueFile>,
    debug: bool,
}

impl PickReport<'_> {
    /// Returns the id, as in the file if there is one.
    fn id(&self, position: usize) -> &str {
        match self.file {
            Some(file) => &file.tools[position].id,
            None => self.snapshot.list()[position].id().as_str(),
        }
    }

    fn excluded(&self) -> impl Iterator<Item = (String, String)> {
        let excluded = self.picked.provenance.excluded.iter().take(MAX_EXPLAINED);
        excluded.map(|(position, why)| (self.id(*position).to_owned(), why.to_string()))
    }

    fn json(&self, pick: &Pick) -> Value {
        let provenance = &self.picked.provenance;
        let mut about = json!({"scorer": provenance.scorer, "candidates": provenance.candidates});
        if !provenance.fell_back.is_empty() {
            let failed = provenance.fell_back.iter().map(|(scorer, why)| json!({"scorer": scorer, "reason": why}));
            about["fell_back"] = failed.collect();
        }
        if self.debug {
            about["details"] = pick.details.clone().unwrap_or_default();
            about["excluded"] = self.excluded().map(|(id, why)| json!({"id": id, "reason": why})).collect();
        }
        json!({
            "id": self.id(pick.position),
            "wire_name": self.snapshot.list()[pick.position].wire_name,
            "score": rounded(pick.score),
            "reason": pick.reason,
            "provenance": about,
        })
    }

    fn print(&self) -> std::io::Result<()> {
        let mut table = Table::new(["tool", "score>", "why", "description"]);
        for pick in &self.picked.picks {
            let entry = &self.snapshot.list()[pick.position];
            let called = if self.file.is_some() { self.id(pick.position) } else { &entry.wire_name };
            let description = &entry.definition().description;
            table.row([name(called), format!("{:.2}", pick.score).into(), (&pick.reason).into(), description.into()]);
        }
        if !self.picked.picks.is_empty() {
            table.print()?;
        }
        for (pick, details) in self.picked.picks.iter().filter_map(|pick| Some((pick, pick.details.as_ref()?))) {
            say(styled(
                DIM,
                format_args!("{}: {}", sanitize(self.id(pick.position)), one_line(&details.to_string(), 1000)),
            ));
        }
        Ok(())
    }
}

/// Rounds a score to four decimals, which is precise enough.
fn rounded(score: f32) -> f64 {
    (f64::from(score) * 1e4).round() / 1e4
}
