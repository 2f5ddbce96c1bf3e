"""Tests of what is looked at while Spillway works."""
