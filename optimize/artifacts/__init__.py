"""Artifacts: compiled programs as folders that an application can check, load, compare, pack and sign."""
