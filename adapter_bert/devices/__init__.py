"""TensorFlow versions, session configs and estimators."""
