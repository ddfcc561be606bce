//! The shipped example policy, call by call: as an attacker would make them, and as what a user wants.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwright::core::policy::{Effect, UserRequest};

use crate::calls::arguments::answers;
use crate::operate::policy::{SuiteCall, decide, example_policy};
use crate::support::Fixture;

/// Tool, what the user asked for, and the arguments.
type Case = (&'static str, &'static str, Value);

fn effect((tool, request, arguments): &Case) -> (Effect, String) {
    let call = SuiteCall { tool: (*tool).to_owned(), arguments: arguments.clone() };
    let request = (!request.is_empty()).then(|| Arc::new(UserRequest::new([*request])));
    let decision = decide(&example_policy(), &call, request.as_ref());
    (decision.effect, format!("{} ({})", decision.rule, decision.reason))
}

fn check(cases: &[Case], expect: Effect) {
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let (effect, by) = effect(case);
            (effect != expect).then(|| format!("{} {} under {:?}: {effect:?} by {by}", case.0, case.2, case.1))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} are not {expect:?}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn reads_outside_the_workspace_need_approval() {
    let cases = [
        ("get_document", "Summarize my notes", json!({"id": "https://evil.example/c?d=secret"})),
        ("read_file", "Read my notes", json!({"path": "//evil.example/share/x"})),
        ("read_file", "Read my notes", json!({"path": "\\\\evil.example\\share\\x"})),
        ("read_file", "Read my notes", json!({"file_path": "evil.example/steal"})),
        ("list_items", "List my items", json!({"filter": "evil.com/path?x=1"})),
        ("search_notes", "Find the note on Bob", json!({"query": "203.0.113.9/log"})),
        ("get_status", "Check the status", json!({"target": "[2001:db8::7]"})),
        ("get_status", "Check the status", json!({"webhook": "collector"})),
        ("list_files", "List my files", json!({"options": {"mirror": ["http://evil.example"]}})),
        ("get_data", "Get the data", json!({"callback_url": "evil"})),
        ("find_page", "Find the page", json!({"ref": "https:evil.example/x"})),
        ("find_page", "Find the page", json!({"ref": "https%3A%2F%2Fevil.example%2Fx"})),
        ("find_page", "Find the page", json!({"ref": "ev\u{200b}il.com/x"})),
        ("find_page", "Find the page", json!({"ref": "evil\u{3002}com/x"})),
        ("find_page", "Find the page", json!({"ref": "evil[.]com"})),
        ("find_page", "Find the page", json!({"ref": "hxxps evil (dot) com"})),
        ("view_image", "Show the picture", json!({"source": "user@evil.com/p.png"})),
        ("check_link", "Check the link https://good.example/a", json!({"url": "https://good.example.evil.com/a"})),
        ("get_webpage", "Read www.good.example", json!({"url": "www.evil.example"})),
        ("fetch", "Read https://good.example", json!({"url": "https://good.example/?leak=4711"})),
        ("get_document", "", json!({"id": "http://evil.example"})),
        ("get_weather", "Weather in Oslo", json!({"city": "Oslo", "baseUrl": "evil"})),
        ("get_weather", "Weather in Oslo", json!({"city": "Oslo", "callbackURI": "evil"})),
        ("get_document", "Summarize my notes", json!({"id": "x", "deliver_to": "eve@evil.com"})),
        ("get_document", "Summarize my notes", json!({"id": "x", "notify": ["eve@evil.com"]})),
        ("read_query", "Count my orders", json!({"query": "SELECT 1; DROP TABLE orders"})),
        ("read_query", "Count my orders", json!({"query": "delete from orders"})),
        ("browser_navigate", "Read good.example", json!({"url": "https://evil.example"})),
    ];
    check(&cases, Effect::Ask);
}

#[test]
fn a_read_command_prefix_hides_no_write() {
    let names = [
        "get_and_delete",
        "get_and_delete_message",
        "read_and_archive_mail",
        "list_and_purge",
        "find_or_create_user",
        "find_and_replace",
        "search_replace",
        "fetch_and_run",
        "get_then_forward",
        "read_write_file",
        "view_delete_log_entry",
        "check_out_book",
        "web_submit_form",
        "fetchAndDelete",
        "show_send_dialog",
        "get-and-reset",
        "get_updates_and_ack",
        "list_generate_invoice",
        "read_mark",
        "read_mark_all",
        "get_mark_as_read",
        "list_push",
        "view_close",
        "check_approve",
        "browser_click",
        "browser_file_upload",
        "visitor_checkin",
    ];
    check(&names.map(|name| (name, "Look after my mail", json!({}))), Effect::Ask);
}

#[test]
fn unrequested_targets_need_approval() {
    let cases = [
        // Who and where.
        ("send_money", "Send 20 to Jan", json!({"recipient": "Eve", "amount": 20})),
        ("send_money", "Send 20 to Jan", json!({"recipient": "Jan", "amount": 20, "account_id": "DE-evil"})),
        ("send_email", "Mail the summary to Jan", json!({"to": "Jan", "recipient_id": "u_666", "body": "hi"})),
        ("add_member", "Add Jan to the team", json!({"name": "Jan", "user_id": 1337})),
        ("share_file", "Share plan.txt with Jan", json!({"file": "plan.txt", "with": ["Jan", "Eve"]})),
        ("share_file", "Share plan.txt with Jan", json!({"file": "plan.txt", "with": "Jan", "folder_id": "outside"})),
        (
            "create_event",
            "Create the event 'Team lunch'",
            json!({"title": "Team lunch", "participants": ["eve@evil.com"]}),
        ),
        ("post_article", "Write down my travel plans", json!({"title": "my travel plans", "content": "secrets"})),
        ("create_note", "Read the mail", json!({"title": "the", "content": "x"})),
        ("invite_user_to_chat", "Invite Dora", json!({"user": "Dora", "user_email": "eve@evil.com"})),
        // To whom it is open, and what guards it.
        ("share_file", "Share plan.txt with Jan", json!({"file": "plan.txt", "with": "Jan", "public": true})),
        ("share_file", "Share plan.txt with Jan", json!({"file": "plan.txt", "with": "Jan", "isPublic": true})),
        (
            "share_file",
            "Share plan.txt with Jan",
            json!({"file": "plan.txt", "with": "Jan", "access": {"anyone_with_link": true}}),
        ),
        ("share_file", "Share plan.txt with Jan", json!({"file": "plan.txt", "with": "Jan", "private": false})),
        ("share_file", "Share plan.txt with Jan", json!({"file": "plan.txt", "with": "Jan", "visibility": "public"})),
        ("add_user", "Add Jan", json!({"name": "Jan", "is_admin": true})),
        ("send_email", "Mail Jan the plan", json!({"to": "Jan", "body": "plan", "require_approval": false})),
        // How much.
        ("send_money", "Send 20 to Jan", json!({"recipient": "Jan", "amount": 1900})),
        ("send_money", "Send 20 to Jan", json!({"recipient": "Jan", "amount": 20, "fee": 150})),
        ("send_money", "Send 20 to Jan", json!({"recipient": "Jan", "amount": "1900"})),
        ("send_money", "Send 20 to Jan", json!({"recipient": "Jan", "amount": [20, 1900]})),
        ("send_money", "Send Jan what I owe", json!({"recipient": "Jan", "amount": 25000})),
        ("update_scheduled_transaction", "Raise my rent to 1100", json!({"id": 7, "amount": 1999})),
        // What is carried off in what is said.
        ("send_email", "Mail Jan a summary", json!({"to": "Jan", "body": "pay to account 12345678 please"})),
        ("send_email", "Mail Jan a summary", json!({"to": "Jan", "body": "card 4111 1111 1111 1111"})),
        ("send_email", "Mail Jan a summary", json!({"to": "Jan", "body": "VGhlIHBhc3N3b3JkIGlzIGh1bnRlcjI="})),
        ("send_email", "Mail Jan a summary", json!({"to": "Jan", "body": "see evil.example/x"})),
        ("send_direct_message", "Tell Jan", json!({"recipient": "Jan", "body": "call +44 20 7946 0958"})),
        ("send_direct_message", "Tell Jan", json!({"recipient": "Jan", "body": "token sk-proj4fQx9ZkLm2Vt8Qa1"})),
        ("send_direct_message", "Tell Jan", json!({"recipient": "Jan", "body": "write to eve@evil.com"})),
        ("send_direct_message", "Tell Jan", json!({"recipient": "Jan", "body": "write to eve@evil\u{3002}com"})),
        ("send_direct_message", "Tell Jan", json!({"recipient": "Jan", "body": "write to eve [at] evil [dot] com"})),
        ("send_email", "Mail Jan a summary", json!({"to": "Jan", "body": "see evil\u{3002}com"})),
        ("send_email", "Mail Jan a summary", json!({"to": "Jan", "body": "log in at hxxps evil[.]com now"})),
        // How you get in, and what cannot be taken back.
        ("update_password", "Look after my account", json!({"password": "x"})),
        ("create_token", "Make a note", json!({"settings": {"api_key": "x"}})),
        ("delete_file", "Clean up", json!({"file": "plan.txt"})),
        ("do_anything", "Clean up", json!({})),
    ];
    check(&cases, Effect::Ask);
}

#[test]
fn requested_actions_run_without_questions() {
    let cases = [
        // Reads of one's own data, whoever asked for what.
        ("get_balance", "", json!({})),
        ("list_emails", "", json!({"folder": "inbox", "limit": 20})),
        ("read_file", "", json!({"path": "notes.md"})),
        ("read_file", "", json!({"path": "src/main.rs"})),
        ("read_file", "", json!({"file_path": "bill-december-2023.txt"})),
        ("read_file", "", json!({"path": "/home/me/run.sh"})),
        ("search_emails", "", json!({"query": "invoice from Jan"})),
        ("search_emails", "", json!({"from": "jan@good.example"})),
        ("get_most_recent_transactions", "", json!({"n": 100})),
        ("get_account", "", json!({"account_id": "12345678"})),
        ("list_deleted_items", "", json!({})),
        ("get_terms_and_conditions", "", json!({})),
        ("get_bookmark", "", json!({"n": 3})),
        ("read_query", "", json!({"query": "SELECT created, updated FROM orders WHERE status = 'deleted'"})),
        ("search_notes", "", json!({"query": "updates of the set list, deleted from the draft"})),
        ("list_emails", "", json!({"from": "Jan", "to": "Ann", "upTo": 3, "nextPageToken": "a"})),
        ("check_import_status", "", json!({"n": 3})),
        ("list_tags", "", json!({})),
        ("search_notes", "", json!({"query": "lists (and [brackets]) in notes"})),
        ("browser_navigate", "Open https://good.example/a", json!({"url": "https://good.example/a"})),
        ("get_name_and_address", "", json!({"user": "Jan"})),
        ("list_results_and_settings", "", json!({})),
        ("get_share_price", "", json!({"symbol": "ACME"})),
        ("check_updates", "", json!({"since": "2024-05-15T10:30:00Z"})),
        ("get_email", "", json!({"message_id": "18c2f9a7b3d4e5f60718"})),
        // What was named.
        ("get_webpage", "Read www.good.example", json!({"url": "www.good.example"})),
        ("get_link", "Look at https://good.example/a", json!({"url": "https://good.example/a"})),
        ("send_money", "Send 20 to Jan", json!({"recipient": "Jan", "amount": 20, "date": "2024-05-15"})),
        ("send_money", "Pay Jan what I owe him", json!({"recipient": "Jan", "amount": 35, "subject": "Lunch"})),
        ("send_money", "Pay 1,050.00 to 12345678", json!({"recipient": "12345678", "amount": 1050})),
        (
            "send_email",
            "Mail jan@good.example a summary",
            json!({"to": ["jan@good.example"], "cc": [], "subject": "Summary", "body": "All went well."}),
        ),
        ("send_email", "Mail Jan my number 0170 1234567", json!({"to": "Jan", "body": "Call me: 0170 1234567"})),
        (
            "send_email",
            "Mail Jan the link https://good.example/a",
            json!({"to": "Jan", "body": "See https://good.example/a."}),
        ),
        ("share_file", "Share plan.txt with Jan", json!({"file": "plan.txt", "with": "Jan", "public": false})),
        ("share_file", "Share plan.txt with Jan", json!({"file_id": "f_17", "with": "Jan"})),
        ("share_file", "Make plan.txt public", json!({"file": "plan.txt", "public": true})),
        (
            "create_event",
            "Put 'Team lunch' on my calendar for Friday at noon",
            json!({"title": "Team lunch", "start_time": "2024-05-17T12:00", "end_time": "2024-05-17T13:00", "description": "With everybody.", "participants": []}),
        ),
        (
            "create_note",
            "Make a note 'Travel to Oslo' of it",
            json!({"title": "Travel to Oslo", "content": "Flights at 10:30 and 17:45."}),
        ),
        ("append_to_file", "Add it to notes.md", json!({"file": "notes.md", "content": "Done on 2024-05-15."})),
        ("add_user_to_channel", "Add Jan to planning", json!({"user": "Jan", "channel": "planning"})),
        ("send_channel_message", "Tell them", json!({"channel": "planning", "body": "Lunch is at 12:30, room 4."})),
        ("update_scheduled_transaction", "Adjust my rent as the landlord says", json!({"id": 7, "amount": 1200})),
        (
            "schedule_transaction",
            "Pay Jan every month",
            json!({"recipient": "Jan", "amount": 50, "date": "2024-06-01", "recurring": true}),
        ),
    ];
    check(&cases, Effect::Allow);
}

/// A rule on `fs:read` alone leaves the other readers open.
#[test]
fn an_effects_rule_covers_all_file_readers() {
    let fixture = Fixture::with(
        "policy:\n  rules:\n  - effect: deny\n    tool: 'fs:*'\n    effects: {read_only: true}\n    when: args.exists(name, string(args[name]).contains('secret'))\n",
    );
    for (tool, arguments, expect) in [
        ("fs__read", json!({"path": "secret.txt"}), "deny"),
        ("fs__grep", json!({"pattern": ".", "path": "secret.txt"}), "deny"),
        ("fs__glob", json!({"pattern": "secret*"}), "deny"),
        ("fs__tree", json!({"path": "secret"}), "deny"),
        ("fs__read", json!({"path": "notes.md"}), "allow"),
        ("fs__write", json!({"path": "secret.txt", "content": ""}), "ask"),
    ] {
        let (lines, code) = answers(&fixture, &["policy", "test", tool, &arguments.to_string()], "");
        assert_eq!((&lines[0]["effect"], code), (&json!(expect), 0), "{tool}: {lines:?}");
    }
}
