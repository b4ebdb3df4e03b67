"""What the model computes with: one interface, a plain torch reference, and faster implementations beside it."""
