"""Requests of the sink to transaction coordinators: end transactions, fence producers, find open ones.

A prepared transaction is ended with the producer id and epoch that wrote it. Every broker accepts that, also
a second time if the first answer was lost.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.configs import ConfigResource, ResourceType
from tidelog.clients.admin.driver import RETRIED
from tidelog.clients.admin.results import error_from
from tidelog.clients.admin.transactions import TransactionDescription
from tidelog.clients.blocking import LoopThread
from tidelog.clients.network import TRANSACTION
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.clients.settings import admin_definition
from tidelog.errors import ConcurrentTransactions, KafkaError, TransactionalIdNotFound
from tidelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidelog.spark.client_options import on_this_machine

FEATURE = "transaction.version"
LAST_CLASSIC_END = 4
ONGOING = "Ongoing"
EMPTY = "Empty"
COMMITTED = ("PrepareCommit", "CompleteCommit")
TWO_PHASE = "transaction.two.phase.commit.enable"
MAX_TIMEOUT = "transaction.max.timeout.ms"
# Kafka's default, for brokers that do not report their limit.
USUAL_MAX_TIMEOUT_MS = 900_000
AGAIN = (*RETRIED, ConcurrentTransactions)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a broker lets a transaction stay open: without limit, or for so many milliseconds."""

    two_phase: bool
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class TaskIds:
    """The transactional ids of a name: one for its decisions, and one for each task and generation.

    A task of an earlier generation never uses the id of a later one, so it cannot disturb a later run.
    """

    prefix: str
    name: str

    @property
    def decision(self) -> str:
        return f"{self.prefix}-{self.name}-decision"

    def of_task(self, generation: int, partition: int, attempt: str) -> str:
        return f"{self.prefix}-{self.name}-g{generation}-p{partition}-a{attempt}"

    def generation(self, transactional_id: str) -> int | None:
        """The generation in a transactional id; None if the id is not of a task of this name."""
        start = f"{self.prefix}-{self.name}-"
        if not transactional_id.startswith(start):
            return None
        match = re.fullmatch(r"g(\d+)-p\d+-a[\d.]+", transactional_id[len(start) :], re.ASCII)
        return None if match is None else int(match[1])


class EndingAdmin(AsyncAdmin):
    """An admin that ends transactions."""

    async def end_transactions(
        self, transactions: Iterable[PreparedTxnState], *, commit: bool
    ) -> dict[PreparedTxnState, KafkaError | None]:
        """End transactions as asked: for each None if it is committed or aborted, otherwise the error."""
        deadline = self.driver.deadline(None)
        by_id = {transaction.transactional_id: transaction for transaction in transactions}

        async def end(node: int, transaction: PreparedTxnState) -> KafkaError | None:
            connection = await self.driver.client.connection(node, timeout=deadline.left)
            classic = connection.features.get(FEATURE, 0) < 2
            answer = await connection.call(
                EndTxnRequest(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.epoch,
                    committed=commit,
                ),
                EndTxnResponse,
                version=connection.version_for(EndTxnRequest, at_most=LAST_CLASSIC_END if classic else None),
                timeout=self.driver.request_timeout(deadline),
            )
            return error_from(answer.error_code, None, f"transactional id {transaction.transactional_id!r}")

        async def ask(node: int, ids: list[str]) -> Mapping[str, KafkaError | None]:
            ended = await asyncio.gather(*(end(node, by_id[name]) for name in ids))
            return dict(zip(ids, ended, strict=True))

        outcomes = await self.driver.by_coordinator(by_id, deadline, ask, kind=TRANSACTION, again=AGAIN)
        return {by_id[name]: outcome for name, outcome in outcomes.items()}

    async def broker_count(self) -> int:
        deadline = self.driver.deadline(None)
        await self.start()
        await self.driver.client.refresh(timeout=deadline.left)
        return len(await self.driver.nodes(deadline))

    async def limits(self) -> Limits:
        """The limits of the brokers. If they do not report them, a guess that fits Kafka's defaults."""
        deadline = self.driver.deadline(None)
        node = ConfigResource(ResourceType.BROKER, str((await self.driver.nodes(deadline))[0]))
        try:
            found = (await self.describe_configs([node], names=(TWO_PHASE, MAX_TIMEOUT)))[node]
        except KafkaError as error:
            if isinstance(error, RETRIED):
                raise
            return Limits(False, USUAL_MAX_TIMEOUT_MS)
        two_phase, most = found.get(TWO_PHASE), found.get(MAX_TIMEOUT)
        return Limits(
            two_phase is not None and two_phase.value == "true",
            int(most.value) if most is not None and most.value else USUAL_MAX_TIMEOUT_MS,
        )


class TransactionManager:
    """The requests of EndingAdmin as blocking calls, for the tasks of one name."""

    def __init__(self, client: Mapping[str, str]) -> None:
        names = admin_definition()
        settings = on_this_machine(client)
        self.admin = EndingAdmin({name: value for name, value in settings.items() if name in names})
        self.thread = LoopThread("tidelog-spark transactions")
        self._limits: Limits | None = None

    def close(self) -> None:
        if not self.thread.closed:
            self.thread.run(self.admin.close(), timeout=5.0)
            self.thread.close()

    @property
    def limits(self) -> Limits:
        if self._limits is None:
            self._limits = self.thread.run(self.admin.limits())
        return self._limits

    def end(
        self, transactions: Collection[PreparedTxnState], *, commit: bool
    ) -> dict[PreparedTxnState, KafkaError | None]:
        if not transactions:
            return {}
        return self.thread.run(self.admin.end_transactions(transactions, commit=commit))

    def not_open(self, transactions: Collection[PreparedTxnState]) -> list[str]:
        """The transactions that cannot be committed any more."""
        found = self._described(transactions)
        return [entry.transactional_id for entry in transactions if not _is_open(entry, found)]

    def not_committed(self, transactions: Collection[PreparedTxnState]) -> list[str]:
        """The transactions that their coordinator does not report as committed."""
        found = self._described(transactions)
        return [entry.transactional_id for entry in transactions if not _is_committed(entry, found)]

    def any_committed(self, transactions: Collection[PreparedTxnState]) -> bool:
        return len(self.not_committed(transactions)) < len(transactions)

    def _described(self, transactions: Collection[PreparedTxnState]) -> dict[str, TransactionDescription]:
        """The descriptions of the transactional ids that coordinators know."""
        ids = [entry.transactional_id for entry in transactions]
        found = self.thread.run(self.admin.describe_transactions(ids, partial=True))
        for error in found.errors.values():
            if not isinstance(error, TransactionalIdNotFound):
                raise error
        return dict(found)

    def abort_open(self, ids: TaskIds, generation: int, keep: Collection[str] = ()) -> list[str]:
        """Abort the open transactions of tasks up to a generation, except `keep`; returns their ids."""
        listed = self.thread.run(self.admin.list_transactions(states=(ONGOING,)))
        return self._fence(ids, generation, keep, [found.transactional_id for found in listed])

    def shut_out(self, ids: TaskIds, generation: int) -> list[str]:
        """Fence the tasks of earlier generations, which aborts their open transactions."""
        listed = self.thread.run(self.admin.list_transactions())
        return self._fence(
            ids, generation - 1, (), [found.transactional_id for found in listed if found.state != EMPTY]
        )

    def _fence(self, ids: TaskIds, generation: int, keep: Collection[str], listed: list[str]) -> list[str]:
        chosen = [
            name
            for name in listed
            if name not in keep and (found := ids.generation(name)) is not None and found <= generation
        ]
        if chosen:
            self.thread.run(self.admin.fence_producers(chosen))
        return chosen


def _is_open(entry: PreparedTxnState, found: Mapping[str, TransactionDescription]) -> bool:
    known = found.get(entry.transactional_id)
    if known is None or known.state != ONGOING:
        return False
    return (known.producer_id, known.producer_epoch) == (entry.producer_id, entry.epoch)


def _is_committed(entry: PreparedTxnState, found: Mapping[str, TransactionDescription]) -> bool:
    """Whether a transaction is committed. The coordinator may have raised the epoch by one at its end."""
    known = found.get(entry.transactional_id)
    if known is None or known.state not in COMMITTED or known.producer_id != entry.producer_id:
        return False
    return entry.epoch <= known.producer_epoch <= entry.epoch + 1
