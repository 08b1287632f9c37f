"""Faults from outside against a real server under load, and an account of every request.

    python -m benchmarks.chaos --seed 1              # 60 s; `make chaos`
    python -m benchmarks.chaos --soak 600            # is anything growing?

Read `scenario.py` first: what is sent and what goes wrong, by seed. `load.py` sends it, `faults.py`
does it, `accounting.py` judges what came back.
"""
