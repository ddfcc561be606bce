//! The one table of what the API has. The router and the OpenAPI document are made of it.

use std::sync::Arc;

use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};

use super::{Api, HEALTH, READY, approvals, call, health, jobs, openapi, tools};

/// One operation with who answers it.
pub(super) struct Route {
    pub(super) operation: Operation,
    pub(super) handler: MethodRouter<Arc<Api>>,
}

/// One operation, as the document tells it.
pub(super) struct Operation {
    pub(super) method: Method,
    /// With `{name}` for a part of the path.
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) about: &'static str,
    pub(super) query: Vec<Parameter>,
    /// Schema of the body.
    pub(super) body: Option<&'static str>,
    /// What a good answer is.
    pub(super) answer: Good,
    /// Other statuses with an answer of their own: the status, when it comes, and the schema.
    pub(super) also: &'static [(u16, &'static str, &'static str)],
    /// Whether it works on what is kept: jobs and approvals.
    pub(super) stores: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    /// As the document writes it.
    pub(super) fn as_str(self) -> &'static str {
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

/// What a good answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Good {
    /// JSON of this schema.
    Json(&'static str),
    /// A word.
    Text,
}

/// A parameter of the query.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Type in JSON Schema's words.
    pub(super) kind: &'static str,
    pub(super) need: Need,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Required,
    Optional,
}

const fn optional(name: &'static str, kind: &'static str, about: &'static str) -> Parameter {
    Parameter { name, about, kind, need: Need::Optional }
}

const QUERY: Parameter = Parameter {
    name: "query",
    about: "Words, or parts of words, as they stand in names, tags and descriptions.",
    kind: "string",
    need: Need::Required,
};
const NAMESPACE: Parameter = optional("namespace", "string", "Only this namespace.");
const PREFIX: Parameter = optional("prefix", "string", "Only ids that begin so.");
const TAG: Parameter = optional("tag", "string", "Only tools with this tag.");
const WAIT: Parameter =
    optional("wait", "string", "How long the job's end is waited for, like 30s; 60s at most. Default: not at all.");

impl Route {
    fn new<H, T>(method: Method, path: &'static str, id: &'static str, handler: H, about: &'static str) -> Self
    where
        H: Handler<T, Arc<Api>>,
        T: 'static,
    {
        let answer = Good::Json("Error");
        let stores = path.starts_with("/api/jobs") || path.starts_with("/api/approvals");
        let operation = Operation { method, path, id, about, query: Vec::new(), body: None, answer, also: &[], stores };
        Self { operation, handler: on(method.filter(), handler) }
    }

    fn query<const N: usize>(mut self, query: [Parameter; N]) -> Self {
        self.operation.query = query.into();
        self
    }

    fn body(mut self, schema: &'static str) -> Self {
        self.operation.body = Some(schema);
        self
    }

    fn gives(mut self, schema: &'static str) -> Self {
        self.operation.answer = Good::Json(schema);
        self
    }

    fn gives_text(mut self) -> Self {
        self.operation.answer = Good::Text;
        self
    }

    fn also(mut self, also: &'static [(u16, &'static str, &'static str)]) -> Self {
        self.operation.also = also;
        self
    }
}

const UNKNOWN: &[(u16, &str, &str)] = &[(404, "There is none of this name.", "Error")];
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
    "The same request had better come again later, and repeats nothing: a queue is full, or the server is shutting \
     down. The body is an Outcome where the call was taken, else an Error; both have `error`. A call that the shutdown \
     cancelled, and that may have had effects which its tool may not have twice, is answered 200.",
    "Error",
)];
const NOT_READY: &[(u16, &str, &str)] = &[(503, "Calls are not taken, or not all tools are known yet.", "Readiness")];

/// Every operation.
pub(super) fn routes() -> Vec<Route> {
    use Method::{Delete, Get, Post};
    vec![
        Route::new(Get, "/api/tools", "listTools", tools::list, "Lists tools.")
            .query([NAMESPACE, PREFIX, TAG])
            .gives("ToolList"),
        Route::new(
            Get,
            "/api/tools/{id}",
            "showTool",
            tools::show,
            "Shows one tool by its wire name, id, alias or bare name.",
        )
        .gives("WholeTool")
        .also(UNKNOWN),
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
        .gives("SearchHits"),
        Route::new(
            Post,
            "/api/call",
            "call",
            call::call,
            "Calls one tool. That it failed is its result, and the status 200 all the same.",
        )
        .body("Call")
        .gives("Outcome")
        .also(LATER),
        Route::new(Get, "/api/jobs", "listJobs", jobs::list, "Lists background jobs, the newest first.")
            .query([
                optional("limit", "integer", "Jobs at most. Default: 10000."),
                optional("open", "boolean", "Only jobs that are not over."),
            ])
            .gives("JobList")
            .also(NO_JOBS),
        Route::new(Get, "/api/jobs/{id}", "showJob", jobs::show, "Shows one job, and what it came to.")
            .query([WAIT])
            .gives("WholeJob")
            .also(NO_JOB),
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
        .gives("JobText")
        .also(NO_JOB),
        Route::new(Post, "/api/jobs/{id}/send", "sendToJob", jobs::send, "Gives a job that waits for input its input.")
            .body("JobInput")
            .gives("WholeJob")
            .also(NO_JOB),
        Route::new(Post, "/api/jobs/{id}/stop", "stopJob", jobs::stop, "Stops a job, and waits a little for its end.")
            .gives("WholeJob")
            .also(NO_JOB),
        Route::new(
            Get,
            "/api/approvals",
            "listApprovals",
            approvals::list,
            "Lists what waits for a person's word: calls, and what tools' sources ask.",
        )
        .query([optional("all", "boolean", "Those that were answered, expired or withdrawn, too.")])
        .gives("QuestionList")
        .also(OWNER),
        Route::new(
            Post,
            "/api/approvals/{id}",
            "answerApproval",
            approvals::answer,
            "Lets a call run, or refuses it; answers what a tool's source asks.",
        )
        .body("Answer")
        .gives("Answered")
        .also(NO_QUESTION),
        Route::new(
            Get,
            "/api/approvals/standing",
            "listStandingApprovals",
            approvals::standing,
            "Lists what was approved for always.",
        )
        .gives("StandingList")
        .also(OWNER),
        Route::new(
            Delete,
            "/api/approvals/standing/{id}",
            "revokeApproval",
            approvals::revoke,
            "Takes back what was approved for always.",
        )
        .gives("Answered")
        .also(NO_QUESTION),
        Route::new(
            Get,
            "/api/providers",
            "listProviders",
            health::providers,
            "Lists the sources of tools, and how they are doing.",
        )
        .gives("ProviderList"),
        Route::new(Get, "/api/openapi.json", "openapi", openapi, "This document.").gives("OpenApi"),
        Route::new(Get, HEALTH, "health", health::health, "Whether the process lives. Needs no token.").gives_text(),
        Route::new(Get, READY, "ready", health::ready, "Whether calls are taken. Needs no token.")
            .gives("Readiness")
            .also(NOT_READY),
    ]
}
