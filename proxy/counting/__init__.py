"""What a prompt weighs: its texts and images, the features of both, and what reports teach about them."""
