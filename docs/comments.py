"""Lets the reference show what `#:` comments say of the attribute below them."""

from itertools import takewhile
from typing import Any

from griffe import Attribute, Docstring, Extension


class AttributeComments(Extension):
    """Takes the `#:` comments above an attribute for its docstring."""

    def on_attribute_instance(self, *, attr: Attribute, **given: Any) -> None:
        if attr.docstring is not None or attr.lineno is None:
            return
        above = reversed(attr.lines_collection[attr.filepath][: attr.lineno - 1])
        comment = [line.strip().removeprefix("#:").strip() for line in takewhile(_is_comment, above)]
        if comment:
            attr.docstring = Docstring("\n".join(reversed(comment)), parent=attr)


def _is_comment(line: str) -> bool:
    return line.strip().startswith("#:")
