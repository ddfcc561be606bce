//! JSON files and notebooks: one place is changed, and every other byte stays.

use serde_json::{Value, json};
use toolwright_core::error::ErrorKind;

use crate::files::workspace::Workspace;

const FAILED: ErrorKind = ErrorKind::ExecutionError;

const PACKAGE: &str =
    "{\n    \"name\": \"x\",\n    \"scripts\": {\"test\": \"a\",  \"build\": \"b\"},\n    \"version\": 1.10\n}";

#[tokio::test]
async fn values_are_read_as_they_are_written() {
    let ws = Workspace::new();
    ws.put("p.json", PACKAGE);
    for (pointer, expect) in [
        ("", PACKAGE),
        ("/scripts", "{\"test\": \"a\",  \"build\": \"b\"}"),
        ("scripts.build", "\"b\""),
        ("version", "1.10"),
    ] {
        assert_eq!(ws.ok("fs:json_read", json!({"path": "p.json", "pointer": pointer})).await, expect);
    }
    let words = ["no member `script`", "did you mean `scripts`"];
    ws.fails("fs:json_read", json!({"path": "p.json", "pointer": "/script"}), FAILED, &words).await;
    ws.put("bad.json", "{");
    ws.fails("fs:json_read", json!({"path": "bad.json"}), FAILED, &["no JSON"]).await;
}

#[tokio::test]
async fn values_are_written_in_place() {
    let ws = Workspace::new();
    ws.put("p.json", PACKAGE);
    let set = json!({"path": "p.json", "pointer": "/scripts/test", "value": "c"});
    ws.fails("fs:json_write", set.clone(), FAILED, &["has not read it"]).await;
    ws.ok("fs:json_read", json!({"path": "p.json", "pointer": "/name"})).await;
    let text = ws.ok("fs:json_write", set.clone()).await;
    let diff = "-    \"scripts\": {\"test\": \"a\",  \"build\": \"b\"},\n+    \"scripts\": {\"test\": \"c\",  \"build\": \"b\"},\n";
    assert!(text.starts_with("set /scripts/test in p.json\n--- p.json\n") && text.contains(diff), "{text}");
    assert_eq!(ws.get("p.json"), PACKAGE.replace("\"a\"", "\"c\""));
    assert!(ws.ok("fs:json_write", set).await.contains("it is so already"));
    ws.ok("fs:json_write", json!({"path": "p.json", "pointer": "/scripts", "op": "remove"})).await;
    assert_eq!(ws.get("p.json"), "{\n    \"name\": \"x\",\n    \"version\": 1.10\n}");
    ws.fails("fs:json_write", json!({"path": "p.json", "pointer": "/a"}), FAILED, &["`value` is missing"]).await;
    ws.fails("fs:json_write", json!({"path": "new.json", "value": 1}), FAILED, &["does not exist"]).await;
    let large: Value = serde_json::from_str("[{\"n\": 12345678901234567890123}]").expect("json");
    let set = json!({"path": "p.json", "pointer": "/a", "value": large});
    ws.fails("fs:json_write", set, FAILED, &["1.2345678901234568e", "pass it as text"]).await;
    ws.ok("fs:json_write", json!({"path": "p.json", "pointer": "/version", "value": u64::MAX})).await;
    assert!(ws.get("p.json").contains("18446744073709551615"));
}

#[tokio::test]
async fn schemas_refuse_what_would_break_them() {
    let ws = Workspace::new();
    let schema = json!({"properties": {"port": {"type": "integer"}, "old": {"type": "string"}}});
    ws.put("schemas/s.json", schema.to_string());
    ws.put("c.json", "{\"port\": 1, \"old\": 2}");
    ws.put("d.json", "{\"$schema\": \"schemas/s.json\", \"port\": 1}");
    for file in ["c.json", "d.json"] {
        ws.ok("fs:read", json!({"path": file})).await;
        let mut set = json!({"path": file, "pointer": "/port", "value": "x"});
        if file == "c.json" {
            set["schema"] = "schemas/s.json".into();
        }
        ws.fails("fs:json_write", set.clone(), FAILED, &["schemas/s.json", "`/port`", "integer"]).await;
        set["value"] = json!(2);
        // What was broken before is not in the way.
        ws.ok("fs:json_write", set).await;
    }
    assert_eq!(ws.get("c.json"), "{\"port\": 2, \"old\": 2}");
}

/// As Jupyter writes it: one space a level, names in order.
const NOTEBOOK: &str = r##"{
 "cells": [
  {
   "cell_type": "markdown",
   "id": "aaa",
   "metadata": {},
   "source": [
    "# Title\n",
    "text"
   ]
  },
  {
   "cell_type": "code",
   "execution_count": 3,
   "id": "bbb",
   "metadata": {"x":  1},
   "outputs": [
    {
     "name": "stdout",
     "output_type": "stream",
     "text": [
      "1\n"
     ]
    }
   ],
   "source": [
    "print(1)"
   ]
  }
 ],
 "metadata": {},
 "nbformat": 4,
 "nbformat_minor": 5
}
"##;

async fn notebook(text: &str) -> Workspace {
    let ws = Workspace::new();
    ws.put("n.ipynb", text);
    ws.ok("fs:notebook_read", json!({"path": "n.ipynb"})).await;
    ws
}

#[tokio::test]
async fn notebooks_are_read_by_cell() {
    let ws = notebook(NOTEBOOK).await;
    let all = "2 cells, nbformat 4.5\n\n[0] markdown id=aaa\n# Title\ntext\n\n[1] code id=bbb run=3\nprint(1)\n--- stream\n1\n";
    assert_eq!(ws.ok("fs:notebook_read", json!({"path": "n.ipynb"})).await, all);
    for cell in ["bbb", "1"] {
        let one = ws.ok("fs:notebook_read", json!({"path": "n.ipynb", "cell": cell, "outputs": false})).await;
        assert_eq!(one, "2 cells, nbformat 4.5\n\n[1] code id=bbb run=3\nprint(1)\n");
    }
    ws.fails("fs:notebook_read", json!({"path": "n.ipynb", "cell": "2"}), FAILED, &["no cell `2`", "it has 2"]).await;
}

#[tokio::test]
async fn cells_are_edited_in_place() {
    let outputs = &NOTEBOOK[NOTEBOOK.find("[\n    {\n     \"name\"").expect("there")
        ..NOTEBOOK.find(",\n   \"source\": [\n    \"print").expect("there")];
    let cleared = NOTEBOOK.replace("\"execution_count\": 3", "\"execution_count\": null").replace(outputs, "[]");
    let second = "  {\n   \"cell_type\": \"code\"";
    let new = |kind: &str, id: &str, rest: &str| {
        let count = if kind == "code" { "\n   \"execution_count\": null," } else { "" };
        let outputs = if kind == "code" { "\n   \"outputs\": []," } else { "" };
        format!(
            "  {{\n   \"cell_type\": \"{kind}\",{count}{id}\n   \"metadata\": {{}},{outputs}\n   \"source\": {rest}\n  }},\n{second}"
        )
    };
    for (edit, expect) in [
        (
            json!({"cell": "bbb", "source": "x = 2\nprint(x)"}),
            cleared.replace("\"print(1)\"", "\"x = 2\\n\",\n    \"print(x)\""),
        ),
        (json!({"cell": "0", "source": "# Other"}), NOTEBOOK.replace("\"# Title\\n\",\n    \"text\"", "\"# Other\"")),
        (
            json!({"cell": "bbb", "cell_type": "raw"}),
            NOTEBOOK
                .replace("\"cell_type\": \"code\"", "\"cell_type\": \"raw\"")
                .replace("   \"execution_count\": 3,\n", "")
                .replace(&format!("   \"outputs\": {outputs},\n"), ""),
        ),
        (
            json!({"cell": "aaa", "cell_type": "code"}),
            NOTEBOOK
                .replace("\"cell_type\": \"markdown\",", "\"cell_type\": \"code\",\n   \"execution_count\": null,")
                .replacen("\"metadata\": {},", "\"metadata\": {},\n   \"outputs\": [],", 1),
        ),
        (json!({"op": "delete", "cell": "aaa"}), {
            let end = NOTEBOOK.find(second).expect("there");
            format!("{{\n \"cells\": [\n{}", &NOTEBOOK[end..])
        }),
    ] {
        let ws = notebook(NOTEBOOK).await;
        let mut edit = edit;
        edit["path"] = "n.ipynb".into();
        ws.ok("fs:notebook_edit", edit.clone()).await;
        assert_eq!(ws.get("n.ipynb"), expect, "{edit}");
    }
    for minor in ["5", "4"] {
        let text = NOTEBOOK.replace("\"nbformat_minor\": 5", &format!("\"nbformat_minor\": {minor}"));
        let ws = notebook(&text).await;
        let insert = json!({"path": "n.ipynb", "op": "insert", "cell": "0", "source": "y = 1"});
        let said = ws.ok("fs:notebook_edit", insert).await;
        let after: Value = serde_json::from_str(&ws.get("n.ipynb")).expect("json");
        let id = after["cells"][1]["id"].as_str().map(str::to_owned);
        assert_eq!(id.is_some(), minor == "5", "{said}");
        let id = id.map(|id| format!("\n   \"id\": \"{id}\",")).unwrap_or_default();
        assert_eq!(ws.get("n.ipynb"), text.replace(second, &new("code", &id, "[\n    \"y = 1\"\n   ]")));
    }
}

#[tokio::test]
async fn new_cells_have_ids_of_their_own() {
    let ws = notebook(NOTEBOOK).await;
    for _ in 0..5 {
        let insert = json!({"path": "n.ipynb", "op": "insert", "source": "", "cell_type": "markdown"});
        ws.ok("fs:notebook_edit", insert).await;
    }
    let after: Value = serde_json::from_str(&ws.get("n.ipynb")).expect("json");
    let cells = after["cells"].as_array().expect("cells");
    let ids: std::collections::HashSet<_> = cells.iter().filter_map(|cell| cell["id"].as_str()).collect();
    assert_eq!((cells.len(), ids.len()), (7, 7));
    let twice = notebook(&NOTEBOOK.replace("\"bbb\"", "\"aaa\"")).await;
    let words = ["cells 0 and 1 both have the id `aaa`", "index"];
    twice.fails("fs:notebook_edit", json!({"path": "n.ipynb", "cell": "aaa", "source": ""}), FAILED, &words).await;
    let said = twice.ok("fs:notebook_edit", json!({"path": "n.ipynb", "cell": "0", "source": "# Title\ntext!"})).await;
    let after = twice.get("n.ipynb");
    let parted: Value = serde_json::from_str(&after).expect("json");
    let id = parted["cells"][1]["id"].as_str().expect("id");
    assert!(id != "aaa" && said.contains(&format!("gave cell 1 the id {id}")), "{said}");
    assert_eq!(after, NOTEBOOK.replace("\"bbb\"", &format!("\"{id}\"")).replace("\"text\"\n", "\"text!\"\n"));
    let old = Workspace::new();
    old.put("n.ipynb", "{\"nbformat\": 3, \"worksheets\": []}");
    old.fails("fs:notebook_read", json!({"path": "n.ipynb"}), FAILED, &["nbformat 3", "nbconvert"]).await;
}
