"""The one text of a definition, which its digest is taken over.

Two definitions that mean the same have the same text, whoever made them: what is silent and what
says the default are one, and so are the few other things that can be said in two ways. It is done
here and not by the encoder, which takes a field for unset only where its value is *the same object*
as the default, and so would tell a string that was read from a file from one that was compiled.
"""

import hashlib
from typing import Any, Final

import msgspec

from tallystick.core.definition import Definition, Limits, Node, Retry

_encode = msgspec.json.Encoder(order="sorted").encode
_NO_DEFAULT: Final = object()


def definition_digest(definition: Definition) -> bytes:
    """The 32 bytes that address a definition: SHA-256 over the tag and its canonical JSON."""
    return hashlib.sha256(b"tcj1:definition\n" + definition_bytes(definition)).digest()


def definition_bytes(definition: Definition) -> bytes:
    """The canonical JSON that is stored and digested. It decodes to an equal definition."""
    fields = _said(definition)
    fields["root"] = {"nodes": [_node(node) for node in definition.root.nodes]}
    if definition.limits != Limits():
        fields["limits"] = _said(definition.limits)
    if _allows_anything(definition.input):
        fields.pop("input", None)
    if definition.output is None:
        del fields["output"]
    return _encode(fields)


def _node(node: Node) -> dict[str, Any]:
    fields = _said(node)
    if not node.needs:
        fields.pop("if_skipped", None)  # without needs nothing can be skipped by them
    if not node.inputs:
        fields.pop("inputs", None)
    if node.retry is not None:
        fields["retry"] = _said(node.retry)
        if not fields["retry"]:
            del fields["retry"]
    if _allows_anything(node.output_schema):
        fields.pop("output_schema", None)
    if node.value is None:
        del fields["value"]
    return fields


def _said(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that say something else than their default."""
    found: dict[str, Any] = {}
    for name, default in _DEFAULTS[type(struct)]:
        value = getattr(struct, name)
        if name == "factor":
            value = float(value)
        if value is not default and (type(value) is not type(default) or value != default):
            found[name] = value
    return found


def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    return tuple((field.name, _default(field)) for field in msgspec.structs.fields(kind))


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return _NO_DEFAULT


_DEFAULTS: Final[dict[type[msgspec.Struct], tuple[tuple[str, object], ...]]] = {
    kind: _defaults(kind) for kind in (Definition, Limits, Node, Retry)
}


def _allows_anything(schema: object) -> bool:
    return schema is None or schema is True or schema == {}
