"""Implements the functions and operators of CEL for JSON values, times and durations. Pure.

A value is None, a boolean, a number, a text, a list, an object (dict), a time (datetime) or a
duration (timedelta). Where CEL gives an error, the functions raise `ExpressionError`. Before a
function does something that takes time or memory, the function counts this work in a `Budget`.
"""
