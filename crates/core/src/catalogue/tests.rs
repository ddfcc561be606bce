//! What the tests of this crate share: a fake provider, and lists of tools. The tests of the snapshot.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::json;

use crate::catalogue::context::ToolContext;
use crate::catalogue::snapshot::MAX_DERIVED;
use crate::catalogue::{
    CatalogueIssue, Health, Listing, PromptPart, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool,
    Snapshot, UnapprovedTool, WithheldTool,
};
use crate::definition::ToolDefinition;
use crate::error::ToolError;
use crate::identity::name_table::{NameMatch, Resolution};
use crate::identity::tool_id::ToolId;
use crate::output::outcome::ToolOutput;
use crate::policy::HintTrust;

/// A provider with a self-description. Other crates' tests use the one of testkit, which depends on this crate.
pub(crate) struct FakeProvider {
    pub(crate) name: String,
    pub(crate) kind: ProviderKind,
    pub(crate) says: Mutex<Option<String>>,
    pub(crate) part: fn(&ToolId) -> Option<PromptPart>,
}

impl FakeProvider {
    pub(crate) fn new(name: &str, kind: ProviderKind, says: Option<&str>) -> Self {
        Self { name: name.to_owned(), kind, says: Mutex::new(says.map(str::to_owned)), part: |_| None }
    }
}

#[async_trait]
impl Provider for FakeProvider {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> ProviderKind {
        self.kind
    }
    fn trust(&self) -> HintTrust {
        if self.kind == ProviderKind::Mcp { HintTrust::Foreign } else { HintTrust::Trusted }
    }
    fn instructions(&self) -> Option<String> {
        self.says.lock().expect("lock").clone()
    }
    fn prompt_part(&self, tool: &ToolId) -> Option<PromptPart> {
        (self.part)(tool)
    }
    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(Vec::new())
    }
    async fn call(&self, _call: ProviderCall<'_>, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::default())
    }
    fn health(&self) -> Health {
        Health::Ready
    }
}

pub(crate) fn definition(id: &str) -> ToolDefinition {
    ToolDefinition::new(ToolId::parse(id).expect("id"), "", Some(json!({"type": "object"})))
}

pub(crate) fn own(definition: ToolDefinition) -> Arc<RegisteredTool> {
    RegisteredTool::own(definition).expect("registers")
}

pub(crate) fn listing(name: &'static str, tools: Vec<Arc<RegisteredTool>>) -> Listing {
    of_kind(name, ProviderKind::Native, tools)
}

/// A listing of `tools__call`.
pub(crate) fn listing_with_call_tool() -> Listing {
    of_kind("tools", ProviderKind::Builtin, vec![own(definition(crate::model::exposure::CALL_ID))])
}

pub(crate) fn of_kind(name: &str, kind: ProviderKind, tools: Vec<Arc<RegisteredTool>>) -> Listing {
    Listing { provider: Arc::new(FakeProvider::new(name, kind, None)), tools, error: None, withheld: Vec::new() }
}

fn own_tool(id: &str) -> Arc<RegisteredTool> {
    own(definition(id))
}

#[test]
fn first_provider_of_an_id_wins() {
    let snapshot = Snapshot::build(&[
        listing("a", vec![own_tool("x:t@1.0.0"), own_tool("x:t@1.0.0"), own_tool("x:u@1.0.0")]),
        listing("b", vec![own_tool("x:t@1.0.0"), own_tool("y:t@1.0.0")]),
    ]);
    let ids: Vec<_> = snapshot.list().iter().map(|e| format!("{} {}", e.id(), e.provider.name())).collect();
    assert_eq!(ids, ["x:t@1.0.0 a", "x:u@1.0.0 a", "y:t@1.0.0 b"]);
    assert_eq!(snapshot.issues().len(), 2);
    assert!(snapshot.issues()[1].message.contains("already provided by a"));
    assert!(snapshot.get("x:t@1.0.0").is_some() && snapshot.get("x:t").is_none());
}

#[test]
fn snapshots_know_their_providers_and_tools() {
    let (one, other) = (own_tool("a:t@1.0.0"), own_tool("b:t@1.0.0"));
    let provider = Arc::new(FakeProvider::new("a", ProviderKind::Native, None));
    let first: Arc<dyn Provider> = Arc::clone(&provider) as _;
    let second = listing("b", Vec::new()).provider;
    let of = |provider: &Arc<dyn Provider>, tool: &Arc<RegisteredTool>| Listing {
        provider: Arc::clone(provider),
        tools: vec![Arc::clone(tool)],
        error: None,
        withheld: Vec::new(),
    };
    let whole = || vec![of(&first, &one), of(&second, &other)];
    let why = || vec![("off".to_owned(), "it is off".to_owned())];
    let held = vec![UnapprovedTool {
        provider: "a".into(),
        raw_name: "u".into(),
        shown_name: "u".into(),
        why: "withheld".into(),
    }];
    let issues = vec![CatalogueIssue { provider: "a".into(), message: "it is odd".into() }];
    let snapshot =
        Snapshot::build(&whole()).with_absent(why()).with_unapproved(held.clone()).with_issues(issues.clone());
    assert!(snapshot.is_of(&whole(), &why(), &held, &issues));
    assert!(!snapshot.is_of(&whole(), &[], &held, &issues));
    assert!(!snapshot.is_of(&whole(), &why(), &[], &issues));
    assert!(!snapshot.is_of(&whole(), &why(), &held, &[]));
    let changes: [fn(&mut Vec<Listing>); 8] = [
        |listings| listings.truncate(1),
        |listings| listings.push(listing("c", Vec::new())),
        |listings| listings.swap(0, 1),
        |listings| listings[0].tools.clear(),
        |listings| listings[1].tools = vec![own_tool("b:t@1.0.0")],
        |listings| listings[0].provider = listing("a", Vec::new()).provider,
        |listings| listings[1].error = Some("it is down".into()),
        |listings| listings[1].withheld.push(WithheldTool::new("u", "filtered by tools_denied")),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut listings = whole();
        change(&mut listings);
        assert!(!snapshot.is_of(&listings, &why(), &held, &issues), "change {n}");
    }
    *provider.says.lock().expect("lock") = Some("for the sea".to_owned());
    assert!(!snapshot.is_of(&whole(), &why(), &held, &issues), "its instructions are searched");
}

#[test]
fn added_provider_renames_nothing() {
    let tools = [own_tool("x:t@1.0.0"), own_tool("x:v@1.0.0"), own_tool("z:t@1.0.0")];
    let added = listing("b", Vec::new()).provider;
    let first = Snapshot::build(&[listing("a", vec![own_tool("x:t@1.0.0"), own_tool("x:u@1.0.0")])])
        .with_absent(vec![("off".into(), "it is off".into())]);
    let snapshot = first.with(&added, &tools);
    let ids: Vec<_> = snapshot.list().iter().map(|e| format!("{} {}", e.id(), e.provider.name())).collect();
    assert_eq!(ids, ["x:t@1.0.0 a", "x:u@1.0.0 a", "x:v@1.0.0 b", "z:t@1.0.0 b"]);
    for (n, entry) in snapshot.list().iter().enumerate() {
        assert_eq!(snapshot.resolve(&entry.wire_name), Resolution::Found(n, NameMatch::Wire));
        assert_eq!(snapshot.get(entry.id().as_str()).map(|entry| entry.id()), Some(entry.id()));
    }
    assert!(Arc::ptr_eq(&snapshot.list()[1], &first.list()[1]));
    assert_eq!((snapshot.providers()[1].tools, snapshot.why_missing("off__x").as_deref()), (2, Some("it is off")));
}

#[test]
fn filtered_snapshot_explains_what_is_missing() {
    let listings =
        [listing("a", vec![own_tool("x:t@1.0.0"), own_tool("x:u@1.0.0")]), listing("x", vec![own_tool("y:t@1.0.0")])];
    let globs = ["x:T".to_owned(), "y__*".to_owned()];
    let whole = Snapshot::build(&listings);
    let part = whole.only(|entry| entry.is_named_by(&globs), "not wanted");
    let ids: Vec<_> = part.list().iter().map(|entry| entry.id().as_str()).collect();
    assert_eq!(ids, ["x:t@1.0.0", "y:t@1.0.0"]);
    let none = whole.only(|_| false, "not wanted");
    assert_eq!(none.why_missing("x__t").as_deref(), Some("provider x has `t`, but does not offer it: not wanted"));
    let exact = ["x:u@1.0.0".to_owned()];
    assert!(whole.list()[1].is_named_by(&exact) && !whole.list()[1].is_named_by(&[]));
}

#[test]
fn foreign_tools_cannot_take_reserved_namespaces() {
    let id = ToolId::parse("fs:read@0.0.0").expect("id");
    let snapshot =
        Snapshot::build(&[listing("evil", vec![RegisteredTool::foreign(ToolDefinition::new(id, "", None), "read")])]);
    assert!(snapshot.list().is_empty());
    assert!(snapshot.issues()[0].message.contains("reserved"));
}

#[test]
fn a_missing_name_is_explained() {
    let snapshot = Snapshot::build(&[Listing {
        error: Some("exit status 1".into()),
        withheld: vec![
            WithheldTool::new("Drop", "filtered by tools_denied"),
            WithheldTool::unreadable("a.b", "withheld"),
        ],
        ..listing("gh", vec![])
    }]);
    for (written, why) in [
        ("gh__drop", "filtered by tools_denied"),
        ("gh:drop@0.0.0", "filtered by tools_denied"),
        ("gh__a.b", "withheld"),
        ("gh__a_b", "withheld"),
        ("gh:a_b", "withheld"),
        ("gh__a_bc", "exit status 1"),
    ] {
        assert!(snapshot.why_missing(written).expect("why").contains(why), "{written}");
    }
    assert!(snapshot.why_missing("gh__x").expect("why").contains("exit status 1"));
    assert!(snapshot.why_missing("zz__x").is_none());
}

#[test]
fn unreadable_names_are_listed_up_to_a_bound() {
    let withheld = [1, 2, 3].map(|n| WithheldTool::unreadable(format!("op{n}"), "$ref `x.yml` is gone"));
    let withheld = [WithheldTool::new("drop", "filtered by tools_denied")].into_iter().chain(withheld).collect();
    let snapshot = Snapshot::build(&[Listing { withheld, ..listing("api", vec![]) }]);
    let line = |n: usize| format!("`op{n}` of api could not be read: $ref `x.yml` is gone");
    let more = "1 more of api could not be read: `toolwright doctor` lists all".to_owned();
    for (most, expect) in [(usize::MAX, vec![line(1), line(2), line(3)]), (2, vec![line(1), line(2), more])] {
        assert_eq!(snapshot.providers()[0].unreadable(most), expect, "{most}");
    }
}

#[test]
fn unapproved_tool_is_found_by_both_names() {
    let held = |provider: &str, name: &str, shown: &str| UnapprovedTool {
        provider: provider.into(),
        raw_name: name.into(),
        shown_name: shown.into(),
        why: "withheld: it has changed".into(),
    };
    let withheld = vec![WithheldTool::new("Get", "withheld: it has changed")];
    let snapshot = Snapshot::build(&[Listing { withheld, ..listing("d", vec![]) }, listing("e", vec![])])
        .with_unapproved(vec![held("d", "Get", "fetch_it"), held("e", "Put", "Put")]);
    for (written, expect) in [
        (
            "d__fetch_it",
            Some("provider d has `fetch_it`, its source's `Get`, but does not offer it: withheld: it has changed"),
        ),
        (
            "d:fetch_it@0.0.0",
            Some("provider d has `fetch_it`, its source's `Get`, but does not offer it: withheld: it has changed"),
        ),
        ("d__get", Some("provider d has `Get`, but does not offer it: withheld: it has changed")),
        ("e__fetch_it", None),
        ("d__other", None),
    ] {
        assert_eq!(snapshot.why_missing(written).as_deref(), expect, "{written}");
        assert_eq!(snapshot.is_unapproved(written), expect.is_some(), "{written}");
    }
}

#[test]
fn a_disabled_or_filtered_name_is_explained() {
    let absent = [("off", "server off is disabled"), ("rest__blocked", "REST tool blocked was left out")];
    let absent = absent.map(|(name, why)| (name.to_owned(), why.to_owned())).to_vec();
    let snapshot = Snapshot::build(&[listing("rest", vec![])]).with_absent(absent);
    for (written, expect) in [
        ("off__x", Some("server off is disabled")),
        ("rest__blocked", Some("REST tool blocked was left out")),
        ("rest__other", None),
        ("office__x", None),
    ] {
        assert_eq!(snapshot.why_missing(written).as_deref(), expect, "{written}");
    }
}

#[test]
fn each_key_is_made_once() {
    let snapshot = Snapshot::default();
    let make = |key: &str, made: usize| *snapshot.derived(key, |_| made);
    assert_eq!((make("a", 1), make("b", 2), make("a", 3)), (1, 2, 1));
    assert_eq!(*snapshot.derived("a", |_| "of another type"), "of another type");
    for n in 0..MAX_DERIVED {
        make(&n.to_string(), n);
    }
    assert_eq!(make("a", 4), 4, "the oldest goes where there are too many");
}
