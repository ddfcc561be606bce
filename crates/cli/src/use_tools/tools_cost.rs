//! `tools ls --tokens`: shows how many tokens of the context window the tools take.

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::core::context::EstimatedTokens;
use toolwright::core::model::ModelClient as _;
use toolwright::core::select::{CALL_ID, Choice, Cost, DESCRIBE_ID, SEARCH_ID, choose, namespaces};
use toolwright::core::{Entry, Snapshot};
use toolwright::runtime::{ToolFinder, searchable};

use crate::terminal::screen::{BOLD, DIM, print_json, print_text, styled};
use crate::terminal::table::{Table, name};

/// For which model tools are shown.
pub(super) struct Reader {
    /// Tokens that it takes in; `None` if nobody says.
    window: Option<usize>,
    /// Whether its API loads deferred tools.
    has_tool_search: bool,
    /// Tools that the exposure `pick` begins with.
    pick_size: usize,
}

impl Reader {
    /// Toolwright's default model, with a `window` that was given, else its configured one.
    pub(super) fn of(app: &Toolwright, window: Option<usize>) -> Self {
        let config = app.config();
        let (models, pick_size) = (&config.written.models, config.written.selection.pick_size);
        let Some(model) = &models.default else { return Self { window, has_tool_search: false, pick_size } };
        let named = [model.as_str(), model.split('/').next().unwrap_or_default()];
        let configured = named.iter().find_map(|name| models.by_name.get(*name)?.window);
        Self { window: window.or(configured), has_tool_search: app.models().has_tool_search(model), pick_size }
    }
}

/// Estimated tokens of tools, and of ways to put them before a model.
pub(super) struct Costs<'a> {
    tools: Vec<(&'a Entry, usize)>,
    /// By name: how many tools, and their tokens.
    providers: IndexMap<&'a str, Cost>,
    total: usize,
    exposures: [(&'static str, usize); 4],
    auto: Choice,
}

impl<'a> Costs<'a> {
    /// Of `entries`, tools of `snapshot`.
    pub(super) fn of(snapshot: &Arc<Snapshot>, entries: &[&'a Arc<Entry>], reader: &Reader) -> Self {
        let tools: Vec<(&Entry, usize)> = entries.iter().map(|entry| (&***entry, entry.tokens())).collect();
        let mut providers: IndexMap<&str, Cost> = IndexMap::new();
        for (entry, tokens) in &tools {
            let cost = providers.entry(entry.provider.name()).or_default();
            cost.tools += 1;
            cost.tokens += tokens;
        }
        let total = tools.iter().map(|(_, tokens)| tokens).sum();
        let cost = Cost { tools: tools.len(), tokens: total };
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

    pub(super) fn print_json(&self) -> std::io::Result<()> {
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

    pub(super) fn print(&self) -> std::io::Result<()> {
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
        let Choice { exposure, reason } = &self.auto;
        print_text(&format!("auto is {}: {reason}", styled(BOLD, exposure)))?;
        print_text(&styled(DIM, "Tokens are estimated, at four bytes each."))
    }

    fn share(&self, tokens: usize) -> f64 {
        tokens as f64 / self.total.max(1) as f64
    }
}
