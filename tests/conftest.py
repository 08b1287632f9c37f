import os
import tempfile

from hypothesis import settings

pytest_plugins = ["headway.testing.pytest_plugin"]

# CI looks at the same examples every time; a developer's run looks further, and `make test-all`
# twenty times as long.
is_ci = bool(os.environ.get("CI"))
settings.register_profile("default", deadline=None, print_blob=True, derandomize=is_ci)
settings.register_profile("long", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# What servers keep for their next start must not come from, or go to, the developer's own.
_cache = tempfile.TemporaryDirectory(prefix="headway-tests-")
os.environ["XDG_CACHE_HOME"] = _cache.name
