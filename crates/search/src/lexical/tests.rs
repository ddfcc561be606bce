use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use serde_json::{Value, json};

use super::*;

/// A tool as a test writes it.
#[derive(Debug, Clone, Default)]
struct Tool {
    name: String,
    description: String,
    parameters: Value,
    server: String,
    examples: Vec<Value>,
}

fn tool(name: &str, description: &str, parameters: Value) -> Tool {
    Tool { name: name.into(), description: description.into(), parameters, ..Tool::default() }
}

impl Searchable for Tool {
    fn key(&self) -> DocumentKey {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let mut hasher = DefaultHasher::new();
        (&self.name, &self.description, self.parameters.to_string(), &self.server).hash(&mut hasher);
        DocumentKey(hasher.finish(), 0)
    }

    fn document(&self) -> Document<'_> {
        Document {
            name: &self.name,
            description: &self.description,
            parameters: Some(&self.parameters),
            examples: &self.examples,
            server: &self.server,
            ..Document::default()
        }
    }
}

fn tools() -> Vec<Tool> {
    vec![
        tool("read_file", "Reads a text file.", json!({"properties": {"path": {"description": "Where it is"}}})),
        tool("write_file", "Writes a text file.", json!({"properties": {"path": {}, "content": {}}})),
        tool("getWeather", "Current conditions of a place.", json!({"type": "dict", "properties": {"city": {}}})),
        tool(
            "create_issue",
            "Opens an issue on GitHub.",
            json!({"properties": {"state": {"enum": ["draft", "open"]}}}),
        ),
        tool(
            "list_tables",
            "The notifications of a database.",
            json!({"anyOf": [{"properties": {"schema": true}}, 7]}),
        ),
        tool("天気", "天気予報を調べる", json!(null)),
        Tool { server: "calendar".into(), examples: vec![json!({"day": ["tomorrow"]})], ..tool("x", "", json!([])) },
    ]
}

fn all(_: usize) -> bool {
    true
}

#[test]
fn words_find_tools_in_any_field() {
    let tools = tools();
    let index = LexicalIndex::build(&tools, None);
    for (query, expect) in [
        ("read file", "read_file write_file"),
        ("reading FILES", "read_file write_file"),
        ("writing files", "write_file read_file create_issue"),
        ("readfile", "read_file"),
        ("get_weather", "getWeather"),
        ("weather in a city", "getWeather"),
        ("github", "create_issue"),
        ("git hub", "create_issue"),
        ("data base", "list_tables"),
        ("draft", "create_issue write_file"),
        ("content", "write_file"),
        ("schemas", "list_tables"),
        ("予報", "天気"),
        ("calendar", "x"),
        ("tomorrow", "x"),
        ("the of and", ""),
        // Stop words find names if a query has no other words.
        ("get", "getWeather"),
        ("get a", "getWeather"),
        ("get unheard", ""),
        ("unheard", ""),
        ("githib", ""),
        ("", ""),
    ] {
        let found: Vec<_> = index.rank(query, 10, &all).iter().map(|hit| &*tools[hit.index].name).collect();
        assert_eq!(found.join(" "), expect, "{query}");
    }
}

#[test]
fn clause_winners_beat_broad_matches() {
    let tools = [
        tool("mail_the_city", "Mails the weather of a city.", json!({})),
        tool("get_weather", "", json!({})),
        tool("send_mail", "", json!({})),
    ];
    let index = LexicalIndex::build(&tools, None);
    let shares = |query: &str| {
        let mut found = index.rank_clauses(&Query::new(query), 9, &all).ranked;
        found.sort_by_key(|hit| hit.index);
        [found[1].score / found[0].score, found[2].score / found[0].score]
    };
    let whole = shares("get the current weather of the city and send the report by mail");
    let cut = shares("get the current weather of the city. Send the report by mail");
    assert!(cut[0] > whole[0] && cut[1] > whole[1], "{whole:?} {cut:?}");
}

#[test]
fn known_synonyms_match_words() {
    let tools =
        [tool("fetch_picture", "", json!({})), tool("translator", "", json!({})), tool("play_song", "", json!({}))];
    let index = LexicalIndex::build(&tools, None);
    for (query, expect) in [
        ("photos", "fetch_picture"),
        ("translat", "translator"),
        ("transport", ""),
        ("playlist", "play_song"),
        ("music", "play_song"),
    ] {
        let ranking = index.rank_clauses(&Query::new(query), 9, &all);
        let found: Vec<_> = ranking.ranked.iter().map(|hit| &*tools[hit.index].name).collect();
        assert_eq!(found.join(" "), expect, "{query}");
        assert_eq!(!ranking.ranked.is_empty(), ranking.strength > 0.0);
    }
    let scores = |query| index.rank(query, 9, &all)[0].score;
    assert!(scores("picture") > scores("photo"));
}

#[test]
fn whole_names_rank_first() {
    let tools = [
        tool("list_user_files_of_a_project", "Files, files and files.", json!({})),
        tool("list_files", "Of anyone.", json!({})),
    ];
    let index = LexicalIndex::build(&tools, None);
    assert_eq!(index.rank("list the files", 1, &all)[0].index, 1);
}

#[test]
fn unfinished_and_mistyped_queries_match() {
    let tools = tools();
    let index = LexicalIndex::build(&tools, None);
    for (query, expect) in [
        ("wea", "getWeather"),
        ("wea ", ""),
        ("notificatio", "list_tables"),
        ("create iss", "create_issue"),
        ("githib ", "create_issue"),
        ("wetaher ", "getWeather"),
        ("notifcaitons ", "list_tables"),
        ("wtaehre ", ""),
        ("ptah ", "read_file write_file"),
        ("fil ", ""),
        ("w", ""),
        ("calender tomorow", "x"),
    ] {
        let found: Vec<_> = index.rank_typed(query, 10, &all).iter().map(|hit| &*tools[hit.index].name).collect();
        assert_eq!(found.join(" "), expect, "{query}");
    }
}

#[test]
fn unknown_words_of_tasks_match_similar_words() {
    let words =
        ["search", "weather", "email", "calendar", "receive messages", "case", "plan", "point", "calculate", "matter"];
    let tools: Vec<Tool> = words.map(|word| tool(word, "", json!({}))).into();
    let index = LexicalIndex::build(&tools, None);
    for (query, expect) in [
        ("serch", "search"),
        ("the wether", "weather"),
        ("emial", "email"),
        ("calender", "calendar"),
        ("recieve mesages", "receive messages"),
        ("pln the caes", "case"),
        ("plna it", "plan"),
        ("caculaet", "calculate"),
        // Another word is likelier than a misspelling of this one.
        ("a cake", ""),
        ("the plane", ""),
        ("paint", ""),
        ("flatter", ""),
        ("pointer", ""),
        // Words that tools have were searched before.
        ("search", ""),
        ("", ""),
    ] {
        let found: Vec<_> = index.rank_mistyped(query, 10, &all).iter().map(|hit| &*tools[hit.index].name).collect();
        assert_eq!(found.join(" "), expect, "{query}");
    }
}

#[test]
fn equal_scores_keep_order_within_limits() {
    let same: Vec<Tool> = (0..300).map(|_| tool("same", "words", json!({}))).collect();
    let index = LexicalIndex::build(&same, None);
    for limit in [0, 1, 7, 100, 300, usize::MAX] {
        let found: Vec<_> = index.rank("same words", limit, &|n| n != 3).iter().map(|hit| hit.index).collect();
        // The names of the first hundred are compared.
        let expect: Vec<_> = (0..300).filter(|n| *n != 3).take(limit).collect();
        assert_eq!(found, expect, "{limit}");
    }
}

#[test]
fn wire_prefixes_are_unused_words() {
    let gone: String = (600..1200).map(|n| format!("weata{} ", letters(n))).collect();
    let old = LexicalIndex::build(&[tool("gone", &gone, json!({}))], None);
    let tools = tools();
    let updated = LexicalIndex::build(&tools, Some(&old));
    let expect = LexicalIndex::build(&tools, None).rank("weathercock", 9, &all);
    assert_eq!((expect.len(), bits(&updated.rank("weathercock", 9, &all))), (1, bits(&expect)));
}

#[test]
fn mostly_unused_dictionaries_are_rebuilt() {
    let many = |first: &str| -> Vec<Tool> {
        let words = |n: usize| (n * 600..(n + 1) * 600).map(|n| format!("{first}{}", letters(n)));
        (0..9).map(|n| tool("many", &words(n).collect::<Vec<_>>().join(", "), json!({}))).collect()
    };
    let old = LexicalIndex::build(&many("q"), None);
    let new = LexicalIndex::build(&many("z")[..7], Some(&old));
    assert!(new.bytes() < old.bytes(), "{} {}", new.bytes(), old.bytes());
    assert_eq!(LexicalIndex::build(&[] as &[Tool], Some(&new)).bytes(), LexicalIndex::default().bytes());
}

/// A number in letters.
fn letters(mut number: usize) -> String {
    let mut text = String::new();
    while number > 0 {
        text.extend(char::from_digit((number % 26) as u32 + 10, 36));
        number /= 26;
    }
    text
}

fn word() -> impl Strategy<Value = &'static str> {
    select(vec![
        "read",
        "file",
        "files",
        "reading",
        "data",
        "base",
        "database",
        "HTTPServer",
        "the",
        "s3",
        "天気予報",
        "GitHub",
        "weather",
        "calendar",
    ])
}

fn some_tool() -> impl Strategy<Value = Tool> {
    let words = |most| prop::collection::vec(word(), 0..most).prop_map(|words| words.join(" "));
    (words(3), words(8), words(3), word()).prop_map(|(name, description, argument, server)| Tool {
        server: server.into(),
        ..tool(&name, &description, json!({"properties": {argument: {"description": description}}}))
    })
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    let keyword = select(vec![
        "properties",
        "items",
        "anyOf",
        "$defs",
        "enum",
        "const",
        "description",
        "additionalProperties",
        "x",
    ]);
    leaf.prop_recursive(20, 200, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(keyword.clone(), inner, 0..6)
                .prop_map(|members| members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

fn bits(hits: &[Ranked]) -> Vec<(usize, u32)> {
    hits.iter().map(|hit| (hit.index, hit.score.to_bits())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_updated_index_ranks_like_a_new_one(
        pool in prop::collection::vec(some_tool(), 1..20),
        steps in prop::collection::vec(prop::collection::vec(any::<Index>(), 0..25), 1..6),
        queries in prop::collection::vec("((read|file|data|base|HTTPServer|weather|weathercock|calnedar|天気|github|rea|the) ){1,5}", 1..5),
    ) {
        let mut index = LexicalIndex::default();
        for step in steps {
            let tools: Vec<&Tool> = step.iter().map(|place| place.get(&pool)).collect();
            let tools: Vec<std::sync::Arc<Tool>> = tools.into_iter().cloned().map(std::sync::Arc::new).collect();
            index = LexicalIndex::build(&tools, Some(&index));
            let new = LexicalIndex::build(&tools, None);
            for query in &queries {
                prop_assert_eq!(bits(&index.rank(query, 30, &all)), bits(&new.rank(query, 30, &all)));
                let query = query.trim_end();
                prop_assert_eq!(bits(&index.rank_typed(query, 30, &all)), bits(&new.rank_typed(query, 30, &all)));
            }
        }
    }

    #[test]
    fn keeping_some_equals_ranking_all(
        pool in prop::collection::vec(some_tool(), 1..150),
        kept in subsequence((0..150).collect::<Vec<usize>>(), 0..150),
        query in "((read|file|data|base|HTTPServer|weather) ){1,5}",
        limit in 0_usize..40,
    ) {
        let index = LexicalIndex::build(&pool, None);
        let keep = |position: usize| kept.binary_search(&position).is_ok();
        let mut expect = index.rank(&query, usize::MAX, &all);
        prop_assert!(expect.is_sorted_by(|a, b| a.score > b.score || a.score == b.score && a.index < b.index));
        expect.retain(|hit| hit.score > 0.0 && keep(hit.index));
        expect.truncate(limit);
        prop_assert_eq!(bits(&index.rank(&query, limit, &keep)), bits(&expect));
    }

    #[test]
    fn any_schema_and_query_are_accepted(parameters in any_json(), query in any::<String>()) {
        let odd = Tool { examples: vec![parameters.clone()], ..tool("odd", &query, parameters) };
        let index = LexicalIndex::build(&[odd], None);
        prop_assert_eq!(index.rank("odd", 1, &all).len(), 1);
        for hits in [index.rank(&query, 9, &all), index.rank_typed(&query, 9, &all)] {
            prop_assert!(hits.iter().all(|hit| hit.score > 0.0 && hit.score.is_finite()));
        }
    }
}

/// Quality on published sets of queries; `TOOLWRIGHT_TEST_DATA` names their folder.
mod sets {
    use std::collections::HashMap;
    use std::path::PathBuf;

    use serde_json::Value;

    use crate::lexical::*;
    use crate::{Document, ranking_metrics};

    struct Set {
        tools: Vec<Record>,
        queries: Vec<(String, Vec<usize>)>,
    }

    struct Record(Value);

    impl Searchable for Record {
        fn key(&self) -> DocumentKey {
            DocumentKey(std::ptr::from_ref(&self.0) as u64, 0)
        }

        fn document(&self) -> Document<'_> {
            let text = |field: &str| self.0[field].as_str().unwrap_or_default();
            Document {
                name: text("name"),
                description: text("description"),
                parameters: self.0.get("parameters"),
                ..Document::default()
            }
        }
    }

    fn lines(folder: &std::path::Path, file: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(folder.join(file)).expect(file);
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    impl Set {
        fn read(folder: &std::path::Path) -> Self {
            let tools = lines(folder, "tools.jsonl");
            let positions: HashMap<_, _> =
                tools.iter().enumerate().map(|(at, tool)| (tool["id"].to_string(), at)).collect();
            let queries = lines(folder, "queries.jsonl").into_iter().map(|query| {
                let relevant = query["relevant"].as_array().expect("ids").iter().map(|id| positions[&id.to_string()]);
                (query["query"].as_str().expect("a text").to_owned(), relevant.collect())
            });
            Self { queries: queries.collect(), tools: tools.into_iter().map(Record).collect() }
        }

        /// Mean recall@5 and NDCG@10, in percent.
        fn measure(&self, rank: impl Fn(&str) -> Vec<Ranked>) -> (f64, f64) {
            let (mut recall, mut ndcg) = (0.0, 0.0);
            for (query, relevant) in &self.queries {
                let ranked: Vec<_> = rank(query).iter().map(|hit| hit.index).collect();
                recall += ranking_metrics::recall(&ranked, relevant, 5);
                ndcg += ranking_metrics::ndcg(&ranked, relevant, 10);
            }
            let share = 100.0 / self.queries.len() as f64;
            (recall * share, ndcg * share)
        }
    }

    #[test]
    fn the_tools_of_known_queries_are_found() {
        let Some(folder) = std::env::var_os("TOOLWRIGHT_TEST_DATA").map(PathBuf::from) else { return };
        // Without clauses, with clauses, and with clauses but no synonyms.
        for (name, words, clauses, bare) in [
            ("bfcl", (86.9, 80.5), (87.4, 80.6), (87.0, 80.1)),
            ("sealtools", (92.6, 94.2), (96.0, 96.2), (95.9, 96.1)),
            ("metatool", (70.5, 62.6), (70.4, 62.5), (65.6, 58.2)),
        ] {
            let set = Set::read(&folder.join("retrieval").join(name));
            let check = |ranker: &str, (recall, ndcg): (f64, f64), least: (f64, f64)| {
                println!("{name}, {ranker}: recall@5 {recall:.2}, NDCG@10 {ndcg:.2}");
                assert!(recall >= least.0 && ndcg >= least.1, "{name}: {recall} {ndcg}, {least:?} expected");
            };
            let index = LexicalIndex::build(&set.tools, None);
            let clauses_of =
                |index: &LexicalIndex, query: &str| index.rank_clauses(&Query::new(query), 10, &all).ranked;
            check("words", set.measure(|query| index.rank(query, 10, &all)), words);
            check("clauses", set.measure(|query| clauses_of(&index, query)), clauses);
            let index = LexicalIndex { synonyms: Synonyms::default(), ..index };
            check("no synonyms", set.measure(|query| clauses_of(&index, query)), bare);
        }
    }

    fn all(_: usize) -> bool {
        true
    }
}
