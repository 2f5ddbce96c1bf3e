from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.engine.cache import cached_model, model_digest
from tests.engine.spec import ModelSpec

SMALL = ModelSpec(vocab_size=1024, words=64)


def test_a_model_is_made_once(tmp_path: Path) -> None:
    first = cached_model(SMALL, tmp_path)
    written = first.path.stat().st_mtime_ns
    assert cached_model(SMALL, tmp_path) == first
    assert first.path.stat().st_mtime_ns == written
    assert len(first.words) == 64


def test_makers_that_run_at_once_agree_and_leave_nothing_behind(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        models = set(pool.map(lambda _: cached_model(SMALL, tmp_path), range(3)))
    assert len(models) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_the_key_follows_arguments_and_the_content_of_files(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("one")
    spec = ModelSpec(template=template)
    before = model_digest(spec)
    template.write_text("two")
    assert len({before, model_digest(spec), model_digest(SMALL), model_digest(ModelSpec())}) == 4
