"""Who may call what: each route names the right it needs, and so does each gRPC method here."""

from enum import Enum


class Access(Enum):
    OPEN = "open"  # health, as probes have no key; the page that asks for one
    READ = "read"  # descriptions: any key
    INFER = "infer"
    METRICS = "metrics"
    ADMIN = "admin"

    def is_granted_to(self, rights: tuple[str, ...]) -> bool:
        """Whether a caller whose key has `rights` may call such a route."""
        return self in (Access.OPEN, Access.READ) or self.value in rights or "admin" in rights


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
    "TraceSetting": Access.READ,  # these two never change anything
    "LogSettings": Access.READ,
    "ModelInfer": Access.INFER,
    "ModelStreamInfer": Access.INFER,
}


def access_of_method(name: str) -> Access:
    """A method without a rule of its own takes the right `admin`."""
    return _METHODS.get(name, Access.ADMIN)
