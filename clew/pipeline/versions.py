"""What an operator is, part by part, so that a log can tell what has changed of it since its run began.

Parts are texts, to be compared and shown. They name no password: a place is told as `describe` tells it.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from clew.pipeline.code import digest_of, is_own, parts_used, vars_of
from clew.pipeline.lookups import Besides
from clew.pipeline.operators import LateRecords, Operator
from clew.pipeline.windows import Window

if TYPE_CHECKING:
    from clew.pipeline.graph import OperatorSpec

#: Part -> its text: kind, code, inputs, outputs, window, place, reads.
Version = Mapping[str, str]

#: What of a general operator decides on Input Sets.
_CONTROL = ("initial", "facts", "assign", "ready", "flush", "tick", "tick_every", "functions", "uses_state")
_USER = re.compile(r"//[^/@]*@")


def version_of(spec: "OperatorSpec") -> Version:
    """Return the parts of an operator, a source or a sink, the same in every process."""
    return {
        "kind": _kind(spec),
        "code": _code(spec),
        "inputs": json.dumps({port: str(sender) for port, sender in spec.inputs.items()}),
        "outputs": json.dumps(spec.outputs),
        "window": _window(spec),
        "place": json.dumps({name: _place(one.whereabouts()) for name, one in _outside(spec).items()}),
        "reads": json.dumps({name: connection.describe() for name, connection in spec.reads.items()}),
    }


def fingerprint_of(version: Version) -> str:
    """Name a version as a whole."""
    return hashlib.sha256(json.dumps(version, sort_keys=True).encode()).hexdigest()[:12]


def _kind(spec: "OperatorSpec") -> str:
    if spec.is_source:
        return "source"
    return "sink" if spec.is_sink else "general operator" if spec.general is not None else "operator"


def _outside(spec: "OperatorSpec") -> dict[str, Any]:
    return {"source": spec.source} if spec.source is not None else dict(spec.sinks)


def _place(text: str) -> str:
    # Who asks a database is no part of what it is asked.
    return _USER.sub("//", text)


def _code(spec: "OperatorSpec") -> str:
    if spec.general is not None:
        functions: list[Any] = [type(spec.general), vars_of(spec.general)]
    else:
        functions = [[function.name, function.style, function.run] for function in spec.functions]
    # The content of lookups is no code: a run keeps it.
    functions += [_given(function.besides) for function in spec.functions if function.besides]
    return digest_of(*functions, *(_outside_code(one) for one in (*_outside(spec).values(), *spec.reads.values())))


def _given(besides: Besides) -> list[Any]:
    hook = None if besides.setup is None else besides.setup.hook
    return [{name: lookup.key for name, lookup in besides.lookups.items()}, hook]


def _outside_code(outside: Any) -> list[Any]:
    """Return what is the user's own of a source, a sink or a connection."""
    own = type(outside) if is_own(type(outside).__module__) else None
    return [own, *(value for value in vars_of(outside).values() if callable(value))]


def _window(spec: "OperatorSpec") -> str:
    if spec.general is not None:
        used = parts_used(spec.general, _CONTROL)
        known = {name: value for name, value in used.items() if value is not vars(Operator).get(name)}
        return f"{type(spec.general).__name__} {digest_of(known)}"
    declared = [f for f in spec.functions if not isinstance(f.window, LateRecords)]
    told = json.dumps({function.name: _declared(function.window) for function in declared})
    # Windows remember how far each of several ports is.
    return f"{told} on {', '.join(spec.inputs)}" if len(spec.inputs) > 1 else told


def _declared(window: Window) -> str:
    told = window.fingerprint() if is_dataclass(window) else type(window).__name__
    own = is_own(type(window).__module__)
    return f"{told} {digest_of(type(window), vars_of(window))}" if own else told
