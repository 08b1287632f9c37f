"""Which caller may do what: keys, quotas, rights, and which doors are shut.

Without keys nothing here stands in the way of a request, but for the routes of the administrator.
"""
