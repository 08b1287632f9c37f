"""Which caller may do what: keys, quotas, rights, and which doors are shut.

A key that is for certain models is refused by `Caller.check_model` (`keys.py`), which
`server/service/models.py` asks. Without keys nothing here refuses a request, but for
the routes of the administrator.
"""
