//! The demo's three small MCP servers on standard input and output. All data is in memory.

use std::io::{BufRead as _, Read as _, Write as _};

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::exit::{Done, Exit};

/// Bytes of one message.
const MAX_MESSAGE: u64 = 1 << 20;
/// The revision that a client is answered with; Toolwright speaks it.
const REVISION: &str = "2025-11-25";

/// A sample server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sample {
    /// Forecasts for any city.
    Weather,
    /// A person's notes.
    Notes,
    /// A shop that takes orders.
    Shop,
}

impl Sample {
    /// Every server.
    pub(super) const ALL: [Self; 3] = [Self::Weather, Self::Notes, Self::Shop];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Weather => "weather",
            Self::Notes => "notes",
            Self::Shop => "shop",
        }
    }

    fn tools(self) -> Value {
        match self {
            Self::Weather => json!([
                tool(
                    "forecast",
                    "Weather forecast of a city, hour by hour",
                    true,
                    json!({
                        "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7},
                    })
                ),
                tool("alerts", "Weather warnings that hold for a city now", true, json!({"city": {"type": "string"}})),
            ]),
            Self::Notes => json!([
                tool("search", "Find notes by a word in their text", true, json!({"query": {"type": "string"}})),
                tool("write", "Write a new note", false, json!({"text": {"type": "string"}})),
            ]),
            Self::Shop => json!([
                tool("find", "Find articles of the shop, with prices", true, json!({"query": {"type": "string"}})),
                tool(
                    "order",
                    "Order an article of the shop; it is paid at once",
                    false,
                    json!({
                        "article": {"type": "string"}, "quantity": {"type": "integer", "minimum": 1, "maximum": 100},
                    })
                ),
                tool("orders", "List the orders that were placed", true, json!({})),
            ]),
        }
    }
}

fn tool(name: &str, description: &str, is_read_only: bool, properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().into_iter().flat_map(|map| map.keys()).collect();
    json!({
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        },
        "annotations": {"readOnlyHint": is_read_only, "destructiveHint": !is_read_only, "openWorldHint": false},
    })
}

/// What a server remembers while it runs.
struct Memory {
    notes: Vec<String>,
    orders: Vec<String>,
}

/// Serves until standard input ends.
pub(crate) fn serve(sample: Sample) -> Done {
    let mut memory = Memory {
        notes: vec![
            "Picnic: six of us on Saturday. Bring lemonade, one bottle each.".to_owned(),
            "Bicycle: new brake pads, front and rear.".to_owned(),
        ],
        orders: Vec::new(),
    };
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    loop {
        let mut line = String::new();
        if input.by_ref().take(MAX_MESSAGE).read_line(&mut line)? == 0 {
            return Ok(Exit::Ok);
        }
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        // Notifications have no id, and nothing here follows from them.
        let Some(id) = message.get("id") else { continue };
        let mut answer = json!({"jsonrpc": "2.0", "id": id});
        match answered(sample, &message, &mut memory) {
            Some(result) => answer["result"] = result,
            None => answer["error"] = json!({"code": -32601, "message": "this sample server has no such method"}),
        }
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
}

fn answered(sample: Sample, message: &Value, memory: &mut Memory) -> Option<Value> {
    match message.get("method")?.as_str()? {
        "initialize" => Some(json!({
            "protocolVersion": REVISION,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": format!("demo-{}", sample.name()), "version": env!("CARGO_PKG_VERSION")},
        })),
        "ping" => Some(json!({})),
        "tools/list" => Some(json!({"tools": sample.tools()})),
        "tools/call" => {
            let called = |key: &str| message.pointer(&format!("/params/{key}"));
            let text = call(sample, called("name")?.as_str()?, called("arguments").unwrap_or(&Value::Null), memory);
            let (text, is_error) = text.map_or_else(|why| (why, true), |text| (text, false));
            Some(json!({"content": [{"type": "text", "text": text}], "isError": is_error}))
        }
        _ => None,
    }
}

fn call(sample: Sample, name: &str, arguments: &Value, memory: &mut Memory) -> Result<String, String> {
    let text = |key: &str| {
        let text = arguments.get(key).and_then(Value::as_str);
        text.ok_or_else(|| format!("`{key}` must be a text"))
    };
    let number = |key: &str, max: u64| {
        let number = arguments.get(key).and_then(Value::as_u64).filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| format!("`{key}` must be an integer from 1 to {max}"))
    };
    match (sample, name) {
        (Sample::Weather, "forecast") => Ok(forecast(text("city")?, number("days", 7)?)),
        (Sample::Weather, "alerts") => Ok(format!("no warnings for {}", text("city")?)),
        (Sample::Notes, "search") => {
            let word = text("query")?.to_lowercase();
            let found: Vec<&String> = memory.notes.iter().filter(|note| note.to_lowercase().contains(&word)).collect();
            Ok(json!(found).to_string())
        }
        (Sample::Notes, "write") => {
            memory.notes.push(text("text")?.to_owned());
            Ok("written".into())
        }
        (Sample::Shop, "find") => Ok(ARTICLES
            .iter()
            .filter(|(article, _)| article.contains(&text("query").unwrap_or_default().to_lowercase()))
            .map(|(article, cents)| format!("{article}: {} EUR", euros(*cents)))
            .collect::<Vec<_>>()
            .join("\n")),
        (Sample::Shop, "order") => {
            let (article, quantity) = (text("article")?, number("quantity", 100)?);
            let Some((_, cents)) = ARTICLES.iter().find(|(name, _)| *name == article) else {
                return Err(format!("the shop has no `{article}`; `find` says what it has"));
            };
            let order = format!("{quantity} x {article}, {} EUR", euros(cents * quantity));
            memory.orders.push(order.clone());
            Ok(format!("order {}: {order}", memory.orders.len()))
        }
        (Sample::Shop, "orders") => Ok(json!(memory.orders).to_string()),
        _ => Err(format!("there is no tool `{name}`")),
    }
}

/// What the shop has, with prices in cents.
const ARTICLES: [(&str, u64); 4] =
    [("lemonade", 240), ("lemonade, sugar-free", 260), ("picnic blanket", 1890), ("sun cream", 995)];

fn euros(cents: u64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// A line an hour, from Thursday on: made up, and long enough that it is not shown whole.
fn forecast(city: &str, days: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const SKIES: [&str; 4] = ["clear sky", "few clouds", "overcast", "light rain"];
    let mut out = format!("Forecast for {city} (made up for the demo)\n");
    for (day, name) in (0u64..).zip(DAYS).take(usize::try_from(days).unwrap_or(DAYS.len())) {
        for hour in 0u64..24 {
            let sky = SKIES[usize::try_from((day * 2 + hour / 8) % 4).unwrap_or(0)];
            let degrees = 12 + 10 - hour.abs_diff(14).min(10) + day % 2;
            out.push_str(&format!("{name} {hour:02}:00  {degrees} C  {sky}, wind {} m/s\n", 2 + (day + hour) % 5));
        }
    }
    out
}
