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
        """Of somebody who has a key."""
        return self in (Access.OPEN, Access.READ) or self.value in rights or "admin" in rights


# The page of /docs says nothing of the models: for their description it asks with a key.
_OPEN = re.compile(r"/docs|/v2/health/\w+|/v2/models/\{model\}(/versions/\{version\})?/ready")
_ADMIN = re.compile(r"/admin(/.*)?")
# What others would notice: models that come and go, regions that are forgotten, levels of logs.
_CHANGES = re.compile(
    r"/v2/repository/models/.*|/v2/(system|cuda)sharedmemory/.*|/v2/logging|.*/trace/setting"
)


def access_of_route(method: str, template: str) -> Access:
    """A route that nobody has thought of takes the right to infer."""
    if _OPEN.fullmatch(template):
        return Access.OPEN
    if template == "/metrics":
        return Access.METRICS
    if _ADMIN.fullmatch(template):
        return Access.ADMIN
    if method == "GET" or template.endswith("/index"):
        return Access.READ
    return Access.ADMIN if _CHANGES.fullmatch(template) else Access.INFER


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
    "ModelInfer": Access.INFER,
    "ModelStreamInfer": Access.INFER,
}


def access_of_method(name: str) -> Access:
    """A method that nobody has thought of is the administrator's."""
    return _METHODS.get(name, Access.ADMIN)
