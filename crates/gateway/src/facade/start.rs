//! Starts the work of requests, each in its own task, and resumes the work of processes that have ended.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use toolwright_agent::{Driver, DriverError, RunOptions, RunState};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_models::served::{Fault, ResponseHead, SIGNATURES, ServedApi, ServedRequest, losses, read_request};

use super::continuation::Continuation;
use super::continuation_lock::ContinuationLock;
use super::output::{Output, ResponseIncludes};
use super::refusal::Refusal;
use super::response_work::ResponseWork;
use super::stored_responses::FoundAnswer;
use super::{Facade, id_prefix};
use crate::agents::RunTarget;
use crate::config::{ChatCalls, OnDisconnect, ResponsesCalls};
use crate::http::{Connection, Identity};

/// A run that another process left unfinished.
pub(super) struct ResumedRun {
    pub(super) driver: Driver,
    pub(super) options: RunOptions,
    pub(super) state: RunState,
}

/// Ends an answer's stream when its work ends for any reason; from then on the store alone has it.
struct EndOnDrop(Arc<Facade>, Arc<ResponseWork>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let Self(facade, work) = self;
        work.output.close();
        facade.set_live(&work.principal.id, &work.id, None);
    }
}

impl Facade {
    /// Creates the work of a request, with this id and start time.
    pub(super) fn work_of(
        &self,
        api: ServedApi,
        (identity, connection): (&Identity, &Connection),
        mut request: ServedRequest,
        (id, created): (String, u64),
    ) -> Result<ResponseWork, Refusal> {
        let principal = identity.principal().clone();
        let target = self.target(&request.model, &principal)?;
        let upstream = self.source.api(&target);
        request.check_files(api, upstream)?;
        let mut lost = losses(api, upstream, &request);
        // Agents keep their signatures themselves.
        if request.wants_signatures && !matches!(target, RunTarget::Raw(_)) && !lost.contains(&SIGNATURES) {
            lost.push(SIGNATURES);
        }
        let head = ResponseHead {
            id: id.clone(),
            model: request.model.clone(),
            created,
            include_usage: request.include_usage,
            shows_calls: match api {
                ServedApi::Chat => self.config.chat_calls == ChatCalls::Reasoning,
                // The console's Chat page takes them as what they are.
                ServedApi::Responses => self.config.responses_calls == ResponsesCalls::Shown || identity.is_page(),
                ServedApi::Messages => true,
            },
            echo: std::mem::take(&mut request.echo),
            custom_tools: request.custom_tools.clone(),
            namespaced: request.namespaced.clone(),
        };
        let shows = ResponseIncludes { reasoning: request.wants_reasoning, signatures: request.wants_signatures };
        Ok(ResponseWork {
            output: Arc::new(Output::new(api, head, shows, request.stream)),
            id,
            created,
            api,
            target,
            tools: self.tools_of(identity),
            profile: self.profile_of(identity),
            approvals: self.approvals(&principal),
            connection: connection.clone(),
            principal,
            survives_disconnect: self.config.on_disconnect == OnDisconnect::Continue || request.background,
            request,
            body: Bytes::new(),
            session: None,
            lost,
            cancel: Cancel::new(),
            is_stored: AtomicBool::new(false),
            lock: Mutex::default(),
        })
    }

    /// Does the work in its own task, so that a shutdown waits for its end even if the client has disconnected.
    pub(super) fn start(
        self: &Arc<Self>,
        work: Arc<ResponseWork>,
        permits: [OwnedSemaphorePermit; 2],
        earlier: Continuation,
        resumed: Option<ResumedRun>,
    ) -> JoinHandle<Result<(), Refusal>> {
        let live = (work.is_kept() || work.is_left()).then(|| Arc::clone(&work));
        self.set_live(&work.principal.id, &work.id, live);
        let facade = Arc::clone(self);
        self.gateway.running.spawn(async move {
            let _permits = permits;
            let ends = EndOnDrop(Arc::clone(&facade), Arc::clone(&work));
            let output = &work.output;
            let mut working = std::pin::pin!(facade.work(&work, earlier, resumed));
            let done = loop {
                tokio::select! {
                    done = &mut working => break done,
                    // A client that is told of a waiting answer can fetch it, also after a restart.
                    () = output.person_needed.notified() => {
                        facade.log_unstored(&work).await;
                        output.pending.notify_one();
                    }
                }
            };
            if let Err(refusal) = &done {
                match work.cancel.cause() {
                    Some(CancelCause::User) => output.cancel(refusal),
                    _ => output.fail(refusal),
                }
                if let Err(error) = facade
                    .keep(&work, work.stateless_answer(refusal.fault.status(), &refusal.body(work.api), None))
                    .await
                {
                    tracing::error!("answer {} was not kept: {}", work.id, error.message);
                }
                // The next process resumes work that waits for a person when the server ends.
                if !(facade.gateway.is_draining() && output.has_question()) {
                    facade.log_unstored(&work).await;
                }
            }
            drop(ends);
            let lock = work.lock().take();
            if let Some(lock) = lock {
                lock.release().await;
            }
            done
        })
    }

    async fn log_unstored(&self, work: &ResponseWork) {
        if let Err(error) = self.keep(work, work.response(None)).await {
            tracing::error!("response {} was not kept: {}", work.id, error.message);
        }
    }

    /// Resumes the run of stored work in progress, if its process has ended and it may go on without its client; `lock`
    /// reserves it.
    pub(super) async fn resume_kept(
        self: &Arc<Self>,
        sender: (&Identity, &Connection),
        id: &str,
        record: Value,
        lock: ContinuationLock,
    ) -> Result<FoundAnswer, Refusal> {
        let api = ServedApi::ALL.into_iter().find(|api| id.starts_with(id_prefix(*api)));
        let (Some(body), Some(api)) = (record["request"].as_str(), api) else { return Ok(FoundAnswer::Lost(record)) };
        let request = read_request(api, body.as_bytes())?;
        let created = record["created"].as_u64().unwrap_or_default();
        let mut work = self.work_of(api, sender, request, (id.to_owned(), created))?;
        if matches!(work.target, RunTarget::Raw(_)) {
            return Ok(FoundAnswer::Lost(record));
        }
        let permits = self.admit()?;
        let earlier = match self.find_continuation(&work.principal.id, &work.request).await {
            Ok(earlier) => earlier,
            Err(refusal) if refusal.fault == Fault::Conflict => return Ok(FoundAnswer::Kept(record)),
            Err(refusal) => return Err(refusal),
        };
        work.request.request.system = earlier.system(&work.request.request.system);
        work.survives_disconnect = true;
        work.is_stored = AtomicBool::new(true);
        work.lock = Mutex::new(Some(lock));
        work.body = Bytes::from(body.to_owned());
        work.session = record["of_session"].as_str().map(str::to_owned);
        // The answer has no reader.
        work.output.detach_reader();
        work.output.replay(&record["pieces"]);
        let session = work.session.clone().unwrap_or_else(|| work.id.clone());
        let (driver, options, config) = self.prepare(&work, session).await?;
        match driver.load(&options).await {
            Ok(mut state) => {
                state.replace_config(config);
                state.ask_again();
                let work = Arc::new(work);
                drop(self.start(Arc::clone(&work), permits, earlier, Some(ResumedRun { driver, options, state })));
                Ok(FoundAnswer::Live(work))
            }
            Err(DriverError::Taken { .. }) => Ok(FoundAnswer::Kept(record)),
            Err(error) => {
                tracing::warn!("the answer {id} cannot be resumed: {error}");
                Ok(FoundAnswer::Lost(record))
            }
        }
    }
}
