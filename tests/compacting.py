# ruff: noqa: RUF001 - Cyrillic and wide signs
"""Requests of clients that compact by themselves: where each has its instruction, and in which form the conversation.

The instructions have the form of those of the programs named, and of the words only what the form needs.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, Any]
Talk = Sequence[tuple[str, str]]
"""What the user says, and what is answered."""

LABELS: dict[str, tuple[str, str, str]] = {
    "brackets": ("[user]: {}", "[assistant]: {}", "\n"),
    "capitals": ("USER: {}", "ASSISTANT: {}", "\n\n"),
    "people": ("Human: {}", "AI: {}", "\n"),
    "headings": ("# USER\n{}", "# ASSISTANT\n{}", "\n"),
    "tags": ("<user>{}</user>", "<assistant>{}</assistant>", "\n"),
    "events": ("<EVENT id=1>\nuser said {}\n</EVENT>", "<EVENT id=2>\nagent said {}\n</EVENT>", "\n"),
    "names": ("Anna: {}", "Seraphina: {}", "\n"),
    "chinese": ("用户：{}", "助手：{}", "\n"),
}  # fmt: skip


def written(talk: Talk, how: str) -> str:
    if how == "json":
        return json.dumps(history(talk))
    user, assistant, between = LABELS[how]
    return between.join(text for said, answer in talk for text in (user.format(said), assistant.format(answer)))


def history(talk: Talk) -> list[Message]:
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for turn in talk for role, text in zip(roles, turn, strict=True)]


def one(text: str, how: str = "capitals", system: str = "") -> Callable[[Talk], list[Message]]:
    """All in one message of the user's, with the conversation for `{}`."""
    lead = [{"role": "system", "content": system}] if system else []
    return lambda talk: [*lead, {"role": "user", "content": text.replace("{}", written(talk, how))}]


def in_system(text: str, ask: str, how: str = "brackets") -> Callable[[Talk], list[Message]]:
    """The conversation in the system prompt."""
    end = [{"role": "user", "content": ask}] if ask else []
    return lambda talk: [{"role": "system", "content": text.replace("{}", written(talk, how))}, *end]


def after(ask: str, system: str = "You help.", role: str = "user") -> Callable[[Talk], list[Message]]:
    """The history itself, and the instruction behind it; empty: none but the system prompt."""
    end = [{"role": role, "content": ask}] if ask else []
    return lambda talk: [{"role": "system", "content": system}, *history(talk), *end]


def first(ask: str, how: str) -> Callable[[Talk], list[Message]]:
    """The instruction as a message of its own, an answer to it, and the conversation."""
    return lambda talk: [
        {"role": "user", "content": ask},
        {"role": "assistant", "content": "Understood, I will summarise it."},
        {"role": "user", "content": written(talk, how)},
    ]


_SECTIONS = "\n1. Goals\n2. Decisions\n3. Open work\n"
CLIENTS: dict[str, Callable[[Talk], list[Message]]] = {
    "goose": in_system(
        "## Task Context\n- A context limit was reached in a working session\n- Distill the conversation below into a "
        "structured summary\n\n**Conversation History:**\n{}\n\nReason in `<analysis>` tags, then one json block.",
        "Please summarize the conversation history provided in the system prompt.",
    ),
    "goose, told to begin": in_system("Condense the conversation history below for the next session.\n\n{}", "Begin."),
    "grimoire": in_system("Below is a snippet.\n{}", "Summarize the most important events in the story so far.", "names"),
    "open webui": one(
        "### Task:\nSummarize the conversation history that will be compacted out of the context.\n\n"
        "### Chat History:\n<chat_history>\n{}\n</chat_history>"
    ),
    "copilot": after(
        "Summarize the conversation history so far, with the commands that triggered this summarization. Use the format of "
        "the system message.",
        "Your task is to create a comprehensive summary of the entire conversation for whoever takes over.",
    ),
    "langchain middleware": one(
        "<role>\nContext Extraction Assistant\n</role>\n\nYour sole objective is to extract the most relevant context from the "
        "conversation history below.\n\n<messages>\nMessages to summarize:\n{}\n</messages>\n\nRespond ONLY with it.",
        "people",
    ),
    "langchain memory": one(
        "Progressively summarize the lines of conversation provided, adding onto the previous summary.\n\nEXAMPLE\nHuman: "
        "Why?\nAI: Because.\nEND OF EXAMPLE\n\nCurrent summary:\n\n\nNew lines of conversation:\n{}\n\nNew summary:",
        "people",
    ),
    "langgraph": after("Create a summary of the conversation above:"),
    "langgraph, extending": after(
        "This is a summary of the conversation to date: they met.\n\nExtend the summary by taking into account the new "
        "messages above:"
    ),
    "sillytavern": after(
        "Ignore previous instructions. Summarize the most important facts and events in the story so far. Your response "
        "should include nothing but the summary.",
        "You are Seraphina.",
        "system",
    ),
    "sillytavern, raw": one(
        "Recent conversation to summarize:\n{}",
        "names",
        "Ignore previous instructions. Summarize the most important facts and events in the story so far.",
    ),
    "lobechat": one(
        "<chat_history>\n{}\n</chat_history>\n\nPlease summarize the above conversation and retain key information.",
        "tags",
        "You are good at extracting key takeaways from conversations and summarizing them.",
    ),
    "nextchat": after("Summarize the discussion briefly, to use as a prompt for future context.", role="system"),
    "nextchat, chinese": after("简要总结一下对话内容，用作后续的上下文提示。", role="system"),
    "openhands": one(
        "You are maintaining a context-aware state summary for an interactive agent. You will be given a list of events.\n\n"
        "<PREVIOUS SUMMARY>\nNone\n</PREVIOUS SUMMARY>\n\n{}\n\nNow summarize the events using the rules above.",
        "events",
    ),
    "letta": first("Your job is to summarize a history of previous messages in a conversation with a human.", "capitals"),
    "letta, system": one("{}", "json", "Your job is to summarize a history of previous messages in a conversation."),
    "llamaindex": one(
        "{}", "people", "The following is a conversation between the user and assistant. Write a concise summary about it."
    ),
    "semantic kernel": after(
        "Provide a concise and complete summarization of the entire dialog that does not exceed 5 sentences.", role="system"
    ),
    "autogen": after("Summarize the takeaway from the conversation. Do not add any introductory phrases."),
    "eino": one(
        "<role>\nConversation Summarization Assistant\n</role>\n<older_messages>\n{}\n</older_messages>\nMerge them.", "json"
    ),
    "agent zero": one(
        "{}",
        "json",
        "# Assistant's job\n1. The assistant receives a history of conversation between USER and AGENT\n2. Assistant writes "
        "a summary that will serve as an index",
    ),
    "roo": after(f"Your task is to create a detailed summary of the conversation so far.{_SECTIONS}"),
    "gemini cli": after(
        "First, reason in your scratchpad. Then, generate the <state_snapshot>.",
        "You are the component that summarizes internal chat history into a given structure, <state_snapshot>.",
    ),
    "agents sdk": after("", "Summarize the conversation history so far into a single paragraph."),
    "deepchat, chinese": one(
        f"请将以下对话历史压缩成摘要，以便在新的会话中继续。{_SECTIONS}\n{{}}", "chinese", "你是一个助手。"
    ),
    "a german one": after("Fasse unsere bisherige Unterhaltung so zusammen, dass ein anderer sie fortsetzen kann."),
    "a japanese one": after("これまでの会話を要約してください。次のセッションへの引き継ぎに使います。"),
    "a russian one": after("Кратко изложи наш разговор, чтобы его можно было продолжить в новой сессии."),
    "a spanish one": after("Resume toda la conversación para poder continuar en otra sesión."),
    "a french one": one("Résume la conversation ci-dessous.\n\n{}\n\nRésumé :", "brackets"),
    "zed": after("Generate a detailed summary of this conversation. Include:\n1. Key facts\n2. Action items"),
    "qvink": one("You are a summarization assistant. Condense the fictional narrative to facts.\n\n{}", "names"),
    "t-koma": after("", "You are summarizing a conversation that is compacted to free the window. Keep " + "facts, " * 99),
    "a memory that is updated": one(
        "<memory>\nnone\n</memory>\n<new>\n{}\n</new>\nUpdate it so that it summarises everything.", "json"
    ),
    "two messages": lambda talk: [
        {"role": "user", "content": written(talk, "people")},
        {"role": "user", "content": "Boil this down to a recap."},
    ],
    "in its first message": lambda talk: [
        {"role": "user", "content": "Summarise the conversation that follows."},
        *history(talk),
    ],
    "a wish of the user": after("Please summarise the conversation so far."),
    "a system's words only, korean": in_system("아래 대화를 5문장 이내로 요약해줘:\n{}", "", "people"),
    "a romanian one": one("{}", "capitals", "Creează un rezumat foarte detaliat al conversației."),
    "an arabic one": after("لخص محادثتنا حتى الآن."),
    "a turkish one": after("Şimdiye kadarki konuşmamızı özetle."),
    "in its first words only": one("Summarize the following chat transcript between a user and an agent.\n\n{}", "json"),
}
"""Forms of public programs, by name."""

OTHERS: dict[str, Callable[[Talk], list[Message]]] = {
    "what we said": after("Can you summarise what we said?"),
    "was wir sagten": after("Fass bitte kurz zusammen, worüber wir gesprochen haben."),
    "a file": after("Write a summary of our conversation so far into NOTES.md."),
    "a module": after("Write a summary of the session module into README.md:\n- one\n- two\n- three\n"),
    "a feature": after("Extract the chat session logic into a module, so that the next agent can continue the work."),
    "a component": after("Build a compact chat history component:\n1. a list\n2. a filter\n3. a button\n"),
    "a title": one("### Task:\nGenerate a 3-5 word title summarizing the chat history.\n<chat_history>\n{}\n</chat_history>"),
    "tags": one("Summarize the conversation as 3 tags.\n\n{}"),
    "an article": lambda talk: [{"role": "user", "content": f"Summarise this article.\n\n{talk!s}"}],
    "a question after a summary": lambda talk: [
        {"role": "user", "content": f"Summarise this chat with my landlord.\n\n{written(talk, 'names')}"},
        {"role": "assistant", "content": "They spoke of codes."},
        {"role": "user", "content": "And who is right?"},
    ],
    "a chat that goes on": one("[Summary of earlier events: they met.]\n\n{}\nSeraphina:", "names"),
    "an agent's prompt": after(
        "Summarise the README.", "You are a coding agent. The conversation is summarised for you when it gets long."
    ),
    "a chat": after("What did I say about the harbour?"),
}
"""Requests that only look alike."""
