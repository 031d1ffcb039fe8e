"""Find what no lesson may hold unless the person wrote it: addresses, commands, amounts of money, names of products."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_ADDRESS = re.compile(
    r"\b[a-z][a-z0-9+.-]{1,15}://\S+|\bwww\.\S+|[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
    r"|(?<![\w.@-])(?:[a-z0-9-]{1,63}\.){1,6}[a-z]{2,24}(?:/\S*)?(?![\w-])|(?<!\w)@\w{2,30}"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}\b",
    re.IGNORECASE,
)
_FILE_ENDING = re.compile(
    r"\.(?:py|js|ts|md|txt|json|ya?ml|csv|sh|html?|css|java|go|rs|c|cpp|h|sql|xml|toml|pdf|docx?|xlsx?|png|jpe?g)$",
    re.IGNORECASE,
)
_KNOWN_DOTS = re.compile(
    r"(?:e\.g|i\.e|z\.b|d\.h|u\.a|p\.ej|a\.m|p\.m|etc|vs|node\.js|next\.js|vue\.js)\.?",
    re.IGNORECASE,
)
_COMMAND = re.compile(
    r"`[^`\n]{2,200}`"
    r"|(?:^|[\s:;,])(?:\$ |sudo |curl |wget |rm -|chmod |bash |sh -c|ssh |scp |nc |eval |exec "
    r"|pip install |npm (?:i|install|run) |npx |git (?:push|clone|config) |docker "
    r"|powershell|cmd /c|iex )[^.!?。\n]{0,120}"
    r"|\| ?(?:sh|bash|python3?)\b|(?<!\w)--[a-z][\w-]{2,30}|<[a-z!/][^<>]{0,80}>",
    re.IGNORECASE,
)
_AMOUNT = r"\d(?:[\d.,\u00a0 ]{0,12}\d)?"
_MONEY = re.compile(
    rf"[$€£¥₿₹]\s?{_AMOUNT}|{_AMOUNT}\s?(?:[$€£¥₿₹%]?(?:usd|eur|gbp|chf|dollars?|euros?|pounds?|yen|yuan|bucks|bitcoins?)\b"
    rf"|[€$£¥]|欧元|美元|元|円|ドル|ユーロ)",
    re.IGNORECASE,
)
_PRODUCT = re.compile(
    r"[\w’'-]{2,30}[™®©]|\b[A-Z][a-z]+[A-Z]\w+\b|(?<=[\w,;:] )[A-Z][\w-]{1,20} \d{1,4}[A-Za-z]?\b"
    r"|\b\w+(?:,? (?:Inc|Ltd|LLC|Corp|Co|GmbH|AG|S\.A|SARL|KG))\b\.?"
)
# Within a sentence, in the languages that write only names with a capital.
_CAPITALISED = re.compile(r"(?<=[\w,;:»\"] )[A-ZÀ-ÖØ-Þ][\w'’-]+")
_CAPITALISES_NOUNS = re.compile(
    r"\b(?:und|nicht|der|das|ein|eine|einen|einem|mit|auf|bitte|antworte|verwende|beende|ohne|keine)\b"
)
_FREE_NAME = re.compile(
    r"english|german|french|spanish|italian|portuguese|dutch|polish|russian|turkish|arabic|hindi|chinese|japanese|korean"
    r"|british|american|markdown|json|ya?ml|html|css|xml|csv|latex|unicode|ascii|python|javascript|typescript|java|rust"
    r"|sql|bash|celsius|fahrenheit|metric|imperial|ok|mrs?|ms|dr|sir|madam|i|emojis?",
    re.IGNORECASE,
)
"""Languages, formats and units: naming them is behaviour."""


def foreign_kind(text: str, own: str, others: str = "") -> str | None:
    """Return which kind of thing a text has that stands not in `own`, as words with an article; None: none.

    Letter case and white space make no difference. `others`: what others wrote; a capitalised word counts only there,
    since not each is a product.
    """
    known = _squeeze(own)
    foreign = _squeeze(others)
    kinds = (
        ("an address", _addresses(text)),
        ("an amount of money", (match[0] for match in _MONEY.finditer(text))),
        ("a command", (match[0].strip(" `:;,$") for match in _COMMAND.finditer(text))),
        ("a name", (match[0].rstrip(".") for match in _PRODUCT.finditer(text))),
        ("a name", (name for name in capitalised_names(text) if _squeeze(name) in foreign)),
    )
    for kind, parts in kinds:
        if any(_squeeze(part) not in known for part in parts):
            return kind
    return None


def _addresses(text: str) -> Iterator[str]:
    for match in _ADDRESS.finditer(text):
        address = match[0].rstrip(".,;:!?)\"'")
        if not _FILE_ENDING.search(address) and not _KNOWN_DOTS.fullmatch(address):
            yield address


def capitalised_names(text: str) -> Iterator[str]:
    """Yield the capitalised words within sentences, unless the language capitalises all nouns."""
    if _CAPITALISES_NOUNS.search(text.casefold()):
        return
    for match in _CAPITALISED.finditer(text):
        if not _FREE_NAME.fullmatch(match[0]):
            yield match[0]


def _squeeze(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())
