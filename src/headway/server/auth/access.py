"""What each route and method takes of its caller. It looks at templates, once, not at requests."""

import re
from enum import Enum


class Access(Enum):
    OPEN = "open"  # health, as probes have no key; the page that asks for one
    READ = "read"  # what there is: any key
    INFER = "infer"
    METRICS = "metrics"
    ADMIN = "admin"

    def is_granted_to(self, rights: tuple[str, ...]) -> bool:
        """Of a caller with a key."""
        return self in (Access.OPEN, Access.READ) or self.value in rights or "admin" in rights


_MODEL = r"/v2/models/\{model\}(/versions/\{version\})?"
_HUB = r"(/models/\{model\})?"  # Hugging Face's
_MEMORY = r"/v2/(system|cuda)sharedmemory"
# The first that fits counts. The page of /docs says nothing of the models: for their description it
# asks with a key.
_ROUTES = [
    (Access.OPEN, "GET", rf"/|/docs|/chat|/v2/health/\w+|{_MODEL}/ready|{_HUB}/health"),
    (Access.METRICS, "GET", r"/metrics"),
    (Access.READ, "GET", r"/v2|/v2/models|/v2/models/stats|/v1/models(/\{model\})?|/openapi\.json"),
    (Access.READ, "GET", rf"{_MODEL}(/config|/stats|/trace/setting)?"),
    (Access.READ, "GET", rf"/v2/logging|/v2/trace/setting|{_MEMORY}/.*status"),
    (Access.READ, "POST", r"/v2/repository/(\{repository\}/)?index"),
    (Access.INFER, "POST", rf"{_MODEL}/(infer|generate|generate_stream)"),
    (Access.READ, "GET", rf"{_HUB}/info"),
    (Access.INFER, "POST", r"/|/models/\{model\}(/pipeline/\{task\})?"),
    (Access.INFER, "POST", rf"{_HUB}/(embed|similarity|rerank|predict)|/v[12]/embed"),
    (Access.INFER, "POST", r"/v1/models/\{model\}:predict"),
    (Access.INFER, "POST", r"/v1/predict/\{model\}(/batch)?|/v[12]/rerank"),
    (Access.INFER, "POST", r"/v1/(embeddings|audio/transcriptions|images/generations)"),
    (Access.INFER, "POST", r"/v1/(chat/)?completions|/tokenize|/detokenize"),
    # What others would notice: models that come and go, regions that are forgotten, levels of logs.
    (Access.ADMIN, "GET|POST", r"/admin/.*|/v1/(un)?load_lora_adapter"),
    (Access.ADMIN, "POST", rf"/v2/repository/models/.*|{_MEMORY}/.*|/v2/logging|.*/trace/setting"),
]
_RULES = [
    (access, re.compile(methods), re.compile(template)) for access, methods, template in _ROUTES
]


def access_of_route(method: str, template: str) -> Access:
    """A route without a rule of its own takes the right `admin`."""
    return rule_of_route(method, template) or Access.ADMIN


def rule_of_route(method: str, template: str) -> Access | None:
    """None: no rule names it."""
    for access, methods, templates in _RULES:
        if methods.fullmatch(method) and templates.fullmatch(template):
            return access
    return None


_METHODS = {
    "ServerLive": Access.OPEN,
    "ServerReady": Access.OPEN,
    "ModelReady": Access.OPEN,
    "ServerMetadata": Access.READ,
    "ModelMetadata": Access.READ,
    "ModelConfig": Access.READ,
    "ModelStatistics": Access.READ,
    "RepositoryIndex": Access.READ,
    "SystemSharedMemoryStatus": Access.READ,
    "CudaSharedMemoryStatus": Access.READ,
    "TraceSetting": Access.READ,  # these two change nothing, whatever they are sent
    "LogSettings": Access.READ,
    "ModelInfer": Access.INFER,
    "ModelStreamInfer": Access.INFER,
}


def access_of_method(name: str) -> Access:
    """A method without a rule of its own takes the right `admin`."""
    return _METHODS.get(name, Access.ADMIN)
