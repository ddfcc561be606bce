//! An agent whose steps are shown as they happen: the model's text, and each call.
//!
//! `OPENAI_API_KEY=... cargo run -p toolwright --example events -- "Which files are here?"`

#![expect(clippy::print_stdout, reason = "an example prints what happens")]

use std::io::Write as _;

use toolwright::{Event, Limits, Toolwright};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let task = std::env::args().nth(1).unwrap_or_else(|| "Which files are here?".to_owned());
    let tw = Toolwright::builder().builtins(["fs__tree", "fs__read", "fs__grep"]).build().await?;
    let agent = tw.agent("openai/gpt-5-mini").limits(Limits { turns: 10, ..Limits::default() }).task(task);
    let mut events = agent.events();
    let show = async {
        while let Some(event) = events.next().await {
            match &*event {
                Event::ModelText { text, .. } => print!("{text}"),
                Event::ToolStarted { wire_name, arguments, .. } => println!("-> {wire_name} {arguments}"),
                Event::ToolFinished { wire_name, ok, .. } => {
                    println!("<- {wire_name} {}", if *ok { "ok" } else { "failed" })
                }
                _ => {}
            }
            // Whoever closed the output needs no more of it.
            let _ = std::io::stdout().flush();
        }
        println!();
    };
    let (report, ()) = tokio::join!(agent.run(), show);
    let report = report?;
    println!("{}: {} turns, {} calls", report.status.as_str(), report.turns, report.calls.len());
    tw.shut_down().await;
    Ok(())
}
