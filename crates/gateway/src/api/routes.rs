//! The table of the API's operations, and the OpenAPI document made from it.

use std::sync::Arc;

use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};

use serde_json::{Map, Value, json};

use super::{Api, approvals, events, health, jobs, ledger, open_console, openapi, operate, tools};
use crate::ServerInfo;
use crate::http::{API, HEALTH, READY};

/// The schemas by name.
const SCHEMAS: &str = include_str!("schemas.json");

/// An operation and its handler.
pub(super) struct Route {
    pub(super) operation: Operation,
    pub(super) handler: MethodRouter<Arc<Api>>,
}

/// An operation as the document describes it.
pub(super) struct Operation {
    method: Method,
    /// The path, with `{name}` for a path parameter.
    pub(super) path: &'static str,
    id: &'static str,
    about: &'static str,
    query: Vec<Parameter>,
    /// The schema of the body.
    body: Option<&'static str>,
    /// The content of status 200.
    answer: Content,
    /// Other statuses: the status, when it occurs, and its schema.
    also: &'static [(u16, &'static str, &'static str)],
    /// Whether it needs the stores of jobs and approvals.
    stores: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    /// Returns the name that the document uses.
    fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Delete => "delete",
        }
    }

    fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

/// The content of status 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// JSON of this schema.
    Json(&'static str),
    /// Plain text.
    Text,
}

/// A query parameter.
pub(super) struct Parameter {
    name: &'static str,
    about: &'static str,
    /// Its JSON Schema type.
    kind: &'static str,
    need: Need,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Required,
    Optional,
}

pub(super) const fn required(name: &'static str, kind: &'static str, about: &'static str) -> Parameter {
    Parameter { name, about, kind, need: Need::Required }
}

pub(super) const fn optional(name: &'static str, kind: &'static str, about: &'static str) -> Parameter {
    Parameter { name, about, kind, need: Need::Optional }
}

const QUERY: Parameter =
    required("query", "string", "Words, or parts of words, as they stand in names, tags and descriptions.");
const NAMESPACE: Parameter = optional("namespace", "string", "Only this namespace.");
const PREFIX: Parameter = optional("prefix", "string", "Only ids that begin so.");
const TAG: Parameter = optional("tag", "string", "Only tools with this tag.");
const WAIT: Parameter =
    optional("wait", "string", "How long the job's end is waited for, like 30s; 60s at most. Default: not at all.");

impl Route {
    pub(super) fn new<H, T>(
        method: Method,
        path: &'static str,
        id: &'static str,
        handler: H,
        about: &'static str,
    ) -> Self
    where
        H: Handler<T, Arc<Api>>,
        T: 'static,
    {
        let answer = Content::Json("Error");
        let stores = path.starts_with("/api/jobs") || path.starts_with("/api/approvals");
        let operation = Operation { method, path, id, about, query: Vec::new(), body: None, answer, also: &[], stores };
        Self { operation, handler: on(method.filter(), handler) }
    }

    pub(super) fn query<const N: usize>(mut self, query: [Parameter; N]) -> Self {
        self.operation.query = query.into();
        self
    }

    pub(super) fn body(mut self, schema: &'static str) -> Self {
        self.operation.body = Some(schema);
        self
    }

    pub(super) fn response_schema(mut self, schema: &'static str) -> Self {
        self.operation.answer = Content::Json(schema);
        self
    }

    pub(super) fn text_response(mut self) -> Self {
        self.operation.answer = Content::Text;
        self
    }

    pub(super) fn with_responses(mut self, also: &'static [(u16, &'static str, &'static str)]) -> Self {
        self.operation.also = also;
        self
    }
}

pub(super) const UNKNOWN: &[(u16, &str, &str)] = &[(404, "There is none of this name.", "Error")];
const NO_EVENTS: &[(u16, &str, &str)] = &[(404, "The server streams no events.", "Error")];
const NO_JOBS: &[(u16, &str, &str)] = &[(404, "The server keeps no jobs.", "Error")];
const NO_JOB: &[(u16, &str, &str)] = &[
    (404, "There is no such job, or it is another's.", "Error"),
    (409, "The job is not in a state for this.", "Error"),
];
const NO_QUESTION: &[(u16, &str, &str)] = &[
    (403, "The caller is not the owner, or the server has no token.", "Error"),
    (404, "There is none of this id.", "Error"),
    (409, "It was answered already, has expired, or was withdrawn.", "Error"),
];
const OWNER: &[(u16, &str, &str)] = &[(403, "The caller is not the owner.", "Error")];
const LATER: &[(u16, &str, &str)] = &[(
    503,
    "Nothing has run; send the same request again later: a queue is full, or the server is shutting \
     down. The body is an Outcome where the call was taken, else an Error; both have `error`. A call that the shutdown \
     cancelled, and that may have had effects which its tool may not have twice, is answered 200.",
    "Error",
)];
const NOT_READY: &[(u16, &str, &str)] = &[(503, "Calls are not taken, or not all tools are known yet.", "Readiness")];

/// Returns all operations.
pub(super) fn routes() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    let mut routes = vec![
        Route::new(Get, "/api/tools", "listTools", tools::list, "Lists tools.")
            .query([NAMESPACE, PREFIX, TAG])
            .response_schema("ToolList"),
        Route::new(
            Get,
            "/api/tools/{id}",
            "showTool",
            tools::show,
            "Shows one tool by its wire name, id, alias or bare name.",
        )
        .response_schema("WholeTool")
        .with_responses(UNKNOWN),
        Route::new(
            Get,
            "/api/tools/{id}/calls",
            "listToolCalls",
            ledger::calls,
            "Lists the last calls of one tool, the newest first, with the arguments and results that the ledger keeps.",
        )
        .query([optional("limit", "integer", "Calls at most, from 1 to 100. Default: 20.")])
        .response_schema("ToolCalls")
        .with_responses(UNKNOWN),
        Route::new(
            Get,
            "/api/search",
            "searchTools",
            tools::search,
            "Finds tools by words; where none hits, by similar words.",
        )
        .query([
            QUERY,
            optional("limit", "integer", "Hits at most, from 1 to 1000. Default: 20."),
            NAMESPACE,
            PREFIX,
            TAG,
        ])
        .response_schema("SearchHits"),
        Route::new(
            Post,
            "/api/call",
            "call",
            tools::call,
            "Calls one tool. A call that failed has the status 200 too; its result says so.",
        )
        .body("Call")
        .response_schema("Outcome")
        .with_responses(LATER),
        Route::new(Get, "/api/jobs", "listJobs", jobs::list, "Lists background jobs, the newest first.")
            .query([
                optional("after", "string", "Only jobs behind `next` of an earlier answer."),
                optional("limit", "integer", "Jobs at most, from 1 to 10000. Default: 1000."),
                optional("open", "boolean", "Only jobs that are not over."),
            ])
            .response_schema("JobList")
            .with_responses(NO_JOBS),
        Route::new(Get, "/api/jobs/{id}", "showJob", jobs::show, "Shows one job, and what it came to.")
            .query([WAIT])
            .response_schema("WholeJob")
            .with_responses(NO_JOB),
        Route::new(
            Get,
            "/api/jobs/{id}/output",
            "readJob",
            jobs::read,
            "Reads what a job wrote while it ran, and its result.",
        )
        .query([
            optional("offset", "integer", "First line, from 0; negative counts from the end."),
            optional("lines", "integer", "Lines at most. Default: 1000."),
        ])
        .response_schema("JobText")
        .with_responses(NO_JOB),
        Route::new(Post, "/api/jobs/{id}/send", "sendToJob", jobs::send, "Gives a job that waits for input its input.")
            .body("JobInput")
            .response_schema("WholeJob")
            .with_responses(NO_JOB),
        Route::new(Post, "/api/jobs/{id}/stop", "stopJob", jobs::stop, "Stops a job, and waits a little for its end.")
            .response_schema("WholeJob")
            .with_responses(NO_JOB),
        Route::new(
            Get,
            "/api/approvals",
            "listApprovals",
            approvals::list,
            "Lists what waits for a person: calls to approve, and questions of tools' sources.",
        )
        .query([
            optional("all", "boolean", "Also those that were answered, expired or withdrawn."),
            optional("after", "string", "Only questions behind `next` of an earlier answer."),
            optional("limit", "integer", "Questions at most, from 1 to 1000. Default: 1000."),
        ])
        .response_schema("QuestionList")
        .with_responses(OWNER),
        Route::new(
            Get,
            "/api/approvals/{id}",
            "showApproval",
            approvals::show,
            "Shows a question, with what a call would change and the rule that approving it for always writes.",
        )
        .response_schema("ShownQuestion")
        .with_responses(NO_QUESTION),
        Route::new(
            Post,
            "/api/approvals/{id}",
            "answerApproval",
            approvals::answer,
            "Approves or denies a call; answers a question of a tool's source.",
        )
        .body("Answer")
        .response_schema("Answered")
        .with_responses(NO_QUESTION),
        Route::new(
            Get,
            "/api/approvals/standing",
            "listStandingApprovals",
            approvals::list_standing,
            "Lists standing approvals.",
        )
        .response_schema("StandingList")
        .with_responses(OWNER),
        Route::new(
            Delete,
            "/api/approvals/standing/{id}",
            "revokeApproval",
            approvals::revoke,
            "Withdraws a standing approval.",
        )
        .response_schema("Answered")
        .with_responses(NO_QUESTION),
        Route::new(
            Get,
            "/api/providers",
            "listProviders",
            health::providers,
            "Lists the sources of tools, and how they are doing.",
        )
        .response_schema("ProviderList"),
        Route::new(Get, "/api/traces", "listTraces", ledger::traces, "Lists runs and sessions, the last to end first.")
            .query([
                optional("after", "string", "Only those behind `next` of an earlier answer."),
                optional("limit", "integer", "Runs and sessions at most, from 1 to 1000. Default: 50."),
            ])
            .response_schema("TraceList"),
        Route::new(
            Get,
            "/api/traces/{id}",
            "showTrace",
            ledger::trace,
            "Shows the operations of a run or session as a tree. `last` is the newest.",
        )
        .query([optional(
            "last",
            "integer",
            "How many of the last operations of it and of each run below it, from 1 to 10000. Default: 10000.",
        )])
        .response_schema("Trace")
        .with_responses(UNKNOWN),
        Route::new(
            Get,
            "/api/traces/{id}/operations/{op}",
            "showOperation",
            ledger::operation,
            "Shows one operation of a run or session, with the arguments and the result that the ledger keeps.",
        )
        .response_schema("Operation")
        .with_responses(UNKNOWN),
        Route::new(
            Get,
            "/api/budgets",
            "listBudgets",
            ledger::budgets,
            "Lists what tokens with a budget may use of models at /v1, and what they have used.",
        )
        .response_schema("BudgetList"),
        Route::new(Get, "/api/usage", "sumUsage", ledger::sums, "Sums calls, failures, tokens and cost.")
            .query([
                required("by", "string", "What to sum by: tool, model, agent, run, principal or day."),
                optional("since_ms", "integer", "Only what ended since, in milliseconds since the epoch."),
            ])
            .response_schema("UsageList"),
        Route::new(
            Get,
            "/api/events",
            "followEvents",
            events::events,
            "Events as they happen (text/event-stream). `Last-Event-ID` resumes after a break.",
        )
        .text_response()
        .with_responses(NO_EVENTS),
        Route::new(
            Post,
            "/api/console",
            "openConsole",
            open_console,
            "Makes an address of the web console that opens it once.",
        )
        .response_schema("ConsoleLink"),
    ];
    routes.extend(operate::routes());
    routes.extend([
        Route::new(Get, "/api/openapi.json", "openapi", openapi, "This document.").response_schema("OpenApi"),
        Route::new(Get, HEALTH, "health", health::health, "Whether the process lives. Needs no token.").text_response(),
        Route::new(Get, READY, "ready", health::ready, "Whether calls are taken. Needs no token.")
            .response_schema("Readiness")
            .with_responses(NOT_READY),
    ]);
    routes
}

/// Returns the OpenAPI 3.1 document, made from the table of routes and `schemas.json`.
pub(super) fn document(routes: &[Route], info: &ServerInfo) -> Value {
    let mut paths = Map::new();
    for Route { operation, .. } in routes {
        let path = paths.entry(operation.path).or_insert_with(|| Value::Object(Map::new()));
        path[operation.method.as_str()] = described(operation);
    }
    let title = info.title.as_deref().unwrap_or(&info.name);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": info.version,
            "description": "The gateway's tools, calls, jobs and approvals. MCP is at /mcp.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

/// Parses the schemas. A test checks the file; if it is unreadable, the document has no schemas.
fn schemas() -> Value {
    serde_json::from_str(SCHEMAS).unwrap_or_default()
}

fn described(operation: &Operation) -> Value {
    let in_path = operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path =
        in_path.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    let in_query = operation.query.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "in": "query",
            "description": parameter.about,
            "required": parameter.need == Need::Required,
            "schema": {"type": parameter.kind},
        })
    });
    let good = match operation.answer {
        Content::Json(schema) => json(schema),
        Content::Text => json!({"text/plain": {"schema": {"type": "string"}}}),
    };
    let mut responses = json!({"200": {"description": "The answer.", "content": good}});
    for (status, when, content) in refusals(operation) {
        responses[status.to_string()] = json!({"description": when, "content": content});
    }
    for (status, when, schema) in operation.also {
        responses[status.to_string()] = json!({"description": when, "content": json(schema)});
    }
    let is_inside = operation.path.starts_with(API);
    if is_inside {
        // A spare connection answers with text.
        responses["503"]["content"]["text/plain"] = json!({"schema": {"type": "string"}});
    }
    if responses["503"].is_object() {
        responses["503"]["headers"] =
            json!({"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}});
    }
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.about,
        "parameters": in_path.chain(in_query).collect::<Value>(),
        "responses": responses,
    });
    if let Some(schema) = operation.body {
        described["requestBody"] = json!({"required": true, "content": json(schema)});
    }
    if !is_inside {
        described["security"] = json!([]);
    }
    described
}

/// Returns the errors that any operation may answer: the status, its condition, and its content.
fn refusals(operation: &Operation) -> Vec<(u16, &'static str, Value)> {
    let host = "The host name is not served, or the page's origin may not call.";
    if !operation.path.starts_with(API) {
        return vec![(403, host, json!({"text/plain": {"schema": {"type": "string"}}}))];
    }
    let has_input = operation.path.contains('{') || !operation.query.is_empty() || operation.body.is_some();
    let is_post = operation.method == Method::Post;
    let statuses: [(bool, u16, &str); 9] = [
        (has_input, 400, "`bad_request`: the request cannot be understood."),
        (true, 401, "`unauthorized`: the server's token is missing or wrong."),
        (
            true,
            403,
            "`forbidden`: the host name is not served, the page's origin may not call, or the token does not allow it.",
        ),
        (true, 408, "`timeout`: the body stopped coming."),
        (true, 413, "`too_large`: the body is over the limit."),
        (is_post, 415, "`unsupported_media_type`: the body is not said to be JSON."),
        (true, 500, "`internal_error`: an error in the server; see its log."),
        (operation.stores, 501, "`unsupported`: the server has no place to keep this."),
        (
            true,
            503,
            "`busy`: there are too many requests or connections at once, or too many bytes in bodies; `shutting_down`.",
        ),
    ];
    statuses.into_iter().filter(|(comes, ..)| *comes).map(|(_, status, when)| (status, when, json("Error"))).collect()
}

/// Returns JSON content of this schema.
fn json(schema: &str) -> Value {
    json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{schema}")}}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::catalogue::ProviderKind;
    use toolwright_core::error::ErrorKind;
    use toolwright_core::job::JobState;
    use toolwright_core::schema::CompiledSchema;

    #[test]
    fn the_document_has_every_route_and_schema() {
        let routes = routes();
        let document = document(&routes, &ServerInfo { name: "t".into(), title: None, version: "1".into() });
        let mut ids = std::collections::HashSet::new();
        for Route { operation, .. } in &routes {
            let statuses = &document["paths"][operation.path][operation.method.as_str()];
            assert_eq!(statuses["operationId"], operation.id);
            assert!(ids.insert(operation.id), "{} is there twice", operation.id);
        }
        let text = document.to_string();
        let schemas = schemas();
        let names: Vec<&String> = schemas.as_object().expect("schemas.json is read").keys().collect();
        for name in &names {
            let reference = format!("\"#/components/schemas/{name}\"");
            assert!(text.contains(&reference), "nothing uses {name}");
            let schema = json!({"$ref": format!("#/components/schemas/{name}"), "components": document["components"]});
            CompiledSchema::compile(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        for used in text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(schemas.get(used).is_some(), "{used} is no schema");
        }
    }

    /// Checks that the schema of each `core` enum contains all its values.
    #[test]
    fn schemas_name_every_value_of_an_enum() {
        let values = |all: Value| all.as_array().cloned().unwrap_or_default();
        let sets = [values(json!(ProviderKind::ALL)), values(json!(ErrorKind::ALL)), values(json!(JobState::ALL))];
        let mut statuses = [0; 3];
        let mut waiting = vec![schemas()];
        while let Some(schema) = waiting.pop() {
            if let Some(Value::Array(named)) = schema.get("enum") {
                for (set, statuses) in sets.iter().zip(&mut statuses) {
                    // Other enums share some values, such as `done`.
                    if set.iter().filter(|value| named.contains(value)).count() * 2 > set.len() {
                        assert!(set.iter().all(|value| named.contains(value)), "{named:?} lacks some of {set:?}");
                        *statuses += 1;
                    }
                }
            }
            match schema {
                Value::Object(members) => waiting.extend(members.into_iter().map(|(_, member)| member)),
                Value::Array(items) => waiting.extend(items),
                _ => {}
            }
        }
        assert!(statuses[0] == 2 && statuses.iter().all(|statuses| *statuses > 0), "{statuses:?}");
    }
}
