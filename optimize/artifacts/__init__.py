"""Artifacts: compiled programs as folders that an application can check, load, pin and sign."""
