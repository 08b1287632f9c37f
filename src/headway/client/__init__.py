"""A Python client for a Headway server, over HTTP. Needs `headway[client]` (httpx)."""

from headway.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
