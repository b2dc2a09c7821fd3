"""What a turn changes of large mappings, kept apart from what it found: a turn costs what it touches.

An operator may have millions of open Input Sets and keys. A turn works on a draft of them; if it fails, the draft is
forgotten, and when it is committed, the draft is settled.
"""

from collections.abc import Callable, Hashable, Iterator, MutableMapping
from copy import deepcopy
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
Copy = Callable[[Value], Value]


class Overlay(MutableMapping[Any, Value], Generic[Value]):
    """A dict over another one, which stays as it is until the changes are settled.

    Values may be changed in place: those of the dict below are copied when they are asked for.
    """

    def __init__(self, copy: Copy[Value], below: dict[Any, Value] | None = None) -> None:
        self._copy = copy
        self._below = {} if below is None else below
        self._own: dict[Any, Value] = {}
        self._gone: set[Hashable] = set()

    def draft(self) -> "Overlay[Value]":
        """Return an overlay over what this one shows; both stay right as long as only one is settled."""
        if not self._own and not self._gone:
            return Overlay(self._copy, self._below)
        return Overlay(self._copy, {key: self._copy(value) for key, value in self.items()})

    def settle(self) -> None:
        """Make the changes part of the dict below."""
        for key in self._gone:
            del self._below[key]
        self._below.update(self._own)
        self._own, self._gone = {}, set()

    def changes(self) -> Iterator[tuple[Any, Value | None]]:
        """Yield what was changed, with its new value, None where it is gone."""
        for key in self._gone:
            if key not in self._own:
                yield key, None
        for key, value in self._own.items():
            if key in self._gone or key not in self._below or self._below[key] != value:
                yield key, value

    def __getitem__(self, key: Any) -> Value:
        if key not in self._own:
            if key in self._gone:
                raise KeyError(key)
            self._own[key] = self._copy(self._below[key])
        return self._own[key]

    def take(self, key: Any) -> Value | None:
        """Remove a key and return its value, None where it is not there."""
        if key not in self:
            return None
        value = self._own.pop(key) if key in self._own else self._copy(self._below[key])
        if key in self._below:
            self._gone.add(key)
        return value

    def __setitem__(self, key: Any, value: Value) -> None:
        self._own[key] = value

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._own.pop(key, None)
        if key in self._below:
            self._gone.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._own or (key in self._below and key not in self._gone)

    def __iter__(self) -> Iterator[Any]:
        """Yield keys in the order in which they came; one that was removed and came again is a new one."""
        yield from [key for key in self._below if key not in self._gone]
        yield from [key for key in self._own if key not in self._below or key in self._gone]

    def __len__(self) -> int:
        return len(self._below) - len(self._gone) + sum(k not in self._below or k in self._gone for k in self._own)

    def __bool__(self) -> bool:
        return bool(self._own) or len(self._below) > len(self._gone)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Overlay) and list(self.items()) == list(other.items())

    def __repr__(self) -> str:
        return repr(dict(self))


class Layers(Generic[Value]):
    """Overlays by generative function."""

    def __init__(self, copy: Copy[Value] = deepcopy) -> None:
        self._copy = copy
        self._by: dict[str, Overlay[Value]] = {}

    def layer(self, function: str) -> Overlay[Value]:
        found = self._by.get(function)
        if found is None:
            found = self._by[function] = Overlay(self._copy)
        return found

    def draft(self) -> "Layers[Value]":
        made = type(self)(self._copy)
        made._by = {function: overlay.draft() for function, overlay in self._by.items()}
        return made

    def settle(self) -> None:
        for overlay in self._by.values():
            overlay.settle()

    def changes(self) -> Iterator[tuple[str, Any, Value | None]]:
        """Yield (function, key, new value)."""
        for function, overlay in self._by.items():
            yield from ((function, key, value) for key, value in overlay.changes())

    def values(self) -> Iterator[Value]:
        for overlay in self._by.values():
            yield from overlay.values()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for function, overlay in self._by.items():
            yield from ((function, key) for key in overlay)

    def __len__(self) -> int:
        return sum(map(len, self._by.values()))

    def __bool__(self) -> bool:
        return any(self._by.values())

    def __contains__(self, label: tuple[str, Any]) -> bool:
        function, key = label
        return function in self._by and key in self._by[function]

    def __getitem__(self, label: tuple[str, Any]) -> Value:
        return self.layer(label[0])[label[1]]

    def __setitem__(self, label: tuple[str, Any], value: Value) -> None:
        self.layer(label[0])[label[1]] = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layers) and self._shown() == other._shown()

    def __repr__(self) -> str:
        return repr(self._by)

    def get(self, label: tuple[str, Any]) -> Value | None:
        overlay = self.layer(label[0])
        # Most of those that are asked for are new, and `get` would make an exception for each.
        return overlay[label[1]] if label[1] in overlay else None  # noqa: SIM401

    def pop(self, label: tuple[str, Any]) -> Value | None:
        return self.layer(label[0]).take(label[1])

    def clear(self) -> None:
        for overlay in self._by.values():
            overlay.clear()

    def _shown(self) -> dict[str, Overlay[Value]]:
        return {function: overlay for function, overlay in self._by.items() if overlay}
