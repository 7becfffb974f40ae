# ruff: noqa: RUF001, SIM905 - signs that look alike are the point; lists of words read better bare
"""Captions made by code from awkward pieces, for comparing tokenizers. None is from a data set."""

import random

WORDS = """
a the dog cat grass bench man's Men's women's dogs' James' don't can't won't isn't I'd they've we'll
it's cannot gonna gotta wanna gimme lemme y'all o'clock ma'am 'tis 'twas 'em 'cause 'til d'Arc
O'Neill L'Oreal Xi'an rock'n'roll c'mon s'mores ol' lil' runnin' jack-o'-lantern hallowe'en 's 'n'
St. Ave. Blvd. Rd. Mr. Mrs. Ms. Dr. Jr. Sr. Inc. Co. Ltd. Sept. Jan. Calif. Mass. Ill. Col. Gen. Mt.
U.S. U.S.A. U.K. a.m. p.m. e.g. i.e. etc. vs. No. no. Nos. fig. pp. Ph.D. B.Sc. J. S. K. D. T.V. TV
""".split()
NUMBERS = """
1 2 10 23 100 1,000 3.5 .5 -5 +1 1/2 3/4 5-1/2 1st 2nd 20th 1950s 1950's '90s '05 5'6" 6'2 10:30
10:30am 12/25/2014 2014-12-25 555-1234 (555) 123-4567 800 555 1234 +44 20 7946 0958 $5 $5.50 $.99 £3
€4 5¢ ¥6 US$5 C$ 10% 5° 70°F 5ft 5lb 6-foot 2-year-old 1/2-inch #1 # No.5 ½ 1½ ¼ ⅓ ⅛ ² m³ 4x4 2x 3D
5K mp3 7-11 24/7 9/11 747 A380 5mph 30km/h 12V 60W 1,2,3 1.2.3 3:1
""".split()
NAMES = """
http://www.example.com/a?b=1 https://a.example.co/x http://a.b www.example.com www.example.com/a/b
example.com example.com/ab example.net bar@example.com john_doe@mail.example.org <a@b.c> @user #tag
file.jpg IMG_1234.JPG 12.png AT&T R&B A&W A+B C++ C# &amp; &lt; &gt; &quot; &eacute; &nbsp; &#39;
&hellip; <b> </b> <br/> <a href="x"> and/or w/o black/white T-shirt X-ray well-known mother-in-law
state-of-the-art a/b/c foo_bar __init__ x=y a+b Yahoo! Jeopardy!
""".split()
OTHERS = """
café naïve Zürich São élan Ångström œuvre ﬁsh e\u0301 日本語 中文 かな привет мир ελλάδα ΣΑΣ مرحبا
עברית हिन्दी ไทย 한국어 straße 😀 👍🏽 ❤️ ♥ ★ ☃ → © ™ ® 𝒜 … — – ‒ - -- --- ----- ... .. . , ; : !
? ?! !!! ( ) [ ] { } < > << >> \" '' ` `` ' “ ” ‘ ’ « » ‹ › „ ‚ * ** / \\ | ~ ^ _ __ + = & @ # $ % °
• · × ÷ ± § ¶ ¿ ¡ :) :-) ;) :D :P :( <3 ^_^ -_- o_O (^_^) XD >:( \\o/ don’t it’s ’90s rock’n’roll
“hello” ‘hi’ (hi) [hi] -lrb- -RRB- 't It The This One But
""".split()
JOINTS = [
    *("", "", ".", " ", " ", " ", " ", " ", " ", ", ", ".", "'s ", "-", "\u00a0", "\u200b", "/"),
    *("\t", " (", ") ", '" ', "' ", ' "', " '", "’s ", ": ", "; ", "! ", "... ", "  ", "\u00ad"),
]


def made_captions(count: int, seed: int) -> list[str]:
    """Captions of one to nine pieces that are joined in all kinds of ways."""
    generator = random.Random(seed)
    pieces = WORDS * 2 + NUMBERS + NAMES + OTHERS
    return [
        "".join(
            generator.choice(pieces) + generator.choice(JOINTS)
            for _ in range(generator.randint(1, 9))
        )
        for _ in range(count)
    ]


WRITTEN = [
    "",
    " ",
    ".",
    "A man's dog isn't on the (red) sofa.",
    "Two dogs' toys, and the dogs' owner's hat",
    "I can't, won't and cannot; they're gonna go!",
    "'Tis 5 o'clock; y'all should've seen 'em, ma'am.",
    "Rock'n'roll from the '90s and the 1950's",
    "Jeanne d'Arc, Conan O'Brien and Xi'an's walls",
    "A well-known, state-of-the-art mother-in-law",
    "3.5 of 1,000 people (10%) are 5'6\" tall",
    "1 1/2 cups, 3/4 cup, ½ cup and 1½ cups",
    "2 1/4-inch screws; a 1/2-inch gap",
    "$5.50, £3, €4, ¥6, 5¢, US$5 and 20 kr",
    "70°F at 10:30am, 5mph, 30 km/h, 2x4 wood",
    "12/25/2014, 2014-12-25, 555-1234, (555) 123-4567, +44 20 7946 0958",
    "Mr. J. Smith Jr. of St. Louis, Mo., U.S.A., at 5 p.m.",
    "The corner of S Lane St. and 12th Ave S.",
    "Bus no. 5 says no. Nos. 5 and 6 do too",
    "e.g. a cat, i.e. no dog, etc. vs. others",
    "A Ph.D. student of the U.S. The end.",
    "Visit http://www.example.com/a?b=1&c=2. Or www.example.com/a/b, or example.com!",
    "Mail john.doe@example.org (or <jane@example.org>).",
    "A photo IMG_1234.JPG, file.jpg",
    "AT&T, R&B, A&W., salt &amp; pepper, &lt;b&gt;, caf&eacute;, it&#39;s",
    "A black/white/grey T-shirt and/or 24/7 w/o a hat",
    '[square] {curly} (round) <b>bold</b> <br/> <a href="x">y</a> -lrb- -RRB-',
    "“Curly” ‘quotes’, «guillemets», ‹single›, „low“, ‚low‘, ''two'', ``back``, \"straight\"",
    "It’s the dog’s, don’t! ’90s ’til ’n’",
    "Wait... what… . . . no.... ..... -- --- ----- — – ‒ -",
    "Who?! What!!! Why?? *** #### @@ ~~",
    "A café, naïve São Paulo élan, Zürich, e\u0301cole, Ångström",
    "日本語の 説明, 一只猫, привет мир, γειά σου ΣΑΣ, مرحبا بك, שלום, हिन्दी, ไทย, 한국어, İstanbul",
    "A dog 😀 👍🏽 ❤️ ♥ ★ ☃ 🐕🐕 𝒜",
    ":) :-) ;-) :D :P >:( <3 ^_^ -_- (^_^) o_O \\o/",
    "#tag @user C++ C# F# A+B x=y a_b __init__ \\* ~ ^ |",
    "A soft\u00adhyphen, a no-break\u00a0space, a zero\u200bwidth space, 1\u00a01/2",
    "tab\there and   many    spaces",
    "©2014 ™ ® § ¶ • · × ÷ ± ° ² ³ ₂ ⅓ ⅔ ⅛ № ‰",
    "Yahoo! Inc. and Jeopardy! Co.",
    "100 percent, 1st, 2nd, 3rd and 21st-century art.",
]
"""Captions written for this test, one for each kind of trouble."""
