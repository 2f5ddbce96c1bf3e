import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import sse
from proxy.core.jsontext import loads
from proxy.stream.outlet import Template
from tests.stream.support import chunk, frame, said

texts = st.text(st.sampled_from(list('ab "\\\n\r\x00\u2028字😀é</\x7f')), max_size=6)


def learnt(text: str = "x", name: str = "content") -> Template:
    template = Template()
    template.learn(frame(chunk({name: text})), frame(chunk({name: text})), name, text)
    return template


@given(texts)
def test_what_is_read_is_what_json_says(text: str) -> None:
    template = learnt()
    read = template.read(said(text))
    if read is not None:
        assert read == text
    else:
        assert not text or not text.isprintable() or '"' in text or "\\" in text


@given(st.binary(max_size=20))
def test_any_bytes_between_are_json_or_left_to_the_parser(raw: bytes) -> None:
    data = said("x").replace(b'"x"', b'"' + raw + b'"')
    read = learnt().read(data)
    if read is not None:
        line = sse.data_of(data)
        assert line is not None
        assert loads(line)["choices"][0]["delta"]["content"] == read


@given(texts.filter(bool), texts)
def test_a_frame_to_another_identity_is_filled_in(text: str, other: str) -> None:
    template = Template()
    template.learn(said(text), frame(chunk({"content": text}, name="own")), "content", text)
    read = template.read(said(other))
    if read is not None:
        assert template.write(read) == frame(chunk({"content": other}, name="own"))


@pytest.mark.parametrize(
    "data",
    [
        said("y") + said("z"), said("y")[:-1], said("y") + b"\n", said(""), said("y", name="two"),
        frame(chunk({"content": "y"}, "stop")), frame(chunk({"reasoning_content": "y"})), b": ping\n\n", b"",
        said("x")[: len(said("x")) // 2],
    ],
)  # fmt: skip
def test_other_frames_are_left_to_the_parser(data: bytes) -> None:
    assert learnt().read(data) is None


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"content":"x","choices":[{"delta":{"content":"x"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":["x"]}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\u0078"}}]}\n\n',
        b'data: {"choices":[{"delta":{"c":"x"}}]}\n\n',
    ],
)
def test_a_frame_in_which_the_text_can_not_be_located_teaches_nothing(data: bytes) -> None:
    template = Template()
    template.learn(data, data, "content", "x")
    assert template.read(data) is None


def test_a_template_reads_its_own_field_however_it_is_spaced() -> None:
    template = learnt(name="reasoning_content")
    assert template.thought
    assert template.read(frame(chunk({"reasoning_content": " hm"}))) == " hm"
    data = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    template.learn(data, data, "content", "a")
    assert template.read(data.replace(b'"a"', b'"bc"')) == "bc"
    template.known = False
    assert template.read(data) is None
