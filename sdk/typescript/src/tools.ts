/**
 * A tool with which a model runs code: its definition for the APIs of OpenAI and Anthropic, and what answers the calls. The
 * adapters for frameworks are made of it.
 */
import type { Belljar } from "./client.js";
import { BelljarError } from "./errors.js";
import { invalid, type Language, refuseUnknown, type RunOptions } from "./options.js";
import type { Result } from "./result.js";
import { sharedClient } from "./shared.js";

export interface CodeToolOptions {
  /** The client that runs the code. Else the one that the whole program shares. */
  client?: Belljar | undefined;
  /** The name of the tool: `run_code` by default. */
  name?: string | undefined;
  /** What the model is told about it. */
  description?: string | undefined;
  /** The languages that the model may use: Python, JavaScript and bash by default. */
  languages?: readonly Language[] | undefined;
  /** Options of every run, such as limits and files. The model chooses none of them. */
  run?: Omit<RunOptions, "signal" | "stdin" | "idempotencyKey"> | undefined;
  /** How much of stdout, and how much of stderr, the model gets to read. 10,000 characters by default. */
  maxCharacters?: number | undefined;
}

/** What the model says when it calls the tool. */
export interface CodeToolInput {
  language: string;
  code: string;
  stdin?: string;
}

/** A JSON Schema of an object. */
export interface ObjectSchema {
  type: "object";
  properties: Record<string, { type: "string"; description: string; enum?: string[] }>;
  required: string[];
  additionalProperties: false;
  [name: string]: unknown;
}

/** A tool as the Chat Completions API of OpenAI takes it. */
export interface OpenAITool {
  type: "function";
  function: { name: string; description: string; parameters: ObjectSchema };
}

/** A tool as the Responses API of OpenAI takes it. */
export interface OpenAIResponsesTool {
  type: "function";
  name: string;
  description: string;
  parameters: ObjectSchema;
  strict: false;
}

/** A tool as the Messages API of Anthropic takes it. */
export interface AnthropicTool {
  name: string;
  description: string;
  input_schema: ObjectSchema;
}

const DESCRIPTION =
  "Runs a program in a sandbox that is gone afterwards, and returns its exit code, stdout and stderr. Every call starts from " +
  "nothing: no files, variables or packages of an earlier call are there. The working directory and /tmp are writable. A " +
  "program that fails is an ordinary result. Print what you want to see.";

const OPTIONS = ["client", "name", "description", "languages", "run", "maxCharacters"];

export function codeTool(options: CodeToolOptions = {}): CodeTool {
  return new CodeTool(options);
}

export class CodeTool {
  readonly name: string;
  readonly description: string;
  /** The JSON Schema of what the model says when it calls the tool. */
  readonly parameters: ObjectSchema;
  readonly #client: Belljar | undefined;
  readonly #languages: readonly string[];
  readonly #run: RunOptions;
  readonly #maxCharacters: number;

  constructor(options: CodeToolOptions = {}) {
    refuseUnknown("codeTool", options, OPTIONS);
    this.name = options.name ?? "run_code";
    this.description = options.description ?? DESCRIPTION;
    this.#client = options.client;
    this.#languages = options.languages ?? ["python", "javascript", "bash"];
    this.#run = options.run ?? {};
    this.#maxCharacters = options.maxCharacters ?? 10_000;
    this.parameters = {
      type: "object",
      properties: {
        language: { type: "string", enum: [...this.#languages], description: "The language of the program." },
        code: { type: "string", description: "The whole program." },
        stdin: { type: "string", description: "What the program reads from standard input. Empty by default." },
      },
      required: ["language", "code"],
      additionalProperties: false,
    };
  }

  /** The tool for `tools` of OpenAI's Chat Completions API. */
  get openai(): OpenAITool {
    const { name, description, parameters } = this;
    return { type: "function", function: { name, description, parameters } };
  }

  /** The tool for `tools` of OpenAI's Responses API. */
  get openaiResponses(): OpenAIResponsesTool {
    const { name, description, parameters } = this;
    return { type: "function", name, description, parameters, strict: false };
  }

  /** The tool for `tools` of Anthropic's Messages API. */
  get anthropic(): AnthropicTool {
    return { name: this.name, description: this.description, input_schema: this.parameters };
  }

  /** The message that answers a call of OpenAI's Chat Completions API. */
  async answerOpenAI(
    call: { id: string; function: { name: string; arguments: string } },
    options: { signal?: AbortSignal } = {},
  ): Promise<{ role: "tool"; tool_call_id: string; content: string }> {
    const { text } = await this.#answer(() => this.#parsed(call.function.name, call.function.arguments), options.signal);
    return { role: "tool", tool_call_id: call.id, content: text };
  }

  /** The item that answers a call of OpenAI's Responses API. */
  async answerOpenAIResponses(
    call: { call_id: string; name: string; arguments: string },
    options: { signal?: AbortSignal } = {},
  ): Promise<{ type: "function_call_output"; call_id: string; output: string }> {
    const { text } = await this.#answer(() => this.#parsed(call.name, call.arguments), options.signal);
    return { type: "function_call_output", call_id: call.call_id, output: text };
  }

  /** The block that answers a `tool_use` of Anthropic's Messages API. */
  async answerAnthropic(
    call: { id: string; name: string; input: unknown },
    options: { signal?: AbortSignal } = {},
  ): Promise<{ type: "tool_result"; tool_use_id: string; content: string; is_error: boolean }> {
    const { text, failed } = await this.#answer(() => this.#named(call.name, call.input), options.signal);
    return { type: "tool_result", tool_use_id: call.id, content: text, is_error: failed };
  }

  /** Runs what a model asked for. Throws if Belljar cannot or will not run it. */
  async run(input: CodeToolInput, options: { signal?: AbortSignal | undefined } = {}): Promise<Result> {
    const { language, code, stdin } = this.#checked(input);
    return (this.#client ?? sharedClient()).run(language, code, { ...this.#run, stdin, signal: options.signal });
  }

  /** A result in the words that a model reads: how it ended, then what it wrote. */
  text(result: Result): string {
    const parts = [endingOf(result)];
    for (const stream of ["stdout", "stderr"] as const) {
      const text = shortened(result[stream].replace(/\n$/, ""), this.#maxCharacters);
      if (text !== "") parts.push(`${stream}:\n${text}`);
    }
    for (const file of result.files ?? []) parts.push(`file: ${JSON.stringify(file.path)} (${file.size} bytes)`);
    return parts.join("\n");
  }

  /** Models do well with errors that they can read, so they get them as text. Aborting is the caller's business. */
  async #answer(input: () => CodeToolInput, signal: AbortSignal | undefined): Promise<{ text: string; failed: boolean }> {
    try {
      const result = await this.run(input(), { signal });
      return { text: this.text(result), failed: result.status === "denied" };
    } catch (error) {
      if (!(error instanceof BelljarError)) throw error;
      return { text: errorText(error), failed: true };
    }
  }

  #parsed(name: string, text: string): CodeToolInput {
    try {
      return this.#named(name, JSON.parse(text));
    } catch (error) {
      if (error instanceof BelljarError) throw error;
      throw invalid("arguments", "the arguments are not JSON", "send an object with language and code");
    }
  }

  #named(name: string, input: unknown): CodeToolInput {
    if (name !== this.name) throw invalid("name", `there is no tool '${name}' here`, `call ${this.name}`);
    return input as CodeToolInput;
  }

  /** A model may say anything. */
  #checked(input: unknown): CodeToolInput {
    refuseUnknown(this.name, input as object, Object.keys(this.parameters.properties));
    const { language, code, stdin } = input as Record<string, unknown>;
    if (typeof language !== "string" || !this.#languages.includes(language)) {
      throw invalid("language", `the language '${String(language)}' is not offered`, `use one of these: ${this.#languages.join(", ")}`);
    }
    if (typeof code !== "string") throw invalid("code", "there is no code", "send the whole program as a string");
    if (stdin === undefined || stdin === null) return { language, code };
    if (typeof stdin !== "string") throw invalid("stdin", "stdin is not a string", "send it as a string, or leave it out");
    return { language, code, stdin };
  }
}

/** An error in the words that a model reads. */
export function errorText(error: BelljarError): string {
  return error.hint ? `error: ${error.message}\nhint: ${error.hint}` : `error: ${error.message}`;
}

function endingOf({ status, exitCode, signal }: Result): string {
  if (status === "exited") return `exit code ${exitCode}`;
  const words = { timed_out: "timed out", out_of_memory: "memory limit exceeded", cancelled: "cancelled", denied: "denied" };
  return `${status === "signaled" ? `killed by signal ${signal}` : words[status]} (exit code ${exitCode})`;
}

/** The beginning and the end of a long text, with a line between them that says how much is missing. */
function shortened(text: string, most: number): string {
  if (text.length <= most) return text;
  const half = Math.floor(most / 2);
  return `${text.slice(0, half)}\n[… ${text.length - 2 * half} characters are missing …]\n${text.slice(text.length - half)}`;
}
