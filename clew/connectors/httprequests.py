"""One HTTP request and its answer: no redirect is followed, no cookie is kept, and no secret is shown.

Whatever may be a secret is taken for one: user and password in the URL, the values of its query, the headers.
"""

import base64
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlsplit

if TYPE_CHECKING:
    import httpx

Headers = tuple[tuple[str, str], ...]

#: No server is waited for longer, whatever its Retry-After asks for.
LONGEST_WAIT = 30.0
#: Besides 5xx: a time-out, a repeat that came while the first is still in work, too early, too many.
_TEMPORARY = frozenset({408, 409, 425, 429})
#: Answers to whoever asks so, whatever is asked for.
_WHO_ASKS = frozenset({401, 407})
_MOST_LOOKED_AT, _MOST_SAID = 10_000, 200
#: A shorter word says nothing to anybody, and would be found everywhere in a text.
_LEAST_SECRET = 4
_URL_SIGNS = "/%:@!$&'()*+,;=~?"
_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; status 0 means that nothing did, and that nobody knows whether the request was carried out."""

    status: int
    #: The same for people: short, secrets masked.
    said: str
    content: bytes = b""
    type: str = ""
    #: The seconds after which the server wants to be asked again.
    wait: float = 0.0

    @property
    def done(self) -> bool:
        return 200 <= self.status < 300

    @property
    def temporary(self) -> bool:
        return not self.status or self.status in _TEMPORARY or self.status >= 500

    @property
    def refuses(self) -> bool:
        """Whether it is for good, and about what was asked for: not about who asks, nor where."""
        return 400 <= self.status < 500 and not self.temporary and self.status not in _WHO_ASKS


@dataclass(frozen=True)
class Endpoint:
    """An address, and what goes with every request to it; travels to executors."""

    url: str = field(repr=False)
    headers: Headers = field(repr=False)
    #: Seconds without a sign of life after which an answer counts as lost.
    timeout: float = field(compare=False)
    _secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], timeout: float) -> "Endpoint":
        """Check what a user wrote; raises ValueError with a sentence that shows no secret."""
        if not _is_address(url):
            raise ValueError("cannot read the URL, which is not shown here; write https://host/path")
        if timeout <= 0:
            raise ValueError(f"cannot have an answer within {timeout:g} s; give timeout= more than 0")
        return cls(url, tuple(headers.items()), timeout, _secrets(url, headers.values()))

    def describe(self) -> str:
        """Return the URL without user, password and the values of its query."""
        parts = urlsplit(self.url)
        user, _, host = parts.netloc.rpartition("@")
        pairs = [name if sign else "" for name, sign, _ in (pair.partition("=") for pair in parts.query.split("&"))]
        query = "&".join(f"{name}=***" if name else "***" for name in pairs) if parts.query else ""
        return parts._replace(netloc=f"***@{host}" if user else host, query=query, fragment="").geturl()

    def filled(self, key: str) -> "Endpoint":
        """Return the address with `{key}` in it replaced."""
        return replace(self, url=self.url.replace("{key}", quote(key, safe="")))

    def below(self, action: str) -> "Endpoint":
        """Return the address of something under this one; raises ValueError where an action leads elsewhere."""
        base, parts = urlsplit(self.url), urlsplit(action)
        # Actions are made of data: the headers shall reach nobody else, and nothing of it shall be cut off.
        if parts.scheme or parts.netloc or ".." in unquote(parts.path).split("/"):
            raise ValueError("leads away from there")
        if "#" in action or not action.isprintable():
            raise ValueError("holds what no address can hold")
        path = f"{base.path.rstrip('/')}/{parts.path.lstrip('/')}" if parts.path else base.path
        query = "&".join(part for part in (base.query, parts.query) if part)
        return replace(self, url=base._replace(path=path, query=query, fragment="").geturl())

    def ask(self, method: str, headers: Headers = (), content: bytes | None = None) -> Answer:
        """Send a request and wait for the answer; `headers` count where this address has none of that name."""
        # Here and not above: it takes a while to load, and most pipelines never ask.
        import httpx

        parts = urlsplit(self.url)
        user, _, host = parts.netloc.rpartition("@")
        # The library writes the URL to its log, so it gets one that holds no secrets; this is what goes on the wire.
        target = quote(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", _URL_SIGNS)
        sent = httpx.Headers(headers)
        sent.update(self.headers)
        try:
            found = _client().request(
                method, f"{parts.scheme}://{host}{parts.path}", headers=sent, content=content,
                auth=_credentials(user), timeout=self.timeout, extensions={"target": target.encode()},
            )  # fmt: skip
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Answer(0, self._masked(f"no answer ({type(error).__name__}: {error})"))
        moved = f" to {found.headers['Location']}" if "Location" in found.headers else ""
        text = "" if found.is_success else found.text[:_MOST_LOOKED_AT]
        said = self._masked(f"{found.status_code} {found.reason_phrase}{moved}: {text}")
        wait = _seconds(found.headers.get("Retry-After", ""))
        return Answer(found.status_code, said, found.content, found.headers.get("Content-Type", ""), wait)

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        # Only after that, so that no part of a secret is left at the end.
        line = " ".join(text.split()).rstrip(": ")
        return line if len(line) <= _MOST_SAID else f"{line[:_MOST_SAID]}..."


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise ValueError where a header could not be sent; its value is not shown."""
    for name, value in headers.items():
        if not (_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
            raise ValueError(f"cannot send the header {name!r}: a name is one word, a value plain ASCII; encode it")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url


def _secrets(url: str, headers: Iterable[str]) -> tuple[str, ...]:
    """Return what must not be shown, the longest first: one may stand in another."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    words = [user, *user.split(":", 1), base64.b64encode(unquote(user).encode()).decode(), *headers]
    # Of `Bearer abc`, too, `abc` is the secret.
    words += [value.split()[-1] for value in headers if value.split()]
    words += [value for _, value in parse_qsl(parts.query)] + [p.rpartition("=")[2] for p in parts.query.split("&")]
    words += [unquote(word) for word in words]
    return tuple(sorted({word for word in words if len(word) >= _LEAST_SECRET}, key=len, reverse=True))


def _credentials(user: str) -> tuple[str, str] | None:
    name, _, password = user.partition(":")
    return (unquote(name), unquote(password)) if user else None


def _seconds(retry_after: str) -> float:
    """Read a Retry-After, which is a number of seconds or a date; a wait that is not understood is none."""
    try:
        if retry_after.isdigit():
            seconds = float(retry_after)
        else:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT)


#: By process: connections must not be shared with a fork.
_clients: dict[int, "httpx.Client"] = {}


def _client() -> "httpx.Client":
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    import httpx

    process = os.getpid()
    if process not in _clients:
        # What one sink was given to remember is not for another one on the same host.
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        _clients.setdefault(process, httpx.Client(cookies=cookies))
    return _clients[process]
