"""Who may do what: keys, quotas, rights, and which doors are shut. Built only where asked for.

Without keys nothing here stands in the way of a request, but for the routes of the administrator.
"""
