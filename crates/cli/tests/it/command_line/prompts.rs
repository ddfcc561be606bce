//! System prompts: their sections for several models, and skills from their files into a run.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agents::agent::{ended, report, start, with_model};
use crate::command_line::cli::{fails, json_of, ok, program};
use crate::serving::gateway::Gateway;
use crate::support::{Fixture, data_file};

const CONFIG: &str = "
defaults: {builtins_allowed: [agent__skill, channel__send, job__info]}
channels: {review: {reach: shared, description: Work to look at}}
models:
  default: anthropic/claude-opus-4-8
  endpoints:
    mine: {api: openai_chat, base_url: 'http://127.0.0.1:9/v1', api_key: k}
  openai/gpt-5-mini: {window: 400000}
  gemini/gemini-3-flash: {window: 1000000}
  mine/qwen3-coder: {window: 32000, tool_format: qwen3-coder}
  ollama/llama3.2: {window: 6000}
restTools:
  weather:
    description: Says what the weather is.
    url: https://weather.example/now?q=${parameters.city}
    parameters: {type: object, properties: {city: {type: string}}, required: [city]}
    contribution: Name the city in English.
";

const SKILL: &str = "---\nname: release-notes\ndescription: Writes release notes. Load it before you write any.\n---\n\
                     Group by kind. See ${CLAUDE_SKILL_DIR}/style.md.\n";

fn office() -> Fixture {
    let fixture = Fixture::with(CONFIG);
    fixture.write("project/.claude/skills/release-notes/SKILL.md", SKILL);
    fixture.write("project/.claude/skills/release-notes/style.md", "Short lines.");
    fixture.write("project/agents/writer.md", "---\ndescription: Writes.\nskills: [release-notes]\n---\nYou write.\n");
    fixture
}

/// The models whose prompts are kept: APIs of their own, a text format, and a window in which texts do not fit.
const MODELS: [&str; 5] =
    ["openai/gpt-5-mini", "anthropic/claude-opus-4-8", "gemini/gemini-3-flash", "mine/qwen3-coder", "ollama/llama3.2"];

#[test]
fn prompts_of_five_models_match_their_goldens() {
    let fixture = office();
    let mut shared: Option<String> = None;
    for model in MODELS {
        // No model is asked, and none needs a key.
        let shown = program(&fixture).args(["prompt", "show", "--model", model, "--json"]).output();
        let shown = json_of(&shown.expect("the program runs"));
        let sections = shown["sections"].as_array().expect("sections").iter();
        let text = |section: &Value| section["text"].as_str().unwrap_or_default().to_owned();
        let heads = sections.clone().map(|section| format!("== {}\n{}\n", section["name"], text(section)));
        let root = fixture.project().canonicalize().expect("the root");
        let golden = heads.collect::<String>().replace(&*root.to_string_lossy(), "{root}");
        let file = data_file("prompts").join(format!("{}.txt", model.replace('/', "_")));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(data_file("prompts")).expect("folder");
            std::fs::write(&file, &golden).expect("written");
        }
        let expect = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(golden, expect, "{model}: UPDATE=1 cargo test -p toolwright-cli --test it prompts");
        let tokens: u64 = sections.clone().map(|section| section["tokens"].as_u64().unwrap_or_default()).sum();
        assert_eq!(shown["tokens"], json!(tokens));
        assert_eq!(shown["tools"]["in"], if model.starts_with("mine/") { "text" } else { "api" }, "{shown}");
        if model.starts_with("ollama") {
            continue;
        }
        // But for what an API carries the text is the same for all.
        let own: String = sections.filter(|section| section["name"] != "tool_format").map(text).collect();
        assert_eq!(shared.get_or_insert_with(|| own.clone()), &own, "{model}");
    }
    let text = ok(&fixture, &["prompt", "show", "--agent", "writer", "--model", MODELS[3]]);
    assert!(text.contains("== base: ") && text.contains("You write.\n\n# Skill release-notes\n"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    fails(&fixture, &["prompt", "show", "--agent", "writr"], 3, &["did you mean `writer`?"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_is_named_and_loaded_on_demand() {
    let script: Script = vec![
        Turn::calls(vec![("agent__skill", json!({"name": "release-notes"}))])
            .expecting("its text is not there yet", |asked| !asked.body.to_string().contains("Group by kind."))
            .expecting("it is named", |asked| asked.system().contains("\n- release-notes: Writes release notes.")),
        Turn::text("Done.").expecting("its text", |asked| {
            let sent = asked.body.to_string();
            sent.contains("Group by kind.") && sent.contains(".claude/skills/release-notes/style.md")
        }),
    ]
    .into();
    let fixture = Fixture::new();
    fixture.write("project/.claude/skills/release-notes/SKILL.md", SKILL);
    let (_server, variables) = with_model(WireApi::OpenAi, script).await;
    let run = start(&fixture, &variables, &["run", "--policy", "ask", "--json", "Write."]);
    let report = report(&ended(run).await);
    assert_eq!((&report["status"], &report["answer"]), (&json!("success"), &json!("Done.")), "{report}");
}

#[test]
fn unapproved_skills_wait_and_faults_are_reported() {
    let fixture = Fixture::with("");
    fixture.write_as_stranger("project/.claude/skills/a/SKILL.md", SKILL);
    let config = fixture.load();
    assert!(
        config.skills.is_empty() && config.problems[0].message.contains("nobody has approved"),
        "{:?}",
        config.problems
    );
    fixture.approve();
    let config = fixture.load();
    assert_eq!(config.skills.iter().map(|entry| entry.skill.name.as_str()).collect::<Vec<_>>(), ["release-notes"]);
    // What was approved counts, not what the file says now.
    fixture.write_as_stranger("project/.claude/skills/a/SKILL.md", &SKILL.replace("Group", "Mangle"));
    let config = fixture.load();
    assert!(config.skills[0].skill.text.starts_with("Group by kind."));
    assert!(config.problems[0].message.contains("skill_files.a/SKILL.md"), "{:?}", config.problems);
}

#[test]
fn skills_are_loaded_again_when_they_change() {
    let fixture = office();
    let gateway = Gateway::start(&fixture, &["--stdio"]);
    fixture.write_as_stranger("home/.claude/skills/mine/SKILL.md", "---\nname: mine\n---\nText");
    gateway.says("it has no description");
    fixture.write_as_stranger("home/.claude/skills/mine/SKILL.md", "---\nname: mine\ndescription: d\n---\n");
    gateway.says("it has no instructions");
}
