"""The syntax tree of a CEL expression.

The library does not show its tree, but it serializes it as a `cel.expr.ParsedExpr` or
`cel.expr.CheckedExpr` protocol buffer. This reads the few fields that are needed, so that which
values an expression uses, and what it may cost, are known before it runs. Macros are expanded in
the tree: `l.map(i, i + 1)` is a `Loop`.

Source: cel-spec, `proto/cel/expr/syntax.proto` and `checked.proto`.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

import msgspec


class Const(msgspec.Struct, frozen=True, gc=False):
    """A literal: null, bool, int, float, str or bytes; unsigned integers are int here."""

    value: bool | int | float | str | bytes | None


class Ident(msgspec.Struct, frozen=True, gc=False):
    """A name."""

    name: str


class Select(msgspec.Struct, frozen=True, gc=False):
    """`operand.field`, or `has(operand.field)` when `tested`."""

    operand: "Tree"
    field: str
    tested: bool


class Call(msgspec.Struct, frozen=True, gc=False):
    """A function or operator (`_+_`, `_[_]`, `_?_:_`), or a method when there is a `target`."""

    function: str
    target: "Tree | None"
    arguments: tuple["Tree", ...]


class ListOf(msgspec.Struct, frozen=True, gc=False):
    """A list literal."""

    items: tuple["Tree", ...]


class MapOf(msgspec.Struct, frozen=True, gc=False):
    """A map literal, or a message when `message` is not empty."""

    message: str
    keys: tuple["Tree", ...]
    values: tuple["Tree", ...]


class Loop(msgspec.Struct, frozen=True, gc=False):
    """What a macro expands to: a fold of `range` into the variable `result_name`."""

    names: tuple[str, ...]
    range: "Tree"
    result_name: str
    start: "Tree"
    condition: "Tree"
    step: "Tree"
    result: "Tree"


Tree = Const | Ident | Select | Call | ListOf | MapOf | Loop


class TreeUnreadable(ValueError):
    """The serialized tree is not of the known form: the library is newer than this reader."""


def read_tree(serialized: bytes) -> Tree:
    """Read the tree from what the library's `Expression.serialize()` returns."""
    wrapper = _Fields(serialized)
    expression = _Fields(wrapper.last_bytes(2))
    # ParsedExpr keeps its tree in field 2, CheckedExpr in field 4 (2 is its reference map).
    checked = wrapper.last_bytes(1).endswith(b"cel.expr.CheckedExpr")
    return _tree(expression.last_bytes(4 if checked else 2))


def children(tree: Tree) -> tuple[Tree, ...]:
    """Return the trees directly below."""
    match tree:
        case Const() | Ident():
            return ()
        case Select():
            return (tree.operand,)
        case Call(target=None):
            return tree.arguments
        case Call():
            assert tree.target is not None
            return (tree.target, *tree.arguments)
        case ListOf():
            return tree.items
        case MapOf():
            return (*tree.keys, *tree.values)
        case Loop():
            return (tree.range, tree.start, tree.condition, tree.step, tree.result)


def walk(tree: Tree) -> Iterator[Tree]:
    """Yield the tree and all below it."""
    yield tree
    for child in children(tree):
        yield from walk(child)


_EXPRESSION_FIELDS: Final = (3, 4, 5, 6, 7, 8, 9)


def _tree(data: bytes) -> Tree:
    fields = _Fields(data)
    for number in _EXPRESSION_FIELDS:
        if number in fields.values:
            return _READERS[number](_Fields(fields.last_bytes(number)))
    raise TreeUnreadable("an expression of unknown kind")


def _const(fields: "_Fields") -> Tree:
    for number, raw in fields.pairs:
        if number in _CONSTANTS:
            return Const(_CONSTANTS[number](raw))
    raise TreeUnreadable("a constant of unknown kind")


def _ident(fields: "_Fields") -> Tree:
    return Ident(fields.text(1))


def _select(fields: "_Fields") -> Tree:
    return Select(_tree(fields.last_bytes(1)), fields.text(2), bool(fields.values.get(3)))


def _call(fields: "_Fields") -> Tree:
    target = _tree(fields.last_bytes(1)) if 1 in fields.values else None
    return Call(fields.text(2), target, tuple(map(_tree, fields.all_bytes(3))))


def _list(fields: "_Fields") -> Tree:
    return ListOf(tuple(map(_tree, fields.all_bytes(1))))


def _map(fields: "_Fields") -> Tree:
    entries = [_Fields(entry) for entry in fields.all_bytes(2)]
    keys = tuple(_tree(entry.last_bytes(3)) for entry in entries if 3 in entry.values)
    return MapOf(fields.text(1), keys, tuple(_tree(entry.last_bytes(4)) for entry in entries))


def _loop(fields: "_Fields") -> Tree:
    names = tuple(name for name in (fields.text(1), fields.text(8)) if name)
    parts = [_tree(fields.last_bytes(number)) for number in (2, 4, 5, 6, 7)]
    source, start, condition, step, result = parts
    return Loop(names, source, fields.text(3), start, condition, step, result)


_READERS: Final[dict[int, Callable[["_Fields"], Tree]]] = {
    3: _const,
    4: _ident,
    5: _select,
    6: _call,
    7: _list,
    8: _map,
    9: _loop,
}


def _signed(raw: int | bytes) -> int:
    assert isinstance(raw, int)
    return raw - 2**64 if raw >= 2**63 else raw


def _double(raw: int | bytes) -> float:
    assert isinstance(raw, bytes)
    number: float = struct.unpack("<d", raw)[0]
    return number


def _text(raw: int | bytes) -> str:
    assert isinstance(raw, bytes)
    return raw.decode()


_Raw = int | bytes
_CONSTANTS: Final[dict[int, Callable[[_Raw], bool | int | float | str | bytes | None]]] = {
    1: lambda _raw: None,
    2: bool,
    3: _signed,
    4: lambda raw: raw,
    5: _double,
    6: _text,
    7: lambda raw: raw,
}


class _Fields:
    """The fields of one protocol buffer message: varints as int, the rest as bytes."""

    def __init__(self, data: bytes) -> None:
        self.pairs = list(_pairs(data))
        self.values = dict(self.pairs)

    def last_bytes(self, number: int) -> bytes:
        value = self.values.get(number, b"")
        if not isinstance(value, bytes):
            raise TreeUnreadable("a field of unexpected type")
        return value

    def all_bytes(self, number: int) -> list[bytes]:
        return [raw for key, raw in self.pairs if key == number and isinstance(raw, bytes)]

    def text(self, number: int) -> str:
        return self.last_bytes(number).decode()


def _pairs(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    # The encoding is described at https://protobuf.dev/programming-guides/encoding.
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in {1, 5}:
            size = 8 if wire == 1 else 4
        else:
            raise TreeUnreadable("a wire type of unknown kind")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise TreeUnreadable("a number that does not end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at
