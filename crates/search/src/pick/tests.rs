use serde_json::json;

use super::*;
use toolwright_core::definition::{Mode, ToolDefinition};
use toolwright_testkit::{definition, listing, own};

fn snapshot() -> Snapshot {
    let tool = |id: &str, description: &str, change: &dyn Fn(&mut ToolDefinition)| {
        let mut definition = definition(id);
        description.clone_into(&mut definition.description);
        change(&mut definition);
        own(definition)
    };
    Snapshot::build(&[listing(
        "p",
        vec![
            tool("fs:read_file@1.0.0", "Reads a file of the workspace.", &|_| {}),
            tool("fs:write_file@1.0.0", "Writes a file of the workspace.", &|_| {}),
            tool("fs:wipe@1.0.0", "Deletes every file.", &|tool| tool.safe = false),
            tool("db:audit@1.0.0", "Shows who read a file and when that was.", &|tool| {
                tool.allowed_roles = vec!["auditor".into(), "admin".into()];
            }),
            tool("log:follow@1.0.0", "Streams a log file.", &|tool| {
                tool.capabilities = json!({"streaming": true, "requires": ["terminal"]}).as_object().cloned().unwrap();
            }),
            tool("job:scan@1.0.0", "Scans a file for secrets.", &|tool| tool.mode = Mode::Background),
            tool("web:search@1.0.0", "Searches the web.", &|_| {}),
        ],
    )])
}

fn with(config: PickConfig) -> PickOptions {
    PickOptions { config, ..PickOptions::default() }
}

fn at_most(max_candidates: usize) -> PickOptions {
    with(PickConfig { max_candidates, ..PickConfig::default() })
}

fn keyword(query: &str, change: impl FnOnce(&mut PickOptions)) -> (Picked, Vec<(String, f32)>) {
    let snapshot = snapshot();
    let mut options = at_most(20);
    change(&mut options);
    let query = PickInput::from(query);
    let index = SnapshotIndex::default();
    let picking = PickRun::begin(&query, &snapshot, &index, &options);
    let order = picking.by_keyword(picking.enough(), &|position| picking.is_candidate(position));
    let ranking = Ranking { scorer: "keyword".into(), order, ..Ranking::default() };
    let picked = picking.finish(ranking, Provenance::default());
    let name = |pick: &Pick| snapshot.list()[pick.position].id().name().to_owned();
    let names = picked.picks.iter().map(|pick| (name(pick), pick.score)).collect();
    (picked, names)
}

fn check(query: &str, change: impl FnOnce(&mut PickOptions), expect: &[(&str, f32)]) {
    let (_, names) = keyword(query, change);
    let names: Vec<_> = names.iter().map(|(name, score)| (name.as_str(), (score * 1000.0).round() / 1000.0)).collect();
    assert_eq!(names, expect, "{query}");
}

#[test]
fn word_share_orders_with_registration_ties() {
    check(
        "write a file",
        |_| {},
        &[("write_file", 1.0), ("read_file", 0.5), ("audit", 0.5), ("follow", 0.5), ("scan", 0.5)],
    );
    check(
        "WriteFile, please!",
        |options| options.config.max_candidates = 2,
        &[("write_file", 1.0), ("read_file", 0.5)],
    );
    check(
        "file log web workspace",
        |options| options.config.min_score = 0.5,
        &[("read_file", 0.5), ("write_file", 0.5), ("follow", 0.5)],
    );
    check("the of and", |_| {}, &[]);
    let zeros = |first: &[(&'static str, f32)], others: &[&'static str]| -> Vec<(&'static str, f32)> {
        first.iter().copied().chain(others.iter().map(|name| (*name, 0.0))).collect()
    };
    let all = ["read_file", "write_file", "audit", "follow", "scan", "search"];
    check("", |options| options.config.min_score = 0.0, &zeros(&[], &all));
    check(
        "the web",
        |options| (options.config.min_score, options.config.max_candidates) = (0.0, 3),
        &zeros(&[("search", 1.0)], &all[..2]),
    );
    check("nothing of the kind", |_| {}, &[]);
    check("write file", |options| options.config.max_candidates = 0, &[]);
}

#[test]
fn prose_matches_need_better_scores() {
    let snapshot = snapshot();
    let ids = |query: &str, score: f32, min_score: f64| {
        let (query, options) = (PickInput::from(query), with(PickConfig { min_score, ..PickConfig::default() }));
        let order = (0..snapshot.list().len()).map(|index| Ranked { index, score }).collect();
        let ranking = Ranking { order, by_words: true, ..Ranking::default() };
        let picked = PickRun::begin(&query, &snapshot, &SnapshotIndex::default(), &options)
            .finish(ranking, Provenance::default());
        picked.picks.iter().map(|pick| snapshot.list()[pick.position].id().name().to_owned()).collect::<Vec<_>>()
    };
    // Only one of the two tools also has the word in its name.
    assert_eq!(ids("scans bananas", 0.2, 0.05), ["scan"]);
    assert_eq!(ids("workspace bananas", 0.2, 0.05), [""; 0]);
    assert_eq!(ids("workspace bananas", 0.2, 0.0).len(), 3);
    assert_eq!(ids("workspace bananas", 0.3, 0.05).len(), 3);
}

#[test]
fn a_named_tool_ranks_first() {
    check(
        "after fs__write_file, search the web for it",
        |options| options.config.max_candidates = 2,
        &[("write_file", 1.0), ("search", 0.4)],
    );
    check("search", |_| {}, &[("search", 1.0)]);
    check("job:scan@1.0.0", |options| options.config.min_score = 1.0, &[("scan", 1.0)]);
    check("`scan` or write_file", |options| options.config.max_candidates = 1, &[("write_file", 1.0)]);
    check("fs:wipe", |_| {}, &[]);
    let (picked, _) = keyword("write_file", |_| {});
    assert_eq!(picked.picks[0].reason, "the query names it");
}

#[test]
fn named_tools_keep_order_and_filters() {
    let snapshot = snapshot();
    let order = |query: &str, ranked: &[usize], options: &PickOptions| -> Vec<usize> {
        let ranked: Vec<_> = ranked.iter().map(|&index| Ranked { index, score: 0.5 }).collect();
        let query = PickInput::from(query);
        let index = SnapshotIndex::default();
        let picking = PickRun::begin(&query, &snapshot, &index, options);
        assert!(picking.candidates().all(|position| picking.is_candidate(position)));
        picking.order(&ranked).map(|ranked| ranked.index).collect()
    };
    let options = PickOptions::default();
    let query = "`search`, read_file and write_file";
    assert_eq!(order(query, &[5, 6, 3, 1], &options), [6, 1, 0, 5, 3]);
    assert_eq!(order("fs:wipe read_file", &[2, 5], &options), [0, 5]);
    assert_eq!(order("fs:wipe", &[5], &with(PickConfig { allow_unsafe: true, ..PickConfig::default() })), [2, 5]);
    let of_files = PickOptions { namespace: Some("fs".into()), ..PickOptions::default() };
    assert_eq!(order("web__search read_file", &[6, 1, 5], &of_files), [0, 1]);
    assert_eq!(order("read_file", &[5], &with(PickConfig { min_score: 0.6, ..PickConfig::default() })), [0]);
}

#[test]
fn conversations_search_by_their_last_turns() {
    let snapshot = snapshot();
    let options = PickOptions::default();
    let found = |turns: &[&str]| -> Vec<String> {
        let query = PickInput::turns(turns);
        let index = SnapshotIndex::default();
        let picking = PickRun::begin(&query, &snapshot, &index, &options);
        let order = picking.by_all(None, picking.enough(), &|position| picking.is_candidate(position));
        let picked = picking.finish(Ranking { order, ..Ranking::default() }, Provenance::default());
        assert!(picked.picks.iter().all(|pick| pick.reason.contains(" in the ")), "{:?}", picked.picks);
        picked.picks.iter().map(|pick| snapshot.list()[pick.position].id().name().to_owned()).collect()
    };
    assert_eq!(found(&["any secrets", "search the web"]), ["search", "scan"]);
    assert_eq!(found(&["the web", "", "scan for secrets"]), ["scan", "search"]);
    assert_eq!(found(&["the web", "scan for secrets", " "]), ["scan", "search"]);
    assert_eq!(found(&["the web", "b", "c", "d", "scan for secrets"]), ["scan"], "too long ago");
    assert_eq!(found(&["web__search", "scan for secrets"])[0], "scan", "names are those of the last turn");
    assert!(found(&[]).is_empty());
}

#[test]
fn excluded_tools_are_unscored_with_reasons() {
    let all = ["read_file", "write_file", "audit", "follow", "scan"];
    let excluded = |change: &dyn Fn(&mut PickOptions), expect: &[(&str, &str)]| {
        let (picked, names) = keyword("file", |options| change(options));
        let snapshot = snapshot();
        let name = |position: usize| snapshot.list()[position].id().name().to_owned();
        let got: Vec<_> =
            picked.provenance.excluded.iter().map(|(position, why)| (name(*position), why.to_string())).collect();
        let expect: Vec<_> = expect.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned())).collect();
        assert_eq!(got, expect);
        assert_eq!(picked.provenance.candidates, 7 - got.len());
        assert!(got.iter().all(|(name, _)| names.iter().all(|(picked, _)| picked != name)), "{names:?}");
        names.len()
    };
    let unsafe_one = ("wipe", "it is marked unsafe");
    assert_eq!(excluded(&|_| {}, &[unsafe_one]), all.len());
    assert_eq!(excluded(&|options| options.config.allow_unsafe = true, &[]), all.len() + 1);
    let for_auditors = ("audit", "it is only for auditor or admin");
    assert_eq!(excluded(&|options| options.roles = Some(vec![]), &[unsafe_one, for_auditors]), 4);
    assert_eq!(excluded(&|options| options.roles = Some(vec!["dev".into()]), &[unsafe_one, for_auditors]), 4);
    assert_eq!(excluded(&|options| options.roles = Some(vec!["dev".into(), "admin".into()]), &[unsafe_one]), 5);
    excluded(
        &|options| options.config.context = Some(vec!["background".into()]),
        &[unsafe_one, ("follow", "it needs terminal, which is not available")],
    );
    excluded(
        &|options| options.config.context = Some(vec!["terminal".into()]),
        &[unsafe_one, ("scan", "it needs background, which is not available")],
    );
    let lacking = "it lacks the capability streaming";
    let without = ["read_file", "write_file", "audit", "scan", "search"].map(|name| (name, lacking));
    let mut expect = without.to_vec();
    expect.insert(2, unsafe_one);
    assert_eq!(excluded(&|options| options.config.capabilities = vec!["streaming".into()], &expect), 1);
}

#[test]
fn picks_fit_the_remaining_budget() {
    let snapshot = snapshot();
    let cost =
        |name: &str| snapshot.list().iter().find(|entry| entry.id().name() == name).map(|it| it.tokens()).unwrap();
    let within = |tokens| move |options: &mut PickOptions| options.config.budget = Some(tokens);
    let (large, small) = (cost("write_file"), cost("follow"));
    assert!(small < cost("audit") && small < large);
    check("write file", within(large + small), &[("write_file", 1.0), ("follow", 0.5)]);
    check("write file", within(large), &[("write_file", 1.0)]);
    check("write file", within(small), &[("follow", 0.5)]);
    let (picked, _) = keyword("write file", within(small));
    let why = picked.provenance.excluded.iter().find(|(position, _)| *position == 1).map(|(_, why)| why.to_string());
    assert_eq!(why, Some(format!("its definition takes {large} tokens, more than are left")));
}

#[test]
fn non_text_queries_search_as_json() {
    for (input, expect) in [
        (json!("write a file"), "write a file"),
        (json!({"task": "write", "to": ["a", 1]}), r#"{"task":"write","to":["a",1]}"#),
        (json!(null), "null"),
    ] {
        assert_eq!(PickInput::from(&input).text(), expect);
    }
    let long = "é".repeat(MAX_QUERY);
    assert_eq!(PickInput::from(long.as_str()).text().len(), MAX_QUERY);
}

#[test]
fn details_are_shown_only_with_debug() {
    let (picked, _) = keyword("reads a workspace", |_| {});
    assert_eq!(picked.picks[0].details, None);
    assert_eq!(picked.picks[0].reason, "reads in the name; reads, workspace in the description");
    let (picked, _) = keyword("reads a workspace", |options| options.debug = true);
    let words = json!({"words": {"name": ["reads"], "description": ["reads", "workspace"]}});
    assert_eq!(picked.picks[0].details.as_ref(), Some(&words));
}

#[test]
fn unranked_tools_keep_registration_order() {
    let snapshot = snapshot();
    let options = at_most(3);
    let query = PickInput::from("web__search");
    let picked = PickRun::begin(&query, &snapshot, &SnapshotIndex::default(), &options)
        .in_order("too slow", Provenance::default());
    let got: Vec<_> = picked.picks.iter().map(|pick| (pick.position, pick.score)).collect();
    assert_eq!(got, [(6, 1.0), (0, 0.0), (1, 0.0)]);
    assert_eq!(picked.picks[1].reason, "in the order of registration: too slow");
    assert_eq!(picked.provenance.scorer, "registration");
}
