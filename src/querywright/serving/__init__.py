"""Serve an artifact over HTTP: ``server.serve`` runs a server, and ``app.make_app`` returns its web application."""
