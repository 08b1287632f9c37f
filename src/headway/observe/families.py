"""Every metric there is: its name, its kind, what it means. More: docs/reference/metrics.md."""

from headway.observe.exposition import Family

_MODEL = ("model", "version")
_CLASS = (*_MODEL, "priority")

# ---- items: one unit of queued work each; the parts of a request that was cut count singly
ITEM_QUEUE = Family(
    "headway_item_queue_seconds", "histogram", "Waited because every worker was busy.", _CLASS
)
ITEM_LINGER = Family(
    "headway_item_linger_seconds", "histogram", "Waited for more items at a free worker.", _CLASS
)
ITEM_EXECUTE = Family(
    "headway_item_execute_seconds", "histogram", "Run time of the batch it was in.", _CLASS
)
ITEM_END_TO_END = Family(
    "headway_item_end_to_end_seconds", "histogram", "From queued to answered.", _CLASS
)
ITEMS_FAILED = Family(
    "headway_items_failed_total", "counter", "Items answered with the model's error.", _MODEL
)
ITEMS_REFUSED = Family(
    "headway_items_refused_total", "counter", "Calls that were refused.", (*_MODEL, "reason")
)
ITEMS_CANCELLED = Family(
    "headway_items_cancelled_total", "counter", "Callers that left early.", (*_MODEL, "started")
)
TENANT_ROWS = Family(
    "headway_tenant_rows_total", "counter", "Rows run, by configured tenant.", (*_MODEL, "tenant")
)
SLO_ITEMS = Family(
    "headway_slo_items_total", "counter", "Items against the latency goal.", (*_MODEL, "outcome")
)
SLO_SECONDS = Family("headway_slo_seconds", "gauge", "The latency goal.", _MODEL)

# ---- batches
BATCH_ROWS = Family(
    "headway_batch_rows", "histogram", "Rows in a batch, by why it left.", (*_MODEL, "reason")
)
BATCH_PADDING = Family(
    "headway_batch_padding_ratio", "histogram", "Share of a batch that was padding.", _MODEL
)
BATCH_RERUNS = Family(
    "headway_batch_reruns_total", "counter", "Model calls spent on finding a culprit.", _MODEL
)
BATCHES_LOST = Family(
    "headway_batches_lost_total", "counter", "Batches that a worker held when it died.", _MODEL
)
OUT_OF_MEMORY = Family(
    "headway_out_of_memory_total", "counter", "Batches that did not fit into memory.", _MODEL
)
BATCH_CAP = Family("headway_batch_cap_rows", "gauge", "Most rows that are thought to pay.", _MODEL)
LINGER_CAP = Family(
    "headway_linger_cap_seconds", "gauge", "Longest wait that is thought to pay.", _MODEL
)

# ---- now
QUEUE_ROWS = Family("headway_queue_rows", "gauge", "Rows waiting.", _MODEL)
QUEUE_SECONDS = Family(
    "headway_queue_seconds", "gauge", "Seconds of work waiting, by the cost table.", _MODEL
)
WORKERS = Family("headway_workers", "gauge", "Workers by what they do.", (*_MODEL, "state"))
WORKER_RESTARTS = Family(
    "headway_worker_restarts_total", "counter", "Worker processes started again.", _MODEL
)
OLDEST_BATCH = Family(
    "headway_oldest_batch_seconds", "gauge", "How long the longest batch has been running.", _MODEL
)
MODEL_READY = Family("headway_model_ready", "gauge", "1 while calls are taken.", _MODEL)
CRASHES = Family("headway_crashes_total", "counter", "Batchers that broke.", _MODEL)

# ---- language models; the names end as vLLM's do
FIRST_TOKEN = Family(
    "headway_time_to_first_token_seconds", "histogram", "From asked to the first token.", _MODEL
)
BETWEEN_TOKENS = Family(
    "headway_inter_token_latency_seconds", "histogram", "Between two tokens of an answer.", _MODEL
)
SEQUENCE_SECONDS = Family(
    "headway_e2e_request_latency_seconds", "histogram", "From asked to the last token.", _MODEL
)
SEQUENCE_QUEUED = Family(
    "headway_request_queue_time_seconds", "histogram", "From asked to the first step.", _MODEL
)
STEP_SEQUENCES = Family(
    "headway_step_sequences", "histogram", "Answers that got a token from a step.", _MODEL
)
SEQUENCES_RUNNING = Family(
    "headway_num_requests_running", "gauge", "Answers being computed.", _MODEL
)
SEQUENCES_WAITING = Family(
    "headway_num_requests_waiting", "gauge", "Answers that wait for a place.", _MODEL
)
KV_CACHE_USAGE = Family(
    "headway_kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.", _MODEL
)
PREEMPTIONS = Family(
    "headway_num_preemptions_total", "counter", "Answers that gave up their blocks.", _MODEL
)
PREFIX_QUERIES = Family(
    "headway_prefix_cache_queries_total", "counter", "Prompt tokens looked up.", _MODEL
)
PREFIX_HITS = Family(
    "headway_prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.", _MODEL
)
PROMPT_TOKENS = Family("headway_prompt_tokens_total", "counter", "Tokens of prompts.", _MODEL)
GENERATION_TOKENS = Family(
    "headway_generation_tokens_total", "counter", "Tokens of answers.", _MODEL
)
SEQUENCES_FINISHED = Family(
    "headway_request_success_total",
    "counter",
    "Answers that ended, by why.",
    (*_MODEL, "finished_reason"),
)
LANGUAGE = (
    *(FIRST_TOKEN, BETWEEN_TOKENS, SEQUENCE_SECONDS, SEQUENCE_QUEUED, STEP_SEQUENCES),
    *(SEQUENCES_RUNNING, SEQUENCES_WAITING, KV_CACHE_USAGE, PREEMPTIONS, PREFIX_QUERIES),
    *(PREFIX_HITS, PROMPT_TOKENS, GENERATION_TOKENS, SEQUENCES_FINISHED),
)

# ---- models that call models
_STAGE = ("model", "stage")
STAGE_CALLS = Family(
    "headway_stage_calls_total", "counter", "Calls from one model to another.", _STAGE
)
STAGES_FAILED = Family(
    "headway_stage_failures_total", "counter", "Those that ended with an error.", _STAGE
)
STAGE_SECONDS = Family(
    "headway_stage_seconds_total", "counter", "Time spent waiting for their answers.", _STAGE
)

# ---- the server
ERROR_ANSWERS = Family(
    "headway_error_answers_total",
    "counter",
    "Requests answered with an error, whatever the reason.",
    ("protocol", "code"),
)
BUILD_INFO = Family("headway_build_info", "gauge", "Which Headway this is.", ("version",))

# ---- the process, as Prometheus' own clients name it
CPU_SECONDS = Family("process_cpu_seconds_total", "counter", "User and system CPU time spent.")
RESIDENT_BYTES = Family("process_resident_memory_bytes", "gauge", "Resident memory.")
VIRTUAL_BYTES = Family("process_virtual_memory_bytes", "gauge", "Virtual memory.")
START_TIME = Family("process_start_time_seconds", "gauge", "When it started, in Unix time.")
OPEN_FDS = Family("process_open_fds", "gauge", "Open file descriptors.")
MAX_FDS = Family("process_max_fds", "gauge", "Most file descriptors there may be.")

# ---- Triton's names, so that its dashboards carry over
NV_SUCCESS = Family(
    "nv_inference_request_success", "counter", "Requests answered with a result.", _MODEL
)
NV_FAILURE = Family(
    "nv_inference_request_failure", "counter", "Requests that failed.", (*_MODEL, "reason")
)
NV_COUNT = Family("nv_inference_count", "counter", "Rows of the requests answered.", _MODEL)
NV_EXECUTIONS = Family("nv_inference_exec_count", "counter", "Batches run.", _MODEL)
NV_REQUEST_US = Family(
    "nv_inference_request_duration_us", "counter", "Time of the requests answered.", _MODEL
)
NV_QUEUE_US = Family(
    "nv_inference_queue_duration_us", "counter", "Time these requests waited.", _MODEL
)
NV_INPUT_US = Family(
    "nv_inference_compute_input_duration_us", "counter", "Part of infer here: always 0.", _MODEL
)
NV_INFER_US = Family(
    "nv_inference_compute_infer_duration_us", "counter", "Time their batches ran.", _MODEL
)
NV_OUTPUT_US = Family(
    "nv_inference_compute_output_duration_us", "counter", "Part of infer here: always 0.", _MODEL
)
NV_PENDING = Family(
    "nv_inference_pending_request_count", "gauge", "Items that wait for a worker.", _MODEL
)
_GPU = ("gpu_uuid",)
GPU_UTILIZATION = Family("nv_gpu_utilization", "gauge", "Share of time it was busy, 0 to 1.", _GPU)
GPU_MEMORY_TOTAL = Family("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", _GPU)
GPU_MEMORY_USED = Family("nv_gpu_memory_used_bytes", "gauge", "Memory in use.", _GPU)
GPU_POWER = Family("nv_gpu_power_usage", "gauge", "Power drawn, in watts.", _GPU)
GPU_POWER_LIMIT = Family("nv_gpu_power_limit", "gauge", "Most power it may draw, in watts.", _GPU)
GPU_ENERGY = Family("nv_energy_consumption", "counter", "Joules since the driver came up.", _GPU)

ALL = tuple(each for each in tuple(globals().values()) if isinstance(each, Family))
