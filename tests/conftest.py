import os

from hypothesis import settings

pytest_plugins = ["headway.testing.pytest_plugin"]

# `make test-all` looks twenty times as long for a counterexample.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("long", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
