"""The routes, one family a file or folder."""
