"""Images of a pack: the vision tower's inputs and the embeddings of its output.

In: image files by their SHA-256 digest, the model's processor, the model itself. Out: the number of
an image's placeholder tokens, positions in three rows (M-RoPE, arXiv 2409.12191, section 2.1) for
families that have them, and a pack's token embeddings with those of its images in their places.
Promises: embeddings are placed by position and never by token id, so that a policy which samples an
image's token changes nothing; with a frozen tower every image goes through it once, as long as its
embeddings are kept.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.data.image_processor import IMAGE_FAMILIES, grid_of
from headrace.data.media import open_rgb
from headrace.errors import UserError
from headrace.protocol.token_spans import MediaRun
from learner.device import ImageShapes

Int64 = npt.NDArray[np.int64]
PIXEL_BYTES, FEATURE_BYTES = 256 << 20, 512 << 20
"""Maximum bytes kept of prepared images, and of one model's embeddings."""
K = TypeVar("K")
V = TypeVar("V")


class PackImages(NamedTuple):
    """The images of a pack.

    Attributes:
        digests: each image once, in order of appearance. features_from: [M] int64, for each of the
        M placeholder tokens a row of these images' embeddings laid end to end. places: [M] int64,
        ascending, the placeholders' places in the pack. positions: [3, T] int64, time, height and
        width of each token; None: the family has text positions alone.
    """

    digests: tuple[str, ...]
    features_from: Tensor
    places: Tensor
    positions: Tensor | None


class ImageRow(NamedTuple):
    """Tokens [begin, end) of a sequence in a pack, and the images of the sequence."""

    token_ids: npt.NDArray[np.int32]
    media: Sequence[MediaRun]
    begin: int
    end: int


def images_of(
    rows: Sequence[ImageRow], starts: Sequence[int], shapes: ImageShapes, device: torch.device
) -> PackImages:
    """Return the images in the rows of a pack, which begin at `starts`."""
    begins: dict[str, int] = {}
    places: list[Int64] = [np.zeros(0, np.int64)]
    features: list[Int64] = [np.zeros(0, np.int64)]
    positions: list[Int64] = []
    total = 0
    for row, start in zip(rows, starts, strict=True):
        one = shapes.positions(row.end, row.media)
        if one is not None:
            positions.append(one[:, row.begin :])
        for digest, stands in shapes.placed(row.token_ids, row.media):
            own = np.flatnonzero((stands >= row.begin) & (stands < row.end))
            if not own.size:
                continue
            if digest not in begins:
                begins[digest] = total
                total += shapes.tokens(digest)
            places.append(stands[own] - row.begin + start)
            features.append(own + begins[digest])
    return PackImages(
        digests=tuple(begins),
        features_from=torch.from_numpy(np.concatenate(features)).to(device),
        places=torch.from_numpy(np.concatenate(places)).to(device),
        positions=torch.from_numpy(np.concatenate(positions, 1)).to(device) if positions else None,
    )


class ImageFeatures(NamedTuple):
    """Embeddings [n, hidden] of images' tokens, and their deepstack features.

    `deep`, [n, hidden] each, is added to the states of the same tokens behind the decoder's first
    layers (deepstack, arXiv 2406.04334)."""

    embeddings: Tensor
    deep: tuple[Tensor, ...] = ()


class _ByteCache(Generic[K, V]):
    """Least-recently-used cache with a bound in bytes."""

    def __init__(self, bound: int, size: Callable[[V], int]) -> None:
        self._bound, self._size, self._bytes = bound, size, 0
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        self._bytes += self._size(value)
        while self._bytes > self._bound:
            self._bytes -= self._size(self._values.popitem(last=False)[1])


class _ImageSize(NamedTuple):
    """An image's numbers of placeholder tokens and patches, and `MediaRun`'s grid."""

    tokens: int
    patches: int
    grid: tuple[int, int, int]


class ImageInputs:
    """The vision tower's inputs, made from image files by a model's processor."""

    def __init__(self, read: Callable[[str], bytes], processor: Any, model: Any) -> None:
        """`read` returns a file's bytes by digest; `processor` is the model folder's.

        UserError for a family that is not in `IMAGE_FAMILIES`."""
        shape = model.config
        if shape.model_type not in IMAGE_FAMILIES:
            raise UserError(f"{shape.model_type} models are not trained on images here")
        self._read, self._prepare = read, processor.image_processor
        base = model.base_model
        self._token = shape.image_token_id
        self._rope = getattr(base, "get_rope_index", None)
        self._merged = getattr(shape.vision_config, "spatial_merge_size", 1) ** 2
        self._frame_tokens = getattr(base, "image_seq_len", 0)
        self._patch = shape.vision_config.patch_size
        self._scale = 0.0
        if not is_frozen(model):
            tower, text = map(_size, (tower_of(model), [base.get_decoder()]))
            self._scale = tower / text
        self._pixels: _ByteCache[str, dict[str, Tensor]] = _ByteCache(
            PIXEL_BYTES, lambda kept: sum(x.nbytes for x in kept.values())
        )
        self._facts: dict[str, _ImageSize] = {}
        self._openings: _ByteCache[tuple[MediaRun, ...], Int64] = _ByteCache(
            PIXEL_BYTES, lambda kept: kept.nbytes
        )

    def of(self, digest: str) -> dict[str, Tensor]:
        """Return the tower's inputs for one image."""
        kept = self._pixels.get(digest)
        if kept is None:
            kept = self._prepared(open_rgb(self._read(digest)))
            self._pixels.put(digest, kept)
        return kept

    def blank(self) -> dict[str, Tensor]:
        """Return the tower's inputs for an image that is in no pack."""
        from PIL import Image

        grey = Image.new("RGB", (4 * self._patch, 4 * self._patch), (90, 90, 90))
        return self._prepared(grey)

    def _prepared(self, image: Any) -> dict[str, Tensor]:
        """Prepare one image's tensors, without the batch that Idefics3's come in."""
        prepared = self._prepare(images=[image], return_tensors="pt")
        in_batch = "image_grid_thw" not in prepared
        return {key: x[0] if in_batch else x for key, x in prepared.items()}

    def _facts_of(self, digest: str) -> _ImageSize:
        if digest not in self._facts:
            given = self.of(digest)
            frames, height, width = grid = grid_of(given)
            if "image_grid_thw" in given:
                patches = frames * height * width
                tokens = patches // self._merged
            else:
                patches = frames * height * width // self._patch**2
                tokens = frames * self._frame_tokens
            self._facts[digest] = _ImageSize(tokens, patches, grid)
        return self._facts[digest]

    def cost(self, media: Sequence[MediaRun]) -> int:
        """Return the tokens by which an opening's images enlarge a pack.

        A patch counts as the tower's size by the decoder's; 0 where the tower is frozen."""
        if not self._scale:
            return 0
        patches = sum(self._facts_of(digest).patches for digest in {run.digest for run in media})
        return round(self._scale * patches)

    def placed(
        self, token_ids: npt.NDArray[np.int32], media: Sequence[MediaRun]
    ) -> list[tuple[str, Int64]]:
        """Return each image's digest and its embeddings' places [n] in `token_ids`.

        A run may have other tokens between them. UserError where numbers or grids differ."""
        found: list[tuple[str, Int64]] = []
        for run in media:
            inside = token_ids[run.start : run.end] == self._token
            places = run.start + np.flatnonzero(inside)
            tokens, _, grid = self._facts_of(run.digest)
            if places.size != tokens or (any(run.grid) and run.grid != grid):
                raise UserError(
                    f"image {run.digest[:12]} has {tokens} tokens by the learner's processor, and "
                    f"{places.size} placeholders in its prompt (grids {grid} and {run.grid}): is "
                    "its processor another one?"
                )
            found.append((run.digest, places))
        return found

    def tokens(self, digest: str) -> int:
        """Return the number of an image's placeholder tokens."""
        return self._facts_of(digest).tokens

    def positions(self, length: int, media: Sequence[MediaRun]) -> Int64 | None:
        """[3, length] time, height and width of a sequence's tokens; None: text positions."""
        if self._rope is None:
            return None
        key = tuple(media)
        known = self._openings.get(key)
        if known is None:
            known = self._opening(key)
            self._openings.put(key, known)
        after = int(known.max()) + 1 if known.size else 0
        rest = after + np.arange(max(0, length - known.shape[1]), dtype=np.int64)
        return np.concatenate([known, np.tile(rest, (3, 1))], axis=1)[:, :length]

    def _opening(self, media: tuple[MediaRun, ...]) -> Int64:
        """[3, n] positions up to the last image's end."""
        if not media or self._rope is None:
            return np.zeros((3, 0), np.int64)
        kinds = torch.zeros(1, media[-1].end, dtype=torch.int64)
        grids = []
        for run in media:
            kinds[0, run.start : run.end] = 1
            grids.append(torch.tensor(self._facts_of(run.digest).grid))
        nothing = torch.zeros_like(kinds)
        rows, _ = self._rope(nothing, mm_token_type_ids=kinds, image_grid_thw=torch.stack(grids))
        return rows[:, 0].numpy()


class VisionTower:
    """The vision tower of one model, with a cache of its outputs while it is frozen."""

    def __init__(self, model: Any, inputs: ImageInputs, *, in_step: bool = False) -> None:
        """`in_step`: all ranks run the tower in every pass (ZeRO 3), without a cache."""
        self._model, self._inputs = model, inputs
        self._frozen = is_frozen(model)
        self._keeps = self._frozen and not in_step
        self._kept: _ByteCache[str, ImageFeatures] = _ByteCache(
            FEATURE_BYTES, lambda kept: sum(x.nbytes for x in (kept.embeddings, *kept.deep))
        )
        self._blank = None if self._keeps else inputs.blank()

    def embed(
        self, token_ids: Tensor, position_ids: Tensor, images: PackImages
    ) -> tuple[nn.Module, dict[str, Any]]:
        """Return the decoder and its inputs: embeddings, images' included, and positions."""
        base = self._model.base_model
        rows = base.get_input_embeddings()(token_ids)
        inputs: dict[str, Any] = {"position_ids": position_ids.unsqueeze(0)}
        if images.positions is not None:
            inputs["position_ids"] = torch.cat([position_ids[None], images.positions]).unsqueeze(1)
        if images.digests:
            found = self._features(images.digests)
            chosen = [
                x.index_select(0, images.features_from).to(rows.dtype)
                for x in (found.embeddings, *found.deep)
            ]
            rows = rows.index_copy(0, images.places, chosen[0])
            if found.deep:
                seen = torch.zeros_like(token_ids, dtype=torch.bool)
                inputs["visual_pos_masks"] = seen.index_fill(0, images.places, True).unsqueeze(0)
                inputs["deepstack_visual_embeds"] = chosen[1:]
        elif self._blank is not None:
            # All ranks sum gradients of the same parameters, whichever has images.
            found = self._through([self._blank])
            unseen = found.embeddings.sum() + sum(x.sum() for x in found.deep)
            rows = rows + 0.0 * unseen.to(rows.dtype)
        return base.get_decoder(), inputs | {"inputs_embeds": rows.unsqueeze(0)}

    def _features(self, digests: Sequence[str]) -> ImageFeatures:
        """Return the features of several images, end to end."""
        if not self._keeps:
            return self._through([self._inputs.of(digest) for digest in digests])
        known = {digest: self._kept.get(digest) for digest in digests}
        found = {digest: kept for digest, kept in known.items() if kept is not None}
        if missing := [digest for digest in digests if digest not in found]:
            made = self._through([self._inputs.of(digest) for digest in missing])
            counts = [self._inputs.tokens(digest) for digest in missing]
            cut = zip(*(x.split(counts) for x in (made.embeddings, *made.deep)), strict=True)
            for digest, (own, *deep) in zip(missing, cut, strict=True):
                # A view would hold the embeddings of all.
                found[digest] = ImageFeatures(own.clone(), tuple(x.clone() for x in deep))
                self._kept.put(digest, found[digest])
        parts = [found[digest] for digest in digests]
        added = zip(*(part.deep for part in parts), strict=True)
        return ImageFeatures(
            torch.cat([part.embeddings for part in parts]), tuple(map(torch.cat, added))
        )

    def _through(self, images: Sequence[Mapping[str, Tensor]]) -> ImageFeatures:
        """Run images through the tower; with a gradient where it is trained."""
        base, device = self._model.base_model, self._model.device
        given = {key: torch.cat([x[key] for x in images]).to(device) for key in images[0]}
        if "image_grid_thw" not in given:
            given = {key: x.unsqueeze(0) for key, x in given.items()}
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen):
            output = base.get_image_features(**given, return_dict=True)
        deep = getattr(output, "deepstack_features", None) or ()
        return ImageFeatures(_rows(output.pooler_output), tuple(map(_rows, deep)))


def tower_of(model: Any) -> list[nn.Module]:
    """Return a model's modules before its decoder: vision tower and projection."""
    base = model.base_model
    decoder = base.get_decoder()
    return [] if decoder is base else [part for part in base.children() if part is not decoder]


def is_frozen(model: Any) -> bool:
    """Return whether no parameter of the tower is trained."""
    return not any(p.requires_grad for part in tower_of(model) for p in part.parameters())


def _size(modules: Sequence[nn.Module]) -> int:
    return sum(getattr(p, "ds_numel", p.numel()) for part in modules for p in part.parameters())


def _rows(features: Tensor | Sequence[Tensor]) -> Tensor:
    """[n, hidden], of one tensor an image or one tensor of all, [frames, n, hidden]."""
    return features.flatten(0, 1) if isinstance(features, Tensor) else torch.cat(list(features))
