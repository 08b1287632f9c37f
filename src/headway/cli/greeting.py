"""What `headway serve` tells a person once it listens: lines to copy that work."""

from headway.server.serving import Registry, ServedModel


def greeting(registry: Registry, url: str, grpc_address: str | None) -> str:
    """The addresses, and for the first model a call with curl and, where it embeds, with openai."""
    lines = [f"Serving {', '.join(registry.names())}", f"  HTTP  {url}"]
    if grpc_address is not None:
        lines.append(f"  gRPC  {grpc_address}")
    model = registry.get(registry.names()[0])
    lines += ["", "Try it:", f"  {_curl(model, url)}"]
    if _embeds(model):
        lines.append(f"  {_openai(model, url)}")
    lines += ["", "Ctrl-C stops: running requests are finished, new ones refused."]
    return "\n".join(lines)


def _curl(model: ServedModel, url: str) -> str:
    return f"curl {url}/v1/predict/{model.name} -d '{_example(model)}'"


def _openai(model: ServedModel, url: str) -> str:
    call = f"print(OpenAI().embeddings.create(model='{model.name}', input='hello').usage)"
    return (
        f'OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=any python -c "from openai import OpenAI; {call}"'
    )


def _example(model: ServedModel) -> str:
    tensor = model.inputs[0]
    if tensor.dtype == "object":
        return '"hello"'
    values = ", ".join(["1.0"] * max(1, abs(tensor.shape[-1])))
    row = f"[{values}]" if len(tensor.shape) > 1 else "1.0"
    return row if len(model.inputs) == 1 else f'{{"{tensor.name}": {row}}}'


def _embeds(model: ServedModel) -> bool:
    outputs = model.outputs
    return len(outputs) == 1 and outputs[0].dtype == "float32" and len(outputs[0].shape) == 2
