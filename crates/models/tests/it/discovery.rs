//! Which model is used when nobody names one.

use toolwright_models::{HttpModelClient, default_model, endpoints_from_env};
use toolwright_testkit::model_server::{Script, ScriptedModel};

async fn check(vars: &[(&str, &str)], expect: Result<&str, &str>) {
    let get = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let client = HttpModelClient::new(endpoints_from_env(&get));
    let got = default_model(&get, &client).await.map_err(|error| error.message);
    match expect {
        Ok(model) => assert_eq!(got.as_deref(), Ok(model), "{vars:?}"),
        Err(part) => assert!(got.as_ref().is_err_and(|message| message.contains(part)), "{vars:?}: {got:?}"),
    }
}

#[tokio::test]
async fn the_first_configured_provider_gives_the_model() {
    let server = ScriptedModel::start(Script::echo()).await.unwrap();
    let (root, v1) = (server.url(), format!("{}/v1", server.url()));
    let nowhere = ("OLLAMA_HOST", "127.0.0.1:1");
    check(&[("OPENAI_API_KEY", "k"), ("OPENAI_MODEL", "gpt-x"), ("ANTHROPIC_API_KEY", "k")], Ok("openai/gpt-x")).await;
    check(&[("ANTHROPIC_API_KEY", "k"), ("ANTHROPIC_MODEL", "claude-x")], Ok("anthropic/claude-x")).await;
    check(&[("OPENAI_BASE_URL", &v1)], Ok("openai/scripted")).await;
    check(&[("OLLAMA_HOST", &root)], Ok("ollama/scripted:latest")).await;
    check(&[("OLLAMA_HOST", &root), ("OLLAMA_MODEL", "qwen3")], Ok("ollama/qwen3")).await;
    check(&[nowhere], Err("--model PROVIDER/MODEL")).await;
    check(&[nowhere], Err("ANTHROPIC_API_KEY")).await;
}
