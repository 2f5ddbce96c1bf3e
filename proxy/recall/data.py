"""Detection of sessions whose messages are data: lines to translate, texts to tag or correct, one by one.

Nothing may be recalled in front of such a message: the model would translate it too.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from proxy.core.request import Message, text_of

_TASK = re.compile(
    r"\b(?:translat|transcrib|transliterat|romani[sz]|classif|categori[sz]|label|tag|annotat|proofread|correct|fix|rewrit|rephras|paraphras"
    r"|convert|reformat|normali[sz]|extract|anonymi[sz]|redact|moderat|sentiment|punctuat|übersetz|klassifizier|korrigier|tradui|traduc|traduz"
    r"|clasific|classific|corrig|corregg|vertaal|översätt|tłumacz|перев[оеё]|классифиц|исправ)|翻译|翻譯|分类|分類|校对|校正|标注|改写|润色|添削"
    r"|翻訳|번역|분류|교정",
    re.IGNORECASE,
)
"""Words for tasks in which messages are data."""
_EACH = re.compile(
    r"\b(?:each|every|one (?:at a time|by one)|line by line|only|just|nothing (?:else|but)|without (?:any )?(?:comment|explan|commentary)"
    r"|no (?:comment|explan|other)|any(?:thing| text)? (?:that )?(?:i|the user|users?) (?:send|write|type|paste|enter)s?|jede|nur|chaque|seulement"
    r"|uniquement|cada|solo|sólo|somente|apenas|soltanto|ogni|alleen|кажд|только)|每|仅|僅|只|各|のみ|だけ|만\b|각",
    re.IGNORECASE,
)
"""Words that apply the task to every message, or exclude any other answer."""
_REFERS = re.compile(
    r"\byou (?:said|wrote|translated|called|gave|used)\b|\b(?:previous|last|earlier) (?:line|message|translation|answer|one)\b|\bour conversation\b",
    re.IGNORECASE,
)
"""Words that refer to the session itself, so the message is not data."""
_OPENING = 1_500
"""Characters at the start of a message in which the task is looked for."""
_TURNS, _FEWEST = 12, 3
"""Latest turns that are examined, and the fewest that show what a session is."""
_LIKE = 0.8
"""Share of the turns whose answer, by its length, may be the message in another form."""
_LABEL = 60
"""Most characters of an answer that may be a label, however long the message is."""


def are_data(system: Sequence[Message], messages: Sequence[Message], newest: int) -> bool:
    """Return whether the user message at `newest` is data, judging by the session's task and by the answers so far."""
    tasks = [text_of(each)[:_OPENING] for each in (*system, *messages[:1])]
    if not any(_TASK.search(task) and _EACH.search(task) for task in tasks) or _REFERS.search(
        text_of(messages[newest])[:_OPENING]
    ):
        return False
    turns = [
        (len(text_of(sent)), len(text_of(answer)))
        for sent, answer in pairwise(messages[max(0, newest - 2 * _TURNS) : newest])
        if (sent.get("role"), answer.get("role")) == ("user", "assistant")
    ]
    echoes = sum(answer <= 3 * sent + _LABEL and (4 * answer >= sent or answer <= _LABEL) for sent, answer in turns)
    return len(turns) >= _FEWEST and echoes >= _LIKE * len(turns)
