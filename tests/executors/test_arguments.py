"""Arguments and results: strict, by annotation, and refused with the place that does not fit."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import typing
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import InvalidRequest
from tallystick.executors.function.arguments import ArgumentsRefused, ResultRefused, Signature
from tallystick.executors.function.task import TaskContext


@dataclasses.dataclass
class Item:
    sku: str
    qty: int = 1


@dataclasses.dataclass
class Order:
    items: list[Item]
    placed: dt.datetime | None = None


class Money(msgspec.Struct):
    amount: decimal.Decimal
    currency: Literal["EUR", "USD"] = "EUR"


class Colour(enum.Enum):
    RED = "red"


class Options(TypedDict, total=False):
    fast: bool


class Address(pydantic.BaseModel):
    street: str
    number: int
    since: dt.date | None = None


def signature_of(hint: Any) -> Signature:
    def function(value):
        pass

    function.__annotations__ = {"value": hint, "return": hint}
    return Signature(function, "tests:function")


FITS = [
    (int, 3, 3),
    (int, 2**80, 2**80),
    (float, 3, 3.0),
    (Order, {"items": [{"sku": "a"}]}, Order([Item("a", 1)])),
    (Money, {"amount": "1.50"}, Money(decimal.Decimal("1.50"))),
    (Colour, "red", Colour.RED),
    (Options, {"fast": True}, {"fast": True}),
    (dt.datetime, "2025-01-01T00:00:00Z", dt.datetime(2025, 1, 1, tzinfo=dt.UTC)),
    (int | str | None, None, None),
    (list[Item] | None, [{"sku": "a", "qty": 2}], [Item("a", 2)]),
    (dict[str, tuple[int, str]], {"a": [1, "b"]}, {"a": (1, "b")}),
    (Annotated[int, msgspec.Meta(ge=0)], 0, 0),
    (Address, {"street": "x", "number": 1}, Address(street="x", number=1)),
    (list[Address], [{"street": "x", "number": 1}], [Address(street="x", number=1)]),
    (Address | None, None, None),
    (object, {"a": [1]}, {"a": [1]}),
    (dict[str, object], {"a": [1]}, {"a": [1]}),
    (Any, None, None),
    (bytes, "eHl6", b"xyz"),
]


@pytest.mark.parametrize(("hint", "given", "expected"), FITS)
def test_a_value_becomes_what_the_annotation_says_and_comes_back(hint, given, expected):
    signature = signature_of(hint)
    got = signature.arguments(json.dumps({"value": given}).encode())["value"]
    assert got == expected
    assert type(got) is type(expected)
    assert signature.arguments(b'{"value":%b}' % signature.result(got))["value"] == expected


REFUSED = [
    (int, "3", "value: expected int, got str"),
    (int, True, "value: expected int, got bool"),
    (int, 3.5, "value: expected int, got float"),
    (str, 3, "value: expected str, got int"),
    (
        Order,
        {"items": [{"sku": "a"}, {"sku": "b", "qty": "x"}]},
        "value.items[1].qty: expected int",
    ),
    (Order, {"items": [{"qty": 1}]}, "value.items[0]: object missing required field `sku`"),
    (Money, {"amount": "1", "currency": "GBP"}, "value.currency: "),
    (Annotated[int, msgspec.Meta(ge=0)], -1, "value: expected int >= 0"),
    (Address, {"street": "x", "number": "1"}, "value: number: Input should be a valid integer"),
    (list[Address], [{"street": "x"}], "value[0]: number: Field required"),
    (None, 3, "value: expected null, got int"),
]


@pytest.mark.parametrize(("hint", "given", "text"), REFUSED)
def test_what_does_not_fit_is_refused_with_its_place(hint, given, text):
    with pytest.raises(ArgumentsRefused) as refused:
        signature_of(hint).arguments(json.dumps({"value": given}).encode())
    assert str(refused.value).startswith(text)


def test_a_refusal_by_pydantic_does_not_repeat_the_value():
    with pytest.raises(ArgumentsRefused) as refused:
        signature_of(Address).arguments(b'{"value":{"street":"x","number":"hunter2"}}')
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"a":1}', "argument `b` is missing"),
        (b'{"a":1,"b":2,"z":3}', "unknown argument `z`"),
        (b"[]", "expected object, got array"),
    ],
)
def test_missing_and_unknown_arguments_are_named(text, said):
    def function(a: int, b: int):
        pass

    with pytest.raises(ArgumentsRefused) as refused:
        Signature(function, "tests:function").arguments(text)
    assert str(refused.value) == said


def test_defaults_fill_in_and_further_arguments_are_collected():
    shared: list[int] = []

    def function(a: int, b: list[int] = shared, *, c=3, **rest: float):
        pass

    signature = Signature(function, "tests:function")
    assert signature.arguments(b'{"a":1}') == {"a": 1, "b": [], "c": 3}
    assert signature.arguments(b'{"a":1}')["b"] is shared
    assert signature.arguments(b'{"a":1,"x":2}') == {"a": 1, "b": [], "c": 3, "x": 2.0}
    with pytest.raises(ArgumentsRefused):
        signature.arguments(b'{"a":1,"x":"2"}')
    with pytest.raises(ArgumentsRefused):
        signature.arguments(b"[1]")


def test_a_type_that_fails_on_its_own_terms_refuses_the_argument():
    @dataclasses.dataclass
    class Odd:
        n: int

        def __post_init__(self):
            raise KeyError("odd")

    with pytest.raises(ArgumentsRefused):
        signature_of(Odd).arguments(b'{"value":{"n":1}}')


class Custom:
    pass


def positional(a, /):
    pass


def variadic(*args):
    pass


def custom(a: list[Custom]):
    pass


def custom_result() -> Custom:
    pass


def iterates() -> typing.Iterator[int]:
    pass


def two_dataclasses(a: Order | Item):
    pass


def unresolvable(a: "Missing"):  # noqa: F821  the case
    pass


@pytest.mark.parametrize(
    "function",
    [positional, variadic, custom, custom_result, iterates, two_dataclasses, unresolvable],
)
def test_a_signature_that_json_cannot_fill_is_refused_before_any_call(function):
    with pytest.raises(InvalidRequest) as refused:
        Signature(function, f"tests:{function.__name__}")
    assert refused.value.code == "task-signature"
    assert refused.value.next_step
    assert f"tests:{function.__name__}" in refused.value.message


@pytest.mark.parametrize(
    ("annotate", "name"),
    [(TaskContext, "call"), (TaskContext | None, "call"), (None, "ctx")],
)
def test_the_context_is_given_by_type_and_never_asked_for(annotate, name):
    namespace: dict[str, Any] = {}
    exec(f"def function(n, {name}=None): pass", namespace)
    function = namespace["function"]
    function.__annotations__ = {} if annotate is None else {name: annotate}
    signature = Signature(function, "tests:function")
    assert signature.context == name
    assert signature.arguments(b'{"n":1}') == {"n": 1}


def test_a_parameter_named_ctx_with_another_type_is_an_ordinary_one():
    def function(ctx: int):
        pass

    signature = Signature(function, "tests:function")
    assert signature.context is None
    assert signature.arguments(b'{"ctx":1}') == {"ctx": 1}


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        [math.inf],
        {"a": -math.inf},
        "\ud800",
        object(),
        {1, object()},
        {(1, 2): 3},
        Custom(),
    ],
)
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(ResultRefused):
        signature_of(Any).result(value)


def test_a_result_inside_itself_is_refused():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ResultRefused):
        signature_of(Any).result(value)


def test_a_refused_result_names_its_place():
    with pytest.raises(ResultRefused) as refused:
        signature_of(Any).result({"a": [1, math.nan]})
    assert str(refused.value).startswith("a[1]: ")
    with pytest.raises(ResultRefused) as refused:
        signature_of(Order).result({"items": [{"sku": 3}]})
    assert str(refused.value) == "items[0].sku: expected str, got int"


def test_subclasses_of_plain_types_are_written_as_what_they_are():
    class Text(str):
        __slots__ = ()

    class Number(enum.IntEnum):
        ONE = 1

    assert signature_of(Any).result({"a": Text("x"), "b": Number.ONE, "c": (1,)}) == (
        b'{"a":"x","b":1,"c":[1]}'
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=10,
)


@given(JSON)
def test_every_json_value_comes_back_as_it_went(value):
    signature = signature_of(Any)
    output = signature.result(value)
    assert signature.arguments(b'{"value":%b}' % output)["value"] == value
    assert signature.result(value) == output


def test_the_contract_changes_with_names_and_types_and_not_with_prose():
    def base(a: int, b: Order) -> str:
        pass

    def prose(b: Order, a: int) -> str:
        """Say something."""

    def renamed(a: int, c: Order) -> str:
        pass

    def retyped(a: str, b: Order) -> str:
        pass

    def optional(a: int = 3, b: Order = None) -> str:
        pass

    def returns(a: int, b: Order) -> int:
        pass

    def open_ended(a: int, b: Order, **rest) -> str:
        pass

    digest = {
        f: Signature(f, "t:f").digest
        for f in (base, prose, renamed, retyped, optional, returns, open_ended)
    }
    assert digest[base] == digest[prose]
    assert len(set(digest.values())) == 6
    assert len(digest[base]) == 64
