"""A tokenizer that is all in its tokenizer.json, read without Transformers, whose import costs more than half a second.

It answers as Transformers' `PreTrainedTokenizerFast` does, on the same library (tokenizers), for what decoding asks;
`plain` says whether a folder asks for no more than that.  Chat templates are Jinja, with the settings, the filter and
the two functions that Transformers documents for their authors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from specdec.errors import UserError

CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""How Transformers, of today and before, calls a tokenizer that is all in tokenizer.json."""

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE = "extra_special_tokens"
_IDLE = {
    "backend",
    "chat_template",
    "clean_up_tokenization_spaces",
    "is_local",
    "local_files_only",
    "model_max_length",
    "padding_side",
    "tokenizer_class",
    "truncation_side",
}
"""Settings that change no id of what is encoded and no text of what is decoded here."""
_BESIDE = ("added_tokens.json", "special_tokens_map.json", "additional_chat_templates")
"""Files that older checkpoints hold more in."""


def plain(folder: Path) -> bool:
    """Whether the folder's tokenizer is one of those."""
    path = folder / "tokenizer_config.json"
    if not path.is_file() or not (folder / "tokenizer.json").is_file() or any((folder / f).exists() for f in _BESIDE):
        return False
    settings = json.loads(path.read_text("utf-8"))
    named = {key: settings[key] for key in NAMED if settings.get(key) is not None}
    template, more = _template(folder, settings), settings.get(_MORE, [])
    return (
        settings.get("tokenizer_class") in CLASSES
        and set(settings) <= {*_IDLE, *NAMED, _MORE}
        and isinstance(more, list)
        and all(isinstance(token, str) for token in [*named.values(), *more])
        and (template is None or isinstance(template, str) and "generation %" not in template)
    )


def _template(folder: Path, settings: dict) -> object:
    file = folder / "chat_template.jinja"
    return file.read_text("utf-8") if file.is_file() else settings.get("chat_template")


class PlainTokenizer:
    """Named as Transformers names its methods."""

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer

        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        self._folder, self._inner = folder, Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._named = {key: settings[key] for key in NAMED if settings.get(key) is not None}
        self._special = [*self._named.values(), *settings.get(_MORE, [])]
        for token in self._special:
            if self._inner.token_to_id(token) is None:
                raise UserError(f'model {folder}: tokenizer_config.json names "{token}", which tokenizer.json lacks')
        self.chat_template: str | None = _template(folder, settings)

    @property
    def eos_token_id(self) -> int | None:
        return self._inner.token_to_id(self._named["eos_token"]) if "eos_token" in self._named else None

    @cached_property
    def all_special_ids(self) -> list[int]:
        return list(dict.fromkeys(self._inner.token_to_id(token) for token in self._special))

    def get_vocab(self) -> dict[str, int]:
        return self._inner.get_vocab(with_added_tokens=True)

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | None | list[str | None]:
        if isinstance(ids, int):
            return self._inner.id_to_token(ids)
        return list(map(self._inner.id_to_token, ids))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._inner.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        """Spaces are never cleaned up."""
        return self._inner.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def batch_decode(self, batch: Sequence[Sequence[int]], clean_up_tokenization_spaces: bool = False) -> list[str]:
        return self._inner.decode_batch([list(ids) for ids in batch], skip_special_tokens=False)

    def apply_chat_template(
        self,
        messages: Sequence[dict],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
        **extra: Any,
    ) -> str | list[int]:
        """Text, or its ids with nothing put in front."""
        said = {"tools": None, "documents": None, **self._named, **extra}
        text = self._compiled.render(messages=messages, add_generation_prompt=add_generation_prompt, **said)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    @cached_property
    def _compiled(self):
        from jinja2.exceptions import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def tojson(value: object, indent: int | None = None, **options: Any) -> str:
            return json.dumps(value, ensure_ascii=False, indent=indent, **options)

        def refuse(message: str) -> None:
            raise TemplateError(message)

        room = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        room.filters["tojson"] = tojson
        room.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        return room.from_string(self.chat_template)

    def save_pretrained(self, folder: Path) -> None:
        from transformers import PreTrainedTokenizerFast

        PreTrainedTokenizerFast.from_pretrained(self._folder).save_pretrained(folder)
