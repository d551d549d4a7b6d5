"""Readings of a loop body as a known form; each gives the form or the reason why the body is not one."""
