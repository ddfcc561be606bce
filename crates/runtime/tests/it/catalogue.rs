use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use toolwright_core::catalogue::{Provider, ProviderKind, RegisteredTool};
use toolwright_core::{ToolDefinition, ToolId};
use toolwright_runtime::{Catalogue, EventHub};
use toolwright_testkit::{FakeList, FakeProvider, FakeRedactor};

const DOWN: FakeList = FakeList::Fails("out of order; turn it on");

/// A source of so many tools.
fn source(name: &str, count: usize) -> Arc<FakeProvider> {
    Arc::new(FakeProvider::new(name, ProviderKind::Native, tools(name, count)))
}

fn tools(name: &str, count: usize) -> Vec<Arc<RegisteredTool>> {
    let tool = |n: usize| {
        let id = ToolId::format(name, &format!("t{n}"), "1.0.0").expect("id");
        RegisteredTool::own(ToolDefinition::new(id, "", Some(json!({"type": "object"})))).expect("tool")
    };
    (0..count).map(tool).collect()
}

fn ids(catalogue: &Catalogue) -> Vec<String> {
    catalogue.snapshot().list().iter().map(|entry| entry.id().without_version().to_owned()).collect()
}

fn catalogue() -> Arc<Catalogue> {
    Catalogue::new(Arc::new(EventHub::default()), Arc::new(FakeRedactor("order")), Duration::from_millis(50))
}

#[tokio::test]
async fn a_failing_provider_removes_only_its_tools() {
    let catalogue = catalogue();
    let (a, b, c) = (source("a", 1), source("b", 2), source("c", 0));
    c.lists(FakeList::Hangs);
    for provider in [&a, &b, &c] {
        catalogue.add_provider(Arc::clone(provider) as _).await.expect("added");
    }
    assert!(catalogue.add_provider(source("a", 1)).await.is_err(), "names are unique");
    catalogue.refresh_all(8).await;
    assert_eq!(ids(&catalogue), ["a:t0", "b:t0", "b:t1"]);
    assert!(catalogue.snapshot().providers()[2].error.as_deref().expect("error").contains("50ms"));
    let kept = catalogue.snapshot();
    b.lists(DOWN);
    catalogue.refresh("b").await;
    assert_eq!(ids(&catalogue), ["a:t0"]);
    assert!(
        catalogue.snapshot().providers()[1].error.as_deref().expect("error").contains("out of [secret]; turn it on")
    );
    assert_eq!(kept.list().len(), 3, "a reader keeps the snapshot it holds");
}

#[tokio::test]
async fn a_changed_provider_keeps_its_unchanged_tools() {
    let catalogue = catalogue();
    let provider = source("a", 1);
    catalogue.add_provider(Arc::clone(&provider) as _).await.expect("added");
    catalogue.refresh("a").await;
    let before = Arc::clone(&catalogue.snapshot().list()[0].tool);
    let mut changes = catalogue.changes();
    changes.borrow_and_update();
    provider.lists(FakeList::Tools(tools("a", 2)));
    provider.notify_change();
    changes.changed().await.expect("changed");
    assert_eq!(ids(&catalogue), ["a:t0", "a:t1"]);
    assert!(Arc::ptr_eq(&before, &catalogue.snapshot().list()[0].tool), "its compiled validator is kept");
    catalogue.remove_provider("a").await.expect("removed");
    assert!(ids(&catalogue).is_empty());
}

#[tokio::test]
async fn a_replaced_provider_keeps_its_place() {
    let catalogue = catalogue();
    for name in ["a", "b"] {
        catalogue.add_provider(source(name, 1)).await.expect("added");
    }
    catalogue.refresh_all(8).await;
    let old = catalogue.put_provider(source("a", 2)).await.expect("the old one");
    assert_eq!(ids(&catalogue), ["a:t0", "b:t0"], "until it has listed, what the old one had");
    assert!(catalogue.put_provider(source("c", 1)).await.is_none());
    catalogue.refresh_all(8).await;
    assert_eq!(ids(&catalogue), ["a:t0", "a:t1", "b:t0", "c:t0"]);
    assert_eq!(old.name(), "a");
}

#[tokio::test]
async fn sources_added_together_appear_together() {
    let catalogue = catalogue();
    for name in ["a", "b"] {
        catalogue.add_provider(source(name, 1)).await.expect("added");
    }
    catalogue.refresh_all(8).await;
    let before = *catalogue.changes().borrow();
    let fresh = ["c", "a", "d"].map(|name| source(name, 2) as Arc<dyn Provider>);
    let old = catalogue.put_providers(fresh.into()).await;
    assert_eq!(old.iter().map(|old| old.as_ref().map(|old| old.name())).collect::<Vec<_>>(), [None, Some("a"), None]);
    assert_eq!(*catalogue.changes().borrow(), before + 1, "one snapshot has all of them");
    assert_eq!(ids(&catalogue), ["a:t0", "b:t0"], "until they have listed");
    catalogue.refresh_all(8).await;
    assert_eq!(ids(&catalogue), ["a:t0", "a:t1", "b:t0", "c:t0", "c:t1", "d:t0", "d:t1"]);
    let before = *catalogue.changes().borrow();
    assert!(catalogue.put_providers(Vec::new()).await.is_empty());
    assert_eq!(*catalogue.changes().borrow(), before, "nothing was put");
}

#[tokio::test]
async fn the_methods_of_a_source_are_listed_once() {
    let catalogue = catalogue();
    let made = Arc::new(AtomicUsize::new(0));
    let of_methods = Arc::clone(&made);
    let provider = FakeProvider::new("a", ProviderKind::Mcp, tools("a", 1)).with_methods(move || {
        of_methods.fetch_add(1, Ordering::Relaxed);
        Arc::new(FakeProvider::new("a", ProviderKind::Mcp, tools("a", 2)))
    });
    catalogue.add_provider(Arc::new(provider)).await.expect("added");
    catalogue.add_provider(source("b", 1)).await.expect("added");
    let lists = catalogue.lists();
    assert_eq!(lists.iter().map(|source| source.provider().name()).collect::<Vec<_>>(), ["a"], "b has no methods");
    assert_eq!(lists[0].methods().list().len(), 2);
    catalogue.refresh_all(8).await;
    assert!(Arc::ptr_eq(&catalogue.lists(), &lists));
    assert_eq!(made.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_equal_list_keeps_the_snapshot() {
    let catalogue = catalogue();
    let (a, b) = (source("a", 2), source("b", 1));
    for provider in [&a, &b] {
        catalogue.add_provider(Arc::clone(provider) as _).await.expect("added");
    }
    catalogue.refresh_all(8).await;
    let (before, mut changes) = (catalogue.snapshot(), catalogue.changes());
    catalogue.refresh("a").await;
    assert!(Arc::ptr_eq(&before, &catalogue.snapshot()));
    assert!(changes.has_changed().expect("there"), "its prompts may be others");
    changes.mark_unchanged();
    a.lists(DOWN);
    catalogue.refresh("a").await;
    assert_eq!(ids(&catalogue), ["b:t0"]);
    let down = catalogue.snapshot();
    catalogue.refresh("a").await;
    assert!(Arc::ptr_eq(&down, &catalogue.snapshot()), "as down as before");
    a.lists(FakeList::Tools(tools("a", 2)));
    catalogue.refresh("a").await;
    assert_eq!(ids(&catalogue), ["a:t0", "a:t1", "b:t0"]);
}

#[tokio::test]
async fn every_snapshot_explains_what_is_disabled() {
    let catalogue = catalogue();
    catalogue.set_absent(vec![("off".into(), "server off is out of order".into())]).await;
    let why = || catalogue.snapshot().why_missing("off__x");
    assert_eq!(why().as_deref(), Some("server off is out of [secret]"));
    catalogue.add_provider(source("a", 1)).await.expect("added");
    assert!(why().is_some());
    catalogue.set_absent(Vec::new()).await;
    assert_eq!(why(), None);
}

#[tokio::test(start_paused = true)]
async fn a_providers_first_list_is_waited_for() {
    let catalogue = catalogue();
    for (name, list) in [("a", FakeList::Tools(tools("a", 1))), ("failing", DOWN), ("hanging", FakeList::Hangs)] {
        let source = source(name, 0);
        source.lists(list);
        catalogue.add_provider(source).await.expect("added");
    }
    let unlisted = || catalogue.unlisted().iter().map(|provider| provider.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(unlisted(), ["a", "failing", "hanging"]);
    let why = catalogue.snapshot().why_missing("a__t0").expect("known");
    assert_eq!(why, "provider a is still starting, and its tools are not known yet");
    let listing = async { catalogue.refresh_all(8).await };
    let waiting = async {
        catalogue.listed(|provider| provider.name() != "hanging").await;
        assert_eq!((unlisted(), ids(&catalogue)), (vec!["hanging".to_owned()], vec!["a:t0".to_owned()]));
        catalogue.listed(|_| true).await;
        assert_eq!(unlisted(), [""; 0]);
    };
    tokio::join!(waiting, listing);
    assert!(catalogue.snapshot().why_missing("hanging__t0").is_some_and(|why| why.contains("no tool list within")));
}
