"""Parameter-efficient transfer learning with BERT on TensorFlow: adapters, tasks, training and serving."""
