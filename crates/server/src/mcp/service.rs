//! The tools, carried out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use belljar_core::request::BackendName;
use belljar_wire::{Code, Problem, RunState};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, ErrorData, Implementation, InputResponses, JsonObject, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};

use super::answer::Detail;
use super::call::{self, Lookup};
use super::elicit::{self, Elicitation, Said, State};
use super::progress::Progress;
use super::tools::{self, CANCEL_RUN, GET_RUN, LIST_LANGUAGES, Offer};
use super::{Config, answer};
use crate::caller::Caller;
use crate::http::LastAnswer;
use crate::http::answer::elsewhere;
use crate::http::body::{Memory, Share};
use crate::runs::{End, Finished, Found, PATIENCE, Run, RunEvent, Runs};

/// How long a cancelled run may take to be gone before its caller is told that it is still there.
const CANCEL_WAIT: Duration = Duration::from_secs(10);

/// One for all connections. A clone is the same.
#[derive(Debug, Clone)]
pub(super) struct Service(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    runs: Runs,
    config: Config,
    /// How long a result is kept.
    kept: Duration,
    /// The backends that a call may name.
    backends: Vec<BackendName>,
    who: Who,
    languages: LastAnswer,
    memory: Memory,
    /// How many requests of one caller may wait at a time.
    waits: usize,
    /// How long a call waits for a person to approve its run.
    approval_wait: Duration,
    /// Asks the person at the client about runs that need approval.
    elicitation: Option<Elicitation>,
}

/// The memory that an answer takes until it has been sent, held by whoever sends it. Before there is an answer, it is the
/// request's.
#[derive(Debug, Clone, Default)]
pub(super) struct Held(Arc<Mutex<Option<Share>>>);

impl Held {
    pub(super) fn set(&self, share: Option<Share>) {
        // A thread that panicked with the lock held has changed it completely or not at all.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = share;
    }
}

/// One call of a tool.
struct Call<'a> {
    caller: &'a Caller,
    held: Held,
    progress: Progress,
    context: &'a RequestContext<RoleServer>,
}

/// What a client sends when it calls again.
struct Input {
    state: String,
    responses: Option<InputResponses>,
}

/// Who asks.
#[derive(Debug)]
pub(super) enum Who {
    /// The user who started this process.
    Always(Caller),
    /// The caller of the HTTP request, as the guard identified it.
    OfTheRequest,
}

impl Service {
    pub(super) fn new(
        runs: Runs,
        config: &crate::Config,
        who: Who,
        languages: LastAnswer,
        memory: Memory,
    ) -> Service {
        let backends: Vec<_> = runs.engine().backends().map(|backend| backend.name()).collect();
        let (waits, approval_wait) = (config.max_waits(), config.approval_wait);
        let elicitation = config.approvals.clone().and_then(Elicitation::new);
        let (config, kept) = (config.mcp.clone(), config.kept.age);
        Service(Arc::new(Shared {
            runs,
            config,
            kept,
            backends,
            who,
            languages,
            memory,
            waits,
            approval_wait,
            elicitation,
        }))
    }

    /// What is offered to a caller.
    fn offer<'a>(&'a self, caller: &'a Caller) -> Offer<'a> {
        Offer {
            backends: &self.0.backends,
            default: caller.defaults().backend(),
            workspaces: &caller.allowance().workspaces,
            secrets: &caller.allowance().secrets,
            uploads: matches!(self.0.who, Who::OfTheRequest),
        }
    }

    fn tools(&self, caller: &Caller) -> Vec<Tool> {
        tools::all(&self.0.config, self.0.kept, &self.offer(caller))
    }

    fn knows(&self, name: &str) -> bool {
        name == self.0.config.tool_name.as_str() || tools::OTHERS.contains(&name)
    }

    async fn call(
        &self,
        call: Call<'_>,
        name: &str,
        arguments: JsonObject,
        input: Option<Input>,
    ) -> Result<CallToolResponse, Problem> {
        let answer = match (name, input) {
            (LIST_LANGUAGES, None) => self.list_languages(call.caller, arguments).await,
            (GET_RUN, None) => self.get_run(call, arguments).await,
            (CANCEL_RUN, None) => self.cancel_run(call, arguments).await,
            (LIST_LANGUAGES | GET_RUN | CANCEL_RUN, Some(_)) => Err(nothing_was_asked()),
            (_, None) => return self.run_code(call, arguments).await,
            (_, Some(input)) => self.go_on(call, &arguments, &input).await,
        };
        answer.map(Into::into)
    }

    /// A call that comes again with what a person has said.
    async fn go_on(
        &self,
        call: Call<'_>,
        arguments: &JsonObject,
        input: &Input,
    ) -> Result<CallToolResult, Problem> {
        let Call { caller, held, progress, .. } = call;
        let Shared { runs, config, elicitation, .. } = self.0.as_ref();
        let elicitation = elicitation.as_ref().ok_or_else(nothing_was_asked)?;
        let State { approval, run } = elicitation.opened(&input.state, caller, arguments)?;
        let said = elicit::answered(input.responses.as_ref())?;
        elicitation.decide(&approval, said, caller).await?;
        let (_, detail) = call::run_request(arguments.clone(), &self.offer(caller))?;
        let wait = if said == Said::Nothing { Duration::ZERO } else { config.answer_within };
        let _ = meanwhile(runs.wait(caller, &run, wait), progress).await?;
        self.tell_of(caller, &run, &held, detail).await
    }

    async fn run_code(&self, call: Call<'_>, arguments: JsonObject) -> Result<CallToolResponse, Problem> {
        let Call { caller, held, progress, context } = call;
        let Shared { runs, config, elicitation, .. } = self.0.as_ref();
        let asked = elicitation.as_ref().filter(|elicitation| elicitation.suits(caller, context));
        // They are needed again only where a person can be asked.
        let given = asked.map(|_| arguments.clone());
        let (request, detail) = call::run_request(arguments, &self.offer(caller))?;
        let mut run = runs.start(caller, request).await?;
        let mut said = Said::Nothing;
        if let (Some(elicitation), Some(given), Some(approval)) = (asked, given, run.state().approval_id)
            && let Some(question) = elicitation.question(&approval).await?
        {
            if elicit::calls_again(context) {
                let state = State { approval, run: run.id.to_string() };
                run.detach();
                return Ok(elicitation.required(question, &state, caller, &given).into());
            }
            // Over HTTP, clients of this era have no connection on which they could be asked.
            if matches!(self.0.who, Who::Always(_)) {
                said = elicitation.ask(question, context, config.answer_within).await;
                // If somebody has decided meanwhile, that holds.
                let _ = elicitation.decide(&approval, said, caller).await;
            }
        }
        let patience = if said == Said::Nothing && run.state().approval_id.is_some() {
            self.0.approval_wait.min(config.answer_within)
        } else {
            config.answer_within
        };
        match tokio::time::timeout(patience, follow(&mut run, progress)).await {
            Ok(end) => self.tell(caller, end?, &held, detail).await.map(Into::into),
            Err(_) => {
                let id = run.id.to_string();
                run.detach();
                self.tell_of(caller, &id, &held, detail).await.map(Into::into)
            }
        }
    }

    async fn get_run(&self, call: Call<'_>, arguments: JsonObject) -> Result<CallToolResult, Problem> {
        let Call { caller, held, progress, .. } = call;
        let Shared { runs, config, .. } = self.0.as_ref();
        let Lookup { id, wait, part, detail } = call::lookup(arguments, config)?;
        let _counted = if wait.is_zero() { None } else { Some(caller.wait(self.0.waits)?) };
        let waiting = runs.wait(caller, &id, wait);
        let found = meanwhile(waiting, progress).await.map_err(|problem| self.run_again(problem))?;
        match (found, part) {
            (Found::Unfinished(_), _) => self.tell_of(caller, &id, &held, detail).await,
            (Found::Finished(end), None) => self.tell(caller, end?, &held, detail).await,
            (Found::Finished(end), Some((part, window))) => {
                let render = move |finished: &Finished| answer::part(finished, &part, window);
                self.render(caller, end?, &held, render).await?
            }
        }
    }

    async fn cancel_run(&self, call: Call<'_>, arguments: JsonObject) -> Result<CallToolResult, Problem> {
        let Call { caller, held, .. } = call;
        let Shared { runs, config, .. } = self.0.as_ref();
        let id = call::run_id(arguments)?;
        runs.cancel(caller, &id).map_err(|problem| self.run_again(problem))?;
        let _ = runs.wait(caller, &id, CANCEL_WAIT.min(config.answer_within)).await?;
        self.tell_of(caller, &id, &held, Detail::Short).await
    }

    /// Tells what is known of a run right now: its result, or what it has written so far.
    async fn tell_of(
        &self,
        caller: &Caller,
        id: &str,
        held: &Held,
        detail: Detail,
    ) -> Result<CallToolResult, Problem> {
        let Shared { runs, config, kept, .. } = self.0.as_ref();
        match runs.find(caller, id)? {
            Found::Finished(end) => self.tell(caller, end?, held, detail).await,
            Found::Unfinished(RunState { approval_id: Some(approval), .. }) => {
                Ok(answer::awaiting(id, &approval))
            }
            Found::Unfinished(_) => {
                let (stdout, stderr) = runs.so_far(caller, id)?;
                Ok(answer::running(id, *kept, (&stdout, &stderr), config.max_text))
            }
        }
    }

    async fn tell(
        &self,
        caller: &Caller,
        finished: Arc<Finished>,
        held: &Held,
        detail: Detail,
    ) -> Result<CallToolResult, Problem> {
        let max_text = self.0.config.max_text;
        self.render(caller, finished, held, move |finished| answer::finished(finished, max_text, detail))
            .await
    }

    /// Makes an answer of a run, if there is memory for it. What was read from the request is of no use any more.
    async fn render<T: Send + 'static>(
        &self,
        caller: &Caller,
        finished: Arc<Finished>,
        held: &Held,
        render: impl FnOnce(&Finished) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        held.set(None);
        let bytes = finished.rendered_bytes();
        let mut share = self.0.memory.of(caller.name()).share_within(bytes, PATIENCE).await?;
        let rendered = elsewhere(bytes, move || render(&finished)).await?;
        share.shrink_to(answer::most_bytes(self.0.config.max_text));
        held.set(Some(share));
        Ok(rendered)
    }

    async fn list_languages(
        &self,
        caller: &Caller,
        arguments: JsonObject,
    ) -> Result<CallToolResult, Problem> {
        call::nothing(arguments)?;
        let Shared { runs, languages, .. } = self.0.as_ref();
        Ok(answer::languages(&languages.get(runs, caller).await?))
    }

    /// A run that is not there any more cannot be waited for, but it can be made again.
    fn run_again(&self, mut problem: Problem) -> Problem {
        if problem.error.code == Code::NotFound {
            problem.error.hint =
                format!("{}; run the code again with {}", problem.error.hint, self.0.config.tool_name);
        }
        problem
    }

    /// Where the memory of the answer is to be kept; on standard output, with the answer itself alone.
    fn held(context: &RequestContext<RoleServer>) -> Held {
        let parts = context.extensions.get::<Parts>();
        parts.and_then(|parts| parts.extensions.get::<Held>()).cloned().unwrap_or_default()
    }

    /// Nobody is nobody: without a caller there is nothing to be had.
    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        match &self.0.who {
            Who::Always(caller) => Ok(caller.clone()),
            Who::OfTheRequest => {
                let parts = context.extensions.get::<Parts>();
                let caller = parts.and_then(|parts| parts.extensions.get::<Caller>()).cloned();
                caller.ok_or_else(|| ErrorData::internal_error("the request has no caller", None))
            }
        }
    }
}

/// What the protocol asks of a server. What is not declared as a capability is not there, so the lists that the SDK
/// would answer with nothing are refused.
impl ServerHandler for Service {
    fn get_info(&self) -> ServerConfig {
        let name = &self.0.config.tool_name;
        let implementation = Implementation::new("belljar", env!("CARGO_PKG_VERSION")).with_title("Belljar");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(implementation)
            .with_instructions(format!(
                "Belljar runs untrusted code in a sandbox that exists for one run. Use {name} to compute, \
                 to test code, or to work on data that you pass as files; {LIST_LANGUAGES} says what can run."
            ))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools(&self.caller(&context)?)))
    }

    /// For the transport, which compares headers with arguments and does not know the caller: all that anybody may have.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        let Shared { config, kept, backends, .. } = self.0.as_ref();
        tools::all(config, *kept, &Offer::everything(backends)).into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !self.knows(&request.name) {
            return Err(no_such_tool(&request.name));
        }
        let caller = self.caller(&context)?;
        let (held, progress) = (Service::held(&context), Progress::of(&context));
        let call = Call { caller: &caller, held, progress, context: &context };
        let (state, responses) = (request.request_state, request.input_responses);
        let input = (state.is_some() || responses.is_some())
            .then(|| Input { state: state.unwrap_or_default(), responses });
        let arguments = request.arguments.unwrap_or_default();
        // A run that nobody waits for any more ends with the future that waits for it.
        let answered = tokio::select! {
            biased;
            () = context.ct.cancelled() => Err(cancelled()),
            answered = self.call(call, &request.name, arguments, input) => answered,
        };
        Ok(answered.unwrap_or_else(|problem| answer::problem(&problem).into()))
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
    }
}

/// Listens to a run until its end.
async fn follow(run: &mut Run, mut progress: Progress) -> End {
    loop {
        tokio::select! {
            biased;
            () = progress.due() => progress.tell().await,
            event = run.next() => match event {
                RunEvent::Pulling(pull) => progress.pulling(&pull),
                RunEvent::Started(_) | RunEvent::NextStage => progress.began_to_run(),
                // The result has what was refused; progress is about what the program says.
                RunEvent::Network(_) => {}
                RunEvent::Output(_, bytes) => progress.heard(&bytes),
                RunEvent::Ended(end) => return end,
            },
        }
    }
}

async fn meanwhile<T>(work: impl Future<Output = T>, mut progress: Progress) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = work.as_mut() => return done,
            () = progress.due() => progress.tell().await,
        }
    }
}

fn nothing_was_asked() -> Problem {
    let message = "there is a requestState or an answer, but this server has asked nothing";
    Problem::new(Code::InvalidRequest, message, "call the tool again without inputResponses and requestState")
}

/// Nobody reads it: the protocol wants no answer to a call that was cancelled.
fn cancelled() -> Problem {
    Problem::new(Code::Conflict, "the call was cancelled", "call again")
}

fn no_such_tool(name: &str) -> ErrorData {
    let shown: String = name.chars().take(128).collect();
    ErrorData::invalid_params(format!("there is no tool '{}'", shown.escape_debug()), None)
}
