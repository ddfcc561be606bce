//! The commands and snippets that connect known clients to this server.

/// A line for each known client; `token` is whether one is needed.
pub(crate) fn lines(url: &str, token: bool) -> Vec<(&'static str, String)> {
    let header = if token { " --header \"Authorization: Bearer $TOOLWRIGHT_TOKEN\"" } else { "" };
    let headers = if token { ", \"headers\": {\"Authorization\": \"Bearer ${env:TOOLWRIGHT_TOKEN}\"}" } else { "" };
    vec![
        ("Claude Code", format!("claude mcp add --transport http toolwright {url}{header}")),
        (
            "Cursor",
            format!("~/.cursor/mcp.json: {{\"mcpServers\": {{\"toolwright\": {{\"url\": \"{url}\"{headers}}}}}}}"),
        ),
        (
            "VS Code",
            format!(
                ".vscode/mcp.json: {{\"servers\": {{\"toolwright\": {{\"type\": \"http\", \"url\": \"{url}\"{headers}}}}}}}"
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_hold_json_that_parses_and_no_secret() {
        for token in [false, true] {
            for (client, line) in lines("http://127.0.0.1:7117/mcp", token) {
                assert_eq!(line.contains("TOOLWRIGHT_TOKEN"), token, "{client}");
                if let Some((_, json)) = line.split_once(": {") {
                    serde_json::from_str::<serde_json::Value>(&format!("{{{json}")).expect(client);
                }
            }
        }
    }
}
