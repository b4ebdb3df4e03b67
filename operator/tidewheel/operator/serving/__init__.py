"""What the operator tells about itself: /healthz, /readyz, /metrics."""
