"""TF-Hub text modules: create them from word vectors, and compute vectors of words and texts with them.

A module of either layout is a SavedModel: TF1's (`hub.Module`, with `tfhub_module.pb`) has a signature `default`, TF2's
`serving_default`. The vectors of a word module are read from its files; other modules run as a graph.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import saved_model_pb2

from adapter_bert.baselines.word_vectors import WordVectors
from adapter_bert.common import errors, files, paths
from adapter_bert.common.cached_property import cached_property
from adapter_bert.weights import checkpoints, fingerprints

LAYOUTS = ("tf1", "tf2")
MODEL, VARIABLES, ASSETS, TF1_MARK = "saved_model.pb", "variables/variables", "assets", "tfhub_module.pb"
TABLE = "embeddings"
# A file of words, one per line; with a second column if several words share a row.
WORDS_FILE = "tokens.txt"
# Rows for unknown words, which are hashed.
BUCKETS = 100
_SIGNATURES = ("default", "serving_default")
FORMAT_V3 = b"\x08\x03"  # of TF-Hub, in the file that marks a module of TF1
_BATCH_SIZE = 64


# ------------------------------------------------------------------------------------------------ creating modules


def write(vectors: WordVectors, folder: str, layout: str, buckets: int = BUCKETS) -> None:
    """Write a TF-Hub module: string [B] -> float [B, width], the sum of a text's word vectors over their root count.

    Words are separated by spaces. An unknown word is hashed to one of `buckets` additional vectors, which are random.
    """
    files.check_absent(folder)
    table = np.concatenate([vectors.vectors, _bucket_vectors(vectors.vectors, buckets)]).astype(np.float32)
    lines = vectors.words if vectors.rows is None else [f"{w}\t{row}" for w, row in zip(vectors.words, vectors.rows)]
    with files.user_errors(f"Cannot write the module {folder}"), files.staging_folder(folder) as staging:
        asset = os.path.join(staging, WORDS_FILE)
        files.write_text(asset, "\n".join(lines) + "\n")
        module, has_rows = os.path.join(staging, "module"), vectors.rows is not None
        {"tf1": _write_tf1, "tf2": _write_tf2}[layout](module, table, asset, has_rows, buckets)
        files.replace_folder(module, folder)


def _bucket_vectors(vectors: np.ndarray, buckets: int) -> np.ndarray:
    """Return vectors for unknown words, as long as those of known ones."""
    return np.random.RandomState(0).normal(0.0, float(vectors.std()), [buckets, vectors.shape[1]])


def _lookup_table(asset: Any, has_rows: bool) -> Any:
    """Return the table word -> row; -1 for unknown words."""
    whole, line = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    key, value = (0, 1) if has_rows else (whole, line)
    initializer = tf.lookup.TextFileInitializer(asset, tf.string, key, tf.int64, value, delimiter="\t")
    return tf.lookup.StaticHashTable(initializer, -1)


def _embed(texts: tf.Tensor, words: Any, table: Any, rows: int, buckets: int) -> tf.Tensor:
    split = tf.strings.split(texts, result_type="SparseTensor")
    known = words.lookup(split.values)
    unknown = rows + tf.strings.to_hash_bucket_fast(split.values, buckets)
    ids = tf.SparseTensor(split.indices, tf.where(known >= 0, known, unknown), split.dense_shape)
    return tf.nn.safe_embedding_lookup_sparse([table], ids, combiner="sqrtn")


def _write_tf1(folder: str, table: np.ndarray, asset: str, has_rows: bool, buckets: int) -> None:
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        path = tf.constant(asset, name="words_file")
        tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, path)
        value = tf.placeholder(tf.float32, table.shape)
        variable = tf.get_variable(TABLE, initializer=value)
        texts = tf.placeholder(tf.string, [None], "texts")
        output = _embed(texts, _lookup_table(path, has_rows), variable, len(table) - buckets, buckets)
        session.run(variable.initializer, {value: table})
        info = tf.saved_model.build_tensor_info
        signature = tf.saved_model.build_signature_def({"default": info(texts)}, {"default": info(output)}, "default")
        builder = tf.saved_model.Builder(folder)
        assets = tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS)
        builder.add_meta_graph_and_variables(session, [], {"default": signature}, assets_collection=assets)
        builder.save()
    files.write_bytes(os.path.join(folder, TF1_MARK), FORMAT_V3)


def _write_tf2(folder: str, table: np.ndarray, asset: str, has_rows: bool, buckets: int) -> None:
    if not tf.executing_eagerly():
        raise errors.UserError("A module in the layout of TF2 can only be written with TensorFlow 2.")
    import tensorflow

    module = tensorflow.Module()
    module.words_file = tensorflow.saved_model.Asset(asset)
    module.words = _lookup_table(module.words_file, has_rows)
    module.embeddings = tensorflow.Variable(table, name=TABLE)

    def embed(texts: tf.Tensor) -> tf.Tensor:
        return _embed(texts, module.words, module.embeddings, len(table) - buckets, buckets)

    module.__call__ = tensorflow.function(embed, [tensorflow.TensorSpec([None], tf.string)], autograph=False)
    tensorflow.saved_model.save(module, folder, {"serving_default": module.__call__})


# ------------------------------------------------------------------------------------------------- using modules


class TextModule:
    """A TF-Hub module in a folder; `name` is its name in messages."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder, self.name = folder, name
        path = os.path.join(folder, MODEL)
        if not paths.exists(path):
            raise errors.UserError(f"--hub_module={name} is not a TF-Hub module: {folder} has no {MODEL}.")
        data = files.read_bytes(path, f"Cannot read the module {name}", 2**31)
        index = os.path.join(folder, VARIABLES + ".index")
        has_variables = paths.exists(index)
        self.fingerprint = fingerprints.of_tensor(np.frombuffer(data, np.uint8))
        if has_variables:  # the index contains the checksums of the variables
            state = np.frombuffer(files.read_bytes(index, f"Cannot read the module {name}"), np.uint8)
            self.fingerprint = fingerprints.of_text(self.fingerprint + fingerprints.of_tensor(state))
        self._shapes = checkpoints.read_shapes(os.path.join(folder, VARIABLES)) if has_variables else {}
        try:
            self._meta = saved_model_pb2.SavedModel.FromString(data).meta_graphs[0]
        except Exception as error:  # the parser raises many types
            raise errors.UserError(f"The module {name} is damaged: {errors.reason(error)}.") from None
        self.signature = self._find_signature()

    def _find_signature(self) -> Any:
        signatures = dict(self._meta.signature_def)
        found = next((signatures[name] for name in _SIGNATURES if name in signatures), None)
        if found is not None and len(found.outputs) >= 1:
            kinds = [tensor.dtype for tensor in found.inputs.values()]
            output = self._output(found)
            is_text = kinds == [tf.string.as_datatype_enum] or set(found.inputs) >= {"indices", "values"}
            if is_text and output.dtype == tf.float32.as_datatype_enum and len(output.tensor_shape.dim) == 2:
                return found
        shown = "; ".join(f"{name}: {_describe(each)}" for name, each in sorted(signatures.items())) or "none"
        raise errors.UserError(
            f"--hub_module={self.name} is not a text module: expected a signature string [B] -> float [B, width], "
            f"found {shown:.600}."
        )

    @staticmethod
    def _output(signature: Any) -> Any:
        return signature.outputs.get("default") or next(iter(signature.outputs.values()))

    @property
    def is_word_module(self) -> bool:
        """Whether the vector of a text is the combination of vectors of its words."""
        return self._table_key is not None and self._words_path is not None

    @property
    def reads_pieces(self) -> bool:
        """Whether the input are the numbers of SentencePiece pieces instead of texts."""
        return len(self.signature.inputs) > 1

    @cached_property
    def _table_key(self) -> Optional[str]:
        keys = [key for key, shape in self._shapes.items() if len(shape) == 2]
        return keys[0] if len(keys) == 1 else None

    @cached_property
    def _words_path(self) -> Optional[str]:
        folder = os.path.join(self.folder, ASSETS)
        names = [name for name in paths.names_in(folder) if name.endswith(".txt")] if paths.is_folder(folder) else []
        return os.path.join(folder, names[0]) if len(names) == 1 else None

    @cached_property
    def _rows(self) -> Dict[str, int]:
        """Word -> row of the table."""
        path = str(self._words_path)
        text = files.read_bytes(path, f"Cannot read the module {self.name}", 2**31).decode("utf-8")
        lines = text.rstrip("\n").split("\n")
        if "\t" not in lines[0]:
            return {line: row for row, line in enumerate(lines)}
        return {word: int(row) for word, _, row in (line.partition("\t") for line in lines)}

    @cached_property
    def _table(self) -> np.ndarray:
        key = str(self._table_key)
        return checkpoints.read_tensors(os.path.join(self.folder, VARIABLES), [key])[key]

    def word_vectors(self, words: Sequence[str]) -> np.ndarray:
        """Return float32 [words, width]: the vectors of single words."""
        if not self.is_word_module:
            return self.text_vectors(words)
        known = self._rows
        count = 1 + max(known.values())
        buckets = len(self._table) - count
        rows = np.array([known.get(word, -1) for word in words], np.int64)
        unknown = [word for word, row in zip(words, rows) if row < 0]
        if not buckets:
            return np.where(rows[:, None] < 0, np.float32(0), self._table[np.maximum(rows, 0)])
        if unknown:
            with tf.Graph().as_default(), tf.Session() as session:
                rows[rows < 0] = count + session.run(tf.strings.to_hash_bucket_fast(unknown, buckets))
        return self._table[rows]

    def text_vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [texts, width]: the module's output."""
        return np.concatenate(list(self._run(texts))) if len(texts) else np.zeros([0, self.width], np.float32)

    @property
    def width(self) -> int:
        """The size of a vector."""
        size = self._output(self.signature).tensor_shape.dim[-1].size
        return int(size) if size > 0 else int(self._shapes[str(self._table_key)][1])

    def _run(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
            output = self.load(session)
            for start in range(0, len(texts), _BATCH_SIZE):
                yield session.run(output, self.feed(texts[start : start + _BATCH_SIZE]))

    def load(self, session: tf.Session) -> str:
        """Load the graph and its variables; return the name of the output."""
        try:
            meta = tf.saved_model.load(session, list(self._meta.meta_info_def.tags), self.folder)
            assets = _assets(meta, self.folder)
            session.run(tf.tables_initializer(), dict(assets))
        except (RuntimeError, ValueError, tf.errors.OpError) as error:
            raise errors.UserError(f"The module {self.name} cannot be loaded: {errors.reason(error)}.") from None
        return str(self._output(self.signature).name)

    def feed(self, texts: Sequence[str]) -> Dict[str, Any]:
        """Return input tensor -> value for these texts."""
        inputs = self.signature.inputs
        if not self.reads_pieces:
            return {next(iter(inputs.values())).name: np.array(texts, object)}
        batch = self.pieces(texts)
        values = {"values": batch.values, "indices": batch.indices, "dense_shape": batch.shape}
        return {tensor.name: values[name] for name, tensor in inputs.items()}

    def pieces(self, texts: Sequence[str]) -> Pieces:
        """Return the numbers of the SentencePiece pieces of these texts."""
        encoded = [self._sentencepiece.encode(text) or [0] for text in texts]
        indices = [(row, place) for row, ids in enumerate(encoded) for place in range(len(ids))]
        values = [number for ids in encoded for number in ids]
        shape = (len(encoded), max(map(len, encoded)))
        return Pieces(np.array(indices, np.int64), np.array(values, np.int64), np.array(shape, np.int64))

    @cached_property
    def _sentencepiece(self) -> Any:
        import sentencepiece

        folder = os.path.join(self.folder, ASSETS)
        names = [name for name in paths.names_in(folder) if name.endswith(".model")] if paths.is_folder(folder) else []
        if not names:
            raise errors.UserError(f"The module {self.name} has no SentencePiece model (*.model) in its assets.")
        return sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, names[0]))


class Pieces(NamedTuple):
    """A sparse matrix with the numbers of SentencePiece pieces."""

    indices: np.ndarray  # int64 [N, 2]
    values: np.ndarray  # int64 [N]
    shape: np.ndarray  # int64 [2]


def _describe(signature: Any) -> str:
    def names(tensors: Any) -> str:
        described = (
            f"{name} {tf.as_dtype(tensor.dtype).name}{[dim.size for dim in tensor.tensor_shape.dim]}"
            for name, tensor in sorted(tensors.items())
        )
        return ", ".join(described) or "nothing"

    return f"{names(signature.inputs)} -> {names(signature.outputs)}"


def _assets(meta: Any, folder: str) -> List[Tuple[str, str]]:
    """Return (tensor, path) of the files of a module of TF1."""
    from tensorflow.core.protobuf import meta_graph_pb2

    found = [meta_graph_pb2.AssetFileDef.FromString(each.value) for each in _any_list(meta, "saved_model_assets")]
    return [(asset.tensor_info.name, os.path.join(folder, ASSETS, asset.filename)) for asset in found]


def _any_list(meta: Any, name: str) -> Sequence[Any]:
    return list(meta.collection_def[name].any_list.value) if name in meta.collection_def else []
