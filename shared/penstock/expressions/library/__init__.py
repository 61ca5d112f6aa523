"""The functions and operators of CEL on JSON values, times and durations. Pure.

A value is None, a boolean, a number, a text, a list, an object (dict), a time (datetime) or a
duration (timedelta). The functions raise `ExpressionError` where CEL gives an error. A function
counts what takes time or memory by a `Budget` before it does it.
"""
