//! Responses and conversations that are kept: for their owner, while a person decides, and when their client leaves.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use toolwright::core::approval::ApprovalDecision;
use toolwright::core::inbox::QuestionState;
use toolwright_testkit::model_server::{Fault, Reply, Turn};
use toolwright_testkit::stream_order::check_stream;

use crate::served::facades::{KEY, MODEL, Served, client_tool, request, tempfile, text_of, until, with_result};
use crate::support::{Add, Send, builder, calls, scripted, sum, with_model};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_are_kept_for_their_owner() {
    let echo = || Turn::computed(|asked| Reply::text(format!("heard {}", asked.last_user_text())));
    let settings = json!({"server": {"tokens": {"guest": {"token": "other"}}}});
    let (builder, _model) = scripted(builder().settings(settings), (0..4).map(|_| echo()).collect()).await;
    let served = Served::of(builder).await;
    let first =
        served.post("/v1/responses", json!({"model": MODEL, "input": "one", "metadata": {"a": "b"}})).await.json();
    let id = first["id"].as_str().expect("an id");
    assert_eq!(first["metadata"], json!({"a": "b"}));
    let path = format!("/v1/responses/{id}");
    assert_eq!(served.get(&path).await.json(), first, "it can be read at once");
    let items = served.get(&format!("{path}/input_items")).await.json();
    assert_eq!(items["data"][0]["content"][0]["text"], "one");
    let stranger = served.send("GET", &path, "x-api-key: other", &Value::Null).await;
    assert_eq!(stranger.status, 404, "{}", stranger.text);
    let next = json!({"model": MODEL, "input": "two", "previous_response_id": id});
    assert_eq!(text_of(&served.post("/v1/responses", next).await.json()), "heard two");
    let unkept = served.post("/v1/responses", json!({"model": MODEL, "input": "x", "store": false})).await.json();
    let gone = served.get(&format!("/v1/responses/{}", unkept["id"].as_str().expect("an id"))).await;
    assert_eq!(gone.status, 404);
    let conversation = served.post("/v1/conversations", json!({"metadata": {"c": "d"}})).await.json();
    let within = json!({"model": MODEL, "input": "three", "conversation": conversation["id"]});
    assert_eq!(text_of(&served.post("/v1/responses", within).await.json()), "heard three");
    let items = format!("/v1/conversations/{}/items?order=asc", conversation["id"].as_str().expect("an id"));
    let listed = served.get(&items).await.json();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(2));
    let item = items.replace("?order=asc", &format!("/{}", listed["data"][0]["id"].as_str().expect("an id")));
    assert_eq!(served.get(&item).await.json(), listed["data"][0]);
    let refused = served.send("DELETE", &item, &format!("x-api-key: {KEY}"), &Value::Null).await;
    assert_eq!(refused.status, 409, "the run behind it has it too: {}", refused.text);
    let deleted = served.send("DELETE", &path, &format!("x-api-key: {KEY}"), &Value::Null).await;
    assert_eq!((deleted.json()["deleted"].clone(), served.get(&path).await.status), (json!(true), 404));
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_messages_apply_to_later_turns() {
    let turns = (0..8).map(|_| Turn::text("Aye."));
    let (builder, model) = scripted(builder(), turns.collect()).await;
    let served = Served::of(builder).await;
    for name in [MODEL.to_owned(), format!("raw/{MODEL}")] {
        let rule = json!({"type": "message", "role": "developer", "content": "Speak as a pirate."});
        let first = json!({"model": name, "input": [rule.clone(), {"role": "user", "content": "one"}], "instructions": "Once."});
        let id = served.post("/v1/responses", first).await.json()["id"].clone();
        for _ in 0..2 {
            let next = json!({"model": name, "input": "two", "previous_response_id": id});
            served.post("/v1/responses", next).await;
            let body = model.requests().pop().expect("asked").body.to_string();
            assert!(body.contains("Speak as a pirate.") && !body.contains("Once."), "{name}: {body}");
        }
        let conversation =
            served.post("/v1/conversations", json!({"items": [rule.clone()]})).await.json()["id"].clone();
        served.post("/v1/responses", json!({"model": name, "input": "number one", "conversation": conversation})).await;
        let body = model.requests().pop().expect("asked").body.to_string();
        assert!(body.contains("Speak as a pirate."), "{name}: {body}");
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_clients_approve_calls() {
    let settings = json!({"server": {"facades": {"approvals": "tool"}}});
    let script = || {
        vec![calls("mail__send", json!({"to": "me"})), Turn::computed(|asked| Reply::text(asked.last_result_text()))]
    };
    let script: Vec<Turn> = (0..3).flat_map(|_| script()).collect();
    let (builder, _model) = scripted(builder().tool(Send).settings(settings), script).await;
    let served = Served::of(builder).await;
    let path = "/v1/chat/completions";
    let mut first = request(path, "mail me", false);
    first["tools"] =
        json!([{"type": "function", "function": {"name": "approve_tool_call", "parameters": {"type": "object"}}}]);
    let asked = served.post(path, first.clone()).await.json();
    let call = &asked["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "approve_tool_call", "{asked}");
    assert!(call["arguments"].as_str().is_some_and(|arguments| arguments.contains("mail__send")), "{call}");
    let done = served.post(path, with_result(path, &first, &asked, "{\"approved\": true}")).await.json();
    assert_eq!(text_of(&done), "sent to me", "{done}");
    let path = "/v1/responses";
    let asked = served.post(path, request(path, "mail me", false)).await.json();
    let items = asked["output"].as_array().expect("items");
    let question = items.iter().find(|item| item["type"] == "mcp_approval_request").expect("a question");
    let answer = json!([{"type": "mcp_approval_response", "approval_request_id": question["id"], "approve": true}]);
    let next = json!({"model": MODEL, "previous_response_id": asked["id"], "input": answer});
    let done = served.post(path, next).await.json();
    assert_eq!(text_of(&done), "sent to me", "{done}");
    // Without the tool nobody is asked.
    let denied = served.post("/v1/messages", request("/v1/messages", "mail me", false)).await.json();
    assert!(text_of(&denied).contains("denied"), "{denied}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_responses_are_fetched_once_decided() {
    let folder = tempfile();
    let script =
        vec![calls("mail__send", json!({"to": "me"})), Turn::computed(|asked| Reply::text(asked.last_result_text()))];
    let (builder, _model) = scripted(builder().tool(Send).state_dir(&folder), script).await;
    let served = Served::of(builder).await;
    let pending = served.post("/v1/responses", request("/v1/responses", "mail me", false)).await.json();
    assert_eq!(pending["status"], "in_progress", "{pending}");
    let items = pending["output"].as_array().expect("items");
    let question = items.iter().find(|item| item["type"] == "mcp_approval_request").expect("a question");
    assert_eq!(question["name"], "mail__send", "the name that its call has");
    let inbox = served.tw.inbox();
    let asked = inbox.questions(Some(QuestionState::Pending), 9).await.expect("questions");
    inbox.answer(&asked[0].id, &ApprovalDecision::Approve, "test").await.expect("answered");
    let path = format!("/v1/responses/{}", pending["id"].as_str().expect("an id"));
    let done = completed(&served, &path).await;
    assert_eq!((done["status"].clone(), text_of(&done).as_str()), (json!("completed"), "sent to me"), "{done}");
    served.end().await;
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// A response once it is no longer in progress.
async fn completed(served: &Served, path: &str) -> Value {
    loop {
        let now = served.get(path).await.json();
        if now["status"] != "in_progress" {
            return now;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_responses_continue_after_a_restart() {
    let folder = tempfile();
    let first = Turn::text_and_calls("Sending. ", vec![("mail__send", json!({"to": "me"}))]);
    let script = vec![first, Turn::computed(|asked| Reply::text(asked.last_result_text()))];
    let settings = json!({"server": {"shutdown_grace": "100ms"}});
    let builder = || builder().tool(Send).state_dir(&folder).settings(settings.clone());
    let (first, model) = scripted(builder(), script).await;
    let served = Served::of(first).await;
    let pending = served.post("/v1/responses", request("/v1/responses", "mail me", false)).await.json();
    assert_eq!(pending["status"], "in_progress", "{pending}");
    served.end().await;
    let served = Served::of(with_model(builder(), &model)).await;
    let path = format!("/v1/responses/{}", pending["id"].as_str().expect("an id"));
    // However many ask for it, it is driven once.
    let polls = futures_util::future::join_all((0..4).map(|_| served.get(&path))).await;
    for poll in polls {
        let now = poll.json();
        assert_eq!((&now["status"], &now["output"]), (&json!("in_progress"), &pending["output"]), "{now}");
    }
    let inbox = served.tw.inbox();
    let question = loop {
        let asked = inbox.questions(Some(QuestionState::Pending), 9).await.expect("questions");
        match asked.first() {
            Some(question) => {
                assert_eq!(asked.len(), 1, "one run asks");
                break question.id.clone();
            }
            None => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    inbox.answer(&question, &ApprovalDecision::Approve, "test").await.expect("answered");
    let done = completed(&served, &path).await;
    assert_eq!(
        (done["status"].clone(), text_of(&done).as_str()),
        (json!("completed"), "Sending. sent to me"),
        "{done}"
    );
    let kinds: Vec<&str> =
        done["output"].as_array().into_iter().flatten().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, ["message", "mcp_call", "mcp_approval_request", "message"], "{done}");
    assert_eq!(done["output"][1]["status"], "completed", "{done}");
    assert_eq!(model.requests().len(), 2, "the model was asked by one run");
    served.end().await;
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_responses_stay_deleted() {
    let folder = tempfile();
    let slow = || Turn::text("done").with_delay(std::time::Duration::from_millis(300));
    let (first, model) = scripted(builder().state_dir(&folder), vec![slow(), slow()]).await;
    let served = Served::of(first).await;
    let conversation = served.post("/v1/conversations", json!({})).await.json();
    let begin = async |within: &Value| {
        let mut body = json!({"model": MODEL, "input": "x", "background": true});
        if !within.is_null() {
            body["conversation"] = within.clone();
        }
        let begun = served.post("/v1/responses", body).await.json();
        format!("/v1/responses/{}", begun["id"].as_str().expect("an id"))
    };
    let (within, alone) = (begin(&conversation["id"]).await, begin(&Value::Null).await);
    let conversation = format!("/v1/conversations/{}", conversation["id"].as_str().expect("an id"));
    for path in [&conversation, &alone] {
        let deleted = served.send("DELETE", path, &format!("x-api-key: {KEY}"), &Value::Null).await;
        assert_eq!(deleted.json()["deleted"], true, "{}", deleted.text);
        assert_eq!(served.get(path).await.status, 404);
    }
    assert_eq!(completed(&served, &within).await["status"], "completed", "a response outlives its conversation");
    served.end().await;
    let served = Served::of(with_model(builder().state_dir(&folder), &model)).await;
    assert_eq!((served.get(&conversation).await.status, served.get(&alone).await.status), (404, 404));
    assert_eq!(served.get(&within).await.status, 200);
    served.end().await;
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_and_background_requests_continue() {
    let settings = json!({"server": {"facades": {"on_disconnect": "continue"}}});
    let slow = || Turn::text("done").with_delay(std::time::Duration::from_millis(300));
    let (builder, _model) = scripted(builder().settings(settings), vec![slow(), slow()]).await;
    let served = Served::of(builder).await;
    let conversation = served.post("/v1/conversations", json!({})).await.json();
    let body = json!({"model": MODEL, "input": "x", "stream": true, "conversation": conversation["id"]});
    let leaving = served.post("/v1/responses", body);
    let left = tokio::time::timeout(std::time::Duration::from_millis(100), leaving).await;
    assert!(left.is_err(), "the client left before the answer");
    let items = format!("/v1/conversations/{}/items", conversation["id"].as_str().expect("an id"));
    until(&served, &items, |body| body["data"].as_array().is_some_and(|items| items.len() == 2)).await;
    let begun = served.post("/v1/responses", json!({"model": MODEL, "input": "x", "background": true})).await.json();
    assert_eq!(begun["status"], "in_progress", "{begun}");
    let path = format!("/v1/responses/{}", begun["id"].as_str().expect("an id"));
    until(&served, &path, |body| body["status"] == "completed").await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_answers_one_request_at_once() {
    let slow = || Turn::text("done").with_delay(std::time::Duration::from_millis(300));
    let (builder, _model) = scripted(builder(), vec![slow(), slow()]).await;
    let served = Served::of(builder).await;
    let conversation = served.post("/v1/conversations", json!({})).await.json();
    let body = json!({"model": MODEL, "input": "x", "conversation": conversation["id"]});
    let (one, other) =
        tokio::join!(served.post("/v1/responses", body.clone()), served.post("/v1/responses", body.clone()));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{} {}", one.text, other.text);
    assert_eq!(served.post("/v1/responses", body).await.status, 200);
    let items = format!("/v1/conversations/{}/items", conversation["id"].as_str().expect("an id"));
    assert_eq!(served.get(&items).await.json()["data"].as_array().map(Vec::len), Some(4));
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_requests_are_cancelled() {
    let slow = || Turn::text("done").with_delay(std::time::Duration::from_secs(60));
    let (builder, _model) = scripted(builder(), vec![slow(), slow()]).await;
    let served = Served::of(builder).await;
    for stream in [true, false] {
        let mut body = request("/v1/chat/completions", "x", stream);
        body["model"] = json!("raw/scripted/model");
        body["user"] = json!(format!("leaves {stream}"));
        let leaving = served.post("/v1/chat/completions", body);
        let left = tokio::time::timeout(std::time::Duration::from_millis(200), leaving).await;
        assert!(left.is_err(), "the client left before the answer");
    }
    until(&served, "/api/usage?by=model", |body| body["totals"]["failures"] == 2).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_count_among_calls() {
    let settings = json!({"server": {"facades": {"approvals": "tool"}}});
    let script = (0..2).flat_map(|_| {
        let both = Turn::calls(vec![("weather", json!({"city": "Oslo"})), ("mail__send", json!({"to": "me"}))]);
        [both, all_results()]
    });
    let (builder, model) = scripted(builder().tool(Send).settings(settings), script.collect()).await;
    let served = Served::of(builder).await;

    let path = "/v1/responses";
    let mut next = request(path, "Weather and mail?", false);
    next["tools"] = client_tool(path);
    let asked = served.post(path, next.clone()).await.json();
    let id_of = |kind: &str, key: &str| {
        let items = asked["output"].as_array().expect("items");
        items.iter().find(|item| item["type"] == kind).expect(kind)[key].clone()
    };
    let (call, question) = (id_of("function_call", "call_id"), id_of("mcp_approval_request", "id"));
    let result = json!({"type": "function_call_output", "call_id": call, "output": "rain"});
    let decision =
        |yes: bool| json!({"type": "mcp_approval_response", "approval_request_id": question, "approve": yes});
    next["previous_response_id"] = asked["id"].clone();
    for (input, field, named) in [
        (json!([result]), "input", &question),
        (json!([decision(true)]), "input", &call),
        (json!([result, decision(true), decision(false)]), "input[2].approval_request_id", &question),
    ] {
        next["input"] = input;
        refuses(&served, path, &next, field, named).await;
    }
    next["input"] = json!([result, decision(true)]);
    let done = served.post(path, next.clone()).await.json();
    assert_eq!(text_of(&done), "rain and sent to me", "{done}");
    let unknown = json!("appr_unknown");
    for (name, earlier, id) in [
        (MODEL, &done["id"], &question),
        (MODEL, &Value::Null, &unknown),
        ("raw/scripted/model", &done["id"], &question),
    ] {
        (next["model"], next["previous_response_id"]) = (json!(name), earlier.clone());
        next["input"] = json!([{"type": "mcp_approval_response", "approval_request_id": id, "approve": true}]);
        refuses(&served, path, &next, "input[0].approval_request_id", id).await;
    }

    let path = "/v1/chat/completions";
    let mut next = request(path, "Weather and mail?", false);
    next["tools"] = client_tool(path);
    let approve =
        json!({"type": "function", "function": {"name": "approve_tool_call", "parameters": {"type": "object"}}});
    next["tools"].as_array_mut().expect("tools").push(approve);
    let asked = served.post(path, next.clone()).await.json();
    let message = asked["choices"][0]["message"].clone();
    let ids = [0, 1].map(|at| message["tool_calls"][at]["id"].clone());
    let result = |id: &Value, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    let results = [result(&ids[0], "rain"), result(&ids[1], "yes")];
    next["messages"].as_array_mut().expect("messages").push(message);
    let with = |results: &[&Value]| {
        let mut next = next.clone();
        next["messages"].as_array_mut().expect("messages").extend(results.iter().map(|result| (*result).clone()));
        next
    };
    for (given, named) in [
        (with(&[&results[0]]), &ids[1]),
        (with(&[&results[1]]), &ids[0]),
        (with(&[&results[0], &results[0], &results[1]]), &ids[0]),
    ] {
        refuses(&served, path, &given, "messages", named).await;
    }
    let done = served.post(path, with(&[&results[0], &results[1]])).await.json();
    assert_eq!(text_of(&done), "rain and sent to me", "{done}");
    assert_eq!(model.requests().len(), 4);
    served.end().await;
}

/// Checks that a request is refused with 400, about this field and naming this id.
async fn refuses(served: &Served, path: &str, request: &Value, field: &str, id: &Value) {
    let refused = served.post(path, request.clone()).await;
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, &error["param"]), (400, &json!(field)), "{request}: {}", refused.text);
    let (message, id) = (error["message"].as_str().expect("a message"), id.as_str().expect("an id"));
    assert!(message.contains(id), "{request}: {message}");
}

fn all_results() -> Turn {
    Turn::computed(|asked| {
        let results: Vec<String> = asked.last_results().into_iter().map(|result| result.text).collect();
        Reply::text(results.join(" and "))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_results_in_input_are_history() {
    let heard = || Turn::computed(|asked| Reply::text(asked.last_user_text()));
    let weather = || calls("weather", json!({"city": "Oslo"}));
    let both = Turn::calls(vec![("weather", json!({"city": "Oslo"})), ("math__add", sum(2, 40))]);
    let script = vec![heard(), heard(), heard(), weather(), heard(), heard(), weather(), heard(), both, all_results()];
    let (builder, model) = scripted(builder().tool(Add), script).await;
    let served = Served::of(builder).await;
    let path = "/v1/responses";
    let last_request = || model.requests().pop().expect("a request").body.to_string();
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "weather", "arguments": "{}"});
    let result = |id: &Value, text: &str| json!({"type": "function_call_output", "call_id": id, "output": text});
    let said = json!({"role": "user", "content": "and now?"});
    let history = json!([call("c1"), result(&json!("c1"), "sunshine"), said]);

    let kept = served.post(path, request(path, "number one", false)).await.json()["id"].clone();
    let conversation = served.post("/v1/conversations", json!({})).await.json()["id"].clone();
    let in_conversation = json!({"model": MODEL, "input": "number one", "conversation": conversation});
    served.post(path, in_conversation).await;
    for (key, id) in [("previous_response_id", &kept), ("conversation", &conversation)] {
        let mut next = json!({"model": MODEL, "input": history, "tools": client_tool(path)});
        next[key] = id.clone();
        let done = served.post(path, next.clone()).await;
        assert_eq!(text_of(&done.json()), "and now?", "{key}: {}", done.text);
        let sent = last_request();
        assert!(["number one", "c1", "sunshine"].iter().all(|text| sent.contains(text)), "{key}: {sent}");
        // Beside the result of a call that waits.
        next["input"] = json!("Weather?");
        let asked = served.post(path, next.clone()).await.json();
        let waiting = asked["output"][0]["call_id"].clone();
        if key == "previous_response_id" {
            next[key] = asked["id"].clone();
        }
        next["input"] = json!([call("c2"), result(&json!("c2"), "blizzard"), result(&waiting, "drizzle"), said]);
        let done = served.post(path, next).await;
        assert_eq!(text_of(&done.json()), "and now?", "{key}: {}", done.text);
        let sent = last_request();
        let places = ["drizzle", "blizzard", "and now?"].map(|text| sent.rfind(text).expect(text));
        assert!(places.is_sorted(), "{key}: {sent}");
    }
    // The output of a response that was not stored, with the results of its calls.
    let mut next = json!({"model": MODEL, "input": [said], "tools": client_tool(path), "store": false});
    next["previous_response_id"] = kept;
    let asked = served.post(path, next.clone()).await.json();
    let items = asked["output"].as_array().expect("items");
    let waiting = items.iter().find(|item| item["type"] == "function_call").expect("a call")["call_id"].clone();
    let input = next["input"].as_array_mut().expect("items");
    input.extend(items.iter().cloned());
    input.push(result(&waiting, "rain"));
    let done = served.post(path, next.clone()).await;
    assert_eq!(text_of(&done.json()), "rain and 42", "{}", done.text);
    let again = served.post(path, next).await.json();
    assert_eq!(again["id"], done.json()["id"], "{again}");
    assert_eq!((model.failures(), model.requests().len()), (Vec::<String>::new(), 10));
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_answers_stay_deleted() {
    let ask = || calls("weather", json!({"city": "Oslo"}));
    let slow = Turn::text("never").with_delay(std::time::Duration::from_secs(60));
    let (builder, model) = scripted(builder(), vec![ask(), Turn::text("rain"), ask(), slow]).await;
    let served = Served::of(builder).await;
    let path = "/v1/responses";
    let mut first = request(path, "Weather?", false);
    first["tools"] = client_tool(path);
    for is_running in [false, true] {
        let asked = served.post(path, first.clone()).await.json();
        let mut next = with_result(path, &first, &asked, "rain");
        next["background"] = json!(is_running);
        let answered = served.post(path, next.clone()).await.json();
        let own = format!("{path}/{}", answered["id"].as_str().expect("an id"));
        let requests = if is_running { 4 } else { 2 };
        crate::support::until("the model is asked", || model.requests().len() == requests).await;
        let deleted = served.send("DELETE", &own, &format!("x-api-key: {KEY}"), &Value::Null).await;
        assert_eq!(deleted.status, 200, "{}", deleted.text);
        let again = loop {
            let again = served.post(path, next.clone()).await;
            // The run that was deleted ends first.
            if again.status != 409 {
                break again;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        assert_eq!(again.status, 404, "{is_running}: {}", again.text);
        assert!(again.text.contains("was deleted"), "{}", again.text);
        assert_eq!((served.get(&own).await.status, model.requests().len()), (404, requests));
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_are_found_while_they_stream() {
    let hangs = Turn::text("half an answer").with_fault(Fault::HangAfter(2));
    let (builder, _model) = scripted(builder(), vec![hangs]).await;
    let served = Served::of(builder).await;
    let path = "/v1/responses";
    let mut stream = served.open("POST", path, &format!("x-api-key: {KEY}"), &request(path, "go", true)).await;
    let mut read = Vec::new();
    let id = loop {
        stream.read_buf(&mut read).await.expect("reads");
        let text = String::from_utf8_lossy(&read);
        if let Some((_, rest)) = text.split_once("\"id\":\"resp_") {
            break format!("resp_{}", rest.split('"').next().expect("its end"));
        }
    };
    let items = served.get(&format!("{path}/{id}/input_items")).await.json();
    assert_eq!(items["data"][0]["content"][0]["text"], "go", "{items}");
    let next = served.post(path, json!({"model": MODEL, "input": "x", "previous_response_id": id})).await;
    assert_eq!(next.status, 409, "{}", next.text);
    assert!(next.text.contains("is not complete"), "{}", next.text);
    let cancelled = served.post(&format!("{path}/{id}/cancel"), Value::Null).await.json();
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    stream.read_to_end(&mut read).await.expect("reads");
    let text = String::from_utf8_lossy(&read);
    let (_, events) = text.split_once("\r\n\r\n").expect("a head");
    check_stream(path, events).unwrap_or_else(|error| panic!("{error}: {events}"));
    let last = events.rsplit("data: ").next().and_then(|data| serde_json::from_str::<Value>(data).ok()).expect("JSON");
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.incomplete"), &json!("cancelled")));
    assert_eq!(served.get(&format!("{path}/{id}")).await.json()["status"], "cancelled");
    served.end().await;
}
