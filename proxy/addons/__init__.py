"""Add-ons: features in one file each, that the pipeline does without. `proxy.app` lists them."""
