"""Words that say nothing of what a text is about, by language, as the stemmers name those.

They tell which language a text is in, and are left out of its terms. Folded: small letters without accents.
"""

from __future__ import annotations

_LISTED = {
    "english": """a about all also am an and any are as at be been being both but by can could did do does each for from
        had has have having he her here him his how i if in is it its just ll may me might mine more most must my
        no not of on only or other our own re s same shall she should so some such t than that the their them then
        there these they this those to too us ve very was we were what when where which who whom whose why will
        with would yes you your""",
    "german": """aber als am an auch auf aus bei bin bist da das dass dem den denn der des dich die dir doch du ein eine
        einem einen einer er es fur hab habe haben hat hatte ich ihm ihn ihr im in ist ja kann man mein mich mir
        mit nach nein nicht noch nur ob oder sein sich sie sind so uber um und uns von vor wann war waren was wenn
        wer wie wir wird wo zu zum zur""",
    "french": """a ai as au aux avec avez c ce ces cette ce comment d dans de des du elle en est et etait ete etre eu il
        ils j je l la le les leur lui m ma mais me mes moi mon n ne non nous on ont ou oui par pas pour qu quand que
        quel quelle qui quoi s sa se ses son sont sur t ta te toi ton tu un une vous y""",
    "spanish": """a al como con cual cuando de del donde e el ella en era es esta este esto ha han has hay he la las le les
        lo los me mi mis muy no nos o para pero por porque que quien se ser si sin sobre son su sus te tu tus un
        una y ya yo""",
    "portuguese": """a ao aos as com como da das de do dos e ela ele em era es essa esse esta este eu foi ja lhe mas me meu
        minha muito na nao nas no nos o os ou para pela pelo por porque qual quando que quem se sem ser seu sim sua
        te tem um uma voce""",
    "italian": """a ad al alla anche che chi ci come con cosa da dal dei del della di dove e ed era gli ha hai ho i il in
        io l la le lei li lo lui ma mi mio mia ne nei nel nella non o per perche piu qual quale quando quello
        questa questo se sei si sono su sua suo ti tu un una uno""",
    "russian": """а был была были было быть в во вот все вы где да для до его ее если есть еще же за и из или их к как
        какие какой ко когда кто ли мне мной мой мы на не нет ни но о об он она они от по при с со так такой там то
        тот ты у уже что чтобы это этот я""",
}
FUNCTION_WORDS: dict[str, frozenset[str]] = {language: frozenset(words.split()) for language, words in _LISTED.items()}

ALL_FUNCTION_WORDS = frozenset().union(*FUNCTION_WORDS.values())
