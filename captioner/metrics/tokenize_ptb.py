r"""The tokens that coco-caption scores: Penn Treebank tokens in lower case, without punctuation.

coco-caption runs a Java tool for this. Here are its rules in Python, worked out from what the tool
answers (it was asked as a black box; its source was not read for this). As in any generated lexer,
the rule that matches the longest text wins, and of equally long ones the first; text that a rule
only looks ahead at counts towards the length.

A caption is tokenised on its own. The tool reads all captions of a run as one text, so there the
last word of a caption can hang on the first of the next one: "Ave S." gives "s" before a caption
that begins with "A", and "s." before one that begins with "Dogs". Here a caption's end is the end
of a sentence, as in the first case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from captioner.metrics.ptb_characters import DIGITS, DROPPED, LETTERS, MARKS, character_class
from captioner.metrics.score import KeyT

PTB_TOKENIZER_NAME = "ptb-1"
"""Written beside scores, so that scores of different tokens are not compared."""

PUNCTUATION = frozenset(
    ["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"],
)
"""Tokens that coco-caption leaves out. Its list has brackets too, but in upper case, which no token
has any more at that point: ``-lrb-`` and its like stay."""

_LINE_BREAK = re.compile("\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")

# Pieces between spaces whose tokens do not hang on the next piece: nearly all of a caption, and
# there are few different ones, so their tokens are kept. Numbers ("1 1/2", "(555) 123-4567"), tags,
# initials ("J. Smith") and some abbreviations ("no. 5") do hang on it.
_PLAIN_PIECE = re.compile(r"[!-'*-/:;=-~]+\Z")
_SIMPLE_PIECE = re.compile(r"([A-Za-z]{2,})[.,]?\Z")
_KEPT_PIECES = 200_000
_kept_pieces: dict[str, tuple[str, ...]] = {"": ()}


def ptb_tokenize(caption: str) -> list[str]:
    """Split a caption into the tokens that coco-caption scores.

    Args:
        caption: Text in any language. Every kind of line break counts as a space.

    Returns:
        Tokens in lower case, without punctuation; brackets are tokens (``-lrb-``, ``-rsb-``). A
        token may hold a no-break space (``1 1/2``) but no other white space.

    >>> ptb_tokenize("A man's dog isn't on the (red) sofa.")
    ['a', 'man', "'s", 'dog', 'is', "n't", 'on', 'the', '-lrb-', 'red', '-rrb-', 'sofa']
    """
    if not caption.isprintable():
        caption = _LINE_BREAK.sub(" ", caption)
    tokens: list[str] = []
    for piece in caption.split(" "):
        known = _kept_pieces.get(piece)
        if known is None and (known := _tokenize_plain(piece)) is None:
            return _tokenize_mixed(caption)
        tokens.extend(known)
    return tokens


def ptb_tokenize_captions(captions: Iterable[str]) -> list[str]:
    """Tokenise captions for the metrics: the tokens of each, joined by single spaces."""
    return [" ".join(ptb_tokenize(caption)) for caption in captions]


def ptb_tokenize_pair(
    hypotheses: Mapping[KeyT, str], references: Mapping[KeyT, Sequence[str]]
) -> tuple[dict[KeyT, str], dict[KeyT, list[str]]]:
    """Tokenise both sides of a scoring, ready for ``score_captions``.

    Args:
        hypotheses: Caption of each picture as written.
        references: Captions that people wrote, of each picture.

    Returns:
        The same with tokens that are parted by single spaces.
    """
    return (
        {key: " ".join(ptb_tokenize(caption)) for key, caption in hypotheses.items()},
        {key: ptb_tokenize_captions(captions) for key, captions in references.items()},
    )


def _tokenize_plain(piece: str) -> tuple[str, ...] | None:
    """Tokens of a piece, None where they hang on what follows."""
    simple = _SIMPLE_PIECE.match(piece)
    if simple is not None and (word := simple[1].lower()) not in _special_words():
        tokens: tuple[str, ...] = (word,)
    elif piece and (_PLAIN_PIECE.match(piece) is None or _ends_open(piece)):
        return None
    else:
        tokens = tuple(_lex_until_space(f"{piece}\n", 0, [])[1])
    if len(_kept_pieces) >= _KEPT_PIECES:
        _kept_pieces.clear()
    _kept_pieces[piece] = tokens
    return tokens


def _ends_open(piece: str) -> bool:
    """Whether a full stop at the end may be kept or not for the sake of the next piece."""
    word = piece[:-1]
    if piece[-1] != "." or not word[-1:].isalpha():
        return False
    return len(word) == 1 or not word.isalpha() or word.lower() in _BEFORE_NUMBERS


def _tokenize_mixed(caption: str) -> list[str]:
    """Tokens of a caption some of whose pieces hang on the next one."""
    text = f"{caption}\n"
    tokens: list[str] = []
    position, end = 0, len(caption)
    while position < end:
        stop = text.find(" ", position)
        piece = text[position : end if stop < 0 else stop]
        known = _kept_pieces.get(piece)
        if known is None and (known := _tokenize_plain(piece)) is None:
            position, _ = _lex_until_space(text, position, tokens)
        else:
            tokens.extend(known)
            position += len(piece)
        position += 1
    return tokens


# --- The words that rules know -----------------------------------------------------------------


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Abbreviations that keep their full stop. Those of the first list often end a sentence.
_LAST = _words("""
    al ala apr ariz assn aug bhd bldg blvd bros calif co colo conn corp cos ct dak dec ed.d esq est
    etc ext feb fla fri ga inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont
    neb nev nov oct okla penn ph.d plc rd rt sep sept seq sq sr sys tel tenn thu thurs tue tues univ
    va vt wed wis wisc wyo
""")
_TITLES = _words("""
    adj adm adv alex assoc asst atty attys ave brig capt cf cie cmdr col comdr cpl dept det dr drs
    elec ens ft gen gov govs hon insp invt jos lieut lt maj messrs mlle mme mr mrs ms msgr mt natl
    pfc ph pres prof profs pvt rep reps rev sen sens sfc sgt spc st ste supt supts treas vs wm
""")
_CAPITALISED = _words("ark az del ill la mass miss ore pa tex wash")
_COMPANIES = _words("ppte ppty pte ptes pty ptys pptes pptys")
_NOT_SHOUTED = _words("mfg mtg")
_BEFORE_NUMBERS = _words("art ca fig figs no nos op pp prop")

_ASSIMILATED = (
    ("can", "not"),
    ("gon", "na"),
    ("got", "ta"),
    ("gim", "me"),
    ("lem", "me"),
    ("wan", "na"),
)


@cache
def _special_words() -> frozenset[str]:
    names = (_LAST, _TITLES, _CAPITALISED, _COMPANIES, _NOT_SHOUTED, _BEFORE_NUMBERS)
    return frozenset(
        [
            *(first + second for first, second in _ASSIMILATED),
            *(n for group in names for n in group),
        ]
    )


# Words that begin a sentence, so that a single letter before them ends one.
_STARTERS = _words("""
    A About According Additionally After An As At But Earlier He Her Here However If In It Last Many
    More Now Once One Other Our She Since So Some Such That The Their Then There These They This We
    What When While Yet You
""")

_WITH_APOSTROPHE = _words("e'er c'est c'mon ev'ry cap'n li'l nat'l s'mores")

_FILE_TYPES = _words("""
    html jpeg docx java bat bmp cgi cpp dll doc exe gif htm jar jpg mov mp3 pdf php png ppt sql tar
    txt wav xml zip gz pl ps py c h x
""")


# --- The rules ---------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """A pattern whose first group is the token; what it matches beyond that is looked ahead at."""

    pattern: re.Pattern[str]
    kind: str


# Kinds of tokens that are written otherwise than they were read; "=x" is written x.
_AS_READ, _WORD, _DASHES, _DOTS, _QUOTES, _CLITIC, _JOINED, _NOTHING, _SIGN = (
    "as read",
    "word",
    "dashes",
    "dots",
    "quotes",
    "clitic",
    "joined",
    "nothing",
    "sign",
)

_SOFT_HYPHEN = "\u00ad"
_SPACE = r"[\t \u00a0\u2000-\u200a\u3000]"
_CURLY = "(?:[\u0092\u2019]|&apos;)"
_APOSTROPHE = f"(?:'|{_CURLY})"
# Between letters, opening quotes and backquotes are read as apostrophes too.
_ANY_QUOTE = "(?:['\u0091\u0092\u2018\u2019\u201b`]|&apos;)"


def _any_case(word: str) -> str:
    return "".join(
        f"[{char}{char.upper()}]" if char.isalpha() else re.escape(char) for char in word
    )


def _one_of(patterns: Iterable[str]) -> str:
    return "(?:" + "|".join(sorted(patterns, key=len, reverse=True)) + ")"


@cache
def _rules() -> tuple[_Rule, ...]:
    return tuple(_Rule(re.compile(pattern), kind) for pattern, kind in _patterns())


def _patterns() -> Iterator[tuple[str, str]]:
    """All rules in the order in which they win over equally long matches."""
    accented = "&[aeiouAEIOU](?:acute|grave|uml);"
    soft = _SOFT_HYPHEN
    letters, marks = character_class(LETTERS), character_class(MARKS)
    digit = f"[{character_class(DIGITS)}]"
    letter = f"[{letters}]"
    alphanumeric = f"[{letters}{character_class(DIGITS)}]"
    word_start = f"(?:[{letters}{marks}{soft}]|{accented})"
    word_char = f"(?:[{letters}{marks}{soft}{character_class(DIGITS)}]|{accented})"

    name = r"[A-Za-z][A-Za-z0-9_:.\-]*"
    value = r"(?: *= *(?:'[^'\n]*'|\"[^\"\n]*\"))?"
    tag = rf"<(?:[!?][A-Za-z\-][^>\n]*|{name}(?: +{name}{value})* */? *|/{name} *)>"

    # Assimilations: "cannot" is "can" and "not".
    for first, second in _ASSIMILATED:
        yield f"({_any_case(first)}){_any_case(second)}", _AS_READ

    # Words, compounds (o'clock, jack-in-the-box) and alternatives (black/white).
    yield f"({word_start}{word_char}*)", _WORD
    part = f"(?:[dDoOlL]{_ANY_QUOTE}{alphanumeric}{alphanumeric}+|{alphanumeric}+)"
    compound = f"{part}(?:[-_\u058a\u2010\u2011]{part})*"
    yield f"({compound})", _WORD
    part = "[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}"
    yield rf"({part}(?:\\?/{part}){{0,2}})", _WORD

    # Dates, numbers and fractions.
    yield f"({digit}{{1,2}}[-/]{digit}{{1,2}}[-/]{digit}{{2,4}})", _AS_READ
    soft_digit = f"{soft}?{digit}"
    group = f"[.:,\u066b\u066c]{digit}(?:{soft_digit})*"
    yield f"([+-]?(?:(?:{soft_digit})+(?:{group})*|(?:{group})+))", _WORD
    fraction = rf"{digit}{{1,4}}(?:\\?/|\u2044){digit}{{1,4}}"
    yield f"({digit}{{1,4}}[- \u00a0]{fraction})", _AS_READ
    yield f"({fraction})", _AS_READ

    # Acronyms, initials and abbreviations.
    yield r"([A-Za-z](?:\.[A-Za-z])+\.?)", _AS_READ
    yield r"([A-Za-z]\.)", _AS_READ
    starter = _one_of([*_STARTERS, *map(str.upper, _STARTERS)])
    yield (
        rf"([A-Za-z])\.(?:{_SPACE}+(?:{starter}|M[rs]\.|{tag})(?:{_SPACE}|\n)|{_SPACE}*\n)",
        _AS_READ,
    )
    last = _one_of(map(_any_case, _LAST))
    companies = _one_of(f"[{word[0]}{word[0].upper()}]{word[1:]}" for word in _COMPANIES)
    not_shouted = _one_of(f"[{word[0]}{word[0].upper()}]{word[1:]}" for word in _NOT_SHOUTED)
    capitalised = _one_of(f"{name[0].upper()}{_any_case(name[1:])}" for name in _CAPITALISED)
    for names in last, _one_of(map(_any_case, _TITLES)), companies, not_shouted, capitalised:
        yield rf"({names}\.)", _AS_READ
    numbered = _one_of(map(_any_case, _BEFORE_NUMBERS))
    yield rf"({numbered}\.){_SPACE}?{digit}", _AS_READ

    # Words with full stops inside; addresses.
    word = f"{word_start}{word_char}*"
    dotted = f"(?:[.!?]{word})"
    yield f"({word}{dotted}+)", _WORD
    no_mail = r"\t \n\u00a0\"()<>{|}"
    yield (
        rf"((?:<|{_any_case('&lt;')})?[A-Za-z0-9][^{no_mail}]*@(?:[^{no_mail}.]+\.)*[^{no_mail}.]+>?)",
        _AS_READ,
    )
    no_url = r"\t \n\"()<>{|}"
    url_end = rf"[^{no_url}.,!?\-]"
    no_path = no_url.replace("{", "").replace("}", "")
    path = rf"(?:/[^{no_path}]+[^{no_url}.,!?\-])?"
    yield f"({_any_case('http')}[sS]?://[^{no_url}]+{url_end})", _AS_READ
    yield rf"([wW]{{3}}\.(?:[^{no_url}.,!?]+\.)+[A-Za-z]{{2,4}}{path})", _AS_READ
    domains = _one_of(map(_any_case, ("com", "net", "org", "edu")))
    yield rf"((?:[^{no_url}!?`'$,-_]+\.)+{domains}{path})", _AS_READ
    for names in last, companies, capitalised:
        yield rf"({names}\.)(?:.|\n){{2}}", _AS_READ
    types = _one_of(map(_any_case, _FILE_TYPES))
    yield (
        rf"({word_char}+(?:\.{word_char}+)*\.{types})(?:{_SPACE}|[\n.?!,])",
        _AS_READ,
    )
    hyphenated = (
        rf"[A-Za-z0-9][A-Za-z0-9.,{soft}]*"
        rf"(?:-(?:[A-Za-z]\.(?:[A-Za-z]\.)+|[A-Za-z0-9{soft}]+))+"
    )
    yield f"({hyphenated})", _WORD
    # Before a comma, colon or semicolon any word keeps its full stop.
    for pattern in compound, f"{word}{dotted}*", word, hyphenated:
        yield rf"({pattern}\.)[,;:]", _WORD
    joined = f"[A-Z]+(?:(?:[&+]|{_any_case('&amp;')})[A-Z]+)+"
    yield rf"({joined}\.?)[,;:]", _JOINED

    # Runs of signs.
    yield "(-+)", _DASHES
    yield r"(\.{3,5})", _DOTS
    for pattern in "_+", r"\*+", "[?!]+", "#+", "@+", "<<", ">>", "''", r"\\\*":
        yield f"({pattern})", _AS_READ
    yield "([\u00b2\u00b3\u00b9\u2070\u2074-\u2079]+)", _AS_READ
    yield "([\u2080-\u2089]+)", _AS_READ

    # Faces.
    yield "([-'=<>^~x]_[-'=<>^~x])", _AS_READ
    yield r"([<>]?[:;=][-'o*]?[()dDpPO@\[\]\\{|])[^A-Za-z0-9]", _AS_READ
    yield r"(\([-'=<>^~x][_.]?[-'=<>^~x]\)|\(['=<>^~x]-['=<>^~x]\))", _AS_READ

    # Names with signs: C++, AT&T, US$, #tag, @name.
    yield r"([Cc]\+\+|[CcFf]#)", _AS_READ
    yield f"({joined})", _JOINED
    yield r"([A-Z]+\$)", _AS_READ
    yield f"(#{word_start}+)", _AS_READ
    yield "(@[A-Za-z_][A-Za-z_0-9]*)", _AS_READ

    # Character references and tags.
    yield f"({_any_case('&amp;')})", "=&"
    yield f"({_any_case('&lt;')})", "=<"
    yield f"({_any_case('&gt;')})", "=>"
    yield f"({_any_case('&nbsp;')})", _NOTHING
    yield f"(&[nmNM]{_any_case('dash;')})", "=--"
    yield "(&quot;|&apos;)", "='"
    yield f"({_any_case('&quot;')})", _AS_READ
    yield f"(&{_any_case('apos')};)", _AS_READ
    yield "(&#[0-9]+;)", _AS_READ
    yield f"({tag})", _AS_READ

    # Telephone numbers; brackets that are written as tokens already.
    gap = "[- \u00a0]"
    area = rf"\({digit}{{2,3}}\)[ \u00a0]?"
    country = rf"(?:\+\+?)?(?:{digit}{{2,4}}{gap})?{digit}{{2,4}}{gap}"
    yield f"((?:{area}|{country}){digit}{{3,4}}{gap}?{digit}{{3,5}})", _AS_READ
    yield f"(-{_one_of(map(_any_case, ('lrb', 'rrb', 'lsb', 'rsb', 'lcb', 'rcb')))}-)", _AS_READ

    # Apostrophes: clitics, negations, elisions.
    endings = _one_of(map(_any_case, ("s", "d", "m", "ll", "re", "ve")))
    clitic = f"{_APOSTROPHE}{endings}"
    yield f"({_APOSTROPHE}{_one_of(map(_any_case, ('em', 'til', 'till', 'cause')))})", _AS_READ
    # A straight apostrophe before two letters opens a quotation.
    yield "(')[A-Za-z]{2}", _AS_READ
    yield f"({clitic})", _CLITIC
    for ending in "ll", "re", "ve":
        yield f"('{_any_case(ending)})[^A-Za-z]", _CLITIC
    yield f"({word}{dotted}*){clitic}[^A-Za-z]", _WORD
    yield f"({word}{dotted}*){clitic}", _WORD
    yield r"('[nN])[\t \u00a0\n]", _AS_READ
    yield f"({_CURLY}[nN])", _AS_READ
    yield f"([A-Za-z{soft}]*[A-MO-Za-mo-z{soft}])[nN]{_ANY_QUOTE}[tT]", _WORD
    yield f"([nN]{_ANY_QUOTE}[tT])", _CLITIC
    yield f"([lodnA-HJ-XZ]{_ANY_QUOTE}{letter}{letter}+)", _AS_READ
    yield f"({letter}+[aeiouyAEIOUY]{_ANY_QUOTE}[aeiouA-Z]{letter}*)", _AS_READ
    yield f"([dDjJlL]{_APOSTROPHE}|[oO][lL]{_APOSTROPHE})", _AS_READ
    yield f"([yY]{_APOSTROPHE}){letter}", _AS_READ
    yield f"([oO]{_ANY_QUOTE}[oO])", _AS_READ
    yield f"('[tT])(?:{_any_case('is')}|{_any_case('was')})", _AS_READ
    yield f"({_APOSTROPHE}[nN]{_APOSTROPHE})", _AS_READ
    yield f"({_APOSTROPHE}[2-9]0[sS])", _AS_READ
    yield rf"({_APOSTROPHE}{digit}{{2}})(?:{_SPACE}|\n)", _AS_READ
    yield f"({_one_of(map(_any_case, _WITH_APOSTROPHE))})", _AS_READ

    # Quotes in ones and twos; everything else is a sign of its own.
    yield f"([`{''.join(_PLAIN_QUOTES)}\u201a\u201e\u201f]{{1,2}})", _QUOTES
    yield "((?:.|\n))", _SIGN


_PLAIN_QUOTES = {
    **dict.fromkeys("\u0091\u2018\u201b\u2039", "`"),
    **dict.fromkeys("\u0092\u2019\u203a", "'"),
    **dict.fromkeys("\u0093\u201c\u00ab", "``"),
    **dict.fromkeys("\u0094\u201d\u00bb", "''"),
}
_SIGNS = {
    **dict.fromkeys("\u0080\u00a4\u20a0\u20ac", "$"),
    **dict.fromkeys("\u0096\u0097\u2013\u2014\u2015", "--"),
    "\u00a2": "cents",
    "\u00a3": "#",
    "\u00bc": "1/4",
    "\u00bd": "1/2",
    "\u00be": "3/4",
    "\u2153": "1/3",
    "\u2154": "2/3",
    "\u2026": "...",
    "(": "-LRB-",
    ")": "-RRB-",
    "[": "-LSB-",
    "]": "-RSB-",
    "{": "-LCB-",
    "}": "-RCB-",
    # A straight quote opens or closes; both are left out, so that one of them will do.
    '"': "''",
    _SOFT_HYPHEN: "-",
}
_BASIC_PLANE_END = "\uffff"


@cache
def _dropped() -> re.Pattern[str]:
    return re.compile(f"[{character_class(DROPPED)}\ud800-\udfff]")


def _lex_until_space(text: str, position: int, tokens: list[str]) -> tuple[int, list[str]]:
    """Read tokens up to a space that is in none of them, or the line's end.

    Args:
        text: A caption without line breaks, and one at its end.
        position: Where to begin.
        tokens: Where tokens are added, in lower case and without punctuation.

    Returns:
        Where reading stopped, and ``tokens``.
    """
    end = len(text) - 1
    while position < end and text[position] != " ":
        longest = stop = -1
        kind = _SIGN
        for rule in _rules():
            match = rule.pattern.match(text, position)
            if match is not None and match.end() > longest:
                longest, stop, kind = match.end(), match.end(1), rule.kind
        token = _lower(_write(text[position:stop], kind))
        position = stop
        if stop == end:
            # An address may end with a no-break space, but a line of the tool's output may not.
            token = token.rstrip()
        if token and token not in PUNCTUATION:
            tokens.append(token)
    return position, tokens


def _lower(token: str) -> str:
    # Java takes a sigma before a digit, or a hyphen and a letter, for one inside the word.
    return (
        re.sub("\u03a3(?=\\d|-[^\\W\\d_])", "\u03c3", token) if "\u03a3" in token else token
    ).lower()


def _write(token: str, kind: str) -> str:
    """A token as the tool writes it; empty where it leaves the text out."""
    if kind == _SIGN:
        if token > _BASIC_PLANE_END or _dropped().match(token):
            return ""
        return _SIGNS.get(token, token)
    if kind == _NOTHING:
        return ""
    if kind[0] == "=":
        return kind[1:]
    if kind == _WORD:
        return token.replace(_SOFT_HYPHEN, "") or "-"
    if kind == _DASHES:
        return "--" if 1 < len(token) < 5 else token
    if kind == _DOTS:
        return "..."
    if kind == _QUOTES:
        return "".join(_PLAIN_QUOTES.get(char, char) for char in token)
    if kind == _CLITIC:
        token = token.replace("&apos;", "'")
        return "".join(_PLAIN_QUOTES.get(char, char) for char in token)
    if kind == _JOINED:
        return re.sub("&amp;", "&", token, flags=re.IGNORECASE)
    return token.replace(" ", "\u00a0").replace("(", "-LRB-").replace(")", "-RRB-")
