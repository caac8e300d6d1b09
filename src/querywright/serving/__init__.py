"""Serve an artifact over HTTP: ``server.serve`` runs a server, ``app.make_app`` returns its application."""
