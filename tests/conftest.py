pytest_plugins = ["headway.testing.pytest_plugin"]
