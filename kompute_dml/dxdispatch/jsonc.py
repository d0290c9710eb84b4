"""JSON as DxDispatch reads it, with comments and trailing commas. Text after the end is ignored."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from ..errors import ValidationError

_STRING = r'"(?:\\.|[^"\\\n])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|(?<=[^\s\[{{,:])\s*,(?=\s*[\]}}])")


def _blank(match: re.Match[str]) -> str:
    # Blanks keep the lines and columns of the file, for errors.
    text = match[0]
    return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)


def _refuse_constant(name: str) -> NoReturn:
    text = name.lower().replace("infinity", "inf")
    raise ValueError(f'{name} is not JSON; write it as a string: "{text}"')


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} stands twice in one object")
    return result


def parse(text: str, source: str) -> Any:
    """The value of ``text``. ``source`` names the file in errors."""
    plain = _TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text))
    decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
    start = len(plain) - len(plain.lstrip())
    try:
        value = decoder.raw_decode(plain, start)[0]
        if r"\u" in plain:  # a single surrogate cannot be printed
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        raise ValidationError(
            f"{source}:{error.lineno}:{error.colno}: malformed JSON (line {error.lineno}, "
            f"column {error.colno}): {error.msg}"
        ) from None
    except RecursionError:
        raise ValidationError(f"{source}: malformed JSON: nested too deeply") from None
    except ValueError as error:
        raise ValidationError(f"{source}: malformed JSON: {error}") from None
