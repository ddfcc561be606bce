//! Logs: on standard error, never on standard output.

use std::io::Write;

use tracing_subscriber::EnvFilter;

use super::screen::redacted;

/// Starts logging. `RUST_LOG` beats `-v`.
pub(crate) fn start(verbose: u8) {
    let default = match verbose {
        // What the MCP library complains of is told in our own words.
        0 => "error,rmcp=off",
        1 => {
            "warn,toolwright=info,toolwright_core=info,toolwright_runtime=info,toolwright_providers=info,toolwright_server=info,toolwright_agent=info,toolwright_models=info"
        }
        2 => {
            "info,toolwright=debug,toolwright_core=debug,toolwright_runtime=debug,toolwright_providers=debug,toolwright_server=debug,toolwright_agent=debug,toolwright_models=debug"
        }
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // A second subscriber in one process is an embedder's, and stays.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Log).with_ansi(false).compact().try_init();
}

/// Standard error behind the redactor. The subscriber writes one event at a time.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        std::io::stderr().lock().write_all(redacted(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().lock().flush()
    }
}
