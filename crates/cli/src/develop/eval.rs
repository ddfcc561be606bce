//! `eval`: measures how well tools are found, and the cost.

use std::path::{Path, PathBuf};

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use toolwright::app::embedder;
use toolwright::core::exposure::Exposure;
use toolwright::search::ToolVectors;
use toolwright_eval::select::{
    CatalogueFile, DEPTHS, EXPOSURES, Figures, MAX_CATALOGUE_BYTES, Playback, Queries, Ranker, Scorer, Task,
    TokensSpent, milliseconds,
};

use crate::app::{GlobalOptions, read};
use crate::exit::{CommandResult, Exit, Failure};
use crate::input::{read_catalogue, read_up_to, warn_of};
use crate::terminal::screen::{print_json, print_text, sanitize, size};
use crate::terminal::table::{Table, name};
use crate::values::one_of;

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Eval {
    /// Measure how well queries find the tools that they need: recall, NDCG, time and size.
    ///
    /// Figures are shares from 0 to 1. recall@k is the mean share of a query's relevant tools among the first
    /// k, complete@k the share of queries with all of them there, and ndcg@10 counts a tool as relevant or not.
    /// The whole catalogue is ranked, without a least score.
    Select(SelectArgs),
    /// Measure how many tokens the tools of a whole task take, for each way to show them to a model.
    ///
    /// A scripted model plays the task through the agent loop. It calls the tool of a step if the tool is listed;
    /// otherwise the model searches for the tool. Tokens are estimated, at four bytes each, and summed over all requests:
    /// definition_tokens are those of the listed definitions and of the line that names the namespaces; result_tokens
    /// are those of all results so far, search results included. Definitions that an API keeps out of the context until
    /// they are found count from then on.
    Tokens(TokensArgs),
}

/// What `eval tokens` takes.
#[derive(Debug, Args)]
pub(crate) struct TokensArgs {
    /// File with the tools, as for `eval select`.
    #[arg(long, value_name = "FILE")]
    catalogue: PathBuf,
    /// File with the task, {steps: [step]} or a step a line: {query, tool | relevant: [tool id], arguments?, result?}.
    /// A tool's name can replace its id if only one tool has it.
    #[arg(long, value_name = "FILE")]
    task: PathBuf,
}

/// What `eval select` takes.
#[derive(Debug, Args)]
pub(crate) struct SelectArgs {
    /// File with the tools, JSON or JSON lines: {name, id?, title?, description?, parameters? | inputSchema?,
    /// tags?, examples?, server?, server_description?}.
    #[arg(long, value_name = "FILE")]
    catalogue: PathBuf,
    /// File with the queries, JSON or JSON lines: {query, relevant: [tool id]}.
    #[arg(long, value_name = "FILE")]
    cases: PathBuf,
    /// Also reports both halves of the cases, under `halves`: to tune on one and check on the other. A case is in the
    /// second half if the first byte of the SHA-256 of its id (of its query, if it has none) is odd.
    #[arg(long)]
    halves: bool,
    /// How tools are scored.
    #[arg(long, value_name = "SCORER", default_value = "auto", value_parser = scorer())]
    scorer: Scorer,
    /// Directory of a sentence-transformer: config.json, tokenizer.json, model.safetensors. Its time is reported
    /// separately: `vectors_ms` for the catalogue (less once its vectors are stored), `embed_p50_us` for a query.
    #[arg(long, value_name = "DIR")]
    embeddings: Option<PathBuf>,
}

fn scorer() -> impl TypedValueParser<Value = Scorer> {
    one_of([
        ("keyword", "The share of the query's words that a tool has", Scorer::Keyword),
        ("bm25", "BM25 over the fields of a tool", Scorer::Bm25),
        ("embedding", "Cosine of sentence embeddings", Scorer::Embedding),
        ("hybrid", "BM25 and embeddings, weighted", Scorer::Hybrid),
        ("auto", "Words, and meaning where there are embeddings", Scorer::Auto),
    ])
}

pub(crate) async fn command(global: &GlobalOptions, command: &Eval) -> CommandResult {
    match command {
        Eval::Select(args) => select(global, args).await,
        Eval::Tokens(args) => tokens(global, args).await,
    }
}

async fn select(global: &GlobalOptions, args: &SelectArgs) -> CommandResult {
    let file = read_catalogue(&args.catalogue)?;
    let queries = read_queries(&args.cases, &file)?;
    let vectors = match &args.embeddings {
        // The vectors of tools are stored, as for `pick`, because a large catalogue takes minutes.
        Some(path) => {
            let kept = read(global)?.state_dir.join("vectors");
            Some(ToolVectors::new(embedder(path).await.map_err(Failure::usage)?, Some(&kept)))
        }
        None => None,
    };
    let ranker = Ranker::new(file.snapshot(), args.scorer, vectors).await.map_err(Failure::usage)?;
    drop(file);
    let (figures, halves) = ranker.measure(&queries).await.map_err(Failure::failed)?;
    let halves = args.halves.then_some(halves);
    if global.json {
        let mut answer = figures.json();
        if let Some(halves) = &halves {
            answer["halves"] = halves.iter().map(Figures::quality).collect();
        }
        print_json(&answer)?;
    } else {
        print_figures(&figures)?;
        halves.iter().flatten().try_for_each(print_half)?;
    }
    Ok(Exit::Ok)
}

fn read_queries(path: &Path, file: &CatalogueFile) -> Result<Vec<toolwright_eval::select::Query>, Failure> {
    let failure = |error: String| Failure::usage(format!("{}: {error}", path.display()));
    let read = Queries::parse(&read_up_to(path, MAX_CATALOGUE_BYTES)?, &file.positions()).map_err(failure)?;
    warn_of(path, &read.unknown, "ids that no tool of the catalogue has count as not found");
    warn_of(path, &read.without, "cases whose `relevant` names no tool are left out");
    if read.queries.is_empty() { Err(failure("it has no cases".into())) } else { Ok(read.queries) }
}

fn print_half(half: &Figures) -> std::io::Result<()> {
    let [_, _, r5, _] = half.recall.map(|share| 100.0 * share);
    let ndcg = 100.0 * half.ndcg;
    print_text(&format!("a half of {} queries: recall@5 {r5:.1} %, ndcg@10 {ndcg:.1} %", half.queries))
}

fn print_figures(figures: &Figures) -> std::io::Result<()> {
    print_text(&format!("{} queries, {} tools", figures.queries, figures.tools))?;
    let mut table = Table::new(["measure", "value>"]);
    let mut row = |measure: &str, value: String| table.row([name(measure), value.into()]);
    for (k, share) in DEPTHS.iter().zip(figures.recall) {
        row(&format!("recall@{k}"), format!("{:.1} %", 100.0 * share));
    }
    row("ndcg@10", format!("{:.1} %", 100.0 * figures.ndcg));
    row("complete@5", format!("{:.1} %", 100.0 * figures.complete));
    row("a query (p50)", format!("{:.0} µs", figures.p50));
    row("a query (p99)", format!("{:.0} µs", figures.p99));
    row("time of the index", format!("{:.1} ms", milliseconds(figures.index_time)));
    row("size of the index", size(figures.index_bytes));
    if let Some(time) = figures.vectors_time {
        row("vectors of the tools", format!("{:.0} ms", milliseconds(time)));
        row("vector of a query (p50)", format!("{:.0} µs", figures.embed_p50));
    }
    table.print()
}

async fn tokens(global: &GlobalOptions, args: &TokensArgs) -> CommandResult {
    let file = read_catalogue(&args.catalogue)?;
    let text = read_up_to(&args.task, MAX_CATALOGUE_BYTES)?;
    let task = Task::parse(&text, &file.positions_by_name())
        .map_err(|error| Failure::usage(format!("{}: {error}", args.task.display())))?;
    let playback = Playback::new(file, task);
    let mut spent = Vec::with_capacity(EXPOSURES.len());
    for exposure in EXPOSURES {
        spent.push((exposure, playback.play(exposure).await));
    }
    if global.json {
        print_json(&token_costs_json(&playback, &spent))?;
    } else {
        print_token_costs(&playback, &spent)?;
    }
    Ok(if spent.iter().all(|(_, spent)| spent.is_ok()) { Exit::Ok } else { Exit::Failed })
}

fn token_costs_json(playback: &Playback, spent: &[(Exposure, Result<TokensSpent, String>)]) -> Value {
    let of = |spent: &Result<TokensSpent, String>| match spent {
        Ok(TokensSpent { definitions, results }) => {
            json!({"definition_tokens": definitions, "result_tokens": results, "total": definitions + results})
        }
        Err(why) => json!({ "error": why }),
    };
    let exposures = spent.iter().map(|(exposure, spent)| (exposure.to_string(), of(spent)));
    json!({
        "tools": playback.tools(),
        "steps": playback.steps(),
        "exposures": Value::Object(exposures.collect()),
    })
}

fn print_token_costs(playback: &Playback, spent: &[(Exposure, Result<TokensSpent, String>)]) -> std::io::Result<()> {
    let (tools, steps) = (playback.tools(), playback.steps());
    print_text(&format!("{tools} tools, {steps} steps; estimated tokens of all requests"))?;
    let mut table = Table::new(["exposure", "definitions>", "results>", "total>"]);
    for (exposure, spent) in spent {
        let exposure = name(exposure.as_str());
        match spent {
            Ok(TokensSpent { definitions, results }) => {
                table.row([exposure, definitions.into(), results.into(), (definitions + results).into()]);
            }
            Err(why) => table.row_with([exposure], sanitize(why)),
        }
    }
    table.print()
}
