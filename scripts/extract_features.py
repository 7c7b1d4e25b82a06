r"""Write the vectors of chosen layers for each token of a text file, with the flags of the original.

    python scripts/extract_features.py --input_file=input.txt --output_file=output.jsonl --layers=-1,-2,-3,-4 \
      --bert_dir=$BERT

The input has one text per line, or a pair of texts as `one ||| other`. The vectors are those of plain BERT, or with
--adapter_pack=FILE, those of a trained task. See docs/serving.md.
"""

from __future__ import annotations

from typing import Sequence

from absl import app, flags

from adapter_bert.common import errors
from adapter_bert.settings import flags as settings_lib
from adapter_bert.settings.extract import ExtractSettings

FLAGS = flags.FLAGS
REQUIRED = ("input_file", "output_file")

if __name__ == "__main__":
    # Check the flags before importing TensorFlow, which takes seconds.
    settings_lib.define_flags(ExtractSettings)
    settings_lib.check_command_line(ExtractSettings, FLAGS, REQUIRED)

from adapter_bert.common import logs
from adapter_bert.serving import layer_vectors


@errors.exits_on_user_error
def main(argv: Sequence[str]) -> None:
    """Extract the vectors that the flags describe."""
    settings = settings_lib.checked_settings(ExtractSettings, FLAGS, REQUIRED)
    logs.show_progress(settings_lib.verbosity(FLAGS))
    layer_vectors.extract(settings)


if __name__ == "__main__":
    app.run(main)
