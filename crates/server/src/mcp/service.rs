//! The tools, carried out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use belljar_wire::{Code, Problem};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, ErrorData, Implementation, JsonObject, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesRequestMethod, ListResourceTemplatesResult, ListResourcesRequestMethod,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};

use super::call::{self, Lookup};
use super::progress::Progress;
use super::tools::{self, CANCEL_RUN, GET_RUN, LIST_LANGUAGES};
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
    tools: Vec<Tool>,
    who: Who,
    languages: LastAnswer,
    memory: Memory,
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
        let default = match &who {
            Who::Always(caller) => caller.defaults().backend_choice(),
            Who::OfTheRequest => config.defaults.backend_choice(),
        };
        let (config, kept) = (config.mcp.clone(), config.kept.age);
        let tools = tools::all(&config, kept, &backends, default);
        Service(Arc::new(Shared { runs, config, kept, tools, who, languages, memory }))
    }

    async fn call(
        &self,
        call: Call<'_>,
        name: &str,
        arguments: JsonObject,
    ) -> Result<CallToolResult, Problem> {
        match name {
            LIST_LANGUAGES => self.list_languages(call.caller, arguments).await,
            GET_RUN => self.get_run(call, arguments).await,
            CANCEL_RUN => self.cancel_run(call, arguments).await,
            _ => self.run_code(call, arguments).await,
        }
    }

    async fn run_code(&self, call: Call<'_>, arguments: JsonObject) -> Result<CallToolResult, Problem> {
        let Call { caller, held, progress } = call;
        let Shared { runs, config, kept, .. } = self.0.as_ref();
        let request = call::run_request(arguments)?;
        let mut run = runs.start(caller, request).await?;
        match tokio::time::timeout(config.answer_within, follow(&mut run, progress)).await {
            Ok(end) => self.tell(end?, &held).await,
            Err(_) => {
                let id = run.id.to_string();
                run.detach();
                Ok(answer::running(&id, *kept))
            }
        }
    }

    async fn get_run(&self, call: Call<'_>, arguments: JsonObject) -> Result<CallToolResult, Problem> {
        let Call { caller, held, progress } = call;
        let Shared { runs, config, kept, .. } = self.0.as_ref();
        let Lookup { id, wait, part } = call::lookup(arguments, config)?;
        let waiting = runs.wait(caller, &id, wait);
        let found = meanwhile(waiting, progress).await.map_err(|problem| self.run_again(problem))?;
        match (found, part) {
            (Found::Unfinished(_), _) => Ok(answer::running(&id, *kept)),
            (Found::Finished(end), None) => self.tell(end?, &held).await,
            (Found::Finished(end), Some((part, window))) => {
                self.render(end?, &held, move |finished| answer::part(finished, &part, window)).await?
            }
        }
    }

    async fn cancel_run(&self, call: Call<'_>, arguments: JsonObject) -> Result<CallToolResult, Problem> {
        let Call { caller, held, .. } = call;
        let Shared { runs, config, kept, .. } = self.0.as_ref();
        let id = call::run_id(arguments)?;
        runs.cancel(caller, &id).map_err(|problem| self.run_again(problem))?;
        match runs.wait(caller, &id, CANCEL_WAIT.min(config.answer_within)).await? {
            Found::Unfinished(_) => Ok(answer::running(&id, *kept)),
            Found::Finished(end) => self.tell(end?, &held).await,
        }
    }

    async fn tell(&self, finished: Arc<Finished>, held: &Held) -> Result<CallToolResult, Problem> {
        let max_text = self.0.config.max_text;
        self.render(finished, held, move |finished| answer::finished(finished, max_text)).await
    }

    /// Makes an answer of a run, if there is memory for it. What was read from the request is of no use any more.
    async fn render<T: Send + 'static>(
        &self,
        finished: Arc<Finished>,
        held: &Held,
        render: impl FnOnce(&Finished) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        held.set(None);
        let bytes = finished.rendered_bytes();
        let mut share = self.0.memory.share_within(bytes, PATIENCE).await?;
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

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.0.tools.iter().find(|tool| tool.name == name)
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
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.0.tools.clone()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tool(name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.tool(&request.name) else { return Err(no_such_tool(&request.name)) };
        let caller = self.caller(&context)?;
        let call = Call { caller: &caller, held: Service::held(&context), progress: Progress::of(&context) };
        let arguments = request.arguments.unwrap_or_default();
        // A run that nobody waits for any more ends with the future that waits for it.
        let answered = tokio::select! {
            biased;
            () = context.ct.cancelled() => Err(cancelled()),
            answered = self.call(call, &tool.name, arguments) => answered,
        };
        Ok(answered.unwrap_or_else(|problem| answer::problem(&problem)).into())
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

/// Nobody reads it: the protocol wants no answer to a call that was cancelled.
fn cancelled() -> Problem {
    Problem::new(Code::Conflict, "the call was cancelled", "call again")
}

fn no_such_tool(name: &str) -> ErrorData {
    let shown: String = name.chars().take(128).collect();
    ErrorData::invalid_params(format!("there is no tool '{}'", shown.escape_debug()), None)
}
