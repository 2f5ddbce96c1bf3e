"""From the settings to the options that the stages see."""

from __future__ import annotations

from pathlib import Path

from proxy.errors import SettingError
from proxy.options import Options
from proxy.settings.entries import ModelSetting
from proxy.settings.settings import Settings
from proxy.stages.routing import OFF


def options_of(settings: Settings) -> Options:
    """The part of the settings that the stages see.

    Raises:
        SettingError: a file that stands for a part of prompts can't be read.
    """
    overrides = tuple(
        (glob, {**model.model_dump(), **_texts(model)}) for glob, model in settings.models.items()
    )
    texts = _texts(settings)
    return Options(
        trigger=settings.trigger,
        target=settings.target,
        pause=settings.pause,
        trigger_tokens=settings.trigger_tokens,
        target_tokens=settings.target_tokens,
        strategy=settings.strategy,
        vain_resumes=settings.vain_resumes,
        answer_windows=settings.answer_windows,
        summary_model=settings.summary_model,
        stabilise=settings.stabilise,
        virtual_window=settings.virtual_window,
        recall=settings.recall,
        recall_share=settings.recall_share,
        recall_model=settings.recall_model,
        ahead=settings.ahead,
        status=settings.status,
        policy=settings.policy,
        limits=settings.limits,
        answer_cap=settings.answer_cap,
        tools_allowed=settings.tools_allowed,
        tools_first=settings.tools_first,
        agent_prompt=settings.agent_prompt,
        system_prompt=texts["system_prompt"],
        guide=texts["guide"],
        emulate_tools=settings.emulate_tools,
        read_leaked_calls=settings.read_leaked_calls,
        ask_usage=settings.ask_usage,
        max_body=settings.max_body,
        max_messages=settings.max_messages,
        max_parts=settings.max_parts,
        max_answer=settings.max_answer,
        summary_timeout=settings.summary_timeout,
        grace=settings.grace,
        heartbeat=settings.heartbeat,
        overrides=overrides,
    )


def helpers_of(settings: Settings, options: Options) -> frozenset[tuple[str, str]]:
    """All models that the user chose by name, each with the setting that names it."""
    default = settings.default_model
    return options.helpers | ({("default_model", default)} if default not in {None, OFF} else frozenset())


def _texts(said: Settings | ModelSetting) -> dict[str, str | None]:
    """What stands in the files that are named."""
    return {"system_prompt": _text_in(said, "system_prompt_file"), "guide": _text_in(said, "guide_file")}


def _text_in(said: Settings | ModelSetting, name: str) -> str | None:
    """The text of a file, without white space at its ends."""
    file: Path | None = getattr(said, name)
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingError(f"SPILLWAY_{name.upper()}={str(file)!r}: cannot be read: {reason}") from None
