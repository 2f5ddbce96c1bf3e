"""The table: a row per number, a column per target, ratios to the two simple pass-throughs, the aims beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.scenarios import Metric

Values = Mapping[str, float | None]
"""Target name to number; None where the target has none."""
JUDGED = "spillway"
BASES = ("naive", "bare")


def table(rows: Sequence[tuple[Metric, Values]], targets: Sequence[str]) -> str:
    """Lay the numbers out as a Markdown table."""
    bases = [base for base in BASES if base in targets] if JUDGED in targets else []
    header = ["", *targets, *(f"{JUDGED} / {base}" for base in bases)]
    header += ["aim"] if JUDGED in targets else []
    lines = [header]
    for metric, values in rows:
        line = [metric.name, *(_number(values.get(name), metric.digits) for name in targets)]
        line += [_ratio(values.get(JUDGED), values.get(base)) for base in bases]
        line += [_judged(metric, values)] if JUDGED in targets else []
        lines.append(line)
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    lines.insert(1, [_rule(width, column) for column, width in enumerate(widths)])
    return "\n".join(f"| {' | '.join(_padded(line, widths))} |" for line in lines)


def _judged(metric: Metric, values: Values) -> str:
    aim, number = metric.aim, values.get(JUDGED)
    if aim is None:
        return ""
    met = None if number is None else aim.met(number, values.get(aim.of))
    return str(aim) if met is None else f"{aim}: {'met' if met else 'missed'}"


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]


def _rule(width: int, column: int) -> str:
    return "-" * width if column == 0 else "-" * (width - 1) + ":"


def _number(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:,.{digits}f}"


def _ratio(number: float | None, base: float | None) -> str:
    return f"{number / base:.2f}" if number is not None and base else "-"
