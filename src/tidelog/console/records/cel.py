"""CEL expressions, compiled to functions: no `eval`, no attributes of Python objects, bounded work.

Values are those of JSON, and bytes. Integers and doubles may be mixed in arithmetic; apart from that the
rules are CEL's. Loops over lists, long texts and patterns draw from a budget; patterns take linear time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from tidelog.console.records.cel_functions import FUNCTIONS
from tidelog.console.records.cel_syntax import (
    Binary,
    Call,
    CelError,
    Conditional,
    Index,
    ListOf,
    Literal,
    Logical,
    MapOf,
    Name,
    Node,
    Select,
    Unary,
    parse,
)
from tidelog.console.records.cel_values import (
    COMPARISONS,
    BudgetExceeded,
    Scope,
    Value,
    arithmetic,
    contained,
    equal,
    map_key,
    negation,
    negative,
    no_overload,
    order,
    pattern_of,
    search,
    select,
    truth,
)

Run: TypeAlias = Callable[[Scope], Value]


class Expression:
    """A compiled expression. `fields` are the variables and the known fields of each.

    `reads` has the fields of variables that the expression may read; None if it may read all.
    """

    def __init__(self, text: str, fields: Mapping[str, frozenset[str]]) -> None:
        self.text = text
        compiler = _Compiler(fields)
        self._run = compiler.compile(parse(text))
        self.reads: frozenset[str] | None = None if compiler.reads_all else frozenset(compiler.reads)

    def evaluate(self, variables: dict[str, Value]) -> Value:
        """The value of the expression. Raises CelError."""
        try:
            return self._run(Scope(variables))
        except RecursionError:
            raise CelError("the value is too deeply nested") from None


class _Compiler:
    def __init__(self, fields: Mapping[str, frozenset[str]]) -> None:
        self._fields = fields
        self._locals: list[str] = []
        self.reads: set[str] = set()
        self.reads_all = False

    def compile(self, node: Node) -> Run:
        match node:
            case Literal(value):
                return lambda scope: value
            case Name(name, position):
                return self._name(name, position)
            case Select():
                return self._select(node)
            case Index(operand, index, position):
                inner, key = self.compile(operand), self.compile(index)
                return lambda scope: select(inner(scope), key(scope), position)
            case Unary(operator, operand, position):
                inner = self.compile(operand)
                operation = negation if operator == "!" else negative
                return lambda scope: operation(inner(scope), position)
            case Binary(operator, left, right, position):
                return _binary(operator, self.compile(left), self.compile(right), position)
            case Logical(operator, operands, position):
                return _logical(operator == "||", [self.compile(part) for part in operands], position)
            case Conditional(condition, then, otherwise, position):
                test, yes, no = self.compile(condition), self.compile(then), self.compile(otherwise)
                return lambda scope: (yes if truth(test(scope), position) else no)(scope)
            case ListOf(items):
                parts = [self.compile(item) for item in items]
                return lambda scope: [part(scope) for part in parts]
            case MapOf(entries):
                pairs = [(self.compile(key), self.compile(value)) for key, value in entries]
                return lambda scope: {map_key(key(scope)): value(scope) for key, value in pairs}
            case Call():
                return self._call(node)

    def _name(self, name: str, position: int) -> Run:
        if name not in self._locals and name not in self._fields:
            known = ", ".join(self._fields)
            raise CelError(f"{name!r} at character {position} is unknown; the variables are: {known}")
        self.reads_all = self.reads_all or name not in self._locals
        return lambda scope: scope.variables[name]

    def _select(self, node: Select) -> Run:
        inner, field, position = self._owner(node), node.field, node.position
        return lambda scope: select(inner(scope), field, position)

    def _owner(self, node: Select) -> Run:
        """What the field is selected from. Notes the fields of variables."""
        self._check_field(node)
        operand = node.operand
        if isinstance(operand, Name) and operand.name not in self._locals and operand.name in self._fields:
            self.reads.add(node.field)
            name = operand.name
            return lambda scope: scope.variables[name]
        return self.compile(operand)

    def _check_field(self, node: Select) -> None:
        if isinstance(node.operand, Name) and node.operand.name not in self._locals:
            known = self._fields.get(node.operand.name)
            if known and node.field not in known:
                raise CelError(
                    f"{node.operand.name}.{node.field} at character {node.position} is unknown; "
                    f"expected one of {', '.join(sorted(known))}"
                )

    def _call(self, node: Call) -> Run:
        name, count = node.name, len(node.arguments)
        if name == "has" and node.target is None:
            return self._has(node)
        if node.target is not None and name in MACROS:
            return self._macro(node, node.target)
        everything = (*(() if node.target is None else (node.target,)), *node.arguments)
        if name == "matches" and len(everything) == 2:
            return self._matches(node, everything)
        known = FUNCTIONS.get((name, len(everything)))
        if known is None or (node.target is not None) not in known[1]:
            raise CelError(
                f"function {name!r} with {count} arguments at character {node.position} is unknown; "
                f"known are: has, matches, {', '.join(sorted({found for found, _ in FUNCTIONS}))}, "
                f"{', '.join(MACROS)}"
            )
        operation, position = known[0], node.position
        parts = [self.compile(part) for part in everything]

        def run(scope: Scope) -> Value:
            scope.spend(1)
            return operation(scope, position, *(part(scope) for part in parts))

        return run

    def _has(self, node: Call) -> Run:
        if len(node.arguments) != 1 or not isinstance(select := node.arguments[0], Select):
            raise CelError(f"has() at character {node.position} takes a field, as in has(record.value.id)")
        inner, field = self._owner(select), select.field

        def run(scope: Scope) -> Value:
            found = inner(scope)
            return isinstance(found, dict) and field in found

        return run

    def _matches(self, node: Call, everything: tuple[Node, ...]) -> Run:
        text, pattern = (self.compile(part) for part in everything)
        position = node.position
        if isinstance(everything[1], Literal):
            fixed = pattern_of(everything[1].value, position)
            return lambda scope: search(fixed, text(scope), scope, position)
        return lambda scope: search(pattern_of(pattern(scope), position), text(scope), scope, position)

    def _macro(self, node: Call, target: Node) -> Run:
        variable = node.arguments[0] if node.arguments else None
        if len(node.arguments) != 2 or not isinstance(variable, Name):
            raise CelError(
                f"{node.name} at character {node.position} takes a name and an expression, "
                f"as in list.{node.name}(item, item > 0)"
            )
        items = self.compile(target)
        self._locals.append(variable.name)
        body = self.compile(node.arguments[1])
        self._locals.pop()
        return _loop(node.name, items, variable.name, body, node.position)


MACROS = ("all", "exists", "exists_one", "filter", "map")


def _loop(macro: str, items: Run, variable: str, body: Run, position: int) -> Run:
    combine = LOOPS[macro]

    def run(scope: Scope) -> Value:
        found = items(scope)
        if isinstance(found, dict):
            found = list(found)
        if not isinstance(found, list):
            raise no_overload(macro, position, found)
        variables = scope.variables
        inner = Scope({**variables}, scope.steps)

        def each(item: Value) -> Value:
            inner.spend(1)
            inner.variables[variable] = item
            return body(inner)

        try:
            return combine(found, each, position)
        finally:
            scope.steps = inner.steps

    return run


Each: TypeAlias = Callable[[Value], Value]


def _any(items: list[Value], each: Each, position: int) -> Value:
    return _decided((partial(each, item) for item in items), True, position)


def _all(items: list[Value], each: Each, position: int) -> Value:
    return _decided((partial(each, item) for item in items), False, position)


def _exactly_one(items: list[Value], each: Each, position: int) -> Value:
    return sum(truth(each(item), position) for item in items) == 1


def _filtered(items: list[Value], each: Each, position: int) -> Value:
    return [item for item in items if truth(each(item), position)]


def _mapped(items: list[Value], each: Each, position: int) -> Value:
    return [each(item) for item in items]


LOOPS: dict[str, Callable[[list[Value], Each, int], Value]] = {
    "all": _all, "exists": _any, "exists_one": _exactly_one, "filter": _filtered, "map": _mapped,
}  # fmt: skip


def _decided(parts: Iterable[Callable[[], Value]], decisive: bool, position: int) -> bool:
    """`||` (decisive true) or `&&` of parts: a decisive part outweighs errors of the others, as CEL says."""
    failure: CelError | None = None
    for part in parts:
        try:
            if truth(part(), position) is decisive:
                return decisive
        except BudgetExceeded:
            raise
        except CelError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return not decisive


def _logical(decisive: bool, operands: list[Run], position: int) -> Run:
    def run(scope: Scope) -> Value:
        return _decided((partial(part, scope) for part in operands), decisive, position)

    return run


def _binary(operator: str, left: Run, right: Run, position: int) -> Run:
    if operator == "==":
        return lambda scope: equal(left(scope), right(scope), scope)
    if operator == "!=":
        return lambda scope: not equal(left(scope), right(scope), scope)
    if operator == "in":
        return lambda scope: contained(left(scope), right(scope), scope, position)
    if operator in COMPARISONS:
        compare = COMPARISONS[operator]
        return lambda scope: compare(order(left(scope), right(scope), operator, position))
    return lambda scope: arithmetic(operator, left(scope), right(scope), scope, position)
