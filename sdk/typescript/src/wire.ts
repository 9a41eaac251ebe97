// Made from openapi/belljar-v1.json by `npm run types`. Do not edit.

export type Approval = {
  caller: string;
  code: string;
  created_at: string;
  decision: ApprovalDecision | null;
  digest: string;
  expires_at: string;
  findings: Array<Finding>;
  id: string;
  language: string;
  peer: string | null;
  policy: ApprovalPolicy;
  request: ApprovalRequest;
  requests: number;
  status: ApprovalStatus;
  surface: string;
  waiting: number;
};

export type ApprovalDecision = {
  approved: boolean;
  at: string;
  by: string;
  reason: string | null;
  remembered_until: string | null;
};

export type ApprovalFile = {
  path?: string;
  sha256: string | null;
  size: number | null;
  text: string | null;
};

export type ApprovalList = {
  approvals: Array<ApprovalSummary>;
  next_cursor: string | null;
};

export type ApprovalPolicy = {
  reason?: string;
  rule?: string;
};

export type ApprovalRequest = {
  args?: Array<string>;
  backend?: string;
  collect?: Array<string>;
  env?: Array<string>;
  files?: Array<ApprovalFile>;
  image: string | null;
  limits?: Limits;
  network?: string;
  secrets?: Array<string>;
  stdin: ApprovalFile | null;
  waive?: Array<string>;
  workspace: string | null;
  writable?: boolean;
};

export type ApprovalRuling = {
  reason?: string | null;
  remember_s?: number | null;
};

export type ApprovalStatus = "pending" | "approved" | "denied" | "expired" | "cancelled";

export type ApprovalSummary = {
  caller: string;
  code: string;
  created_at: string;
  decision: ApprovalDecision | null;
  expires_at: string;
  id: string;
  language: string;
  policy: ApprovalPolicy;
  status: ApprovalStatus;
  surface: string;
};

export type AuditCompile = {
  cached?: boolean;
  exit_code?: number;
  stderr: string | null;
  stdout: string | null;
  timed_out?: boolean;
  usage: Usage | null;
};

export type AuditFile = {
  path?: string;
  sha256: string | null;
  size: number | null;
};

export type AuditFlaw = {
  kind: AuditFlawKind;
  message: string;
  seq: number;
};

export type AuditFlawKind = "changed" | "removed" | "cut" | "anchor" | "head" | "schema";

export type AuditList = {
  next_cursor: string | null;
  records: Array<AuditSummary>;
};

export type AuditRecord = {
  at: string;
  backend: string | null;
  caller: string;
  code: string | null;
  code_bytes: number | null;
  code_sha256: string | null;
  compile: AuditCompile | null;
  decider: string | null;
  decision: Decision | null;
  error: string | null;
  exit_code: number | null;
  files: Array<AuditFile>;
  findings: Array<Finding>;
  hash: string;
  id: string;
  image: string | null;
  kept: Array<string>;
  language: string;
  limits: Limits | null;
  network: string | null;
  network_denied?: Array<NetworkDenied>;
  peer: string | null;
  previous: string;
  produced: Array<AuditFile>;
  recorded_at: string;
  redactions: number;
  request: AuditRequest;
  runtime: string | null;
  seq: number;
  stage: string | null;
  start: string | null;
  status: string;
  stderr: string | null;
  stderr_bytes: number | null;
  stdout: string | null;
  stdout_bytes: number | null;
  surface: string;
  usage: Usage | null;
  waived: Array<string>;
};

export type AuditRequest = {
  args?: Array<string>;
  collect?: Array<string>;
  env?: Array<string>;
  files_omitted?: number;
  secrets?: Array<string>;
  stdin: AuditFile | null;
  workspace: string | null;
};

export type AuditSummary = {
  at: string;
  backend: string | null;
  caller: string;
  code: string | null;
  decision: string | null;
  error: string | null;
  exit_code: number | null;
  id: string;
  language: string;
  peer: string | null;
  seq: number;
  status: string;
  surface: string;
};

export type AuditVerdict = {
  first: number | null;
  flaw: AuditFlaw | null;
  hash: string | null;
  last: number | null;
  ok: boolean;
  pruned_through: number;
  public_key: string;
  records: number;
};

export type AwaitingApprovalEvent = {
  data: string;
  event: EventName;
};

export type Backend = {
  guarantees: Array<Guarantee>;
  hint: string | null;
  name: BackendName;
  only_by_name: boolean;
  ready: boolean;
  reason: string | null;
};

export type BackendChoice = "auto" | "native" | "docker" | "wasm" | "process" | "none";

export type BackendList = {
  backends: Array<Backend>;
  default: BackendName | null;
  problem: Error | null;
};

export type BackendName = "native" | "docker" | "wasm" | "process" | "none";

export type BatchDone = {
  runs: number;
};

export type BatchEntry = RunResult | Error;

export type BatchItem = {
  index: number;
  result: RunResult;
};

export type BinaryFile = {
  content?: null;
  content_base64: string;
  executable?: boolean;
  from_path?: null;
  from_run?: null;
  path: string;
  upload?: null;
};

export type CancelledResult = {
  backend: BackendName;
  changes?: Changes;
  cold_reason: string | null;
  compile: CompileResult | null;
  decision?: Decision;
  exit_code: number;
  files?: Array<CollectedFile>;
  findings: Array<Finding>;
  id: string;
  image: string | null;
  isolation: Isolation;
  language: LanguageName;
  network: NetworkAccess;
  network_denied?: Array<NetworkDenied>;
  oom_killed: false;
  runtime: string;
  signal: number | null;
  stage: StageName;
  start: StartKind;
  status: "cancelled";
  stderr: string;
  stderr_base64?: string;
  stderr_truncated: boolean;
  stdout: string;
  stdout_base64?: string;
  stdout_truncated: boolean;
  timed_out: false;
  usage: Usage;
};

export type Changes = {
  added: Array<string>;
  changed: Array<string>;
  patch: string;
  removed: Array<string>;
  truncated: boolean;
};

export type CollectedFile = {
  content_base64: string;
  path: string;
  size: number;
};

export type CompileResult = {
  cached: boolean;
  exit_code: number;
  stderr: string;
  stdout: string;
  timed_out: boolean;
  usage: Usage;
};

export type Decision = {
  action: PolicyAction;
  approval_id: string | null;
  by: string;
  reason: string;
  rule: string;
};

export type DeniedResult = {
  backend: BackendName;
  changes?: Changes;
  cold_reason: string | null;
  compile: CompileResult | null;
  decision?: Decision;
  exit_code: number;
  files?: Array<CollectedFile>;
  findings: Array<Finding>;
  id: string;
  image: string | null;
  isolation: Isolation;
  language: LanguageName;
  network: NetworkAccess;
  network_denied?: Array<NetworkDenied>;
  oom_killed: false;
  runtime: string;
  signal: number | null;
  stage: StageName;
  start: StartKind;
  status: "denied";
  stderr: string;
  stderr_base64?: string;
  stderr_truncated: boolean;
  stdout: string;
  stdout_base64?: string;
  stdout_truncated: boolean;
  timed_out: false;
  usage: Usage;
};

export type DoneEvent = {
  data: string;
  event: EventName;
};

export type EndEvent = {
  data: string;
  event: EventName;
};

export type Error = {
  error: ErrorDetail;
};

export type ErrorCode = "invalid_request" | "unauthorized" | "forbidden" | "not_found" | "conflict" | "too_large" | "busy" | "internal" | "backend_unavailable" | "guarantee_unmet";

export type ErrorDetail = {
  code: ErrorCode;
  field?: string;
  hint: string;
  message: string;
};

export type ErrorEvent = {
  data: string;
  event: EventName;
};

export type EventName = "awaiting_approval" | "pull" | "start" | "stage" | "network" | "stdout" | "stderr" | "end" | "error" | "result" | "done";

export type ExitedResult = {
  backend: BackendName;
  changes?: Changes;
  cold_reason: string | null;
  compile: CompileResult | null;
  decision?: Decision;
  exit_code: number;
  files?: Array<CollectedFile>;
  findings: Array<Finding>;
  id: string;
  image: string | null;
  isolation: Isolation;
  language: LanguageName;
  network: NetworkAccess;
  network_denied?: Array<NetworkDenied>;
  oom_killed: false;
  runtime: string;
  signal: number | null;
  stage: StageName;
  start: StartKind;
  status: "exited";
  stderr: string;
  stderr_base64?: string;
  stderr_truncated: boolean;
  stdout: string;
  stdout_base64?: string;
  stdout_truncated: boolean;
  timed_out: false;
  usage: Usage;
};

export type Finding = {
  column: number;
  end_column: number;
  end_line: number;
  excerpt: string;
  line: number;
  message: string;
  rule: string;
  severity: Severity;
  within?: string | null;
};

export type Guarantee = {
  fix?: string;
  how?: string;
  kept: boolean;
  name: GuaranteeName;
  why?: string;
};

export type GuaranteeName = "filesystem" | "network" | "memory" | "pids" | "cpu" | "disk" | "syscalls" | "privileges";

export type Health = {
  status: string;
};

export type ImagePull = {
  current: number | null;
  image: string;
  layer: string | null;
  status: string;
  total: number | null;
};

export type InputFile = TextFile | BinaryFile | RunFile | UploadedFile;

export type Isolation = {
  kept: Array<GuaranteeName>;
  waived: Array<GuaranteeName>;
};

export type Language = {
  aliases: Array<LanguageAlias>;
  available: boolean;
  hint: string | null;
  image: string | null;
  location: string | null;
  name: LanguageName;
  runtime: string | null;
};

export type LanguageAlias = "py" | "python3" | "cpython" | "js" | "node" | "nodejs" | "mjs" | "cjs" | "ts" | "tsx" | "mts" | "shell" | "dash" | "posix" | "rb" | "pl" | "rscript" | "gcc" | "c++" | "cxx" | "g++" | "golang" | "rs";

export type LanguageList = {
  languages: Array<Language>;
};

export type LanguageName = "python" | "javascript" | "typescript" | "bash" | "sh" | "zsh" | "ruby" | "php" | "perl" | "lua" | "r" | "c" | "cpp" | "go" | "rust" | "java";

export type LanguagePool = {
  booting: number;
  hits: number;
  language: LanguageName;
  losses: number;
  max: number;
  memory_bytes: number;
  min: number;
  misses: number;
  oldest_ms: number | null;
  problem: string | null;
  ready: number;
  refill_ms: number | null;
  refills: number;
  target: number;
  unfit: number;
};

export type Limits = {
  compile_memory_bytes?: number | null;
  compile_timeout_ms?: number | null;
  cpu_ms?: number | null;
  cpus?: number | null;
  disk_bytes?: number | null;
  memory_bytes?: number | null;
  output_bytes?: number | null;
  pids?: number | null;
  timeout_ms?: number | null;
};

export type NetworkAccess = string;

export type NetworkAction = "allowed" | "refused" | "failed" | "closed" | "omitted";

export type NetworkActivity = {
  action: NetworkAction;
  count: number;
  down_bytes?: number;
  host: string;
  port: number | null;
  reason?: string;
  up_bytes?: number;
};

export type NetworkDenied = {
  count: number;
  host: string;
  port: number | null;
  reason: string;
};

export type NetworkEvent = {
  data: string;
  event: EventName;
};

export type OutOfMemoryResult = {
  backend: BackendName;
  changes?: Changes;
  cold_reason: string | null;
  compile: CompileResult | null;
  decision?: Decision;
  exit_code: number;
  files?: Array<CollectedFile>;
  findings: Array<Finding>;
  id: string;
  image: string | null;
  isolation: Isolation;
  language: LanguageName;
  network: NetworkAccess;
  network_denied?: Array<NetworkDenied>;
  oom_killed: true;
  runtime: string;
  signal: number | null;
  stage: StageName;
  start: StartKind;
  status: "out_of_memory";
  stderr: string;
  stderr_base64?: string;
  stderr_truncated: boolean;
  stdout: string;
  stdout_base64?: string;
  stdout_truncated: boolean;
  timed_out: false;
  usage: Usage;
};

export type OutputText = {
  text: string;
};

export type PolicyAction = "allow" | "warn" | "approve" | "deny";

export type Pool = {
  enabled: boolean;
  languages: Array<LanguagePool>;
  max_age_ms: number;
  memory_bytes: number;
  memory_limit_bytes: number;
};

export type PullEvent = {
  data: string;
  event: EventName;
};

export type ResultEvent = {
  data: string;
  event: EventName;
};

export type ResultStatus = "exited" | "timed_out" | "out_of_memory" | "signaled" | "cancelled" | "denied";

export type RunAnswer = RunResult | RunBatch;

export type RunBatch = {
  runs: Array<BatchEntry>;
};

export type RunEvent = AwaitingApprovalEvent | PullEvent | StartEvent | StageEvent | NetworkEvent | StdoutEvent | StderrEvent | EndEvent | ErrorEvent | ResultEvent | DoneEvent;

export type RunFile = {
  content?: null;
  content_base64?: null;
  executable?: boolean;
  from_path?: string | null;
  from_run: string;
  path: string;
  upload?: null;
};

export type RunList = {
  next_cursor: string | null;
  runs: Array<RunSummary>;
};

export type RunRequest = {
  allowed_imports?: Array<string> | null;
  args?: Array<string>;
  backend?: BackendChoice | null;
  changes?: boolean;
  code: string;
  collect?: Array<string>;
  env?: Record<string, string>;
  files?: Array<InputFile>;
  hints?: boolean;
  image?: string | null;
  language: LanguageName | LanguageAlias;
  limits?: Limits;
  network?: NetworkAccess | null;
  output_base64?: boolean;
  plots?: boolean;
  secrets?: Array<string>;
  stdin?: string | Array<string>;
  waive?: Array<GuaranteeName>;
  workspace?: string | null;
  writable?: boolean;
};

export type RunResult = ExitedResult | TimedOutResult | OutOfMemoryResult | SignaledResult | CancelledResult | DeniedResult;

export type RunStarted = {
  backend: BackendName;
  id: string;
  image: string | null;
  language: LanguageName;
  queue_ms: number;
  runtime: string;
  stage: StageName;
  start: StartKind;
};

export type RunState = {
  approval_id?: string;
  id: string;
  status: RunStatus;
};

export type RunStatus = "awaiting_approval" | "queued" | "running" | "exited" | "timed_out" | "out_of_memory" | "signaled" | "cancelled" | "denied" | "failed";

export type RunSummary = {
  created_at: string;
  error?: ErrorDetail;
  exit_code: number | null;
  id: string;
  language: LanguageName;
  status: RunStatus;
};

export type ScanRequest = {
  allowed_imports?: Array<string> | null;
  code: string;
  language: LanguageName | LanguageAlias;
};

export type ScanResult = {
  findings: Array<Finding>;
};

export type Severity = "info" | "low" | "medium" | "high" | "critical";

export type SignaledResult = {
  backend: BackendName;
  changes?: Changes;
  cold_reason: string | null;
  compile: CompileResult | null;
  decision?: Decision;
  exit_code: number;
  files?: Array<CollectedFile>;
  findings: Array<Finding>;
  id: string;
  image: string | null;
  isolation: Isolation;
  language: LanguageName;
  network: NetworkAccess;
  network_denied?: Array<NetworkDenied>;
  oom_killed: false;
  runtime: string;
  signal: number | null;
  stage: StageName;
  start: StartKind;
  status: "signaled";
  stderr: string;
  stderr_base64?: string;
  stderr_truncated: boolean;
  stdout: string;
  stdout_base64?: string;
  stdout_truncated: boolean;
  timed_out: false;
  usage: Usage;
};

export type StageEvent = {
  data: string;
  event: EventName;
};

export type StageName = "run" | "compile";

export type StageStarted = {
  stage: StageName;
};

export type StartEvent = {
  data: string;
  event: EventName;
};

export type StartKind = "warm" | "zygote" | "cold";

export type StderrEvent = {
  data: string;
  event: EventName;
};

export type StdoutEvent = {
  data: string;
  event: EventName;
};

export type TextFile = {
  content: string;
  content_base64?: null;
  executable?: boolean;
  from_path?: null;
  from_run?: null;
  path: string;
  upload?: null;
};

export type TimedOutResult = {
  backend: BackendName;
  changes?: Changes;
  cold_reason: string | null;
  compile: CompileResult | null;
  decision?: Decision;
  exit_code: number;
  files?: Array<CollectedFile>;
  findings: Array<Finding>;
  id: string;
  image: string | null;
  isolation: Isolation;
  language: LanguageName;
  network: NetworkAccess;
  network_denied?: Array<NetworkDenied>;
  oom_killed: false;
  runtime: string;
  signal: number | null;
  stage: StageName;
  start: StartKind;
  status: "timed_out";
  stderr: string;
  stderr_base64?: string;
  stderr_truncated: boolean;
  stdout: string;
  stdout_base64?: string;
  stdout_truncated: boolean;
  timed_out: true;
  usage: Usage;
};

export type Upload = {
  expires_at: string;
  id: string;
  sha256: string;
  size: number;
};

export type UploadList = {
  files: Array<Upload>;
};

export type UploadedFile = {
  content?: null;
  content_base64?: null;
  executable?: boolean;
  from_path?: null;
  from_run?: null;
  path: string;
  upload: string;
};

export type Usage = {
  cpu_ms: number;
  memory_peak_bytes: number;
  network_down_bytes?: number;
  network_up_bytes?: number;
  queue_ms: number;
  wall_ms: number;
};
