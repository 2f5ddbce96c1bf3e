"""Notices to the user inside the stream."""

from __future__ import annotations

from proxy.stream.status.base import Form, Notice, strip_status
from proxy.stream.status.forms import FORMS, carries_chunks

__all__ = ["FORMS", "Form", "Notice", "carries_chunks", "strip_status"]
