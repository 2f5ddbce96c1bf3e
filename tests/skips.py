"""What a run of the tests left out, for its last lines: a skipped test is one that nobody knows of."""

from __future__ import annotations

from collections.abc import Mapping

PACKAGES = {
    "redis-server is not installed": "redis-server",
    "nginx is not installed": "nginx-light",
    "chromium is not installed": "chromium",
    "openssl is not installed": "openssl",
    "node and npm are not installed": "nodejs npm",
}
"""Packages of Debian and Ubuntu, by how a reason for skipping begins."""


def left_out(reasons: Mapping[str, int]) -> list[str]:
    """Lines about the skipped tests: how many for which reason, and the one command that brings what is missing."""
    if not reasons:
        return []
    lines = [f"{sum(reasons.values())} tests were skipped:"]
    lines += [f"  {count} because {reason}" for reason, count in sorted(reasons.items())]
    missing = [
        package for beginning, package in PACKAGES.items() if any(reason.startswith(beginning) for reason in reasons)
    ]
    if missing:
        lines.append(f"To run them too: apt-get install -y {' '.join(missing)}")
    return lines
