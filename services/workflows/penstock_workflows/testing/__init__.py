"""Tests of workflows with canned answers, without a server. Pure."""
