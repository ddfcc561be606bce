//! `init`, `add`, `remove`, `import`: what they write, and what they refuse.

use serde_json::{Value, json};

use crate::command_line::cli::{fails, json_of, ok, run, stderr};
use crate::support::Fixture;

#[test]
fn init_add_and_remove_keep_comments() {
    let fixture = Fixture::new();
    ok(&fixture, &["init"]);
    fails(&fixture, &["init"], 2, &["was not changed"]);
    let before = fixture.read("project/toolwright.yaml");
    ok(&fixture, &["add", "git", "--env", "A=1", "--", "uvx", "mcp-server-git", "-v"]);
    ok(&fixture, &["add", "tickets", "--url", "https://h/mcp", "--header", "Authorization: Bearer ${TICKETS}"]);
    let text = fixture.read("project/toolwright.yaml");
    assert!(text.contains("    args: [\"mcp-server-git\", \"-v\"]") && text.contains("Bearer ${TICKETS}"), "{text}");
    fails(&fixture, &["add", "git", "--", "x"], 2, &["there already"]);
    let shown: Value = serde_json::from_str(&ok(&fixture, &["config", "show"])).expect("json");
    assert_eq!(shown["mcp_servers"]["git"]["args"], json!(["mcp-server-git", "-v"]));
    ok(&fixture, &["remove", "git"]);
    ok(&fixture, &["remove", "tickets"]);
    assert_eq!(fixture.read("project/toolwright.yaml"), before);
    fails(&fixture, &["remove", "git"], 3, &["is called `git`", "toolwright.yaml"]);
}

#[test]
fn remove_takes_out_whatever_was_written() {
    let text = "mcpServers:\n  both: {command: x}\nopenapi:\n  # the shop\n  shop:\n    document: shop.json\nrestTools:\n  both:\n    description: x\n    url: https://h/x\n  issue:\n    description: x\n    url: https://h/x\ncatalogues:\n  acme:\n    url: https://h/x\n    keys: [k]\nllmTools:\n  word:\n    description: x\n    prompt: x\n";
    let fixture = Fixture::with(text);
    fails(&fixture, &["remove", "both"], 2, &["mcpServers.both or restTools.both"]);
    fails(&fixture, &["remove", "shopp"], 3, &["is called `shopp`", "did you mean `shop`?"]);
    for name in ["shop", "restTools.both", "acme", "word"] {
        ok(&fixture, &["remove", name]);
    }
    assert_eq!(
        fixture.read("project/toolwright.yaml"),
        "mcpServers:\n  both: {command: x}\nopenapi:\nrestTools:\n  issue:\n    description: x\n    url: https://h/x\ncatalogues:\nllmTools:\n"
    );
    ok(&fixture, &["remove", "issue"]);
}

#[test]
fn add_refuses_unusable_entries() {
    let fixture = Fixture::new();
    for (arguments, words) in [
        (&["add", "", "--", "x"][..], "not a name"),
        (&["add", "a\u{202e}b", "--", "x"], "not a name"),
        (&["add", "a\nb", "--", "x"], "not a name"),
        (&["add", "y", "--url", "notaurl"], "https://host/mcp"),
        (&["add", "y", "--url", "file:///etc/passwd"], "https://host/mcp"),
        (&["add", "y", "--", ""], "after `--`"),
        (&["add", "y"], "its address with --url"),
        (&["import", "mcp-json", "--prefix", "x"], "--prefix is for `import openapi`"),
    ] {
        fails(&fixture, arguments, 2, &[words]);
        assert!(!fixture.path("project/toolwright.yaml").exists(), "{arguments:?}");
    }
    ok(&fixture, &["add", "y", "--url", "${URL}"]);
}

#[test]
fn import_leaves_toolwright_itself_out() {
    let fixture = Fixture::with("server:\n  http: 127.0.0.1:9117\n");
    let file = fixture.write(
        "x.json",
        r#"{"mcpServers": {
            "a": {"command": "/opt/bin/toolwright", "args": ["serve", "--stdio"]},
            "b": {"type": "http", "url": "http://127.0.0.1:7117/mcp"},
            "c": {"type": "http", "url": "http://localhost:9117/mcp"},
            "d": {"type": "http", "url": "http://localhost:9118/mcp"}
        }}"#,
    );
    let output = run(&fixture, &["import", "claude-code", file.to_str().expect("path"), "--json"]);
    let imported = json_of(&output);
    assert_eq!(imported["servers"], json!({"d": {"url": "http://localhost:9118/mcp"}}));
    let notes: Vec<&str> = imported["notes"].as_array().expect("notes").iter().filter_map(Value::as_str).collect();
    let expect = ["a", "b", "c"].map(|name| format!("{name}: left out: it is Toolwright itself"));
    assert_eq!(notes, expect);
}

#[test]
fn import_shows_no_secret() {
    let fixture = Fixture::new();
    let file = fixture.write(
        "x.json",
        r#"{"mcpServers": {
            "a": {"command": "x", "args": ["--token", "tok-1111", "--header", "X-Any: head-1111"], "env": {"PLAIN": "env-1111"}},
            "b": {"url": "https://me:pw-1111@h/mcp?k=query-1111#frag-1111", "headers": {"X-Any": "head-2222"}}
        }}"#,
    );
    for extra in [&["--dry-run"][..], &["--json", "--dry-run"]] {
        let arguments = [&["import", "mcp-json", file.to_str().expect("path")][..], extra].concat();
        let output = run(&fixture, &arguments);
        let all = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert!(all.contains("[secret]") && !all.contains("-1111") && !all.contains("-2222"), "{all}");
    }
}

#[test]
fn import_previews_and_writes_with_secrets_masked() {
    let fixture = Fixture::with("# mine\nmcpServers:\n  filesystem:\n    command: x\n");
    let file = crate::support::data_file("claude_desktop_config.json");
    let file = file.to_str().expect("path");
    let preview = run(&fixture, &["import", "claude-desktop", file, "--dry-run"]);
    let stderr_text = stderr(&preview);
    assert!(
        stderr_text.contains("would add github")
            && stderr_text.contains("filesystem: left out")
            && !stderr_text.contains("ghp_literal"),
        "{stderr_text}"
    );
    assert_eq!(fixture.read("project/toolwright.yaml"), "# mine\nmcpServers:\n  filesystem:\n    command: x\n");
    let written = json_of(&run(&fixture, &["import", "claude-desktop", file, "--json"]));
    assert_eq!(
        (&written["written"], &written["servers"]["github"]["env"]["GITHUB_TOKEN"]),
        (&json!(true), &json!("${GITHUB_TOKEN}"))
    );
    let again = json_of(&run(&fixture, &["import", "claude-desktop", file, "--json"]));
    assert_eq!((&again["written"], &again["servers"]), (&json!(false), &json!({})));
    let text = fixture.read("project/toolwright.yaml");
    assert!(text.starts_with("# mine\n") && text.contains("GITHUB_TOKEN: \"${GITHUB_TOKEN}\""), "{text}");
    assert!(!text.contains("ghp_literal"), "{text}");
    fails(&fixture, &["import", "codex"], 2, &["config.toml"]);
}

#[test]
fn an_imported_secret_is_kept_apart_and_works() {
    let fixture = Fixture::new();
    let server = "import sys\nwhile line := sys.stdin.readline(): pass\n";
    fixture.write("project/server.py", server);
    let entry = json!({"command": "python3", "args": ["server.py"], "env": {"API_TOKEN": "tok-1111"}});
    let file = fixture.write("x.json", &json!({"mcpServers": {"a": entry}}).to_string());
    let file = file.to_str().expect("path");
    let preview = stderr(&run(&fixture, &["import", "mcp-json", file, "--dry-run"]));
    assert!(preview.contains("API_TOKEN would be kept in") && !preview.contains("tok-1111"), "{preview}");
    assert!(!fixture.path("home/.config").exists());
    let written = json_of(&run(&fixture, &["import", "mcp-json", file, "--json"]));
    assert_eq!(written["secrets"]["variables"], json!(["API_TOKEN"]));
    let (kept, text) = ("home/.config/toolwright/secrets.env", fixture.read("project/toolwright.yaml"));
    assert!(text.contains("API_TOKEN: \"${API_TOKEN}\"") && !text.contains("tok-1111"), "{text}");
    assert!(fixture.read(kept).contains("API_TOKEN=tok-1111\n"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(fixture.path(kept)).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    // The configuration finds it, and a variable of the environment counts before it.
    assert!(!stderr(&run(&fixture, &["config", "show"])).contains("is not set"));
    // Another secret of that name has another.
    let other = entry.to_string().replace("tok-1111", "tok-2222");
    let file = fixture.write("y.json", &format!("{{\"mcpServers\": {{\"b\": {other}}}}}"));
    let written = json_of(&run(&fixture, &["import", "mcp-json", file.to_str().expect("path"), "--json"]));
    assert_eq!(written["secrets"]["variables"], json!(["API_TOKEN_2"]));
    let text = fixture.read(kept);
    assert!(text.contains("API_TOKEN=tok-1111\n") && text.contains("API_TOKEN_2=tok-2222\n"), "{text}");
}

#[test]
fn a_server_gets_the_secret_that_was_kept() {
    let fixture = Fixture::new();
    let script = "import os, pathlib\npathlib.Path('seen').write_text(os.environ.get('API_TOKEN', 'none'))\n";
    fixture.write("project/server.py", script);
    ok(&fixture, &["add", "a", "--env", "API_TOKEN=tok-3333", "--", "python3", "server.py"]);
    assert!(!fixture.read("project/toolwright.yaml").contains("tok-3333"));
    run(&fixture, &["--config", "toolwright.yaml", "tools", "ls"]);
    assert_eq!(fixture.read("project/seen"), "tok-3333");
}

#[test]
fn removing_a_server_removes_its_secret() {
    let fixture = Fixture::new();
    let add = |name: &str, more: &[&str]| {
        ok(
            &fixture,
            &[&["add", name, "--env", "API_TOKEN=tok-1", "--env", "OPENAI_API_KEY=tok-2"], more, &["--", "x"]].concat(),
        );
    };
    let kept = || fixture.read("home/.config/toolwright/secrets.env");
    add("a", &["--env", "OWN_TOKEN=tok-3"]);
    add("b", &[]);
    let stderr_text = stderr(&run(&fixture, &["remove", "a"]));
    assert!(stderr_text.contains("OWN_TOKEN are removed from") && !stderr_text.contains("API_TOKEN"), "{stderr_text}");
    assert!(kept().contains("API_TOKEN=tok-1\n") && !kept().contains("tok-3"), "{}", kept());
    // Another project names it too.
    fixture.write("other/toolwright.yaml", "mcpServers:\n  c: {command: x, env: {API_TOKEN: '${API_TOKEN}'}}\n");
    assert!(json_of(&run(&fixture, &["remove", "b", "--json"]))["secrets"].is_null());
    assert!(kept().contains("API_TOKEN=tok-1\n"));
    add("b", &[]);
    fixture.write("other/toolwright.yaml", "mcpServers: {}\n");
    let removed = json_of(&run(&fixture, &["remove", "b", "--json"]));
    // The key of a model counts without being named.
    assert_eq!(removed["secrets"]["variables"], json!(["API_TOKEN"]));
    assert!(kept().contains("OPENAI_API_KEY=tok-2\n") && !kept().contains("tok-1"), "{}", kept());
}

#[test]
fn secrets_in_a_repository_are_warned_of() {
    let fixture = Fixture::new();
    std::fs::create_dir_all(fixture.path("project/.git")).expect("folder");
    let add = ["add", "a", "--header", "Authorization: Bearer tok-1111", "--url", "https://h.example/mcp"];
    assert!(!stderr(&run(&fixture, &add)).contains("git repository"));
    let inline = [
        "add",
        "b",
        "--header",
        "Authorization: Bearer tok-1111",
        "--inline-secrets",
        "--url",
        "https://h.example/mcp",
    ];
    let stderr_text = stderr(&run(&fixture, &inline));
    assert!(stderr_text.contains("lies in the git repository") && !stderr_text.contains("tok-1111"), "{stderr_text}");
    let text = fixture.read("project/toolwright.yaml");
    assert!(text.contains("Bearer ${A_AUTHORIZATION}") && text.contains("Bearer tok-1111"), "{text}");
}

#[test]
fn the_users_own_configuration_is_written() {
    let fixture = Fixture::new();
    let file = fixture.write("x.json", r#"{"mcpServers": {"b": {"command": "y"}}}"#);
    ok(&fixture, &["add", "a", "--user", "--", "x"]);
    ok(&fixture, &["import", "mcp-json", file.to_str().expect("path"), "--user"]);
    let text = fixture.read("home/.config/toolwright/toolwright.yaml");
    assert!(text.contains("  a:\n    command: x\n") && text.contains("  b:\n    command: y\n"), "{text}");
    assert!(!fixture.path("project/toolwright.yaml").exists());
}

#[test]
fn import_openapi_previews_and_writes() {
    let fixture = Fixture::new();
    let operation = |id: &str, tag: &str| json!({"operationId": id, "tags": [tag], "responses": {}});
    let document = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.example"}], "paths": {
        "/orders": {"get": operation("orders/list", "orders"), "post": operation("orders/add", "orders")},
        "/{id}": {"get": operation("item", "items"), "trace": {}}}});
    fixture.write("project/my shop.json", &document.to_string());
    let command = ["import", "openapi", "my shop.json"];
    let preview = json_of(&run(&fixture, &[&command[..], &["--dry-run", "--json"]].concat()));
    let keys: Vec<&String> = preview.as_object().expect("object").keys().collect();
    assert_eq!((keys.len(), &preview["operations"]), (3, &json!(4)), "{keys:?}");
    assert_eq!(
        preview["imported"][0],
        json!({"id": "my-shop:orders_list@0.0.0", "wire_name": "my-shop__orders_list", "method": "GET", "path": "/orders"})
    );
    let refused = &preview["refused"][0];
    assert_eq!(
        (refused.as_object().map(serde_json::Map::len), &refused["operation"]),
        (Some(2), &json!("TRACE /{id}"))
    );
    assert!(refused["reason"].as_str().is_some_and(|reason| reason.contains("TRACE")), "{preview}");
    assert!(!fixture.path("project/toolwright.yaml").exists());
    let shown = ok(&fixture, &[&command[..], &["--dry-run", "--tag", "orders"]].concat());
    assert_eq!(shown, "my-shop__orders_list  GET /orders\nmy-shop__orders_add  POST /orders\n");

    let options = ["--prefix", "shop", "--tag", "orders", "--method", "get"];
    ok(&fixture, &[&command[..], &options].concat());
    let written = fixture.read("project/toolwright.yaml");
    assert_eq!(
        written,
        "openapi:\n  shop:\n    document: \"my shop.json\"\n    tags: [\"orders\"]\n    methods: [\"get\"]\n"
    );
    let listed: Value =
        serde_json::from_str(&ok(&fixture, &["tools", "ls", "--namespace", "shop", "--json"])).expect("json");
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["wire_name"]), (Some(1), &json!("shop__orders_list")));
    let again = ["`shop` is there already", "toolwright remove shop", "--prefix"];
    fails(&fixture, &[&command[..], &options].concat(), 2, &again);
    ok(&fixture, &["remove", "shop"]);
    ok(&fixture, &[&command[..], &options].concat());
    // A namespace that the configuration would leave the entry out for is refused, and nothing is written.
    fixture.write(
        "project/toolwright.yaml",
        "mcpServers:\n  git: {command: none}\nopenapi:\n  first: {document: my shop.json, prefix: second}\n",
    );
    for (prefix, why) in [
        ("git", "the namespace `git` is another's"),
        ("second", "the namespace `second` is another's"),
        ("fs", "the namespace `fs` is another's"),
        ("builtin", "the namespace `builtin` is another's"),
        ("Shop!", "Shop!"),
    ] {
        fails(&fixture, &[&command[..], &["--prefix", prefix]].concat(), 2, &[why, "--prefix"]);
    }
    assert!(!fixture.read("project/toolwright.yaml").contains("Shop"));
    fails(&fixture, &["import", "openapi"], 2, &["FILE|URL"]);
    fails(&fixture, &["import", "openapi", "none.json"], 2, &["none.json", "cannot be read"]);
    fails(&fixture, &["import", "openapi", "http://127.0.0.1:1/x.json"], 2, &["refused", "web.allowed_hosts"]);
}

#[test]
fn an_empty_import_fails_with_a_reason() {
    let fixture = Fixture::new();
    let operation = json!({"get": {"operationId": "orders", "tags": ["orders"], "responses": {}}});
    let version3 = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.example"}], "paths": {"/orders": operation}});
    fixture.write("project/3.json", &version3.to_string());
    fixture.write("project/empty.json", "{\"openapi\": \"3.1.0\", \"info\": {\"title\": \"x\", \"version\": \"1\"}}");
    for (arguments, words) in [
        (
            &["3.json", "--prefix", "a", "--tag", "ordrs"][..],
            "tags: `ordrs`: no operation of the document has such a tag; did you mean `orders`?",
        ),
        (
            &["3.json", "--prefix", "a", "--method", "gett"],
            "methods: `gett`: no operation of the document has such a method; did you mean `GET`?",
        ),
        (&["empty.json", "--prefix", "a"], "the document has no operations"),
    ] {
        for (more, code) in [(&[][..], 2), (&["--dry-run"], 0)] {
            let arguments = [&["import", "openapi"], arguments, more].concat();
            let output = run(&fixture, &arguments);
            let reported = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {reported}");
            assert!(reported.contains(words) && reported.contains("nothing to add"), "{arguments:?}: {reported}");
            let output = run(&fixture, &[&arguments[..], &["--json"]].concat());
            let answer = json_of(&output);
            assert_eq!((output.status.code(), &answer["imported"]), (Some(code), &json!([])), "{answer}");
            assert!(answer["operations"].is_number() && answer["refused"].is_array(), "{answer}");
            assert!(stderr(&output).contains(words) || words.contains("no operations"), "{}", stderr(&output));
        }
    }
    assert!(!fixture.path("project/toolwright.yaml").exists());
}

/// Tools of a document that is grouped are in namespaces of their own, which a process that has not listed does not know.
#[test]
fn grouped_operations_are_found_before_listing() {
    let fixture = Fixture::new();
    let operation = |id: &str, tag: &str| json!({"operationId": id, "tags": [tag], "responses": {}});
    let document = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "http://127.0.0.1:1"}],
        "paths": {"/orders": {"get": operation("list", "Orders"), "post": operation("add", "orders")}}});
    fixture.write("project/shop.json", &document.to_string());
    fixture.write(
        "project/toolwright.yaml",
        "openapi:\n  shop: {document: shop.json, group_by: tag, operations: {add: {enabled: false}}}\n  7z: {document: shop.json}\n",
    );
    for tool in ["shop-orders__list", "shop-orders:list@0.0.0", "_7z__list"] {
        let called = run(&fixture, &["call", tool, "{}"]);
        let stderr_text = stderr(&called);
        assert!(stderr_text.contains("127.0.0.1") && !stderr_text.contains("unknown_tool"), "{tool}: {stderr_text}");
    }
    fails(&fixture, &["call", "shop-orders__add", "{}"], 3, &["unknown_tool", "it is disabled"]);
}
