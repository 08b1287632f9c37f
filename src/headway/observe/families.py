"""Every metric: its name, its type and its meaning. More: docs/reference/metrics.md."""

import functools

from headway.observe.exposition import Kind, MetricFamily


def _of_model(kind: Kind, name: str, meaning: str, *labels: str) -> MetricFamily:
    """A family with labels for model and version, and these."""
    return MetricFamily(name, kind, meaning, ("model", "version", *labels))


_counter = functools.partial(_of_model, "counter")
_gauge = functools.partial(_of_model, "gauge")
_histogram = functools.partial(_of_model, "histogram")

# ---- items: one unit of queued work each; the parts of a request that was cut count singly
ITEM_QUEUE = _histogram(
    "headway_item_queue_seconds", "Waited because every worker was busy.", "priority"
)
ITEM_LINGER = _histogram(
    "headway_item_linger_seconds", "Waited for more items at a free worker.", "priority"
)
ITEM_EXECUTE = _histogram(
    "headway_item_execute_seconds", "Run time of the batch it was in.", "priority"
)
ITEM_END_TO_END = _histogram(
    "headway_item_end_to_end_seconds", "From queued to answered.", "priority"
)
ITEMS_FAILED = _counter("headway_items_failed_total", "Items answered with the model's error.")
ITEMS_REFUSED = _counter("headway_items_refused_total", "Calls that were refused.", "reason")
ITEMS_CANCELLED = _counter("headway_items_cancelled_total", "Callers that left early.", "started")
TENANT_ROWS = _counter("headway_tenant_rows_total", "Rows run, by configured tenant.", "tenant")
SLO_ITEMS = _counter("headway_slo_items_total", "Items against the latency goal.", "outcome")
SLO_SECONDS = _gauge("headway_slo_seconds", "The latency goal.")

# ---- batches
BATCH_ROWS = _histogram("headway_batch_rows", "Rows in a batch, by why it left.", "reason")
BATCH_PADDING = _histogram("headway_batch_padding_ratio", "Share of a batch that was padding.")
BATCH_RERUNS = _counter("headway_batch_reruns_total", "Model calls spent on finding a culprit.")
BATCHES_LOST = _counter("headway_batches_lost_total", "Batches that a worker held when it died.")
OUT_OF_MEMORY = _counter("headway_out_of_memory_total", "Batches that did not fit into memory.")
BATCH_CAP = _gauge("headway_batch_cap_rows", "Most rows in a batch now, as learned.")
LINGER_CAP = _gauge("headway_linger_cap_seconds", "Longest wait for more items now, as learned.")

# ---- now
QUEUE_ROWS = _gauge("headway_queue_rows", "Rows waiting.")
QUEUE_SECONDS = _gauge("headway_queue_seconds", "Seconds of work waiting, by the cost table.")
WORK_SECONDS = _counter("headway_work_seconds_total", "Work done, as if in full batches.")
WORKERS = _gauge("headway_workers", "Workers by what they do.", "state")
WORKER_RESTARTS = _counter("headway_worker_restarts_total", "Worker processes started again.")
OLDEST_BATCH = _gauge(
    "headway_oldest_batch_seconds", "How long the longest batch has been running."
)
MODEL_READY = _gauge("headway_model_ready", "1 while calls are taken.")
CRASHES = _counter("headway_crashes_total", "Batchers that broke.")

# ---- the whole process, for scalers and pickers, which read no labels
LOAD_QUEUED = MetricFamily("headway_load_queued_requests", "gauge", "Items that wait.")
LOAD_RUNNING = MetricFamily("headway_load_running_requests", "gauge", "Items that run.")
LOAD_QUEUE_SECONDS = MetricFamily(
    "headway_load_queue_seconds", "gauge", "Seconds of work waiting, of all models."
)
LOAD_WORK_SECONDS = MetricFamily(
    "headway_load_work_seconds_total", "counter", "Work done by each worker, of all models."
)
LOAD_UTILIZATION = MetricFamily(
    "headway_load_utilization", "gauge", "Work a second, lately; 1: it can do no more."
)

# ---- language models; the names end as vLLM's do
FIRST_TOKEN = _histogram("headway_time_to_first_token_seconds", "From asked to the first token.")
BETWEEN_TOKENS = _histogram(
    "headway_inter_token_latency_seconds", "Between two tokens of an answer."
)
SEQUENCE_SECONDS = _histogram(
    "headway_e2e_request_latency_seconds", "From asked to the last token."
)
SEQUENCE_QUEUED = _histogram("headway_request_queue_time_seconds", "From asked to the first step.")
STEP_SEQUENCES = _histogram("headway_step_sequences", "Answers that got a token from a step.")
SEQUENCES_RUNNING = _gauge("headway_num_requests_running", "Answers being computed.")
SEQUENCES_WAITING = _gauge("headway_num_requests_waiting", "Answers that wait for a place.")
KV_CACHE_USAGE = _gauge("headway_kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.")
PREEMPTIONS = _counter("headway_num_preemptions_total", "Answers that gave up their blocks.")
PREFIX_QUERIES = _counter("headway_prefix_cache_queries_total", "Prompt tokens looked up.")
PREFIX_HITS = _counter("headway_prefix_cache_hits_total", "Prompt tokens found in the cache.")
PROMPT_TOKENS = _counter("headway_prompt_tokens_total", "Tokens of prompts.")
GENERATION_TOKENS = _counter("headway_generation_tokens_total", "Tokens of answers.")
SEQUENCES_FINISHED = _counter(
    "headway_request_success_total", "Answers that ended, by why.", "finished_reason"
)
LANGUAGE = (
    *(FIRST_TOKEN, BETWEEN_TOKENS, SEQUENCE_SECONDS, SEQUENCE_QUEUED, STEP_SEQUENCES),
    *(SEQUENCES_RUNNING, SEQUENCES_WAITING, KV_CACHE_USAGE, PREEMPTIONS, PREFIX_QUERIES),
    *(PREFIX_HITS, PROMPT_TOKENS, GENERATION_TOKENS, SEQUENCES_FINISHED),
)

# ---- models that call models
_STAGE = ("model", "stage")
STAGE_CALLS = MetricFamily(
    "headway_stage_calls_total", "counter", "Calls from one model to another.", _STAGE
)
STAGES_FAILED = MetricFamily(
    "headway_stage_failures_total", "counter", "Those that ended with an error.", _STAGE
)
STAGE_SECONDS = MetricFamily(
    "headway_stage_seconds_total", "counter", "Time spent waiting for their answers.", _STAGE
)

# ---- the server
ERROR_ANSWERS = MetricFamily(
    "headway_error_answers_total",
    "counter",
    "Requests answered with an error, for any reason.",
    ("protocol", "code"),
)
BUILD_INFO = MetricFamily("headway_build_info", "gauge", "Which Headway this is.", ("version",))

# ---- the process, as Prometheus' own clients name it
CPU_SECONDS = MetricFamily(
    "process_cpu_seconds_total", "counter", "User and system CPU time spent."
)
RESIDENT_BYTES = MetricFamily("process_resident_memory_bytes", "gauge", "Resident memory.")
VIRTUAL_BYTES = MetricFamily("process_virtual_memory_bytes", "gauge", "Virtual memory.")
START_TIME = MetricFamily("process_start_time_seconds", "gauge", "When it started, in Unix time.")
OPEN_FDS = MetricFamily("process_open_fds", "gauge", "Open file descriptors.")
MAX_FDS = MetricFamily("process_max_fds", "gauge", "Most file descriptors there may be.")

# ---- Triton's names, so that its dashboards carry over
NV_SUCCESS = _counter("nv_inference_request_success", "Requests answered with a result.")
NV_FAILURE = _counter("nv_inference_request_failure", "Requests that failed.", "reason")
NV_COUNT = _counter("nv_inference_count", "Rows of the requests answered.")
NV_EXECUTIONS = _counter("nv_inference_exec_count", "Batches run.")
NV_REQUEST_US = _counter("nv_inference_request_duration_us", "Time of the requests answered.")
NV_QUEUE_US = _counter("nv_inference_queue_duration_us", "Time these requests waited.")
NV_INPUT_US = _counter("nv_inference_compute_input_duration_us", "Part of infer here: always 0.")
NV_INFER_US = _counter("nv_inference_compute_infer_duration_us", "Time their batches ran.")
NV_OUTPUT_US = _counter("nv_inference_compute_output_duration_us", "Part of infer here: always 0.")
NV_PENDING = _gauge("nv_inference_pending_request_count", "Items that wait for a worker.")
_GPU = ("gpu_uuid",)
GPU_UTILIZATION = MetricFamily(
    "nv_gpu_utilization", "gauge", "Share of time it was busy, 0 to 1.", _GPU
)
GPU_MEMORY_TOTAL = MetricFamily("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", _GPU)
GPU_MEMORY_USED = MetricFamily("nv_gpu_memory_used_bytes", "gauge", "Memory in use.", _GPU)
GPU_POWER = MetricFamily("nv_gpu_power_usage", "gauge", "Power drawn, in watts.", _GPU)
GPU_POWER_LIMIT = MetricFamily(
    "nv_gpu_power_limit", "gauge", "Most power it may draw, in watts.", _GPU
)
GPU_ENERGY = MetricFamily(
    "nv_energy_consumption", "counter", "Joules since the driver came up.", _GPU
)

ALL = tuple(each for each in tuple(globals().values()) if isinstance(each, MetricFamily))
