"""Backends with real windows that go wrong as a plan says, fault by point."""

from collections import Counter
from dataclasses import replace

from typing_extensions import override

from tests.fakes import FAKES, FakeBackend, await_until
from tests.fakes.http import Exchange
from tests.fakes.model import Refused
from tests.fakes.server import Receive, Scope, Send
from tests.faults.table import ALWAYS_BEFORE, Fault, Plan, Point
from tests.faults.torn import Torn, error_of

SETTLING = 5.0
"""Seconds in which a connection that was closed must be seen to be."""


class Faulty(FakeBackend):
    """A fake that is good until it has a plan. Requests are told apart by their credential, also those for summaries."""

    @override
    def add_routes(self) -> None:
        super().add_routes()
        self.plans: dict[str, Plan] = {}
        """By credential; of probes, which have none, as `""`."""
        self.struck: Counter[tuple[Point, Fault]] = Counter()
        self.asleep = False
        self.generating: Counter[str] = Counter()
        """Chat requests being answered now, by credential."""
        self.doubled: list[str] = []
        """Credentials for which two were answered at once."""
        self._real_models = self.models

    # -- for tests

    @property
    def in_trouble(self) -> bool:
        """Whether something is wrong for whoever comes."""
        gone = not self.server.accepting
        return gone or self.asleep or "" in self.plans or self.models is not self._real_models

    def heal(self) -> None:
        """Be as good as at first."""
        self.plans.clear()
        self.recover()

    def recover(self) -> None:
        """Be good again to those who have no plan of their own."""
        self.plans.pop("", None)
        self.asleep = False
        self.models = self._real_models
        self.server.accept()

    def go_down(self) -> None:
        """Be gone, until healed."""
        self.server.call(self.server.refuse)

    # -- inside

    @override
    def exchange(self, scope: Scope, receive: Receive, send: Send) -> Exchange:
        torn = Torn(scope, receive, send)
        torn.lasting = self._last
        return torn

    def _last(self, fault: Fault) -> None:
        match fault:
            case Fault.REFUSED:
                self.server.refuse()
            case Fault.UNLOADED:
                self.asleep = True
            case Fault.OTHER:
                other = [replace(model, id="other-model", window=model.window // 2) for model in self._real_models]
                self.models = other
            case _:
                pass

    @override
    def precheck(self, exchange: Exchange) -> None:
        if self.asleep:
            raise Refused(503, error_of(Fault.UNLOADED))
        super().precheck(exchange)

    @override
    async def _answer(self, exchange: Exchange) -> None:
        assert isinstance(exchange, Torn)
        if not exchange.request.path.endswith("/chat/completions"):
            if await self._probe_fails(exchange):
                return
            await super()._answer(exchange)
            return
        who = credential(exchange)
        if self.generating[who]:
            try:
                await await_until(lambda: not self.generating[who], within=SETTLING)
            except AssertionError:
                self.doubled.append(who)
        self.generating[who] += 1
        try:
            await self._chat_fails(exchange, self.plans.get(who))
        finally:
            self.generating[who] -= 1

    async def _chat_fails(self, exchange: Torn, plan: Plan | None) -> None:
        summary = "summar" in str((exchange.request.json or {}).get("messages", [""])[-1:]).lower()
        if plan is None or not plan.strikes(summary=summary):
            await super()._answer(exchange)
            return
        plan.struck += 1
        self.struck[plan.point, plan.fault] += 1
        exchange.fault = plan.fault
        exchange.middle = plan.point is Point.MIDDLE
        if plan.fault is Fault.OTHER and plan.point not in ALWAYS_BEFORE:
            exchange.fault = Fault.RESET  # the server was started anew
            self._last(Fault.OTHER)
        if plan.point in ALWAYS_BEFORE and await exchange.strike_before():
            return
        await super()._answer(exchange)

    async def _probe_fails(self, exchange: Torn) -> bool:
        plan = self.plans.get("")
        if plan is None or plan.struck >= plan.times:
            return False
        plan.struck += 1
        self.struck[plan.point, plan.fault] += 1
        exchange.fault = plan.fault
        return await exchange.strike_before()


def credential(exchange: Exchange) -> str:
    """Whose request it is."""
    return (exchange.request.header("authorization") or "").removeprefix("Bearer ")


def _faulty(kind: type[FakeBackend]) -> type[Faulty]:
    return type(f"Faulty{kind.__name__}", (Faulty, kind), {})


FAULTY: dict[str, type[Faulty]] = {name: _faulty(kind) for name, kind in FAKES.items()}
