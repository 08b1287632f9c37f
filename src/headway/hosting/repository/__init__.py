"""Models that come, change and go: read from a folder or a configuration, kept by `keeper.py`.

`core/lifecycle/versions.py` decides; here it is done.
"""
