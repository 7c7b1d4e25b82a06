"""Create a TF-Hub text module from word vectors: text (GloVe, word2vec), npz or safetensors.

    python scripts/convert_word_vectors.py --vectors=glove.6B.50d.txt --output=glove_module --layout=tf1

docs/baselines.md describes the formats.
"""

from __future__ import annotations

from typing import Sequence

from absl import app, flags

from adapter_bert.common import errors, system

system.configure_tensorflow()

from adapter_bert.baselines import hub_modules, word_vectors
from adapter_bert.settings import flags as settings_lib

FLAGS = flags.FLAGS


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Write the module and print its size."""
    settings_lib.reject_positional_args(argv)
    vectors = word_vectors.read(FLAGS.vectors)
    hub_modules.write(vectors, FLAGS.output, FLAGS.layout, FLAGS.buckets)
    print(f"{FLAGS.output}: {len(vectors.words):,} words, {vectors.vectors.shape[1]} dimensions.")


if __name__ == "__main__":
    flags.DEFINE_string("vectors", None, "File with word vectors: *.txt, *.vec, *.npz or *.safetensors.")
    flags.DEFINE_string("output", None, "Folder for the module; must not exist.")
    flags.DEFINE_enum("layout", "tf1", hub_modules.LAYOUTS, "Layout: tf1 (hub.Module) or tf2 (SavedModel).")
    flags.DEFINE_integer("buckets", hub_modules.BUCKETS, "Vectors for unknown words, which are hashed.", lower_bound=1)
    flags.mark_flags_as_required(["vectors", "output"])
    app.run(main)
