//! The tools, carried out.

use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use belljar_core::request::BackendChoice;
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
use crate::runs::{End, Found, Run, RunEvent, Runs};

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
}

/// Who asks.
#[derive(Debug)]
pub(super) enum Who {
    /// Whoever started this process.
    Always(Caller),
    /// Whom the guard has found behind the HTTP request.
    OfTheRequest,
}

impl Service {
    pub(super) fn new(runs: Runs, config: &crate::Config, who: Who, languages: LastAnswer) -> Service {
        let (config, kept) = (config.mcp.clone(), config.kept.age);
        let tools = tools::all(&config, kept);
        Service(Arc::new(Shared { runs, config, kept, tools, who, languages }))
    }

    async fn call(
        &self,
        caller: &Caller,
        name: &str,
        arguments: JsonObject,
        progress: Progress,
    ) -> Result<CallToolResult, Problem> {
        match name {
            LIST_LANGUAGES => self.list_languages(caller, arguments).await,
            GET_RUN => self.get_run(caller, arguments, progress).await,
            CANCEL_RUN => self.cancel_run(caller, arguments).await,
            _ => self.run_code(caller, arguments, progress).await,
        }
    }

    async fn run_code(
        &self,
        caller: &Caller,
        arguments: JsonObject,
        progress: Progress,
    ) -> Result<CallToolResult, Problem> {
        let Shared { runs, config, kept, .. } = self.0.as_ref();
        let request = call::run_request(arguments, &config.defaults)?;
        let mut run = runs.start(caller, request).await?;
        match tokio::time::timeout(config.answer_within, follow(&mut run, progress)).await {
            Ok(end) => Ok(answer::finished(&*end?, config.max_text)),
            Err(_) => {
                let id = run.id.to_string();
                run.detach();
                Ok(answer::running(&id, *kept))
            }
        }
    }

    async fn get_run(
        &self,
        caller: &Caller,
        arguments: JsonObject,
        progress: Progress,
    ) -> Result<CallToolResult, Problem> {
        let Shared { runs, config, kept, .. } = self.0.as_ref();
        let Lookup { id, wait, part } = call::lookup(arguments, config)?;
        let waiting = runs.wait(caller, &id, wait);
        let found = meanwhile(waiting, progress).await.map_err(|problem| self.run_again(problem))?;
        match (found, part) {
            (Found::Running, _) => Ok(answer::running(&id, *kept)),
            (Found::Finished(end), None) => Ok(answer::finished(&*end?, config.max_text)),
            (Found::Finished(end), Some((part, window))) => answer::part(&*end?, &part, window),
        }
    }

    async fn cancel_run(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Problem> {
        let Shared { runs, config, kept, .. } = self.0.as_ref();
        let id = call::run_id(arguments)?;
        runs.cancel(caller, &id).map_err(|problem| self.run_again(problem))?;
        match runs.wait(caller, &id, CANCEL_WAIT.min(config.answer_within)).await? {
            Found::Running => Ok(answer::running(&id, *kept)),
            Found::Finished(end) => Ok(answer::finished(&*end?, config.max_text)),
        }
    }

    async fn list_languages(
        &self,
        caller: &Caller,
        arguments: JsonObject,
    ) -> Result<CallToolResult, Problem> {
        call::nothing(arguments)?;
        let Shared { runs, config, languages, .. } = self.0.as_ref();
        let backend = config.defaults.backend.as_deref();
        let choice = backend.map_or(Ok(BackendChoice::Auto), BackendChoice::parse)?;
        let mut known = languages.get(runs, choice).await?;
        let allowed = &caller.allowance().languages;
        known.languages.retain(|language| allowed.contains(&language.name));
        Ok(answer::languages(&known))
    }

    /// A run that is not there any more cannot be waited for, but it can be made again.
    fn run_again(&self, mut problem: Problem) -> Problem {
        if problem.error.code == Code::NotFound {
            problem.error.hint =
                format!("{}; run the code again with {}", problem.error.hint, self.0.config.tool_name);
        }
        problem
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
                "Belljar runs code that nobody has read in a sandbox that is gone afterwards. Use {name} to compute, \
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
        let progress = Progress::of(&context);
        let arguments = request.arguments.unwrap_or_default();
        // A run that nobody waits for any more ends with the future that waits for it.
        let answered = tokio::select! {
            biased;
            () = context.ct.cancelled() => Err(cancelled()),
            answered = self.call(&caller, &tool.name, arguments, progress) => answered,
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
                RunEvent::Started(_) => {}
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
