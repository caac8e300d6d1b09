"""Artifacts: folders with compiled programs that an application can check, load, pin, and sign."""
