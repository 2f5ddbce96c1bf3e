"""Whoever looks, and what they may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["open", "key", "admin"]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks. `tenant`: a digest of whose the key is; `content`: whether what others said is shown too."""

    role: Role
    tenant: str = ""
    content: bool = False

    @property
    def all(self) -> bool:
        """Whether everybody's conversations are seen."""
        return self.role != "key"

    def sees(self, tenant: str) -> bool:
        """Whether anything of this one's is seen."""
        return self.all or tenant == self.tenant

    def reads(self, tenant: str) -> bool:
        """Whether what this one said is shown."""
        return (self.all and self.content) or tenant == self.tenant
