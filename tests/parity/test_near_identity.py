"""A real BERT with new adapters computes almost the same as without them. Needs no PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

import modeling
from adapter_layers import AdapterConfig

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(("scale", "limit"), [(1e-2, 0.1), (1e-3, 1e-3), (1e-7, 1e-6)])
def test_new_adapters_start_near_the_identity(google_base, batch, scale, limit):
    base, _ = google_base
    values, differences = base.tensors(), []
    # Fusing ops rounds differently with and without adapters.
    session_config = tf.ConfigProto()
    session_config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    for seed in range(3):
        with tf.Graph().as_default(), tf.Session(config=session_config) as session:
            tf.set_random_seed(seed)
            outputs = []
            # Both networks share their variables, so that only the adapters can make a difference.
            with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
                for adapter_fn in (AdapterConfig(init_scale=scale), None):
                    inputs = [tf.constant(array) for array in batch[:3]]
                    model = modeling.BertModel(base.config, False, *inputs, scope="bert", adapter_fn=adapter_fn)
                    outputs.append((model.get_sequence_output(), model.get_pooled_output()))
            session.run(tf.global_variables_initializer())
            for variable in tf.trainable_variables():
                if "/adapters/" not in variable.op.name:
                    variable.load(values[variable.op.name], session)
            adapted, plain = session.run(outputs)
        sequence = np.abs(adapted[0] - plain[0])[batch.real]
        relative = np.linalg.norm(sequence, axis=1) / np.linalg.norm(plain[0][batch.real], axis=1)
        differences.append((sequence.max(), np.abs(adapted[1] - plain[1]).max(), relative.mean()))
    largest, pooled, relative = np.max(differences, axis=0)
    print(f"scale {scale:.0e}: last layer {largest:.1e} (mean relative {relative:.1e}), pooled output {pooled:.1e}")
    assert max(largest, pooled) <= limit
    assert scale < 1e-3 or min(largest, pooled) > 0
