"""The families, in the order in which model names are tried. One file and one line here for each."""

from __future__ import annotations

from proxy.tokens.families import (
    cl100k,
    deepseek,
    gemma3,
    glm,
    llama2,
    llama3,
    llama4,
    mistral,
    o200k,
    qwen,
    qwen35,
    tekken,
)
from proxy.tokens.families.family import Family

FAMILIES: tuple[Family, ...] = (
    deepseek.FAMILY,
    qwen35.FAMILY,
    llama4.FAMILY,
    llama3.FAMILY,
    llama2.FAMILY,
    qwen.FAMILY,
    tekken.FAMILY,
    mistral.FAMILY,
    gemma3.FAMILY,
    glm.FAMILY,
    o200k.FAMILY,
    cl100k.FAMILY,
)
BY_ID = {family.id: family for family in FAMILIES}
