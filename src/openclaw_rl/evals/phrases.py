"""Phrases of the simulated user about a reply.

Each pool has two parts. `plain` phrases contain words that the shipped rules match; `subtle` phrases say the same
without any of them. A test checks both.
"""

from dataclasses import dataclass

from openclaw_rl.evals.styles import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class PhrasePool:
    """Phrases for one reaction; at least as many `subtle` as `plain` ones."""

    plain: tuple[str, ...]
    subtle: tuple[str, ...]


# Praise for the style of the reply.
PRAISE: dict[Value, PhrasePool] = {
    "short": PhrasePool(
        plain=("Nice and short, thanks.", "Short and sweet.", "Right to the point!", "Nicely brief.",
               "Perfect, pleasantly concise."),
        subtle=("Didn't waste my time.", "Not a word more than needed.", "I could read that at a glance.",
                "That is how little I need.", "One look and I had it.", "You kept it tight."),
    ),
    "long": PhrasePool(
        plain=("Nice and detailed, thanks.", "Great, nicely thorough.", "A thorough answer!",
               "Good and complete.", "Exactly, everything in full."),
        subtle=("You really took your time there.", "That covers it from all sides.", "Now I have the whole picture.",
                "I enjoyed reading that.", "You left nothing out.", "That was worth reading."),
    ),
    "formal": PhrasePool(
        plain=("Nicely formal, thank you.", "A professional tone, excellent.", "Great, nice and polite.",
               "Pleasantly professional.", "Good formal wording."),
        subtle=("I can paste that into a letter to the board.", "Very proper.", "My boss could read that.",
                "That has dignity.", "A butler could not have put it better.", "Suitable for the office."),
    ),
    "casual": PhrasePool(
        plain=("Nice and casual, thanks!", "Love it, nicely relaxed.", "Great, pleasantly informal.",
               "A relaxed answer, awesome.", "Nice laid-back answer, thanks."),
        subtle=("Ha, you sound like a friend.", "Now we are talking.", "That felt like a chat over coffee.",
                "You are fun to talk to.", "That made me smile.", "Feels like texting a pal."),
    ),
    "bulleted": PhrasePool(
        plain=("Nice list, thanks.", "I like the bullets.", "Clear bullet points, great.",
               "Neat bullets!", "Lovely list."),
        subtle=("Easy to scan.", "One item per line, as I like it.", "I can tick those off.",
                "Tidy layout.", "That goes straight into my slides.", "My eye finds everything."),
    ),
    "prose": PhrasePool(
        plain=("Nice plain text, thanks.", "Good sentences!", "Clear prose, great.", "Lovely prose."),
        subtle=("That reads well.", "It flows.", "Like a page of a book.", "I can read that aloud."),
    ),
}  # fmt: skip

# Requests for a style that the reply did not have.
COMPLAINT: dict[Value, PhrasePool] = {
    "short": PhrasePool(
        plain=("Too long, shorter please.", "Shorter, please.", "No, that is too wordy.", "Please be brief.",
               "Could you be more concise?"),
        subtle=("I lost you halfway.", "All that for one fact?", "One word would have done.",
                "You could have stopped much earlier.", "I have no time for an essay.", "Get on with it."),
    ),
    "long": PhrasePool(
        plain=("Too short, more detail please.", "Please elaborate.", "No, I want more context.",
               "A bit longer, please.", "That was too brief."),
        subtle=("And? Is there nothing else to tell?", "Don't be so tight-lipped.", "You are holding back.",
                "I had hoped to read a little.", "Is that all?", "Come on, talk to me."),
    ),
    "formal": PhrasePool(
        plain=("More formal, please.", "That is too casual.", "Please be professional.", "No, too chatty.",
               "Could you sound more polite?"),
        subtle=("I can't show that to a client.", "We are not at the pub.", "Mind your manners.",
                "I am not your buddy.", "Is that how one speaks at work?", "A little respect would be in order."),
    ),
    "casual": PhrasePool(
        plain=("Too stiff, relax a bit.", "More casual, please.", "No need to be so stiff, loosen up.",
               "That is too formal.", "Please be relaxed."),
        subtle=("Who died?", "You talk like a lawyer.", "We are friends here, you know.",
                "Did a robot write that?", "I am not the queen.", "Take off the tie."),
    ),
    "bulleted": PhrasePool(
        plain=("Bullet points, please.", "Please use bullet points.", "No, give me a list.", "I prefer bullets.",
               "Make it a list."),
        subtle=("That is one big lump.", "Break it up for me.", "I can't skim that.",
                "One item per line is easier on me.", "Where does one point end?", "My slides need items."),
    ),
    "prose": PhrasePool(
        plain=("No bullets, please.", "Stop using lists.", "Too many bullet points.", "In plain sentences, please."),
        subtle=("This is not a shopping trip.", "Connect it for me.", "All chopped up.", "Why the dashes?"),
    ),
}  # fmt: skip

# Reactions that name no style.
GENERIC_PRAISE = PhrasePool(
    plain=("Perfect, thanks.", "Great.", "Thank you!", "Exactly what I wanted.", "Excellent.", "That helps.",
           "Well done."),
    subtle=("Yes, like that.", "Keep it up.", "That's my kind of answer.", "Lovely.", "You got it.", "Nice one.",
            "More of this.", "I'm happy with that."),
)  # fmt: skip
GENERIC_COMPLAINT = PhrasePool(
    plain=("Not what I wanted.", "No.", "Not helpful.", "That did not help.", "Not like that.", "Not quite right."),
    subtle=("Hmm.", "I would have put it differently.", "Meh.", "You can do better.", "I don't like how you put that.",
            "Oh dear.", "We will have to work on this."),
)  # fmt: skip
# Reactions to a wrong answer.
WRONG_ANSWER = PhrasePool(
    plain=("That is wrong.", "No, that is incorrect.", "Wrong.", "That's not right."),
    subtle=("My teacher would disagree.", "Are you sure about this?", "I doubt it.", "Look it up, will you?"),
)

# Wordings of each instruction. The first one is the hint of the shipped rules.
INSTRUCTIONS: dict[Value, tuple[str, ...]] = {
    "short": ("Keep answers short.", "Be brief.", "Answer in a few words.", "Be concise.", "Keep it short."),
    "long": ("Give long, detailed answers.", "Give more detail.", "Answer at length.", "Explain in detail.",
             "Write long replies."),
    "formal": ("Use a formal tone.", "Be formal.", "Sound professional.", "Write formally.", "Be polite."),
    "casual": ("Use a casual tone.", "Be casual.", "Sound relaxed.", "Write informally.", "Talk like a friend."),
    "bulleted": ("Answer in bullet points.", "Use bullet points.", "Use a list.", "Write a bulleted list.",
                 "Use bullets."),
    "prose": ("Answer in plain prose, without a list.", "Do not use bullet points.", "Write plain text.", "No lists.",
              "Avoid bullets."),
}  # fmt: skip
