//! What is said of broken configurations: where, how bad it is, and what to do.

use toolwright::config::Severity::{EntryDisabled, Error, Warning};

use crate::configuration::config::broken;

#[test]
fn misunderstood_yaml_values_get_remedies() {
    broken("models:\n  p/m: {tokenizer: none.json}\n", 2, "models.p/m.tokenizer", Warning, &["none.json", "estimated"]);
    let vscode = &["`mcpServers`", "toolwright import vscode"];
    broken("servers:\n  a: {command: x}\n", 1, "servers", Error, vscode);
    broken("context_servers:\n  a: {command: x}\n", 1, "context_servers", Error, &["`mcpServers`", "import zed"]);
    let line = &["`command: mcp-server-time`", "`args: [--local-timezone, UTC]`"];
    broken(
        "mcpServers:\n  a:\n    command: mcp-server-time --local-timezone UTC\n",
        2,
        "mcp_servers.a.command",
        Warning,
        line,
    );
    broken("mcpServers:\n  a:\n    command: ./run me -v\n", 2, "mcp_servers.a.command", Warning, &["`args: [me, -v]`"]);
    let rest = "restTools:\n  a:\n    description: x\n    url: https://h/x\n";
    let select = &["/items/*/name"];
    broken(&format!("{rest}    select: items..name\n"), 5, "rest_tools.a.select", EntryDisabled, select);
    broken("context:\n  target: 0.1\n", 2, "context.target", Error, &["too small"]);
    // A bound of money that is no amount would be none.
    for field in ["sampling.max_cost", "outputs.extract_max_cost"] {
        let (section, key) = field.split_once('.').expect("a key");
        broken(&format!("{section}:\n  {key}: -0.01\n"), 2, field, Error, &["too small", "0 or more"]);
        broken(&format!("{section}:\n  {key}: NaN\n"), 2, field, Error, &["expected a number"]);
        for amount in [".nan", ".inf", "-.inf", "1e999"] {
            broken(&format!("{section}:\n  {key}: {amount}\n"), 2, "", Error, &["non-finite"]);
        }
    }
}

#[test]
fn misspelt_keys_and_bad_values_get_remedies() {
    broken("defualts:\n  tool_timeout: 3s\n", 1, "defualts", Error, &["unknown key", "did you mean `defaults`"]);
    broken("traceMCP: true\n", 1, "traceMCP", Error, &["unknown key", "write it under `defaults`"]);
    broken("defaults:\n  tool_timout: 3s\n", 2, "defaults.tool_timout", Error, &["did you mean `tool_timeout`"]);
    broken("defaults:\n  toolTimout: 3s\n", 2, "defaults.toolTimout", Error, &["did you mean `toolTimeout`"]);
    broken("selection:\n  max_candidate: 3\n", 2, "selection.max_candidate", Error, &["did you mean `max_candidates`"]);
    broken("mcpServer: {}\n", 1, "mcpServer", Error, &["did you mean `mcpServers`"]);
    broken("rest_tool: {}\n", 1, "rest_tool", Error, &["did you mean `restTools`"]);
    broken("defaults:\n  builtins: 3\n", 2, "defaults.builtins", Error, &["expected true or false, found a number"]);
    broken(
        "defaults:\n  mcp_init_concurrency: eight\n",
        2,
        "defaults.mcp_init_concurrency",
        Error,
        &["expected a whole number, found text"],
    );
    broken(
        "defaults:\n  mcp_init_concurrency: 0\n",
        2,
        "defaults.mcp_init_concurrency",
        Error,
        &["too small", "1 or more"],
    );
    broken(
        "defaults:\n  tool_timeout: 5 parsecs\n",
        2,
        "defaults.tool_timeout",
        Error,
        &["not a duration", "like 30s"],
    );
    let misspelt = "mcp_servers:\n  x: {command: cat, toolsAllowd: [a]}\n";
    broken(misspelt, 2, "mcp_servers.x.toolsAllowd", EntryDisabled, &["unknown key", "did you mean `toolsAllowed`?"]);
    let loosened = "mcp_servers:\n  x: {command: cat, noSchemaMod: human-approval}\n";
    broken(loosened, 2, "mcp_servers.x.noSchemaMod", EntryDisabled, &["unknown key", "did you mean `noSchemaMode`?"]);
    // Only the client of a served API says these.
    for key in ["asks_thinking", "limit_covers_reasoning"] {
        let text = format!("models:\n  p/m: {{{key}: true}}\n");
        broken(&text, 2, &format!("models.p/m.{key}"), Error, &["unknown key"]);
    }
    for key in ["allowedTools", "denyTools", "blocked_tools", "readOnly", "requireApproval"] {
        let elsewhere = format!("mcp_servers:\n  x: {{command: cat, {key}: [a]}}\n");
        broken(&elsewhere, 2, &format!("mcp_servers.x.{key}"), EntryDisabled, &["unknown key"]);
    }
    broken("defaults:\n  tool_timeout: 0s\n", 2, "defaults.tool_timeout", Error, &["no time at all", "more, like 30s"]);
    broken("defaults:\n  tool_timeout: 0\n", 2, "defaults.tool_timeout", Error, &["too small", "1 or more"]);
    broken("defaults:\n  calls_per_turn: 0\n", 2, "defaults.calls_per_turn", Error, &["too small", "1 or more"]);
    broken(
        "defaults:\n  tool_response_max_bytes: 9\n",
        2,
        "defaults.tool_response_max_bytes",
        Error,
        &["too small", "256 or more"],
    );
    broken("queues:\n  q: {concurrent: 1, per_minute: 0}\n", 2, "queues.q.per_minute", EntryDisabled, &["too small"]);
    broken("queues:\n  q: {concurrent: 0}\n", 2, "queues.q.concurrent", EntryDisabled, &["too small"]);
    broken(
        "queues:\n  q: {concurrent: 1, wait_timeout: 0ms}\n",
        2,
        "queues.q.wait_timeout",
        EntryDisabled,
        &["no time at all"],
    );
    broken("outputs:\n  max_bytes: 1\n", 2, "outputs.max_bytes", Error, &["65536 or more"]);
    broken(
        "mcpServers:\n  a:\n    command: x\n    timeout: 0\n",
        2,
        "mcp_servers.a.timeout",
        Warning,
        &["it is ignored"],
    );
    broken("defaults:\n  tool_timeout: 5s\n  toolTimeout: 6s\n", 3, "defaults.tool_timeout", Error, &["given twice"]);
}

#[test]
fn broken_policies_get_remedies() {
    broken(
        "policy:\n  profile: trustd\n",
        2,
        "policy.profile",
        Error,
        &["ask, client, workspace, trusted", "did you mean `trusted`"],
    );
    broken(
        "policy:\n  rules:\n    - effect: deny\n      tol: x\n",
        4,
        "policy.rules.0.tol",
        Error,
        &["did you mean `tool`"],
    );
    broken(
        "policy:\n  rules:\n    - effect: alow\n      tool: x\n",
        3,
        "policy.rules.0.effect",
        Error,
        &["did you mean `allow`"],
    );
    broken("policy:\n  rules:\n    - tool: x\n", 3, "policy.rules.0", Error, &["`effect` is missing"]);
}

#[test]
fn broken_mcp_servers_get_remedies() {
    broken(
        "mcpServers:\n  a:\n    command: [x]\n",
        3,
        "mcp_servers.a.command",
        EntryDisabled,
        &["expected text, found a list"],
    );
    broken("mcpServers:\n  a:\n    args: [x]\n", 2, "mcp_servers.a", EntryDisabled, &["neither `command` nor `url`"]);
    broken("mcpServers:\n  a:\n    command: x\n    url: http://h/mcp\n", 2, "mcp_servers.a", EntryDisabled, &["both"]);
    broken("mcpServers:\n  a:\n    url: h/mcp\n", 2, "mcp_servers.a.url", EntryDisabled, &["not an address"]);
    broken(
        "mcpServers:\n  a:\n    type: ws\n    url: http://h/ws\n",
        2,
        "mcp_servers.a.url",
        EntryDisabled,
        &["ws://", "WebSocket"],
    );
    broken(
        "mcpServers:\n  a:\n    type: sse\n    url: wss://h/ws\n",
        2,
        "mcp_servers.a.type",
        EntryDisabled,
        &["`type: ws`"],
    );
    broken("mcpServers:\n  a:\n    url: ftp://h/x\n", 2, "mcp_servers.a.url", EntryDisabled, &["wss://"]);
    broken(
        "mcpServers:\n  a:\n    type: pipe\n    command: x\n",
        3,
        "mcp_servers.a.type",
        EntryDisabled,
        &["`pipe` is not one of stdio, http"],
    );
    broken("mcpServers:\n  a: x\n", 2, "mcp_servers.a", EntryDisabled, &["expected a mapping, found text"]);
    broken(
        "mcpServers:\n  a:\n    command: x\n    env:\n      TOKEN: ${NO_SUCH_VARIABLE}\n",
        2,
        "mcp_servers.a.env.TOKEN",
        EntryDisabled,
        &["NO_SUCH_VARIABLE is not set", "${NO_SUCH_VARIABLE:-default}"],
    );
    broken(
        "mcpServers:\n  a:\n    command: x\n    queue: slow\n",
        2,
        "mcp_servers.a.queue",
        Error,
        &["no queue called `slow`"],
    );
    broken(
        "mcpServers:\n  a:\n    command: x\n    comand: y\n",
        4,
        "mcp_servers.a.comand",
        Warning,
        &["did you mean `command`"],
    );
    broken(
        "mcpServers:\n  a:\n    command: x\n    autoApprove: [rm]\n",
        2,
        "mcp_servers.a.auto_approve",
        Warning,
        &["rm", "not applied"],
    );
    broken("mcpServers:\n  memory:\n    command: x\n", 2, "mcp_servers.memory", Warning, &["reserved", "mcp-memory__"]);
}

#[test]
fn broken_rest_tools_get_remedies() {
    broken("restTools:\n  a:\n    description: x\n", 2, "rest_tools.a", EntryDisabled, &["`url` is missing"]);
    broken(
        "restTools:\n  A B:\n    description: x\n    url: http://h\n",
        2,
        "rest_tools.A B",
        EntryDisabled,
        &["legal name"],
    );
    broken(
        "restTools:\n  a:\n    description: x\n    url: https://h/${parameters.id}\n    parameters: {type: object, properties: {}}\n",
        4,
        "rest_tools.a.url",
        EntryDisabled,
        &["`id`", "does not declare"],
    );
    broken(
        "restTools:\n  a:\n    description: x\n    url: https://h/${parameters.city}?d=${parameters.days}&c=${parameters.city}\n",
        2,
        "rest_tools.a",
        EntryDisabled,
        &["`parameters` is missing: it must describe city, days"],
    );
}

#[test]
fn broken_server_settings_and_views_get_remedies() {
    broken("cluster:\n  a: x\n", 1, "cluster", Warning, &["not supported by this version"]);
    broken("server:\n  token: ${NO_SUCH_VARIABLE}\n", 2, "server.token", Error, &["NO_SUCH_VARIABLE"]);
    let tokens = |token: &str| format!("server:\n  tokens:\n    ci: {{token: '{token}'}}\n");
    broken(&tokens("${NO_SUCH_VARIABLE}"), 2, "server.tokens.ci.token", Error, &["NO_SUCH_VARIABLE"]);
    broken(&tokens(""), 2, "server.tokens.ci.token", Error, &["it is empty"]);
    let owner = "server:\n  tokens:\n    owner: {token: x}\n";
    broken(owner, 2, "server.tokens.owner", Error, &["the name is the owner's", "another name"]);
    broken("views:\n  A b: {}\n", 2, "views.A b", Error, &["not a name for an address"]);
    let clash = "views:\n  a: {}\nmcpServers:\n  a: {command: x}\n";
    broken(clash, 2, "views.a", Error, &["the server `a` has this name", "another name"]);
    for (source, reported) in [
        ("openapi:\n  a: {document: a.yaml}\n", "the OpenAPI document `a` has this name"),
        (
            "catalogues:\n  a: {url: 'https://c.test/a.json', keys: ['ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=']}\n",
            "the catalogue `a` has this name",
        ),
    ] {
        broken(&format!("views:\n  a: {{}}\n{source}"), 2, "views.a", Error, &[reported]);
    }
    let reach = "server:\n  tokens:\n    ci: {token: t, views: [smal, small, git, builtin]}\nviews:\n  small: {}\nmcpServers:\n  git: {command: x}\n";
    broken(reach, 2, "server.tokens.ci.views", Warning, &["no view or source `smal`", "did you mean `small`?"]);
    broken("views:\n  builtin: {}\n", 2, "views.builtin", Error, &["built-in tools has this name"]);
    let rest = "views:\n  rest: {}\nrestTools:\n  a: {description: x, url: 'http://h'}\n";
    broken(rest, 2, "views.rest", Error, &["REST tools has this name"]);
    broken("views:\n  a: {expose: all}\n", 2, "views.a.expose", Error, &["direct, search"]);
    broken("server:\n  http: localhost\n", 2, "server.http", Error, &["not an address and port", "127.0.0.1:7117"]);
    broken("server:\n  max_tool_name: 99\n", 2, "server.max_tool_name", Error, &["too large", "64 or less"]);
    broken(
        "defaults:\n  builtins: true\n  builtins: false\n",
        3,
        "",
        Error,
        &["`builtins` is written twice; keep one"],
    );
    broken("defaults: [\n", 1, "", Error, &["not valid YAML"]);
    broken("- a\n- b\n", 1, "", Error, &["expected a mapping, found a list"]);
}
