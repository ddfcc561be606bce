//! Decisions, over whole policies.

use std::sync::LazyLock;

use serde_json::json;

use super::*;
use crate::definition::{CallParts, Effects};
use crate::identity::taint::Taint;
use crate::identity::tool_id::ToolId;

static NOBODY: LazyLock<Principal> =
    LazyLock::new(|| Principal { id: "guest".into(), roles: Vec::new(), owner: false });
static NOTHING: Value = Value::Null;

fn tool(id: &str, effects: Effects) -> ToolDefinition {
    let mut definition = ToolDefinition::new(ToolId::parse(id).expect("id"), "", None);
    definition.effects = effects;
    definition.tags = vec!["t".into()];
    definition
}

fn query(definition: &ToolDefinition, trust: HintTrust) -> PolicyQuery<'_> {
    PolicyQuery {
        definition,
        trust,
        principal: &NOBODY,
        root: Path::new("/work"),
        scope: CallScope::Anywhere,
        unvalidated: None,
        arguments: &NOTHING,
        request: None,
        tainted: &[],
    }
}

fn check(policy: &Policy, query: &PolicyQuery<'_>, effect: Effect, rule: &str) {
    let decision = policy.decide(query);
    assert_eq!((decision.effect, &*decision.rule), (effect, rule), "{}", decision.reason);
}

#[test]
fn profiles_decide_where_no_rule_does() {
    let read = tool("fs:read@1.0.0", Effects::READ);
    let write = tool("fs:write@1.0.0", Effects::WRITE);
    let own = |d| query(d, HintTrust::Trusted);
    for (profile, reads, writes) in [
        (Profile::Ask, Effect::Allow, Effect::Ask),
        (Profile::Workspace, Effect::Allow, Effect::Ask),
        (Profile::Client, Effect::Allow, Effect::Allow),
        (Profile::Trusted, Effect::Allow, Effect::Allow),
        (Profile::Owner, Effect::Allow, Effect::Allow),
    ] {
        let name = format!("profile {}", profile.as_str());
        check(&Policy::of(profile), &own(&read), reads, &name);
        check(&Policy::of(profile), &own(&write), writes, &name);
    }
    let inside = PolicyQuery { scope: CallScope::Workspace, ..own(&write) };
    check(&Policy::of(Profile::Workspace), &inside, Effect::Allow, "profile workspace");
    check(&Policy::of(Profile::Ask), &inside, Effect::Ask, "profile ask");
}

#[test]
fn foreign_hints_only_tighten() {
    let read = tool("gh:read@0.0.0", Effects::READ);
    let foreign = query(&read, HintTrust::Foreign);
    check(&Policy::of(Profile::Ask), &foreign, Effect::Ask, "profile ask");
    let mut policy = Policy::of(Profile::Ask);
    policy.rules = serde_json::from_value(json!([{"effect": "allow", "effects": {"read_only": true}}])).expect("rules");
    check(&policy, &foreign, Effect::Ask, "profile ask");
    policy.rules = serde_json::from_value(json!([{"effect": "deny", "effects": {"read_only": true}}])).expect("rules");
    check(&policy, &foreign, Effect::Deny, "rule 1");
}

#[test]
fn the_first_matching_rule_wins_by_every_selector() {
    let write = tool("fs:write@1.0.0", Effects::WRITE);
    let dev = Principal { roles: vec!["dev".into()], ..NOBODY.clone() };
    let own = PolicyQuery { principal: &dev, ..query(&write, HintTrust::Trusted) };
    for (selector, matches) in [
        (json!({"tool": "fs:write"}), true),
        (json!({"tool": "fs:write@1.0.0"}), true),
        (json!({"tool": "fs:*"}), true),
        (json!({"tool": "fs:read"}), false),
        (json!({"namespace": "f?"}), true),
        (json!({"namespace": "web"}), false),
        (json!({"tag": "t"}), true),
        (json!({"tag": "u"}), false),
        (json!({"role": "dev"}), true),
        (json!({"role": "ops"}), false),
        (json!({"effects": {"destructive": true, "open_world": false}}), true),
        (json!({"effects": {"open_world": true}}), false),
        (json!({"tool": "fs:*", "tag": "u"}), false),
    ] {
        let mut rule = selector.clone();
        rule["effect"] = json!("deny");
        let policy: Policy =
            serde_json::from_value(json!({"profile": "trusted", "rules": [rule, {"effect": "ask"}]})).expect("policy");
        check(
            &policy,
            &own,
            if matches { Effect::Deny } else { Effect::Ask },
            if matches { "rule 1" } else { "rule 2" },
        );
    }
}

#[test]
fn only_a_first_deny_stops_the_owner() {
    let write = tool("fs:write@1.0.0", Effects::WRITE);
    let own = query(&write, HintTrust::Trusted);
    let deny = json!({"effect": "deny", "tool": "fs:*"});
    for (first, effect, rule) in [
        (json!({"effect": "allow", "tool": "fs:write"}), Effect::Allow, "rule 1"),
        // The owner is not asked.
        (json!({"effect": "ask"}), Effect::Allow, "rule 1"),
        (json!({"effect": "allow", "tool": "fs:read"}), Effect::Deny, "rule 2"),
        (json!({"effect": "deny", "tool": "fs:write"}), Effect::Deny, "rule 1"),
        // The condition's argument is missing.
        (json!({"effect": "allow", "when": "args.path == 'a'"}), Effect::Deny, "rule 2"),
    ] {
        let policy: Policy =
            serde_json::from_value(json!({"profile": "owner", "rules": [first, deny]})).expect("policy");
        check(&policy, &own, effect, rule);
    }
    let claims = tool("x:read@1.0.0", Effects::READ);
    let policy: Policy = serde_json::from_value(
        json!({"profile": "owner", "rules": [{"effect": "ask", "effects": {"read_only": true}}, {"effect": "deny"}]}),
    )
    .expect("policy");
    check(&policy, &query(&claims, HintTrust::Trusted), Effect::Allow, "rule 1");
    check(&policy, &query(&claims, HintTrust::Foreign), Effect::Deny, "rule 2");
}

#[test]
fn calls_without_a_schema_follow_their_mode() {
    let write = tool("x:t@1.0.0", Effects::WRITE);
    let read = tool("x:r@1.0.0", Effects::READ);
    let with = |d, mode| PolicyQuery { unvalidated: Some(mode), ..query(d, HintTrust::Trusted) };
    let trusted = Policy::of(Profile::Trusted);
    check(&trusted, &with(&write, NoSchemaMode::ReadOnly), Effect::Ask, "profile trusted");
    check(&trusted, &with(&read, NoSchemaMode::ReadOnly), Effect::Allow, "profile trusted");
    check(&trusted, &with(&read, NoSchemaMode::HumanApproval), Effect::Ask, "profile trusted");
    check(&trusted, &with(&write, NoSchemaMode::Full), Effect::Allow, "profile trusted");
}

#[test]
fn only_allow_rules_lift_no_schema_mode() {
    let write = tool("x:t@1.0.0", Effects::WRITE);
    for mode in [NoSchemaMode::HumanApproval, NoSchemaMode::ReadOnly] {
        let unvalidated =
            PolicyQuery { unvalidated: Some(mode), scope: CallScope::Workspace, ..query(&write, HintTrust::Trusted) };
        for profile in [Profile::Ask, Profile::Client, Profile::Workspace, Profile::Trusted] {
            let name = format!("profile {}", profile.as_str());
            check(&Policy::of(profile), &unvalidated, Effect::Ask, &name);
            let with = |rules| Policy { rules: serde_json::from_value(rules).expect("rules"), ..Policy::of(profile) };
            let allow = json!({"effect": "allow", "tool": "x:*"});
            check(&with(json!([allow])), &unvalidated, Effect::Allow, "rule 1");
            check(&with(json!([{"effect": "deny", "tool": "x:t"}, allow])), &unvalidated, Effect::Deny, "rule 1");
            check(&with(json!([{"effect": "allow", "tool": "y:*"}])), &unvalidated, Effect::Ask, &name);
        }
        check(&Policy::of(Profile::Owner), &unvalidated, Effect::Allow, "profile owner");
    }
}

fn policy(rules: Value) -> Policy {
    serde_json::from_value(json!({"profile": "ask", "rules": rules})).expect("a policy")
}

#[test]
fn failing_conditions_deny() {
    let send = tool("bank:send@1.2.0", Effects::UNKNOWN);
    let arguments = json!({"to": "Dora", "amount": 98.7, "n": 5, "note": "see www.a.example", "deep": {"x": [1, 2]}});
    let dev = Principal { id: "ann".into(), roles: vec!["dev".into()], owner: false };
    let request = Arc::new(UserRequest::new(["Send 98.70 to Dora."]));
    let own = PolicyQuery { arguments: &arguments, principal: &dev, ..query(&send, HintTrust::Trusted) };
    let reported = PolicyQuery { request: Some(&request), ..own };
    for (when, alone, reported_verdict) in [
        ("args.amount > 50", Some(true), Some(true)),
        ("args.n > 4.5 && args.n == 5.0 && args.n <= 5", Some(true), Some(true)),
        ("args.to == 'Dora' && args.deep.x[0] == 1 && size(args.deep.x) == 2", Some(true), Some(true)),
        ("has(args.to) && !has(args.cc)", Some(true), Some(true)),
        ("'to' in args", Some(true), Some(true)),
        ("args.cc == 'x'", None, None),
        ("has(args.cc) && args.cc == 'x'", Some(false), Some(false)),
        ("args.to", None, None),
        ("args.to > 3", None, None),
        ("args.note.matches('(?i)WWW') && !matches(args.note, '^www')", Some(true), Some(true)),
        ("args.note.matches(args.to + '(')", None, None),
        ("args.note.contains('see') && args.note.startsWith('s')", Some(true), Some(true)),
        ("links(args) == ['www.a.example'] && emails(args) == [] && accounts(args.note) == []", Some(true), Some(true)),
        ("args.exists(k, k == 'n') && args.all(k, type(k) == string)", Some(true), Some(true)),
        (
            "tool.namespace == 'bank' && tool.name == 'send' && tool.id == 'bank:send@1.2.0' && 't' in tool.tags",
            Some(true),
            Some(true),
        ),
        (
            "effects.destructive && effects.open_world && !effects.read_only && !effects.idempotent",
            Some(true),
            Some(true),
        ),
        ("principal.id == 'ann' && 'dev' in principal.roles", Some(true), Some(true)),
        ("workspace.root == '/work' && !workspace.inside", Some(true), Some(true)),
        ("request.known", Some(false), Some(true)),
        ("request.mentions(args.to)", Some(false), Some(true)),
        ("request.mentions(args.amount)", Some(false), Some(true)),
        ("request.mentions(args.n)", Some(false), Some(false)),
        ("request.mentions([args.to, args.amount])", Some(false), Some(true)),
        ("request.mentions(args.deep)", Some(false), Some(false)),
        ("links(args).all(link, request.mentions(link))", Some(false), Some(false)),
    ] {
        for (query, expect) in [(own, alone), (reported, reported_verdict)] {
            for effect in ["allow", "ask", "deny"] {
                let policy = policy(json!([{"effect": effect, "tool": "bank:*", "when": when}]));
                let decision = policy.decide(&query);
                let by_rule = decision.rule == "rule 1";
                match expect {
                    Some(holds) => assert_eq!(by_rule, holds, "{when}: {decision:?}"),
                    None => {
                        assert!(by_rule && decision.effect == Effect::Deny, "{when}: {decision:?}");
                        assert!(decision.reason.contains("cannot be evaluated"), "{}", decision.reason);
                    }
                }
            }
        }
    }
    let other = tool("mail:send@1.0.0", Effects::UNKNOWN);
    let policy = policy(json!([{"effect": "deny", "tool": "bank:*", "when": "args.cc == 1"}]));
    check(&policy, &query(&other, HintTrust::Trusted), Effect::Ask, "profile ask");
}

#[test]
fn arguments_of_any_size_are_decided_on() {
    let write = tool("x:t@1.0.0", Effects::WRITE);
    let long = json!({"list": vec![1; 20_000], "text": "a".repeat(1 << 20)});
    let deep = (0..500).fold(json!(1), |inner, _| json!([inner]));
    for (arguments, when, effect) in [
        (&long, "args.list.exists(n, n == 2)", Effect::Ask),
        (&long, "args.list.exists(n, args.list.exists(m, m != n))", Effect::Deny),
        (&long, "args.text.matches('b$')", Effect::Ask),
        (&deep, "has(args.x)", Effect::Deny),
        (&json!("text"), "has(args.x)", Effect::Deny),
    ] {
        let query = PolicyQuery { arguments, ..query(&write, HintTrust::Trusted) };
        assert_eq!(policy(json!([{"effect": "allow", "when": when}])).decide(&query).effect, effect, "{when}");
    }
}

#[test]
fn foreign_hints_never_loosen_policy() {
    let meek = tool("gh:x@0.0.0", Effects::READ);
    let foreign = query(&meek, HintTrust::Foreign);
    for (selector, allows, holds_up) in [
        (json!({"effects": {"read_only": true}}), false, true),
        (json!({"effects": {"destructive": true}}), true, true),
        (json!({"effects": {"open_world": true}}), true, true),
        (json!({"when": "effects.read_only"}), false, true),
        (json!({"when": "effects.destructive"}), true, true),
        (json!({"tool": "other:*"}), false, false),
    ] {
        for (effect, matches) in [("allow", allows), ("deny", holds_up), ("ask", holds_up)] {
            let mut rule = selector.clone();
            rule["effect"] = json!(effect);
            let decision = policy(json!([rule])).decide(&foreign);
            assert_eq!(decision.rule == "rule 1", matches, "{effect} {selector}");
        }
        let selector: Selector = serde_json::from_value(selector).expect("a selector");
        assert_eq!(selector.selects(&foreign, &[]), Ok(holds_up), "a guard is bound like a rule that tightens");
    }
}

#[test]
fn the_operator_may_declare_tool_effects() {
    let says_nothing = tool("gh:get_issue@0.0.0", Effects::UNKNOWN);
    let says_all = tool("gh:get_issue@0.0.0", Effects::READ);
    let notes = json!([
        {"tool": "gh:get_*", "effects": {"read_only": true, "open_world": false}, "tags": ["mine"]},
        {"tool": "gh:*", "tags": ["never"]},
    ]);
    let with = |rules: Value, notes: &Value| -> Policy {
        serde_json::from_value(json!({"rules": rules, "tools": notes})).expect("a policy")
    };
    for definition in [&says_nothing, &says_all] {
        let foreign = query(definition, HintTrust::Foreign);
        check(&with(json!([]), &notes), &foreign, Effect::Allow, "profile ask");
        let reads = json!([{"effect": "allow", "effects": {"read_only": true, "destructive": false}}]);
        check(&with(reads, &notes), &foreign, Effect::Allow, "rule 1");
        let tagged = json!([{"effect": "deny", "tag": "other"}, {"effect": "deny", "tag": "mine", "when": "'never' in tool.tags"}]);
        check(&with(tagged, &notes), &foreign, Effect::Deny, "rule 2");
        let both = json!([{"effect": "ask", "tag": "never", "effects": {"open_world": false}}]);
        check(&with(both, &notes), &foreign, Effect::Ask, "rule 1");
        let partly = json!([{"tool": "gh:*", "effects": {"open_world": false}}]);
        check(&with(json!([]), &partly), &foreign, Effect::Ask, "profile ask");
    }
}

#[test]
fn authors_can_demand_but_not_waive_approval() {
    for (approval, threat, asks) in [
        (Some("always"), None, true),
        (Some("something new"), None, true),
        (Some("never"), Some("low"), false),
        (None, Some("High"), true),
        (None, Some("critical"), true),
        (None, Some("medium"), false),
    ] {
        let mut read = tool("x:t@1.0.0", Effects::READ);
        read.approval = approval.map(str::to_owned);
        read.threat_level = threat.map(str::to_owned);
        let mut write = ToolDefinition { effects: Effects::WRITE, ..read.clone() };
        write.approval = Some("never".into());
        let (rule, effect) = if asks { ("tool", Effect::Ask) } else { ("profile trusted", Effect::Allow) };
        check(&Policy::of(Profile::Trusted), &query(&read, HintTrust::Trusted), effect, rule);
        check(&Policy::of(Profile::Ask), &query(&write, HintTrust::Trusted), Effect::Ask, "profile ask");
        check(&Policy::of(Profile::Owner), &query(&read, HintTrust::Trusted), Effect::Allow, "profile owner");
        check(&policy(json!([{"effect": "allow"}])), &query(&read, HintTrust::Trusted), Effect::Allow, "rule 1");
    }
}

#[test]
fn policy_round_trips() {
    let text = json!({
        "profile": "workspace",
        "rules": [
            {"effect": "deny", "tool": "a:*", "effects": {"read_only": false}, "when": "args.x == 1", "reason": "no"},
            {"effect": "ask"},
        ],
        "tools": [{"tool": "b:*", "tags": ["t"]}],
    });
    let policy: Policy = serde_json::from_value(text.clone()).expect("a policy");
    assert_eq!(serde_json::to_value(&policy).expect("JSON"), text);
    for (text, expect) in [
        (json!({"rules": [{"effect": "ask", "whem": "true"}]}), "whem"),
        (json!({"rules": [{"effect": "ask", "when": "args."}]}), "cannot be read"),
        (json!({"rules": [{"effect": "ask", "effects": {"reads": true}}]}), "reads"),
        (json!({"rules": [{"effect": "perhaps"}]}), "perhaps"),
    ] {
        let error = serde_json::from_value::<Policy>(text.clone()).expect_err("no policy").to_string();
        assert!(error.contains(expect), "{text}: {error}");
    }
}

#[test]
fn untrusted_tools_may_have_any_effect() {
    let read = tool("x:read@1.0.0", Effects::READ);
    let plain = Policy::default();
    let noted: Policy =
        serde_json::from_value(json!({"tools": [{"tool": "x:*", "effects": {"destructive": false}}]})).expect("policy");
    let (own, foreign) = (query(&read, HintTrust::Trusted), query(&read, HintTrust::Foreign));
    assert_eq!(plain.effects_if_trusted(&own), Effects::READ);
    assert_eq!(plain.effects_if_trusted(&foreign), Effects::UNKNOWN);
    assert_eq!(noted.effects_if_trusted(&foreign), Effects { destructive: false, ..Effects::UNKNOWN });
}

#[test]
fn possible_decisions_are_known_without_arguments() {
    let send =
        tool("x:send@1.0.0", Effects { read_only: false, destructive: false, idempotent: false, open_world: true });
    let (allow, ask, none) = ((true, false), (false, true), (false, false));
    for (profile, rules, expect) in [
        ("ask", json!([]), ask),
        ("trusted", json!([]), allow),
        ("ask", json!([{"effect": "allow", "tool": "x:send"}]), allow),
        ("trusted", json!([{"effect": "deny", "tool": "x:*"}, {"effect": "allow"}]), none),
        ("ask", json!([{"effect": "allow", "tool": "y:*"}]), ask),
        ("ask", json!([{"effect": "allow", "tool": "x:send", "when": "args.to == 'a'"}]), (true, true)),
        ("ask", json!([{"effect": "allow", "when": "args.to == 'a'"}, {"effect": "deny"}]), allow),
        ("ask", json!([{"effect": "deny", "when": "args.to == 'a'"}, {"effect": "deny"}]), none),
        ("ask", json!([{"effect": "allow", "role": "dev"}, {"effect": "deny"}]), none),
        ("ask", json!([{"effect": "allow", "effects": {"read_only": true}}, {"effect": "deny"}]), none),
        ("owner", json!([{"effect": "ask"}]), allow),
        ("owner", json!([{"effect": "ask"}, {"effect": "deny", "tool": "x:send"}]), allow),
        ("owner", json!([{"effect": "deny", "tool": "x:send"}, {"effect": "allow"}]), none),
    ] {
        let policy: Policy = serde_json::from_value(json!({"profile": profile, "rules": rules})).expect("policy");
        let prospects = policy.possible_decisions(&query(&send, HintTrust::Trusted));
        assert_eq!((prospects.allows, prospects.asks), expect, "{profile} {rules}");
    }
    let demanding = ToolDefinition { approval: Some("always".into()), ..send };
    let prospects = Policy::of(Profile::Trusted).possible_decisions(&query(&demanding, HintTrust::Trusted));
    assert_eq!((prospects.allows, prospects.asks), ask);
}

#[test]
fn own_configuration_asks_under_every_profile() {
    let write = tool("fs:write@1.0.0", Effects::WRITE);
    let query = PolicyQuery { scope: CallScope::Configuration, ..query(&write, HintTrust::Trusted) };
    for profile in [Profile::Ask, Profile::Workspace, Profile::Client, Profile::Trusted] {
        check(&Policy::of(profile), &query, Effect::Ask, &format!("profile {}", profile.as_str()));
        let rules = |rules: &serde_json::Value| -> Policy {
            let rules = serde_json::from_value(rules.clone()).expect("rules");
            Policy { profile, rules, tools: Vec::new(), within: None }
        };
        // Rules about files in general do not apply to it; rules that name it do, and those that tighten.
        for allow in [json!([{"effect": "allow"}]), json!([{"effect": "allow", "tool": "fs:*", "when": "true"}])] {
            check(&rules(&allow), &query, Effect::Ask, &format!("profile {}", profile.as_str()));
        }
        let named = json!([{"effect": "allow", "tool": "fs:write", "when": "workspace.configuration"}]);
        check(&rules(&named), &query, Effect::Allow, "rule 1");
        check(
            &rules(&json!([{"effect": "allow"}, {"effect": "deny", "tool": "fs:*"}])),
            &query,
            Effect::Deny,
            "rule 2",
        );
    }
    check(&Policy::of(Profile::Owner), &query, Effect::Allow, "profile owner");
}

#[test]
fn conditions_ask_where_arguments_came_from() {
    let send = tool("mail:send@1.0.0", Effects::UNKNOWN);
    let arguments =
        json!({"to": "a@b.c", "cc": ["x@y.z", "p@q.r"], "body": {"text": "hi", "tainted": false}, "tainted": 1});
    let web = Taint::of(&ToolId::parse("web:fetch@1.0.0").expect("id"));
    let at = |path: &str| TaintedArgument { path: path.into(), from: web.clone() };
    for (when, tainted, expect) in [
        ("args.to.tainted", vec!["/to"], Some(true)),
        ("args.to.tainted", vec!["/cc/1"], Some(false)),
        ("args['to'].tainted || args.cc[1].tainted", vec!["/cc/1"], Some(true)),
        ("args.cc[0].tainted", vec!["/cc/1"], Some(false)),
        ("args.cc.tainted && args.tainted", vec!["/cc/1"], Some(true)),
        ("args.body.text.tainted", vec!["/body"], Some(true)),
        ("args.body.tainted", vec![], Some(false)),
        ("args.to.tainted && args.body.text.tainted", vec![""], Some(true)),
        ("has(args.to) && args.to.tainted && !request.mentions(args.to)", vec!["/to"], Some(true)),
        ("[1].exists(x, args.to.tainted) ? args.to == 'a@b.c' : false", vec!["/to"], Some(true)),
        ("args['tainted'] == 1 && args.body['tainted'] == false", vec!["/to"], Some(true)),
        ("args.bcc.tainted", vec!["/to"], None),
    ] {
        let tainted: Vec<TaintedArgument> = tainted.into_iter().map(at).collect();
        let query = PolicyQuery { arguments: &arguments, tainted: &tainted, ..query(&send, HintTrust::Trusted) };
        let decision = policy(json!([{"effect": "deny", "tool": "mail:*", "when": when}])).decide(&query);
        let denied = decision.effect == Effect::Deny;
        match expect {
            Some(expect) => assert_eq!(denied, expect, "{when}: {}", decision.reason),
            None => assert!(denied && decision.reason.contains("there is no `bcc`"), "{when}: {}", decision.reason),
        }
    }
}

#[test]
fn outputs_of_untrusted_tools_are_tainted() {
    let notes = json!([{"tool": "rest:vouched", "open_world": false}]);
    let policy: Policy = serde_json::from_value(json!({"tools": notes})).unwrap_or_default();
    let closed = Effects { open_world: false, ..Effects::READ };
    for (id, effects, trust, kind, expect) in [
        ("gh:get@1.0.0", closed, HintTrust::Foreign, ProviderKind::Mcp, true),
        ("gh:get@1.0.0", Effects::UNKNOWN, HintTrust::Trusted, ProviderKind::Mcp, false),
        ("web:fetch@1.0.0", Effects::UNKNOWN, HintTrust::Trusted, ProviderKind::Builtin, true),
        ("fs:read@1.0.0", closed, HintTrust::Trusted, ProviderKind::Builtin, false),
        ("output:read@1.0.0", closed, HintTrust::Trusted, ProviderKind::Builtin, true),
        ("agent:todo@1.0.0", closed, HintTrust::Trusted, ProviderKind::Builtin, true),
        ("agent:ask_user@1.0.0", closed, HintTrust::Trusted, ProviderKind::Builtin, false),
        ("agent:scout@1.0.0", closed, HintTrust::Trusted, ProviderKind::Agent, true),
        ("app:add@1.0.0", closed, HintTrust::Trusted, ProviderKind::Native, false),
        ("rest:news@1.0.0", Effects::UNKNOWN, HintTrust::Trusted, ProviderKind::Rest, true),
    ] {
        let definition = tool(id, effects);
        assert_eq!(policy.taints(&query(&definition, trust), kind), expect, "{id}");
    }
}

#[test]
fn rules_see_each_part_of_a_call() {
    let mut edits = tool("fs:multi_edit@1.0.0", Effects::WRITE);
    edits.parts = ToolId::try_parse("fs:edit@1.0.0").map(|tool| CallParts { argument: "edits", tool });
    let arguments = json!({"edits": [{"path": "src/a.rs"}, {"path": "src/.env"}], "mode": "strict"});
    let own = PolicyQuery { arguments: &arguments, ..query(&edits, HintTrust::Trusted) };
    let in_src = "args.path.startsWith('src/')";
    let env = "has(args.path) && args.path.endsWith('.env')";
    for (profile, rules, effect, rule) in [
        ("trusted", json!([{"effect": "deny", "tool": "fs:edit"}]), Effect::Deny, "rule 1"),
        ("trusted", json!([{"effect": "deny", "tool": "fs__edit"}]), Effect::Deny, "rule 1"),
        ("trusted", json!([{"effect": "ask", "tool": "fs:edit", "when": env}]), Effect::Ask, "rule 1"),
        ("trusted", json!([{"effect": "deny", "when": env}]), Effect::Deny, "rule 1"),
        (
            "trusted",
            json!([{"effect": "deny", "tool": "fs:edit", "when": "args.path == 'b'"}]),
            Effect::Allow,
            "profile trusted",
        ),
        ("trusted", json!([{"effect": "deny", "tool": "fs:write"}]), Effect::Allow, "profile trusted"),
        ("ask", json!([{"effect": "allow", "tool": "fs:edit", "when": in_src}]), Effect::Allow, "rule 1"),
        (
            "ask",
            json!([{"effect": "allow", "tool": "fs:edit", "when": "args.path == 'src/a.rs'"}]),
            Effect::Ask,
            "profile ask",
        ),
        (
            "ask",
            json!([{"effect": "deny", "when": env}, {"effect": "allow", "tool": "fs:*", "when": in_src}]),
            Effect::Deny,
            "rule 1",
        ),
        (
            "ask",
            json!([{"effect": "allow", "tool": "fs:multi_edit", "when": "size(args.edits) < 3"}]),
            Effect::Allow,
            "rule 1",
        ),
    ] {
        let policy: Policy = serde_json::from_value(json!({"profile": profile, "rules": rules})).expect("policy");
        check(&policy, &own, effect, rule);
    }
    let web = Taint::of(&ToolId::parse("web:fetch@1.0.0").expect("id"));
    for (path, effect) in [("/edits/1/path", Effect::Deny), ("/mode", Effect::Allow)] {
        let tainted = [TaintedArgument { path: path.into(), from: web.clone() }];
        let own = PolicyQuery { tainted: &tainted, ..own };
        let rules = json!([{"effect": "deny", "tool": "fs:edit", "when": "args.path.tainted"}]);
        let policy: Policy = serde_json::from_value(json!({"profile": "trusted", "rules": rules})).expect("policy");
        assert_eq!(policy.decide(&own).effect, effect, "{path}");
    }
    let policy: Policy =
        serde_json::from_value(json!({"rules": [{"effect": "deny", "when": env, "reason": "secrets"}]}))
            .expect("policy");
    assert_eq!(policy.decide(&own).reason, "edits[1]: secrets");
    // A foreign tool's own hints count for nothing.
    let foreign = PolicyQuery { trust: HintTrust::Foreign, ..own };
    check(&Policy { profile: Profile::Trusted, ..policy }, &foreign, Effect::Allow, "profile trusted");
    let selector: Selector = serde_json::from_value(json!({"tool": "fs:edit", "when": env})).expect("selector");
    assert_eq!(selector.selects(&own, &[]), Ok(true), "a guard on the other tool looks at it");
}

#[test]
fn the_policy_that_decided_is_named() {
    let read = tool("fs:read@1.0.0", Effects::READ);
    let query = query(&read, HintTrust::Trusted);
    let allows = || Policy { rules: vec![Rule::allow("fs:read")], ..Policy::of(Profile::Ask) };
    for (own, outer, expect) in [
        (Policy::of(Profile::Trusted), Policy::of(Profile::Ask), "profile ask"),
        (Policy::of(Profile::Trusted).under(Policy::of(Profile::Trusted)), Policy::of(Profile::Ask), "profile ask"),
        (Policy::of(Profile::Trusted), allows(), "rule 1"),
        (Policy::of(Profile::Ask), Policy::of(Profile::Trusted), "profile ask"),
        (Policy::of(Profile::Trusted), Policy::of(Profile::Trusted), "profile trusted"),
        (allows(), Policy::of(Profile::Workspace), "rule 1"),
    ] {
        check(&own.under(outer), &query, Effect::Allow, expect);
    }
}
