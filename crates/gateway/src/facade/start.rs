//! Starts the work of requests, each in its own task, and resumes the work of processes that have ended.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use toolwright_agent::{Driver, DriverError, RunOptions, RunState};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_models::served::{Fault, ResponseHead, SIGNATURES, ServedApi, ServedRequest, losses, read_request};

use super::continuation_lock::ContinuationLock;
use super::output::{Output, Refusal, ResponseIncludes};
use super::previous_response::PreviousResponse;
use super::response_work::ResponseWork;
use super::{Facade, LiveResponse};
use crate::agents::RunTarget;
use crate::config::{ChatCalls, OnDisconnect, ResponsesCalls};
use crate::http::{Connection, Identity};

/// A run that another process left unfinished.
pub(super) struct ResumedRun {
    pub(super) driver: Driver,
    pub(super) options: RunOptions,
    pub(super) state: RunState,
}

/// Ends an answer's stream when its work ends for any reason.
struct CloseOnDrop<'a>(&'a Output);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
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
        let mut lost = upstream.map(|upstream| losses(api, upstream, &request)).unwrap_or_default();
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
            kept: AtomicBool::new(false),
            busy: None,
        })
    }

    /// Does the work in its own task, so that a shutdown waits for its end even if the client has disconnected.
    pub(super) fn start(
        self: &Arc<Self>,
        mut work: ResponseWork,
        permits: [OwnedSemaphorePermit; 2],
        earlier: PreviousResponse,
        resumed: Option<ResumedRun>,
    ) -> JoinHandle<Result<(), Refusal>> {
        let is_kept = work.api == ServedApi::Responses && work.request.store;
        let live = LiveResponse { cancel: work.cancel.clone(), output: Arc::clone(&work.output) };
        self.set_live(&work.principal.id, &work.id, (is_kept || work.is_left()).then_some(live));
        let facade = Arc::clone(self);
        self.gateway.running.spawn(async move {
            let _permits = permits;
            let busy = work.busy.take();
            let output = &work.output;
            let _closes = CloseOnDrop(output);
            let mut working = std::pin::pin!(facade.work(&work, earlier, resumed));
            let done = loop {
                tokio::select! {
                    done = &mut working => break done,
                    // A client that is told of a waiting answer can fetch it, also after a restart.
                    () = output.asked.notified() => {
                        facade.log_unkept(&work).await;
                        output.pending.notify_one();
                    }
                }
            };
            if let Err(refusal) = &done {
                match work.cancel.cause() {
                    Some(CancelCause::User) => output.cancel(refusal),
                    _ => output.fail(refusal),
                }
                if let Err(error) =
                    facade.keep(&work, work.left(refusal.fault.status(), &refusal.body(work.api), None)).await
                {
                    tracing::error!("answer {} was not kept: {}", work.id, error.message);
                }
                // The next process resumes work that waits for a person when the server ends.
                if !(facade.gateway.is_draining() && output.has_question()) {
                    facade.log_unkept(&work).await;
                }
            }
            facade.set_live(&work.principal.id, &work.id, None);
            if let Some(busy) = busy {
                busy.release().await;
            }
            done
        })
    }

    async fn log_unkept(&self, work: &ResponseWork) {
        if let Err(error) = self.keep(work, work.response(None)).await {
            tracing::error!("response {} was not kept: {}", work.id, error.message);
        }
    }

    /// Resumes the run of a stored response in progress, if its process has ended; `busy` reserves the response.
    /// Returns the current response; `None` if the run cannot be found.
    pub(super) async fn resume_kept(
        self: &Arc<Self>,
        sender: (&Identity, &Connection),
        id: &str,
        kept: &Value,
        busy: ContinuationLock,
    ) -> Result<Option<Value>, Refusal> {
        let Some(body) = kept["request"].as_str() else { return Ok(None) };
        let request = read_request(ServedApi::Responses, body.as_bytes())?;
        let created = kept["response"]["created_at"].as_u64().unwrap_or_default();
        let mut work = self.work_of(ServedApi::Responses, sender, request, (id.to_owned(), created))?;
        if matches!(work.target, RunTarget::Raw(_)) {
            return Ok(None);
        }
        let permits = self.admit()?;
        let earlier = match self.earlier(&work.principal.id, &work.request).await {
            Ok(earlier) => earlier,
            Err(refusal) if refusal.fault == Fault::Conflict => return Ok(Some(kept["response"].clone())),
            Err(refusal) => return Err(refusal),
        };
        work.request.request.system = earlier.system(&work.request.request.system);
        work.survives_disconnect = true;
        work.kept = AtomicBool::new(true);
        work.busy = Some(busy);
        work.body = Bytes::from(body.to_owned());
        work.session = kept["of_session"].as_str().map(str::to_owned);
        // The answer has no reader.
        work.output.leave();
        work.output.replay(&kept["pieces"]);
        let session = work.session.clone().unwrap_or_else(|| work.id.clone());
        let (driver, options, spec) = self.prepare(&work, session).await?;
        match driver.load(&options).await {
            Ok(mut state) => {
                state.replace_config(spec);
                state.ask_again();
                let output = Arc::clone(&work.output);
                drop(self.start(work, permits, earlier, Some(ResumedRun { driver, options, state })));
                Ok(Some(output.body()))
            }
            Err(DriverError::Taken { .. }) => Ok(Some(kept["response"].clone())),
            Err(error) => {
                tracing::warn!("response {id} cannot be taken up: {error}");
                Ok(None)
            }
        }
    }
}
