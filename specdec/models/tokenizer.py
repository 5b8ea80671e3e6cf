"""The tokenizer: chat prompts to ids, ids to text, which ids end a text, and whether two models share it.

The end-of-text set is the generation configuration's list where there is one (Qwen lists two), with the tokenizer's own
id as the fallback.  Where the two disagree a warning names both.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

from specdec.errors import UserError
from specdec.models.plain_tokenizer import PlainTokenizer, plain


class Tokenizer:
    """What decoding and the study ask of Transformers' tokenizer, or of a plain one that answers alike."""

    def __init__(self, inner, eos_ids: Sequence[int], origin: str):
        self.inner = inner
        self._size = max(inner.get_vocab().values()) + 1
        self.eos_ids = tuple(sorted(eos_ids))
        self.origin = origin

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """From a checkpoint's folder or a GGUF file."""
        try:
            if path.suffix == ".gguf":
                from specdec.models.gguf import GGUFFile

                inner = _by_transformers(path.parent, gguf_file=path.name)
                return cls(inner, GGUFFile(path).eos_ids(), str(path))
            inner = _plain(path) if plain(path) else _by_transformers(path)
        except UserError:
            raise
        except Exception as error:  # Transformers raises many types for a folder without a usable tokenizer
            raise UserError(f"model {path}: its tokenizer cannot be read ({error})") from error
        return cls(inner, _eos_ids(path, inner), str(path))

    def __len__(self) -> int:
        """Ids go from 0 to one below this, holes in the numbering included."""
        return self._size

    @property
    def fingerprint(self) -> str:
        """A hash of every token with its id and of the chat template."""
        tokens = self.inner.convert_ids_to_tokens(list(range(len(self))))
        text = json.dumps([tokens, self.inner.chat_template], ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def chat(self, messages: Sequence[dict], *, enable_thinking: bool | None = None) -> list[int]:
        """Ids of a conversation, with the opening of the assistant's turn; plain text where there is no template."""
        if self.inner.chat_template is None:
            return self.encode("\n".join(message["content"] for message in messages))
        extra = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        return list(
            self.inner.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False, **extra)
        )

    def encode(self, text: str) -> list[int]:
        return list(self.inner.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def token(self, index: int) -> str:
        return self.inner.convert_ids_to_tokens(index)


_KNOWN: dict[str, PlainTokenizer] = {}
"""Plain tokenizers by the contents of their files; none is ever changed."""


def _plain(path: Path) -> PlainTokenizer:
    """Of a folder.  A draft often has its target's very files and then shares its tokenizer."""
    files = sorted({*path.glob("*token*"), *path.glob("*chat_template*")})
    key = hashlib.sha256(b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files if f.is_file())).hexdigest()
    if key not in _KNOWN:
        _KNOWN[key] = PlainTokenizer(path)
    return _KNOWN[key]


def _by_transformers(folder: Path, **options):
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoTokenizer.from_pretrained(folder, **options)


def _eos_ids(path: Path, inner) -> list[int]:
    own = [] if inner.eos_token_id is None else [inner.eos_token_id]
    for name in ("generation_config.json", "config.json"):
        file = path / name
        if not file.is_file():
            continue
        listed = json.loads(file.read_text("utf-8")).get("eos_token_id")
        if listed is None:
            continue
        ids = list(listed) if isinstance(listed, list) else [listed]
        if own and own[0] not in ids:
            warnings.warn(f"{file}: eos_token_id {ids} lacks the tokenizer's {own[0]}; {ids} is used", stacklevel=2)
        return ids
    return own


def check_shared(target: Tokenizer, draft: Tokenizer) -> int:
    """The number of ids the two share; refuses tokenizers of which one is not a prefix of the other, id by id."""
    shared = min(len(target), len(draft))
    if target.inner is draft.inner:
        return shared
    ours = target.inner.convert_ids_to_tokens(list(range(shared)))
    theirs = draft.inner.convert_ids_to_tokens(list(range(shared)))
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            raise UserError(
                f'draft {draft.origin} and target {target.origin} do not share a tokenizer: id {index} is "{b}" in the '
                f'draft and "{a}" in the target'
            )
    return shared


class StopStrings:
    """Ends a text at the first of some strings, which may span tokens and rounds.

    Called with the ids emitted so far, it returns how many of them to keep, or None to go on.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]):
        if not all(isinstance(s, str) and s for s in strings):
            raise UserError(f"stop strings {list(strings)!r}: each must be a text that is not empty")
        self._tokenizer, self._strings = tokenizer, tuple(strings)

    def __call__(self, ids: Sequence[int]) -> int | None:
        if self.find(self._tokenizer.decode(ids)) is None:
            return None
        counts = range(1, len(ids) + 1)  # gone through once, at the end of a text
        return next(count for count in counts if self.find(self._tokenizer.decode(ids[:count])) is not None)

    def find(self, text: str) -> int | None:
        """Where the earliest stop string begins."""
        found = [at for s in self._strings if (at := text.find(s)) >= 0]
        return min(found, default=None)

    def trim(self, text: str) -> str:
        """The text up to the earliest stop string."""
        at = self.find(text)
        return text if at is None else text[:at]

    def safe_length(self, text: str) -> int:
        """How much of the text can be shown now: nothing from where a stop string begins or may be beginning."""
        at = self.find(text)
        if at is not None:
            return at
        held = 0
        for string in self._strings:
            for size in range(min(len(string) - 1, len(text)), held, -1):
                if text.endswith(string[:size]):
                    held = size
                    break
        return len(text) - held
