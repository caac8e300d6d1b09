"""Evaluate, compile, and save programs.

This package imports nothing, so that an application that loads an artifact does not import the compiler.
"""
