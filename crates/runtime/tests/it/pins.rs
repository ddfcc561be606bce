//! Foreign definitions in the live catalogue, by what is pinned of them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolwright_core::catalogue::{ProviderKind, RegisteredTool, ToolOverride, foreign_ids};
use toolwright_core::context::NoRedaction;
use toolwright_core::pins::{FirstUse, OnDrift, PinConfig, PinSource, PinUpdate};
use toolwright_core::store::{PinDecision, PinStore as _, PinWrite};
use toolwright_core::{ContentHash, Effects, Event, ToolDefinition, ToolId};
use toolwright_runtime::{Catalogue, Pins, SqliteStore};
use toolwright_testkit::{FakeEvents, FakeList, FakeProvider};

/// A source that has listed `cached` before, and lists `tools`.
fn source(
    defined_in: &'static str,
    cached: Vec<Arc<RegisteredTool>>,
    tools: Vec<Arc<RegisteredTool>>,
) -> Arc<FakeProvider> {
    let source = FakeProvider::new("s", ProviderKind::Mcp, tools);
    Arc::new(source.with(|source| (source.defined_in, source.cached) = (defined_in, Some(cached))))
}

/// The notices since the last time, as tool and whether it is withheld.
fn notices(heard: &FakeEvents) -> Vec<(String, bool)> {
    let notice = |event| match event {
        Event::PinNotice { raw_name, withheld, .. } => Some((raw_name, withheld)),
        _ => None,
    };
    heard.seen().drain(..).filter_map(notice).collect()
}

fn tool(name: &str, description: &str) -> Arc<RegisteredTool> {
    RegisteredTool::foreign(definition(name, description), name)
}

fn definition(name: &str, description: &str) -> ToolDefinition {
    let id = ToolId::foreign("s", name).expect("id");
    ToolDefinition { effects: Effects::READ, ..ToolDefinition::new(id, description, Some(json!({"type": "object"}))) }
}

/// A process: a catalogue with one source, on the store of a folder.
struct Process {
    catalogue: Arc<Catalogue>,
    source: Arc<FakeProvider>,
    store: Arc<SqliteStore>,
    pins: Arc<Pins>,
    heard: Arc<FakeEvents>,
}

impl Process {
    async fn start(dir: &Path, terms: PinConfig, cached: Vec<Arc<RegisteredTool>>) -> Self {
        Self::of(dir, terms, cached, "").await
    }

    /// One whose source is defined there.
    async fn of(dir: &Path, terms: PinConfig, cached: Vec<Arc<RegisteredTool>>, defined_in: &'static str) -> Self {
        let (store, heard) = (SqliteStore::open(dir).expect("store"), Arc::new(FakeEvents::default()));
        let catalogue = Catalogue::new(Arc::clone(&heard) as _, Arc::new(NoRedaction), Duration::from_secs(5));
        let pins = Pins::new(Arc::clone(&store) as _, terms);
        catalogue.keep_pins(Arc::clone(&pins));
        let source = source(defined_in, cached, Vec::new());
        catalogue.add_provider(Arc::clone(&source) as _).await.expect("added");
        Self { catalogue, source, store, pins, heard }
    }

    async fn list(&self, tools: Vec<Arc<RegisteredTool>>) {
        self.source.lists(FakeList::Tools(tools));
        self.catalogue.refresh("s").await;
    }

    fn offered(&self) -> Vec<String> {
        self.catalogue.snapshot().list().iter().map(|entry| entry.tool.raw_name().to_owned()).collect()
    }

    async fn decide(&self, tool: &str, decision: PinDecision) {
        assert!(self.store.decide_pin(&PinSource::of(&*self.source), tool, decision, "me").await.expect("decided"));
        self.catalogue.recheck_pins().await;
    }
}

#[tokio::test]
async fn a_changed_definition_waits_for_approval() {
    let dir = tempfile::tempdir().expect("dir");
    let here = Process::start(dir.path(), PinConfig::default(), Vec::new()).await;
    here.list(vec![tool("a", "Reads."), tool("B.c", "Writes."), tool("d", "Stays.")]).await;
    assert_eq!(here.offered(), ["a", "B.c", "d"], "the first use pins silently");
    assert!(notices(&here.heard).is_empty() && here.catalogue.snapshot().issues().is_empty());

    let drifted = || vec![tool("a", "Reads."), tool("B.c", "Writes and sends."), tool("d", "Stays.")];
    here.list(drifted()).await;
    assert_eq!(here.offered(), ["a", "d"]);
    assert_eq!(notices(&here.heard), [("B.c".to_owned(), true)]);
    for written in ["s__b_c", "s__B_c", "s:b_c@0.0.0"] {
        let why = here.catalogue.snapshot().why_missing(written).expect("a reason");
        for part in ["withheld", "reads differently: [-Writes.-]{+Writes and sends.+}", "toolwright pins approve s:b_c"]
        {
            assert!(why.contains(part), "{written}: {why}");
        }
    }
    assert!(here.catalogue.snapshot().issues()[0].message.contains("pins diff s:b_c"));
    here.list(drifted()).await;
    assert!(notices(&here.heard).is_empty(), "it is told once");

    // Another process sees the same at once, from its cached list, and may approve.
    let there = Process::start(dir.path(), PinConfig::default(), drifted()).await;
    assert_eq!((there.offered(), notices(&there.heard).len()), (vec!["a".to_owned(), "d".to_owned()], 1));
    let before = here.pins.decisions().await;
    there.decide("B.c", PinDecision::Approve(None)).await;
    assert_eq!(there.offered(), ["a", "B.c", "d"], "in the order of its source");
    assert_ne!(here.pins.decisions().await, before, "others can tell");
    here.catalogue.recheck_pins().await;
    assert_eq!(here.offered(), ["a", "B.c", "d"]);
    assert!(here.catalogue.snapshot().issues().is_empty());

    here.decide("a", PinDecision::Revoke).await;
    assert_eq!(here.offered(), ["B.c", "d"]);
    assert!(here.catalogue.snapshot().why_missing("s__a").expect("why").contains("nobody has approved"));
    here.decide("a", PinDecision::Forget).await;
    assert_eq!(here.offered(), ["a", "B.c", "d"], "as if it had never been seen");
}

#[tokio::test]
async fn an_equivalent_definition_matches_its_pin() {
    let dir = tempfile::tempdir().expect("dir");
    let here = Process::start(dir.path(), PinConfig::default(), Vec::new()).await;
    let with = |required: [&str; 2]| {
        let schema = json!({"type": "object", "properties": {"x": {}, "y": {}}, "required": required});
        let definition = ToolDefinition { parameters: Some(schema), ..definition("a", "Reads.") };
        vec![RegisteredTool::foreign(definition, "a")]
    };
    here.list(with(["x", "y"])).await;
    here.list(vec![tool("a", "Other.")]).await;
    assert!(here.offered().is_empty());
    here.list(with(["y", "x"])).await;
    assert_eq!(here.offered(), ["a"]);
    let pins = here.store.pins(None).await.expect("pins");
    assert_eq!((pins[0].state(), notices(&here.heard).len()), ("pinned", 1), "nothing waits any more");
}

#[tokio::test]
async fn revisions_of_a_tool_share_one_pin() {
    let dir = tempfile::tempdir().expect("dir");
    let here = Process::start(dir.path(), PinConfig::default(), Vec::new()).await;
    let listed = |name: &str, support: Option<&str>| {
        let mut definition = definition(name, "Reads.");
        if let Some(support) = support {
            definition.meta.insert("mcp".into(), json!({"execution": {"taskSupport": support}}));
        }
        RegisteredTool::foreign(definition, name)
    };
    // What is pinned of `old` says how its calls are carried, as contracts once did.
    let mut contract = definition("old", "Reads.").contract();
    contract["listed"] = json!({"execution": {"taskSupport": "forbidden"}});
    let (id, hash) = (ToolId::foreign("s", "old").expect("id"), ContentHash::of_value(&contract));
    let note = PinWrite { tool: "old".into(), renamed: None, id, note: PinUpdate::Pin, hash, contract };
    here.store.note_pins(&PinSource::unscoped("s"), vec![note]).await.expect("pinned");
    for support in [Some("forbidden"), None, Some("optional")] {
        here.list(vec![listed("old", support), listed("new", support)]).await;
        assert_eq!(here.offered(), ["old", "new"], "{support:?}");
        assert!(notices(&here.heard).is_empty(), "{support:?}");
    }
    let other = RegisteredTool::foreign(definition("old", "Reads and sends."), "old");
    here.list(vec![other, listed("new", None)]).await;
    assert_eq!(here.offered(), ["new"]);
}

/// As a server lists them, with the ids that they get beside each other.
fn listed(tools: &[(&str, &str)]) -> Vec<Arc<RegisteredTool>> {
    let names: Vec<&str> = tools.iter().map(|(name, _)| *name).collect();
    let ids = foreign_ids("s", &names).expect("ids");
    let tool = |(id, (name, text)): (ToolId, &(&str, &str))| {
        RegisteredTool::foreign(ToolDefinition { id, ..definition(name, text) }, *name)
    };
    ids.into_iter().zip(tools).map(tool).collect()
}

#[tokio::test]
async fn a_renamed_pinned_tool_counts_as_changed() {
    let dir = tempfile::tempdir().expect("dir");
    let here = Process::start(dir.path(), PinConfig::default(), Vec::new()).await;
    let source = PinSource::unscoped("s");
    here.list(listed(&[("get", "Reads."), ("a.b", "Reads.")])).await;
    // Not even what says the same is the same: the call is of something else there.
    for text in ["Reads.", "Sends all keys."] {
        here.list(listed(&[("Get", text), ("a b", "Reads.")])).await;
        assert!(here.offered().is_empty(), "{text}");
        let why = here.catalogue.snapshot().why_missing("s__get").expect("a reason");
        assert!(why.contains("name is \"Get\" at its source; it was \"get\""), "{why}");
        let pins = here.store.pins(Some(&source)).await.expect("pins");
        let states: Vec<_> = pins.iter().map(|pin| (pin.tool.as_str(), pin.waiting_name(), pin.state())).collect();
        assert_eq!(states, [("a.b", "a b", "changed"), ("get", "Get", "changed")]);
    }
    assert_eq!(notices(&here.heard).len(), 3);
    here.list(listed(&[("Get", "Sends all keys."), ("a b", "Reads.")])).await;
    assert!(notices(&here.heard).is_empty(), "it is told once");
    // It goes back, and nothing waits any more.
    here.list(listed(&[("get", "Reads.")])).await;
    assert_eq!(here.offered(), ["get"]);
    assert_eq!(here.store.pins(Some(&source)).await.expect("pins")[1].state(), "pinned");

    here.list(listed(&[("Get", "Sends.")])).await;
    here.decide("get", PinDecision::Approve(None)).await;
    assert_eq!(here.offered(), ["Get"]);
    let pins = here.store.pins(Some(&source)).await.expect("pins");
    let names: Vec<_> = pins.iter().map(|pin| (pin.tool.as_str(), pin.state())).collect();
    assert_eq!(names, [("Get", "pinned"), ("a.b", "changed")], "it has the place of the old pin");
    here.list(listed(&[("get", "Reads.")])).await;
    assert!(here.offered().is_empty(), "the old one is a change now");
    here.decide("Get", PinDecision::Revoke).await;
    here.list(listed(&[("GET", "Sends.")])).await;
    assert!(here.offered().is_empty(), "no name lets in what was revoked");
}

#[tokio::test]
async fn names_listed_at_once_have_separate_pins() {
    let dir = tempfile::tempdir().expect("dir");
    let here = Process::start(dir.path(), PinConfig::default(), Vec::new()).await;
    let both = || listed(&[("get", "Reads."), ("Get", "Writes.")]);
    for _ in 0..2 {
        here.list(both()).await;
        assert_eq!(here.offered(), ["get", "Get"]);
    }
    // Alone, each would have the id that none of them had.
    for alone in [("Get", "Writes."), ("get", "Reads."), ("GET", "Writes.")] {
        here.list(listed(&[alone])).await;
        assert!(here.offered().is_empty(), "{alone:?}");
    }
    here.list(both()).await;
    assert_eq!(here.offered(), ["get", "Get"]);
    assert!(here.store.pins(None).await.expect("pins").iter().all(|pin| pin.state() == "pinned"));
}

#[tokio::test]
async fn the_configuration_decides_first_use_and_drift() {
    let dir = tempfile::tempdir().expect("dir");
    let ask = PinConfig { first_use: FirstUse::Ask, drift: OnDrift::Warn };
    let here = Process::start(dir.path(), ask, Vec::new()).await;
    let own = RegisteredTool::own(ToolDefinition { ..definition("own", "Ours.") }).expect("registers");
    here.list(vec![tool("a", "Reads."), own]).await;
    assert_eq!(here.offered(), ["own"], "our own tools need no pin");
    assert_eq!(notices(&here.heard), [("a".to_owned(), true)]);
    here.decide("a", PinDecision::Approve(None)).await;
    here.list(vec![tool("a", "Reads more.")]).await;
    assert_eq!((here.offered(), notices(&here.heard)), (vec!["a".to_owned()], vec![("a".to_owned(), false)]));
    assert!(here.catalogue.snapshot().issues()[0].message.contains("`a` is changed"));
    assert!(here.pins.set_config(PinConfig::default()));
    here.catalogue.recheck_pins().await;
    assert!(here.offered().is_empty(), "other terms count at once");
}

#[tokio::test]
async fn a_display_name_changes_neither_id_nor_pin() {
    let dir = tempfile::tempdir().expect("dir");
    let here = Process::start(dir.path(), PinConfig::default(), Vec::new()).await;
    here.list(vec![tool("a", "Reads.")]).await;
    let shown = ToolOverride { name: Some("read_it".into()), description: Some("Ours.".into()), ..Default::default() };
    here.list(vec![RegisteredTool::foreign_with_overrides(definition("a", "Reads."), "a", &shown)]).await;
    let snapshot = here.catalogue.snapshot();
    let entry = &snapshot.list()[0];
    assert_eq!((entry.wire_name.as_str(), entry.id().as_str()), ("s__read_it", "s:a@0.0.0"));
    assert_eq!(entry.definition().description, "Ours.");
    here.list(vec![RegisteredTool::foreign_with_overrides(definition("a", "Deletes."), "a", &shown)]).await;
    assert!(here.offered().is_empty(), "what is shown does not hide what changed");
}

#[tokio::test]
async fn an_unreadable_store_withholds_foreign_tools() {
    let dir = tempfile::tempdir().expect("dir");
    let here = Process::start(dir.path(), PinConfig::default(), Vec::new()).await;
    let many = |text: &str| (0..100).map(|n| tool(&format!("t{n}"), text)).collect::<Vec<_>>();
    here.list(many("Reads.")).await;
    here.list(many("Writes.")).await;
    assert_eq!((here.offered().len(), notices(&here.heard).len()), (0, 32));
    let snapshot = here.catalogue.snapshot();
    assert_eq!(snapshot.issues().len(), 1);
    assert!(snapshot.issues()[0].message.contains("100 definitions"), "{}", snapshot.issues()[0].message);

    let broken = tempfile::tempdir().expect("dir");
    std::fs::create_dir(broken.path().join("toolwright.sqlite3")).expect("in the way");
    let here = Process::start(broken.path(), PinConfig::default(), Vec::new()).await;
    here.list(vec![tool("a", "Reads.")]).await;
    assert!(here.offered().is_empty());
    assert!(here.catalogue.snapshot().why_missing("s__a").expect("why").contains("cannot be read"));
}

#[tokio::test]
async fn sources_of_different_files_have_separate_pins() {
    let dir = tempfile::tempdir().expect("dir");
    let (reads, writes) = (|| vec![tool("a", "Reads.")], || vec![tool("a", "Writes.")]);
    let one = Process::of(dir.path(), PinConfig::default(), Vec::new(), "/one/toolwright.yaml").await;
    let other = Process::of(dir.path(), PinConfig::default(), Vec::new(), "/other/toolwright.yaml").await;
    one.list(reads()).await;
    other.list(writes()).await;
    assert_eq!((one.offered().len(), other.offered().len()), (1, 1), "neither is a change of the other");
    one.list(writes()).await;
    assert!(one.offered().is_empty(), "what the other pins lets nothing in here");
    one.decide("a", PinDecision::Approve(None)).await;
    other.catalogue.recheck_pins().await;
    assert_eq!((one.offered().len(), other.offered().len()), (1, 1));
    other.decide("a", PinDecision::Revoke).await;
    one.catalogue.recheck_pins().await;
    assert_eq!((one.offered().len(), other.offered().len()), (1, 0));
    // The same file, in another process.
    let again = Process::of(dir.path(), PinConfig::default(), writes(), "/other/toolwright.yaml").await;
    assert!(again.offered().is_empty(), "what was revoked stays so");
}

#[tokio::test]
async fn a_replaced_source_is_not_pinned_as_another() {
    let dir = tempfile::tempdir().expect("dir");
    let here = Process::of(dir.path(), PinConfig::default(), Vec::new(), "/project/toolwright.yaml").await;
    here.list(vec![tool("a", "Reads.")]).await;
    here.list(vec![tool("a", "Reads and sends.")]).await;
    let defined_in = "/home/toolwright.yaml";
    let other = source(defined_in, Vec::new(), vec![tool("a", "Reads.")]);
    here.catalogue.put_provider(Arc::clone(&other) as _).await;
    assert!(
        here.offered().is_empty() && here.store.pins(Some(&PinSource::of(&*other))).await.expect("pins").is_empty()
    );
    here.catalogue.refresh("s").await;
    assert_eq!(here.offered(), ["a"]);
    // Another provider of the same entry goes on with what the one before it had.
    here.catalogue.put_provider(source(defined_in, Vec::new(), Vec::new())).await;
    assert_eq!(here.offered(), ["a"]);
}
