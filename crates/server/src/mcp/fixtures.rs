//! What the protocol's official conformance runner wants to find on a server, behind the same transport as the product:
//! tools, resources and prompts of fixed content. None of it runs code, and nothing of the product leads here.

use std::future::Future;
use std::net::TcpListener;
use std::time::Duration;

use axum::Extension;
use belljar_core::allowance::Allowance;
use belljar_core::language::Preparation;
use belljar_engine::{Engine, Prepared, SyntaxError};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, CompleteRequestParams,
    CompleteResult, CompletionInfo, ContentBlock, ErrorData, GetPromptRequestParams, GetPromptResponse,
    GetPromptResult, Implementation, JsonObject, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, Prompt,
    PromptArgument, PromptMessage, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult,
    Resource, ResourceContents, ResourceTemplate, Role, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};

use super::endpoint;
use crate::caller::Caller;
use crate::config::Config;
use crate::defaults::Defaults;
use crate::http::App;
use crate::listen;
use crate::runs::Runs;
use crate::server::{ServeError, threads};

/// Serves the fixtures at `/mcp` until `stop` resolves.
///
/// # Errors
/// That there are no threads to be had, or that the socket cannot be used.
pub fn serve_fixtures(listener: TcpListener, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
    let (front, config) = (threads("belljar-fixtures", 2)?, Config::default());
    let runs = Runs::new(Engine::new(Vec::new(), as_it_is), &config, front.handle().clone());
    let app = App::new(runs, config);
    let nobody = Caller::anonymous(Allowance::boxed(), &Defaults::default());
    let router = endpoint::mount(Fixtures, app.clone()).layer(Extension(nobody));
    listener.set_nonblocking(true).map_err(ServeError::Listen)?;
    let served = front.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(ServeError::Listen)?;
        drop(listen::accept(listener, router, &app.config, stop).await);
        Ok(())
    });
    front.shutdown_background();
    served
}

/// There is no backend, so that nothing is ever made ready for one.
fn as_it_is(_: Preparation, name: &str, text: &[u8]) -> Result<Prepared, SyntaxError> {
    Ok(Prepared { name: name.to_owned(), text: text.to_owned() })
}

#[derive(Debug, Clone)]
struct Fixtures;

/// A red pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// No sound at all.
const WAV: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";

const TEXT_RESOURCE: &str = "test://static-text";
const BINARY_RESOURCE: &str = "test://static-binary";
const TEMPLATE: (&str, &str) = ("test://template/", "/data");

impl ServerHandler for Fixtures {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_prompts()
            .enable_completions()
            .build();
        let implementation = Implementation::new("belljar-fixtures", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(implementation)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let content = match request.name.as_ref() {
            "test_error_handling" => {
                let text = "This tool intentionally returns an error for testing";
                return Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into());
            }
            "test_missing_capability" => {
                needs_sampling(&context)?;
                vec![ContentBlock::text("The client can sample.")]
            }
            "test_tool_with_progress" => {
                progress(&context).await;
                vec![ContentBlock::text("Three steps were reported.")]
            }
            name => contents(name)?,
        };
        Ok(CallToolResult::success(content).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resource = |uri: &str, name: &str, kind: &str| Resource::new(uri, name).with_mime_type(kind);
        Ok(ListResourcesResult::with_all_items(vec![
            resource(TEXT_RESOURCE, "static-text", "text/plain"),
            resource(BINARY_RESOURCE, "static-binary", "image/png"),
        ]))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let (before, after) = TEMPLATE;
        let template = ResourceTemplate::new(format!("{before}{{id}}{after}"), "template");
        Ok(ListResourceTemplatesResult::with_all_items(vec![template.with_mime_type("application/json")]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = resource(&request.uri).ok_or_else(|| {
            ErrorData::resource_not_found("there is no such resource", Some(json!({"uri": request.uri})))
        })?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let argument = |name: &str| PromptArgument::new(name).with_description("A text").with_required(true);
        let prompt = |name: &str, arguments: Option<Vec<PromptArgument>>| {
            Prompt::new(name, Some("A fixture"), arguments)
        };
        Ok(ListPromptsResult::with_all_items(vec![
            prompt("test_simple_prompt", None),
            prompt("test_prompt_with_arguments", Some(vec![argument("arg1"), argument("arg2")])),
            prompt("test_prompt_with_embedded_resource", Some(vec![argument("resourceUri")])),
            prompt("test_prompt_with_image", None),
        ]))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let contents = prompt(&request.name, &arguments)
            .ok_or_else(|| ErrorData::invalid_params("there is no such prompt", None))?;
        let messages = contents.into_iter().map(|content| PromptMessage::new(Role::User, content)).collect();
        Ok(GetPromptResult::new(messages).into())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let values = ["paris", "park", "party"].map(str::to_owned).to_vec();
        let completion =
            CompletionInfo::new(values).map_err(|fault| ErrorData::internal_error(fault, None))?;
        Ok(CompleteResult::new(completion))
    }
}

fn tools() -> Vec<Tool> {
    let plain = |name: &'static str| Tool::new(name, "A fixture", object(json!({"type": "object"})));
    let mut tools: Vec<_> = [
        "test_simple_text",
        "test_image_content",
        "test_audio_content",
        "test_embedded_resource",
        "test_multiple_content_types",
        "test_error_handling",
        "test_tool_with_progress",
        "test_missing_capability",
        "test_streaming_elicitation",
        "test_logging_tool",
    ]
    .map(plain)
    .into();
    tools.push(Tool::new("test_custom_headers", "A fixture", headers_schema()));
    tools.push(Tool::new("json_schema_2020_12_tool", "A fixture", rich_schema()));
    tools
}

/// What the tools return that always return the same.
fn contents(name: &str) -> Result<Vec<ContentBlock>, ErrorData> {
    let image = || ContentBlock::image(PNG, "image/png");
    let embedded = |uri: &str, kind: &str, text: &str| {
        ContentBlock::resource(ResourceContents::text(text, uri).with_mime_type(kind))
    };
    Ok(match name {
        "test_simple_text" => vec![ContentBlock::text("This is a simple text response for testing.")],
        "test_image_content" => vec![image()],
        "test_audio_content" => vec![ContentBlock::audio(WAV, "audio/wav")],
        "test_embedded_resource" => {
            vec![embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]
        }
        "test_multiple_content_types" => vec![
            ContentBlock::text("Multiple content types test:"),
            image(),
            embedded("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
        ],
        "test_streaming_elicitation"
        | "test_logging_tool"
        | "test_custom_headers"
        | "json_schema_2020_12_tool" => {
            vec![ContentBlock::text("done")]
        }
        _ => return Err(ErrorData::invalid_params("there is no such tool", None)),
    })
}

fn needs_sampling(context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
    let declared = json!(context.client_capabilities());
    if declared.get("sampling").is_some_and(Value::is_object) {
        return Ok(());
    }
    let needed: Result<ClientCapabilities, _> = serde_json::from_value(json!({"sampling": {}}));
    Err(match needed {
        Ok(needed) => ErrorData::missing_required_client_capability(needed),
        Err(fault) => ErrorData::internal_error(fault.to_string(), None),
    })
}

async fn progress(context: &RequestContext<RoleServer>) {
    let Some(token) = context.meta.get_progress_token() else { return };
    for step in [0.0, 50.0, 100.0] {
        let progress = ProgressNotificationParam::new(token.clone(), step).with_total(100.0);
        // A client that is gone needs no progress.
        let _ = context.peer.notify_progress(progress).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn resource(uri: &str) -> Option<ResourceContents> {
    let (before, after) = TEMPLATE;
    if uri == TEXT_RESOURCE {
        let text = "This is the content of the static text resource.";
        return Some(ResourceContents::text(text, uri).with_mime_type("text/plain"));
    }
    if uri == BINARY_RESOURCE {
        return Some(ResourceContents::blob(PNG, uri).with_mime_type("image/png"));
    }
    let id = uri.strip_prefix(before)?.strip_suffix(after)?;
    let data = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
    Some(ResourceContents::text(data.to_string(), uri).with_mime_type("application/json"))
}

fn prompt(name: &str, arguments: &JsonObject) -> Option<Vec<ContentBlock>> {
    let argument = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
    Some(match name {
        "test_simple_prompt" => vec![ContentBlock::text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (first, second) = (argument("arg1"), argument("arg2"));
            vec![ContentBlock::text(format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
        }
        "test_prompt_with_embedded_resource" => {
            let text = "Embedded resource content for testing.";
            let resource = ResourceContents::text(text, argument("resourceUri")).with_mime_type("text/plain");
            let request = ContentBlock::text("Please process the embedded resource above.");
            vec![ContentBlock::resource(resource), request]
        }
        "test_prompt_with_image" => {
            vec![ContentBlock::image(PNG, "image/png"), ContentBlock::text("Please analyze the image above.")]
        }
        _ => return None,
    })
}

fn headers_schema() -> JsonObject {
    object(json!({
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    }))
}

fn rich_schema() -> JsonObject {
    object(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contact": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["name"]}, {"required": ["contact"]}]}],
        "if": {"required": ["contact"]},
        "then": {"required": ["name"]},
        "else": {},
        "additionalProperties": false,
    }))
}

fn object(value: Value) -> JsonObject {
    value.as_object().cloned().unwrap_or_default()
}
