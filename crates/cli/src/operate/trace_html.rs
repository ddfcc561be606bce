//! Writes the tree of a run as one HTML file without scripts, fonts or requests.

use std::collections::HashMap;
use std::fmt::Write as _;

use toolwright::core::OpId;
use toolwright::core::output::html_escaped as escaped;
use toolwright::core::store::LedgerEntry;
use toolwright::core::trace::{Trace, TraceOp};

use super::trace::{clock, totals};

const STYLE: &str = ":root{color-scheme:light dark;--line:light-dark(#dcdedb,#343a40);--dim:light-dark(#59605c,#a3aba7);\
--bad:light-dark(#a31621,#ff9a97);font:15px/1.5 system-ui,sans-serif}body{margin:0 auto;max-width:80rem;padding:1.5rem;\
background:light-dark(#fbfbfa,#14171a);color:light-dark(#1b1f1d,#e8eae9)}h1{font-size:1.4rem;margin:0;overflow-wrap:anywhere}\
h2{font-size:1rem;margin:1.2rem 0 .3rem}p{color:var(--dim);margin:.2rem 0}details{border-top:1px solid var(--line)}\
details details,details .in{margin-left:1.2rem}summary{display:grid;grid-template-columns:minmax(10rem,2fr) 9rem 5rem minmax(5rem,1.5fr);\
gap:.6rem;padding:.2rem 0;cursor:pointer;align-items:center}summary span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}\
.n{text-align:right;font-variant-numeric:tabular-nums}.bad{color:var(--bad);font-weight:600}svg{width:100%;height:10px}\
rect{fill:light-dark(#3e7fb3,#7db8e8)}.model rect{fill:light-dark(#7857b5,#b89bf0)}.bad rect,.failed rect{fill:var(--bad)}\
pre{font:13px/1.45 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;background:light-dark(#eef3ef,#232a27);\
border-radius:6px;padding:.5rem .7rem;margin:.3rem 0}\
@media(max-width:760px){body{padding:1rem}details details,details .in{margin-left:.6rem}\
summary{grid-template-columns:minmax(0,1fr) auto auto}summary svg{display:none}}";

/// Returns the page, with the recorded arguments and results of `entries`.
pub(super) fn page(trace: &Trace, entries: &[LedgerEntry]) -> String {
    let known: HashMap<OpId, &LedgerEntry> = entries.iter().map(|entry| (entry.op.id, entry)).collect();
    let title = escaped(trace.run.as_deref().unwrap_or(&trace.session));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} – Toolwright</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <style>{STYLE}</style></head><body><main><h1>{title}</h1><p>{}</p><p>{}</p>\n",
        escaped(&clock(trace.started_ms)),
        escaped(&anstream::adapter::strip_str(&totals(trace)).to_string()),
    );
    if trace.left_out > 0 {
        let _ = writeln!(out, "<p>{} earlier operations are not shown.</p>", trace.left_out);
    }
    for turn in &trace.turns {
        if turn.turn > 0 {
            let _ = writeln!(out, "<h2>Turn {}</h2>", turn.turn);
        }
        turn.ops.iter().for_each(|op| operation(op, trace, &known, &mut out));
    }
    out.push_str("</main></body></html>\n");
    out
}

fn operation(op: &TraceOp, trace: &Trace, known: &HashMap<OpId, &LedgerEntry>, out: &mut String) {
    let failed = !matches!(op.status.as_str(), "ok" | "done" | "running");
    let whole = (trace.latency_ms as f64).max(1.0);
    let left = (op.started_ms.saturating_sub(trace.started_ms) as f64 / whole * 100.0).min(99.0);
    let width = (op.latency_ms / whole * 100.0).clamp(0.5, 100.0 - left);
    let _ = write!(
        out,
        "<details{}><summary class=\"{}\"><span>{}</span><span>{}</span><span class=\"n\">{:.0} ms</span>\
         <svg viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect x=\"{left:.2}\" y=\"1\" width=\"{width:.2}\" height=\"6\"/></svg></summary>",
        if op.children.is_empty() { "" } else { " open" },
        if failed { "bad" } else { op.kind.as_str() },
        escaped(&op.name),
        escaped(&op.status),
        op.latency_ms,
    );
    let mut fact = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = write!(out, "<p class=\"in\">{name}: {}</p>", escaped(value));
        }
    };
    fact("decided by", &op.decided_by);
    fact("a person said", op.approval.as_deref().unwrap_or_default());
    fact("cost", &op.cost_usd.map(|usd| format!("${usd:.5}")).unwrap_or_default());
    let entry = known.get(&op.op);
    for (name, text) in [
        ("Arguments", entry.and_then(|entry| entry.arguments.as_deref())),
        ("Result", entry.and_then(|entry| entry.result.as_deref())),
        ("Why", op.note.as_deref()),
    ] {
        if let Some(text) = text {
            let _ = write!(out, "<p class=\"in\">{name}</p><pre class=\"in\">{}</pre>", escaped(text));
        }
    }
    op.children.iter().for_each(|child| operation(child, trace, known, out));
    out.push_str("</details>\n");
}

#[cfg(test)]
mod tests {
    use toolwright::core::session::SessionId;
    use toolwright::core::store::{TraceSummary, TraceSums};
    use toolwright::core::{Lineage, OpKind};

    use super::*;

    #[test]
    fn a_trace_page_is_whole_and_escapes_text() {
        let op = Lineage::named("r").begin(OpId::new(1));
        let entry = LedgerEntry {
            arguments: Some("{\"a\": \"<script>\"}".into()),
            note: Some("no & never".into()),
            status: "timeout".into(),
            ..LedgerEntry::new(op, 9, SessionId::new("s"), "owner".into(), OpKind::Tool, "x:<b>@1.0.0".into())
        };
        let summary = TraceSummary {
            run: Some("r".into()),
            session: SessionId::new("s"),
            principal: "owner".into(),
            within: None,
            started_ms: 0,
            ended_ms: 9,
            live: false,
            turns: 0,
            sums: TraceSums::default(),
        };
        let page = page(&Trace::of(&summary, std::slice::from_ref(&entry)), &[entry]);
        for part in
            ["x:&lt;b&gt;@1.0.0", "{&quot;a&quot;: &quot;&lt;script&gt;&quot;}", "no &amp; never", "class=\"bad\""]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="), "{page}");
    }
}
