"""Operators that only move or generate elements."""

from __future__ import annotations

import numpy as np

from .case import Entry, Given, OperatorCase, Scale, case, each, images, rows, whole


def _padded(s: Scale) -> OperatorCase:
    return case(lambda x: np.pad(x, ((0, 0), (7, 9))), rows(s), start_padding=(0, 7),
                end_padding=(0, 9))


def _deep(s: Scale) -> Given:
    """Images with four times as many channels."""
    n, c, h, w = images(s, smaller=2).sizes
    return Given((n, 4 * c, h, w))


def to_space(x: np.ndarray, block: int, order: int = 0) -> np.ndarray:
    """Channels to square blocks. In order 1, the channels of a block lie together."""
    n, c, h, w = x.shape
    k = c // (block * block)
    blocks = (x.reshape(n, k, block, block, h, w).transpose(0, 1, 4, 2, 5, 3) if order
              else x.reshape(n, block, block, k, h, w).transpose(0, 3, 4, 1, 5, 2))
    return blocks.reshape(n, k, h * block, w * block)


def to_depth(x: np.ndarray, block: int, order: int = 0) -> np.ndarray:
    """The inverse of :func:`to_space`."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block, block, w // block, block)
    axes = (0, 1, 3, 5, 2, 4) if order else (0, 3, 5, 1, 2, 4)
    return blocks.transpose(axes).reshape(n, c * block * block, h // block, w // block)


def _distances(n: int) -> np.ndarray:
    return np.arange(n) - np.arange(n)[:, None]


def _chosen(s: Scale) -> np.ndarray:
    """Numbers of rows or columns, each once, in random order."""
    return (np.arange(s.side, dtype=np.uint32) * 5 + 3) % s.side


def _by_rows(s: Scale) -> OperatorCase:
    return case(lambda x, i: x[i[:, 0]], whole(rows(s)), _chosen(s)[:, None],
                input_dimension_count=2, indices_dimension_count=2)


def put(x: np.ndarray, i: np.ndarray, new: np.ndarray, axis: int = 1) -> np.ndarray:
    """``x`` with new elements at the indices along ``axis``."""
    x = x.copy()
    np.put_along_axis(x, i, new, axis)
    return x


def _put_rows(x: np.ndarray, i: np.ndarray, new: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[i[:, 0]] = new
    return x


def with_rows_added(x: np.ndarray, i: np.ndarray, new: np.ndarray) -> np.ndarray:
    x = x.copy()
    np.add.at(x, i[:, 0], new)
    return x


def _columns_twice(s: Scale) -> np.ndarray:
    """Every second column twice, for each row."""
    return np.tile(_chosen(s) // 2 * 2, (s.side, 1))


def _add_along(x: np.ndarray, i: np.ndarray, new: np.ndarray) -> np.ndarray:
    x = x.copy()
    np.add.at(x, (np.arange(len(x))[:, None], i), new)
    return x


def _reversed(s: Scale) -> OperatorCase:
    n, c, h, w = images(s).sizes
    half = h // 2
    lengths = np.full((n, c, 1, w), half, np.uint32)
    return case(lambda x, _: np.concatenate([x[:, :, :half][:, :, ::-1], x[:, :, half:]], 2),
                images(s), lengths, axis=2)


def _scaled(s: Scale) -> OperatorCase:
    n, c, h, w = images(s).sizes
    return case(lambda x: 2 * x + 0.5, Given((max(1, n * c // 3), 3, h, w)), scale=2.0,
                bias=[0.5] * 3)


CASES: dict[str, Entry] = {
    "ACTIVATION_IDENTITY": lambda s: case(lambda x: x, rows(s)),
    "DIAGONAL_MATRIX": lambda s: case(lambda: np.eye(s.side), sizes=(s.side,) * 2),
    "DIAGONAL_MATRIX1": lambda s: case(
        lambda x: np.where((_distances(s.side) >= -2) & (_distances(s.side) < 3), 7, x),
        whole(rows(s)), value=7, diagonal_fill_begin=-2, diagonal_fill_end=3),
    "FILL_VALUE_CONSTANT": lambda s: case(
        lambda: np.full((s.side,) * 2, 2.5), sizes=(s.side,) * 2, value=2.5),
    "FILL_VALUE_SEQUENCE": lambda s: case(
        lambda: 1 + 0.25 * np.arange(s.elements), sizes=(s.elements,), value_start=1.0,
        value_delta=0.25),
    "VALUE_SCALE_2D": _scaled,
    # By indices
    "GATHER": lambda s: case(lambda x, i: x[i[0]], whole(rows(s)), _chosen(s)[None],
                             axis=0, index_dimensions=1),
    **each("GATHER_ND GATHER_ND1", _by_rows),
    "GATHER_ELEMENTS": lambda s: case(lambda x, i: np.take_along_axis(x, i, 1), rows(s),
                                      rows(s, 0, s.side, np.uint32), axis=1),
    "SCATTER": lambda s: case(put, whole(rows(s)), np.tile(_chosen(s), (s.side, 1)),
                              whole(rows(s)), axis=1),
    "SCATTER_ND": lambda s: case(
        _put_rows, whole(rows(s)), _chosen(s)[::2, None],
        Given((-(-s.side // 2), s.side), shared=True),
        input_dimension_count=2, indices_dimension_count=2),
    "SCATTER_REDUCE": lambda s: case(_add_along, whole(rows(s)), _columns_twice(s),
                                     whole(rows(s)), axis=1),
    "SCATTER_ND_REDUCE": lambda s: case(
        with_rows_added, whole(rows(s)), _columns_twice(s)[0, :, None], whole(rows(s)),
        input_dimension_count=2, indices_dimension_count=2),
    "ONE_HOT": lambda s: case(
        lambda i, values: np.where(i == np.arange(s.side), values[0, 1], values[0, 0]),
        _chosen(s)[:, None], np.array([[0, 1]], np.float32), out=(s.side, s.side), axis=1),
    "NONZERO_COORDINATES": lambda s: case(
        lambda x: (np.array([x.size]), np.argwhere(x)), whole(rows(s))),
    # By position
    "JOIN": lambda s: case(lambda *x: np.concatenate(x, 1), rows(s), rows(s), axis=1,
                           call=lambda f, /, *x, **more: f(x, **more)),
    "SPLIT": lambda s: case(lambda x: np.split(x, 2, 1), Given((s.side, 2 * s.side)),
                            sections=2, axis=1),
    "SLICE": lambda s: case(lambda x: x[:, 1::2], rows(s), offsets=(0, 1),
                            sizes=(s.side, s.side // 2), strides=(1, 2)),
    "SLICE1": lambda s: case(
        lambda x: x[:, ::-1], rows(s), input_window_offsets=(0, 0),
        input_window_sizes=(s.side, s.side), input_window_strides=(1, -1)),
    **each("PADDING PADDING1", _padded),
    "TILE": lambda s: case(lambda x: np.tile(x, (1, 2)), rows(s), repeats=(1, 2)),
    "REVERSE_SUBSEQUENCES": _reversed,
    "DEPTH_TO_SPACE": lambda s: case(lambda x: to_space(x, 2), _deep(s), block_size=2),
    "DEPTH_TO_SPACE1": lambda s: case(
        lambda x: to_space(x, 2, 1), _deep(s), block_size=2, order=1),
    "SPACE_TO_DEPTH": lambda s: case(lambda x: to_depth(x, 2), images(s), block_size=2),
    "SPACE_TO_DEPTH1": lambda s: case(
        lambda x: to_depth(x, 2, 1), images(s), block_size=2, order=1),
}
