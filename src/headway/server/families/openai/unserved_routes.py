"""Routes of other servers that are not served here, and what is instead."""

_CHAT = "/v1/chat/completions"
_RESPONSES = "/v1/responses with all of the input: no answers are kept"
_PREDICT = "/v1/predict/{model}/batch"
# By what follows `/v1/`: the first that fits counts.
_INSTEAD = {
    **dict.fromkeys(("responses", "conversations", "assistants", "threads"), _RESPONSES),
    "realtime": _CHAT,
    "batches": f"{_PREDICT}, or headway map for a file",
    "files": f"{_PREDICT}, or headway map for a file",
    "uploads": f"{_PREDICT}, or headway map for a file",
    "vector_stores": "/v1/embeddings and /v1/rerank",
    "moderations": "/predict (a model that classifies texts)",
    "audio/translations": "/v1/audio/transcriptions",
    "audio/speech": "/v1/predict/{model} (a model of yours that gives bytes)",
    "images/edits": "/v1/images/generations",
    "images/variations": "/v1/images/generations",
    "videos": "/v1/predict/{model} (a model of yours that gives bytes)",
    "fine_tuning": "/v1/load_lora_adapter for what was tuned elsewhere",
    "engines": "/v1/models",
    "predict": "/v1/predict/{model}",
}
# Of vLLM, SageMaker, TorchServe and Kubernetes.
_OTHERS = {
    "/generate": "/v1/completions",
    "/invocations": "/v1/predict/{model}",
    "/predictions": "/v1/predict/{model}",
    "/infer": "/v2/models/{model}/infer",
    "/models": "/v1/models",
    **dict.fromkeys(("/healthz", "/readyz"), "/health"),
    "/livez": "/v2/health/live",
}


def why_unserved(path: str) -> str | None:
    """A hint about a route of OpenAI's that is not served; None: it is not one that we know."""
    if path in _OTHERS:
        return f"{path} is not served here; use {_OTHERS[path]}. /docs lists all routes"
    if not path.startswith("/v1/"):
        return None
    asked = path.removeprefix("/v1/")
    for name, instead in _INSTEAD.items():
        if asked == name or asked.startswith(f"{name}/"):
            return f"/v1/{asked:.80} is not served here; use {instead}. /docs lists all routes"
    return None
