"""Serving artifacts over HTTP: an API and a page."""
