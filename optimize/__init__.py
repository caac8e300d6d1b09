"""Evaluating, compiling and saving programs.

Nothing is imported here, so that an application that loads an artifact does not import what compiles one.
"""
