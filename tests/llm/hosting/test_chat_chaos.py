"""`make chaos` for a language model, short: engines lost under clients that come and go."""

from pathlib import Path

import pytest
from benchmarks.chaos.chat import run
from models import build

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize(("dtype", "kv_cache_gib"), [("float32", 0.0002), ("bfloat16", 0.0001)])
def test_every_stream_ends_once_and_says_what_it_should(
    tmp_path: Path, dtype: str, kv_cache_gib: float
) -> None:
    folder = build("llama", tmp_path / "model")
    account = run(str(folder), seed=1, kills=2, kv_cache_gib=kv_cache_gib, dtype=dtype)
    assert account.broken == []
    assert account.kills == 2
    assert account.outcomes["whole"] > 0
