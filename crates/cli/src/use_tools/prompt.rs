//! `prompt show`: shows what a run shows its model before the task.

use std::sync::Arc;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use toolwright::agent::PromptPreview;
use toolwright::core::ModelRequest;
use toolwright::core::catalogue::shown_tokens;
use toolwright::core::context::{Exactness, TokenCounter};

use crate::app::agent::{chosen_model, failed, unknown};
use crate::app::lists::say_failures;
use crate::app::{GlobalOptions, open};
use crate::exit::{CommandResult, Exit};
use crate::terminal::screen::{print_json, print_written};

#[derive(Debug, Subcommand)]
pub(crate) enum PromptCommand {
    /// Show the system prompt of a run, with the tokens of each section and of the tools. Calls no model.
    Show(Show),
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The agent that would run. Default: an agent without instructions.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The model. Default: the agent's, `models.default`, else a model that the environment offers.
    #[arg(short, long, value_name = "PROVIDER/MODEL")]
    model: Option<String>,
    /// Size of the model's context window, in tokens. Default: as configured for the model.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    window: Option<usize>,
}

pub(crate) async fn command(global: &GlobalOptions, command: &PromptCommand) -> CommandResult {
    let PromptCommand::Show(show) = command;
    let app = open(global).await?;
    let config = app.config();
    let agent_config = match &show.agent {
        Some(name) => Some(config.agent(name).ok_or_else(|| unknown(&config, name))?.config.clone()),
        None => None,
    };
    let named = show.model.clone().or(agent_config.and_then(|agent_config| agent_config.model));
    // Nothing is sent, so no key is needed.
    let is_known = |model: &String| app.models().endpoints().endpoint_of(model).is_ok();
    let model = match named.clone().or_else(|| config.sections.models.default.clone()).filter(is_known) {
        Some(model) => model,
        None => chosen_model(named, &app).await?,
    };
    let mut agent = match &show.agent {
        Some(name) => app.agent_named(name).map_err(failed)?.model(model.as_str()),
        None => app.agent(model.as_str()),
    };
    if let Some(tokens) = show.window {
        agent = agent.window(tokens);
    }
    let preview = agent.preview().await.map_err(failed)?;
    say_failures(&app);
    let tokens = Arc::clone(&app.executor().services().tokens);
    let tokens = tokens.of_model(&model).unwrap_or(tokens);
    let sections = Sections::of(&preview, &model, app.models().http(), &*tokens);
    app.shut_down().await;
    if global.json {
        print_json(&sections.json(&model, &preview))?;
    } else {
        print_written(&sections.text(&preview))?;
    }
    Ok(Exit::Ok)
}

/// The sections of a prompt, each with its name and tokens.
struct Sections {
    sections: Vec<(&'static str, String, usize)>,
    exactness: Exactness,
    /// Tokens of the definitions that the API carries, or that are in the last section.
    tools: usize,
    in_text: bool,
}

impl Sections {
    fn of(
        preview: &PromptPreview,
        model: &str,
        client: &toolwright::models::HttpModelClient,
        counter: &dyn TokenCounter,
    ) -> Self {
        let count = |text: &str| counter.count(text).0;
        let prompt = preview.prompt.text();
        let mut sections: Vec<_> =
            preview.prompt.sections().map(|(kind, text)| (kind.as_str(), text.to_owned(), count(text))).collect();
        let mut tools = preview.tools.iter().filter(|tool| !tool.is_deferred()).map(shown_tokens).sum();
        let written = client.text_tools(model).map(|format| {
            let request =
                ModelRequest { system: prompt.clone(), tools: Arc::clone(&preview.tools), ..ModelRequest::default() };
            format.request(&request).system
        });
        let added = written.as_deref().and_then(|text| text.strip_prefix(prompt.as_str())).map(str::trim_start);
        if let Some(added) = added.filter(|added| !added.is_empty()) {
            tools = count(added);
            sections.push(("tool_format", added.to_owned(), tools));
        }
        let exactness = counter.count(&prompt).1;
        Self { sections, exactness, tools, in_text: added.is_some() }
    }

    fn total(&self) -> usize {
        self.sections.iter().map(|(_, _, tokens)| tokens).sum()
    }

    fn json(&self, model: &str, preview: &PromptPreview) -> Value {
        let sections = self.sections.iter();
        let sections = sections.map(|(name, text, tokens)| json!({"name": name, "tokens": tokens, "text": text}));
        let left_out = preview.left_out.iter().map(|(tool, why)| json!({"tool": tool, "reason": why}));
        let names = preview.tools.iter().filter(|tool| !tool.is_deferred()).map(|tool| tool.name.as_str());
        json!({
            "model": model,
            "sections": sections.collect::<Value>(),
            "tokens": self.total(),
            "estimated": self.exactness != Exactness::Exact,
            "exposure": preview.exposure,
            "tools": {
                "declared": names.collect::<Vec<_>>(),
                "tokens": self.tools,
                "in": if self.in_text { "text" } else { "api" },
                "left_out": left_out.collect::<Value>(),
            },
        })
    }

    fn text(&self, preview: &PromptPreview) -> String {
        let about = match self.exactness {
            Exactness::Exact => "",
            _ => "about ",
        };
        let mut text = String::new();
        for (name, section, tokens) in &self.sections {
            text.push_str(&format!("== {name}: {about}{tokens} tokens\n{section}\n\n"));
        }
        let declared = preview.tools.iter().filter(|tool| !tool.is_deferred()).count();
        let place = if self.in_text { "written above" } else { "declared to the API beside it" };
        let exposure = preview.exposure.as_ref().map(|choice| format!(" ({}: {})", choice.exposure, choice.reason));
        text.push_str(&format!(
            "== {about}{} tokens; {declared} tools with {} tokens, {place}{}\n",
            self.total(),
            self.tools,
            exposure.unwrap_or_default()
        ));
        for (tool, why) in &preview.left_out {
            text.push_str(&format!("== {tool} is not declared: {why}\n"));
        }
        text
    }
}
