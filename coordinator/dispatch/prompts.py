"""Prompts from the task to token ids: the source of new groups.

In: the task's rows by position, the policy's tokenizer, the progress of a mixture. Out: GroupIssued
records. A row that is too long is skipped and counted, one that is no prompt for the policy skipped
and reported. Positions are consumed in order, so the next position, of a mixture that of each
domain, is all that a resume needs. An image is decoded once and written by `media.write` alone.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import msgspec
import numpy as np

from coordinator.dispatch.message_rendering import MessageRenderer
from coordinator.dispatch.mixture import DomainMixture, MixtureProgress
from coordinator.line_rewards.line_ends import LineTokens
from headrace.config.sections.run import RunConfig
from headrace.config.sections.task import members
from headrace.data.anchors import Anchor, read_anchors
from headrace.data.image_processor import ImageProcessor, sees_images
from headrace.data.media import MediaError, MediaStore, digest_of, open_rgb
from headrace.data.tokenizer import chat_text, decoded, load_tokenizer, text_ids, vocabulary_size
from headrace.errors import UserError
from headrace.protocol.messages.control import Purpose
from headrace.protocol.records.record_types import GroupIssued
from headrace.protocol.token_spans import Int32, MediaRun
from tasks.datasets.source import PROCEDURAL_TASKS, build_source, image_files
from tasks.rows import TaskRow, chat_of, images_in, with_images

MAX_SKIPS = 10_000
MAX_PASSED = 1_000
"""Maximum number of consecutive prompts skipped by bands; the next one is used."""
AHEAD = 16
"""Rows whose images are fetched at a time."""


def trajectory_seed(seed: int, purpose: Purpose, position: int, member: int) -> int:
    """Return a trajectory's sampling seed: a hash, the same in all runs."""
    text = f"{seed}/{purpose}/{position}/{member}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as text and as token ids.

    `messages`: as in GroupIssued, with images named by their SHA-256; `media`: their positions in
    the ids by `processor`; `files`: the images by SHA-256."""

    text: str
    ids: Int32
    messages: str = ""
    media: list[MediaRun] = field(default_factory=list)
    processor: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


class Prompts:
    """Rows to groups, text to ids and back."""

    def __init__(self, config: RunConfig, media: MediaStore | None = None) -> None:
        """`media`: the store of the prompts' images; None: prompts are text alone."""
        self._config, self.media = config, media
        path, trust = config.model.path, config.model.trust_remote_code
        self._tokenizer: Any = load_tokenizer(path, trust_remote_code=trust)
        known = vocabulary_size(path, trust_remote_code=trust)
        self.vocabulary = max(len(self._tokenizer), known)
        """Number of token ids of the model, often more than its tokenizer names."""
        self._images: ImageProcessor | None = None
        self._asides = CriticPrompts(config, self._tokenizer)
        self._source = build_source(config.task, config.seed)
        self._mixture = DomainMixture(config.task, config.seed)
        tasks = members(config.task).items()
        self._fetching = {name for name, t in tasks if t.kind == "dataset" and t.image_urls}
        self._reads: dict[str, Future[list[bytes]]] = {}
        """Image files by row, read ahead by threads where a domain fetches images."""
        self._broken_off: dict[tuple[str, int], tuple[int, int]] = {}
        """Where searches, by domain and begin, go on, and how many rows bands have passed."""
        self._lifted: set[str] = set()
        self.skipped = self.skipped_in_evaluation = 0
        self.unasked: list[str] = []
        """Notices about domains and rows whose prompts are drawn too seldom."""
        for task in members(config.task).values():
            if task.kind == "dataset":
                continue
            longest = PROCEDURAL_TASKS[task.kind].draw(Random(0), task.max_terms)
            unknown = self._tokenizer.unk_token_id
            if unknown is not None and unknown in self._tokenizer(longest)["input_ids"]:
                raise UserError(
                    f"the tokenizer of {path} lacks labels of problems with {task.max_terms} "
                    "terms: lower task.max_terms or take a model made for them"
                )

    def encode(self, row: TaskRow) -> EncodedPrompt:
        """Encode a row's prompt, through the chat template if there is to be one.

        An agent's prompt has no tokens: the policy reads the agent's requests."""
        mode, environment = self._config.model.chat_template, self._config.environment
        if environment is not None and environment.is_agent:
            text = row.prompt if isinstance(row.prompt, str) else json.dumps(row.prompt)
            return EncodedPrompt(text, _ids([]), "" if text == row.prompt else text)
        if isinstance(row.prompt, str) and mode != "always":
            return EncodedPrompt(row.prompt, _ids(text_ids(self._tokenizer, row.prompt)))
        if mode == "never":
            raise UserError(
                f"row {row.id} has chat messages but model.chat_template is 'never'; use 'auto'"
            )
        images = self._files(row)
        digests = [digest_of(data) for data in images]
        files = dict(zip(digests, images, strict=True))
        asked = with_images(row.prompt, digests)
        said = json.dumps(asked)

        def pixels(digest: str) -> Any:
            try:
                return open_rgb(files[digest])
            except MediaError as error:
                raise MediaError(f"image {digests.index(digest) + 1}: {error}") from error

        try:
            # An environment may say something between the prompt and the first answer.
            begins, tools = environment is None, environment.tools if environment else []
            text = chat_text(self._tokenizer, chat_of(asked), begins_answer=begins, tools=tools)
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            if self._images is None:
                return EncodedPrompt(text, _ids(ids), said)
            expanded, media = self._images.expand(ids, digests, pixels)
        except UserError as error:
            raise UserError(f"row {row.id}, {error}") from error
        version = self._images.version if media else ""
        return EncodedPrompt(text, expanded, said, media, version, files)

    def _files(self, row: TaskRow) -> list[bytes]:
        """Return the row's image files; UserError where the policy cannot read them."""
        read = self._reads.get(row.id)
        files = image_files(self._config.task, row) if read is None else read.result()
        if not files:
            return []
        if self.media is None or self._images is None:
            raise UserError(
                f"row {row.id}: its prompt has images, and the policy reads text alone; take such "
                "rows out of the dataset"
            )
        if len(files) > (most := self._config.task.max_images):
            raise UserError(f"row {row.id}: {len(files)} images, but task.max_images = {most}")
        return files

    @property
    def media_folder(self) -> str:
        """The folder of image files, for processes that share the run's folder; "" without
        images."""
        return "" if self.media is None else str(self.media.folder.resolve())

    def decode(self, token_ids: Int32) -> str:
        """Decode a response without its silent tokens."""
        return decoded(self._tokenizer, token_ids.tolist())

    def is_chat(self, messages: str) -> bool:
        """Return whether a prompt with these messages ("": none) needs the template."""
        environment, mode = self._config.environment, self._config.model.chat_template
        asks = environment is not None and environment.is_agent and mode == "auto"
        return bool(messages or mode == "always" or (asks and self._tokenizer.chat_template))

    def rendering(self, *, is_chat: bool) -> MessageRenderer:
        """Return a renderer of an environment's messages to tokens."""
        environment = self._config.environment
        appends = environment is not None and environment.template == "append"
        return MessageRenderer(self._tokenizer, is_chat=is_chat, appends=appends)

    def line_tokens(self) -> LineTokens:
        """Return the tokens that end lines; each id of the vocabulary is decoded once."""
        texts = [decoded(self._tokenizer, [i]) for i in range(len(self._tokenizer))]
        return LineTokens.of(texts, self.vocabulary)

    def next_group(
        self,
        position: int,
        group_id: int,
        trajectory_id: int,
        progress: MixtureProgress | None = None,
        update: int = 0,
    ) -> GroupIssued:
        """Return the group of the first usable row at or after `position`.

        Of a mixture, it is a row of the domain whose turn it is, after its rows that were asked
        before. BlockingIOError, with the row, while its images are fetched: draw it again later."""
        progress = progress or MixtureProgress()
        while (domain := self._mixture.domain_at(position, update)) is not None:
            first = progress.positions.get(domain, 0) if domain else position
            found = self._row_from(domain, first, progress)
            if found is not None:
                at, row, encoded = found
                group = self._group(
                    row, encoded, position if domain else at, group_id, trajectory_id, "train"
                )
                return msgspec.structs.replace(group, domain_position=at)
            self._mixture.empty.add(domain)
            self.unasked.append(f"{domain}: no prompt is left, so the other domains are asked")
        refused = next((line for line in self.unasked if line.startswith("skipped: ")), "none")
        raise UserError(
            f"{MAX_SKIPS} prompts in a row are longer than task.max_prompt_length="
            f"{self._config.task.max_prompt_length} tokens, or refused ({refused}); raise it or "
            "filter the dataset"
        )

    def compare_rows(self, groups: Iterable[GroupIssued]) -> None:
        """Note domains whose last training prompt is not where it was in the data."""
        asked = (g for g in groups if g.purpose == "train" and g.position >= 0)  # no branches
        for group in {group.domain: group for group in asked}.values():
            row = self._source.domains[group.domain].row_at(group.domain_position)
            if (row.id, row.answer) != (group.prompt_id, group.answer):
                self.unasked.append(
                    f"{group.domain or 'task'}: not the data that the run began with, so some "
                    f"prompts come again or never ({group.prompt_id} is not where it was)"
                )

    def _row_from(
        self, domain: str, first: int, progress: MixtureProgress
    ) -> tuple[int, TaskRow, EncodedPrompt] | None:
        """Return the first row of a domain that bands ask and that fits, and its position."""
        source = self._source.domains[domain]
        begin, passed = self._broken_off.pop((domain, first), (first, 0))
        for at in range(begin, first + MAX_SKIPS):
            row = source.row_at(at)
            if passed < MAX_PASSED and not self._mixture.asks(domain, at, row.id, progress):
                passed += 1
                self._reads.pop(row.id, None)
                continue
            ahead = map(source.row_at, range(at, at + AHEAD))
            if domain in self._fetching and row in self._late(ahead):
                self._broken_off[domain, first] = at, passed
                raise BlockingIOError(row.id)
            encoded = self._usable(row)
            if encoded is not None:
                if passed == MAX_PASSED and domain not in self._lifted:
                    self._lifted.add(domain)
                    self.unasked.append(f"{domain or 'task'}: its bands ask no prompt, so all are")
                return at, row, encoded
        return None

    def _usable(self, row: TaskRow) -> EncodedPrompt | None:
        """Encode a row; None, and a notice, where it is too long or no prompt for the policy."""
        model = self._config.model
        if self._images is None and images_in(row.prompt) and sees_images(model.path):
            self._images = ImageProcessor(model.path, trust_remote_code=model.trust_remote_code)
        try:
            encoded = self.encode(row)
        except UserError as error:
            self.unasked.append(f"skipped: {error}")
            return None
        finally:
            self._reads.pop(row.id, None)
        if encoded.ids.size <= self._config.task.max_prompt_length:
            return encoded
        self.skipped += 1
        return None

    def _late(self, rows: Iterable[TaskRow]) -> list[TaskRow]:
        """Have threads read images; the first rows, at most AHEAD, whose images are not there."""
        asked = (row for row in rows if row.domain in self._fetching and images_in(row.prompt))
        late = [r for r in asked if r.id not in self._reads or not self._reads[r.id].done()][:AHEAD]
        for row in late:
            if row.id not in self._reads:
                self._reads[row.id] = Future()
                # A daemon, so that no server holds up the end of the process.
                Thread(target=self._read, args=(row, self._reads[row.id]), daemon=True).start()
        return late

    def _read(self, row: TaskRow, read: Future[list[bytes]]) -> None:
        try:
            read.set_result(image_files(self._config.task, row))
        except BaseException as error:  # the boundary of the thread: encoding the row raises it
            read.set_exception(error)

    def eval_groups(
        self,
        group_id: int,
        trajectory_id: int,
        lengths: Mapping[int, int] | None = None,
        *,
        purpose: Purpose = "eval",
    ) -> list[GroupIssued]:
        """Return the groups of an evaluation, the same prompts and seeds every time.

        Prompts whose last response was longest, by `lengths` of positions, come first: begun last,
        they would hold up all. Those too long count once. BlockingIOError as in `next_group`."""
        asked, source = self._config.evaluation, self._source
        draw = source.eval_rows if asked.rows == "held_out" else source.training_rows
        rows, found = draw(asked.num_prompts), list[tuple[int, TaskRow, EncodedPrompt]]()
        if late := self._late(rows):
            raise BlockingIOError(late[0].id)
        in_training, self.skipped = self.skipped, 0
        for position, row in enumerate(rows):
            if (encoded := self._usable(row)) is not None:
                found.append((position, row, encoded))
        self.skipped_in_evaluation, self.skipped = self.skipped, in_training
        if lengths:
            found.sort(key=lambda one: lengths.get(one[0], 0), reverse=True)
        return [
            self._group(
                row, encoded, position, group_id + i, trajectory_id + i * asked.samples, purpose
            )
            for i, (position, row, encoded) in enumerate(found)
        ]

    def _group(
        self,
        row: TaskRow,
        encoded: EncodedPrompt,
        position: int,
        group_id: int,
        trajectory_id: int,
        purpose: Purpose,
    ) -> GroupIssued:
        config = self._config
        trains = purpose == "train"
        size = config.schedule.num_generations if trains else config.evaluation.samples
        for digest, data in encoded.files.items():
            assert self.media is not None
            self.media.later(digest, data)
        return GroupIssued(
            group_id=group_id,
            prompt_id=row.id,
            position=position,
            purpose=purpose,
            prompt=encoded.text,
            answer=row.answer,
            info=json.dumps(row.info, default=str),
            messages=encoded.messages,
            prompt_ids=encoded.ids,
            media=encoded.media,
            processor=encoded.processor,
            aside=self._asides.of(row, encoded.text),
            domain=row.domain,
            trajectory_ids=list(range(trajectory_id, trajectory_id + size)),
            seeds=[trajectory_seed(self._config.seed, purpose, position, i) for i in range(size)],
        )


def _ids(tokens: list[int]) -> Int32:
    return np.array(tokens, np.int32)


class CriticPrompts:
    """Anchors that answers have to beat; the value model reads them first.

    They are of the row's reward source, and cut to the maximum length of an answer."""

    def __init__(self, config: RunConfig, tokenizer: Any) -> None:
        """UserError where a file of anchors cannot be read."""
        self._config, self._tokenizer = config, tokenizer
        self._files: dict[str, dict[str, Anchor]] = {}
        self._columns: dict[str, str] = {}
        if not config.anchor_tokens:
            return
        for name, source in config.reward.each().items():
            if source.kind == "pairwise" and (file := source.options.get("anchors")):
                self._files[name] = read_anchors(Path(file).expanduser())
            elif source.kind == "pairwise" and (column := source.options.get("column")):
                self._columns[name] = column

    def of(self, row: TaskRow, prompt: str) -> Int32 | None:
        """Return the token ids, end token last, for a row whose prompt the policy reads as
        `prompt`; None without an anchor."""
        if not self._files and not self._columns:
            return None
        source = self._config.source_of(lambda: row.info)
        text = row.info.get(self._columns.get(source or "", ""))
        if source in self._files:
            found = self._files[source].get(prompt)
            text = None if found is None else found.text
        if not isinstance(text, str) or not text:
            return None
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if self._tokenizer.eos_token_id is not None:
            ids.append(int(self._tokenizer.eos_token_id))
        return _ids(ids[: self._config.task.max_response_length])
