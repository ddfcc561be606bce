//! `eval`: measures how well tools are found, and what that costs.

mod cases;
mod player;
mod rank;
mod sample;
mod select;
mod task;
mod tokens;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use self::rank::ScorerName;
use crate::app::Global;
use crate::exit::Done;

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Eval {
    /// How well queries find the tools that they need: recall, NDCG, time and size.
    ///
    /// Figures are shares from 0 to 1. recall@k is the mean share of a query's relevant tools among the first
    /// k, complete@k the share of queries with all of them there, and ndcg@10 counts a tool as relevant or not.
    /// The whole catalogue is ranked, without a least score.
    Select(SelectArgs),
    /// What the tools of a task cost, from its first step to its last, by each way to put them before a model.
    ///
    /// A scripted model plays the task through the agent loop: it calls the tool of a step if it is before it, and
    /// else searches for it. Tokens are estimated, at four bytes each, and summed over all requests:
    /// definition_tokens are those of the definitions before the model and of the line that names the namespaces,
    /// result_tokens those of all results so far, the answers of searches among them. Definitions that an API keeps
    /// out of the context until they are found count from then on.
    Tokens(TokensArgs),
}

/// What `eval tokens` takes.
#[derive(Debug, Args)]
pub(crate) struct TokensArgs {
    /// File with the tools, as for `eval select`.
    #[arg(long, value_name = "FILE")]
    catalogue: PathBuf,
    /// File with the task, {steps: [step]} or a step a line: {query, tool | relevant: [tool id], arguments?, result?}.
    /// A name that only one tool has will do for its id.
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
    /// Reports both halves of the cases too, under `halves`, to choose on one and check on the other. A case is in
    /// the second half if the first byte of the SHA-256 of its id (of its query, if it has none) is odd.
    #[arg(long)]
    halves: bool,
    /// How tools are scored.
    #[arg(long, value_name = "SCORER", default_value = "auto")]
    scorer: ScorerName,
    /// Directory of a sentence-transformer: config.json, tokenizer.json, model.safetensors. What it takes is
    /// told apart: `vectors_ms` for the catalogue, less once its vectors are kept; `embed_p50_us` for a query.
    #[arg(long, value_name = "DIR")]
    embeddings: Option<PathBuf>,
}

pub(crate) async fn command(global: &Global, command: &Eval) -> Done {
    match command {
        Eval::Select(args) => select::command(global, args).await,
        Eval::Tokens(args) => tokens::command(global, args).await,
    }
}
