"""Removes credentials and internal addresses from error texts before clients read them. Pure.

Error texts of servers, of libraries and of this project often repeat input, such as a header with a
token, a connection string with a password, or the address of a machine that clients cannot reach.
The same text always gives the same result. So if the events of a run are made again, the new events
have the same bytes. The time is linear in the length of the text, because each pattern has one of
two properties. Either the pattern begins at a boundary that the pattern's own characters cannot
contain, or the pattern has a bounded length.

The patterns recognise a secret by its form. A secret that looks like an ordinary word (`the
password is summer`) stays in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final

SECRET: Final = "[redacted]"
ADDRESS: Final = "[address]"

# The greatest number of characters of an error text. A longer text is cut, and a note about the cut
# is added. The source frames keep the complete text.
MAX_CHARACTERS: Final = 64 * 1024
MAX_LEVELS: Final = 64

_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----[^-]*+"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----)?"
)
# Matches `Authorization: Bearer abc` as a header, in JSON, in a dict, and as a pair of bytes.
_AUTHORIZATION: Final = re.compile(
    r"""(?<![A-Za-z0-9_])((?:proxy-)?authorization\\?["']?\s{0,4}[:=,]\s{0,4}(?:b?\\?["'])?)"""
    r"""(?!\[redacted)(?:[A-Za-z0-9-]{1,32}[ \t]+(?=[^\s"'\\,;]))?[^\s"'\\,;}\])]+""",
    re.IGNORECASE,
)
_COOKIE: Final = re.compile(
    r"""(?<![A-Za-z0-9_])((?:set-)?cookie\\?["']?\s{0,4}[:=,]\s{0,4}(?:b?\\?["'])?)"""
    r"""[A-Za-z0-9_.-]{1,128}=[^"'\\\r\n}]+""",
    re.IGNORECASE,
)
# Matches a scheme and its credential, as in `Bearer abc`. The lookaheads exclude sentences such as
# "Bearer token expired" or "Basic authentication required".
_SCHEME: Final = re.compile(
    r"(?<![A-Za-z0-9])(bearer\s{1,8}(?!(?:auth[a-z]*|tokens?|realm|scheme|credentials?|headers?|"
    r"format|prefix|undefined|required|expected)(?![A-Za-z0-9._~+/=-]))"
    r"|basic\s{1,8}(?!(?-i:[A-Z]?[a-z]+)(?![A-Za-z0-9._~+/=-])))"
    r"[A-Za-z0-9._~+/=-]{6,}",
    re.IGNORECASE,
)
_KNOWN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_*-]{12,}"  # OpenAI, Anthropic
    r"|(?:sk|rk|pk)_[A-Za-z0-9_]{16,}"  # Stripe
    r"|whsec_[A-Za-z0-9_+/=-]{16,}"  # webhooks: Standard Webhooks and Penstock write base64
    r"|(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,}"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}"  # Slack
    r"|AIza[0-9A-Za-z_-]{24,}|ya29\.[0-9A-Za-z_.-]{16,}"  # Google
    r"|(?:hf|gsk|npm|r8)_[A-Za-z0-9]{16,}|xai-[A-Za-z0-9]{16,}|pypi-[A-Za-z0-9_-]{16,}"
    r"|SG\.[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]{1,128})?"  # SendGrid
    r"|S[ACNOUX][A-Z2-7]{56}"  # a seed of a NATS nkey
    r"|p(?:st|sv|ln)_[A-Za-z0-9_-]{20,}"  # stream tokens, service tokens, links of Penstock
    r"|(?:https://)?hooks\.slack\.com/services/[A-Za-z0-9/_-]{8,}"
    r")"
)
_JWT: Final = re.compile(
    r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{4,}+\.[A-Za-z0-9_-]{2,}+(?:\.[A-Za-z0-9_-]*)*"
)

# Matches a name and the characters before its value, such as `password=`. If the name is the name
# of a secret or a host, `_value` finds the value.
_ASSIGNED: Final = re.compile(
    r"""(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]{1,64})((?:\\*["'])?\]?[ \t]{0,4}(?:=>|[:=])[ \t]{0,4})"""
)
_QUOTED: Final = {
    '"': re.compile(r'"((?:[^"\\\r\n]|\\.)*+)'),
    "'": re.compile(r"'((?:[^'\\\r\n]|\\.)*+)"),
}
_ESCAPED: Final = re.compile(r"""\\+(["'])((?:(?!\1)[^\r\n])*+)""")
_BARE: Final = re.compile(r"""(?:[^\s"'\\,;&)}\]<>]|,(?=[^\s"'\\]))++""")
_SECRET_NAME: Final = re.compile(
    r"(?:password|passwd|pwd|passphrase|secret|token|apikey|accesskey|accesskeyid|secretkey"
    r"|privatekey|privatekeyid|signingkey|encryptionkey|accountkey|sharedkey|masterkey|authkey"
    r"|authcode|authorization|bearer|codeverifier|cookie|credentials?|signature|csrf|nkey|seed)$|^(?:pass|sig|auth)$"
)
_HOST_NAMES: Final = frozenset({"host", "hostname", "hostaddr", "peer", "remoteaddr"})
# Words after `token:` that belong to a sentence and are not secrets.
_PROSE_WORDS: Final = """
    a an and are be been can cannot could does empty expected expired false found has have in
    incorrect invalid is it malformed may missing must no none not null of or required revoked
    should str string the this true undefined unexpected unknown unsupported was were with wrong
    your
"""
_PROSE: Final = frozenset(_PROSE_WORDS.split())

_URL: Final = re.compile(r"""(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,31})://([^\s"'<>\\`]+)""")
_WEB: Final = frozenset({"http", "https", "ws", "wss"})
_IPV4: Final = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?::\d{1,5})?(?!\.?\d|\w)")
_IPV6: Final = re.compile(r"\[([0-9A-Fa-f:.]{2,45})(?:%[A-Za-z0-9]{1,16})?\](?::\d{1,5})?")
_BARE_IPV6: Final = re.compile(r"(?<![\w:.])([0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{1,44})(?![\w:])")
_NAME: Final = re.compile(
    r"(?<![A-Za-z0-9_.-])(localhost(?![A-Za-z0-9_-])|[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63}){1,12}"
    r"|[A-Za-z][A-Za-z0-9_-]{0,62}(?=:\d))(?::(\d{1,5})(?!\d|\.\d))?"
)
_NAMED_HOST: Final = re.compile(
    r"""((?:\bhost(?:name|\ name)?|\bserver\ at)\s{1,4}\\?["'])([^"'\\\s]{1,253})""", re.IGNORECASE
)
_INTERNAL_WORDS: Final = """
    cluster consul corp home internal intranet lan local localdomain localhost private svc
"""
_INTERNAL: Final = frozenset(_INTERNAL_WORDS.split())
# Names that are not hosts, although a colon and a number often follow them. For example,
# "line:1200" is a place in a file, and 1200 is no port.
_NO_HOSTS_WORDS: Final = """
    char code col column errno error exit id index limit line lines max min ms offset pid port
    position row s size status took version
"""
_NO_HOSTS: Final = frozenset(_NO_HOSTS_WORDS.split())
_FIRST_USER_PORT: Final = 1024


def redacted(text: str, hosts: Sequence[str] = ()) -> str:
    """Return the text without credentials and without addresses that clients cannot reach.

    `hosts` has additional host names to hide, such as the names of agent servers. These names are
    hidden even if they look public. Addresses become `[address]`, and credentials become
    `[redacted]`.
    """
    if len(text) > MAX_CHARACTERS:
        # Cut at a space. If the cut was within a secret, the patterns might not recognise the rest
        # of the secret.
        begin = (text[:MAX_CHARACTERS].rsplit(None, 1) or [""])[0]  # empty if the text is blank
        text = f"{begin}… (cut: it has {len(text)} characters)"
    text = _PRIVATE_KEY.sub(SECRET, text)
    text = _AUTHORIZATION.sub(_after_name, text)
    text = _COOKIE.sub(_after_name, text)
    text = _SCHEME.sub(lambda found: f"{found[0].split()[0]} {SECRET}", text)
    text = _KNOWN.sub(SECRET, text)
    text = _JWT.sub(SECRET, text)
    text = _without_assigned(text)
    hidden = frozenset(host.lower().rstrip(".") for host in hosts)
    text = _URL.sub(lambda found: _url(found, hidden), text)
    text = _NAMED_HOST.sub(lambda found: found[1] + ADDRESS, text)
    for pattern in (_IPV6, _IPV4, _BARE_IPV6):
        text = pattern.sub(_ip, text)
    return _NAME.sub(lambda found: _name(found, hidden), text)


def redacted_value(value: Any, hosts: Sequence[str] = (), levels: int = MAX_LEVELS) -> Any:
    """Return a JSON value with all texts redacted. If a key is the name of a secret, the key's
    value is redacted, too. A value that is nested deeper than `levels` becomes `[redacted]`."""
    if isinstance(value, str):
        return redacted(value, hosts)
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return SECRET
    if isinstance(value, list):
        return [redacted_value(each, hosts, levels - 1) for each in value]
    return {
        key: SECRET
        if isinstance(inner, str | dict | list) and inner and is_secret(key)
        else redacted_value(inner, hosts, levels - 1)
        for key, inner in value.items()
    }


def without(text: str, secrets: Sequence[str]) -> str:
    """Return the text without these secrets, such as headers that Penstock itself has sent."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, SECRET)
    return text


def _after_name(found: re.Match[str]) -> str:
    return f"{found[1]}{SECRET}"


def is_secret(name: str) -> bool:
    """Return whether a field, header or variable with this name usually holds a credential."""
    plain = name.lower().replace("_", "").replace("-", "").replace(".", "")
    return _SECRET_NAME.search(plain) is not None


def _without_assigned(text: str) -> str:
    """Return the text without values as in `password=…`, `"api_key": "…"` and `host='…'`."""
    pieces: list[str] = []
    at = 0
    for found in _ASSIGNED.finditer(text):
        if found.start() < at:
            continue
        name = found[1]
        hides = SECRET if is_secret(name) else ADDRESS if name.lower() in _HOST_NAMES else None
        if hides is None:
            continue
        begin, end = _value(text, found.end())
        value = text[begin:end]
        is_prose = found[2].strip() == ":" and value.rstrip(".!?").lower() in _PROSE
        if (
            not any(map(str.isalnum, value))
            or is_prose
            or value.startswith((SECRET[:-1], ADDRESS[:-1], "//"))
        ):
            continue
        pieces += [text[at:begin], hides]
        at = end
    return "".join([*pieces, text[at:]]) if pieces else text


def _value(text: str, at: int) -> tuple[int, int]:
    """Return the start and end of the value at this place, without the quotation marks."""
    first = text[at : at + 1]
    if first in _QUOTED:
        quoted = _QUOTED[first].match(text, at)
        assert quoted is not None
        return quoted.span(1)
    if first == "\\" and (escaped := _ESCAPED.match(text, at)) is not None:
        begin, end = escaped.span(2)
        while end > begin and text[end - 1] == "\\":
            end -= 1
        return begin, end
    bare = _BARE.match(text, at)
    return bare.span() if bare is not None else (at, at)


def _url(found: re.Match[str], hidden: frozenset[str]) -> str:
    scheme, rest = found[1], found[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" not in authority and _has_password(authority) and "@" in rest:
        authority = rest[: rest.rindex("@") + 1]  # the password contains `/`, `?` or `#` unescaped
    user, at, place = authority.rpartition("@")
    if at and scheme.lower() not in _WEB:
        return SECRET + _sentence_end(rest)
    tail = rest[len(authority) :]
    if _is_internal(_host(place), hidden):
        return ADDRESS + _sentence_end(rest)
    return f"{scheme}://{place}{tail}" if user or at else found[0]


def _has_password(authority: str) -> bool:
    """Return whether the text after the last colon is a password and not a port."""
    _, colon, port = authority.rpartition(":")
    return bool(colon) and not port.isdigit() and not authority.endswith("]")


def _sentence_end(rest: str) -> str:
    """Return the punctuation of the sentence that follows an address."""
    return rest[len(rest.rstrip(".,;:)}")) :]


def _host(place: str) -> str:
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0].rstrip(".,;)")


def _is_internal(host: str, hidden: frozenset[str]) -> bool:
    host = host.lower().rstrip(".")
    if not host or host in hidden:
        return bool(host)
    if _is_private(host):
        return True
    # Every public name has a dot. A host with colons is an IPv6 address that is not private.
    return host.rpartition(".")[2] in _INTERNAL or ("." not in host and ":" not in host)


def _is_private(host: str) -> bool:
    try:
        return not ip_address(host.partition("%")[0]).is_global
    except ValueError:
        return False


def _ip(found: re.Match[str]) -> str:
    return ADDRESS if _is_private(found[1]) else found[0]


def _name(found: re.Match[str], hidden: frozenset[str]) -> str:
    name, port = found[1].lower(), found[2]
    if name in hidden or (
        name.rpartition(".")[2] in _INTERNAL and ("." in name or name == "localhost")
    ):
        return ADDRESS
    is_host = "." not in name and port is not None and int(port) >= _FIRST_USER_PORT
    return ADDRESS if is_host and name not in _NO_HOSTS else found[0]
