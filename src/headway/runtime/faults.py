"""What a model call may raise beside the model's own errors: the worker is gone, or the memory."""


class WorkerLost(Exception):
    """The worker ended, or was ended, while it had this batch: no result will come.

    Callers never see it. Their items run again, or are refused with an error that says why.
    """

    def __init__(self, reason: str, *, out_of_memory: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason  # for people: "killed by SIGKILL", "no answer for 30 s"
        self.out_of_memory = out_of_memory


def is_out_of_memory(error: BaseException | None) -> bool:
    """Python's own, torch's and onnxruntime's way to say so, or an error that came of it."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        text = str(error)
        if "Failed to allocate memory" in text or "bad allocation" in text:
            return True
        error = error.__cause__
    return False
