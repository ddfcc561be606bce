//! The server as a process, for command-line tests and for official clients in other languages.

use std::io::{self, Write as _};
use std::path::PathBuf;

use super::{Fault, Script, ScriptedModel};

/// Options of `scripted-model`.
#[derive(Debug, clap::Parser)]
#[command(
    name = "scripted-model",
    about = "A scripted model server: OpenAI Chat Completions and Responses, Anthropic Messages, Gemini, Ollama"
)]
pub struct Options {
    /// Port on the loopback interface; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// JSON script (see `Script::from_json`), or YAML in a .yaml file; without it every request is answered with its
    /// last user text
    #[arg(long)]
    script: Option<PathBuf>,
    /// Faults of the first answers, in order, one per answer, before the script begins: cut_after:N, cut_within:N,
    /// end_after:N, hang, hang_after:N, error_after:N, drip:BYTES:MS, keep_alive:N, garble:N, empty, page, mislabel,
    /// status:S, status:S:RETRY_AFTER, overload (repeatable; N counts frames of the stream)
    #[arg(long)]
    fault: Vec<Fault>,
}

/// Serves until the process is ended. Prints `ready http://127.0.0.1:PORT` when it accepts requests.
///
/// # Errors
/// If the script cannot be read or the port cannot be bound.
pub async fn run(options: Options) -> io::Result<()> {
    let script = match &options.script {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
            let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
            let script = if is_yaml { Script::from_yaml(&text) } else { Script::from_json(&text) };
            script.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?
        }
        None => Script::echo(),
    };
    let server = ScriptedModel::start_on(options.port, script.with_faults(options.fault)).await?;
    writeln!(io::stdout(), "ready {}", server.url())?;
    io::stdout().flush()?;
    server.serving().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;

    use super::*;

    #[test]
    fn faults_are_given_in_their_order() {
        let options = Options::try_parse_from(["scripted-model", "--fault", "status:429:1", "--fault", "drip:5:20"]);
        let faults = [Fault::Status(429, Some(1)), Fault::Drip(5, Duration::from_millis(20))];
        assert_eq!(options.expect("options").fault, faults);
        assert!(Options::try_parse_from(["scripted-model", "--fault", "none"]).is_err());
    }
}
