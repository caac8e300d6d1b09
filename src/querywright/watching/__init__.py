"""Watching a program in use: what was asked, found and answered, and whether it still is what it was compiled for."""
